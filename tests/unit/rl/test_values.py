"""GAE over steps: by hand, and its two ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_trajectory
from trajkit.records import RewardPart
from trajkit.rl.values import gae_of_steps, step_gae, whitened

CALLS = [([1], [5, 6]), ([1, 5, 6, 2], [7]), ([1, 5, 6, 2, 7, 3], [8, 9])]


def test_by_hand() -> None:
    # delta: 1 + 0.9 * 2 - 0.5 = 2.3; 0 + 0.9 * 1 - 2 = -1.1; 3 - 1 = 2; gamma lambda = 0.45
    # advantages, the last first: 2; -1.1 + 0.45 * 2 = -0.2; 2.3 + 0.45 * -0.2 = 2.21
    found = step_gae(np.array([1.0, 0.0, 3.0]), np.array([0.5, 2.0, 1.0]), gamma=0.9, lam=0.5)
    np.testing.assert_allclose(found, [2.21, -0.2, 2.0], atol=1e-12)


numbers = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=8)


@given(numbers, st.floats(0, 1))
def test_lambda_1_is_the_return_less_the_value_and_lambda_0_the_td_error(
    pairs: list[tuple[float, float]], gamma: float
) -> None:
    rewards, values = np.array(pairs).T
    n = len(pairs)
    returns = [sum(gamma**k * rewards[at + k] for k in range(n - at)) for at in range(n)]
    found = step_gae(rewards, values, gamma=gamma, lam=1.0)
    np.testing.assert_allclose(found, np.array(returns) - values, atol=1e-9)
    errors = rewards + gamma * np.append(values[1:], 0.0) - values
    np.testing.assert_allclose(step_gae(rewards, values, gamma=gamma, lam=0.0), errors, atol=1e-9)


def test_the_value_of_a_step_is_that_of_its_first_token() -> None:
    values = [[0.5, 9.0], [2.0], [1.0, 9.0]]
    made = make_trajectory(CALLS, values=values, reward=[1.0, None, 3.0])
    assert gae_of_steps(made) == pytest.approx({0: 4.0 - 0.5, 1: 3.0 - 2.0, 2: 3.0 - 1.0})


def test_a_reward_of_the_whole_trajectory_stands_at_its_last_step() -> None:
    whole = (RewardPart(name="trajectory", value=2.0, kind="outcome"),)
    made = make_trajectory(
        CALLS, values=[[0.0, 0.0], [1.0], [0.5, 0.0]], rewards=[None, None, whole]
    )
    assert gae_of_steps(made) == pytest.approx({0: 2.0, 1: 1.0, 2: 1.5})


def test_steps_that_are_not_trained_are_passed_over() -> None:
    made = make_trajectory(
        CALLS,
        values=[[0.5, 0.0], [100.0], [1.0, 0.0]],
        reward=[1.0, 50.0, 3.0],
        exclude_reason=[None, "abandoned", None],
    )
    assert gae_of_steps(made) == pytest.approx({0: 3.5, 2: 2.0})


def test_without_rewards_or_values_there_is_no_advantage() -> None:
    values = [[0.5, 0.0], [1.0], [1.0, 0.0]]
    assert gae_of_steps(make_trajectory(CALLS, values=values)) == {}
    found = gae_of_steps(make_trajectory(CALLS, reward=[1.0, 1.0, 1.0]))
    assert all(map(math.isnan, found.values()))
    found = gae_of_steps(
        make_trajectory(CALLS, values=[[0.5, 0.0], None, [1.0, 0.0]], reward=[None, None, 3.0])
    )
    assert math.isnan(found[0])
    assert math.isnan(found[1])
    assert found[2] == 2.0


def test_whitened_advantages_have_mean_0_and_std_1() -> None:
    # 1, 3, 8: mean 4, squares of the gaps 9, 1, 16: std sqrt(13)
    found = whitened(np.array([1.0, math.nan, 3.0, 8.0]))
    wanted = np.array([-3.0, math.nan, -1.0, 4.0]) / (math.sqrt(13.0) + 1e-8)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert whitened(np.array([2.0, 2.0])).tolist() == [0.0, 0.0]
    assert np.isnan(whitened(np.array([2.0, math.nan]))).all()
    assert len(whitened(np.empty(0))) == 0
