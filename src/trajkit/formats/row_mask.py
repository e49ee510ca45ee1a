"""The mask of a pre-tokenised row: what several columns say, brought to one weight for each id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

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
from trajkit.formats.datum import TARGETS, WEIGHTS
from trajkit.formats.fields import Fields
from trajkit.formats.row_keys import GATES, LABELS, MASKS, NO_LOSS, TOGETHER
from trajkit.records import Ids
from trajkit.safe.faults import QUARANTINE_HINT

_ASKED_OF_LABELS = {
    Align.INPUT: Align.LABELS,
    Align.LABELS: Align.LABELS,
    Align.SHIFTED: Align.SHIFTED,
}
Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One mask of a row, brought to its ids."""

    name: str
    n: int
    weights: Values
    align: Align
    why: str


def take_mask(
    fields: Fields, ids: Ids, shape: Shape, align: Align
) -> tuple[Claim, NDArray[np.int64]]:
    """Return the mask of a row, and the positions whose label is not the id it trains.

    Raises:
        InputError: I201 for a value that is no weight, I406 when the mask fits two conventions,
            I407 when it fits none, masks contradict each other, or one of them takes tokens out
            that nobody says is multiplied.
    """
    claims, wrong = _take_claims(fields, ids, shape, align)
    mask = _one_claim(claims, fields)
    _refuse_unknown(fields, mask, shape)
    return mask, wrong


def _take_claims(
    fields: Fields, ids: Ids, shape: Shape, align: Align
) -> tuple[list[Claim], NDArray[np.int64]]:
    """Return the masks of a row, and the positions whose label is not the id it trains."""
    claims: list[Claim] = []
    wrong = np.empty(0, dtype=np.int64)
    if align is Align.LABELS and not isinstance(fields.rest().get(LABELS), list):
        raise fields.missing(LABELS)
    if isinstance(fields.rest().get(LABELS), list):
        claim, wrong = _labels(fields, ids, shape, align)
        claims.append(claim)
    has_targets = isinstance(fields.rest().get(TARGETS), list)
    gates = {gate: True for gate, other in GATES.items() if fields.rest().get(other) is not None}
    weights_of = {WEIGHTS: False} if has_targets else {}
    for name, is_response in (MASKS | gates | weights_of).items():
        values = _take_weights(fields, name)
        if values is not None:
            stands, why = _decide(fields, name, len(values), shape, align, is_response=is_response)
            weights, n = spread(values, len(ids), stands, 0.0), len(values)
            claims.append(Claim(name=name, n=n, weights=weights, align=stands, why=why))
    if not claims:
        raise fields.missing("loss_mask")
    if has_targets:
        wrong = _wrong_targets(fields, ids, shape, claims[0].weights)
    return claims, wrong


def _wrong_targets(fields: Fields, ids: Ids, shape: Shape, weights: Values) -> NDArray[np.int64]:
    """Return the trained positions whose target is not the id that the row goes on with."""
    targets = _take_ints(fields, TARGETS)
    if len(targets) != len(ids) - 1:
        raise misfit_of(fields, TARGETS, len(targets), shape)
    return np.flatnonzero((weights[1:] != 0) & (targets != ids[1:])) + 1


def _labels(
    fields: Fields, ids: Ids, shape: Shape, align: Align
) -> tuple[Claim, NDArray[np.int64]]:
    labels = _take_ints(fields, LABELS)
    n = len(labels)
    if n not in (len(ids), len(ids) - 1):
        raise misfit_of(fields, LABELS, n, shape)
    stands = _ASKED_OF_LABELS.get(align) or align_labels(labels, ids)
    if not fits_as_asked(n, shape, stands):
        raise misfit_of(fields, LABELS, n, shape, asked=stands)
    trained = labels != IGNORED_LABEL
    weights = spread(trained.astype(np.float64), len(ids), stands, 0.0)
    meant = spread(labels.astype(np.float64), len(ids), stands, float(IGNORED_LABEL))
    wrong = np.flatnonzero((weights != 0) & (meant != ids))
    told = "the ids behind them" if stands is Align.SHIFTED else "the ids they stand at"
    return Claim(name=LABELS, n=n, weights=weights, align=stands, why=f"labels are {told}"), wrong


