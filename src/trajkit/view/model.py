"""The view of one trajectory: rules and lines, every line of one side, every byte shown.

A line never mixes action and context. Its text is made by `trajkit.view.glyphs`: safe to print,
whole characters even where one is spread over several ids, and control ids told from the same text
spelt with plain ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Ids, SegmentKind, Step, Trajectory
from trajkit.safe.text import shorten
from trajkit.sequence import Span, TokenSequence, build_sequences
from trajkit.tokenizer import Tokenizer
from trajkit.view.glyphs import (
    BLOCK,
    HIDDEN,
    show_bytes,
    show_control,
    show_empty,
    show_text,
)
from trajkit.view.redact import NOTHING, Redaction

if TYPE_CHECKING:
    from trajkit.store.scores import StepNumbers
    from trajkit.view.drift import DriftMark

_IDS_A_LINE = 10
_FACT = 40
"""Characters of a free-form fact that a heading shows."""
LABEL = 9
"""Characters of a role that the lines of a message show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A heading: of a step, or of a sequence where a trajectory has several.

    Attributes:
        facts: what it says, each safe to print.
        step: the step that the lines below it belong to; `None` above a whole sequence.
    """

    facts: tuple[str, ...]
    step: Step | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of text.

    Attributes:
        token_start: index of its first token in the sequence; `None` where there are no tokens.
        skip: bytes of that token that stand on earlier lines.
        is_action: whether the policy sampled it.
        label: who speaks, on the first line of a message that has no tokens.
        text: safe to print.
        note: what stands behind the text and is no part of it.
    """

    token_start: int | None
    is_action: bool
    kind: SegmentKind
    text: str
    label: str = ""
    skip: int = 0
    note: str = ""


Row: TypeAlias = Rule | Line


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What there is to show of one trajectory.

    Attributes:
        n_tokens: tokens over all its sequences; 0 when no step records its prompt's ids.
        n_action_tokens: those of them the policy sampled.
        without_ids: the steps that stand in no sequence and are shown as messages.
        scores: what a checkpoint said about the actions, by step index; empty when not given.
        redaction: what is not shown of it.
        marks: what a drift check found, by the index of the step whose tokens differ.
    """

    trajectory: Trajectory
    sequences: tuple[TokenSequence, ...]
    n_tokens: int
    n_action_tokens: int
    without_ids: tuple[Step, ...]
    scores: Mapping[int, StepNumbers]
    redaction: Redaction = NOTHING
    marks: Mapping[int, tuple[DriftMark, ...]] = field(default_factory=dict)

    @property
    def has_ids(self) -> bool:
        """Return whether any step is shown as tokens."""
        return bool(self.sequences)


def view_of(
    trajectory: Trajectory, scores: Mapping[int, StepNumbers] = MappingProxyType({})
) -> View:
    """Return the view of a trajectory, with a checkpoint's scores by step index where given."""
    sequences = build_sequences(trajectory)
    return View(
        trajectory=trajectory,
        sequences=sequences,
        n_tokens=sum(len(sequence.token_ids) for sequence in sequences),
        n_action_tokens=sum(int(sequence.action_mask.sum()) for sequence in sequences),
        without_ids=tuple(step for step in trajectory.steps if step.prompt_delta is None),
        scores=scores,
    )


def rows(
    view: View, tokenizer: Tokenizer | None, wanted: Callable[[int], bool] = lambda _: True
) -> Iterator[Row]:
    """Yield the rows of a view in order; without a tokenizer the ids themselves are the text.

    Args:
        view: what to show.
        tokenizer: gives each id its bytes.
        wanted: which step indices to show.

    Raises:
        InputError: I304 when the tokenizer does not know an id.
    """
    hides_text = view.redaction.hides_text
    for number, sequence in enumerate(view.sequences):
        if not any(wanted(place.step.step_index) for place in sequence.steps):
            continue
        if len(view.sequences) > 1:
            facts = [f"sequence {number + 1} of {len(view.sequences)}"]
            if sequence.steps[0].start:
                n_kept = _count(sequence.steps[0].start, "token")
                facts.append(f"{n_kept} kept from earlier steps, context (not trained)")
            yield Rule(facts=tuple(facts))
        for row in _sequence_rows(sequence, tokenizer, wanted):
            yield _noted(row, row.text) if hides_text and isinstance(row, Line) else row
    for step in view.without_ids:
        if wanted(step.step_index):
            yield from _message_rows(step, tokenizer, view.redaction)


