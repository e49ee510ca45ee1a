"""Twins of the other trainers, at the commits that the presets name."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.unit.scoring.oracle.batch import B, Batch, T
from tests.unit.scoring.oracle.pieces import (
    CENTRED,
    GRPO,
    ONES,
    OTHERS,
    Twin,
    binary_kl,
    by_group,
    capped,
    clipped,
    dual_20,
    group_mean,
    k3,
    likelihood,
    ppo,
    ppo_20,
    ratio,
    row_length,
    row_log_ratio,
    row_mean,
    soft_gate,
    std_of,
    surprise,
    token_mean,
    token_of_row,
    token_sum,
    token_weight,
    trajectory_mean,
    weight_cut,
    weight_inside,
    weight_of_kept_rows,
    weight_row,
)

STD_4, STD_5, STD_9 = std_of(1e-4), std_of(1e-5), std_of(1e-9)


def sequence(b: Batch, a: Tensor) -> Tensor:
    """Return PPO of a row's own ratio, whose gradient is that of its mean: one value a row."""
    return clipped(row_log_ratio(b).exp().expand(B, T), a)


def luspo(b: Batch, a: Tensor) -> Tensor:
    """Return [B, 1] the loss of a row's own ratio, as it is multiplied by the row's tokens."""
    return clipped(row_log_ratio(b).exp(), a[:, :1])


TRL: dict[str, Twin] = {
    "grpo": Twin(STD_4, ppo, row_mean),
    "dapo": Twin(STD_4, ppo, token_mean),
    "dr_grpo": Twin(STD_4, ppo, row_length),
    "cispo": Twin(STD_4, lambda b, a: -ratio(b).clamp(max=5.0).detach() * a * b.logp, token_mean),
    "dapo+token-truncate": Twin(
        STD_4, lambda b, a: ppo(b, a) * token_weight(b).clamp(max=3.0), token_mean
    ),
    "dapo+sequence-mask": Twin(
        STD_4,
        lambda b, a: ppo(b, a) * weight_row(b).masked_fill(weight_row(b) > 3.0, 0.0),
        token_mean,
    ),
    "bnpo": Twin(STD_4, ppo, token_mean),
    "sapo": Twin(STD_4, lambda b, a: soft_gate(ratio(b), a), row_mean),
    "grpo+sequence": Twin(STD_4, sequence, row_mean),
    "luspo": Twin(STD_4, luspo, lambda x, m: (x * m.sum(1, keepdim=True)).mean()),
}

OPENRLHF: dict[str, Twin] = {
    "group_norm": Twin(STD_9, ppo_20, token_mean),
    "rloo": Twin(OTHERS, ppo_20, token_mean),
    "dr_grpo": Twin(CENTRED, ppo_20, token_mean),
    "group_norm+tis": Twin(STD_9, lambda b, a: ppo_20(b, a) * weight_cut(b, 0.5, 5.0), token_mean),
    "group_norm+icepop": Twin(
        STD_9, lambda b, a: ppo_20(b, a) * weight_inside(b, 0.5, 5.0), token_mean
    ),
    "group_norm+seq-mask-tis": Twin(
        STD_9, lambda b, a: ppo_20(b, a) * weight_of_kept_rows(b, 0.5, 5.0), token_mean
    ),
}


def skyrl_dppo(b: Batch, a: Tensor) -> Tensor:
    shift = (b.logp.exp() - b.rollout.exp()).detach()
    masked = ((a > 0) & (shift > 0.2)) | ((a < 0) & (-shift > 0.2))
    return -ratio(b, "rollout", 20.0) * a * (~masked).double()


def skyrl_dppo_kl(b: Batch, a: Tensor) -> Tensor:
    p, q = b.logp.exp().detach(), b.rollout.exp()
    far = binary_kl(p, q, b.logp.detach(), b.rollout) > 0.05
    masked = ((a > 0) & (p > q) & far) | ((a < 0) & (p < q) & far)
    return -ratio(b, "rollout", 20.0) * a * (~masked).double()


SKYRL: dict[str, Twin] = {
    "token_mean": Twin(GRPO, ppo_20, token_mean),
    "token_mean+kl": Twin(
        GRPO, ppo_20, token_mean, lambda b: row_mean(k3(b, 1e-3, 20.0, 10.0), b.mask)
    ),
    "sequence_mean": Twin(GRPO, ppo_20, row_mean),
    "seq_mean_token_sum_norm": Twin(GRPO, ppo_20, row_length),
    "prompt_mean": Twin(GRPO, ppo_20, group_mean),
    "dual_clip": Twin(GRPO, dual_20, token_mean),
    "cispo": Twin(GRPO, lambda b, a: capped(ratio(b, bound=20.0), a, b.logp, 0.0, 5.0), token_mean),
    "cispo-rollout": Twin(
        GRPO, lambda b, a: capped(ratio(b, "rollout", 20.0), a, b.logp, 0.0, 5.0), token_mean
    ),
    "gspo": Twin(GRPO, lambda b, a: clipped(token_of_row(b, 10.0), a), row_mean),
    "dppo": Twin(GRPO, skyrl_dppo, token_mean),
    "dppo-binary_kl": Twin(GRPO, skyrl_dppo_kl, token_mean),
}

