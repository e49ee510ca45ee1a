"""Presets against a second implementation: padded rows, torch, and its own gradients.

Written from the formulas of the papers and of the systems, in the shape that trainers use, [B, T]
and a mask, with `detach` where a gradient stops; it shares no code with what it checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trajkit.rl.advantages import IN_GROUP
from trajkit.rl.losses import evaluate, gradient
from trajkit.rl.presets import LOSSES, PRESETS
from trajkit.rl.spec import Advantage
from trajkit.rl.table import LossInputs

LENGTHS = (4, 3, 6, 2, 5, 3)
TRAJECTORY = (0, 0, 1, 2, 3, 3)
GROUP = (0, 0, 0, 1, 1, 1)
"""Of each row; trajectories 0 and 1 are a group, 2 and 3 another."""
REWARDS = (1.0, 0.25, -0.5, 0.75)
MAX_LENGTH = 11
B, T = len(LENGTHS), max(LENGTHS)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded rows [B, T]; `logp` has a gradient."""

    logp: Tensor
    old: Tensor
    rollout: Tensor
    ref: Tensor
    mask: Tensor
    gae: Tensor
    at: tuple[Any, ...]
    """The row and column of each token of the flat table."""


def make_batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    is_there = np.arange(T)[None] < np.array(LENGTHS)[:, None]
    mask = is_there & (rng.uniform(size=(B, T)) < 0.8)
    mask[:, 0] = True
    logp = rng.uniform(-3.0, -0.05, (B, T))
    old = np.minimum(logp + rng.normal(0.0, 0.5, (B, T)), -0.01)
    columns = {
        "logp": logp,
        "old": old,
        "rollout": np.minimum(old + rng.normal(0.0, 0.8, (B, T)), -0.01),
        "ref": logp + rng.normal(0.0, 1.5, (B, T)),
        "mask": mask.astype(np.float64),
        "gae": np.repeat(rng.normal(size=(B, 1)), T, axis=1),
    }
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    tensors["logp"].requires_grad_()
    return Batch(at=np.nonzero(is_there), **tensors)


def flat(batch: Batch, advantage: Advantage) -> LossInputs:
    """Return the same tokens as the table that is checked, with rewards turned into advantages."""
    row, column = batch.at

    def of(tensor: Tensor) -> Any:
        return tensor.detach().numpy()[row, column]

    trajectory = np.array(TRAJECTORY)[row]
    made = None
    if advantage is Advantage.STEP_GAE:
        made = of(batch.gae)
    elif advantage in IN_GROUP:
        estimate, rewards = IN_GROUP[advantage], np.array(REWARDS)
        made = np.concatenate([estimate(rewards[:2]), estimate(rewards[2:])])[trajectory]
    return LossInputs(
        logprobs=of(batch.logp),
        loss_mask=of(batch.mask) > 0,
        trajectory=trajectory,
        row=row,
        group=np.array(GROUP)[row],
        rollout_logprobs=of(batch.rollout),
        old_logprobs=of(batch.old),
        ref_logprobs=of(batch.ref),
        advantages=made,
        returns=np.array(REWARDS)[trajectory],
        length=MAX_LENGTH,
    )


def by_group(estimate: Callable[[Tensor], Tensor]) -> Callable[[Batch], Tensor]:
    """Return advantages [B, T] out of what an estimator makes of each group's two rewards."""

    def advantages(_: Batch) -> Tensor:
        rewards = torch.tensor(REWARDS, dtype=torch.float64).reshape(2, 2)
        flat_ = torch.cat([estimate(group) for group in rewards])
        return flat_[torch.tensor(TRAJECTORY)][:, None].expand(B, T)

    return advantages


def std_of(epsilon: float) -> Callable[[Batch], Tensor]:
    return by_group(lambda r: (r - r.mean()) / (r.std() + epsilon))


CENTRED = by_group(lambda r: r - r.mean())
OTHERS = by_group(lambda r: torch.stack([r[0] - r[1], r[1] - r[0]]))
"""In a group of two, the others are the other one; they have no std."""
ONES = by_group(torch.ones_like)
REWARD = by_group(lambda r: r)
GRPO = std_of(1e-6)


