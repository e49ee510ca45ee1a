from typing import Any

import numpy as np
import pytest

from trajkit.align import common_prefix, differing_regions, next_agreement, same_ids
from trajkit.records import ids_array
from trajkit.spelling import Spelling


def regions(left, right) -> Any:
    """Return (left span, right span, byte) of each region between two spellings.

    A piece of text is its own id; the same piece has the same id on both sides.
    """
    known: dict[bytes, int] = {}
    a, b = (ids_array([known.setdefault(p, len(known)) for p in side]) for side in (left, right))
    return [
        ((r.left_start, r.left_end), (r.right_start, r.right_end), r.byte_start)
        for r in differing_regions(a, b, Spelling.of(left), Spelling.of(right))
    ]


def test_equal_lists_have_no_region():
    assert regions([b"a", b"b"], [b"a", b"b"]) == []
    assert regions([], []) == []


def test_another_spelling_of_the_same_bytes_is_one_region():
    assert regions([b"H", b"AVING", b"."], [b"HAV", b"ING", b"."]) == [((0, 2), (0, 2), 0)]
    assert regions([b"x", b"ab", b"y"], [b"x", b"a", b"b", b"y"]) == [((1, 2), (1, 3), 1)]
    assert regions([b"x", b"a", b"b"], [b"x", b"ab"]) == [((1, 3), (1, 2), 1)]


def test_regions_with_a_shared_border_between_them_are_two():
    left, right = [b"ab", b"c", b"d"], [b"a", b"b", b"cd"]
    assert regions(left, right) == [((0, 1), (0, 2), 0), ((1, 3), (2, 3), 2)]


def test_a_token_of_the_same_text_at_another_byte_is_not_the_same_token():
    left, right = [b"a", b"aa", b"a"], [b"aa", b"a", b"a"]
    assert regions(left, right) == [((0, 2), (0, 2), 0)]


def test_a_character_cut_over_ids_is_compared_byte_by_byte():
    left = ["é".encode()[:1], "é".encode()[1:], b"!"]
    assert regions(left, ["é".encode(), b"!"]) == [((0, 2), (0, 1), 0)]


def test_bytes_that_decoding_replaced_count_as_what_it_wrote():
    cut = "東".encode()[:2]
    spelt = "\ufffd".encode()
    assert regions([b"a", cut], [b"a", spelt]) == [((1, 2), (1, 2), 1)]
    assert regions([b"a", cut[:1], cut[1:], b"b"], [b"a", spelt, b"b"]) == [((1, 3), (1, 2), 1)]
    # two replacements, and between them a token that did not change
    left = [b"\xff", b"mid", b"\xf0\x9f", b"\x98", b"!"]
    right = [spelt[:1], spelt[1:], b"mid", spelt, b"!"]
    assert regions(left, right) == [((0, 1), (0, 2), 0), ((2, 4), (3, 4), 4)]


def test_a_border_inside_a_replaced_character_is_no_shared_border():
    spelt = "\ufffd".encode()
    left, right = [b"x\xe6", b"\x9dy"], [b"x", spelt, b"y"]
    assert regions(left, right) == [((0, 2), (0, 3), 0)]


def test_a_real_replacement_character_is_text_like_any_other():
    spelt = "\ufffd".encode()
    assert regions([spelt[:2], spelt[2:]], [spelt]) == [((0, 2), (0, 1), 0)]
    assert regions([b"\xff", spelt], [spelt, spelt]) == [((0, 1), (0, 1), 0)]


def test_an_id_that_spells_nothing_is_a_region_when_one_side_lacks_it():
    assert regions([b"a", b"", b"b"], [b"a", b"b"]) == [((1, 2), (1, 1), 1)]
    assert regions([b"", b"a"], [b"a"]) == [((0, 1), (0, 0), 0)]
    assert regions([b"a"], [b"a", b""]) == [((1, 1), (1, 2), 1)]
    assert regions([b""], []) == [((0, 1), (0, 0), 0)]
    assert regions([b"", b"a"], [b"", b"a"]) == []


def test_other_text_is_a_region_and_what_follows_is_aligned_again():
    tail = [bytes([letter]) for letter in b"qrstuvw"]
    assert regions([b"a", *tail], [b"b", *tail]) == [((0, 1), (0, 1), 0)]
    assert regions([b"cafe\xcc\x81", *tail], ["café".encode(), *tail]) == [((0, 1), (0, 1), 0)]
    assert regions(tail, [b" ", *tail]) == [((0, 0), (0, 1), 0)]
    assert regions([*tail, b"gone"], tail) == [((7, 8), (7, 7), 7)]


