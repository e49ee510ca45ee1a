"""The scored action tokens of a run as flat columns: all that losses and statistics need.

About 20 bytes a token stay in memory, whatever the size of the data; everything else of a
trajectory is let go once it is scored.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Floats, Mask, Step, Trajectory
from trajkit.scoring.losses import F64
from trajkit.scoring.mismatch import not_comparable
from trajkit.scoring.scored import ScoredTrajectory, StepScores

GroupKind: TypeAlias = Literal["group_id", "first_prompt"]
Group: TypeAlias = tuple[GroupKind, str]
"""What the trajectories of one group share: the name of it, and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlace:
    """Which token of the data a number speaks of."""

    trajectory_id: str
    step_index: int
    action_position: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredTokens:
    """N action tokens with a log-prob, of S steps, of M trajectories.

    Attributes:
        logprobs: [N] float32 nats; -inf where the checkpoint gives the id no probability.
        rollout_logprobs: [N] float32 nats as recorded, NaN where not.
        recorded_advantages: [N] float32; `None` unless every token has one.
        position: [N] int32 index in its action.
        step: [N] int32 index into the per-step columns.
        step_trajectory, step_index: [S]; `step_comparable`: [S] whether recorded log-probs are.
        trajectory_ids, returns, groups: [M]; a return is NaN where no reward is known, a group is
            `None` where it is unknown.
        n_recorded_advantages: tokens with a recorded advantage.
    """

    logprobs: Floats
    rollout_logprobs: Floats
    recorded_advantages: Floats | None
    position: NDArray[np.int32]
    step: NDArray[np.int32]
    step_trajectory: NDArray[np.int64]
    step_index: NDArray[np.int64]
    step_comparable: Mask
    trajectory_ids: tuple[str, ...]
    returns: F64
    groups: tuple[Group | None, ...]
    n_recorded_advantages: int

    @property
    def trajectory(self) -> NDArray[np.int64]:
        """Return [N] index of each token's trajectory."""
        return self.step_trajectory[self.step]

    def place(self, token: int) -> TokenPlace:
        """Return where a token stands in the data."""
        step = self.step[token]
        return TokenPlace(
            trajectory_id=self.trajectory_ids[self.step_trajectory[step]],
            step_index=int(self.step_index[step]),
            action_position=int(self.position[token]),
        )


class TokenCollector:
    """Gathers scored trajectories one by one, and counts what is not among their tokens.

    Attributes:
        n_tokens: action tokens with a log-prob.
        n_first_token: action tokens at position 0 of a sequence: no log-prob exists.
        n_neg_inf: action tokens to which the checkpoint gives probability 0.
        not_comparable: recorded log-probs that are no full softmax's, by reason.
    """

    def __init__(self) -> None:
        self.n_tokens = 0
        self.n_first_token = 0
        self.n_neg_inf = 0
        self.not_comparable: Counter[str] = Counter()
        self._columns: tuple[list[NDArray[np.generic]], ...] = ([], [], [], [], [])
        self._steps: list[tuple[int, int, bool]] = []
        self._trajectories: list[tuple[str, float, Group | None]] = []
        self._has_advantages = True
        self._n_advantages = 0

    def add(self, scored: ScoredTrajectory) -> None:
        """Take the action tokens of a trajectory's scored steps."""
        rows = [row for row in scored.steps if row.logprobs is not None and len(row.logprobs)]
        if not rows:
            return
        trajectory = scored.trajectory
        for row in rows:
            self._add_step(row)
        reward = trajectory.reward
        self._trajectories.append(
            (
                trajectory.trajectory_id,
                np.nan if reward is None else reward,
                group_of(trajectory),
            )
        )

    def _add_step(self, row: StepScores) -> None:
        step, logprobs = row.step, row.logprobs
        if logprobs is None:
            return
        sampled = sampled_ids(step)
        self.n_first_token += int((sampled & np.isnan(logprobs)).sum())
        keep = sampled & ~np.isnan(logprobs)
        self.n_tokens += int(keep.sum())
        self.n_neg_inf += int(np.isneginf(logprobs[keep]).sum())
        recorded = _or_nan(step.rollout_logprobs, len(logprobs))
        why = not_comparable(step)
        if why is not None:
            self.not_comparable[why] += int((~np.isnan(recorded[keep])).sum())
        advantages = _or_nan(step.advantages, len(logprobs))
        self._n_advantages += int((~np.isnan(advantages[keep])).sum())
        if self._has_advantages and np.isnan(advantages[keep]).any():
            self._has_advantages = False
            self._columns[2].clear()
        columns = (
            logprobs[keep],
            recorded[keep],
            advantages[keep] if self._has_advantages else np.empty(0, dtype=np.float32),
            np.flatnonzero(keep).astype(np.int32),
            np.full(int(keep.sum()), len(self._steps), dtype=np.int32),
        )
        for column, part in zip(self._columns, columns, strict=True):
            column.append(part)
        self._steps.append((len(self._trajectories), step.step_index, why is None))

    def finish(self) -> ScoredTokens:
        """Return the columns of everything that was added."""
        kinds = (np.float32, np.float32, np.float32, np.int32, np.int32)
        logprobs, rollout, advantages, position, step = (
            np.concatenate(column) if column else np.empty(0, dtype=kind)
            for column, kind in zip(self._columns, kinds, strict=True)
        )
        owner, index, comparable = np.array(self._steps, dtype=np.int64).reshape(-1, 3).T
        return ScoredTokens(
            logprobs=logprobs,
            rollout_logprobs=rollout,
            recorded_advantages=advantages if self._has_advantages and len(logprobs) else None,
            position=position,
            step=step,
            step_trajectory=owner,
            step_index=index,
            step_comparable=comparable.astype(np.bool_),
            trajectory_ids=tuple(name for name, _, _ in self._trajectories),
            returns=np.array([reward for _, reward, _ in self._trajectories], dtype=np.float64),
            groups=tuple(group for _, _, group in self._trajectories),
            n_recorded_advantages=self._n_advantages,
        )


def sampled_ids(step: Step) -> Mask:
    """Return [A] True where the policy sampled the id (inserted ids are not its choice)."""
    mask = step.action_mask
    n_delta = 0 if step.prompt_delta is None else len(step.prompt_delta)
    if mask is None:
        return np.zeros(0, dtype=np.bool_)
    return mask[n_delta : n_delta + step.n_action_tokens]


def group_of(trajectory: Trajectory) -> Group | None:
    """Return what a trajectory shares with its group: its group id, else its first prompt's ids.

    `None` when neither is known: two unknown prompts are not the same prompt.
    """
    if trajectory.group_id is not None:
        return ("group_id", trajectory.group_id)
    first = trajectory.steps[0].prompt_ids
    if first is None:
        return None
    ids = first.astype("<i4").tobytes()
    return ("first_prompt", hashlib.blake2b(ids, digest_size=16).hexdigest())


def _or_nan(column: Floats | None, n: int) -> Floats:
    return np.full(n, np.nan, dtype=np.float32) if column is None else column
