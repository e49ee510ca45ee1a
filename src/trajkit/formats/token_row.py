"""The typed reading of one pre-tokenised row: ids, and all that stands beside them, by index t."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.errors import InputError
from trajkit.formats.alignment import (
    IGNORED_LABEL,
    Align,
    Shape,
    Values,
    align_labels,
    candidates,
    fits_as_asked,
    spread,
)
from trajkit.formats.fields import Fields, take_whole
from trajkit.formats.row_keys import (
    LABELS,
    LOGPROBS,
    MANY_MEANINGS,
    MASKS,
    PROMPT,
    RESPONSE,
    REWARDS,
    WHOLE,
)
from trajkit.records import Floats, Ids, Mask, read_only
from trajkit.safe.faults import QUARANTINE_HINT
from trajkit.safe.json import Record

_ASKED_OF_LABELS = {
    Align.INPUT: Align.LABELS,
    Align.LABELS: Align.LABELS,
    Align.SHIFTED: Align.SHIFTED,
}
_TOGETHER = frozenset({"completion_mask", "tool_mask", "assistant_masks"})
"""Masks that TRL multiplies: a token is trained where all of them say so."""

_Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRow:
    """One row: every array speaks of token t at index t.

    Attributes:
        whole: what the record says of its whole trajectory, by the names of `RawTrajectory`.
        rollout: what rows of one rollout share; `None` where the row does not say.
        token_ids: [T].
        weights: [T] float64, 0 where the token is not trained.
        attention: [T] False for padding; `None` where the row does not say.
        n_prompt: ids before the response; `None` where the row does not say.
        logprobs: [T] NaN where there is none; `None` without any.
        misfit_logprobs: how many log-probs there are, where their number fits nothing.
        wrong_labels: [n] the trained positions whose label is not the id it trains.
        align, why: how the mask was taken to stand, and what decided it.
    """

    whole: dict[str, Any]
    rollout: str | None
    token_ids: Ids
    weights: Values
    attention: Mask | None
    n_prompt: int | None
    logprobs: Floats | None
    misfit_logprobs: int | None
    token_rewards: Floats | None
    advantages: Floats | None
    wrong_labels: NDArray[np.int64]
    policy_version: tuple[str, ...] | None
    finish_reason: str | None
    is_truncated: bool | None
    align: Align
    why: str
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """One mask of a row, brought to its ids."""

    name: str
    n: int
    weights: Values
    align: Align
    why: str


def read_row(record: Record, align: Align = Align.AUTO) -> TokenRow:
    """Return the row of a record, its mask brought to its ids.

    Args:
        record: a JSON object.
        align: how the mask stands; `AUTO` decides from its length.

    Raises:
        InputError: I201 to I303 where a value is not what it should be, I406 when the mask fits
            two conventions, I407 when it fits none, or masks contradict each other.
    """
    fields = Fields(record.value, record.place)
    ids, n_prompt = _take_ids(fields)
    shape = Shape(n_ids=len(ids), n_response=None if n_prompt is None else len(ids) - n_prompt)
    claims, wrong = _take_claims(fields, ids, shape, align)
    mask = _one_claim(claims, fields)
    rewards = _take_rewards(fields, shape, mask)
    odd = {"reward": fields.take("reward")} if _is_odd(fields.rest().get("reward")) else {}
    whole = take_whole(fields)
    if whole["reward"] is None:
        whole["reward"] = fields.take_number("reward_score")
    logprobs, misfit = _take_logprobs(fields, shape, mask)
    finish = fields.take_text("finish_reason", "stop_reason")
    attention = _take_numbers(fields, "attention_mask")
    if attention is not None and len(attention) != len(ids):
        raise _misfit(fields, "attention_mask", len(attention), shape)
    return TokenRow(
        whole=whole,
        rollout=fields.take_name("rollout_id", "session_id"),
        token_ids=ids,
        weights=mask.weights,
        attention=None if attention is None else attention != 0,
        n_prompt=n_prompt,
        logprobs=logprobs,
        misfit_logprobs=misfit,
        token_rewards=rewards,
        advantages=_take_aligned(fields, ("advantages",), shape, mask),
        wrong_labels=wrong,
        policy_version=_take_versions(fields),
        finish_reason=None if finish is None else finish.lower(),
        is_truncated=_take_truncated(fields),
        align=mask.align,
        why=mask.why,
        extra=fields.rest() | odd,
    )


def _take_ids(fields: Fields) -> tuple[Ids, int | None]:
    """Return all ids of a row, and how many of them stand before its response."""
    there = fields.rest()
    if any(isinstance(there.get(name), list) for name in WHOLE):
        ids = fields.take_ids(*WHOLE)
        n_response = fields.take_int("response_length")
        if ids is None:
            raise fields.missing(WHOLE[0])
        if n_response is not None and not 0 <= n_response <= len(ids):
            raise fields.wrong("response_length", f"a number up to {len(ids)}", n_response)
        return ids, None if n_response is None else len(ids) - n_response
    prompt, response = fields.take_ids(*PROMPT), fields.take_ids(*RESPONSE)
    if prompt is None or response is None:
        raise fields.missing(PROMPT[0] if prompt is None else RESPONSE[0])
    return read_only(np.concatenate([prompt, response])), len(prompt)


def _take_claims(
    fields: Fields, ids: Ids, shape: Shape, align: Align
) -> tuple[list[_Claim], NDArray[np.int64]]:
    """Return the masks of a row, and the positions whose label is not the id it trains."""
    claims: list[_Claim] = []
    wrong = np.empty(0, dtype=np.int64)
    if align is Align.LABELS and not isinstance(fields.rest().get(LABELS), list):
        raise fields.missing(LABELS)
    if isinstance(fields.rest().get(LABELS), list):
        claim, wrong = _labels(fields, ids, shape, align)
        claims.append(claim)
    for name, is_response in MASKS.items():
        values = _take_numbers(fields, name)
        if values is not None:
            stands, why = _decide(fields, name, len(values), shape, align, is_response=is_response)
            weights, n = spread(values, len(ids), stands, 0.0), len(values)
            claims.append(_Claim(name=name, n=n, weights=weights, align=stands, why=why))
    if not claims:
        raise fields.missing("loss_mask")
    return claims, wrong


def _labels(
    fields: Fields, ids: Ids, shape: Shape, align: Align
) -> tuple[_Claim, NDArray[np.int64]]:
    labels = _take_ints(fields, LABELS)
    n = len(labels)
    if n not in (len(ids), len(ids) - 1):
        raise _misfit(fields, LABELS, n, shape)
    stands = _ASKED_OF_LABELS.get(align) or align_labels(labels, ids)
    if not fits_as_asked(n, shape, stands):
        raise _misfit(fields, LABELS, n, shape, asked=stands)
    trained = labels != IGNORED_LABEL
    weights = spread(trained.astype(np.float64), len(ids), stands, 0.0)
    meant = spread(labels.astype(np.float64), len(ids), stands, float(IGNORED_LABEL))
    wrong = np.flatnonzero((weights != 0) & (meant != ids))
    told = "the ids behind them" if stands is Align.SHIFTED else "the ids they stand at"
    return _Claim(name=LABELS, n=n, weights=weights, align=stands, why=f"labels are {told}"), wrong


def _decide(
    fields: Fields, name: str, n: int, shape: Shape, align: Align, *, is_response: bool
) -> tuple[Align, str]:
    """Return how a mask stands to the ids of its row, and what decided it."""
    if align not in (Align.AUTO, Align.LABELS):
        if not fits_as_asked(n, shape, align):
            raise _misfit(fields, name, n, shape, asked=align)
        return align, f"{name} is {align}-aligned, as asked"
    fits = candidates(n, shape, is_response=is_response)
    if not fits:
        raise _misfit(fields, name, n, shape)
    if len(fits) > 1:
        raise InputError(
            "I406",
            f"{name} has {n} values for {shape.n_ids} ids: it may be " + " or ".join(fits),
            place=fields.place(name),
            hint="say which: trajkit mask-check --align " + "|".join(fits),
        )
    of = {Align.INPUT: f"the row's {n} ids", Align.RESPONSE: f"the {n} ids of the response"}
    return fits[0], f"{name} has one value for each of " + of.get(fits[0], "the ids but the first")


def _misfit(
    fields: Fields, name: str, n: int, shape: Shape, *, asked: Align | None = None
) -> InputError:
    of = "" if shape.n_response is None else f", {shape.n_response} of them the response's"
    how = "" if asked is None else f" and --align {asked}"
    return InputError(
        "I407",
        f"{name} has {n} values for {shape.n_ids} ids{of}{how}",
        place=fields.place(name),
        hint=f"one value for each id, or for each of the response; {QUARANTINE_HINT}",
    )


def _one_claim(claims: list[_Claim], fields: Fields) -> _Claim:
    """Return the mask of a row: the only one, or what several agree on."""
    first = claims[0]
    if {claim.name for claim in claims} <= _TOGETHER:
        weights = np.prod([claim.weights for claim in claims], axis=0)
        why = "; ".join(claim.why for claim in claims)
        return replace(first, weights=weights, why=why)
    for other in claims[1:]:
        if ((other.weights != 0) != (first.weights != 0)).any():
            spot = int(np.argmax((other.weights != 0) != (first.weights != 0)))
            raise InputError(
                "I407",
                f"{first.name} and {other.name} disagree on id {spot}",
                place=fields.place(other.name),
                hint="keep the mask that the trainer reads",
            )
    return first


def _take_logprobs(fields: Fields, shape: Shape, mask: _Claim) -> tuple[Floats | None, int | None]:
    """Return [T] log-probs with NaN where there is none, and their number where it fits nothing."""
    there = [name for name in LOGPROBS if isinstance(fields.rest().get(name), list)]
    values = fields.take_logprobs(there[0]) if there else None
    if values is None:
        return None, None
    n, trained = len(values), mask.weights != 0
    stands = _stand(n, shape, mask)
    if stands is not None:
        return _floats(spread(values.astype(np.float64), shape.n_ids, stands, np.nan)), None
    if n == int(trained.sum()):  # those of the trained ids and no others
        found = np.full(shape.n_ids, np.nan)
        found[trained] = values
        return _floats(found), None
    return None, n


def _stand(n: int, shape: Shape, mask: _Claim) -> Align | None:
    """Return how other values of a row stand: like the mask where that fits, else by length."""
    n_response = mask.n if mask.align is Align.RESPONSE else shape.n_response
    fits = candidates(n, Shape(n_ids=shape.n_ids, n_response=n_response), is_response=False)
    own = Align.INPUT if mask.align is Align.LABELS else mask.align
    return own if own in fits else next(iter(fits), None)


def _take_rewards(fields: Fields, shape: Shape, mask: _Claim) -> Floats | None:
    there = fields.rest()
    lists = [name for name in MANY_MEANINGS if isinstance(there.get(name), list)]
    each = tuple(name for name in lists if _stand(len(there[name]), shape, mask) is not None)
    return _take_aligned(fields, (*REWARDS, *each), shape, mask)


def _is_odd(reward: object) -> bool:
    """Return whether a reward is no number but many, by name or in a list."""
    return isinstance(reward, list | dict)


def _take_aligned(
    fields: Fields, names: tuple[str, ...], shape: Shape, mask: _Claim
) -> Floats | None:
    """Return [T] values that stand beside the ids, NaN for the others; a number stays in `extra`.

    Raises:
        InputError: I407 when their number fits nothing.
    """
    there = [name for name in names if isinstance(fields.rest().get(name), list)]
    values = _take_numbers(fields, there[0]) if there else None
    if values is None:
        return None
    stands = _stand(len(values), shape, mask)
    if stands is None:
        raise _misfit(fields, there[0], len(values), shape)
    return _floats(spread(values, shape.n_ids, stands, np.nan))


def _take_numbers(fields: Fields, name: str) -> _Numbers | None:
    """Return a list of numbers or booleans as float64, NaN for null."""
    values = fields.take_list(name)
    if values is None:
        return None
    known = {float, int, bool, type(None)}
    if not set(map(type, values)) <= known:
        spot = next(i for i, value in enumerate(values) if type(value) not in known)
        raise fields.wrong(f"{name}[{spot}]", "a number", values[spot])
    if name in MASKS and None in values:
        raise fields.wrong(f"{name}[{values.index(None)}]", "a weight", None)
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise fields.wrong(name, "numbers that fit 64 bits", values[:3]) from None


def _take_ints(fields: Fields, name: str) -> NDArray[np.int64]:
    values = fields.take_list(name) or []
    for spot, value in enumerate(values):
        if type(value) is not int or not -(2**31) <= value < 2**31:
            raise fields.wrong(f"{name}[{spot}]", "an id or -100", value)
    return np.array(values, dtype=np.int64)


def _take_versions(fields: Fields) -> tuple[str, ...] | None:
    """Return the versions of the weights that sampled, as many as the source names."""
    for name in ("policy_version", "weight_version", "weight_versions", "versions"):
        value = fields.rest().get(name)
        values = value if isinstance(value, list) else [value]
        if values and all(type(entry) in (str, int) for entry in values):
            fields.take(name)
            return tuple(map(str, values))
    return None


def _take_truncated(fields: Fields) -> bool | None:
    for name in ("is_truncated", "truncated"):
        if isinstance(fields.rest().get(name), bool):
            return bool(fields.take(name))
    return True if fields.rest().get("status") == "truncated" else None


def _floats(values: _Numbers) -> Floats:
    narrow = values.astype(np.float32)
    narrow.setflags(write=False)
    return narrow
