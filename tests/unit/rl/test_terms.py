"""Terms of tokens, one number at a time: corrections, estimators, and what has no number."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trajkit.rl.presets import PRESETS
from trajkit.rl.spec import (
    Advantage,
    Behaviour,
    Correction,
    Estimator,
    Kl,
    Level,
    Loss,
    Mean,
    Moved,
    Ratio,
    Term,
    Weigh,
)
from trajkit.rl.table import LossInputs
from trajkit.rl.terms import (
    importance_weights,
    inputs_of,
    kl_terms,
    log_ratio,
    loss_terms,
    weighed,
)

INF = math.inf


def f64(*values: float) -> Any:
    return np.array(values, dtype=np.float64)


def token_terms(loss: Loss, inputs: LossInputs) -> tuple[Any, Any]:
    """Return the weighed values [N] and slopes [N] of all parts of a loss."""
    return weighed(loss_terms(loss, inputs))


# p_old / p_sampler is 4, 0.5, 1 in row 0 and 0.2, 0.1 in row 1
WEIGHED = LossInputs(
    logprobs=f64(-1, -1, -1, -1, -1),
    loss_mask=np.ones(5, dtype=np.bool_),
    trajectory=np.zeros(5, dtype=np.int64),
    row=np.array([0, 0, 0, 1, 1]),
    old_logprobs=np.log(f64(4.0, 0.5, 1.0, 0.2, 0.1)) - 3.0,
    rollout_logprobs=f64(-3, -3, -3, -3, -3),
    advantages=f64(1, -1, 1, 1, 1),
)


@pytest.mark.parametrize(
    ("level", "weigh", "low", "high", "wanted"),
    [
        (Level.TOKEN, Weigh.TRUNCATE, 0.0, 2.0, [2.0, 0.5, 1.0, 0.2, 0.1]),
        (Level.TOKEN, Weigh.TRUNCATE, 0.5, 5.0, [4.0, 0.5, 1.0, 0.5, 0.5]),
        (Level.TOKEN, Weigh.DROP, 0.4, 3.0, [0.0, 0.5, 1.0, 0.0, 0.0]),
        # the products are 2 and 0.02, the geometric means 2^(1/3) = 1.26 and 0.02^(1/2) = 0.141
        (Level.ROW_PRODUCT, Weigh.TRUNCATE, 0.0, 1.5, [1.5, 1.5, 1.5, 0.02, 0.02]),
        (Level.ROW_PRODUCT, Weigh.DROP, 0.0, 1.5, [0.0, 0.0, 0.0, 0.02, 0.02]),
        (Level.ROW_GEOMETRIC, Weigh.DROP, 0.5, 5.0, [2 ** (1 / 3)] * 3 + [0.0, 0.0]),
        (Level.TOKEN, Weigh.DROP_ROW, 0.5, 5.0, [4.0, 0.5, 1.0, 0.0, 0.0]),
    ],
)
def test_importance_weights(
    level: Level, weigh: Weigh, low: float, high: float, wanted: list[float]
) -> None:
    correction = Correction(level=level, weigh=weigh, low=low, high=high)
    np.testing.assert_allclose(importance_weights(correction, WEIGHED), wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        (Estimator.K1, math.log(2), 1.0),
        (Estimator.K2, math.log(2) ** 2 / 2, math.log(2)),
        (Estimator.K3, 0.5 - 1 + math.log(2), 0.5),
    ],
)
def test_each_estimator_at_twice_the_reference(
    estimator: Estimator, value: float, slope: float
) -> None:
    one = replace(WEIGHED, ref_logprobs=WEIGHED.logprobs - math.log(2))
    values, slopes = kl_terms(Kl(estimator=estimator, weight=3.0), one)
    np.testing.assert_allclose(values, value, rtol=1e-12)
    np.testing.assert_allclose(slopes, slope, rtol=1e-12)


@pytest.mark.parametrize("estimator", [Estimator.K1, Estimator.K2, Estimator.K3])
def test_the_mean_of_an_estimator_over_samples_is_the_divergence_or_near_it(
    estimator: Estimator,
) -> None:
    """k1 and k3 are exact in expectation; k2 is near for policies that are near."""
    p, q = f64(0.5, 0.3, 0.2), f64(0.45, 0.35, 0.2)
    exact = float((p * np.log(p / q)).sum())
    table = LossInputs(
        logprobs=np.log(p),
        loss_mask=np.ones(3, dtype=np.bool_),
        trajectory=np.zeros(3, dtype=np.int64),
        ref_logprobs=np.log(q),
    )
    values, _ = kl_terms(Kl(estimator=estimator, weight=1.0), table)
    tolerance = 0.05 * exact if estimator is Estimator.K2 else 1e-12
    assert float((p * values).sum()) == pytest.approx(exact, abs=tolerance)


def test_a_bound_stops_the_slope_where_it_holds() -> None:
    loss = Loss(
        formula="",
        source="",
        term=Term.RATIO,
        mean=Mean.SUM,
        advantage=Advantage.GROUP_MEAN,
        ratio=Ratio(bounds=(-1.0, 1.0), against=Behaviour.SAMPLER),
    )
    table = replace(WEIGHED, logprobs=f64(-3, -2.5, -1, -5, -3))
    # log-ratios 0, 0.5, 2 -> 1, -2 -> -1, 0
    values, slopes = token_terms(loss, table)
    wanted = -np.exp(f64(0, 0.5, 1, -1, 0)) * table.advantages
    np.testing.assert_allclose(values, wanted, rtol=1e-12)
    np.testing.assert_allclose(slopes, wanted * [1, 1, 0, 0, 1], rtol=1e-12)


def test_what_moved_too_far_the_way_it_is_pulled_counts_0_but_for_its_square() -> None:
    loss = PRESETS["prime-rl@2026-08/dppo"]
    p, q = f64(0.5, 0.5, 0.1, 0.1, 0.3), f64(0.2, 0.2, 0.4, 0.4, 0.2)
    table = replace(
        WEIGHED,
        logprobs=np.log(p),
        rollout_logprobs=np.log(q),
        advantages=f64(1, -1, 1, -1, 1),
    )
    # +0.3 with A > 0 and -0.3 with A < 0 are masked; the other way, and +0.1, are not
    counted = f64(0, 1, 1, 0, 1)
    square = 1e-3 * np.log(p / q) ** 2
    values, slopes = token_terms(loss, table)
    np.testing.assert_allclose(values, -counted * table.advantages * p / q + square, rtol=1e-12)
    pull = 2e-3 * np.log(p / q)
    np.testing.assert_allclose(slopes, -counted * table.advantages * p / q + pull, rtol=1e-12)


@pytest.mark.parametrize(
    ("moved", "counted"),
    [
        # p - q is 0.25, -0.25, 0.32, -0.25, 0.05; KL(q || p) of two outcomes is 0.144 for the
        # first two, and 0.1 ln(0.1 / 0.42) + 0.9 ln(0.9 / 0.58) = 0.252 for the third
        (Moved.TOTAL_VARIATION, [0, 0, 0, 1, 1]),
        (Moved.BINARY_KL, [1, 1, 0, 1, 1]),
        (Moved.EITHER_WAY, [0, 0, 0, 0, 1]),
    ],
)
def test_how_far_a_probability_moved(moved: Moved, counted: list[int]) -> None:
    q, p = f64(0.5, 0.5, 0.1, 0.9, 0.5), f64(0.75, 0.25, 0.42, 0.65, 0.55)
    table = replace(
        WEIGHED, old_logprobs=np.log(q), logprobs=np.log(p), advantages=f64(1, -1, 1, 1, 1)
    )
    kept = np.array(counted)
    plain = replace(PRESETS["ppo_clip"], term=Term.MASK_SHIFT)
    ratio = Ratio(low=0.2, high=0.2, moved=moved)
    values, slopes = token_terms(replace(plain, ratio=ratio), table)
    np.testing.assert_allclose(values, -kept * table.advantages * p / q, rtol=1e-12)
    np.testing.assert_array_equal(slopes, values)
    capped = replace(plain, term=Term.MASK_SHIFT_WEIGHT, ratio=replace(ratio, cap=1.2))
    values, slopes = token_terms(capped, table)
    held = -kept * table.advantages * np.minimum(p / q, 1.2)
    np.testing.assert_allclose(slopes, held, rtol=1e-12)
    np.testing.assert_allclose(values, held * np.log(p), rtol=1e-12)


def test_a_weight_that_no_float_holds_leaves_a_token_of_no_advantage_at_0() -> None:
    """The mean of row 0 is inside the bounds, one of its weights is exp(800)."""
    loss = PRESETS["openrlhf@2026-08/group_norm+seq-mask-tis"]
    table = replace(
        WEIGHED,
        old_logprobs=f64(-1, -801, -1, -1, -1),
        rollout_logprobs=f64(-801, -1, -1, -1, -1),
        advantages=f64(0, 1, 1, 1, 1),
    )
    values, slopes = token_terms(loss, table)
    assert values[0] == slopes[0] == 0.0
    held = replace(table, logprobs=f64(1, -1, -1, -1, -1) - 1.0, advantages=f64(1, 1, 1, 1, 1))
    values, slopes = token_terms(loss, held)
    assert values[0] == -INF
    assert slopes[0] == 0.0  # clipped: flat


def test_a_soft_gate_is_half_open_at_a_ratio_of_1() -> None:
    loss = PRESETS["trl@2026-07/sapo"]
    table = replace(
        WEIGHED,
        old_logprobs=np.log(f64(0.5, 0.5, 0.25, 1e-300, 0.5)),
        logprobs=np.log(f64(0.5, 0.5, 0.5, 0.9, 1e-300)),
    )
    values, slopes = token_terms(loss, table)
    # 4 / tau * 1/2 at r = 1; at r = 2 the gate is sigmoid(1); at 0 sigmoid(-1), at inf it is 1
    s = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(values, [-2, 2 / 1.05, -4 * s, -4, -4 * (1 - s)], rtol=1e-12)
    np.testing.assert_allclose(slopes, [-1, 1, -4 * s * (1 - s) * 2, 0, 0], atol=1e-12)


def test_exact_kl_is_the_column_and_has_no_slope_in_one_logprob() -> None:
    exact = f64(0.1, 0.2, 0.0, 0.3, 0.4)
    values, slopes = kl_terms(
        Kl(estimator=Estimator.EXACT, weight=1.0), replace(WEIGHED, exact_kl=exact)
    )
    assert values.tolist() == exact.tolist()
    assert not slopes.any()


def needs_nothing_but_its_advantage(loss: Loss) -> bool:
    """Return whether a loss adds nothing that an advantage does not weigh."""
    is_square = loss.ratio is not None and loss.ratio.square > 0.0
    is_plain = loss.kl is None and not loss.entropy and not is_square
    return loss.advantage is not Advantage.ONE and is_plain


@pytest.mark.parametrize(
    "name", [name for name, loss in PRESETS.items() if needs_nothing_but_its_advantage(loss)]
)
def test_an_advantage_of_zero_gives_zero_even_at_an_impossible_token(name: str) -> None:
    table = replace(
        WEIGHED,
        logprobs=f64(-INF, -1, -1, -1, -1),
        advantages=np.zeros(5),
        returns=np.zeros(5),
    )
    values, slopes = token_terms(PRESETS[name], table)
    assert not values.any()
    assert not slopes.any()


def test_which_columns_a_loss_needs() -> None:
    without = replace(WEIGHED, old_logprobs=None)
    assert inputs_of(PRESETS["nll"], WEIGHED) == ()
    assert inputs_of(PRESETS["reinforce"], WEIGHED) == ("returns",)
    assert inputs_of(PRESETS["grpo_kl"], WEIGHED) == ("old_logprobs", "ref_logprobs", "advantages")
    assert inputs_of(PRESETS["grpo"], without) == ("rollout_logprobs", "advantages")
    tis = PRESETS["slime@2026-08/per-rollout+tis"]
    assert inputs_of(tis, WEIGHED) == ("old_logprobs", "rollout_logprobs", "advantages")
    assert "old_logprobs" in inputs_of(tis, without)


def test_ratios_of_rows_and_steps() -> None:
    gap = np.log(f64(4.0, 0.5, 1.0, 0.2, 0.1))
    table = replace(WEIGHED, logprobs=gap - 3.0, step=np.array([0, 1, 1, 2, 2]))
    against = Behaviour.SAMPLER
    for level, wanted in (
        (Level.TOKEN, gap),
        (Level.ROW_PRODUCT, np.log(f64(2, 2, 2, 0.02, 0.02))),
        (Level.STEP_GEOMETRIC, np.log(f64(4, 0.5**0.5, 0.5**0.5, 0.02**0.5, 0.02**0.5))),
        (Level.ROW_GEOMETRIC, np.log(f64(2, 2, 2, 0.02, 0.02)) / f64(3, 3, 3, 2, 2)),
    ):
        found = log_ratio(Ratio(against=against, level=level), table)
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_a_term_of_ratios_without_a_ratio_is_a_mistake_of_the_table() -> None:
    loss = replace(PRESETS["ppo_clip"], ratio=None)
    with pytest.raises(ValueError, match="needs a ratio"):
        token_terms(loss, WEIGHED)
    with pytest.raises(ValueError, match="without ref_logprobs"):
        token_terms(PRESETS["grpo_kl"], WEIGHED)
