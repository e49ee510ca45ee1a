"""Route `ids`: decode each action, encode the text again, compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trajkit.align import same_ids
from trajkit.drift.difference import differences
from trajkit.drift.findings import DriftFinding, Route
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
    whole = ((0, len(action)),)
    for found in differences(action, again, tokenizer, route=Route.IDS, action=whole):
        mine, theirs = found.recorded, found.other
        yield DriftFinding(
            trajectory_id=step.trajectory_id,
            step_index=step.step_index,
            route=found.route,
            kind=found.kind,
            token_start=(step.prompt_len or 0) + mine.start,
            action_start=mine.start,
            byte_start=found.byte_start,
            recorded_ids=tuple(mine.region.tolist()),
            retokenized_ids=tuple(theirs.region.tolist()),
            recorded_text=tokenizer.text(mine.region),
            retokenized_text=tokenizer.text(theirs.region),
            n_action_tokens=mine.end - mine.start,
        )
