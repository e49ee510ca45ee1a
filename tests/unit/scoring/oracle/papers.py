"""Twins of the losses of papers."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.unit.scoring.oracle.batch import (
    GROUP,
    IS_ACTION,
    N_STEPS,
    REWARDS,
    TRAJECTORY,
    Batch,
    of_step,
)
from tests.unit.scoring.oracle.pieces import (
    CENTRED,
    GRPO,
    ONES,
    OTHERS,
    REWARD,
    Twin,
    at_steps,
    capped,
    clipped,
    dual,
    k3,
    likelihood,
    ppo,
    ratio,
    row_mean,
    step_gae,
    surprise,
    token_mean,
    token_of_row,
    trajectory_mean,
    trajectory_sum,
)

PAPERS: dict[str, Twin] = {
    "nll": Twin(ONES, likelihood, token_mean),
    "reinforce": Twin(REWARD, likelihood, trajectory_sum),
    "rloo": Twin(OTHERS, likelihood, trajectory_sum),
    "tis": Twin(
        REWARD,
        lambda b, a: capped(ratio(b, "rollout"), a, b.logp, 0.0, 2.0),
        trajectory_sum,
    ),
    "ppo_clip": Twin(GRPO, ppo, token_mean),
    "ppo_dual_clip": Twin(GRPO, lambda b, a: dual(ratio(b), a), token_mean),
    "ppo_gae": Twin(lambda b: at_steps(step_gae(b)), ppo, token_mean),
    "grpo": Twin(GRPO, ppo, trajectory_mean),
    "grpo_kl": Twin(GRPO, lambda b, a: ppo(b, a) + k3(b, 0.04), trajectory_mean),
    "dr_grpo": Twin(CENTRED, ppo, trajectory_sum),
    "dapo": Twin(GRPO, lambda b, a: clipped(ratio(b), a, 0.8, 1.28), token_mean),
    "gspo": Twin(GRPO, lambda b, a: clipped(token_of_row(b), a, 0.9997, 1.0004), row_mean),
    "cispo": Twin(GRPO, lambda b, a: capped(ratio(b), a, b.logp, 0.0, 5.0), token_mean),
}


def chosen(b: Batch) -> Tensor:
    """Return [B, T] 1 at the observations behind the half of the steps with the most entropy."""
    means = [b.entropy[torch.tensor(of_step(s) & IS_ACTION)].mean() for s in range(N_STEPS)]
    order = torch.stack(means).argsort(descending=True)
    is_high = torch.zeros(N_STEPS, dtype=torch.float64)
    is_high[order[: -(-N_STEPS // 2)]] = 1.0
    return at_steps(is_high) * b.observed


def failing() -> Tensor:
    """Return [B, 1] 1 - the mean reward of a row's group, between 0 and 1."""
    rewards, group = torch.tensor(REWARDS, dtype=torch.float64), torch.tensor(GROUP)
    means = torch.stack([rewards[group == one].mean() for one in range(max(GROUP) + 1)])
    return (1.0 - means.clamp(0.0, 1.0))[group[torch.tensor(TRAJECTORY)]][:, None]


def grpo_beside(observations: object) -> Twin:
    assert callable(observations)
    return Twin(GRPO, ppo, trajectory_mean, observations)


JOINT: dict[str, Twin] = {
    "ppo_entropy": Twin(GRPO, lambda b, a: ppo(b, a) - 0.01 * b.entropy, token_mean),
    "grpo_exact_kl": Twin(GRPO, lambda b, a: ppo(b, a) + 0.04 * b.exact_kl, trajectory_mean),
    "env_sft": grpo_beside(lambda b: surprise(b, 1.0, trajectory_mean)),
    "echo": grpo_beside(lambda b: surprise(b, 0.05, trajectory_mean)),
    "echo_token_mean": grpo_beside(lambda b: surprise(b, 0.05, token_mean)),
    "paw_select": grpo_beside(lambda b: 0.05 * trajectory_mean(-b.logp, chosen(b))),
    "paw_tolerant": grpo_beside(lambda b: 0.05 * trajectory_mean(1.0 - b.logp.exp(), b.observed)),
    "paw_adaptive": grpo_beside(
        lambda b: 0.05 * trajectory_mean(-b.logp * failing(), b.observed),
    ),
    "paw": grpo_beside(
        lambda b: 0.05 * trajectory_mean((1.0 - b.logp.exp()) * failing(), chosen(b)),
    ),
}
