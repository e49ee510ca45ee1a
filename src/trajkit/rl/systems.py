"""The losses of trainers by `system@version/mode`, read off their code at the commits named."""

from __future__ import annotations

from dataclasses import replace

from trajkit.rl.papers import BOUNDED, CAP_5, CLIP, DUAL, LOW_VAR_KL, PPO, SAMPLER, TIS_2
from trajkit.rl.spec import (
    Advantage,
    Behaviour,
    Correction,
    Level,
    Loss,
    Mean,
    Moved,
    Observed,
    Ratio,
    Term,
    Weigh,
)
from trajkit.rl.systems_verl import VERL_KIN

_SLIME_SOURCE = "slime 624b824, slime/utils/ppo_utils.py, slime/backends/megatron_utils/loss.py"
_TINKER_SOURCE = "tinker-docs.thinkingmachines.ai/losses; tinker-cookbook 9dfcc3a, rl"
_TRL = replace(
    PPO,
    formula="PPO, epsilon 0.2 both ways, mean over tokens",
    source="TRL f2cd577, trl/trainer/grpo_trainer.py",
    advantage=Advantage.GROUP_STD_TRL,
)
_OPENRLHF = replace(
    PPO,
    formula="PPO, mean over tokens; without the KL in its reward",
    source="OpenRLHF 3c3be62, openrlhf/models/loss.py, "
    "openrlhf/trainer/ppo_utils/experience_maker.py",
    ratio=BOUNDED,
    advantage=Advantage.GROUP_STD_OPENRLHF,
)
_SKYRL = replace(
    PPO,
    formula="PPO, mean over tokens; without its KL",
    source="SkyRL a956457, skyrl/backends/skyrl_train/utils/ppo_utils.py",
    ratio=BOUNDED,
)
_NEMO = replace(
    PPO,
    formula="advantage (R - mean) / std of the others, PPO, mean over tokens; without its KL",
    source="NeMo RL 7ea279a, nemo_rl/algorithms/loss/loss_functions.py",
    advantage=Advantage.LEAVE_ONE_OUT_STD,
)
_ROW = replace(CLIP, level=Level.ROW_GEOMETRIC)
_SLIME = replace(
    PPO,
    formula="PPO, mean over the tokens of all rows of a trajectory, then over trajectories",
    source=_SLIME_SOURCE,
    mean=Mean.TRAJECTORY_MEAN,
)
_MILES = replace(
    _SLIME,
    source="miles 31f1ca9, miles/backends/training_utils/loss_hub",
    ratio=BOUNDED,
)
_AREAL = replace(
    PPO,
    formula="PPO, mean over tokens; without its normalisation of advantages over the batch and "
    "the KL in its reward",
    source="AReaL cbff54d, areal/utils/functional/functional.py, areal/trainer/ppo/actor.py",
    advantage=Advantage.GROUP_STD_AREAL,
)
_PRIME_RATIO = replace(SAMPLER, square=1e-3)
_PRIME = Loss(
    formula="-r A, 0 where p moved by more than 0.2 in the advantage's direction, plus 0.001 "
    "(log r)^2; against the sampler, advantage R - mean, mean over tokens",
    source="prime-rl 559b447, src/prime_rl/trainer/rl/loss.py",
    term=Term.MASK_SHIFT,
    ratio=_PRIME_RATIO,
    advantage=Advantage.GROUP_MEAN,
    mean=Mean.TOKEN,
)
_RLLM = replace(
    VERL_KIN["verl@2026-08/seq-mean-token-mean"],
    source="rLLM 26b55fc, rllm/trainer/verl/verl_backend.py, cookbooks/swe-rl/train_verl.sh, "
    "rllm/trainer/algorithms/rl_algo.py; arXiv 2605.24517",
    advantage=Advantage.GROUP_STD_RLLM,
)

