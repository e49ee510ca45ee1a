"""Which tokens of scored steps a loss counts, by a training policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trajkit.records import Mask, Trajectory
from trajkit.sequence import build_sequences
from trajkit.tokenizer import Tokenizer
from trajkit.training import TRAIN_POLICIES, TrainPolicy, loss_mask

ALL_ACTIONS = TRAIN_POLICIES[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counted:
    """What a loss counts of a step.

    Attributes:
        action: [A] True where it counts an action token.
        context: [D + L] True where it counts a token of delta or tail.
    """

    action: Mask
    context: Mask


def counted_tokens(
    trajectory: Trajectory, policy: TrainPolicy, tokenizer: Tokenizer | None = None
) -> Mapping[int, Counted]:
    """Return what counts, by step index; nothing where the policy takes all actions and no more.

    A tail that no sequence holds, because a later prompt goes on without it, does not count.

    Raises:
        UsageProblem: U103 when the policy asks for parts of an action that nothing tells.
        InputError: I304 when the tokenizer does not know an id.
    """
    if policy is ALL_ACTIONS:
        return {}
    found: dict[int, Counted] = {}
    for sequence in build_sequences(trajectory):
        mask = loss_mask(sequence, policy, tokenizer)
        for place in sequence.steps:
            step, end = place.step, place.action_end
            n_tail = 0 if step.tail_tokens is None else len(step.tail_tokens)
            tail = np.zeros(n_tail, dtype=np.bool_)
            if place is sequence.steps[-1]:
                tail = mask[end : end + n_tail]
            found[step.step_index] = Counted(
                action=mask[place.action_start : end],
                context=np.concatenate([mask[place.start : place.action_start], tail]),
            )
    return found
