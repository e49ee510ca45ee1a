"""The losses of verl and of the systems whose trainers come from it, at the commits named."""

from __future__ import annotations

from dataclasses import replace

from trajkit.rl.papers import BOUNDED, CLIP, DUAL, GSPO, LOW_VAR_KL, PPO, TIS_2
from trajkit.rl.spec import Advantage, Level, Loss, Mean, Moved, Term

_VERL = replace(
    PPO,
    formula="PPO with dual clip 3, mean over tokens",
    source="verl 1dda039, verl/trainer/ppo/core_algos.py",
    ratio=DUAL,
)
_AGENT_R1 = replace(_VERL, source="Agent-R1 6dc8f67, agent_r1/trainer/ppo/core_algos.py")
_ROLL = replace(
    PPO,
    formula="PPO, mean over each row, then over rows",
    source="ROLL 8eb27cc, roll/utils/functionals.py, roll/pipeline/agentic/agentic_actor_worker.py",
    mean=Mean.ROW_MEAN,
)
_SHIFT = replace(BOUNDED, cap=3.0)

VERL_KIN: dict[str, Loss] = {
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
        PPO,
        formula="PPO with dual clip 3, sum over tokens / length, whatever the number of rows",
        source="verl b178a3c, verl/trainer/ppo/core_algos.py",
        mean=Mean.LENGTH,
        ratio=DUAL,
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
        kl=LOW_VAR_KL,
    ),
    "verl@2026-08/gspo": replace(
        _VERL,
        formula="GSPO-token with 3e-4 and 4e-4 as in its examples, mean over each row, then over "
        "rows",
        mean=Mean.ROW_MEAN,
        ratio=replace(GSPO, bounds=(float("-inf"), 10.0)),
    ),
    "verl@2026-08/cispo": replace(
        _VERL,
        formula="-sg(min(r, 1.2)) A log p as in its example, mean over tokens",
        term=Term.CLIP_WEIGHT,
        ratio=replace(BOUNDED, low=10.0),
    ),
    "verl@2026-08/token-mean+is-token": replace(
        _VERL,
        formula="token-mean, each token weighed by min(p_old / p_sampler, 2)",
        correction=TIS_2,
    ),
    "verl@2026-08/token-mean+is-sequence": replace(
        _VERL,
        formula="token-mean, each row weighed by min(product of p_old / p_sampler, 2)",
        correction=replace(TIS_2, level=Level.ROW_PRODUCT),
    ),
    "verl@2026-08/sapo": replace(
        _VERL,
        formula="-(4 / tau) sigmoid(tau (r - 1)) A, tau 1 where A > 0 and 1.05 elsewhere, mean "
        "over each row, then over rows",
        term=Term.SOFT_GATE,
        mean=Mean.ROW_MEAN,
        ratio=replace(BOUNDED, low=1.05, high=1.0),
    ),
    "verl@2026-08/dppo_tv": replace(
        _VERL,
        formula="-sg(min(r, 3)) A log p, 0 where p moved by more than 0.2 in the advantage's "
        "direction, mean over tokens",
        term=Term.MASK_SHIFT_WEIGHT,
        ratio=_SHIFT,
    ),
    "verl@2026-08/dppo_kl": replace(
        _VERL,
        formula="dppo_tv with the binary KL in place of the difference of p",
        term=Term.MASK_SHIFT_WEIGHT,
        ratio=replace(_SHIFT, moved=Moved.BINARY_KL),
    ),
    "agent-r1@2026-04/token-mean": _AGENT_R1,
    "agent-r1@2026-04/seq-mean-token-mean": replace(
        _AGENT_R1,
        formula="PPO with dual clip 3, mean over each step, then over steps: a step is a row there",
        mean=Mean.STEP_MEAN,
    ),
    "agent-r1@2026-04/seq-mean-token-sum-norm": replace(
        _AGENT_R1,
        formula="PPO with dual clip 3, sum over tokens / length, whatever the number of steps",
        mean=Mean.LENGTH,
    ),
    "agent-r1@2026-04/step-gae": replace(
        _AGENT_R1,
        formula="token-mean with one advantage a step: GAE (gamma and lambda 1) of the value of "
        "its first action token, less the mean over steps, over their std",
        advantage=Advantage.STEP_GAE_WHITE,
    ),
    "search-r1@2025-10/grpo": replace(
        PPO,
        formula="PPO less 0.001 times the entropy plus 0.001 times low_var_kl (k3, cut at 10), "
        "mean over tokens",
        source="Search-R1 a14dc3a, verl/trainer/ppo/core_algos.py, verl/workers/actor/dp_actor.py",
        kl=replace(LOW_VAR_KL, bound=None),
        entropy=0.001,
    ),
    "roll@2026-08/token-mean": replace(_ROLL, formula="PPO, mean over tokens", mean=Mean.TOKEN),
    "roll@2026-08/seq-mean-token-sum": replace(
        _ROLL, formula="PPO, sum over each row, mean over rows", mean=Mean.ROW_SUM
    ),
    "roll@2026-08/seq-mean-token-mean": _ROLL,
    "roll@2026-08/seq-mean-token-sum-norm": replace(
        _ROLL,
        formula="PPO, sum over tokens / length, whatever the number of rows",
        mean=Mean.LENGTH,
    ),
    "roll@2026-08/dual_clip": replace(
        _ROLL,
        formula="PPO with dual clip 1.4, mean over each row, then over rows",
        ratio=replace(CLIP, dual=1.4),
    ),
    "roll@2026-08/segment": replace(
        _ROLL,
        formula="PPO with one ratio a step (geometric mean), mean over each row, then over rows",
        ratio=replace(CLIP, level=Level.STEP_GEOMETRIC),
    ),
}
"""verl, Agent-R1, Search-R1 and ROLL."""
