"""The loss of each token, and its slope with respect to the token's log-prob.

A weight of 0 counts 0, whatever it is multiplied with: 0 * -inf is NaN, and a token that a loss
does not look at must not spoil it. Slopes are those of the term with every `sg` held fast. A ratio
of a whole row has the slope of GSPO-token (arXiv 2507.18071, eq. 14): where a row's tokens share an
advantage, that is the gradient of the row's own ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

import numpy as np

from trajkit.records import Mask
from trajkit.rl.spec import (
    Advantage,
    Behaviour,
    Correction,
    Estimator,
    Kl,
    Level,
    Loss,
    Ratio,
    Term,
    Weigh,
)
from trajkit.rl.table import F64, Index, LossInputs, column

_Pair: TypeAlias = tuple[F64, F64]


def inputs_of(loss: Loss, inputs: LossInputs) -> tuple[str, ...]:
    """Return the columns that a loss needs beside the log-probs."""
    names: list[str] = []
    if loss.ratio is not None:
        names.append(_behaviour(loss.ratio, inputs))
    if loss.correction is not None:
        names += ["old_logprobs", "rollout_logprobs"]
    if loss.kl is not None:
        names.append("ref_logprobs")
    if loss.advantage is not Advantage.ONE:
        names.append("returns" if loss.advantage is Advantage.RETURN else "advantages")
    return tuple(dict.fromkeys(names))


def token_terms(loss: Loss, inputs: LossInputs) -> _Pair:
    """Return the loss [N] and its slope [N] of tokens that all count and lack nothing."""
    values, slopes = _policy(loss, inputs)
    if loss.correction is not None:
        weights = importance_weights(loss.correction, inputs)
        values, slopes = _times(weights, values), _times(weights, slopes)
    if loss.kl is not None:
        penalty, pull = kl_terms(loss.kl, inputs)
        values, slopes = values + penalty, slopes + pull
    return values, slopes


def log_ratio(ratio: Ratio, inputs: LossInputs) -> F64:
    """Return [N] log p - log p_behaviour, of tokens or of their rows; not yet cut."""
    gap = inputs.logprobs - column(inputs, _behaviour(ratio, inputs))
    return _at_level(gap, ratio.level, inputs.rows)


def importance_weights(correction: Correction, inputs: LossInputs) -> F64:
    """Return [N] the weight of each token's policy term."""
    gap = column(inputs, "old_logprobs") - column(inputs, "rollout_logprobs")
    with np.errstate(over="ignore"):
        weights = np.exp(_at_level(gap, correction.level, inputs.rows))
        judged = weights
        if correction.weigh is Weigh.DROP_ROW:
            judged = np.exp(_at_level(gap, Level.ROW_GEOMETRIC, inputs.rows))
    if correction.weigh is Weigh.TRUNCATE:
        return np.clip(weights, correction.low, correction.high)
    inside = (judged >= correction.low) & (judged <= correction.high)
    return np.where(inside, weights, 0.0)


def kl_terms(kl: Kl, inputs: LossInputs) -> _Pair:
    """Return the weighted estimate of KL(policy || reference) [N] and its slope."""
    gap = inputs.logprobs - column(inputs, "ref_logprobs")
    pull = np.ones(len(gap))
    if kl.bound is not None:
        pull = (np.abs(gap) <= kl.bound).astype(np.float64)
        gap = np.clip(gap, -kl.bound, kl.bound)
    with np.errstate(over="ignore", invalid="ignore"):  # inf - inf, which K3 replaces
        values, slopes = _ESTIMATORS[kl.estimator](gap)
    if kl.result is not None:
        pull = pull * (np.abs(values) <= kl.result)
        values = np.clip(values, -kl.result, kl.result)
    return kl.weight * values, kl.weight * _times(pull, slopes)


