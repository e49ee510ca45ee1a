"""Rules about the numbers beside a mask: lengths, labels, log-probs, rewards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trajkit.masks.findings import Severity, Spot
from trajkit.masks.rows import MaskedRow
from trajkit.records import Floats, Mask

_FAR = -1000.0
_ROUND_FILLS = (-100.0, -999.0)
_MOST = 0.9
_CONSTANT = 8
"""So many trained tokens with one and the same log-prob were not all that likely: one 0.0 is a
probability of 1, eight in an action and no other value are a filler."""
_FEW = 0.1
"""Zeros at the end of an action are odd where fewer of the other values are zero: low precision
rounds likely tokens to 0.0 everywhere."""


def mask_misfit(row: MaskedRow) -> Iterator[Spot]:
    """Yield what could not be brought to the ids."""
    for sentence in row.misfit:
        yield Spot(start=None, end=None, n_tokens=0, detail=sentence)


def wrong_label(row: MaskedRow) -> Iterator[Spot]:
    """Yield one spot where labels are other ids than those they train."""
    if len(row.wrong_labels):
        at = int(row.wrong_labels[0])
        n = len(row.wrong_labels)
        yield Spot(
            start=at, end=at + 1, n_tokens=n, detail=f"{n} of {int(row.trained.sum())} labels"
        )


def placeholder_logprobs(row: MaskedRow) -> Iterator[Spot]:
    """Yield trained tokens whose log-prob is a filler: far below any, or the same throughout."""
    values = row.logprobs
    if values is None or not row.runs:
        return
    far = row.trained & ((values <= _FAR) | np.isin(values, _ROUND_FILLS))
    if far.any():
        at = int(np.argmax(far))
        yield Spot(
            start=at,
            end=at + 1,
            n_tokens=int(far.sum()),
            detail=f"{int(far.sum())} of them, the first is {values[at]:g}",
        )
        return
    if _is_constant(values, row.trained) and not _is_greedy(row, 0, values):
        first = row.runs[0]
        value = values[row.trained][0]
        yield Spot(
            start=first[0],
            end=first[1],
            n_tokens=int(row.trained.sum()),
            detail=f"all {int(row.trained.sum())} trained tokens have {value:g}",
        )
        return
    for start, end in row.runs:
        part = values[start:end]
        if _is_constant(part, np.ones(end - start, dtype=np.bool_)) and not _is_greedy(
            row, start, part
        ):
            yield Spot(start=start, end=end, detail=f"all {end - start} tokens have {part[0]:g}")
    yield from _zero_tails(row, values)


def _zero_tails(row: MaskedRow, values: Floats) -> Iterator[Spot]:
    """Yield the longest tail of zeros at the end of an action that the other values make odd.

    One 0.0 is a probability of 1; at the end of an action it also fills a log-prob that is not
    there. That is a note where no other value is 0, and a warning for as many as `_CONSTANT`. A
    single zero counts at a stop alone.
    """
    zero = row.trained & (values == 0)
    tails = [
        (n, start, end)
        for start, end in row.runs
        if (n := _n_last(zero[start:end]))
        and (n > 1 or _is_stop(row, end - 1))
        and not (n == end - start >= _CONSTANT)
        and not _is_greedy(row, start, values[end - n : end])
    ]
    if not tails:
        return
    n_tails = sum(n for n, _, _ in tails)
    n_others = int((row.trained & ~np.isnan(values)).sum()) - n_tails
    n_zeros = int(zero.sum()) - n_tails
    n, start, end = max(tails)
    is_long = n >= _CONSTANT
    is_odd = n_zeros < _FEW * n_others if is_long else not n_zeros
    if (is_odd and n_others >= _CONSTANT) or (not n_others and n > 1):
        yield Spot(
            start=end - n,
            end=end,
            anchor=start,
            detail=f"the last {n} of {end - start} are 0, and {n_zeros} of {n_others} other values",
            severity=Severity.WARNING if is_long and not n_zeros else Severity.NOTE,
        )


def _n_last(where: Mask) -> int:
    """Return how many values at the end are True."""
    others = np.flatnonzero(~where)
    return len(where) - (int(others[-1]) + 1 if len(others) else 0)


def _is_stop(row: MaskedRow, at: int) -> bool:
    return row.marks is not None and row.marks.is_stop(int(row.token_ids[at]))


def logprobs_off_mask(row: MaskedRow) -> Iterator[Spot]:
    """Yield one spot where log-probs stand beside the mask, or leave trained tokens without one."""
    values = row.logprobs
    if values is None or not row.trained.any():
        return
    known = ~np.isnan(values)
    said = known & (values != 0) & (values > _FAR)
    bare = row.trained & ~known & ~row.inserted
    beside = said & ~row.trained
    if not row.is_claimed or _is_computed(values, beside, row.trained):
        beside = np.zeros_like(beside)
    wrong: NDArray[np.bool_] = beside | (bare if known[row.trained].any() else beside)
    if wrong.any():
        at = int(np.argmax(wrong))
        yield Spot(
            start=at,
            end=at + 1,
            n_tokens=int(wrong.sum()),
            detail=f"{int(beside.sum())} stand off the mask, "
            f"{int((bare & wrong).sum())} trained tokens have none",
        )


def reward_off_end(row: MaskedRow) -> Iterator[Spot]:
    """Yield token-level rewards that are lost, and a single one that stands early."""
    if row.token_rewards is None or not row.runs:
        return
    given = np.nan_to_num(row.token_rewards) != 0
    spots = np.flatnonzero(given)
    lost = np.flatnonzero(given & ~row.trained)
    if len(lost):
        at = int(lost[0])
        yield Spot(
            start=at, end=at + 1, n_tokens=len(lost), detail=f"{len(lost)} stand off the mask"
        )
    elif len(spots) == 1 and int(spots[0]) + 1 not in {end for _, end in row.runs}:
        at = int(spots[0])
        end = next(end for start, end in row.runs if start <= at < end)
        yield Spot(start=at, end=at + 1, detail=f"{end - 1 - at} tokens before its action ends")


def _is_computed(values: Floats, beside: Mask, trained: Mask) -> bool:
    """Return whether a whole row has log-probs, of all sizes: they are computed, not recorded."""
    others = values[1:][~trained[1:]]
    is_everywhere = (
        len(others) > 0
        and not np.isnan(values[1:]).any()
        and int(beside.sum()) > _MOST * len(others)
    )
    return is_everywhere and not bool((others == others[0]).all())


def _is_constant(values: Floats, where: Mask) -> bool:
    """Return whether many values are one and the same."""
    known = values[where & ~np.isnan(values)]
    return len(known) >= _CONSTANT and bool((known == known[0]).all())


def _is_greedy(row: MaskedRow, at: int, values: Floats) -> bool:
    """Return whether zeros are what sampling at temperature 0 gives."""
    return row.part_at(at).temperature == 0 and not np.nan_to_num(values).any()
