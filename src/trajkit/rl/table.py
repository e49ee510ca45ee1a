"""The table of tokens that a loss is computed on: columns [N], NaN where a number is unknown."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Mask

F64: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """N tokens, one row each; unknown values are NaN, unknown columns `None`.

    Attributes:
        logprobs: [N] nats, under the checkpoint.
        loss_mask: [N] True where the loss counts the token.
        trajectory: [N] which trajectory the token belongs to.
        row: [N] which token sequence it stands in: what a trainer calls a row. `None`: a trajectory
            is one row.
        group: [N] which group of trajectories it belongs to. `None`: each is a group by itself.
        rollout_logprobs: [N] nats, recorded by the sampler.
        old_logprobs: [N] nats, recorded by the trainer before its update. Where it is `None`, the
            old policy is taken to be the sampler.
        ref_logprobs: [N] nats, under the reference model.
        exact_kl: [N] nats, KL(checkpoint || reference) over the whole vocabulary.
        entropy: [N] nats, of the checkpoint's next-token distribution.
        step: [N] which step the token belongs to; for context, the step whose action it answers.
        advantages: [N] of the estimator that the loss names.
        returns: [N] the return of the token's trajectory.
        length: the constant that some means divide by: a trainer's longest response.
        action_entropy: [N] nats, for context: the mean over the action it answers.
        group_reward: [N] the mean return of the token's group.
        context: the context tokens that losses count, a table of their own.
    """

    logprobs: F64
    loss_mask: Mask
    trajectory: Index
    row: Index | None = None
    group: Index | None = None
    rollout_logprobs: F64 | None = None
    old_logprobs: F64 | None = None
    ref_logprobs: F64 | None = None
    exact_kl: F64 | None = None
    entropy: F64 | None = None
    step: Index | None = None
    advantages: F64 | None = None
    returns: F64 | None = None
    length: int | None = None
    action_entropy: F64 | None = None
    group_reward: F64 | None = None
    context: LossInputs | None = None

    @property
    def rows(self) -> Index:
        """Return [N] the row of each token."""
        return self.trajectory if self.row is None else self.row

    @property
    def groups(self) -> Index:
        """Return [N] the group of each token."""
        return self.trajectory if self.group is None else self.group

    @property
    def steps(self) -> Index:
        """Return [N] the step of each token; without steps, its row."""
        return self.rows if self.step is None else self.step


def column(inputs: LossInputs, name: str) -> F64:
    """Return a column that a loss needs and that is there."""
    values: F64 | None = getattr(inputs, name)
    if values is None:
        raise ValueError(f"a loss was given tokens without {name}")
    return values


def is_known(inputs: LossInputs, name: str) -> Mask:
    """Return [N] where a column is known."""
    values: F64 | None = getattr(inputs, name)
    return np.zeros_like(inputs.loss_mask) if values is None else ~np.isnan(values)


def select(inputs: LossInputs, keep: Mask) -> LossInputs:
    """Return the tokens of a mask [N]."""
    parts: dict[str, Any] = {
        each.name: part[keep]
        for each in fields(inputs)
        if isinstance(part := getattr(inputs, each.name), np.ndarray)
    }
    return replace(inputs, **parts)
