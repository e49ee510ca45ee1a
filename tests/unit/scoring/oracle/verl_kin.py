"""Twins of verl and of what comes from it, at the commits that the presets name."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.unit.scoring.oracle.batch import N_STEPS, Batch, of_step
from tests.unit.scoring.oracle.pieces import (
    CENTRED,
    GRPO,
    Twin,
    at_steps,
    binary_kl,
    by_group,
    capped,
    clipped,
    dual,
    dual_20,
    k3,
    length_alone,
    ppo,
    ratio,
    row_length,
    row_mean,
    row_sum,
    soft_gate,
    step_gae,
    step_mean,
    token_mean,
    token_of_row,
    token_sum,
    weight_cut,
    weight_row,
)

VERL_RLOO = by_group(lambda r: len(r) / (len(r) - 1) * r - len(r) / (len(r) - 1) * r.mean())


def truncated(b: Batch, a: Tensor, valid: Tensor) -> Tensor:
    """Return the term of both dppo losses: a capped ratio that stands still, where it is valid."""
    r = ratio(b, bound=20.0).clamp(max=3.0).detach()
    return -a * r * b.logp * valid.detach()


def dppo_tv(b: Batch, a: Tensor) -> Tensor:
    shift = b.logp.exp() - b.old.exp()
    return truncated(b, a, torch.where(a > 0, shift <= 0.2, shift >= -0.2).double())


def dppo_kl(b: Batch, a: Tensor) -> Tensor:
    p, q = b.logp.exp(), b.old.exp()
    far = binary_kl(p, q, b.logp, b.old) > 0.2
    return truncated(b, a, torch.where(a > 0, ~far | (p <= q), ~far | (p >= q)).double())


def whitened_steps(b: Batch) -> Tensor:
    """Return [B, T] each step's GAE, less the mean over steps, over their std."""
    made = step_gae(b)
    return at_steps((made - made.mean()) / (made.std() + 1e-8))


VERL: dict[str, Twin] = {
    "token-mean": Twin(GRPO, dual_20, token_mean),
    "token-sum": Twin(GRPO, dual_20, token_sum),
    "seq-mean-token-sum": Twin(GRPO, dual_20, row_sum),
    "seq-mean-token-mean": Twin(GRPO, dual_20, row_mean),
    "seq-mean-token-sum-norm": Twin(GRPO, dual_20, row_length),
    "dr-grpo": Twin(CENTRED, dual_20, row_length),
    "rloo": Twin(VERL_RLOO, dual_20, token_mean),
    "kl-loss": Twin(GRPO, lambda b, a: dual_20(b, a) + k3(b, 1e-3, 20.0, 10.0), token_mean),
    "gspo": Twin(GRPO, lambda b, a: clipped(token_of_row(b, 10.0), a, 0.9997, 1.0004), row_mean),
    "cispo": Twin(
        GRPO, lambda b, a: capped(ratio(b, bound=20.0), a, b.logp, -9.0, 1.2), token_mean
    ),
    "token-mean+is-token": Twin(
        GRPO, lambda b, a: dual_20(b, a) * weight_cut(b, 0.0, 2.0), token_mean
    ),
    "token-mean+is-sequence": Twin(
        GRPO, lambda b, a: dual_20(b, a) * weight_row(b).clamp(max=2.0), token_mean
    ),
    "sapo": Twin(GRPO, lambda b, a: soft_gate(ratio(b, bound=20.0), a), row_mean),
    "dppo_tv": Twin(GRPO, dppo_tv, token_mean),
    "dppo_kl": Twin(GRPO, dppo_kl, token_mean),
}

AGENT_R1: dict[str, Twin] = {
    "token-mean": Twin(GRPO, dual_20, token_mean),
    "seq-mean-token-mean": Twin(GRPO, dual_20, step_mean),
    "seq-mean-token-sum-norm": Twin(GRPO, dual_20, length_alone),
    "step-gae": Twin(whitened_steps, dual_20, token_mean),
}


def search_r1(b: Batch, a: Tensor) -> Tensor:
    return ppo(b, a) - 0.001 * b.entropy + k3(b, 0.001, result=10.0)


def roll_dual(b: Batch, a: Tensor) -> Tensor:
    return dual(ratio(b), a, 1.0 + 2 * 0.2)


def segments(b: Batch, a: Tensor) -> Tensor:
    """Return PPO with the mean log-ratio of each run of counted positions."""
    log, made = b.logp - b.old, torch.zeros_like(b.logp)
    for step in range(N_STEPS):
        run = torch.tensor(of_step(step)) & (b.mask > 0)
        made = torch.where(run, log[run].mean(), made)
    return clipped(made.exp(), a)


ROLL: dict[str, Twin] = {
    "token-mean": Twin(GRPO, ppo, token_mean),
    "seq-mean-token-sum": Twin(GRPO, ppo, row_sum),
    "seq-mean-token-mean": Twin(GRPO, ppo, row_mean),
    "seq-mean-token-sum-norm": Twin(GRPO, ppo, length_alone),
    "dual_clip": Twin(GRPO, roll_dual, row_mean),
    "segment": Twin(GRPO, segments, row_mean),
}


VERL_KIN: dict[str, Twin] = {
    **{f"verl@2026-08/{mode}": twin for mode, twin in VERL.items()},
    "verl@2026-01/seq-mean-token-sum-norm": Twin(GRPO, dual_20, length_alone),
    **{f"agent-r1@2026-04/{mode}": twin for mode, twin in AGENT_R1.items()},
    "search-r1@2025-10/grpo": Twin(GRPO, search_r1, token_mean),
    **{f"roll@2026-08/{mode}": twin for mode, twin in ROLL.items()},
}
