"""Which token a value speaks of: lengths decide, two answers are no answer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajkit.formats.alignment import (
    Align,
    Shape,
    align_labels,
    candidates,
    fits_as_asked,
    mask_runs,
    spread,
    trained_runs,
)
from trajkit.records import ids_array

INPUT, RESPONSE, SHIFTED, LABELS = Align.INPUT, Align.RESPONSE, Align.SHIFTED, Align.LABELS


@pytest.mark.parametrize(
    ("n", "n_response", "is_response", "fits"),
    [
        (10, None, False, (INPUT,)),
        (9, None, False, (SHIFTED,)),
        (8, None, False, ()),
        (10, 4, False, (INPUT,)),
        (4, 4, False, (RESPONSE,)),
        (9, 9, False, (RESPONSE, SHIFTED)),
        (9, 9, True, (RESPONSE,)),
        (10, 10, False, (INPUT,)),
        (4, None, True, (RESPONSE,)),
        (9, None, True, (RESPONSE, SHIFTED)),
        (11, None, True, ()),
    ],
)
def test_what_n_values_for_ten_ids_can_be(n, n_response, is_response, fits):
    assert candidates(n, Shape(n_ids=10, n_response=n_response), is_response=is_response) == fits


@pytest.mark.parametrize(
    ("align", "lengths"),
    [(INPUT, {10}), (RESPONSE, {4}), (SHIFTED, {9, 10}), (LABELS, {10}), (Align.AUTO, set())],
)
def test_what_is_asked_for_must_fit(align, lengths):
    shape = Shape(n_ids=10, n_response=4)
    assert {n for n in range(12) if fits_as_asked(n, shape, align)} == lengths


@pytest.mark.parametrize(
    ("values", "align", "spread_out"),
    [
        ([1, 2, 3, 4], INPUT, [1, 2, 3, 4]),
        ([3, 4], RESPONSE, [0, 0, 3, 4]),
        ([2, 3, 4], SHIFTED, [0, 2, 3, 4]),
        ([2, 3, 4, 0], SHIFTED, [0, 2, 3, 4]),
    ],
)
def test_values_come_to_stand_at_the_ids_they_speak_of(values, align, spread_out):
    assert spread(np.array(values, dtype=np.float64), 4, align, 0.0).tolist() == spread_out


def test_nothing_stands_automatically():
    with pytest.raises(ValueError, match="auto"):
        spread(np.zeros(2), 2, Align.AUTO, 0.0)


@pytest.mark.parametrize(
    ("labels", "align"),
    [
        ([-100, -100, 7, 8], LABELS),
        ([-100, 7, 8, -100], SHIFTED),
        ([-100, 7, 8], SHIFTED),
        ([-100, -100, -100, -100], LABELS),
    ],
)
def test_labels_are_the_ids_themselves_or_the_next_ones(labels, align):
    assert align_labels(np.array(labels), ids_array([5, 6, 7, 8])) is align


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=30))
def test_runs_say_all_of_a_mask(weights):
    array = np.array(weights, dtype=np.float64)
    runs = mask_runs(array)
    assert [run.weight for run in runs for _ in range(run.start, run.end)] == weights
    assert all(left.weight != right.weight for left, right in pairwise(runs))
    inside = {i for start, end in trained_runs(array) for i in range(start, end)}
    assert inside == {i for i, weight in enumerate(weights) if weight}
