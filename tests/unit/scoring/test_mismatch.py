import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import make_trajectory
from trajkit.records import Segment, SegmentKind
from trajkit.rl.tokens import ScoredStep, TokenCollector
from trajkit.scoring.mismatch import FIGURES, N_WORST, measure_gap, mismatch_of, stretches

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
    assert found.worst == (2, 0, 3, 1)
    assert found.share_outside == 0.5
    # r - 1 - log r, one by one
    k3 = (0.5 - math.log(1.5) + 0.0 - 0.5 - math.log(0.5) + 0.1 - math.log(1.1)) / 4
    assert found.k3 == pytest.approx(k3, abs=1e-12)
    assert found.k2 == pytest.approx(sum(log * log for log in logs) / 8, abs=1e-12)
    known, squares = [1.5, 1.0, 0.5, 1.1], 1.5**2 + 1.0 + 0.5**2 + 1.1**2
    assert found.mean_ratio == pytest.approx(sum(known) / 4, abs=1e-12)
    assert found.ess == pytest.approx(sum(known) ** 2 / (4 * squares), abs=1e-12)
    assert found.chi2 == pytest.approx(squares / 4 - 1, abs=1e-12)
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
    assert (found.ess, found.chi2, found.mean_ratio, found.k2) == (None,) * 4
    assert found.worst == ()


def test_probability_zero_on_one_side_is_the_worst_and_not_averaged() -> None:
    found = measure_gap(f64(-1.0, -INF, -INF), f64(-1.25, -1.0, -INF))
    assert (found.n, found.n_infinite) == (3, 1)
    assert found.worst == (1, 0, 2)
    assert found.mean == pytest.approx(0.125)
    assert found.max_abs == pytest.approx(0.25)
    assert found.share_outside == pytest.approx(2 / 3)


def test_one_ratio_that_no_float_squares_leaves_one_effective_sample() -> None:
    found = measure_gap(f64(500.0, 0.0, 0.0, 0.0), f64(0.0, 0.0, 0.0, 0.0))
    assert found.ess == pytest.approx(0.25)
    assert found.chi2 == INF
    assert measure_gap(f64(-1.0, -2.0), f64(-1.0, -2.0)).ess == 1.0


def test_chi2_and_ess_are_those_of_the_distributions() -> None:
    sampler, checkpoint = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    second = float((checkpoint**2 / sampler).sum())
    drawn = np.random.default_rng(0).choice(3, size=400_000, p=sampler)
    found = measure_gap(np.log(checkpoint)[drawn], np.log(sampler)[drawn])
    assert found.chi2 == pytest.approx(second - 1.0, rel=0.02)
    assert found.ess == pytest.approx(1.0 / second, rel=0.01)
    assert found.mean_ratio == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        ([], []),
        ([3, 3, 7], [(3, 3), (7, 7)]),
        (range(16), [(n, n) for n in range(16)]),
        (range(17), [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 16)]),
        (range(5, 30), [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 29)]),
    ],
)
def test_step_indexes_stand_one_by_one_or_in_stretches_that_double(
    index: Any, wanted: list[tuple[int, int]]
) -> None:
    assert stretches(np.array(list(index), dtype=np.int64)) == wanted


def collected(n_steps: int, **given: Any) -> TokenCollector:
    """Return steps of four action tokens each, whose k-th is k tenths off at step k."""
    collector = TokenCollector()
    rollout = [[-1.0 - 0.1 * at] * 4 for at in range(n_steps)]
    calls = [([1, 2], [5, 6, 7, 8])] * n_steps
    trajectory = make_trajectory(calls, rollout_logprobs=rollout, **given)
    steps = [
        ScoredStep(step=one, logprobs=np.full(4, -1.0, np.float32)) for one in trajectory.steps
    ]
    collector.add(trajectory, steps)
    return collector


def test_parts_add_up_to_the_whole() -> None:
    collector = collected(40)
    found = mismatch_of(collector.finish(), collector.not_comparable)
    assert found is not None
    assert list(found.by_step) == [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 39)]
    assert sum(gap.n for gap in found.by_step.values()) == found.gap.n == 160
    for (first, last), gap in found.by_step.items():
        assert gap.mean == pytest.approx(0.1 * (first + last) / 2, abs=1e-6)
    assert [one.place.step_index for one in found.worst] == [39, 39, 39, 39, 38]
    assert len(found.worst) == N_WORST
    told = found.to_dict()
    assert [one["last"] for one in told["by_step"]][-1] == 39
    assert set(told["aliases"]) == set(FIGURES) <= set(told)


def test_parts_of_actions_are_told_by_the_record() -> None:
    thought = Segment(start=2, end=5, kind=SegmentKind.THINK)
    answer = Segment(start=5, end=6, kind=SegmentKind.ANSWER)
    collector = collected(1, segments=[(thought, answer)])
    found = mismatch_of(collector.finish(), collector.not_comparable)
    assert found is not None
    assert {kind: gap.n for kind, gap in found.by_kind.items()} == {"think": 3, "answer": 1}


def test_every_figure_has_its_row_in_the_guide() -> None:
    text = (Path(__file__).parents[3] / "docs/scores.md").read_text()
    for name, (meaning, aliases) in FIGURES.items():
        plain = f"| `{name}` | {meaning} | {', '.join(aliases)} |"
        assert plain in text.replace("\\|", "|")