SLIME: dict[str, Twin] = {
    "per-rollout": Twin(GRPO, ppo, trajectory_mean),
    "per-token": Twin(GRPO, ppo, token_mean),
    "per-rollout+tis": Twin(
        GRPO, lambda b, a: ppo(b, a) * weight_cut(b, 0.0, 2.0), trajectory_mean
    ),
    "gspo": Twin(GRPO, sequence, trajectory_mean),
}

MILES: dict[str, Twin] = {
    "per-rollout": Twin(GRPO, ppo_20, trajectory_mean),
    "per-token": Twin(GRPO, ppo_20, token_mean),
    "per-rollout+tis": Twin(
        GRPO, lambda b, a: ppo_20(b, a) * weight_cut(b, 0.0, 2.0), trajectory_mean
    ),
    "per-rollout+icepop": Twin(
        GRPO, lambda b, a: ppo_20(b, a) * weight_inside(b, 0.0, 2.0), trajectory_mean
    ),
}


def areal_sequence(b: Batch, a: Tensor) -> Tensor:
    """Return PPO of a row's ratio and of the mean of its advantages, both 0 off the mask."""
    counted = b.mask > 0
    n = counted.sum(1, keepdim=True)
    log = torch.where(counted, b.logp - b.old, 0.0).sum(1, keepdim=True) / n
    weight = torch.where(counted, a, 0.0).sum(1, keepdim=True) / n
    return clipped(torch.where(counted, log.exp(), 0.0), torch.where(counted, weight, 0.0))


AREAL: dict[str, Twin] = {
    "grpo": Twin(STD_5, ppo, token_mean),
    "grpo+mask": Twin(
        STD_5,
        lambda b, a: ppo(b, a) * token_weight(b) * (token_weight(b) <= 5.0),
        token_mean,
    ),
    "sequence": Twin(STD_5, areal_sequence, token_mean),
    "sapo": Twin(STD_5, lambda b, a: soft_gate(ratio(b), a), token_mean),
}


def prime(b: Batch, a: Tensor, masked: Tensor) -> Tensor:
    log = b.logp - b.rollout
    return -(~masked).double() * a * log.exp() + 1e-3 * log**2


def prime_dppo(b: Batch, a: Tensor) -> Tensor:
    shift = (b.logp.exp() - b.rollout.exp()).detach()
    return prime(b, a, torch.where(a > 0, shift > 0.2, shift < -0.2))


def prime_ipo(b: Batch, a: Tensor) -> Tensor:
    return prime(b, a, (b.logp.exp() - b.rollout.exp()).detach().abs() > 0.1)


PRIME: dict[str, Twin] = {
    "dppo": Twin(CENTRED, prime_dppo, token_mean),
    "ipo": Twin(CENTRED, prime_ipo, token_mean),
    "echo": Twin(CENTRED, prime_dppo, token_mean, lambda b: surprise(b, 0.1, token_mean)),
}


def nemo(rewards: Tensor) -> Tensor:
    """Return the advantages of a group: less the others' mean, over their std where they differ."""
    others = (1.0 - torch.eye(len(rewards))).double()
    n = len(rewards) - 1
    mean, square = others @ rewards / n, others @ rewards**2 / n
    std = ((square - mean**2) * (torch.tensor(float(n)) / (n - 1))).sqrt().nan_to_num(0)
    return torch.where(std > 0, (rewards - mean) / (std + 1e-6), rewards - mean)


NEMO_GRPO = by_group(nemo)
NEMO: dict[str, Twin] = {
    "token-level": Twin(NEMO_GRPO, ppo, token_mean),
    "sequence-level": Twin(NEMO_GRPO, ppo, row_mean),
    "token-level+icepop": Twin(
        NEMO_GRPO, lambda b, a: ppo(b, a) * weight_inside(b, 0.5, 5.0), token_mean
    ),
    "token-level+seq-mask-tis": Twin(
        NEMO_GRPO, lambda b, a: ppo(b, a) * weight_of_kept_rows(b, 0.999, 1.002), token_mean
    ),
    "gspo": Twin(NEMO_GRPO, sequence, row_mean),
}

RLLM = Twin(std_of(1e-6, unbiased=False), dual_20, row_mean, lambda b: surprise(b, 0.05, row_mean))

TINKER: dict[str, Twin] = {
    "cross_entropy": Twin(ONES, likelihood, token_sum),
    "importance_sampling": Twin(CENTRED, lambda b, a: -a * ratio(b, "rollout"), token_sum),
    "ppo": Twin(CENTRED, lambda b, a: clipped(ratio(b, "rollout"), a), token_sum),
}

SYSTEMS: dict[str, Twin] = {
    f"{system}/{mode}": twin
    for system, twins in {
        "trl@2026-07": TRL,
        "openrlhf@2026-08": OPENRLHF,
        "skyrl@2026-08": SKYRL,
        "slime@2026-08": SLIME,
        "miles@2026-08": MILES,
        "areal@2026-08": AREAL,
        "prime-rl@2026-08": PRIME,
        "rllm@2026-06": {"echo": RLLM},
        "nemo-rl@2026-08": NEMO,
        "tinker@2026-08": TINKER,
    }.items()
    for mode, twin in twins.items()
}
