"""Rows as a trainer pads them, [B, T] and masks, and the same tokens as the table that is checked.

Positions of a row are actions (1), observations (2) or padding (0). Uncounted actions stand at the
ends of steps, so that runs of counted positions are the counted tokens of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajkit.rl.advantages import IN_GROUP, group_means
from trajkit.rl.spec import Advantage
from trajkit.rl.table import LossInputs
from trajkit.rl.values import step_gae, whitened

ROWS = (
    ((4, 2), (2, 1)),
    ((3, 2),),
    ((2, 3), (1, 1), (3, 1)),
    ((1, 1),),
    ((5, 2),),
    ((2, 1), (2, 2)),
    ((3, 1),),
    ((2, 2), (4, 1)),
    ((3, 1),),
    ((2, 2),),
)
"""Of each row, its steps: how many ids the policy sampled, and how many the environment said."""
TRAJECTORY = (0, 0, 1, 2, 3, 4, 4, 5, 6, 7)
GROUP = (0, 0, 0, 1, 1, 1, 2, 2)
"""Of each trajectory. The last group's rewards are equal, and so are two of the second's."""
REWARDS = (1.0, 0.25, -0.5, 0.75, 0.25, 0.25, 1.5, 1.5)
MAX_LENGTH = 11
B, T = len(ROWS), max(sum(map(sum, row)) for row in ROWS)
GROUP_OF_ROW = tuple(GROUP[one] for one in TRAJECTORY)


def _positions() -> tuple[Any, Any]:
    """Return kinds [B, T], and the number of the step that a position belongs to or answers."""
    kinds, steps, n_steps = np.zeros((B, T), np.int64), np.full((B, T), -1), 0
    for at, row in enumerate(ROWS):
        column = 0
        for n_action, n_observation in row:
            end = column + n_action + n_observation
            kinds[at, column : column + n_action] = 1
            kinds[at, column + n_action : end] = 2
            steps[at, column:end] = n_steps
            column, n_steps = end, n_steps + 1
    return kinds, steps


KINDS, STEPS = _positions()
IS_ACTION, IS_OBSERVED = KINDS == 1, KINDS == 2
N_STEPS = int(STEPS.max()) + 1


def of_step(step: int) -> Any:
    """Return [B, T] True at what a step sampled and at what answers it."""
    return np.equal(STEPS, step)


TRAJECTORY_OF_STEP = np.array([TRAJECTORY[np.nonzero(of_step(s))[0][0]] for s in range(N_STEPS)])


def steps_of(trajectory: int) -> Any:
    """Return [S] True at the steps of a trajectory."""
    return np.equal(TRAJECTORY_OF_STEP, trajectory)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded rows [B, T]; `logp` has a gradient."""

    logp: Tensor
    old: Tensor
    rollout: Tensor
    ref: Tensor
    entropy: Tensor
    exact_kl: Tensor
    mask: Tensor
    observed: Tensor
    rewards: Tensor
    """[S] of each step alone; each trajectory's sum is its return."""
    values: Tensor
    """[S] of a critic, before each step."""


class Kind(StrEnum):
    """What ratios are like."""

    MILD = "mild"
    WILD = "wild"
    """Beyond every bound that a trainer keeps to."""
    EDGE = "edge"
    """On both sides of the thresholds at which a trainer leaves tokens out, and near them."""


def make_batch(seed: int, kind: Kind = Kind.MILD) -> Batch:
    rng = np.random.default_rng(seed)
    mask = _counted(rng)
    logp, old, rollout = _mild(rng, mask)
    if kind is Kind.WILD:
        logp, old, rollout = _wild(rng, logp, old, rollout)
    elif kind is Kind.EDGE:
        logp, old, rollout = _moved(mask, seed) if seed % 2 else _weighed(rng, mask, seed)
    columns = {
        "logp": logp,
        "old": old,
        "rollout": rollout,
        "ref": logp + rng.normal(0.0, 9.0 if kind is Kind.WILD else 1.5, (B, T)),
        "entropy": rng.uniform(0.0, 3.0, (B, T)),
        "exact_kl": rng.uniform(0.0, 1.0, (B, T)),
        "mask": mask,
        "observed": IS_OBSERVED.astype(np.float64),
        "rewards": _step_rewards(rng),
        "values": rng.normal(size=N_STEPS),
    }
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    tensors["logp"].requires_grad_()
    return Batch(**tensors)


def _mild(rng: np.random.Generator, mask: Any) -> tuple[Any, Any, Any]:
    near = np.arange(B)[:, None] % 2 == 0  # rows in which the sampler is close to the trainer
    logp = rng.uniform(-3.0, -0.05, (B, T)) - 2.0 * near
    old = np.minimum(logp + rng.normal(0.0, 0.5, (B, T)), -0.01)
    rollout = np.minimum(old + rng.normal(0.0, 1.0, (B, T)) * np.where(near, 0.4, 1.0), -0.01)
    for row, wanted in {0: -0.0005, 2: 0.001, 4: -0.0005, 6: 0.001, 8: 0.05}.items():
        gap = ((old - rollout) * mask)[row].sum() / mask[row].sum()
        rollout[row] += gap - wanted  # the log of the geometric mean of old over rollout
    return logp, old, rollout


