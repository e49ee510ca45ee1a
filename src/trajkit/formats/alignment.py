"""Which token a value of a row speaks of: four conventions brought to one, index t for token t.

    input      one value for each id
    response   one for each id of the response, which is the end of the ids
    shifted    one for each id but the first: value t speaks of id t + 1
    labels     one id for each id, -100 where nothing is trained

The length decides where it can; where two conventions fit, nobody guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.errors import UsageProblem
from trajkit.records import Ids, MaskRun

Values: TypeAlias = NDArray[np.float64]
IGNORED_LABEL = -100


class Align(StrEnum):
    """How the values of a row stand to its ids."""

    AUTO = "auto"
    INPUT = "input"
    RESPONSE = "response"
    SHIFTED = "shifted"
    LABELS = "labels"


def align_named(name: Align | str) -> Align:
    """Return the convention of that name; U103 where there is none."""
    try:
        return Align(name)
    except ValueError:
        known = "|".join(Align)
        raise UsageProblem("U103", f"--align expects {known}, got {name}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The lengths that decide.

    Attributes:
        n_ids: T, ids of the row.
        n_response: ids of its response; `None` where the row does not say.
    """

    n_ids: int
    n_response: int | None


def candidates(n: int, shape: Shape, *, is_response: bool) -> tuple[Align, ...]:
    """Return the conventions that n values of a row fit; none when the length is wrong.

    Args:
        n: how many values there are.
        shape: how many ids.
        is_response: whether the values are called the response's: in a row that does not say where
            its response begins they are the last n.
    """
    n_response = shape.n_response
    if is_response and n_response is not None and n == n_response:
        return (Align.RESPONSE,)
    fits = [Align.INPUT] if n == shape.n_ids else []
    if n_response is None:
        if is_response and n < shape.n_ids:
            fits.append(Align.RESPONSE)
    elif n == n_response < shape.n_ids:
        fits.append(Align.RESPONSE)
    if n == shape.n_ids - 1:
        fits.append(Align.SHIFTED)
    return tuple(fits)


def fits_as_asked(n: int, shape: Shape, align: Align) -> bool:
    """Return whether n values can stand as `--align` says; `shifted` may repeat a last value."""
    match align:
        case Align.INPUT | Align.LABELS:
            return n == shape.n_ids
        case Align.RESPONSE:
            return n == shape.n_response or (shape.n_response is None and n <= shape.n_ids)
        case Align.SHIFTED:
            return n in (shape.n_ids - 1, shape.n_ids)
        case Align.AUTO:
            return False


def spread(values: Values, n_ids: int, align: Align, fill: float) -> Values:
    """Return [T] the values brought to the ids they speak of, `fill` for the others."""
    spread_out = np.full(n_ids, fill, dtype=np.float64)
    match align:
        case Align.INPUT | Align.LABELS:
            spread_out[:] = values
        case Align.RESPONSE:
            spread_out[n_ids - len(values) :] = values
        case Align.SHIFTED:
            spread_out[1:] = values[: n_ids - 1]
        case Align.AUTO:
            raise ValueError("auto is no place")
    return spread_out


def align_labels(labels: NDArray[np.int64], ids: Ids) -> Align:
    """Return whether labels are the ids they stand at, or the ids behind those.

    What agrees with more ids wins; a tie is the usual convention, `labels`.
    """
    trained = labels != IGNORED_LABEL
    n = len(labels)
    if n == len(ids) - 1:
        return Align.SHIFTED
    here = int((labels == ids)[trained].sum())
    ahead = int((labels[: n - 1] == ids[1:])[trained[: n - 1]].sum())
    return Align.SHIFTED if ahead > here else Align.LABELS


def trained_runs(weights: Values) -> list[tuple[int, int]]:
    """Return the half-open spans of neighbouring tokens that are trained."""
    edges = np.diff(np.concatenate(([False], weights != 0, [False])).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def mask_runs(weights: Values) -> tuple[MaskRun, ...]:
    """Return the runs of equal weight."""
    if not len(weights):
        return ()
    edges = [0, *(np.flatnonzero(np.diff(weights)) + 1).tolist(), len(weights)]
    return tuple(MaskRun(left, right, float(weights[left])) for left, right in pairwise(edges))