def _noted(line: Line, signs: str) -> Line:
    """Return a line of block signs with what can still be told of it."""
    return replace(line, note=f"{line.kind.value}, {_count(len(signs), 'token')}")


def _sequence_rows(
    sequence: TokenSequence, tokenizer: Tokenizer | None, wanted: Callable[[int], bool]
) -> Iterator[Row]:
    """Yield a sequence's own steps; what it keeps of another sequence is shown there."""
    by_step: dict[int | None, list[Span]] = {}
    for span in sequence.spans:
        by_step.setdefault(span.step_index, []).append(span)
    for place in sequence.steps:
        if wanted(place.step.step_index):
            yield Rule(facts=step_facts(place.step), step=place.step)
            for span in by_step.get(place.step.step_index, ()):
                ids = sequence.token_ids[span.start : span.end]
                for offset, skip, text in _token_lines(ids, tokenizer):
                    yield Line(
                        token_start=span.start + offset,
                        skip=skip,
                        is_action=span.is_action,
                        kind=span.kind,
                        text=text,
                    )


def step_facts(step: Step) -> tuple[str, ...]:
    """Return what a step's heading says: index, action count, how it ended, reward."""
    facts = [f"step {step.step_index}"]
    if step.action_tokens is not None:
        facts.append(f"action {_count(step.n_action_tokens, 'token')}")
    facts.append(step.action_source.value if step.action_tokens is not None else "no ids")
    if step.finish_reason is not None:
        facts.append(shorten(step.finish_reason, _FACT))
    if step.is_truncated:
        facts.append("cut")
    if step.reward is not None:
        facts.append(f"reward {step.reward:g}")
    if step.exclude_reason is not None:
        facts.append(f"excluded: {shorten(step.exclude_reason, _FACT)}")
    if step.is_terminal:
        facts.append("terminal")
    return tuple(facts)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _token_lines(ids: Ids, tokenizer: Tokenizer | None) -> Iterator[tuple[int, int, str]]:
    """Yield (first token, its bytes that stand on earlier lines, text) of each line of a span."""
    if (ids == HIDDEN).all():
        if len(ids):
            yield 0, 0, BLOCK * len(ids)
        return
    if tokenizer is None:
        for at in range(0, len(ids), _IDS_A_LINE):
            yield (
                at,
                0,
                " ".join(f"{token_id:>6}" for token_id in ids[at : at + _IDS_A_LINE].tolist()),
            )
        return
    pieces = pieces_of(ids, tokenizer)
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    alone = np.isin(ids, tokenizer.control_ids) | (lengths == 0)
    edges = np.flatnonzero(alone)
    borders = np.unique(np.concatenate(([0, len(ids)], edges, edges + 1)))
    start, parts = (0, 0), list[str]()
    for at, end in pairwise(borders.tolist()):
        run: Iterable[tuple[int, int, str, bool]] = (
            [(0, 0, _sign(int(ids[at]), tokenizer), False)]
            if alone[at]
            else _run_lines(pieces[at:end], lengths[at:end])
        )
        for offset, skip, text, is_whole in run:
            if not parts:
                start = at + offset, skip
            parts.append(text)
            if is_whole:
                yield *start, "".join(parts)
                parts = []
    if parts:
        yield *start, "".join(parts)


