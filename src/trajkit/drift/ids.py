"""Route `ids`: decode each action, encode the text again, compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trajkit.align import differing_regions, same_ids
from trajkit.drift.findings import DriftFinding, DriftKind, Route
from trajkit.records import Ids, Step
from trajkit.tokenizer import Tokenizer


def check_ids(
    steps: Sequence[Step], tokenizer: Tokenizer
) -> Iterator[tuple[Step, list[DriftFinding]]]:
    """Yield each step with the regions in which encode(decode(action)) differs from the action.

    Equal texts are encoded once.

    Raises:
        InputError: I304 when an id is outside the vocabulary.
    """
    actions = [_known(step, tokenizer) for step in steps]
    texts = tokenizer.decode_batch(actions)
    distinct = list(dict.fromkeys(texts))
    encoded = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
    for step, action, text in zip(steps, actions, texts, strict=True):
        again = encoded[text]
        if same_ids(action, again):
            yield step, []
        else:
            yield step, list(_findings(step, action, again, tokenizer))


def _known(step: Step, tokenizer: Tokenizer) -> Ids:
    """Return a step's action after checking each id: decoding would drop an unknown one."""
    if step.action_tokens is None:
        raise ValueError("only steps with action ids have an ids route")
    tokenizer.require_known(step.action_tokens, "action", step.place)
    return step.action_tokens


def _findings(step: Step, action: Ids, again: Ids, tokenizer: Tokenizer) -> Iterator[DriftFinding]:
    left, right = tokenizer.pieces(action), tokenizer.pieces(again)
    for region in differing_regions(action, again, left, right):
        mine = slice(region.left_start, region.left_end)
        theirs = slice(region.right_start, region.right_end)
        yield DriftFinding(
            trajectory_id=step.trajectory_id,
            step_index=step.step_index,
            route=Route.IDS,
            kind=(
                DriftKind.STRUCTURE
                if _control(action[mine], tokenizer) != _control(again[theirs], tokenizer)
                else DriftKind.IDS_ONLY
                if b"".join(left[mine]) == b"".join(right[theirs])
                else DriftKind.TEXT
            ),
            token_start=(step.prompt_len or 0) + region.left_start,
            action_start=region.left_start,
            byte_start=region.byte_start,
            recorded_ids=tuple(action[mine].tolist()),
            retokenized_ids=tuple(again[theirs].tolist()),
            recorded_text=tokenizer.text(action[mine]),
            retokenized_text=tokenizer.text(again[theirs]),
            n_action_tokens=region.left_end - region.left_start,
        )


def _control(ids: Ids, tokenizer: Tokenizer) -> list[int]:
    return [token_id for token_id in ids.tolist() if token_id in tokenizer.control]
