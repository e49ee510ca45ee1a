"""Losses over a table of tokens: pure float64 functions, no model and no framework.

A loss is a value per token, its slope with respect to the token's log-prob, and a mean:

    value = sum over kept tokens of weight * loss(token) / denominator

    TOKEN            weight 1           denominator: kept tokens
    TRAJECTORY_SUM   weight 1           denominator: trajectories with a kept token
    TRAJECTORY_MEAN  weight 1 / length  denominator: trajectories with a kept token

A token is kept when `loss_mask` holds and every input the loss needs is known there. Masked tokens
are left out, never multiplied by zero: 0 * -inf is NaN.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from trajkit.errors import UsageProblem
from trajkit.records import Mask

F64: TypeAlias = NDArray[np.float64]
CLIP = 0.2
"""PPO's epsilon: ratios outside [1 - CLIP, 1 + CLIP] stop pulling."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """N tokens, one row each; unknown values are NaN, unknown columns `None`.

    Attributes:
        logprobs: [N] nats, under the checkpoint.
        loss_mask: [N] True where the loss counts the token.
        trajectory: [N] which trajectory the token belongs to.
        rollout_logprobs: [N] nats, recorded by the sampler.
        advantages: [N].
        returns: [N] the return of the token's trajectory.
    """

    logprobs: F64
    loss_mask: Mask
    trajectory: NDArray[np.int64]
    rollout_logprobs: F64 | None = None
    advantages: F64 | None = None
    returns: F64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossValue:
    """A loss and what it was made of.

    Attributes:
        value: numerator / denominator; `None` when no token is kept.
        n_left_out: tokens of `loss_mask` at which an input is unknown.
        left_out: of those, how many lack each input; a token that lacks two is in both counts.
        reason: why there is no value.
        remark: what the value must not be taken for.
    """

    value: float | None
    numerator: float | None
    denominator: int
    n_left_out: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    remark: str | None = None


class Mean(StrEnum):
    """What a sum of per-token losses is divided by."""

    TOKEN = "token"
    TRAJECTORY_SUM = "trajectory_sum"
    TRAJECTORY_MEAN = "trajectory_mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One loss: where its formula is from, what it needs, and its value and slope per token."""

    description: str
    needs: tuple[str, ...]
    mean: Mean
    terms: Callable[[LossInputs], tuple[F64, F64]]