def _wild(rng: np.random.Generator, logp: Any, old: Any, rollout: Any) -> tuple[Any, Any, Any]:
    which = rng.uniform(size=(B, T))
    which[1], which[6] = 0.0, 1.0  # whole rows, with A > 0 and with A < 0
    far = 23.0 * (which > 0.85)
    return logp - 23.0 * (which < 0.15), old - far, rollout - far


def _moved(mask: Any, seed: int) -> tuple[Any, Any, Any]:
    """Return probabilities of 0.5 that came from around 0.1, 0.2 and KLs of 0.05 and 0.2 away.

    They moved the way that the advantage pulls.
    """
    shifts = [0.095, 0.105, 0.1535, 0.1613, 0.19, 0.21, 0.3, 0.315]
    own, found = np.array(REWARDS), []
    pull = np.sign(own - group_means(own, np.array(GROUP)))[list(TRAJECTORY)]
    for turn in (seed, seed + 3):
        moves = np.full((B, T), 0.01)
        for sign in (-1.0, 1.0):
            where = (mask > 0) & (pull == sign)[:, None]
            moves[where] = sign * np.resize(np.roll(shifts, turn), int(where.sum()))
        found.append(np.log(0.5 - moves))
    return np.full((B, T), np.log(0.5)), found[0], found[1]


def _weighed(rng: np.random.Generator, mask: Any, seed: int) -> tuple[Any, Any, Any]:
    """Return ratios of old and sampler around 0.5, 2, 3 and 5, one of them a row's alone."""
    logp = rng.uniform(-3.0, -1.5, (B, T))
    old = logp + rng.normal(0.0, 0.2, (B, T))
    weights = np.ones((B, T))
    around = [0.48, 0.52, 1.9, 2.1, 2.9, 3.1, 4.8, 5.2]
    weights[mask > 0] = np.resize(np.roll(around, seed), int(mask.sum()))
    weights[3] = {4: 3.1, 6: 5.2, 8: 0.52}[seed]
    return logp, old, old - np.log(weights)


def _counted(rng: np.random.Generator) -> Any:
    """Return [B, T] 1 where an action counts: steps lose a first or a last id, never all."""
    mask = IS_ACTION.astype(np.float64)
    for step in range(N_STEPS):
        rows, columns = np.nonzero(of_step(step) & IS_ACTION)
        if len(columns) > 1 and rng.uniform() < 0.5:
            mask[rows[0], columns[0 if rng.uniform() < 0.5 else -1]] = 0.0
    return mask


def _step_rewards(rng: np.random.Generator) -> Any:
    rewards = rng.normal(size=N_STEPS)
    for one, reward in enumerate(REWARDS):
        own = np.nonzero(steps_of(one))[0]
        rewards[own[-1]] = reward - rewards[own[:-1]].sum()
    return rewards


def flat(batch: Batch, advantage: Advantage) -> LossInputs:
    """Return the actions as the table that is checked, observations as its context."""
    row, column = np.nonzero(IS_ACTION)

    def of(tensor: Tensor) -> Any:
        return tensor.detach().numpy()[row, column]

    trajectory = np.array(TRAJECTORY)[row]
    return LossInputs(
        logprobs=of(batch.logp),
        loss_mask=of(batch.mask) > 0,
        trajectory=trajectory,
        row=row,
        group=np.array(GROUP)[trajectory],
        step=STEPS[row, column],
        rollout_logprobs=of(batch.rollout),
        old_logprobs=of(batch.old),
        ref_logprobs=of(batch.ref),
        exact_kl=of(batch.exact_kl),
        entropy=of(batch.entropy),
        advantages=_advantages(batch, advantage)[STEPS[row, column]],
        returns=np.array(REWARDS)[trajectory],
        length=MAX_LENGTH,
        context=_context(batch),
    )


def _advantages(batch: Batch, advantage: Advantage) -> Any:
    """Return [S] what trajkit makes of the rewards, for each step."""
    if advantage in (Advantage.STEP_GAE, Advantage.STEP_GAE_WHITE):
        rewards, values = batch.rewards.numpy(), batch.values.numpy()
        made = np.zeros(N_STEPS)
        for one in range(len(REWARDS)):
            own = steps_of(one)
            made[own] = step_gae(rewards[own], values[own], gamma=1.0, lam=1.0)
        return made if advantage is Advantage.STEP_GAE else whitened(made)
    rewards, found = np.array(REWARDS), np.full(len(REWARDS), np.nan)
    for group in set(GROUP) if advantage in IN_GROUP else ():
        members = np.array(GROUP) == group
        found[members] = IN_GROUP[advantage](rewards[members])
    return found[TRAJECTORY_OF_STEP]


def _context(batch: Batch) -> LossInputs:
    row, column = np.nonzero(IS_OBSERVED)
    trajectory = np.array(TRAJECTORY)[row]
    rewards = group_means(np.array(REWARDS), np.array(GROUP))
    entropy = batch.entropy.numpy()
    means = np.array([entropy[of_step(s) & IS_ACTION].mean() for s in range(N_STEPS)])
    return LossInputs(
        logprobs=batch.logp.detach().numpy()[row, column],
        loss_mask=np.ones(len(row), dtype=np.bool_),
        trajectory=trajectory,
        row=row,
        group=np.array(GROUP)[trajectory],
        step=STEPS[row, column],
        action_entropy=means[STEPS[row, column]],
        group_reward=rewards[trajectory],
    )
