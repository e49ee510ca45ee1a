"""The loss of each token, and its slope with respect to the token's log-prob.

A weight of 0 counts 0, whatever it is multiplied with: 0 * -inf is NaN, and a token that a loss
does not look at must not spoil it. Slopes are those of the term with every `sg` held fast. A ratio
of a whole row has the slope of GSPO-token (arXiv 2507.18071, eq. 14): where a row's tokens share an
advantage, that is the gradient of the row's own ratio. Entropy and exact KL are numbers of a whole
distribution, which one log-prob does not move: their slope here is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    Mean,
    Moved,
    Ratio,
    Term,
    Weigh,
)
from trajkit.rl.table import F64, LossInputs, column

_Pair: TypeAlias = tuple[F64, F64]


def inputs_of(loss: Loss, inputs: LossInputs) -> tuple[str, ...]:
    """Return the columns that a loss needs beside the log-probs."""
    names: list[str] = []
    if loss.ratio is not None:
        names.append(_behaviour(loss.ratio, inputs))
    if loss.correction is not None:
        names += ["old_logprobs", "rollout_logprobs"]
    if loss.kl is not None:
        names.append("exact_kl" if loss.kl.estimator is Estimator.EXACT else "ref_logprobs")
    if loss.entropy:
        names.append("entropy")
    if loss.advantage is not Advantage.ONE:
        names.append("returns" if loss.advantage is Advantage.RETURN else "advantages")
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """One part of a loss.

    Attributes:
        name: policy, kl or entropy.
        weight: what the part is multiplied with.
        mean: what its sum is divided by.
        values, slopes: [N] before that.
    """

    name: str
    weight: float
    mean: Mean
    values: F64
    slopes: F64


def loss_terms(loss: Loss, inputs: LossInputs) -> tuple[Terms, ...]:
    """Return the parts of a loss at tokens that all count and lack nothing, the policy's first."""
    values, slopes = _policy(loss, inputs)
    if loss.correction is not None:
        weights = importance_weights(loss.correction, inputs)
        values, slopes = _times(weights, values), _times(weights, slopes)
    found = [("policy", 1.0, loss.mean, (values, slopes))]
    if loss.kl is not None:
        mean = loss.mean if loss.kl.mean is None else loss.kl.mean
        found.append(("kl", loss.kl.weight, mean, kl_terms(loss.kl, inputs)))
    if loss.entropy:
        entropy = column(inputs, "entropy")
        found.append(("entropy", -loss.entropy, loss.mean, (entropy, np.zeros(len(entropy)))))
    return tuple(
        Terms(name=name, weight=weight, mean=mean, values=pair[0], slopes=pair[1])
        for name, weight, mean, pair in found
    )


def weighed(parts: Sequence[Terms]) -> _Pair:
    """Return the sums [N] of values and of slopes, each part times its weight."""
    values, slopes = parts[0].values, parts[0].slopes
    for part in parts[1:]:
        values, slopes = values + part.weight * part.values, slopes + part.weight * part.slopes
    return values, slopes


def log_ratio(ratio: Ratio, inputs: LossInputs) -> F64:
    """Return [N] log p - log p_behaviour, of tokens or of their rows; not yet cut."""
    gap = inputs.logprobs - column(inputs, _behaviour(ratio, inputs))
    return _at_level(gap, ratio.level, inputs)


def importance_weights(correction: Correction, inputs: LossInputs) -> F64:
    """Return [N] the weight of each token's policy term."""
    gap = column(inputs, "old_logprobs") - column(inputs, "rollout_logprobs")
    with np.errstate(over="ignore"):
        weights = np.exp(_at_level(gap, correction.level, inputs))
        judged = weights
        if correction.weigh is Weigh.DROP_ROW:
            judged = np.exp(_at_level(gap, Level.ROW_GEOMETRIC, inputs))
    if correction.weigh is Weigh.TRUNCATE:
        return np.clip(weights, correction.low, correction.high)
    inside = (judged >= correction.low) & (judged <= correction.high)
    return np.where(inside, weights, 0.0)