def loss_names(losses: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of `LOSSES` asked for, each once; `None` asks for all. Raises U103."""
    names = tuple(LOSSES) if losses is None else tuple(dict.fromkeys(losses))
    for name in names:
        if name not in LOSSES:
            close = difflib.get_close_matches(name, LOSSES, n=1)
            raise UsageProblem(
                "U103",
                f"--loss is one of {', '.join(LOSSES)}, not {name!r}",
                hint=f"did you mean {close[0]}?" if close else None,
            )
    return names


def evaluate(loss: Loss, inputs: LossInputs) -> LossValue:
    """Return the loss over the kept tokens; no value, and a reason, when there are none."""
    keep = _kept(loss, inputs)
    n_left_out = int(inputs.loss_mask.sum() - keep.sum())
    left_out = {
        name: n
        for name in ("logprobs", *loss.needs)
        if (n := int((inputs.loss_mask & ~_known(inputs, name)).sum()))
    }
    if not keep.any():
        return LossValue(
            value=None,
            numerator=None,
            denominator=0,
            n_left_out=n_left_out,
            left_out=left_out,
            reason=_reason(loss, inputs),
        )
    kept = _select(inputs, keep)
    values, _ = loss.terms(kept)
    weights, denominator = _weights(loss.mean, kept.trajectory)
    terms = weights * values
    numerator = float(terms.sum())
    is_noise = abs(numerator) < _NOISE * float(np.abs(terms).sum()) and _is_on_policy(loss, kept)
    return LossValue(
        value=numerator / denominator,
        numerator=numerator,
        denominator=denominator,
        n_left_out=n_left_out,
        left_out=left_out,
        remark=_ZERO if is_noise else None,
    )


def gradient(loss: Loss, inputs: LossInputs) -> F64:
    """Return [N] d loss / d logprob of every token, exactly 0 where a token is not kept."""
    slopes = np.zeros(len(inputs.logprobs), dtype=np.float64)
    keep = _kept(loss, inputs)
    if keep.any():
        kept = _select(inputs, keep)
        weights, denominator = _weights(loss.mean, kept.trajectory)
        slopes[keep] = weights * loss.terms(kept)[1] / denominator
    return slopes


def _nll(inputs: LossInputs) -> tuple[F64, F64]:
    """Return -log p [N] and its slope."""
    return -inputs.logprobs, np.full(len(inputs.logprobs), -1.0)


def _reinforce(inputs: LossInputs) -> tuple[F64, F64]:
    """Return -R log p [N] and its slope; a return of 0 gives 0 even where p is 0."""
    returns = _column(inputs.returns)
    terms = np.zeros(len(returns), dtype=np.float64)
    np.multiply(-returns, inputs.logprobs, out=terms, where=returns != 0.0)
    return terms, -returns


def _clipped(inputs: LossInputs) -> tuple[F64, F64]:
    """Return -min(r A, clip(r) A) [N] and its slope, with r = p / p_rollout.

    Where the clipped side is the smaller one the loss is flat; an advantage of 0 gives 0.
    """
    advantages = _column(inputs.advantages)
    with np.errstate(over="ignore"):
        ratio = np.exp(inputs.logprobs - _column(inputs.rollout_logprobs))
    free = np.zeros(len(ratio), dtype=np.float64)
    np.multiply(ratio, advantages, out=free, where=advantages != 0.0)
    held = np.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantages
    return -np.minimum(free, held), np.where(free <= held, -free, 0.0)


LOSSES: dict[str, Loss] = {
    "nll": Loss(
        description="negative log-likelihood of the action tokens, mean over tokens",
        needs=(),
        mean=Mean.TOKEN,
        terms=_nll,
    ),
    "reinforce": Loss(
        description="REINFORCE (Williams 1992): -R(x) * sum of log p over the action tokens of x, "
        "mean over trajectories; no baseline",
        needs=("returns",),
        mean=Mean.TRAJECTORY_SUM,
        terms=_reinforce,
    ),
    "ppo_clip": Loss(
        description="PPO (arXiv 1707.06347, eq. 7, epsilon 0.2): the clipped surrogate, mean over "
        "tokens",
        needs=("rollout_logprobs", "advantages"),
        mean=Mean.TOKEN,
        terms=_clipped,
    ),
    "grpo": Loss(
        description="GRPO (DeepSeekMath, arXiv 2402.03300, eq. 3 with beta 0, epsilon 0.2): the "
        "clipped surrogate, mean over each trajectory's tokens, then over trajectories",
        needs=("rollout_logprobs", "advantages"),
        mean=Mean.TRAJECTORY_MEAN,
        terms=_clipped,
    ),
}

_MISSING = {
    "rollout_logprobs": "no comparable log-probs of the sampler are recorded",
    "advantages": "there are neither recorded advantages nor groups of rewards to make them from",
    "returns": "no reward is recorded",
}


_NOISE = 1e-6
"""A sum this small beside the sum of its terms' sizes is what rounding leaves of 0."""
_ON_POLICY = 1e-3
"""Nats by which log-probs of one policy differ between two programs in fp32, at most."""
_ZERO = "zero up to rounding: the ratios are 1 and the advantages sum to 0"


def _is_on_policy(loss: Loss, kept: LossInputs) -> bool:
    """Return whether a loss of ratios has a ratio of 1 wherever an advantage counts it."""
    if not {"rollout_logprobs", "advantages"} <= set(loss.needs):
        return False
    counted = _column(kept.advantages) != 0.0
    gap = kept.logprobs[counted] - _column(kept.rollout_logprobs)[counted]
    return bool((np.abs(gap) < _ON_POLICY).all())


def _kept(loss: Loss, inputs: LossInputs) -> Mask:
    keep = inputs.loss_mask & _known(inputs, "logprobs")
    for name in loss.needs:
        keep = keep & _known(inputs, name)
    return keep


def _known(inputs: LossInputs, name: str) -> Mask:
    """Return [N] where an input is known."""
    column: F64 | None = getattr(inputs, name)
    return np.zeros_like(inputs.loss_mask) if column is None else ~np.isnan(column)


def _select(inputs: LossInputs, keep: Mask) -> LossInputs:
    def part(column: F64 | None) -> F64 | None:
        return None if column is None else column[keep]

    return replace(
        inputs,
        logprobs=inputs.logprobs[keep],
        loss_mask=inputs.loss_mask[keep],
        trajectory=inputs.trajectory[keep],
        rollout_logprobs=part(inputs.rollout_logprobs),
        advantages=part(inputs.advantages),
        returns=part(inputs.returns),
    )


def _reason(loss: Loss, inputs: LossInputs) -> str:
    """Return why nothing is kept: the first input that is unknown at every counted token."""
    if not inputs.loss_mask.any():
        return "no token counts"
    for name in loss.needs:
        if not _known(inputs, name)[inputs.loss_mask].any():
            return _MISSING[name]
    return "no token has every input"


def _weights(mean: Mean, trajectory: NDArray[np.int64]) -> tuple[F64, int]:
    """Return each kept token's weight [N] and the denominator."""
    ones = np.ones(len(trajectory), dtype=np.float64)
    if mean is Mean.TOKEN:
        return ones, len(trajectory)
    _, which, lengths = np.unique(trajectory, return_inverse=True, return_counts=True)
    match mean:
        case Mean.TRAJECTORY_SUM:
            return ones, len(lengths)
        case Mean.TRAJECTORY_MEAN:
            return ones / lengths[which], len(lengths)
        case _:
            assert_never(mean)


def _column(values: F64 | None) -> F64:
    if values is None:
        raise ValueError("a loss was given tokens without a column it needs")
    return values
