"""The losses of papers, under their own names, and the words that trainers' presets share."""

from __future__ import annotations

from dataclasses import replace

from trajkit.rl.spec import (
    Advantage,
    Balance,
    Behaviour,
    Correction,
    Estimator,
    Kl,
    Level,
    Loss,
    Mean,
    Observed,
    Ratio,
    Term,
    Weigh,
)

CLIP = Ratio(low=0.2, high=0.2)
BOUNDED = replace(CLIP, bounds=(-20.0, 20.0))
DUAL = replace(BOUNDED, dual=3.0)
SAMPLER = replace(CLIP, against=Behaviour.SAMPLER)
GSPO = Ratio(level=Level.ROW_GEOMETRIC, low=3e-4, high=4e-4)
CAP_5 = Ratio(low=1.0, high=4.0)
LOW_VAR_KL = Kl(estimator=Estimator.K3, weight=0.001, bound=20.0, result=10.0)
TIS_2 = Correction(level=Level.TOKEN, weigh=Weigh.TRUNCATE, low=0.0, high=2.0)


PPO = Loss(
    formula="the clipped surrogate, epsilon 0.2, mean over tokens",
    source="arXiv 1707.06347, eq. 7",
    term=Term.CLIP,
    ratio=CLIP,
    advantage=Advantage.GROUP_STD,
    mean=Mean.TOKEN,
)

LOSSES: dict[str, Loss] = {
    "nll": Loss(
        formula="negative log-likelihood, mean over tokens: supervised fine-tuning",
        source="maximum likelihood",
        term=Term.LOGPROB,
        advantage=Advantage.ONE,
        mean=Mean.TOKEN,
    ),
    "reinforce": Loss(
        formula="-R(x) * sum of log p over the action tokens of x, mean over trajectories; no "
        "baseline",
        source="Williams 1992",
        term=Term.LOGPROB,
        advantage=Advantage.RETURN,
        mean=Mean.TRAJECTORY_SUM,
    ),
    "rloo": Loss(
        formula="REINFORCE with the mean reward of the others in the group as baseline, mean over "
        "trajectories",
        source="arXiv 2402.14740, section 3.3",
        term=Term.LOGPROB,
        advantage=Advantage.LEAVE_ONE_OUT,
        mean=Mean.TRAJECTORY_SUM,
    ),
    "tis": Loss(
        formula="REINFORCE on the sampler's tokens, each weighed by min(p / p_sampler, 2), mean "
        "over trajectories",
        source="Yao et al. 2025, fengyao.notion.site/off-policy-rl",
        term=Term.CLIP_WEIGHT,
        ratio=Ratio(against=Behaviour.SAMPLER, low=1.0, high=1.0),
        advantage=Advantage.RETURN,
        mean=Mean.TRAJECTORY_SUM,
    ),
    "ppo_clip": PPO,
    "ppo_dual_clip": replace(
        PPO,
        formula="PPO, and where the advantage is negative the loss is at most -3 A, mean over "
        "tokens",
        source="arXiv 1912.09729, eq. 5",
        ratio=replace(CLIP, dual=3.0),
    ),
    "ppo_gae": replace(
        PPO,
        formula="PPO with one advantage a step: the reward still to come less the recorded value "
        "of the step's first action token (GAE, gamma and lambda 1), mean over tokens",
        source="arXiv 1707.06347, eq. 7; arXiv 1506.02438, eq. 18",
        advantage=Advantage.STEP_GAE,
    ),
    "grpo": replace(
        PPO,
        formula="the clipped surrogate, mean over each trajectory's tokens, then over "
        "trajectories; beta 0",
        source="arXiv 2402.03300, eq. 3",
        mean=Mean.TRAJECTORY_MEAN,
    ),
    "grpo_kl": replace(
        PPO,
        formula="GRPO with beta 0.04: plus 0.04 times k3 to the reference model, mean over each "
        "trajectory's tokens, then over trajectories",
        source="arXiv 2402.03300, eq. 3 and 4, section 4.2",
        mean=Mean.TRAJECTORY_MEAN,
        kl=Kl(estimator=Estimator.K3, weight=0.04),
    ),
    "dr_grpo": replace(
        PPO,
        formula="GRPO without its two divisors: advantage R - mean, sum over each trajectory's "
        "tokens, "
        "mean over trajectories",
        source="arXiv 2503.20783, section 3.2",
        mean=Mean.TRAJECTORY_SUM,
        advantage=Advantage.GROUP_MEAN,
    ),
    "dapo": replace(
        PPO,
        formula="the surrogate clipped at 0.8 and 1.28, mean over tokens; without its sampling "
        "and length penalty, which change the data",
        source="arXiv 2503.14476, eq. 8",
        ratio=Ratio(low=0.2, high=0.28),
    ),
    "gspo": replace(
        PPO,
        formula="the surrogate of the ratio of a whole row (geometric mean), clipped at 1 - "
        "0.0003 and "
        "1 + 0.0004, mean over rows",
        source="arXiv 2507.18071, eq. 5, 7 and 14, section 5.1",
        mean=Mean.ROW_MEAN,
        ratio=GSPO,
    ),
    "cispo": replace(
        PPO,
        formula="-sg(min(r, 5)) A log p, mean over tokens",
        source="arXiv 2506.13585, eq. 4 and 5; the cap of 5 is ScaleRL's, arXiv 2510.13786",
        term=Term.CLIP_WEIGHT,
        ratio=CAP_5,
    ),
}
"""What `score` and `losses` compute unless told otherwise."""

