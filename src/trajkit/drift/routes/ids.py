"""Route `ids`: decode each action, encode the text again, compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from trajkit.align import same_ids
from trajkit.drift.difference import differences
from trajkit.drift.findings import Route
from trajkit.drift.walked import (
    CauseOf,
    Found,
    Walked,
    alone,
    found_in,
    require_actions_known,
    unexplained,
)
from trajkit.records import Ids, Step, Trajectory
from trajkit.spelling import Spelling
from trajkit.tokenizer import Tokenizer


def walk_ids(
    batch: Sequence[Trajectory],
    tokenizer: Tokenizer,
    wanted: Callable[[int], bool],
    cause_of: CauseOf,
) -> list[Walked]:
    """Return what the route finds in each trajectory of a batch, which is encoded together."""
    each = [
        [step for step in trajectory.steps if step.is_checkable and wanted(step.step_index)]
        for trajectory in batch
    ]
    found = check_ids([step for steps in each for step in steps], tokenizer, cause_of)
    return [
        Walked(
            checked=tuple(step.step_index for step in steps),
            found=tuple(one for _ in steps for one in next(found)[1]),
        )
        for steps in each
    ]


def check_ids(
    steps: Sequence[Step], tokenizer: Tokenizer, cause_of: CauseOf = unexplained
) -> Iterator[tuple[Step, list[Found]]]:
    """Yield each step with the regions in which encode(decode(action)) differs from the action.

    Equal texts are encoded once.

    Raises:
        InputError: I304 when an id is outside the vocabulary.
    """
    require_actions_known(steps, tokenizer)
    actions = [_action(step) for step in steps]
    texts = tokenizer.decode_batch(actions)
    distinct = list(dict.fromkeys(texts))
    encoded = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
    pairs = [(action, encoded[text]) for action, text in zip(actions, texts, strict=True)]
    is_same = [same_ids(action, again) for action, again in pairs]
    spelt = _spelt([pair for pair, same in zip(pairs, is_same, strict=True) if not same], tokenizer)
    for step, (action, again), same in zip(steps, pairs, is_same, strict=True):
        if same:
            yield step, []
            continue
        parts = differences(
            action,
            again,
            tokenizer,
            route=Route.IDS,
            action=((0, len(action)),),
            spelt=(next(spelt), next(spelt)),
        )
        yield step, list(found_in(parts, [alone(step)], step.prompt_len or 0, cause_of))


def _spelt(pairs: Sequence[tuple[Ids, Ids]], tokenizer: Tokenizer) -> Iterator[Spelling]:
    """Yield what each list of some pairs spells; the vocabulary is asked once for all."""
    if not pairs:
        return
    lists = [ids for pair in pairs for ids in pair]
    whole, at = tokenizer.spell(np.concatenate(lists)), 0
    for ids in lists:
        yield whole[at : at + len(ids)]
        at += len(ids)


def _action(step: Step) -> Ids:
    if step.action_tokens is None:
        raise ValueError("only steps with action ids have an ids route")
    return step.action_tokens
