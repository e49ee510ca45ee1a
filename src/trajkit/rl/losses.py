"""Losses over a table of tokens: pure float64 functions, no model and no framework.

    value = sum over kept tokens of weight * loss(token) / denominator

`spec.py` says what the loss of a token may be, `means.py` what weight and denominator are. A token
is kept when `loss_mask` holds and every input the loss needs is known there. Masked tokens are left
out, never multiplied by zero: 0 * -inf is NaN.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trajkit.errors import UsageProblem
from trajkit.records import Mask
from trajkit.rl.means import NEEDS_LENGTH, mean_weights
from trajkit.rl.presets import LOSSES, PRESETS
from trajkit.rl.spec import Advantage, Loss
from trajkit.rl.table import F64, LossInputs, column, is_known, select
from trajkit.rl.terms import inputs_of, log_ratio, token_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class LossValue:
    """A loss and what it was made of.

    Attributes:
        value: numerator / denominator; `None` when no token is kept.
        n_tokens: tokens that are kept.
        n_left_out: tokens of `loss_mask` at which an input is unknown.
        left_out: of those, how many lack each input; a token that lacks two is in both counts.
        reason: why there is no value.
        remark: what the value must not be taken for.
    """

    value: float | None
    numerator: float | None
    denominator: int
    n_tokens: int
    n_left_out: int
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
    needs = inputs_of(loss, inputs)
    keep = _kept(needs, inputs)
    n_left_out = int(inputs.loss_mask.sum() - keep.sum())
    left_out = {
        name: n
        for name in ("logprobs", *needs)
        if (n := int((inputs.loss_mask & ~is_known(inputs, name)).sum()))
    }
    reason = _reason(loss, needs, inputs, keep)
    if reason is not None:
        return LossValue(
            value=None,
            numerator=None,
            denominator=0,
            n_tokens=0,
            n_left_out=n_left_out,
            left_out=left_out,
            reason=reason,
        )
    kept = select(inputs, keep)
    values, _ = token_terms(loss, kept)
    weights, denominator = mean_weights(loss.mean, kept)
    terms = weights * values
    numerator = float(terms.sum())
    is_noise = abs(numerator) < _NOISE * float(np.abs(terms).sum()) and _is_on_policy(loss, kept)
    return LossValue(
        value=numerator / denominator,
        numerator=numerator,
        denominator=denominator,
        n_tokens=int(keep.sum()),
        n_left_out=n_left_out,
        left_out=left_out,
        remark=_ZERO if is_noise else None,
    )


def gradient(loss: Loss, inputs: LossInputs) -> F64:
    """Return [N] d loss / d logprob of every token, exactly 0 where a token is not kept."""
    slopes = np.zeros(len(inputs.logprobs), dtype=np.float64)
    needs = inputs_of(loss, inputs)
    keep = _kept(needs, inputs)
    if _reason(loss, needs, inputs, keep) is None:
        kept = select(inputs, keep)
        weights, denominator = mean_weights(loss.mean, kept)
        slopes[keep] = weights * token_terms(loss, kept)[1] / denominator
    return slopes


_MISSING = {
    "rollout_logprobs": "no comparable log-probs of the sampler are recorded",
    "old_logprobs": "no log-probs of the trainer before its update are recorded",
    "ref_logprobs": "there are no log-probs of a reference model",
    "advantages": "there are neither recorded advantages nor groups of rewards to make them from",
    "returns": "no reward is recorded",
}
_NO_VALUES = "no values of a critic, with rewards to hold them against, are recorded"
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


def _kept(needs: Sequence[str], inputs: LossInputs) -> Mask:
    keep = inputs.loss_mask & is_known(inputs, "logprobs")
    for name in needs:
        keep = keep & is_known(inputs, name)
    return keep


def _reason(loss: Loss, needs: Sequence[str], inputs: LossInputs, keep: Mask) -> str | None:
    """Return why there is no value: the first input that is unknown at every counted token."""
    if not inputs.loss_mask.any():
        return "no token counts"
    for name in needs:
        if not is_known(inputs, name)[inputs.loss_mask].any():
            is_gae = name == "advantages" and loss.advantage is Advantage.STEP_GAE
            return _NO_VALUES if is_gae else _MISSING[name]
    if not keep.any():
        return "no token has every input"
    return _NO_LENGTH if loss.mean in NEEDS_LENGTH and inputs.length is None else None


def _is_on_policy(loss: Loss, kept: LossInputs) -> bool:
    """Return whether a loss of ratios has a ratio of 1 wherever an advantage counts it."""
    if loss.ratio is None or "advantages" not in inputs_of(loss, kept):
        return False
    counted = column(kept, "advantages") != 0.0
    return bool((np.abs(log_ratio(loss.ratio, kept)[counted]) < _ON_POLICY).all())