def test_other_text_does_not_swallow_another_spelling_further_on():
    mid = [bytes([letter]) for letter in b"klmnop"]
    left, right = [b"A", *mid, b"H", b"AVING", b"."], [b"B", *mid, b"HAV", b"ING", b"."]
    assert regions(left, right) == [((0, 1), (0, 1), 0), ((7, 9), (7, 9), 7)]
    left, right = [b"H", b"AVING", *mid, b"A"], [b"HAV", b"ING", *mid, b"B", b"C"]
    assert regions(left, right) == [((0, 2), (0, 2), 0), ((8, 9), (8, 10), 12)]


def test_nothing_in_common_is_one_region():
    assert regions([b"a", b"b"], [b"c"]) == [((0, 2), (0, 1), 0)]
    assert regions([b"a"], []) == [((0, 1), (0, 0), 0)]
    assert regions([], [b"a"]) == [((0, 0), (0, 1), 0)]


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 5000])
def test_the_common_prefix_ends_at_the_first_difference(n):
    left = np.arange(6000, dtype=np.int32)
    right = left.copy()
    right[n:] += 1
    assert common_prefix(left, right) == n
    assert common_prefix(left[:n], left) == n
    assert common_prefix(left, left[:n]) == n


def test_same_ids_needs_equal_lengths():
    assert same_ids(ids_array([1, 2]), ids_array([1, 2]))
    assert not same_ids(ids_array([1, 2]), ids_array([1]))
    assert not same_ids(ids_array([1]), ids_array([2]))
    assert same_ids(ids_array([]), ids_array([]))


def test_the_next_agreement_spends_the_fewest_ids():
    left, right = ids_array([9, 9, 1, 2, 3, 4]), ids_array([8, 1, 2, 3, 4, 5])
    assert next_agreement(left, right) == (2, 1)
    assert next_agreement(left, right, 5) is None
    # 1 2 3 4 stands twice on the right: the nearer one counts
    assert next_agreement(left, ids_array([7, 1, 2, 3, 4, 7, 7, 1, 2, 3, 4])) == (2, 1)
    assert next_agreement(left[:3], right) is None


def test_the_next_agreement_is_found_however_far_it_is():
    left = np.arange(3000, dtype=np.int32)
    right = np.concatenate([np.full(2000, -1, np.int32), left[700:]])
    assert next_agreement(left, right) == (700, 2000)
    assert next_agreement(left[:-1], np.full(50, -1, np.int32)) is None


def test_a_nearer_agreement_beyond_the_first_window_is_preferred():
    far, near = np.arange(10, 14, dtype=np.int32), np.arange(20, 24, dtype=np.int32)
    left = np.concatenate([near, np.full(50, -1, np.int32), far])
    right = np.concatenate([np.full(54, -2, np.int32), far, np.full(8, -2, np.int32), near])
    assert next_agreement(left, right) == (0, 66)  # and not (54, 54), which costs more


class Counted(np.ndarray):
    """Ids that count the elements numpy works on."""

    seen = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        Counted.seen += max(np.size(each) for each in inputs)
        plain = [np.asarray(each) for each in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    def __array_function__(self, function, types, args, kwargs):
        sizes = [each.size for each in args if isinstance(each, np.ndarray)]
        Counted.seen += max(sizes, default=0)
        return super().__array_function__(function, types, args, kwargs)


def work(left, right, n_repeats, *, other_text) -> Any:
    """Return how many elements were worked on for so many repeats of two spellings."""
    known: dict[bytes, int] = {}
    sides = []
    for number, spelling in enumerate((left, right)):
        pieces = spelling * n_repeats + [b"!"] * (number if other_text else 0)
        ids = np.array([known.setdefault(p, len(known)) for p in pieces], dtype=np.int32)
        sides.append((ids.view(Counted), pieces))
    Counted.seen = 0
    spelt = [Spelling.of(side[1]) for side in sides]
    found = differing_regions(sides[0][0], sides[1][0], *spelt)
    assert len(found) == n_repeats + other_text
    return Counted.seen


@pytest.mark.parametrize("other_text", [False, True])
def test_the_work_grows_as_the_tokens_do(other_text):
    left, right = [b"H", b"AVING", b" ", b"fun", b" "], [b"HAV", b"ING", b" ", b"fun", b" "]
    small = work(left, right, 1_000, other_text=other_text)
    large = work(left, right, 20_000, other_text=other_text)  # 100,000 tokens
    assert 0 < large < 25 * small


def test_ten_thousand_bad_bytes_are_as_many_regions():
    n = 10_000
    ids = np.zeros(n, dtype=np.int32)
    found = differing_regions(
        ids, ids + 1, Spelling.of([b"\xff"] * n), Spelling.of(["\ufffd".encode()] * n)
    )
    assert [r.byte_start for r in found] == list(range(n))
    assert {(r.left_end - r.left_start, r.right_end - r.right_start) for r in found} == {(1, 1)}