SYSTEMS: dict[str, Loss] = {
    **VERL_KIN,
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
        ratio=CAP_5,
    ),
    "trl@2026-07/dapo+token-truncate": replace(
        _TRL,
        formula="dapo, each token weighed by min(p_old / p_sampler, 3)",
        correction=replace(TIS_2, high=3.0),
    ),
    "trl@2026-07/dapo+sequence-mask": replace(
        _TRL,
        formula="dapo, each row weighed by the product of p_old / p_sampler, 0 where that exceeds "
        "3",
        correction=Correction(level=Level.ROW_PRODUCT, weigh=Weigh.DROP, low=0.0, high=3.0),
    ),
    "trl@2026-07/bnpo": replace(
        _TRL, formula="PPO, mean over the tokens of the local batch: here all are one"
    ),
    "trl@2026-07/sapo": replace(
        _TRL,
        formula="-(4 / tau) sigmoid(tau (r - 1)) A, tau 1 where A > 0 and 1.05 elsewhere, mean "
        "over each row, then over rows",
        term=Term.SOFT_GATE,
        ratio=replace(CLIP, low=1.05, high=1.0),
        mean=Mean.ROW_MEAN,
    ),
    "trl@2026-07/grpo+sequence": replace(
        _TRL,
        formula="grpo with one ratio a row (geometric mean)",
        ratio=_ROW,
        mean=Mean.ROW_MEAN,
    ),
    "trl@2026-07/luspo": replace(
        _TRL,
        formula="PPO with one ratio a row (geometric mean), times the row's tokens, mean over rows",
        ratio=_ROW,
        mean=Mean.ROW_SUM,
    ),
    "openrlhf@2026-08/group_norm": _OPENRLHF,
    "openrlhf@2026-08/rloo": replace(
        _OPENRLHF,
        formula="advantage R - mean of the others, PPO, mean over tokens; without the KL in its "
        "reward",
        advantage=Advantage.LEAVE_ONE_OUT,
    ),
    "openrlhf@2026-08/dr_grpo": replace(
        _OPENRLHF,
        formula="advantage R - mean, PPO, mean over tokens; without the KL in its reward",
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
    "skyrl@2026-08/token_mean+kl": replace(
        _SKYRL,
        formula="its default: token_mean plus 0.001 times k3 (cut at 20 and 10), mean over each "
        "row, then over rows",
        source="SkyRL a956457, skyrl/backends/skyrl_train/utils/ppo_utils.py, "
        "skyrl/backends/skyrl_train/workers/worker.py",
        kl=replace(LOW_VAR_KL, mean=Mean.ROW_MEAN),
    ),
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
        ratio=DUAL,
    ),
    "skyrl@2026-08/cispo": replace(
        _SKYRL,
        formula="-sg(min(r, 5)) A log p, mean over tokens",
        term=Term.CLIP_WEIGHT,
        ratio=replace(CAP_5, bounds=(-20.0, 20.0)),
    ),
    "skyrl@2026-08/cispo-rollout": replace(
        _SKYRL,
        formula="cispo against the sampler",
        term=Term.CLIP_WEIGHT,
        ratio=replace(CAP_5, bounds=(-20.0, 20.0), against=Behaviour.SAMPLER),
    ),
    "skyrl@2026-08/gspo": replace(
        _SKYRL,
        formula="PPO with one ratio a row (geometric mean), mean over each row, then over rows",
        ratio=replace(_ROW, bounds=(float("-inf"), 10.0)),
        mean=Mean.ROW_MEAN,
    ),
    "skyrl@2026-08/dppo": replace(
        _SKYRL,
        formula="-r A against the sampler, 0 where p moved by more than 0.2 in the advantage's "
        "direction, mean over tokens",
        term=Term.MASK_SHIFT,
        ratio=replace(BOUNDED, against=Behaviour.SAMPLER),
    ),
    "skyrl@2026-08/dppo-binary_kl": replace(
        _SKYRL,
        formula="dppo with the binary KL, at most 0.05, in place of the difference of p",
        term=Term.MASK_SHIFT,
        ratio=replace(
            BOUNDED, against=Behaviour.SAMPLER, low=0.05, high=0.05, moved=Moved.BINARY_KL
        ),
    ),
    "slime@2026-08/per-rollout": replace(
        PPO,
        formula="PPO, mean over the tokens of all rows of a trajectory, then over trajectories",
        source=_SLIME_SOURCE,
        mean=Mean.TRAJECTORY_MEAN,
    ),
    "slime@2026-08/per-token": replace(
        PPO,
        formula="PPO, mean over tokens",
        source=_SLIME_SOURCE,
    ),
    "slime@2026-08/per-rollout+tis": replace(
        PPO,
        formula="per-rollout, each token weighed by min(p_old / p_sampler, 2)",
        source=_SLIME_SOURCE,
        mean=Mean.TRAJECTORY_MEAN,
        correction=TIS_2,
    ),
    "slime@2026-08/gspo": replace(
        _SLIME,
        formula="PPO with one ratio a row (geometric mean), mean over the tokens of all rows of a "
        "trajectory, then over trajectories",
        ratio=_ROW,
    ),
    "miles@2026-08/per-rollout": _MILES,
    "miles@2026-08/per-token": replace(_MILES, formula="PPO, mean over tokens", mean=Mean.TOKEN),
    "miles@2026-08/per-rollout+tis": replace(
        _MILES,
        formula="per-rollout, each token weighed by min(p_old / p_sampler, 2)",
        correction=TIS_2,
    ),
    "miles@2026-08/per-rollout+icepop": replace(
        _MILES,
        formula="per-rollout, each token weighed by p_old / p_sampler, 0 above 2",
        correction=replace(TIS_2, weigh=Weigh.DROP),
    ),
    "areal@2026-08/grpo": _AREAL,
    "areal@2026-08/grpo+mask": replace(
        _AREAL,
        formula="grpo, each token weighed by p_old / p_sampler, 0 above 5; those still count in "
        "the mean",
        correction=replace(TIS_2, weigh=Weigh.DROP, high=5.0),
    ),
    "areal@2026-08/sequence": replace(
        _AREAL,
        formula="grpo with one ratio a row (geometric mean), mean over tokens",
        ratio=_ROW,
    ),
    "areal@2026-08/sapo": replace(
        _AREAL,
        formula="-(4 / tau) sigmoid(tau (r - 1)) A, tau 1 where A > 0 and 1.05 elsewhere, mean "
        "over tokens",
        term=Term.SOFT_GATE,
        ratio=replace(CLIP, low=1.05, high=1.0),
    ),
    "prime-rl@2026-08/dppo": _PRIME,
    "prime-rl@2026-08/ipo": replace(
        _PRIME,
        formula="dppo, 0 where p moved by more than 0.1 either way",
        ratio=replace(_PRIME_RATIO, low=0.1, high=0.1, moved=Moved.EITHER_WAY),
    ),
    "prime-rl@2026-08/echo": replace(
        _PRIME,
        formula="dppo plus 0.1 times the cross-entropy of observations, mean over all of their "
        "tokens",
        source="prime-rl 559b447, src/prime_rl/trainer/rl/loss.py, "
        "src/prime_rl/orchestrator/algo/echo.py",
        observed=Observed(weight=0.1, mean=Mean.TOKEN),
    ),
    "rllm@2026-06/echo": replace(
        _RLLM,
        formula="advantage (R - mean) / std with n for n - 1, PPO with dual clip 3 (its verl "
        "backend), plus 0.05 times the cross-entropy of observations; both mean over each row, "
        "then over rows",
        observed=Observed(weight=0.05, mean=Mean.ROW_MEAN),
    ),
    "nemo-rl@2026-08/token-level": _NEMO,
    "nemo-rl@2026-08/sequence-level": replace(
        _NEMO,
        formula="advantage (R - mean) / std of the others, PPO, mean over each row, then over "
        "rows; without its KL",
        mean=Mean.ROW_MEAN,
    ),
    "nemo-rl@2026-08/token-level+icepop": replace(
        _NEMO,
        formula="token-level, each token weighed by p_old / p_sampler, 0 outside [0.5, 5]",
        correction=Correction(level=Level.TOKEN, weigh=Weigh.DROP, low=0.5, high=5.0),
    ),
    "nemo-rl@2026-08/token-level+seq-mask-tis": replace(
        _NEMO,
        formula="token-level, each token weighed by p_old / p_sampler, 0 in rows whose geometric "
        "mean is outside [0.999, 1.002]",
        correction=Correction(level=Level.TOKEN, weigh=Weigh.DROP_ROW, low=0.999, high=1.002),
    ),
    "nemo-rl@2026-08/gspo": replace(
        _NEMO,
        formula="sequence-level with one ratio a row (geometric mean)",
        mean=Mean.ROW_MEAN,
        ratio=_ROW,
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
        PPO,
        formula="PPO against the sampler, advantage R - mean, sum over tokens",
        source=_TINKER_SOURCE,
        mean=Mean.SUM,
        ratio=SAMPLER,
        advantage=Advantage.GROUP_MEAN,
    ),
}
"""What trainers compute."""