def kl_terms(kl: Kl, inputs: LossInputs) -> _Pair:
    """Return the estimate of KL(policy || reference) [N] and its slope, not yet weighed."""
    if kl.estimator is Estimator.EXACT:
        exact = column(inputs, "exact_kl")
        return exact, np.zeros(len(exact), dtype=np.float64)
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
    return values, _times(pull, slopes)


_ESTIMATORS: dict[Estimator, Callable[[F64], _Pair]] = {
    Estimator.K1: lambda d: (d, np.ones(len(d))),
    Estimator.K2: lambda d: (d**2 / 2.0, d),
    Estimator.K3: lambda d: (np.where(np.isneginf(d), np.inf, np.expm1(-d) + d), -np.expm1(-d)),
}
"""Value and slope of each of Schulman's estimators, by d = log p - log p_ref."""


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
            slopes = np.where(moves, values, 0.0)
        case Term.MASK_SHIFT_WEIGHT:
            most = np.inf if ratio.cap is None else ratio.cap
            held = np.where(
                _moved(ratio, inputs, weights), 0.0, _times(weights, -np.minimum(r, most))
            )
            values, slopes = _times(held, inputs.logprobs), held
        case Term.SOFT_GATE:
            values, slopes = _gated(ratio, r, weights)
            slopes = np.where(moves, slopes, 0.0)
        case _:
            assert_never(loss.term)
    if ratio.square:
        return values + ratio.square * cut**2, slopes + 2.0 * ratio.square * cut * moves
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


def _gated(ratio: Ratio, r: F64, weights: F64) -> _Pair:
    """Return -(4 / tau) sigmoid(tau (r - 1)) A and its slope."""
    tau = np.where(weights > 0.0, ratio.high, ratio.low)
    gate = 1.0 / (1.0 + np.exp(-tau * (r - 1.0)))
    return -4.0 / tau * gate * weights, -4.0 * weights * _times(gate * (1.0 - gate), r)


def _moved(ratio: Ratio, inputs: LossInputs, weights: F64) -> Mask:
    """Return [N] where p left p_behaviour by more than allowed, the way that counts."""
    behaviour = column(inputs, _behaviour(ratio, inputs))
    p, q = (np.exp(np.minimum(each, 0.0)) for each in (inputs.logprobs, behaviour))
    shift = p - q
    far: F64
    match ratio.moved:
        case Moved.EITHER_WAY:
            return (shift > ratio.high) | (shift < -ratio.low)
        case Moved.TOTAL_VARIATION:
            far = np.abs(shift)
        case Moved.BINARY_KL:
            others = np.log((1.0 - q + _TINY) / (1.0 - p + _TINY))
            far = _times(q, behaviour - inputs.logprobs) + (1.0 - q) * others
        case _:
            assert_never(ratio.moved)
    up, down = (shift > 0.0) & (far > ratio.high), (shift < 0.0) & (far > ratio.low)
    return np.where(weights > 0.0, up, down)


_TINY = 1e-8
"""What verl and SkyRL add to the probability of all other tokens."""


def _weights(advantage: Advantage, inputs: LossInputs) -> F64:
    if advantage is Advantage.ONE:
        return np.ones(len(inputs.logprobs))
    return column(inputs, "returns" if advantage is Advantage.RETURN else "advantages")


def _at_level(gap: F64, level: Level, inputs: LossInputs) -> F64:
    """Return [N] a sum or mean of log-ratios over each token's row or step, or those as given."""
    if level is Level.TOKEN or not len(gap):
        return gap
    owner = inputs.steps if level is Level.STEP_GEOMETRIC else inputs.rows
    _, which, lengths = np.unique(owner, return_inverse=True, return_counts=True)
    found: F64 = np.bincount(which, weights=gap).astype(np.float64)
    if level is not Level.ROW_PRODUCT:
        found /= lengths
    return found[which]


def _times(weights: F64, values: F64) -> F64:
    """Return the product [N], 0 where either is 0: a weight that no float holds is no NaN."""
    product = np.zeros(len(weights), dtype=np.float64)
    np.multiply(weights, values, out=product, where=(weights != 0.0) & (values != 0.0))
    return product
