import math

import numpy as np
import pytest

from trajkit.scoring.advantages import group_advantages


def test_rewards_are_centred_and_scaled_within_their_group() -> None:
    # a: 1, 0, 0, 1: mean 0.5, std sqrt(4 * 0.25 / 3) = 0.57735; b: 2, 4: mean 3, std sqrt(2)
    found = group_advantages(
        np.array([1.0, 2.0, 0.0, 0.0, 4.0, 1.0]), ["a", "b", "a", "a", "b", "a"]
    )
    a, b = 0.5 / (math.sqrt(1 / 3) + 1e-6), 1.0 / (math.sqrt(2.0) + 1e-6)
    np.testing.assert_allclose(found.advantages, [a, -b, -a, -a, b, a], atol=1e-12)
    assert (found.n_without_baseline, found.n_without_reward) == (0, 0)


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