def ratio(batch: Batch, against: str = "old", bound: float = math.inf) -> Tensor:
    behaviour = batch.rollout if against == "rollout" else batch.old
    return (batch.logp - behaviour).clamp(-bound, bound).exp()


def clipped(r: Tensor, a: Tensor, low: float = 0.8, high: float = 1.2) -> Tensor:
    return torch.maximum(-a * r, -a * r.clamp(low, high))


def dual(r: Tensor, a: Tensor) -> Tensor:
    loss = clipped(r, a)
    return torch.where(a < 0, torch.minimum(loss, -3.0 * a), loss)


def gspo_ratio(batch: Batch) -> Tensor:
    """Return s_i,t of GSPO-token: the row's geometric mean, with the token's own gradient."""
    log = ((batch.logp - batch.old) * batch.mask).sum(1) / batch.mask.sum(1)
    return (batch.logp - batch.logp.detach() + log.detach()[:, None]).exp()


def capped(r: Tensor, a: Tensor, logp: Tensor, low: float, high: float) -> Tensor:
    return -r.clamp(low, high).detach() * a * logp


def dppo(b: Batch, a: Tensor) -> Tensor:
    log = b.logp - b.rollout
    moved = (b.logp.exp() - b.rollout.exp()).detach()
    out = torch.where(a > 0, moved > 0.2, moved < -0.2)
    return -torch.where(out, 0.0, 1.0) * a * log.exp() + 1e-3 * log**2


def k3(b: Batch, weight: float, cut: float = math.inf) -> Tensor:
    gap = (b.ref - b.logp).clamp(-20, 20) if cut < math.inf else b.ref - b.logp
    return weight * (gap.exp() - gap - 1).clamp(-cut, cut)


def weight_token(b: Batch, low: float, high: float) -> Tensor:
    return (b.old - b.rollout).exp().clamp(low, high)


def weight_row(b: Batch) -> Tensor:
    return ((b.old - b.rollout) * b.mask).sum(1, keepdim=True).exp()


def weight_icepop(b: Batch) -> Tensor:
    w = (b.old - b.rollout).exp()
    return w * ((w >= 0.5) & (w <= 5.0))


def weight_seq_mask(b: Batch) -> Tensor:
    mean = ((b.old - b.rollout) * b.mask).sum(1) / b.mask.sum(1)
    keep = (mean.exp() >= 0.5) & (mean.exp() <= 5.0)
    return (b.old - b.rollout).exp() * keep[:, None]


def weight_mask_3(b: Batch) -> Tensor:
    w = weight_row(b)
    return w.masked_fill(w > 3.0, 0.0)


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


