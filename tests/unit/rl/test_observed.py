"""Losses on observations: which tokens are chosen, and what noise costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajkit.rl.observed import chosen, observed_inputs, observed_terms
from trajkit.rl.spec import Balance, Mean, Observed
from trajkit.rl.table import LossInputs

PLAIN = Observed(weight=1.0, mean=Mean.TOKEN)


def context(logprobs: list[float], **given: Any) -> LossInputs:
    n = len(logprobs)
    return LossInputs(
        logprobs=np.array(logprobs, dtype=np.float64),
        loss_mask=np.ones(n, dtype=np.bool_),
        trajectory=np.zeros(n, dtype=np.int64),
        step=np.array([0, 0, 0, 1, 2, 3][:n], dtype=np.int64),
        **given,
    )


@pytest.mark.parametrize(
    ("share", "wanted"),
    [
        # the entropies of actions 0 to 3 are 1, 3, 2, 2
        (1.0, [1, 1, 1, 1, 1, 1]),
        (0.75, [0, 0, 0, 1, 1, 1]),
        (0.5, [0, 0, 0, 1, 1, 1]),
        (0.25, [0, 0, 0, 1, 0, 0]),
        (0.01, [0, 0, 0, 1, 0, 0]),
    ],
)
def test_a_share_is_one_of_actions_and_ties_stay(share: float, wanted: list[int]) -> None:
    entropy = np.array([1.0, 1.0, 1.0, 3.0, 2.0, 2.0])
    table = context([-1.0] * 6, action_entropy=entropy)
    found = chosen(Observed(weight=1.0, mean=Mean.TOKEN, share=share), table)
    assert found.tolist() == [bool(each) for each in wanted]


def test_what_answers_an_unknown_action_is_not_chosen() -> None:
    half = Observed(weight=1.0, mean=Mean.TOKEN, share=0.5)
    some = context([-1.0] * 4, action_entropy=np.array([math.nan, math.nan, math.nan, 0.1]))
    assert chosen(half, some).tolist() == [False, False, False, True]
    none = context([-1.0] * 4, action_entropy=np.full(4, math.nan))
    assert not chosen(half, none).any()


def test_inputs_are_what_the_options_ask_for() -> None:
    both = Observed(weight=1.0, mean=Mean.TOKEN, share=0.5, balance=Balance.GROUP_REWARD)
    assert observed_inputs(PLAIN) == ()
    assert observed_inputs(both) == ("action_entropy", "group_reward")


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=6), st.floats(0.05, 1.0))
def test_a_power_is_between_the_likelihood_and_the_absolute_error(
    logprobs: list[float], power: float
) -> None:
    table = context(logprobs)
    plain, _ = observed_terms(PLAIN, table)
    bent, slopes = observed_terms(Observed(weight=1.0, mean=Mean.TOKEN, power=power), table)
    assert (bent <= plain + 1e-12).all()
    assert (bent >= 1.0 - np.exp(table.logprobs) - 1e-12).all()
    assert (bent <= 1.0 / power).all()
    assert ((slopes >= -1.0) & (slopes <= 0.0)).all()


def test_a_token_of_no_probability_is_infinite_bounded_or_weighed_away() -> None:
    reward = np.array([0.0, 1.0, 7.0, -2.0])
    table = context([-math.inf] * 4, group_reward=reward)
    assert observed_terms(PLAIN, table)[0].tolist() == [math.inf] * 4
    bent = Observed(weight=1.0, mean=Mean.TOKEN, power=1.0)
    assert observed_terms(bent, table)[0].tolist() == [1.0] * 4
    weighed = Observed(weight=1.0, mean=Mean.TOKEN, balance=Balance.GROUP_REWARD)
    values, slopes = observed_terms(weighed, table)
    assert values.tolist() == [math.inf, 0.0, 0.0, math.inf]
    assert slopes.tolist() == [-1.0, 0.0, 0.0, -1.0]
