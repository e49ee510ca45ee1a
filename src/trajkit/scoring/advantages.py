"""Advantages out of outcome rewards, relative to the group a trajectory was sampled in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trajkit.scoring.losses import F64
from trajkit.scoring.tokens import ScoredTokens

EPSILON = 1e-6
"""Added to a group's standard deviation, so that equal rewards give 0."""


class AdvantageSource(StrEnum):
    """Where advantages come from."""

    RECORDED = "recorded"
    GROUP_ID = "group_id"
    FIRST_PROMPT = "first_prompt"
    BOTH = "group_id+first_prompt"
    """Some trajectories have a group id, the others go by their first prompt."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupAdvantages:
    """Advantages of M trajectories.

    Attributes:
        advantages: [M] float64, NaN where there is none.
        n_without_baseline: trajectories whose reward is the only one known in their group.
        n_without_reward: trajectories whose reward is unknown.
    """

    advantages: F64
    n_without_baseline: int
    n_without_reward: int


def group_advantages(returns: F64, groups: Sequence[Hashable]) -> GroupAdvantages:
    """Return (R - mean) / (std + 1e-6) within each group, std with n - 1 in its denominator.

    GRPO's outcome advantage (DeepSeekMath, arXiv 2402.03300, section 4.1.2) with the constants of
    verl (`compute_grpo_outcome_advantage`). A reward alone in its group has no baseline and so no
    advantage: it is left out, not set to 0.

    Args:
        returns: [M] return of each trajectory, NaN where unknown.
        groups: [M] what trajectories of one group share.
    """
    advantages = np.full(len(returns), np.nan, dtype=np.float64)
    members: dict[Hashable, list[int]] = {}
    for at, group in enumerate(groups):
        if not np.isnan(returns[at]):
            members.setdefault(group, []).append(at)
    n_alone = 0
    for rows in members.values():
        if len(rows) < 2:
            n_alone += 1
            continue
        rewards = returns[rows]
        advantages[rows] = (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON)
    return GroupAdvantages(
        advantages=advantages,
        n_without_baseline=n_alone,
        n_without_reward=int(np.isnan(returns).sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenAdvantages:
    """Advantages of N tokens: `None` when no token has one, NaN for one that has none."""

    values: F64 | None
    source: AdvantageSource | None
    n_without_baseline: int
    n_without_reward: int


def token_advantages(tokens: ScoredTokens) -> TokenAdvantages:
    """Return the recorded advantages when every token has one, else those of its group's rewards.

    Groups are over trajectories with scored tokens: by `group_id`, and without one by the ids of
    the first prompt.
    """
    made = group_advantages(tokens.returns, tokens.groups)
    if tokens.recorded_advantages is not None:
        return TokenAdvantages(
            values=tokens.recorded_advantages.astype(np.float64),
            source=AdvantageSource.RECORDED,
            n_without_baseline=0,
            n_without_reward=made.n_without_reward,
        )
    known = ~np.isnan(made.advantages)
    by = {kind for (kind, _), has_one in zip(tokens.groups, known, strict=True) if has_one}
    return TokenAdvantages(
        values=made.advantages[tokens.trajectory] if by else None,
        source=AdvantageSource("+".join(sorted(by, reverse=True))) if by else None,
        n_without_baseline=made.n_without_baseline,
        n_without_reward=made.n_without_reward,
    )
