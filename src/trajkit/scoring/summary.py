"""From the table of scored tokens to the numbers of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from trajkit.scoring.advantages import TokenAdvantages
from trajkit.scoring.losses import LOSSES, LossInputs, LossValue, evaluate
from trajkit.scoring.mismatch import measure_gap
from trajkit.scoring.report import LogprobSums, Mismatch
from trajkit.scoring.tokens import ScoredTokens


def logprob_sums(tokens: ScoredTokens) -> LogprobSums:
    """Return the sums over all scored tokens, in float64."""
    if not len(tokens.logprobs):
        return LogprobSums(sum=None, token_mean=None, sequence_mean=None, trajectory_mean=None)
    logprobs = tokens.logprobs.astype(np.float64)
    total = float(logprobs.sum())
    lengths = np.bincount(tokens.trajectory)
    sums = np.bincount(tokens.trajectory, weights=logprobs)
    means = sums[lengths > 0] / lengths[lengths > 0]
    return LogprobSums(
        sum=total,
        token_mean=total / len(logprobs),
        sequence_mean=float(means.mean()),
        trajectory_mean=total / len(means),
    )


def loss_values(
    tokens: ScoredTokens, advantages: TokenAdvantages, names: Sequence[str]
) -> dict[str, LossValue]:
    """Return each named loss over all scored tokens.

    Recorded log-probs that are not the model's own (another temperature, a cut tail) or that are
    infinite count as unknown: a ratio with them means nothing.
    """
    rollout = tokens.rollout_logprobs.astype(np.float64)
    rollout[~tokens.step_comparable[tokens.step] | np.isinf(rollout)] = np.nan
    inputs = LossInputs(
        logprobs=tokens.logprobs.astype(np.float64),
        loss_mask=np.ones(len(tokens.logprobs), dtype=np.bool_),
        trajectory=tokens.trajectory,
        rollout_logprobs=rollout,
        advantages=advantages.values,
        returns=tokens.returns[tokens.trajectory],
    )
    return {name: evaluate(LOSSES[name], inputs) for name in names}


def mismatch_of(tokens: ScoredTokens, not_comparable: Mapping[str, int]) -> Mismatch | None:
    """Return how far the checkpoint is from the sampler, `None` when nothing was recorded."""
    recorded = tokens.rollout_logprobs.astype(np.float64)
    n_not_recorded = int(np.isnan(recorded).sum())
    if n_not_recorded == len(recorded):
        return None
    recorded[~tokens.step_comparable[tokens.step]] = math.nan
    gap = measure_gap(tokens.logprobs, recorded)
    return Mismatch(
        gap=gap,
        worst=None if gap.worst is None else tokens.place(gap.worst),
        n_not_comparable=sum(not_comparable.values()),
        not_comparable=dict(not_comparable),
        n_not_recorded=n_not_recorded,
    )
