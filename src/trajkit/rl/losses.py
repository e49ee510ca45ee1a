"""Losses over a table of tokens: pure float64 functions, no model and no framework.

    value = sum over kept tokens of weight * loss(token) / denominator

`spec.py` says what the loss of a token may be, `means.py` what weight and denominator are. A token
is kept when `loss_mask` holds and every input the loss needs is known there. Masked tokens are left
out, never multiplied by zero: 0 * -inf is NaN. A loss on observations is a sum of its own over the
context tokens that count, with its own denominator.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trajkit.errors import UsageProblem
from trajkit.records import Mask
from trajkit.rl.means import NEEDS_LENGTH, mean_weights
from trajkit.rl.observed import chosen, observed_inputs, observed_terms
from trajkit.rl.presets import LOSSES, PRESETS
from trajkit.rl.spec import Advantage, Loss, Observed
from trajkit.rl.table import F64, LossInputs, column, is_known, select
from trajkit.rl.terms import Terms, inputs_of, log_ratio, loss_terms, weighed


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPart:
    """One part of a loss: the loss is the sum of weight * value over its parts.

    Attributes:
        name: policy, kl, entropy or observation.
        value: numerator / denominator.
    """

    name: str
    weight: float
    value: float
    numerator: float
    denominator: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossValue:
    """A loss and what it was made of.

    Attributes:
        value: numerator / denominator; `None` when no token is kept.
        numerator, denominator: `None` where parts have denominators of their own.
        n_tokens: tokens that are kept, context among them.
        parts: of a loss that has more than one.
        n_left_out: tokens that count at which an input is unknown.
        left_out: of those, how many lack each input; a token that lacks two is in both counts.
        reason: why there is no value.
        remark: what the value must not be taken for.
    """

    value: float | None
    numerator: float | None
    denominator: int | None
    n_tokens: int
    n_left_out: int
    parts: tuple[LossPart, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    remark: str | None = None


def loss_names(losses: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of `PRESETS` asked for, each once; `None` asks for the papers' losses.

    A system's name (`verl`) asks for all of its presets, `all` for every preset. Raises U103.
    """
    names: dict[str, None] = {}
    for asked in LOSSES if losses is None else losses:
        found = [name for name in PRESETS if asked in ("all", name, name.partition("@")[0])]
        if not found:
            raise _unknown(asked)
        names |= dict.fromkeys(found)
    return tuple(names)


def evaluate(loss: Loss, inputs: LossInputs) -> LossValue:
    """Return the loss over the kept tokens; no value, and a reason, when there are none."""
    reason = _reason(loss, inputs)
    if reason is not None:
        return _without_value(loss, inputs, reason)
    with np.errstate(over="ignore", invalid="ignore"):  # what no float holds is inf, and told
        return _evaluate(loss, inputs)


def gradient(loss: Loss, inputs: LossInputs) -> F64:
    """Return [N] d loss / d logprob of every token, exactly 0 where a token is not kept.

    A slope that no float holds is infinite; where the parts of a loss pull a token infinitely far
    both ways, it is NaN.
    """
    slopes = np.zeros(len(inputs.logprobs), dtype=np.float64)
    if _reason(loss, inputs) is None:
        keep = _kept(loss, inputs)
        kept = select(inputs, keep)
        with np.errstate(over="ignore", invalid="ignore"):
            for part in loss_terms(loss, kept):
                weights, denominator = mean_weights(part.mean, kept)
                slopes[keep] += part.weight * weights * part.slopes / denominator
    return slopes


def context_gradient(loss: Loss, inputs: LossInputs) -> F64:
    """Return [C] the same of the context tokens that count: 0 unless the loss observes them."""
    context = inputs.context
    if context is None:
        return np.zeros(0, dtype=np.float64)
    slopes = np.zeros(len(context.logprobs), dtype=np.float64)
    if loss.observed is not None and _reason(loss, inputs) is None:
        keep = _kept_context(loss.observed, context)
        kept = select(context, keep)
        weights, denominator = mean_weights(loss.observed.mean, kept)
        found = observed_terms(loss.observed, kept)[1]
        slopes[keep] = loss.observed.weight * weights * found / denominator
    return slopes


