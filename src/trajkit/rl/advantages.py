"""Advantages out of rewards: relative to the group a trajectory was sampled in, or to values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trajkit.rl.spec import Advantage
from trajkit.rl.table import F64, Index
from trajkit.rl.tokens import GroupKind, ScoredTokens
from trajkit.rl.values import whitened


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


def normalised(rewards: F64, epsilon: float, *, ddof: int = 1) -> F64:
    """Return (R - mean) / (std + epsilon) [G], std with n - ddof in its denominator.

    GRPO's outcome advantage (arXiv 2402.03300, section 4.1.2). Epsilon lets equal rewards give 0;
    it is 1e-6 in verl (`compute_grpo_outcome_advantage`), SkyRL, slime, ROLL and Search-R1, 1e-4 in
    TRL, 1e-5 in AReaL, 1e-9 in OpenRLHF. rLLM's is numpy's std: n, and 1e-6.
    """
    return centred(rewards) / (float(rewards.std(ddof=ddof)) + epsilon)


def centred(rewards: F64) -> F64:
    """Return R - mean [G] (Dr. GRPO, arXiv 2503.20783, section 3.2; prime-rl, tinker-cookbook)."""
    return rewards - float(rewards.mean())


def leave_one_out(rewards: F64) -> F64:
    """Return R - mean of the others [G] (RLOO, arXiv 2402.14740, section 3.3)."""
    others: F64 = (float(rewards.sum()) - rewards) / (len(rewards) - 1)
    return rewards - others


def leave_one_out_normalised(rewards: F64) -> F64:
    """Return R - mean of the others, over their std + 1e-6 [G]; undivided where they have none.

    NeMo RL, `GRPOAdvantageEstimator` with its leave-one-out baseline and normalised rewards.
    """
    n = len(rewards)
    advantages = leave_one_out(rewards)
    if n < 3:
        return advantages
    gaps = centred(rewards)
    means = -gaps / (n - 1)  # of the others, counted from the mean of all
    squares = (float((gaps**2).sum()) - gaps**2) / (n - 1)
    variance = (squares - means**2) * (n - 1) / (n - 2)
    differ = variance > _ROUNDING * float((gaps**2).max())
    advantages[differ] /= np.sqrt(variance[differ]) + 1e-6
    return advantages


_ROUNDING = 1e-12
"""A variance this small beside the largest square is what rounding leaves of 0."""


IN_GROUP: dict[Advantage, Callable[[F64], F64]] = {
    Advantage.GROUP_STD: lambda rewards: normalised(rewards, 1e-6),
    Advantage.GROUP_STD_TRL: lambda rewards: normalised(rewards, 1e-4),
    Advantage.GROUP_STD_OPENRLHF: lambda rewards: normalised(rewards, 1e-9),
    Advantage.GROUP_STD_AREAL: lambda rewards: normalised(rewards, 1e-5),
    Advantage.GROUP_STD_RLLM: lambda rewards: normalised(rewards, 1e-6, ddof=0),
    Advantage.GROUP_MEAN: centred,
    Advantage.LEAVE_ONE_OUT: leave_one_out,
    Advantage.LEAVE_ONE_OUT_STD: leave_one_out_normalised,
}
"""Advantages [G] out of the known rewards [G] of a group, of which there are two or more."""


def group_means(returns: F64, groups: Index) -> F64:
    """Return [M] the mean known return of each trajectory's group, NaN where none is known."""
    known = ~np.isnan(returns)
    n_groups = int(groups.max(initial=-1)) + 1
    sums = np.bincount(groups[known], weights=returns[known], minlength=n_groups)
    sizes = np.bincount(groups[known], minlength=n_groups)
    means = np.full(n_groups, np.nan, dtype=np.float64)
    np.divide(sums, sizes, out=means, where=sizes > 0)
    return np.where(np.isfinite(means), means, np.nan)[groups]


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


def group_advantages(
    returns: F64,
    groups: Sequence[Hashable | None],
    advantage: Advantage = Advantage.GROUP_STD,
) -> GroupAdvantages:
    """Return the advantage of each trajectory within its group.

    A reward alone in its group has no baseline and so no advantage: it is left out, not set to 0.
    A group is the members given: one of whom others were not selected or not scored has the
    baseline of those that were. Rewards whose squares no float holds have no advantage.

    Args:
        returns: [M] return of each trajectory, NaN where unknown.
        groups: [M] what trajectories of one group share, `None` where unknown.
        advantage: a key of `IN_GROUP`.
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
        with np.errstate(over="ignore", invalid="ignore"):
            made = IN_GROUP[advantage](returns[rows])
        advantages[rows] = np.where(np.isfinite(made), made, np.nan)
    return GroupAdvantages(
        advantages=advantages,
        n_without_baseline=n_alone,
        n_without_reward=int(np.isnan(returns).sum()),
        group_sizes=tuple(map(len, members.values())),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenAdvantages:
    """What the advantages of tokens are made of.

    Attributes:
        source: `None` when no token can have one out of a group.
        n_without_baseline, n_without_reward, group_sizes: see `GroupAdvantages`; no groups when
            advantages are recorded.
        n_recorded_ignored: tokens whose recorded advantage is not used, because others have none.
    """

    source: AdvantageSource | None
    n_without_baseline: int
    n_without_reward: int
    group_sizes: tuple[int, ...]
    n_recorded_ignored: int


def advantage_facts(tokens: ScoredTokens) -> TokenAdvantages:
    """Return what advantages are made of: those recorded when every token has one, else groups.

    Groups are over trajectories with scored tokens: by `group_id`, and without one by the ids of
    the first prompt.
    """
    made = group_advantages(tokens.returns, tokens.groups)
    if tokens.recorded_advantages is not None:
        return TokenAdvantages(
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
        source=_SOURCES[kinds],
        n_without_baseline=made.n_without_baseline,
        n_without_reward=made.n_without_reward,
        group_sizes=made.group_sizes,
        n_recorded_ignored=tokens.n_recorded_advantages,
    )


def token_advantages(tokens: ScoredTokens, advantage: Advantage) -> F64 | None:
    """Return [N] the advantage of each token, NaN where it has none; `None` when none has one.

    Where every token has a recorded advantage, those are it, whatever the estimator.
    """
    if tokens.recorded_advantages is not None:
        return tokens.recorded_advantages.astype(np.float64)
    if advantage is Advantage.STEP_GAE:
        values = tokens.step_gae[tokens.step]
    elif advantage is Advantage.STEP_GAE_WHITE:
        values = whitened(tokens.step_gae)[tokens.step]
    else:
        made = group_advantages(tokens.returns, tokens.groups, advantage)
        values = made.advantages[tokens.trajectory]
    return None if np.isnan(values).all() else values
