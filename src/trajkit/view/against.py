"""Two tokenisations of the same bytes: where each cuts them, and where both do.

What is encoded anew is a stretch of one side of one step, by itself: no token of either side can
reach over the border between action and context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Ids
from trajkit.sequence import TokenSequence
from trajkit.tokenizer import Tokenizer
from trajkit.view.cells import units_of
from trajkit.view.glyphs import HIDDEN
from trajkit.view.model import Line, View, pieces_of

Marks = tuple[tuple[str, str, str], ...]
_START, _IN, _SEVERAL, _DIFFERS, _OTHER_ID = "└", "─", "+", "≠", "≈"
LEGEND = (
    f"{_START}{_IN} a token",
    f"{_SEVERAL} several in one character",
    f"{_DIFFERS} other borders",
    f"{_OTHER_ID} other id, where any id is the same",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cuts:
    """A sequence cut twice, over its bytes.

    Attributes:
        at: [T + 1] where each recorded token begins, and the end.
        other: [N] where each other token begins; compared stretches only.
        differs, other_id: [T] whether a recorded token has other borders, or another id, there.
        is_compared: [T] whether the other side is known.
    """

    at: NDArray[np.int64]
    other: NDArray[np.int64]
    differs: NDArray[np.bool_]
    other_id: NDArray[np.bool_]
    is_compared: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two tokenizers cut what a view shows.

    Attributes:
        name: of the other tokenizer.
        n_recorded, n_other: tokens that were compared, on each side.
        n_same_borders: recorded tokens that the other side has too, with any id.
        n_same_ids: those with the same id.
        n_common: borders inside stretches that both sides have, of `n_borders` recorded ones.
        n_left_out: recorded tokens that were not compared, by the reason.
    """

    name: str
    n_recorded: int
    n_other: int
    n_same_borders: int
    n_same_ids: int
    n_common: int
    n_borders: int
    n_left_out: dict[str, int]
    cuts: dict[int, _Cuts]

    def strips(self, line: Line, ids: Ids) -> Iterator[tuple[str, Marks]]:
        """Yield (label, marks) of each strip under a line; none where it was not compared."""
        cuts = self.cuts.get(id(ids))
        if cuts is None or line.token_start is None or not cuts.is_compared[line.token_start]:
            return
        start = int(cuts.at[line.token_start]) + line.skip
        units = list(units_of(line.text))
        ends = start + np.cumsum([n for _, n in units])
        begins = np.concatenate(([start], ends[:-1]))
        for label, edges in (("record", cuts.at), ("against", cuts.other)):
            signs = _signs(edges, begins, ends)
            yield (
                label,
                tuple((text, sign, _IN) for (text, _), sign in zip(units, signs, strict=True)),
            )
        first = np.searchsorted(cuts.at, begins, side="right") - 1
        last = np.maximum(first + 1, np.searchsorted(cuts.at, ends, side="left"))
        differs, other_id = (
            np.concatenate(([0], np.cumsum(each))) for each in (cuts.differs, cuts.other_id)
        )
        renamed_sign = _OTHER_ID if self.n_same_ids else " "  # another vocabulary: all are
        marks = [
            _DIFFERS if more else renamed_sign if renamed else " "
            for more, renamed in zip(
                (differs[last] - differs[first]).tolist(),
                (other_id[last] - other_id[first]).tolist(),
                strict=True,
            )
        ]
        yield "", tuple((text, sign, sign) for (text, _), sign in zip(units, marks, strict=True))