_GRPO = LOSSES["grpo"]
_PAW = "the idea is PaW's, arXiv 2606.02388; formula and constants are trajkit's"
_ECHO = Observed(weight=0.05, mean=Mean.TRAJECTORY_MEAN)

JOINT: dict[str, Loss] = {
    "ppo_entropy": replace(
        PPO,
        formula="PPO less 0.01 times the checkpoint's entropy, mean over tokens",
        source="arXiv 1707.06347, eq. 9, c2 of table 5; entropy_coeff in verl, entropy_coef in "
        "TRL, OpenRLHF and slime, entropy_loss_coef in SkyRL and ROLL",
        entropy=0.01,
    ),
    "grpo_exact_kl": replace(
        _GRPO,
        formula="GRPO plus 0.04 times the exact KL to the reference model, mean over each "
        "trajectory's tokens, then over trajectories",
        source="arXiv 2402.03300, eq. 3; the sum over the vocabulary in place of k3",
        kl=Kl(estimator=Estimator.EXACT, weight=0.04),
    ),
    "env_sft": replace(
        _GRPO,
        formula="GRPO plus the cross-entropy of observations, weight 1, mean over each "
        "trajectory's observation tokens, then over trajectories",
        source="supervised fine-tuning on environment tokens, told of Agent-R1; not in its code at "
        "6dc8f67",
        observed=Observed(weight=1.0, mean=Mean.TRAJECTORY_MEAN),
    ),
    "echo": replace(
        _GRPO,
        formula="GRPO plus 0.05 times the cross-entropy of observations, mean over each "
        "trajectory's observation tokens, then over trajectories",
        source="arXiv 2605.24517; normalised by length as rLLM's port of it is",
        observed=_ECHO,
    ),
    "echo_token_mean": replace(
        _GRPO,
        formula="GRPO plus 0.05 times the cross-entropy of observations, mean over all "
        "observation tokens",
        source="arXiv 2605.24517; with the denominator of prime-rl's port of it",
        observed=replace(_ECHO, mean=Mean.TOKEN),
    ),
    "paw_select": replace(
        _GRPO,
        formula="echo, over what answers the half of the actions with the highest mean entropy; "
        "mean over each trajectory's chosen tokens, then over trajectories",
        source=_PAW,
        observed=replace(_ECHO, share=0.5),
    ),
    "paw_tolerant": replace(
        _GRPO,
        formula="echo with 1 - p in place of -log p (PaW clips it), mean over each trajectory's "
        "observation tokens, then over trajectories",
        source=_PAW,
        observed=replace(_ECHO, power=1.0),
    ),
    "paw_adaptive": replace(
        _GRPO,
        formula="echo, each token weighed by 1 - the mean reward of its group, cut to [0, 1]; mean "
        "over each trajectory's observation tokens, then over trajectories",
        source=_PAW,
        observed=replace(_ECHO, balance=Balance.GROUP_REWARD),
    ),
    "paw": replace(
        _GRPO,
        formula="echo with all three of PaW's ideas: selection, 1 - p, and the weight by reward; "
        "mean over each trajectory's chosen tokens, then over trajectories",
        source=_PAW,
        observed=replace(_ECHO, share=0.5, power=1.0, balance=Balance.GROUP_REWARD),
    ),
}
"""Losses of several parts, for which a table of scores must say more than log-probs of actions."""
