"""A view as plain columns, for `--format json` and for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from trajkit.sequence import TokenSequence
from trajkit.tokenizer import Tokenizer
from trajkit.view.drift import DriftMark
from trajkit.view.glyphs import HIDDEN
from trajkit.view.lanes import LANES, json_number, rounded
from trajkit.view.model import View, pieces_of


def view_columns(
    view: View, tokenizer: Tokenizer | None, wanted: Callable[[int], bool] = lambda _: True
) -> list[dict[str, Any]]:
    """Return one object per token sequence: tokens as columns, and the spans that cover them.

    A trajectory without prompt ids is one object without tokens. `tokens.text` is null where an id
    by itself is no whole characters; `tokens.bytes` is hex. Id, text and bytes are null where they
    are not to be shown. `lanes` has a number or null for each token, for each lane with any number
    (an infinite one is "inf" or "-inf"); `drift` has what a drift check found.

    Args:
        view: what to show.
        tokenizer: gives each id its bytes; without it both are null.
        wanted: step indices; sequences that own no such step are left out, the others are whole.

    Raises:
        InputError: I304 when the tokenizer does not know an id.
    """
    trajectory = view.trajectory
    common = {
        "trajectory_id": trajectory.trajectory_id,
        "group_id": trajectory.group_id,
        "reward": json_number(trajectory.reward),
        "n_steps": len(trajectory.steps),
        "n_steps_without_ids": len(view.without_ids),
    }
    numbered = [
        (number, sequence)
        for number, sequence in enumerate(view.sequences)
        if any(wanted(place.step.step_index) for place in sequence.steps)
    ]
    columns = [
        {"sequence": number} | _columns(each, tokenizer) | _beside(view, each)
        for number, each in numbered
    ]
    if not view.has_ids:
        columns = [{"sequence": None} | _NO_TOKENS]
    return [common | each for each in columns]


def _columns(sequence: TokenSequence, tokenizer: Tokenizer | None) -> dict[str, Any]:
    mask = sequence.action_mask
    kinds: list[str] = []
    steps: list[int | None] = []
    for span in sequence.spans:
        kinds += [span.kind.value] * (span.end - span.start)
        steps += [span.step_index] * (span.end - span.start)
    pieces = None if tokenizer is None else pieces_of(sequence.token_ids, tokenizer)
    ids = [None if i == HIDDEN else i for i in sequence.token_ids.tolist()]
    return {
        "n_tokens": len(sequence.token_ids),
        "n_action_tokens": int(mask.sum()),
        "tokens": {
            "id": ids,
            "text": None if pieces is None else [*map(_text, pieces, ids)],
            "bytes": None if pieces is None else [*map(_hex, pieces, ids)],
            "kind": kinds,
            "action": mask.tolist(),
            "step": steps,
        },
        "spans": [
            {
                "start": span.start,
                "end": span.end,
                "kind": span.kind.value,
                "action": span.is_action,
                "step": span.step_index,
            }
            for span in sequence.spans
        ],
    }


def _beside(view: View, sequence: TokenSequence) -> dict[str, Any]:
    """Return the numbers of a sequence's actions, and the findings at its tokens."""
    n = len(sequence.token_ids)
    lanes: dict[str, list[float | str | None]] = {}
    for lane in LANES:
        for place in sequence.steps:
            values = rounded(lane.of(place.step, view.scores.get(place.step.step_index)))
            if values is not None:
                column = lanes.setdefault(lane.name, [None] * n)
                column[place.action_start : place.action_end] = map(json_number, values)
    marks = [mark for place in sequence.steps for mark in view.marks.get(place.step.step_index, ())]
    return {"lanes": lanes, "drift": [_mark(mark) for mark in marks]}


def _mark(mark: DriftMark) -> dict[str, Any]:
    other = None if mark.other_ids is None else list(mark.other_ids)
    return asdict(mark) | {"other_ids": other}


_NO_TOKENS: dict[str, Any] = {
    "n_tokens": 0,
    "n_action_tokens": 0,
    "tokens": {"id": [], "text": [], "bytes": [], "kind": [], "action": [], "step": []},
    "spans": [],
    "lanes": {},
    "drift": [],
}


def _hex(piece: bytes, token_id: int | None) -> str | None:
    return None if token_id is None else piece.hex()


def _text(piece: bytes, token_id: int | None) -> str | None:
    try:
        return None if token_id is None else piece.decode("utf-8")
    except UnicodeDecodeError:
        return None
