"""Advantages out of outcome rewards, relative to the group a trajectory was sampled in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trajkit.scoring.losses import F64
from trajkit.scoring.tokens import GroupKind, ScoredTokens

EPSILON = 1e-6
"""Added to a group's standard deviation, so that equal rewards give 0."""


class AdvantageSource(StrEnum):
    """Where advantages come from."""

    RECORDED = "recorded"
    GROUP_ID = "group_id"
    FIRST_PROMPT = "first_prompt"
    BOTH = "group_id+first_prompt"
    """Some trajectories have a group id, the others go by their first prompt."""


_SOURCES: dict[frozenset[GroupKind], AdvantageSource | None] = {
    frozenset(): None,
    frozenset({"group_id"}): AdvantageSource.GROUP_ID,
    frozenset({"first_prompt"}): AdvantageSource.FIRST_PROMPT,
    frozenset({"group_id", "first_prompt"}): AdvantageSource.BOTH,
}
"""What advantages are made from, by the kinds of groups that gave some."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupAdvantages:
    """Advantages of M trajectories.

    Attributes:
        advantages: [M] float64, NaN where there is none.
        n_without_baseline: trajectories whose reward is the only one known in their group, or whose
            group is unknown.
        n_without_reward: trajectories whose reward is unknown.
        group_sizes: known rewards of each group that has one.
    """

    advantages: F64
    n_without_baseline: int
    n_without_reward: int
    group_sizes: tuple[int, ...]


def group_advantages(returns: F64, groups: Sequence[Hashable | None]) -> GroupAdvantages:
    """Return (R - mean) / (std + 1e-6) within each group, std with n - 1 in its denominator.

    GRPO's outcome advantage (DeepSeekMath, arXiv 2402.03300, section 4.1.2) with the constants of
    verl (`compute_grpo_outcome_advantage`). A reward alone in its group has no baseline and so no
    advantage: it is left out, not set to 0. A group is the members given: one of whom others were
    not selected or not scored has the baseline of those that were.

    Args:
        returns: [M] return of each trajectory, NaN where unknown.
        groups: [M] what trajectories of one group share, `None` where unknown.
    """
    advantages = np.full(len(returns), np.nan, dtype=np.float64)
    members: dict[Hashable, list[int]] = {}
    n_alone = 0
    for at, group in enumerate(groups):
        if np.isnan(returns[at]):
            continue
        if group is None:
            n_alone += 1
        else:
            members.setdefault(group, []).append(at)
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
        group_sizes=tuple(map(len, members.values())),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenAdvantages:
    """Advantages of N tokens, and what they were made of.

    Attributes:
        values: [N], NaN for a token that has none; `None` when no token has one.
        n_without_baseline, n_without_reward, group_sizes: see `GroupAdvantages`; no groups when
            advantages are recorded.
        n_recorded_ignored: tokens whose recorded advantage is not used, because others have none.
    """

    values: F64 | None
    source: AdvantageSource | None
    n_without_baseline: int
    n_without_reward: int
    group_sizes: tuple[int, ...]
    n_recorded_ignored: int


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
            group_sizes=(),
            n_recorded_ignored=0,
        )
    known = ~np.isnan(made.advantages)
    kinds = frozenset(
        group[0]
        for group, has_one in zip(tokens.groups, known, strict=True)
        if group is not None and has_one
    )
    return TokenAdvantages(
        values=made.advantages[tokens.trajectory] if kinds else None,
        source=_SOURCES[kinds],
        n_without_baseline=made.n_without_baseline,
        n_without_reward=made.n_without_reward,
        group_sizes=made.group_sizes,
        n_recorded_ignored=tokens.n_recorded_advantages,
    )
