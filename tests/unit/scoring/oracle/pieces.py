"""What twins are put together from: advantages, ratios, clips, weights and means, in torch.

Written from the formulas of papers and of trainers, in the shape that trainers use, with `detach`
where a gradient stops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tests.unit.scoring.oracle.batch import (
    GROUP,
    GROUP_OF_ROW,
    MAX_LENGTH,
    N_STEPS,
    REWARDS,
    STEPS,
    TRAJECTORY,
    TRAJECTORY_OF_STEP,
    B,
    Batch,
    T,
    of_step,
    steps_of,
)

Advantages: TypeAlias = Callable[[Batch], Tensor]
Terms: TypeAlias = Callable[[Batch, Tensor], Tensor]
Mean: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Twin:
    """How a loss is computed here: its advantages [B, T], token losses [B, T] and their mean.

    `beside` is what has a denominator of its own and is added.
    """

    advantages: Advantages
    terms: Terms
    mean: Mean
    beside: Callable[[Batch], Tensor] | None = None

    def __call__(self, batch: Batch) -> Tensor:
        loss = self.mean(self.terms(batch, self.advantages(batch)), batch.mask)
        return loss if self.beside is None else loss + self.beside(batch)


def by_group(estimate: Callable[[Tensor], Tensor]) -> Advantages:
    """Return advantages [B, T] out of what an estimator makes of each group's rewards."""

    def advantages(_: Batch) -> Tensor:
        rewards, group = torch.tensor(REWARDS, dtype=torch.float64), torch.tensor(GROUP)
        made = torch.zeros_like(rewards)
        for one in range(max(GROUP) + 1):
            made[group == one] = estimate(rewards[group == one])
        return made[torch.tensor(TRAJECTORY)][:, None].expand(B, T)

    return advantages


def std_of(epsilon: float, *, unbiased: bool = True) -> Advantages:
    return by_group(lambda r: (r - r.mean()) / (r.std(unbiased=unbiased) + epsilon))


CENTRED = by_group(lambda r: r - r.mean())
OTHERS = by_group(lambda r: r - (r.sum() - r) / (len(r) - 1))
ONES = by_group(torch.ones_like)
REWARD = by_group(lambda r: r)
GRPO = std_of(1e-6)


def step_gae(batch: Batch) -> Tensor:
    """Return [S] the reward still to come, less the value: GAE with gamma and lambda 1."""
    made = torch.zeros(N_STEPS, dtype=torch.float64)
    for step in range(N_STEPS):
        later = torch.tensor(steps_of(TRAJECTORY_OF_STEP[step]))
        later &= torch.arange(N_STEPS) >= step
        made[step] = batch.rewards[later].sum() - batch.values[step]
    return made


def at_steps(values: Tensor) -> Tensor:
    """Return [B, T] the value of each position's step [S]."""
    return values[torch.tensor(STEPS)]


def ratio(b: Batch, against: str = "old", bound: float = math.inf) -> Tensor:
    behaviour = b.rollout if against == "rollout" else b.old
    return (b.logp - behaviour).clamp(-bound, bound).exp()


def clipped(r: Tensor, a: Tensor, low: float = 0.8, high: float = 1.2) -> Tensor:
    return torch.maximum(-a * r, -a * r.clamp(low, high))


def dual(r: Tensor, a: Tensor, c: float = 3.0) -> Tensor:
    loss = clipped(r, a)
    return torch.where(a < 0, torch.minimum(loss, -c * a), loss)


def row_log_ratio(b: Batch) -> Tensor:
    """Return [B, 1] the mean log-ratio of the counted tokens of a row."""
    return (((b.logp - b.old) * b.mask).sum(1) / b.mask.sum(1))[:, None]


def token_of_row(b: Batch, bound: float = math.inf) -> Tensor:
    """Return s_i,t of GSPO-token: the row's geometric mean, with the token's own gradient."""
    log = b.logp - b.logp.detach() + row_log_ratio(b).detach()
    return log.clamp(max=bound).exp()


def capped(r: Tensor, a: Tensor, logp: Tensor, low: float, high: float) -> Tensor:
    return -r.clamp(low, high).detach() * a * logp


def soft_gate(r: Tensor, a: Tensor, positive: float = 1.0, negative: float = 1.05) -> Tensor:
    tau = torch.where(a > 0, torch.full_like(a, positive), torch.full_like(a, negative))
    return -torch.sigmoid(tau * (r - 1.0)) * (4.0 / tau) * a


def binary_kl(p: Tensor, q: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(q || p) of taking the token or another one."""
    tiny = 1e-8
    return q * (log_q - log_p) + (1 - q) * torch.log((1 - q + tiny) / (1 - p + tiny))


def k3(b: Batch, weight: float, cut: float = math.inf, result: float = math.inf) -> Tensor:
    gap = (b.ref - b.logp).clamp(-cut, cut)
    return weight * (gap.exp() - gap - 1).clamp(-result, result)


def token_weight(b: Batch) -> Tensor:
    return (b.old - b.rollout).exp()


def weight_cut(b: Batch, low: float, high: float) -> Tensor:
    return token_weight(b).clamp(low, high)


def weight_inside(b: Batch, low: float, high: float) -> Tensor:
    w = token_weight(b)
    return torch.where((w >= low) & (w <= high), w, 0.0)


def weight_of_kept_rows(b: Batch, low: float, high: float) -> Tensor:
    geometric = (((b.old - b.rollout) * b.mask).sum(1) / b.mask.sum(1)).exp()
    return token_weight(b) * ((geometric >= low) & (geometric <= high))[:, None]


def weight_row(b: Batch) -> Tensor:
    return ((b.old - b.rollout) * b.mask).sum(1, keepdim=True).exp()


def token_mean(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum() / m.sum()


def token_sum(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum()


def row_mean(x: Tensor, m: Tensor) -> Tensor:
    return ((x * m).sum(1) / m.sum(1)).mean()


def row_sum(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum(1).mean()


def row_length(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum() / (B * MAX_LENGTH)


def length_alone(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum(1).sum() / MAX_LENGTH


def mean_over(owner: tuple[int, ...]) -> Mean:
    """Return the mean over owners of the token mean over all rows of each."""

    def mean(x: Tensor, m: Tensor) -> Tensor:
        parts = []
        for one in sorted(set(owner)):
            rows = [row for row in range(B) if owner[row] == one]
            if m[rows].sum() > 0:
                parts.append((x * m)[rows].sum() / m[rows].sum())
        return torch.stack(parts).mean()

    return mean


def step_mean(x: Tensor, m: Tensor) -> Tensor:
    """Return the mean over steps of each step's token mean."""
    parts = []
    for step in range(N_STEPS):
        own = torch.tensor(of_step(step)) * m
        parts.append((x * own).sum() / own.sum())
    return torch.stack(parts).mean()


def trajectory_sum(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum() / len(REWARDS)


trajectory_mean, group_mean = mean_over(TRAJECTORY), mean_over(GROUP_OF_ROW)


def ppo(b: Batch, a: Tensor) -> Tensor:
    return clipped(ratio(b), a)


def ppo_20(b: Batch, a: Tensor) -> Tensor:
    return clipped(ratio(b, bound=20.0), a)


def dual_20(b: Batch, a: Tensor) -> Tensor:
    return dual(ratio(b, bound=20.0), a)


def likelihood(b: Batch, a: Tensor) -> Tensor:
    return -a * b.logp


def surprise(b: Batch, weight: float, mean: Mean) -> Tensor:
    """Return the weighed cross-entropy of observations."""
    return weight * mean(-b.logp, b.observed)
