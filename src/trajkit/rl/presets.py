"""Every loss there is, as one literal table: the papers' own, then `system@version/mode`.

A system's constants and means are read off its code at the commit named. Presets take what they
cannot change from the data: which steps were dropped, and what was clipped or shaped before.
"""

from __future__ import annotations

from dataclasses import replace

from trajkit.rl.spec import (
    Advantage,
    Behaviour,
    Correction,
    Estimator,
    Kl,
    Level,
    Loss,
    Mean,
    Ratio,
    Term,
    Weigh,
)

_CLIP = Ratio(low=0.2, high=0.2)
_BOUNDED = replace(_CLIP, bounds=(-20.0, 20.0))
_DUAL = replace(_BOUNDED, dual=3.0)
_SAMPLER = replace(_CLIP, against=Behaviour.SAMPLER)
_GSPO = Ratio(level=Level.ROW_GEOMETRIC, low=3e-4, high=4e-4)
_CAP_5 = Ratio(low=1.0, high=4.0)
_TIS_2 = Correction(level=Level.TOKEN, weigh=Weigh.TRUNCATE, low=0.0, high=2.0)


_PPO = Loss(
    formula="the clipped surrogate, epsilon 0.2, mean over tokens",
    source="arXiv 1707.06347, eq. 7",
    term=Term.CLIP,
    ratio=_CLIP,
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
    "ppo_clip": _PPO,
    "ppo_dual_clip": replace(
        _PPO,
        formula="PPO, and where the advantage is negative the loss is at most -3 A, mean over "
        "tokens",
        source="arXiv 1912.09729, eq. 5",
        ratio=replace(_CLIP, dual=3.0),
    ),
    "ppo_gae": replace(
        _PPO,
        formula="PPO with one advantage a step: the reward still to come less the recorded value "
        "of the step's first action token (GAE, gamma and lambda 1), mean over tokens",
        source="arXiv 1707.06347, eq. 7; arXiv 1506.02438, eq. 18",
        advantage=Advantage.STEP_GAE,
    ),
    "grpo": replace(
        _PPO,
        formula="the clipped surrogate, mean over each trajectory's tokens, then over "
        "trajectories; beta 0",
        source="arXiv 2402.03300, eq. 3",
        mean=Mean.TRAJECTORY_MEAN,
    ),
    "grpo_kl": replace(
        _PPO,
        formula="GRPO with beta 0.04: plus 0.04 times k3 to the reference model, mean over each "
        "trajectory's tokens, then over trajectories",
        source="arXiv 2402.03300, eq. 3 and 4, section 4.2",
        mean=Mean.TRAJECTORY_MEAN,
        kl=Kl(estimator=Estimator.K3, weight=0.04),
    ),
    "dr_grpo": replace(
        _PPO,
        formula="GRPO without its two divisors: advantage R - mean, sum over each trajectory's "
        "tokens, "
        "mean over trajectories",
        source="arXiv 2503.20783, section 3.2",
        mean=Mean.TRAJECTORY_SUM,
        advantage=Advantage.GROUP_MEAN,
    ),
    "dapo": replace(
        _PPO,
        formula="the surrogate clipped at 0.8 and 1.28, mean over tokens; without its sampling "
        "and length penalty, which change the data",
        source="arXiv 2503.14476, eq. 8",
        ratio=Ratio(low=0.2, high=0.28),
    ),
    "gspo": replace(
        _PPO,
        formula="the surrogate of the ratio of a whole row (geometric mean), clipped at 1 - "
        "0.0003 and "
        "1 + 0.0004, mean over rows",
        source="arXiv 2507.18071, eq. 5, 7 and 14, section 5.1",
        mean=Mean.ROW_MEAN,
        ratio=_GSPO,
    ),
    "cispo": replace(
        _PPO,
        formula="-sg(min(r, 5)) A log p, mean over tokens",
        source="arXiv 2506.13585, eq. 4 and 5; the cap of 5 is ScaleRL's, arXiv 2510.13786",
        term=Term.CLIP_WEIGHT,
        ratio=_CAP_5,
    ),
}
"""The papers' losses; what `score` and `losses` compute unless told otherwise."""

_SLIME_SOURCE = "slime 624b824, slime/utils/ppo_utils.py, slime/backends/megatron_utils/loss.py"
_TINKER_SOURCE = "tinker-docs.thinkingmachines.ai/losses; tinker-cookbook 9dfcc3a, rl"
_VERL = replace(
    _PPO,
    formula="PPO with dual clip 3, mean over tokens",
    source="verl 1dda039, verl/trainer/ppo/core_algos.py",
    ratio=_DUAL,
)
_TRL = replace(
    _PPO,
    formula="PPO, epsilon 0.2 both ways, mean over tokens",
    source="TRL f2cd577, trl/trainer/grpo_trainer.py",
    advantage=Advantage.GROUP_STD_TRL,
)
_OPENRLHF = replace(
    _PPO,
    formula="PPO, mean over tokens",
    source="OpenRLHF 3c3be62, openrlhf/models/loss.py",
    ratio=_BOUNDED,
    advantage=Advantage.GROUP_STD_OPENRLHF,
)
_SKYRL = replace(
    _PPO,
    formula="PPO, mean over tokens",
    source="SkyRL a956457, skyrl/backends/skyrl_train/utils/ppo_utils.py",
    ratio=_BOUNDED,
)
_NEMO = replace(
    _PPO,
    formula="advantage (R - mean) / std of the others, PPO, mean over tokens; without its KL",
    source="NeMo RL 7ea279a, nemo_rl/algorithms/loss/loss_functions.py",
    advantage=Advantage.LEAVE_ONE_OUT_STD,
)

