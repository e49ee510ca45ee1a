"""Two lists of ids into the smallest spans in which they differ.

Everything here is linear in what it compares: equal stretches are numpy comparisons, and a search
for the place where two lists go on alike grows with the distance to that place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Ids
from trajkit.spelling import Spelling

_Cell: TypeAlias = tuple[int, int, int, int]
"""Half-open spans of both sides: left start and end, right start and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Where two id lists differ: half-open spans on both sides, and the byte it begins at."""

    left_start: int
    left_end: int
    right_start: int
    right_end: int
    byte_start: int


def same_ids(left: Ids, right: Ids) -> bool:
    """Return whether both lists are equal."""
    return len(left) == len(right) and bool((left == right).all())


def common_prefix(left: Ids, right: Ids) -> int:
    """Return how many ids both lists begin with, looking little further than those."""
    n = min(len(left), len(right))
    start, size = 0, 256
    while start < n:
        stop = min(start + size, n)
        differ = left[start:stop] != right[start:stop]
        if differ.any():
            return start + int(differ.argmax())
        start, size = stop, 2 * size
    return n


def next_agreement(left: Ids, right: Ids, n_agree: int = 4) -> tuple[int, int] | None:
    """Return the ids each side spends before both hold the same `n_agree` ids: the fewest in all.

    `None` when they never do.
    """
    window = 64
    while True:
        seen_all = window >= max(len(left), len(right))
        met = _nearest_match(left[:window], right[:window], n_agree)
        # what begins beyond the window would cost more than this
        if seen_all or (met is not None and sum(met) <= window - n_agree):
            return met
        window *= 4


def _nearest_match(left: Ids, right: Ids, n: int) -> tuple[int, int] | None:
    if min(len(left), len(right)) < n:
        return None
    left_runs = np.lib.stride_tricks.sliding_window_view(left, n)
    right_runs = np.lib.stride_tricks.sliding_window_view(right, n)
    left_keys, firsts = np.unique(_keys(left_runs), return_index=True)
    right_keys = _keys(right_runs)
    spots = np.minimum(np.searchsorted(left_keys, right_keys), len(left_keys) - 1)
    found = np.flatnonzero(left_keys[spots] == right_keys)
    partners = firsts[spots[found]]
    real = (left_runs[partners] == right_runs[found]).all(axis=1)  # keys may collide
    if not real.any():
        return None
    best = int(np.argmin(np.where(real, partners + found, np.iinfo(np.int64).max)))
    return int(partners[best]), int(found[best])


def _keys(runs: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a 64-bit key per run; equal runs have equal keys."""
    keys = np.zeros(len(runs), dtype=np.uint64)
    for column in range(runs.shape[1]):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + runs[:, column].astype(np.uint64)
    return keys


def differing_regions(
    left: Ids, right: Ids, left_spelt: Spelling, right_spelt: Spelling
) -> tuple[Region, ...]:
    """Return the smallest spans in which two id lists differ, ascending.

    Args:
        left: [N] ids of one side.
        right: [M] ids of the other.
        left_spelt: the bytes of each left id.
        right_spelt: the bytes of each right id.

    Where both sides spell the same bytes the regions are unique and minimal: each begins and ends
    where both sides have a token border at the same byte, and holds no such border inside. Bytes of
    the left side that are no UTF-8 count as the U+FFFD that decoding made of them. Where the sides
    spell other text, a region goes on until a few ids in a row agree again.
    """
    start, behind = _alike(left, right, left_spelt, right_spelt)
    cut = slice(start, len(left) - behind), slice(start, len(right) - behind)
    left, right = left[cut[0]], right[cut[1]]
    mine, theirs = left_spelt[cut[0]], right_spelt[cut[1]]
    text, places = _as_decoded(mine.data, mine.ends)
    cells: Iterator[_Cell]
    if text == theirs.data:
        cells = _unshared_cells(left, right, places, theirs.ends * _SCALE)
    else:
        cells = _gaps(left, right, mine, theirs)
    return tuple(
        Region(
            left_start=start + a,
            left_end=start + b,
            right_start=start + c,
            right_end=start + d,
            byte_start=left_spelt.n_bytes(start + a),
        )
        for a, b, c, d in (_trimmed(left, right, cell) for cell in cells)
    )


def _alike(left: Ids, right: Ids, left_spelt: Spelling, right_spelt: Spelling) -> tuple[int, int]:
    """Return how many ids at both ends need no look: alike, and of whole characters.

    Where the left side's bytes are no UTF-8 that is none: what a broken character becomes depends
    on the bytes around it. One id that is alike is left at each end: an empty token belongs to it.
    """
    if left_spelt.data != right_spelt.data or not _is_utf8(left_spelt.data):
        return 0, 0
    ahead = max(common_prefix(left, right) - 1, 0)
    n = min(len(left), len(right)) - ahead
    behind = common_prefix(left[len(left) - n :][::-1], right[len(right) - n :][::-1])
    while ahead and not len(left_spelt[ahead]):
        ahead -= 1
    return ahead, max(behind - 1, 0)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