def old_length(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum(1).sum() / MAX_LENGTH


def mean_over(owner: tuple[int, ...]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the mean over owners of the token mean over all rows of each."""

    def mean(x: Tensor, m: Tensor) -> Tensor:
        parts = []
        for one in sorted(set(owner)):
            rows = [row for row in range(B) if owner[row] == one]
            parts.append((x * m)[rows].sum() / m[rows].sum())
        return torch.stack(parts).mean()

    return mean


def per_trajectory_sum(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum() / len(REWARDS)


trajectory_mean, group_mean = mean_over(TRAJECTORY), mean_over(GROUP)

Terms = Callable[[Batch, Tensor], Tensor]
PPO: Terms = lambda b, a: clipped(ratio(b), a)  # noqa: E731
PPO_20: Terms = lambda b, a: clipped(ratio(b, bound=20.0), a)  # noqa: E731
DUAL: Terms = lambda b, a: dual(ratio(b), a)  # noqa: E731
DUAL_20: Terms = lambda b, a: dual(ratio(b, bound=20.0), a)  # noqa: E731
LOGP: Terms = lambda b, a: -a * b.logp  # noqa: E731
GSPO: Terms = lambda b, a: clipped(gspo_ratio(b), a, 1 - 3e-4, 1 + 4e-4)  # noqa: E731
CAP_5: Terms = lambda b, a: capped(ratio(b), a, b.logp, 0.0, 5.0)  # noqa: E731

ORACLE: dict[str, tuple[Callable[[Batch], Tensor], Terms, Callable[[Tensor, Tensor], Tensor]]] = {
    "nll": (ONES, LOGP, token_mean),
    "reinforce": (REWARD, LOGP, per_trajectory_sum),
    "rloo": (OTHERS, LOGP, per_trajectory_sum),
    "tis": (
        REWARD,
        lambda b, a: capped(ratio(b, "rollout"), a, b.logp, 0.0, 2.0),
        per_trajectory_sum,
    ),
    "ppo_clip": (GRPO, PPO, token_mean),
    "ppo_dual_clip": (GRPO, DUAL, token_mean),
    "ppo_gae": (lambda b: b.gae, PPO, token_mean),
    "grpo": (GRPO, PPO, trajectory_mean),
    "grpo_kl": (GRPO, lambda b, a: PPO(b, a) + k3(b, 0.04), trajectory_mean),
    "dr_grpo": (CENTRED, PPO, per_trajectory_sum),
    "dapo": (GRPO, lambda b, a: clipped(ratio(b), a, 0.8, 1.28), token_mean),
    "gspo": (GRPO, GSPO, row_mean),
    "cispo": (GRPO, CAP_5, token_mean),
    "verl@2026-08/token-mean": (GRPO, DUAL_20, token_mean),
    "verl@2026-08/token-sum": (GRPO, DUAL_20, token_sum),
    "verl@2026-08/seq-mean-token-sum": (GRPO, DUAL_20, row_sum),
    "verl@2026-08/seq-mean-token-mean": (GRPO, DUAL_20, row_mean),
    "verl@2026-08/seq-mean-token-sum-norm": (GRPO, DUAL_20, row_length),
    "verl@2026-01/seq-mean-token-sum-norm": (GRPO, DUAL_20, old_length),
    "verl@2026-08/dr-grpo": (CENTRED, DUAL_20, row_length),
    "verl@2026-08/rloo": (OTHERS, DUAL_20, token_mean),
    "verl@2026-08/kl-loss": (GRPO, lambda b, a: DUAL_20(b, a) + k3(b, 1e-3, 10.0), token_mean),
    "verl@2026-08/gspo": (GRPO, GSPO, row_mean),
    "verl@2026-08/cispo": (
        GRPO,
        lambda b, a: capped(ratio(b, bound=20.0), a, b.logp, -9.0, 1.2),
        token_mean,
    ),
    "verl@2026-08/token-mean+is-token": (
        GRPO,
        lambda b, a: DUAL_20(b, a) * weight_token(b, 0.0, 2.0),
        token_mean,
    ),
    "verl@2026-08/token-mean+is-sequence": (
        GRPO,
        lambda b, a: DUAL_20(b, a) * weight_row(b).clamp(max=2.0),
        token_mean,
    ),
    "trl@2026-07/grpo": (std_of(1e-4), PPO, row_mean),
    "trl@2026-07/dapo": (std_of(1e-4), PPO, token_mean),
    "trl@2026-07/dr_grpo": (std_of(1e-4), PPO, row_length),
    "trl@2026-07/cispo": (std_of(1e-4), CAP_5, token_mean),
    "trl@2026-07/dapo+token-truncate": (
        std_of(1e-4),
        lambda b, a: PPO(b, a) * weight_token(b, 0.0, 3.0),
        token_mean,
    ),
    "trl@2026-07/dapo+sequence-mask": (
        std_of(1e-4),
        lambda b, a: PPO(b, a) * weight_mask_3(b),
        token_mean,
    ),
    "openrlhf@2026-08/group_norm": (std_of(1e-9), PPO_20, token_mean),
    "openrlhf@2026-08/rloo": (OTHERS, PPO_20, token_mean),
    "openrlhf@2026-08/dr_grpo": (CENTRED, PPO_20, token_mean),
    "openrlhf@2026-08/group_norm+tis": (
        std_of(1e-9),
        lambda b, a: PPO_20(b, a) * weight_token(b, 0.5, 5.0),
        token_mean,
    ),
    "openrlhf@2026-08/group_norm+icepop": (
        std_of(1e-9),
        lambda b, a: PPO_20(b, a) * weight_icepop(b),
        token_mean,
    ),
    "openrlhf@2026-08/group_norm+seq-mask-tis": (
        std_of(1e-9),
        lambda b, a: PPO_20(b, a) * weight_seq_mask(b),
        token_mean,
    ),
    "skyrl@2026-08/token_mean": (GRPO, PPO_20, token_mean),
    "skyrl@2026-08/sequence_mean": (GRPO, PPO_20, row_mean),
    "skyrl@2026-08/seq_mean_token_sum_norm": (GRPO, PPO_20, row_length),
    "skyrl@2026-08/prompt_mean": (GRPO, PPO_20, group_mean),
    "skyrl@2026-08/dual_clip": (GRPO, DUAL_20, token_mean),
    "skyrl@2026-08/cispo": (GRPO, CAP_5, token_mean),
    "skyrl@2026-08/cispo-rollout": (
        GRPO,
        lambda b, a: capped(ratio(b, "rollout"), a, b.logp, 0.0, 5.0),
        token_mean,
    ),
    "slime@2026-08/per-rollout": (GRPO, PPO, trajectory_mean),
    "slime@2026-08/per-token": (GRPO, PPO, token_mean),
    "slime@2026-08/per-rollout+tis": (
        GRPO,
        lambda b, a: PPO(b, a) * weight_token(b, 0.0, 2.0),
        trajectory_mean,
    ),
    "prime-rl@2026-08/dppo": (CENTRED, dppo, token_mean),
    "nemo-rl@2026-08/token-level": (OTHERS, PPO, token_mean),
    "nemo-rl@2026-08/sequence-level": (OTHERS, PPO, row_mean),
    "tinker@2026-08/cross_entropy": (ONES, LOGP, token_sum),
    "tinker@2026-08/importance_sampling": (
        CENTRED,
        lambda b, a: -a * ratio(b, "rollout"),
        token_sum,
    ),
    "tinker@2026-08/ppo": (CENTRED, lambda b, a: clipped(ratio(b, "rollout"), a), token_sum),
}
"""How each preset's advantages, token losses and mean are computed here."""


def test_every_paper_s_loss_has_its_oracle_and_no_oracle_is_of_nothing() -> None:
    assert set(LOSSES) <= set(ORACLE) <= set(PRESETS)
    assert len(ORACLE) == 54  # presets that came later are held by differences in float64 alone


@pytest.mark.parametrize("name", ORACLE)
@pytest.mark.parametrize("seed", range(4))
def test_value_and_gradient_are_those_of_padded_rows_in_torch(name: str, seed: int) -> None:
    batch = make_batch(seed)
    advantages, terms, mean = ORACLE[name]
    wanted = mean(terms(batch, advantages(batch)), batch.mask)
    wanted.backward()
    loss = PRESETS[name]
    inputs = flat(batch, loss.advantage)
    found = evaluate(loss, inputs)
    assert found.value == pytest.approx(wanted.item(), rel=1e-12, abs=1e-13)
    assert found.numerator is not None
    assert found.denominator is not None
    assert found.value == found.numerator / found.denominator
    assert found.n_tokens == int(batch.mask.sum().item())
    assert batch.logp.grad is not None
    np.testing.assert_allclose(
        gradient(loss, inputs), batch.logp.grad.numpy()[batch.at], rtol=1e-11, atol=1e-13
    )
    partial = inputs.loss_mask & (np.arange(len(inputs.loss_mask)) != 0)
    if partial.sum() < inputs.loss_mask.sum():
        assert evaluate(loss, replace(inputs, loss_mask=partial)).n_tokens == found.n_tokens - 1
