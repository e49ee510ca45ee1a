"""Planted differences come back exactly, and whatever the input, regions obey their laws."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer_builders import TINY
from trajkit.align import Region, differing_regions
from trajkit.records import ids_array
from trajkit.spelling import Spelling
from trajkit.tokenizer import Tokenizer

ALPHABET = [*"abc", "é", "東", "🙂"]
REPLACED = "\ufffd".encode()
BAD = [b"\xff", b"\xe6\x9d", b"\xf0\x9f\x98", b"\x80", b"\xc3"]


def spelling(draw, data: bytes, cuts: set[int]) -> list[bytes]:
    """Return bytes as pieces, cut at some places."""
    borders = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


@st.composite
def planted(draw, *, with_bad: bool = False) -> Any:
    """Return two spellings, and the spans that were planted: no border inside is shared."""
    left: list[bytes] = []
    right: list[bytes] = []
    spans = []
    for kind in draw(st.lists(st.sampled_from(["same", "respelt", "bad"]), max_size=12)):
        if kind == "bad" and with_bad:
            data = draw(st.sampled_from(BAD))
            mine = spelling(draw, data, draw(st.sets(st.integers(1, 3))) & set(range(1, len(data))))
            other = spelling(draw, REPLACED, draw(st.sets(st.integers(1, 2))))
        elif kind == "respelt":
            data = draw(st.text(ALPHABET, min_size=2, max_size=6)).encode()
            places = draw(st.permutations(range(1, len(data))))
            first = draw(st.integers(1, len(places)))
            second = draw(st.integers(first, len(places)))
            mine = spelling(draw, data, set(places[:first]))
            other = spelling(draw, data, set(places[first:second]))
        else:
            mine = other = [draw(st.text(ALPHABET, min_size=1, max_size=3)).encode()]
        if mine != other:
            at = len(left), len(left) + len(mine), len(right), len(right) + len(other)
            spans.append((*at, len(b"".join(left))))
        # bad bytes must not grow into a character with what stands beside them
        left += [*mine, b"."]
        right += [*other, b"."]
    return left, right, spans


def found(left: list[bytes], right: list[bytes]) -> tuple[Region, ...]:
    known: dict[bytes, int] = {}
    a, b = (ids_array([known.setdefault(p, len(known)) for p in side]) for side in (left, right))
    return differing_regions(a, b, Spelling.of(left), Spelling.of(right))


def spans_of(regions: tuple[Region, ...]) -> list[tuple[int, int, int, int, int]]:
    return [(r.left_start, r.left_end, r.right_start, r.right_end, r.byte_start) for r in regions]


@given(planted())
def test_planted_spellings_of_the_same_bytes_come_back_exactly(case):
    left, right, spans = case
    assert spans_of(found(left, right)) == spans


@given(planted(with_bad=True))
def test_planted_replacements_come_back_exactly(case):
    left, right, spans = case
    assert spans_of(found(left, right)) == spans


pieces = st.lists(
    st.sampled_from(
        [b"a", b"b", b"ab", b"aa", b"", b" ", "é".encode(), b"\xc3", b"\xa9", REPLACED]
    ),
    max_size=30,
)


def applied(left, right, regions) -> Any:
    """Return the left side with each region's right side in its place; regions must ascend."""
    rebuilt = []
    at_left = at_right = 0
    for region in regions:
        assert region.left_start >= at_left
        assert region.right_start >= at_right
        assert region.left_end > region.left_start or region.right_end > region.right_start
        rebuilt += left[at_left : region.left_start]
        rebuilt += right[region.right_start : region.right_end]
        at_left, at_right = region.left_end, region.right_end
    return rebuilt + left[at_left:]


@given(pieces, pieces)
def test_regions_ascend_and_applying_them_to_one_side_gives_the_other(left, right):
    regions = found(left, right)
    assert applied(left, right, regions) == right
    assert [r.byte_start for r in regions] == [len(b"".join(left[: r.left_start])) for r in regions]


@given(pieces, pieces)
def test_a_region_neither_begins_nor_ends_with_what_did_not_change(left, right):
    for region in found(left, right):
        mine = left[region.left_start : region.left_end]
        other = right[region.right_start : region.right_end]
        if mine and other:
            assert mine[0] != other[0]
            assert mine[-1] != other[-1]


@given(st.lists(st.integers(0, 511), max_size=40))
def test_what_decoding_and_encoding_make_of_any_ids_differs_in_regions(ids):
    library = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    text = library.decode(ids, skip_special_tokens=False)
    again = library.encode(text, add_special_tokens=False).ids
    ours = Tokenizer(library, "tiny")
    assert ours.text(ids_array(ids)) == text == ours.text(ids_array(again))
    left, right = ours.spell(ids_array(ids)), ours.spell(ids_array(again))
    regions = differing_regions(ids_array(ids), ids_array(again), left, right)
    assert applied(ids, again, regions) == again