def _signs(
    edges: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[str]:
    """Return the sign of each unit `[begins, ends)`: does a token begin there, or several?"""
    at, behind = (np.searchsorted(edges, each, side="left") for each in (begins, ends))
    n = behind - at
    is_start = edges[np.minimum(at, len(edges) - 1)] == begins
    return [
        _SEVERAL if many > 1 or (many and not starts) else _START if many else _IN
        for many, starts in zip(n.tolist(), is_start.tolist(), strict=True)
    ]


def compared(view: View, tokenizer: Tokenizer, other: Tokenizer) -> Comparison:
    """Return how another tokenizer cuts the text of a view's own steps.

    Stretches that are no text by themselves (a character cut at their end), that the other
    tokenizer changes, or that hold a hidden token, are left out and counted.

    Args:
        view: what is shown.
        tokenizer: of the record.
        other: the one to compare with.
    """
    left_out: dict[str, int] = {}
    cuts: dict[int, _Cuts] = {}
    sums = np.zeros(6, dtype=np.int64)
    for sequence in view.sequences:
        cuts[id(sequence.token_ids)], counts = _cut(sequence, tokenizer, other, left_out)
        sums += counts
    n_recorded, n_other, n_same_borders, n_same_ids, n_common, n_borders = sums.tolist()
    return Comparison(
        name=other.name,
        n_recorded=n_recorded,
        n_other=n_other,
        n_same_borders=n_same_borders,
        n_same_ids=n_same_ids,
        n_common=n_common,
        n_borders=n_borders,
        n_left_out=left_out,
        cuts=cuts,
    )


def _cut(
    sequence: TokenSequence, tokenizer: Tokenizer, other: Tokenizer, left_out: dict[str, int]
) -> tuple[_Cuts, NDArray[np.int64]]:
    ids = sequence.token_ids
    pieces = pieces_of(ids, tokenizer)
    at = np.concatenate(([0], np.cumsum([len(piece) for piece in pieces]))).astype(np.int64)
    differs, other_id, is_compared = (np.zeros(len(ids), dtype=np.bool_) for _ in range(3))
    edges: list[NDArray[np.int64]] = []
    counts = np.zeros(6, dtype=np.int64)
    for start, end, theirs in _encoded(sequence, pieces, other, left_out):
        their_ids, their_edges = theirs
        theirs_at = at[start] + their_edges
        place = np.searchsorted(theirs_at, at[start:end])
        same = (theirs_at[place] == at[start:end]) & (
            theirs_at[np.minimum(place + 1, len(their_ids))] == at[start + 1 : end + 1]
        )
        same_id = same & (their_ids[np.minimum(place, len(their_ids) - 1)] == ids[start:end])
        differs[start:end], other_id[start:end], is_compared[start:end] = ~same, ~same_id, True
        edges.append(theirs_at[:-1])
        n_common = len(np.intersect1d(at[start + 1 : end], theirs_at[1:-1]))
        sizes = end - start, len(their_ids), same.sum(), same_id.sum(), n_common, end - start - 1
        counts += np.array(sizes, dtype=np.int64)
    found = np.concatenate([*edges, at[-1:]])  # the end, so that there always is one
    cuts = _Cuts(at=at, other=found, differs=differs, other_id=other_id, is_compared=is_compared)
    return cuts, counts


def _encoded(
    sequence: TokenSequence,
    pieces: Sequence[bytes],
    other: Tokenizer,
    left_out: dict[str, int],
) -> Iterator[tuple[int, int, tuple[Ids, NDArray[np.int64]]]]:
    """Yield (first token, end, (other ids, where they begin and end)) of each stretch."""
    stretches, texts = [], []
    for start, end in _stretches(sequence):
        if (sequence.token_ids[start:end] == HIDDEN).any():
            _count(left_out, "not to be shown", end - start)
            continue
        try:
            text = b"".join(pieces[start:end]).decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        if text:
            texts.append(text)
            stretches.append((start, end))
        else:
            _count(left_out, "no text by itself", end - start)
    for (start, end), text, ids in zip(stretches, texts, other.encode_batch(texts), strict=True):
        edges = _edges(text.encode(), other.pieces(ids))
        if edges is None:
            _count(left_out, f"changed by {other.name}", end - start)
        else:
            yield start, end, (ids, edges)


def _count(left_out: dict[str, int], why: str, n: int) -> None:
    left_out[why] = left_out.get(why, 0) + n


def _stretches(sequence: TokenSequence) -> Iterator[tuple[int, int]]:
    """Yield `[start, end)` of each run of tokens of one side of one step."""
    own = [span for span in sequence.spans if span.step_index is not None]
    borders = [0] + [
        number
        for number, (left, right) in enumerate(pairwise(own), start=1)
        if (left.step_index, left.is_action) != (right.step_index, right.is_action)
    ]
    for first, last in pairwise([*borders, len(own)] if own else []):
        yield own[first].start, own[last - 1].end


def _edges(data: bytes, pieces: Sequence[bytes]) -> NDArray[np.int64] | None:
    """Return where pieces begin, and where they end, in the bytes they spell; `None` if others."""
    found = b"".join(pieces)
    n_more = len(found) - len(data)
    if n_more not in (0, 1) or found[n_more:] != data or found[:n_more].strip(b" "):
        return None
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64) - n_more
    return np.concatenate(([0], np.maximum(ends, 0)))