_ESTIMATORS: dict[Estimator, Callable[[F64], _Pair]] = {
    Estimator.K1: lambda d: (d, np.ones(len(d))),
    Estimator.K2: lambda d: (d**2 / 2.0, d),
    Estimator.K3: lambda d: (np.where(np.isneginf(d), np.inf, np.expm1(-d) + d), -np.expm1(-d)),
}
"""Value and slope of each estimator, by d = log p - log p_ref."""


def _behaviour(ratio: Ratio, inputs: LossInputs) -> str:
    if ratio.against is Behaviour.OLD and inputs.old_logprobs is not None:
        return "old_logprobs"
    return "rollout_logprobs"


def _policy(loss: Loss, inputs: LossInputs) -> _Pair:
    weights = _weights(loss.advantage, inputs)
    if loss.term is Term.LOGPROB:
        return _times(-weights, inputs.logprobs), -weights
    ratio = loss.ratio
    if ratio is None:
        raise ValueError(f"the term {loss.term} needs a ratio")
    gap = log_ratio(ratio, inputs)
    low, high = ratio.bounds or (-np.inf, np.inf)
    moves = (gap >= low) & (gap <= high)
    cut = np.clip(gap, low, high)
    with np.errstate(over="ignore"):
        r = np.exp(cut)
    match loss.term:
        case Term.RATIO:
            values = _times(weights, -r)
            slopes = np.where(moves, values, 0.0)
        case Term.CLIP:
            values, slopes = _clipped(ratio, r, weights)
            slopes = np.where(moves, slopes, 0.0)
        case Term.CLIP_WEIGHT:
            held = -np.clip(r, 1.0 - ratio.low, 1.0 + ratio.high) * weights
            values, slopes = _times(held, inputs.logprobs), held
        case Term.MASK_SHIFT:
            values = np.where(_moved(ratio, inputs, weights), 0.0, _times(weights, -r))
            slopes = values
        case _:
            assert_never(loss.term)
    if ratio.square:
        return values + ratio.square * cut**2, slopes + 2.0 * ratio.square * cut
    return values, slopes


def _clipped(ratio: Ratio, r: F64, weights: F64) -> _Pair:
    """Return -min(r A, clip(r) A), at most -dual A where A < 0; flat on the clipped side."""
    free = _times(weights, r)
    held = np.clip(r, 1.0 - ratio.low, 1.0 + ratio.high) * weights
    values, slopes = -np.minimum(free, held), np.where(free <= held, -free, 0.0)
    if ratio.dual is not None:
        most = -ratio.dual * weights
        capped = (weights < 0.0) & (values > most)
        values, slopes = np.where(capped, most, values), np.where(capped, 0.0, slopes)
    return values, slopes


def _moved(ratio: Ratio, inputs: LossInputs, weights: F64) -> Mask:
    """Return [N] where p left p_behaviour by more than allowed, the way the advantage pulls."""
    shift = np.exp(inputs.logprobs) - np.exp(column(inputs, _behaviour(ratio, inputs)))
    return np.where(weights > 0.0, shift > ratio.high, shift < -ratio.low)


def _weights(advantage: Advantage, inputs: LossInputs) -> F64:
    if advantage is Advantage.ONE:
        return np.ones(len(inputs.logprobs))
    return column(inputs, "returns" if advantage is Advantage.RETURN else "advantages")


def _at_level(gap: F64, level: Level, rows: Index) -> F64:
    """Return [N] a sum or mean of log-ratios over each token's row, or the log-ratios as given."""
    if level is Level.TOKEN or not len(gap):
        return gap
    _, which, lengths = np.unique(rows, return_inverse=True, return_counts=True)
    found: F64 = np.bincount(which, weights=gap).astype(np.float64)
    if level is Level.ROW_GEOMETRIC:
        found /= lengths
    return found[which]


def _times(weights: F64, values: F64) -> F64:
    """Return the product [N], 0 where the weight is 0."""
    product = np.zeros(len(weights), dtype=np.float64)
    np.multiply(weights, values, out=product, where=weights != 0.0)
    return product