_SCALE = 4
"""Places inside a replaced character lie between the multiples of this: they match nothing."""


def _as_decoded(data: bytes, ends: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
    """Return bytes as decoding and encoding leave them, and each token end's place in those.

    Places are scaled by `_SCALE`; a token that ends inside a replaced character has one that no
    token of the other side can have.
    """
    bad = _replaced(data)
    if not bad:
        return data, ends * _SCALE
    starts, stops = np.array(bad).T
    grown = np.concatenate(([0], np.cumsum(3 - (stops - starts))))
    places = (ends + grown[np.searchsorted(stops, ends, side="right")]) * _SCALE
    holder = np.searchsorted(starts, ends, side="left") - 1
    inside = (holder >= 0) & (ends > starts[holder]) & (ends < stops[holder])
    first = (starts + grown[:-1])[holder] * _SCALE
    places[inside] = (first + ends - starts[holder])[inside]
    return data.decode("utf-8", errors="replace").encode("utf-8"), places


def _replaced(data: bytes) -> list[tuple[int, int]]:
    """Return the byte spans that lossy decoding replaces by one U+FFFD each."""
    shown = data.decode("utf-8", errors="surrogateescape")  # one code point per byte that is bad
    points = np.frombuffer(shown.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    is_bad = (points >= 0xDC80) & (points <= 0xDCFF)
    if not is_bad.any():
        return []
    widths = 1 + (points >= 0x80) + (points >= 0x800).astype(np.int64) + (points >= 0x10000)
    widths[is_bad] = 1
    spans: list[tuple[int, int]] = []
    behind = 0
    for start in (np.cumsum(widths) - widths)[is_bad].tolist():
        if start < behind:
            continue
        try:
            data[start : start + 4].decode("utf-8")
        except UnicodeDecodeError as problem:
            behind = start + problem.end
            spans.append((start, behind))
    return spans


def _unshared_cells(
    left: Ids, right: Ids, left_places: NDArray[np.int64], right_places: NDArray[np.int64]
) -> Iterator[_Cell]:
    """Yield the cells that differ, a cell being what lies between two shared borders."""
    ends = np.concatenate((left_places[-1:], right_places[-1:]))
    borders = np.union1d(np.intersect1d(left_places, right_places), ends)
    # ids up to and including each shared border; an empty token belongs to the border before it
    left_stops = np.searchsorted(left_places, borders, side="right")
    right_stops = np.searchsorted(right_places, borders, side="right")
    left_starts = np.concatenate(([0], left_stops))[:-1]
    right_starts = np.concatenate(([0], right_stops))[:-1]
    is_pair = (left_stops - left_starts == 1) & (right_stops - right_starts == 1)
    is_pair[is_pair] = left[left_starts[is_pair]] == right[right_starts[is_pair]]
    cells = np.stack([left_starts, left_stops, right_starts, right_stops])
    for a, b, c, d in cells[:, ~is_pair].T.tolist():  # most cells are one token, the same on both
        if not same_ids(left[a:b], right[c:d]):
            yield a, b, c, d


def _gaps(left: Ids, right: Ids, left_spelt: Spelling, right_spelt: Spelling) -> Iterator[_Cell]:
    """Yield what lies between agreements: the same bytes spelt otherwise, or other bytes."""
    a = b = common_prefix(left, right)
    behind = common_prefix(left[a:][::-1], right[b:][::-1])
    left, right = left[: len(left) - behind], right[: len(right) - behind]
    while a < len(left) or b < len(right):
        mine = (left_spelt[k] for k in range(a, len(left)))
        other = (right_spelt[k] for k in range(b, len(right)))
        i, j = (
            _same_bytes(mine, other)
            or next_agreement(left[a:], right[b:])
            or (len(left) - a, len(right) - b)
        )
        yield a, a + i, b, b + j
        same = common_prefix(left[a + i :], right[b + j :])
        a, b = a + i + same, b + j + same


def _same_bytes(left: Iterator[bytes], right: Iterator[bytes]) -> tuple[int, int] | None:
    """Return the fewest ids of each side that spell the same bytes, `None` when none do."""
    sides, spent = (left, right), [0, 0]
    ahead, surplus = 1, b""
    while True:
        behind = 1 - ahead
        piece = next(sides[behind], None)
        if piece is None:
            return None
        spent[behind] += 1
        if piece.startswith(surplus):
            ahead, surplus = behind, piece[len(surplus) :]
        elif surplus.startswith(piece):
            surplus = surplus[len(piece) :]
        else:
            return None
        if not surplus:
            return spent[0], spent[1]


def _trimmed(left: Ids, right: Ids, cell: _Cell) -> _Cell:
    """Return a cell without the ids both its sides begin or end with: empty tokens."""
    a, b, c, d = cell
    ahead = common_prefix(left[a:b], right[c:d])
    a, c = a + ahead, c + ahead
    behind = common_prefix(left[a:b][::-1], right[c:d][::-1])
    return a, b - behind, c, d - behind