def pieces_of(ids: Ids, tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each id; none of one that is hidden."""
    if (ids != HIDDEN).all():
        return tokenizer.pieces(ids)
    return [b"" if i == HIDDEN else tokenizer.token_bytes(i) for i in ids.tolist()]


def _sign(token_id: int, tokenizer: Tokenizer) -> str:
    if token_id == HIDDEN:
        return BLOCK
    content = tokenizer.control.get(token_id)
    return show_empty(token_id) if content is None else show_control(content)


def _run_lines(
    pieces: Sequence[bytes], lengths: NDArray[np.int64]
) -> Iterator[tuple[int, int, str, bool]]:
    """Yield (first token, its bytes on earlier lines, text, whether a newline ends it)."""
    ends = np.cumsum(lengths)
    at = 0
    for line in _lines(b"".join(pieces)):
        first = int(np.searchsorted(ends, at, side="right"))
        skip = at - int(ends[first] - lengths[first])
        yield first, skip, show_bytes(line), line.endswith(b"\n")
        at += len(line)


def _lines(data: bytes) -> Iterator[bytes]:
    """Yield bytes cut behind each newline, and behind nothing else."""
    start = 0
    while start < len(data):
        newline = data.find(b"\n", start)
        end = len(data) if newline < 0 else newline + 1
        yield data[start:end]
        start = end


def _message_rows(step: Step, tokenizer: Tokenizer | None, redaction: Redaction) -> Iterator[Row]:
    """Yield a step without prompt ids as messages: what its prompt added, and the policy's own."""
    yield Rule(facts=step_facts(step), step=step)
    if step.messages_json is not None:
        for message in _loaded(step.messages_json):
            yield from _message_lines(message, redaction, is_action=False)
    elif step.text_delta is not None:
        yield from _text_lines(step.text_delta, "prompt", redaction, is_action=False)
    if step.action_message_json is not None:
        for message in _loaded(step.action_message_json):
            yield from _message_lines(message, redaction, is_action=True)
    elif step.action_text is not None:
        yield from _text_lines(step.action_text, "action", redaction, is_action=True)
    elif step.action_tokens is not None:
        label = "action"
        for _, _, text in _token_lines(step.action_tokens, tokenizer):
            yield _text_line(text, label, is_action=True)
            label = ""
    if step.is_terminal and step.observation is not None:
        yield from _text_lines(step.observation, "observed", redaction, is_action=False)


def _loaded(text: str) -> Sequence[object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return value if isinstance(value, list) else [value]


def _message_lines(message: object, redaction: Redaction, *, is_action: bool) -> Iterator[Line]:
    """Yield a message's text under its role, and whatever else it holds as JSON."""
    message = message if redaction.is_nothing else redaction.value(message)
    if not isinstance(message, dict):
        yield from _text_lines(_json(message), "message", redaction, is_action=is_action)
        return
    role = _json(message.get("role") or message.get("type") or "message")
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key != "role" and value is not None}
    if isinstance(content, str) or not rest:
        yield from _text_lines(rest.pop("content", ""), role, redaction, is_action=is_action)
        role = "fields"
    if rest:
        yield from _text_lines(_json(rest), role, redaction, is_action=is_action)


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text_lines(text: str, label: str, redaction: Redaction, *, is_action: bool) -> Iterator[Line]:
    """Yield a text's lines, the first one labelled: text cannot forge where a message begins."""
    is_whole = redaction.is_nothing
    label = label if is_whole else redaction.text(label)
    data = (text if is_whole else redaction.text(text)).encode("utf-8", errors="backslashreplace")
    for line in _lines(data) if data else (b"",):
        shown = show_bytes(line) if is_whole else show_text(line.decode())
        yield _text_line(shown, label, is_action=is_action)
        label = ""


def _text_line(text: str, label: str, *, is_action: bool) -> Line:
    kind = SegmentKind.TEXT if is_action else SegmentKind.CONTEXT
    shown = show_text(label)
    shown = shown if len(shown) <= LABEL else f"{shown[: LABEL - 1]}…"
    return Line(token_start=None, is_action=is_action, kind=kind, text=text, label=shown)
