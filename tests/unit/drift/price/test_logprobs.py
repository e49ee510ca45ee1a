import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajkit.drift.price.logprobs import LogprobPrice, StepLogprobs, price_logprobs

INF = math.inf


def test_a_step_worked_by_hand():
    step = StepLogprobs(
        regions=(([-1.0, -0.5], [-4.0]), ([-0.25], [-0.125, -0.125])),
        later_recorded=[-1.0, -1.0, -1.0, -1.0],
        later_retokenized=[-1.0, -1.25, -0.75, -0.875],
    )
    price = price_logprobs([step])
    assert price == LogprobPrice(
        region_differences=(-2.5, 0.0),
        step_differences=(-2.5 + 0.125,),
        n_later_tokens=4,
        n_outside_tokens=2,  # e^-0.25 = 0.78 and e^0.25 = 1.28
    )
    assert price.summary() == {
        "region_median": -2.5,
        "region_p10": -2.5,
        "region_worst": -2.5,
        "share_outside": 0.5,
        "step_median_abs": 2.375,
        "step_max_abs": 2.375,
    }


def test_quantiles_are_differences_that_occur():
    steps = [StepLogprobs(regions=(([0.0], [-float(n)]),)) for n in range(1, 21)]
    shown = price_logprobs(steps).summary()
    assert (shown["region_worst"], shown["region_p10"], shown["region_median"]) == (-20, -19, -11)
    assert (shown["step_median_abs"], shown["step_max_abs"]) == (10, 20)


def test_a_missing_logprob_leaves_out_what_it_stands_in_and_is_counted():
    step = StepLogprobs(
        regions=(([-1.0, None], [-4.0]), ([-1.0], [-2.0])),
        later_recorded=np.array([-1.0, np.nan, -1.0], dtype=np.float32),
        later_retokenized=[-1.0, -1.0, -3.0],
    )
    assert price_logprobs([step]) == LogprobPrice(
        region_differences=(-1.0,),
        n_later_tokens=2,
        n_outside_tokens=1,
        n_unknown_regions=1,
        n_unknown_steps=1,
        n_unknown_tokens=1,
    )


def test_an_impossible_spelling_is_infinitely_bad_and_two_of_them_are_unknown():
    bad = StepLogprobs(regions=(([-1.0], [-INF]),))
    fine = StepLogprobs(regions=(([-1.0], [-1.5]),))
    price = price_logprobs([bad, fine, fine])
    assert price.region_differences == (-INF, -0.5, -0.5)
    shown = price.summary()
    assert (shown["region_worst"], shown["region_median"]) == (-INF, -0.5)
    both = StepLogprobs(
        regions=(([-INF], [-INF]),), later_recorded=[-INF], later_retokenized=[-INF]
    )
    assert price_logprobs([both]) == LogprobPrice(
        n_unknown_regions=1, n_unknown_steps=1, n_unknown_tokens=1
    )


def test_without_steps_there_are_no_figures():
    price = price_logprobs([])
    assert price == LogprobPrice()
    assert set(price.summary().values()) == {None}


def test_an_empty_spelling_is_worth_nothing():
    assert price_logprobs([StepLogprobs(regions=(([-2.0], []),))]).region_differences == (2.0,)


def test_later_tokens_of_unequal_number_are_refused():
    step = StepLogprobs(regions=(), later_recorded=[-1.0], later_retokenized=[])
    with pytest.raises(ValueError, match="same on both sides"):
        price_logprobs([step])


LOGPROBS = st.lists(st.one_of(st.none(), st.just(-INF), st.floats(-20, 0)), max_size=3)


@st.composite
def steps(draw) -> StepLogprobs:
    later = draw(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), max_size=3))
    return StepLogprobs(
        regions=tuple(draw(st.lists(st.tuples(LOGPROBS, LOGPROBS), max_size=3))),
        later_recorded=[mine for mine, _ in later],
        later_retokenized=[other for _, other in later],
    )


@given(st.lists(steps(), max_size=4), st.lists(steps(), max_size=4))
def test_the_price_of_two_files_is_the_sum_of_theirs(one, two):
    assert price_logprobs(one + two) == price_logprobs(one) + price_logprobs(two)
    together = price_logprobs([*one, *two])
    n_regions = sum(len(step.regions) for step in [*one, *two])
    assert len(together.region_differences) + together.n_unknown_regions == n_regions
    assert not any(map(math.isnan, together.region_differences + together.step_differences))