SYSTEMS: dict[str, Loss] = {
    "verl@2026-08/token-mean": _VERL,
    "verl@2026-08/token-sum": replace(
        _VERL,
        formula="PPO with dual clip 3, sum over tokens",
        mean=Mean.SUM,
    ),
    "verl@2026-08/seq-mean-token-sum": replace(
        _VERL,
        formula="PPO with dual clip 3, sum over each row, mean over rows",
        mean=Mean.ROW_SUM,
    ),
    "verl@2026-08/seq-mean-token-mean": replace(
        _VERL,
        formula="PPO with dual clip 3, mean over each row, then over rows",
        mean=Mean.ROW_MEAN,
    ),
    "verl@2026-08/seq-mean-token-sum-norm": replace(
        _VERL,
        formula="PPO with dual clip 3, sum over tokens / (rows * length)",
        mean=Mean.ROW_LENGTH,
    ),
    "verl@2026-01/seq-mean-token-sum-norm": replace(
        _PPO,
        formula="PPO with dual clip 3, sum over tokens / length, whatever the number of rows",
        source="verl b178a3c, verl/trainer/ppo/core_algos.py",
        mean=Mean.LENGTH,
        ratio=_DUAL,
    ),
    "verl@2026-08/dr-grpo": replace(
        _VERL,
        formula="advantage R - mean, PPO with dual clip 3, sum over tokens / (rows * length)",
        mean=Mean.ROW_LENGTH,
        advantage=Advantage.GROUP_MEAN,
    ),
    "verl@2026-08/rloo": replace(
        _VERL,
        formula="advantage R - mean of the others, PPO with dual clip 3, mean over tokens",
        advantage=Advantage.LEAVE_ONE_OUT,
    ),
    "verl@2026-08/kl-loss": replace(
        _VERL,
        formula="token-mean plus 0.001 times low_var_kl (k3, cut at 20 and 10)",
        kl=Kl(estimator=Estimator.K3, weight=0.001, bound=20.0, result=10.0),
    ),
    "verl@2026-08/gspo": replace(
        _VERL,
        formula="GSPO-token with 3e-4 and 4e-4 as in its examples, mean over each row, then over "
        "rows",
        mean=Mean.ROW_MEAN,
        ratio=replace(_GSPO, bounds=(float("-inf"), 10.0)),
    ),
    "verl@2026-08/cispo": replace(
        _VERL,
        formula="-sg(min(r, 1.2)) A log p as in its example, mean over tokens",
        term=Term.CLIP_WEIGHT,
        ratio=replace(_BOUNDED, low=10.0),
    ),
    "verl@2026-08/token-mean+is-token": replace(
        _VERL,
        formula="token-mean, each token weighed by min(p_old / p_sampler, 2)",
        correction=_TIS_2,
    ),
    "verl@2026-08/token-mean+is-sequence": replace(
        _VERL,
        formula="token-mean, each row weighed by min(product of p_old / p_sampler, 2)",
        correction=replace(_TIS_2, level=Level.ROW_PRODUCT),
    ),
    "trl@2026-07/grpo": replace(
        _TRL,
        formula="PPO, mean over each row, then over rows",
        mean=Mean.ROW_MEAN,
    ),
    "trl@2026-07/dapo": _TRL,
    "trl@2026-07/dr_grpo": replace(
        _TRL,
        formula="PPO, sum over tokens / (rows * length); the advantage keeps its std",
        mean=Mean.ROW_LENGTH,
    ),
    "trl@2026-07/cispo": replace(
        _TRL,
        formula="-sg(min(r, 5)) A log p, mean over tokens",
        term=Term.CLIP_WEIGHT,
        ratio=_CAP_5,
    ),
    "trl@2026-07/dapo+token-truncate": replace(
        _TRL,
        formula="dapo, each token weighed by min(p_old / p_sampler, 3)",
        correction=replace(_TIS_2, high=3.0),
    ),
    "trl@2026-07/dapo+sequence-mask": replace(
        _TRL,
        formula="dapo, each row weighed by the product of p_old / p_sampler, 0 where that exceeds "
        "3",
        correction=Correction(level=Level.ROW_PRODUCT, weigh=Weigh.DROP, low=0.0, high=3.0),
    ),
    "openrlhf@2026-08/group_norm": _OPENRLHF,
    "openrlhf@2026-08/rloo": replace(
        _OPENRLHF,
        formula="advantage R - mean of the others, PPO, mean over tokens",
        advantage=Advantage.LEAVE_ONE_OUT,
    ),
    "openrlhf@2026-08/dr_grpo": replace(
        _OPENRLHF,
        formula="advantage R - mean, PPO, mean over tokens",
        advantage=Advantage.GROUP_MEAN,
    ),
    "openrlhf@2026-08/group_norm+tis": replace(
        _OPENRLHF,
        formula="group_norm, each token weighed by p_old / p_sampler cut to [0.5, 5]",
        correction=Correction(level=Level.TOKEN, weigh=Weigh.TRUNCATE, low=0.5, high=5.0),
    ),
    "openrlhf@2026-08/group_norm+icepop": replace(
        _OPENRLHF,
        formula="group_norm, each token weighed by p_old / p_sampler, 0 outside [0.5, 5]",
        correction=Correction(level=Level.TOKEN, weigh=Weigh.DROP, low=0.5, high=5.0),
    ),
    "openrlhf@2026-08/group_norm+seq-mask-tis": replace(
        _OPENRLHF,
        formula="group_norm, each token weighed by p_old / p_sampler, 0 in rows whose geometric "
        "mean is outside [0.5, 5]",
        correction=Correction(level=Level.TOKEN, weigh=Weigh.DROP_ROW, low=0.5, high=5.0),
    ),
    "skyrl@2026-08/token_mean": _SKYRL,
    "skyrl@2026-08/sequence_mean": replace(
        _SKYRL,
        formula="PPO, mean over each row, then over rows",
        mean=Mean.ROW_MEAN,
    ),
    "skyrl@2026-08/seq_mean_token_sum_norm": replace(
        _SKYRL,
        formula="PPO, sum over tokens / (rows * length)",
        mean=Mean.ROW_LENGTH,
    ),
    "skyrl@2026-08/prompt_mean": replace(
        _SKYRL,
        formula="PPO, mean over the tokens of each group, then over groups",
        mean=Mean.GROUP_MEAN,
    ),
    "skyrl@2026-08/dual_clip": replace(
        _SKYRL,
        formula="PPO with dual clip 3, mean over tokens",
        ratio=_DUAL,
    ),
    "skyrl@2026-08/cispo": replace(
        _SKYRL,
        formula="-sg(min(r, 5)) A log p, mean over tokens",
        term=Term.CLIP_WEIGHT,
        ratio=replace(_CAP_5, bounds=(-20.0, 20.0)),
    ),
    "skyrl@2026-08/cispo-rollout": replace(
        _SKYRL,
        formula="cispo against the sampler",
        term=Term.CLIP_WEIGHT,
        ratio=replace(_CAP_5, bounds=(-20.0, 20.0), against=Behaviour.SAMPLER),
    ),
    "slime@2026-08/per-rollout": replace(
        _PPO,
        formula="PPO, mean over the tokens of all rows of a trajectory, then over trajectories",
        source=_SLIME_SOURCE,
        mean=Mean.TRAJECTORY_MEAN,
    ),
    "slime@2026-08/per-token": replace(
        _PPO,
        formula="PPO, mean over tokens",
        source=_SLIME_SOURCE,
    ),
    "slime@2026-08/per-rollout+tis": replace(
        _PPO,
        formula="per-rollout, each token weighed by min(p_old / p_sampler, 2)",
        source=_SLIME_SOURCE,
        mean=Mean.TRAJECTORY_MEAN,
        correction=_TIS_2,
    ),
    "prime-rl@2026-08/dppo": Loss(
        formula="-r A, 0 where p moved by more than 0.2 in the advantage's direction, plus 0.001 "
        "(log r)^2; against the sampler, advantage R - mean, mean over tokens",
        source="prime-rl 559b447, src/prime_rl/trainer/rl/loss.py",
        term=Term.MASK_SHIFT,
        ratio=replace(_SAMPLER, square=1e-3),
        advantage=Advantage.GROUP_MEAN,
        mean=Mean.TOKEN,
    ),
    "nemo-rl@2026-08/token-level": _NEMO,
    "nemo-rl@2026-08/sequence-level": replace(
        _NEMO,
        formula="advantage (R - mean) / std of the others, PPO, mean over each row, then over "
        "rows; without its KL",
        mean=Mean.ROW_MEAN,
    ),
    "tinker@2026-08/cross_entropy": Loss(
        formula="-log p, sum over tokens",
        source=_TINKER_SOURCE,
        term=Term.LOGPROB,
        advantage=Advantage.ONE,
        mean=Mean.SUM,
    ),
    "tinker@2026-08/importance_sampling": Loss(
        formula="-r A against the sampler, advantage R - mean, sum over tokens",
        source=_TINKER_SOURCE,
        term=Term.RATIO,
        ratio=Ratio(against=Behaviour.SAMPLER),
        advantage=Advantage.GROUP_MEAN,
        mean=Mean.SUM,
    ),
    "tinker@2026-08/ppo": replace(
        _PPO,
        formula="PPO against the sampler, advantage R - mean, sum over tokens",
        source=_TINKER_SOURCE,
        mean=Mean.SUM,
        ratio=_SAMPLER,
        advantage=Advantage.GROUP_MEAN,
    ),
}
"""What trainers compute."""

PRESETS: dict[str, Loss] = {**LOSSES, **SYSTEMS}
