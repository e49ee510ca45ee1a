import math
from typing import Any

import numpy as np
import pytest

from trajkit.scoring.mismatch import measure_gap

NAN, INF = math.nan, math.inf


def f64(*values: float) -> Any:
    return np.array(values, dtype=np.float64)


def test_the_numbers_of_a_hand_made_gap() -> None:
    # r = p_checkpoint / p_rollout: 1.5, 1, 0.5, 1.1, and two tokens with one side unknown
    rollout = f64(-1.0, -2.0, -0.5, -3.0, NAN, -1.0)
    ratios = f64(1.5, 1.0, 0.5, 1.1, 1.0, NAN)
    found = measure_gap(rollout + np.log(ratios), rollout)
    logs = [math.log(1.5), 0.0, math.log(0.5), math.log(1.1)]
    assert found.n == 4
    assert found.mean == pytest.approx(sum(logs) / 4, abs=1e-12)
    assert found.mean_abs == pytest.approx(sum(map(abs, logs)) / 4, abs=1e-12)
    assert found.max_abs == pytest.approx(math.log(2.0), abs=1e-12)
    assert found.worst == 2
    assert found.share_outside == 0.5
    # r - 1 - log r, one by one
    k3 = (0.5 - math.log(1.5) + 0.0 - 0.5 - math.log(0.5) + 0.1 - math.log(1.1)) / 4
    assert found.k3 == pytest.approx(k3, abs=1e-12)
    assert found.n_infinite == 0


def test_k3_estimates_the_divergence_from_the_sampler_to_the_checkpoint() -> None:
    sampler, checkpoint = np.log([0.7, 0.2, 0.1]), np.log([0.5, 0.3, 0.2])
    exact = float((np.exp(sampler) * (sampler - checkpoint)).sum())
    rng = np.random.default_rng(0)
    drawn = rng.choice(3, size=400_000, p=[0.7, 0.2, 0.1])
    found = measure_gap(checkpoint[drawn], sampler[drawn])
    assert found.k3 == pytest.approx(exact, rel=0.02)


def test_p99_leaves_the_worst_hundredth_out() -> None:
    gap = np.linspace(0.0, 1.0, 1001)
    found = measure_gap(gap - 10.0, np.full(1001, -10.0))
    assert found.p99_abs == pytest.approx(0.99, abs=1e-12)
    assert found.max_abs == pytest.approx(1.0, abs=1e-12)


def test_nothing_to_compare() -> None:
    found = measure_gap(f64(-1.0, NAN), f64(NAN, -1.0))
    assert found.n == 0
    assert (found.mean, found.k3, found.max_abs, found.share_outside) == (None,) * 4
    assert found.worst is None


def test_probability_zero_on_one_side_is_the_worst_and_not_averaged() -> None:
    found = measure_gap(f64(-1.0, -INF, -INF), f64(-1.25, -1.0, -INF))
    assert (found.n, found.n_infinite, found.worst) == (3, 1, 1)
    assert found.mean == pytest.approx(0.125)
    assert found.max_abs == pytest.approx(0.25)
    assert found.share_outside == pytest.approx(2 / 3)