def _decide(
    fields: Fields, name: str, n: int, shape: Shape, align: Align, *, is_response: bool
) -> tuple[Align, str]:
    """Return how a mask stands to the ids of its row, and what decided it."""
    if align not in (Align.AUTO, Align.LABELS):
        if not fits_as_asked(n, shape, align):
            raise misfit_of(fields, name, n, shape, asked=align)
        return align, f"{name} is {align}-aligned, as asked"
    fits = candidates(n, shape, is_response=is_response)
    if not fits:
        raise misfit_of(fields, name, n, shape)
    if len(fits) > 1:
        raise InputError(
            "I406",
            f"{name} has {n} values for {shape.n_ids} ids: it may be " + " or ".join(fits),
            place=fields.place(name),
            hint="say which: --align " + "|".join(fits),
        )
    of = {Align.INPUT: f"the row's {n} ids", Align.RESPONSE: f"the {n} ids of the response"}
    return fits[0], f"{name} has one value for each of " + of.get(fits[0], "the ids but the first")


def misfit_of(
    fields: Fields, name: str, n: int, shape: Shape, *, asked: Align | None = None
) -> InputError:
    """Return I407 for a column whose number of values fits nothing, or not what was asked."""
    of = "" if shape.n_response is None else f", {shape.n_response} of them the response's"
    how = "" if asked is None else f" and --align {asked}"
    return InputError(
        "I407",
        f"{name} has {n} values for {shape.n_ids} ids{of}{how}",
        place=fields.place(name),
        hint=f"one value for each id, or for each of the response; {QUARANTINE_HINT}",
    )


def _one_claim(claims: list[Claim], fields: Fields) -> Claim:
    """Return the mask of a row: the only one, or what several agree on."""
    first = claims[0]
    if any({claim.name for claim in claims} <= names for names in TOGETHER):
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


def take_numbers(fields: Fields, name: str) -> Numbers | None:
    """Return a list of numbers or booleans as float64, NaN for null."""
    values = fields.take_list(name)
    if values is None:
        return None
    known = {float, int, bool, type(None)}
    if not set(map(type, values)) <= known:
        spot = next(i for i, value in enumerate(values) if type(value) not in known)
        raise fields.wrong(f"{name}[{spot}]", "a number", values[spot])
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise fields.wrong(name, "numbers that fit 64 bits", values[:3]) from None


def _take_weights(fields: Fields, name: str) -> Numbers | None:
    """Return the values of a mask, each from 0 to 1."""
    weights = take_numbers(fields, name)
    if weights is None:
        return None
    wrong = np.flatnonzero(~((weights >= 0) & (weights <= 1)))
    if len(wrong):
        spot = int(wrong[0])
        found = "null" if np.isnan(weights[spot]) else f"{weights[spot]:g}"
        raise InputError(
            "I201",
            f"expected a weight from 0 to 1, found {found}",
            place=fields.place(f"{name}[{spot}]"),
            hint=f"ids that are not trained have 0; {QUARANTINE_HINT}",
        )
    return weights


def _refuse_unknown(fields: Fields, mask: Claim, shape: Shape) -> None:
    """Raise I407 for a mask of another name that takes trained ids out, were it multiplied."""
    for name, values in fields.rest().items():
        is_mask = name.endswith(("_mask", "_masks")) and not name.endswith(NO_LOSS)
        if not is_mask or not isinstance(values, list) or not values:
            continue
        fits = candidates(len(values), shape, is_response=True)
        if not fits or not all(type(v) in (int, bool, float) and v in (0, 1) for v in values):
            continue
        stands = mask.align if len(values) == mask.n else fits[0]
        gate = spread(np.array(values, dtype=np.float64), shape.n_ids, stands, 1.0)
        n = int(((gate == 0) & (mask.weights != 0)).sum())
        if n:
            raise InputError(
                "I407",
                f"{name} is 0 at {n} ids that {mask.name} trains, and it is no mask that is known",
                place=fields.place(name),
                hint=f"write what is trained into {mask.name} alone, or leave {name} out",
            )


def _take_ints(fields: Fields, name: str) -> NDArray[np.int64]:
    """Return labels; whole numbers that a table made floats are the same (they are no ids)."""
    values = fields.take_list(name) or []
    for spot, value in enumerate(values):
        is_whole = type(value) is int or (type(value) is float and value.is_integer())
        if not is_whole or not -(2**31) <= value < 2**31:
            raise fields.wrong(f"{name}[{spot}]", "an id or -100", value)
    return np.array(values, dtype=np.int64)