def _evaluate(loss: Loss, inputs: LossInputs) -> LossValue:
    kept = select(inputs, _kept(loss, inputs))
    terms = loss_terms(loss, kept)
    parts = [_policy_part(part, kept) for part in terms]
    n_tokens = len(kept.logprobs)
    if loss.observed is not None and inputs.context is not None:
        parts.append(_observed_part(loss.observed, inputs.context))
        n_tokens += parts[-1].n_tokens
    whole = _one_sum(loss, terms, kept) if len(parts) == len(terms) else None
    value = sum(part.weight * part.value for part in parts) if whole is None else whole.value
    if np.isnan(value):
        return _without_value(loss, inputs, _NO_SUM)
    return LossValue(
        value=value,
        numerator=None if whole is None else whole.numerator,
        denominator=None if whole is None else whole.denominator,
        n_tokens=n_tokens,
        n_left_out=_n_left_out(loss, inputs),
        parts=tuple(parts) if len(parts) > 1 else (),
        left_out=_left_out(loss, inputs),
        remark=None if whole is None else whole.remark,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A loss whose parts have one denominator."""

    value: float
    numerator: float
    denominator: int
    remark: str | None


def _one_sum(loss: Loss, terms: Sequence[Terms], kept: LossInputs) -> _Sum | None:
    """Return the weighed terms as one sum; `None` where a part has a mean of its own."""
    if any(part.mean is not loss.mean for part in terms):
        return None
    weights, denominator = mean_weights(loss.mean, kept)
    summed = weights * weighed(terms)[0]
    numerator = float(summed.sum())
    return _Sum(
        value=numerator / denominator,
        numerator=numerator,
        denominator=denominator,
        remark=_ZERO if _is_noise(loss, kept, summed) else None,
    )


def _policy_part(part: Terms, kept: LossInputs) -> LossPart:
    weights, denominator = mean_weights(part.mean, kept)
    numerator = float((weights * part.values).sum())
    return LossPart(
        name=part.name,
        weight=part.weight,
        value=numerator / denominator,
        numerator=numerator,
        denominator=denominator,
        n_tokens=len(part.values),
    )


def _observed_part(observed: Observed, context: LossInputs) -> LossPart:
    kept = select(context, _kept_context(observed, context))
    weights, denominator = mean_weights(observed.mean, kept)
    numerator = float((weights * observed_terms(observed, kept)[0]).sum())
    return LossPart(
        name="observation",
        weight=observed.weight,
        value=numerator / denominator,
        numerator=numerator,
        denominator=denominator,
        n_tokens=len(kept.logprobs),
    )


_MISSING = {
    "exact_kl": "there is no exact KL to a reference model: no exact_kl in the scores",
    "entropy": "there are no entropies of the checkpoint",
    "rollout_logprobs": "no comparable log-probs of the sampler are recorded",
    "old_logprobs": "no log-probs of the trainer before its update are recorded",
    "ref_logprobs": "there are no log-probs of a reference model",
    "advantages": "there are neither recorded advantages nor groups of rewards to make them from",
    "returns": "no reward is recorded",
}
_NO_VALUES = "no values of a critic, with rewards to hold them against, are recorded"
_NO_CONTEXT = (
    "no observation counts: --train action-observation counts those that the data name, --train "
    "all every context, in scores that were made with the same"
)
_NO_CONTEXT_INPUT = {
    "action_entropy": "no entropy of an action that an observation answers is known",
    "group_reward": "no reward of the groups that observations belong to is known",
}
_NO_SUM = (
    "its terms are infinite with both signs: a token has probability 0, or a ratio that no float "
    "holds"
)
_NO_LENGTH = "it divides by a length that a trainer was configured with: give it with --length"

_NOISE = 1e-6
"""A sum this small beside the sum of its terms' sizes is what rounding leaves of 0."""
_ON_POLICY = 1e-3
"""Nats by which log-probs of one policy differ between two programs in fp32, at most."""
_ZERO = "zero up to rounding: the ratios are 1 and the advantages sum to 0"


def _unknown(asked: str) -> UsageProblem:
    systems = sorted({name.partition("@")[0] for name in PRESETS if "@" in name})
    close = difflib.get_close_matches(asked, [*PRESETS, *systems], n=2)
    return UsageProblem(
        "U103",
        f"--loss is one of {', '.join(LOSSES)}, a preset such as {next(reversed(PRESETS))}, "
        f"all presets of {', '.join(systems)}, or all; not {asked!r}",
        hint=f"did you mean {' or '.join(close)}?" if close else None,
    )


def _kept(loss: Loss, inputs: LossInputs) -> Mask:
    keep = inputs.loss_mask & is_known(inputs, "logprobs")
    for name in inputs_of(loss, inputs):
        keep = keep & is_known(inputs, name)
    return keep


def _kept_context(observed: Observed, context: LossInputs) -> Mask:
    return _known_context(observed, context) & chosen(observed, context)


def _known_context(observed: Observed, context: LossInputs) -> Mask:
    keep = context.loss_mask & is_known(context, "logprobs")
    for name in observed_inputs(observed):
        keep = keep & is_known(context, name)
    return keep


def _without_value(loss: Loss, inputs: LossInputs, reason: str) -> LossValue:
    return LossValue(
        value=None,
        numerator=None,
        denominator=0,
        n_tokens=0,
        n_left_out=_n_left_out(loss, inputs),
        left_out=_left_out(loss, inputs),
        reason=reason,
    )


def _n_left_out(loss: Loss, inputs: LossInputs) -> int:
    n = int(inputs.loss_mask.sum() - _kept(loss, inputs).sum())
    if loss.observed is not None and inputs.context is not None:
        known = _known_context(loss.observed, inputs.context)
        n += int(inputs.context.loss_mask.sum() - known.sum())
    return n


def _left_out(loss: Loss, inputs: LossInputs) -> dict[str, int]:
    """Return how many counted tokens lack each input."""
    names = [(inputs, name) for name in ("logprobs", *inputs_of(loss, inputs))]
    if loss.observed is not None and inputs.context is not None:
        names += [(inputs.context, name) for name in observed_inputs(loss.observed)]
    return {
        name: n
        for table, name in names
        if (n := int((table.loss_mask & ~is_known(table, name)).sum()))
    }


def _reason(loss: Loss, inputs: LossInputs) -> str | None:
    """Return why there is no value: the first input that is unknown at every counted token."""
    if not inputs.loss_mask.any():
        return "no token counts"
    for name in inputs_of(loss, inputs):
        if not is_known(inputs, name)[inputs.loss_mask].any():
            is_gae = name == "advantages" and loss.advantage in _OF_VALUES
            return _NO_VALUES if is_gae else _MISSING[name]
    if not _kept(loss, inputs).any():
        return "no token has every input"
    if loss.mean in NEEDS_LENGTH and inputs.length is None:
        return _NO_LENGTH
    return None if loss.observed is None else _why_unobserved(loss.observed, inputs.context)


def _why_unobserved(observed: Observed, context: LossInputs | None) -> str | None:
    if context is None or not context.loss_mask.any():
        return _NO_CONTEXT
    for name in observed_inputs(observed):
        if not is_known(context, name)[context.loss_mask].any():
            return _NO_CONTEXT_INPUT[name]
    return None if _kept_context(observed, context).any() else "no observation has every input"


_OF_VALUES = (Advantage.STEP_GAE, Advantage.STEP_GAE_WHITE)


def _is_noise(loss: Loss, kept: LossInputs, terms: F64) -> bool:
    """Return whether the sum is what rounding leaves of 0, in a loss whose ratios are 1."""
    is_small = abs(float(terms.sum())) < _NOISE * float(np.abs(terms).sum())
    return is_small and _is_on_policy(loss, kept)


def _is_on_policy(loss: Loss, kept: LossInputs) -> bool:
    """Return whether a loss of ratios has a ratio of 1 wherever an advantage counts it."""
    if loss.ratio is None or "advantages" not in inputs_of(loss, kept):
        return False
    counted = column(kept, "advantages") != 0.0
    return bool((np.abs(log_ratio(loss.ratio, kept)[counted]) < _ON_POLICY).all())
