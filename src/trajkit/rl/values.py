"""Advantages of steps out of recorded values: GAE with a step as the action."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trajkit.records import Trajectory
from trajkit.rl.table import F64


def step_gae(rewards: F64, values: F64, *, gamma: float, lam: float) -> F64:
    """Return [K] the advantage of each step of a trajectory, the value behind the last being 0.

    GAE (arXiv 1506.02438, eq. 16) with a step as the action: delta = r + gamma V' - V, summed with
    (gamma lam)^k. A value that is NaN makes its own advantage and those before it NaN.
    """
    advantages = np.zeros(len(rewards), dtype=np.float64)
    later, value = 0.0, 0.0
    for at in range(len(rewards) - 1, -1, -1):
        later = rewards[at] + gamma * value - values[at] + gamma * lam * later
        value = values[at]
        advantages[at] = later
    return advantages


def whitened(advantages: F64) -> F64:
    """Return (A - mean) / (std + 1e-8) [S] over the known advantages, std with n - 1.

    Agent-R1, `compute_gae_advantage_return`. One alone has no spread, and no advantage.
    """
    known = ~np.isnan(advantages)
    if known.sum() < 2:
        return np.full(len(advantages), np.nan, dtype=np.float64)
    gaps = advantages - float(advantages[known].mean())
    return gaps / (float(advantages[known].std(ddof=1)) + 1e-8)


def gae_of_steps(trajectory: Trajectory) -> Mapping[int, float]:
    """Return the advantage of each step by its index: `step_gae` with gamma and lambda 1.

    Steps are taken in order, without those that are excluded or sampled nothing. The value of a
    step is that of its first action token. A step without a reward of its own adds none; without
    any reward, or without values, there is no advantage.
    """
    steps = [
        step for step in trajectory.steps if step.exclude_reason is None and step.n_action_tokens
    ]
    values = np.array([np.nan if s.values is None else s.values[0] for s in steps], np.float64)
    rewards = np.array([s.reward or 0.0 for s in steps], dtype=np.float64)
    if trajectory.reward is None or not steps:
        return {}
    if all(step.reward is None for step in trajectory.steps):
        rewards[-1] = trajectory.reward
    made = step_gae(rewards, values, gamma=1.0, lam=1.0)
    return {step.step_index: float(value) for step, value in zip(steps, made, strict=True)}
