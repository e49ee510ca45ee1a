import math

import numpy as np
import pytest

from trajkit.rl.advantages import (
    IN_GROUP,
    centred,
    group_advantages,
    group_means,
    leave_one_out,
    leave_one_out_normalised,
    normalised,
)
from trajkit.rl.spec import Advantage


def test_rewards_are_centred_and_scaled_within_their_group() -> None:
    # a: 1, 0, 0, 1: mean 0.5, std sqrt(4 * 0.25 / 3) = 0.57735; b: 2, 4: mean 3, std sqrt(2)
    found = group_advantages(
        np.array([1.0, 2.0, 0.0, 0.0, 4.0, 1.0]), ["a", "b", "a", "a", "b", "a"]
    )
    a, b = 0.5 / (math.sqrt(1 / 3) + 1e-6), 1.0 / (math.sqrt(2.0) + 1e-6)
    np.testing.assert_allclose(found.advantages, [a, -b, -a, -a, b, a], atol=1e-12)
    assert (found.n_without_baseline, found.n_without_reward) == (0, 0)


def test_rllm_divides_by_the_std_of_the_group_itself() -> None:
    """1, 0, 0, 1: the std with n is 0.5, with n - 1 it is 0.577."""
    made = IN_GROUP[Advantage.GROUP_STD_RLLM](np.array([1.0, 0.0, 0.0, 1.0]))
    one = 0.5 / (0.5 + 1e-6)
    np.testing.assert_allclose(made, [one, -one, -one, one], rtol=1e-14)


def test_a_reward_alone_has_no_baseline_and_no_advantage() -> None:
    found = group_advantages(np.array([1.0, 2.0, 3.0]), ["a", "b", "b"])
    assert np.isnan(found.advantages).tolist() == [True, False, False]
    assert found.n_without_baseline == 1


def test_unknown_rewards_are_no_members() -> None:
    found = group_advantages(np.array([1.0, math.nan, 3.0, math.nan]), ["a", "a", "a", "b"])
    assert np.isnan(found.advantages).tolist() == [False, True, False, True]
    assert found.advantages[0] == pytest.approx(-1.0 / (math.sqrt(2.0) + 1e-6))
    assert (found.n_without_baseline, found.n_without_reward) == (0, 2)


def test_equal_rewards_teach_nothing() -> None:
    assert group_advantages(np.array([0.5, 0.5, 0.5]), ["a"] * 3).advantages.tolist() == [0.0] * 3


def test_no_trajectories() -> None:
    found = group_advantages(np.empty(0), [])
    assert len(found.advantages) == 0


def test_an_unknown_group_is_nobodys_group() -> None:
    found = group_advantages(np.array([1.0, 0.0, math.nan, 2.0, 3.0]), [None, None, None, "a", "a"])
    assert np.isnan(found.advantages).tolist() == [True, True, True, False, False]
    assert (found.n_without_baseline, found.n_without_reward) == (2, 1)
    assert found.group_sizes == (2,)


def test_group_sizes_count_known_rewards() -> None:
    found = group_advantages(np.array([1.0, math.nan, 3.0, 0.0, 1.0]), ["a", "a", "b", "b", "b"])
    assert found.group_sizes == (1, 3)


REWARDS = np.array([1.0, 0.0, 0.5, 0.5])
"""Mean 0.5, squares of the gaps 0.25, 0.25, 0, 0: std sqrt(0.5 / 3)."""


def test_each_estimator_by_hand() -> None:
    gaps = np.array([0.5, -0.5, 0.0, 0.0])
    std = math.sqrt(0.5 / 3)
    for epsilon in (1e-6, 1e-4, 1e-9):
        np.testing.assert_allclose(normalised(REWARDS, epsilon), gaps / (std + epsilon), rtol=1e-14)
    np.testing.assert_allclose(centred(REWARDS), gaps, atol=1e-15)
    # means of the others: 1/3, 2/3, 1/2, 1/2
    wanted = [1 - 1 / 3, -2 / 3, 0.0, 0.0]
    np.testing.assert_allclose(leave_one_out(REWARDS), wanted, atol=1e-15)
    # std of the others: of (0, .5, .5) and of (1, .5, .5) it is sqrt(1/12); of (1, 0, .5) it is 0.5
    wanted = [2 / 3 / (math.sqrt(1 / 12) + 1e-6), -2 / 3 / (math.sqrt(1 / 12) + 1e-6), 0.0, 0.0]
    np.testing.assert_allclose(leave_one_out_normalised(REWARDS), wanted, rtol=1e-12, atol=1e-12)


def test_others_that_are_equal_or_one_alone_divide_by_nothing() -> None:
    # of the first reward the others are 0 and 0, which have no std; of the rest they are 0 and 1
    found = leave_one_out_normalised(np.array([1.0, 0.0, 0.0]))
    half = -0.5 / (math.sqrt(0.5) + 1e-6)
    np.testing.assert_allclose(found, [1.0, half, half], rtol=1e-12)
    assert leave_one_out_normalised(np.array([1.0, 0.25])).tolist() == [0.75, -0.75]
    assert leave_one_out_normalised(np.full(5, 0.3)).tolist() == pytest.approx([0.0] * 5)


@pytest.mark.parametrize("advantage", IN_GROUP)
def test_every_estimator_is_relative_to_its_group(advantage: Advantage) -> None:
    returns = np.array([1.0, 5.0, 0.0, 7.0, 0.25])
    found = group_advantages(returns, ["a", "b", "a", "b", "a"], advantage).advantages
    moved = group_advantages(returns + 3.0, ["a", "b", "a", "b", "a"], advantage).advantages
    np.testing.assert_allclose(found, moved, atol=1e-9)
    assert found[0] > 0 > found[2]
    assert group_advantages(returns, list("abcde"), advantage).n_without_baseline == 5


def test_other_estimators_give_other_numbers() -> None:
    found = {tuple(estimator(REWARDS).tolist()) for estimator in IN_GROUP.values()}
    assert len(found) == len(IN_GROUP)


def test_means_of_groups_are_over_known_rewards() -> None:
    returns = np.array([1.0, math.nan, 0.0, math.nan, 0.5])
    found = group_means(returns, np.array([0, 0, 0, 1, 2]))
    np.testing.assert_array_equal(found, [0.5, 0.5, 0.5, math.nan, 0.5])
    assert len(group_means(np.empty(0), np.empty(0, dtype=np.int64))) == 0
