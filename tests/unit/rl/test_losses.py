import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trajkit.errors import UsageProblem
from trajkit.rl.losses import LossValue, evaluate, gradient, loss_names
from trajkit.rl.presets import LOSSES, PRESETS, SYSTEMS
from trajkit.rl.spec import Level, Loss, Term
from trajkit.rl.table import LossInputs

NAN, INF = math.nan, math.inf


def f64(values: list[float]) -> Any:
    return np.array(values, dtype=np.float64)


# Ratios p / p_rollout of 1.5, 0.5, 1, 1.1, 0.5, 1.5 in two trajectories of 3 tokens each. One
# context token stands in front of each; what it holds must not matter.
ROLLOUT = f64([NAN, -1.0, -2.0, -0.5, NAN, -1.0, -1.0, -3.0])
RATIOS = f64([1.0, 1.5, 0.5, 1.0, 1.0, 1.1, 0.5, 1.5])
TABLE = LossInputs(
    logprobs=np.where(np.isnan(ROLLOUT), -INF, ROLLOUT + np.log(RATIOS)),
    loss_mask=np.array([0, 1, 1, 1, 0, 1, 1, 1], dtype=np.bool_),
    trajectory=np.array([0, 0, 0, 0, 7, 7, 7, 7]),
    rollout_logprobs=ROLLOUT,
    advantages=f64([NAN, 1.0, 1.0, -2.0, NAN, 0.5, -2.0, -2.0]),
    returns=f64([3.0, 3.0, 3.0, 3.0, 0.5, 0.5, 0.5, 0.5]),
)


# The same with all that any preset asks for: p_old / p_rollout is 2.2, 0.4, 1, 1.3, 3.5, 0.9.
FULL = replace(
    TABLE,
    row=np.array([0, 0, 0, 1, 7, 7, 7, 8]),
    group=np.zeros(8, dtype=np.int64),
    old_logprobs=ROLLOUT + np.log(f64([1.0, 2.2, 0.4, 1.0, 1.0, 1.3, 3.5, 0.9])),
    ref_logprobs=np.where(np.isnan(ROLLOUT), NAN, -1.5),
    length=10,
)


def value(name: str, inputs: LossInputs = TABLE) -> LossValue:
    return evaluate(PRESETS[name], inputs)


def has_stopped_gradients(loss: Loss) -> bool:
    """Return whether differences of the value are not the slope: a factor is held fast."""
    if loss.ratio is None:
        return False
    return loss.term is Term.CLIP_WEIGHT or loss.ratio.level is not Level.TOKEN


def test_nll_is_minus_the_mean_over_tokens() -> None:
    # -1 + ln 1.5, -2 + ln 0.5, -0.5, -1 + ln 1.1, -1 + ln 0.5, -3 + ln 1.5: their sum is
    # -8.5 + ln(1.5 * 0.5 * 1.1 * 0.5 * 1.5) = -8.5 + ln 0.61875
    found = value("nll")
    assert found.numerator == pytest.approx(8.5 - math.log(0.61875), abs=1e-12)
    assert (found.denominator, found.n_left_out, found.reason) == (6, 0, None)
    assert found.value == pytest.approx((8.5 - math.log(0.61875)) / 6, abs=1e-12)


def test_reinforce_weighs_a_trajectory_by_its_return_and_divides_by_trajectories() -> None:
    # trajectory 0: R = 3, log p = -3.5 + ln 0.75; trajectory 7: R = 0.5, log p = -5 + ln 0.825
    numerator = -3.0 * (-3.5 + math.log(0.75)) - 0.5 * (-5.0 + math.log(0.825))
    found = value("reinforce")
    assert found.numerator == pytest.approx(numerator, abs=1e-12)
    assert found.denominator == 2
    assert found.value == pytest.approx(numerator / 2, abs=1e-12)


# min(r A, clip(r) A) per token:
#   r 1.5  A  1   -> min( 1.5,  1.2) =  1.2    clipped, flat
#   r 0.5  A  1   -> min( 0.5,  0.8) =  0.5    free
#   r 1.0  A -2   -> -2                        free
#   r 1.1  A  0.5 ->  0.55                     free
#   r 0.5  A -2   -> min(-1.0, -1.6) = -1.6    clipped, flat
#   r 1.5  A -2   -> min(-3.0, -2.4) = -3.0    free
def test_ppo_takes_the_smaller_of_the_free_and_the_clipped_side() -> None:
    found = value("ppo_clip")
    assert found.numerator == pytest.approx(-(1.2 + 0.5 - 2.0 + 0.55 - 1.6 - 3.0), abs=1e-12)
    assert found.denominator == 6
    assert found.value == pytest.approx(4.35 / 6, abs=1e-12)
    slopes = gradient(LOSSES["ppo_clip"], TABLE) * 6
    np.testing.assert_allclose(slopes, [0, 0, -0.5, 2.0, 0, -0.55, 0, 3.0], atol=1e-12)


def test_grpo_is_the_mean_over_trajectories_of_their_token_means() -> None:
    uneven = replace(TABLE, loss_mask=np.array([0, 1, 1, 1, 0, 1, 0, 0], dtype=np.bool_))
    found = value("grpo", uneven)
    # trajectory 0: (1.2 + 0.5 - 2.0) / 3 = -0.1; trajectory 7: 0.55
    assert found.numerator == pytest.approx(-(-0.1 + 0.55), abs=1e-12)
    assert found.denominator == 2
    assert found.value == pytest.approx(-0.225, abs=1e-12)


def test_an_advantage_of_zero_gives_zero_whatever_the_ratio() -> None:
    inputs = replace(TABLE, advantages=np.zeros(8), logprobs=np.full(8, -INF), returns=np.zeros(8))
    for name in ("ppo_clip", "grpo", "reinforce"):
        found = value(name, inputs)
        assert found.value == 0.0
        assert not gradient(PRESETS[name], inputs).any()
    far = replace(
        TABLE, advantages=np.zeros(8), logprobs=np.zeros(8), rollout_logprobs=ROLLOUT * 1e4
    )
    assert value("ppo_clip", far).value == 0.0


def test_an_impossible_token_makes_the_likelihood_infinite_and_is_not_clamped() -> None:
    logprobs = TABLE.logprobs.copy()
    logprobs[2] = -INF
    inputs = replace(TABLE, logprobs=logprobs)
    assert value("nll", inputs).value == INF
    assert value("reinforce", inputs).value == INF
    assert value("ppo_clip", inputs).numerator == pytest.approx(4.35 + 0.5, abs=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_what_stands_on_context_tokens_does_not_matter(name: str) -> None:
    wanted = value(name, FULL)
    assert wanted.value is not None
    for odd in (-INF, NAN, 0.0, -3.0, INF):
        logprobs = np.where(FULL.loss_mask, FULL.logprobs, odd)
        inputs = replace(FULL, logprobs=logprobs)
        assert value(name, inputs) == wanted
        slopes = gradient(PRESETS[name], inputs)
        assert (slopes[~FULL.loss_mask] == 0.0).all()
        assert slopes[FULL.loss_mask].any() or "gspo" in name  # whose clip holds all of these


@pytest.mark.parametrize(
    "name", [n for n, loss in PRESETS.items() if not has_stopped_gradients(loss)]
)
def test_the_slope_is_what_central_differences_measure(name: str) -> None:
    base = np.where(FULL.loss_mask, FULL.logprobs, -1.0)
    slopes = gradient(PRESETS[name], replace(FULL, logprobs=base))
    for at in range(len(base)):
        moved = []
        for sign in (1.0, -1.0):
            logprobs = base.copy()
            logprobs[at] += sign * 1e-5
            found = value(name, replace(FULL, logprobs=logprobs)).value
            assert found is not None
            moved.append(found)
        measured = (moved[0] - moved[1]) / 2e-5
        assert slopes[at] == pytest.approx(measured, rel=1e-7, abs=1e-8)
        if not FULL.loss_mask[at]:
            assert measured == 0.0


@pytest.mark.parametrize("name", PRESETS)
def test_an_empty_mask_gives_no_value(name: str) -> None:
    for inputs in (
        replace(TABLE, loss_mask=np.zeros(8, dtype=np.bool_)),
        LossInputs(
            logprobs=f64([]),
            loss_mask=np.zeros(0, dtype=np.bool_),
            trajectory=np.zeros(0, dtype=np.int64),
        ),
    ):
        assert value(name, inputs) == LossValue(
            value=None,
            numerator=None,
            denominator=0,
            n_tokens=0,
            n_left_out=0,
            reason="no token counts",
        )
        assert not gradient(PRESETS[name], inputs).any()


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("ppo_clip", "rollout_logprobs", "log-probs of the sampler"),
        ("grpo", "rollout_logprobs", "log-probs of the sampler"),
        ("ppo_clip", "advantages", "advantages"),
        ("grpo", "advantages", "advantages"),
        ("reinforce", "returns", "no reward"),
        ("tis", "rollout_logprobs", "log-probs of the sampler"),
        ("grpo_kl", "ref_logprobs", "reference model"),
        ("verl@2026-08/token-mean+is-token", "old_logprobs", "log-probs of the trainer"),
        ("ppo_gae", "advantages", "no values of a critic"),
        ("verl@2026-01/seq-mean-token-sum-norm", "length", "--length"),
    ],
)
def test_a_loss_without_its_inputs_says_which(name: str, column: str, words: str) -> None:
    for missing in (None,) if column == "length" else (None, np.full(8, NAN)):
        table = replace(FULL if "old" not in column else TABLE, old_logprobs=None)
        without: Any = {column: missing}
        found = value(name, replace(table, **without))
        assert (found.value, found.numerator, found.denominator) == (None, None, 0)
        assert found.n_left_out == (0 if column == "length" else 6)
        assert words in (found.reason or "")
        assert not gradient(PRESETS[name], replace(table, **without)).any()


def test_tokens_without_an_input_are_left_out_and_counted() -> None:
    rollout = TABLE.rollout_logprobs
    assert rollout is not None
    partial = rollout.copy()
    partial[[1, 6]] = NAN
    found = value("ppo_clip", replace(TABLE, rollout_logprobs=partial))
    assert (found.denominator, found.n_left_out) == (4, 2)
    assert found.left_out == {"rollout_logprobs": 2}
    assert found.numerator == pytest.approx(-(0.5 - 2.0 + 0.55 - 3.0), abs=1e-12)


def test_each_missing_input_has_its_own_count() -> None:
    rollout, logprobs = f64([NAN, NAN, -2, -0.5, NAN, -1, -1, -3]), TABLE.logprobs.copy()
    logprobs[2] = NAN
    inputs = replace(TABLE, rollout_logprobs=rollout, logprobs=logprobs, advantages=None)
    found = value("grpo", inputs)
    assert found.n_left_out == 6
    assert found.left_out == {"logprobs": 1, "rollout_logprobs": 1, "advantages": 6}
    assert value("nll", inputs).left_out == {"logprobs": 1}
    assert value("reinforce", TABLE).left_out == {}


ON_POLICY = LossInputs(
    logprobs=f64([-1.0, -2.0, -0.5, -3.0]) + f64([3e-7, -1e-7, 2e-7, 1e-7]),
    loss_mask=np.ones(4, dtype=np.bool_),
    trajectory=np.array([0, 0, 1, 1]),
    rollout_logprobs=f64([-1.0, -2.0, -0.5, -3.0]),
    advantages=f64([0.7, 0.7, -0.7, -0.7]),
    returns=f64([1.0, 1.0, 0.0, 0.0]),
)


def test_advantages_that_cancel_at_ratios_of_1_are_zero_up_to_rounding() -> None:
    for name in ("ppo_clip", "grpo"):
        found = value(name, ON_POLICY)
        assert found.value is not None
        assert 0.0 < abs(found.value) < 1e-6
        assert found.remark is not None
        assert "zero up to rounding" in found.remark
    exact = replace(ON_POLICY, logprobs=f64([-1.0, -2.0, -0.5, -3.0]))
    assert value("grpo", exact).value == 0.0
    assert value("grpo", exact).remark is not None


def test_other_small_sums_have_no_remark() -> None:
    for name in PRESETS:
        assert value(name, FULL).remark is None
    nothing = replace(ON_POLICY, advantages=np.zeros(4))
    assert value("grpo", nothing).remark is None
    away = replace(ON_POLICY, logprobs=f64([-0.9, -1.9, -0.4, -2.9]))
    assert value("grpo", away).value == pytest.approx(0.0, abs=1e-12)
    assert value("grpo", away).remark is None  # the ratios are 1.1
    returns = replace(ON_POLICY, logprobs=np.full(4, -1.0), returns=f64([1.0, 1.0, -1.0, -1.0]))
    assert value("reinforce", returns).value == 0.0
    assert value("reinforce", returns).remark is None
    longer = replace(ON_POLICY, advantages=f64([0.7, 0.7, -0.7, NAN]))
    assert value("ppo_clip", longer).remark is None
    assert value("grpo", longer).remark is not None


def test_a_counted_token_without_a_logprob_is_left_out_of_every_loss() -> None:
    logprobs = TABLE.logprobs.copy()
    logprobs[3] = NAN
    for name in PRESETS:
        found = value(name, replace(FULL, logprobs=logprobs))
        assert found.n_left_out == 1
        assert found.value == pytest.approx(
            value(name, replace(FULL, loss_mask=FULL.loss_mask & (np.arange(8) != 3))).value
        )


def test_inputs_that_never_meet_are_told_apart_from_inputs_that_are_missing() -> None:
    inputs = replace(
        TABLE,
        rollout_logprobs=f64([NAN, -1, -1, -1, NAN, NAN, NAN, NAN]),
        advantages=f64([NAN, NAN, NAN, NAN, NAN, 1, 1, 1]),
    )
    assert value("ppo_clip", inputs).reason == "no token has every input"


def test_sums_are_in_float64() -> None:
    n = 1_000_000
    logprobs = np.full(n, np.float32(-0.1)).astype(np.float64)
    inputs = LossInputs(
        logprobs=logprobs,
        loss_mask=np.ones(n, dtype=np.bool_),
        trajectory=np.zeros(n, dtype=np.int64),
    )
    assert value("nll", inputs).numerator == pytest.approx(100_000.00149, abs=1e-4)


# ratios p / p_rollout of 1.5, 0.5, 1, 1.1, 0.5, 1.5 and returns of 3 and 0.5; those above the cap
# of 2 are not there, so each token is weighed by its ratio:
#   trajectory 0: 1.5 * 3 * (-1 + ln 1.5) + 0.5 * 3 * (-2 + ln 0.5) + 1 * 3 * (-0.5)
#   trajectory 7: 0.5 * (1.1 * (-1 + ln 1.1) + 0.5 * (-1 + ln 0.5) + 1.5 * (-3 + ln 1.5))
def test_tis_weighs_each_token_of_reinforce_by_its_ratio() -> None:
    first = 4.5 * (-1 + math.log(1.5)) + 1.5 * (-2 + math.log(0.5)) - 1.5
    other = 1.1 * (-1 + math.log(1.1)) + 0.5 * (-1 + math.log(0.5)) + 1.5 * (-3 + math.log(1.5))
    found = value("tis")
    assert found.value == pytest.approx(-(first + 0.5 * other) / 2, abs=1e-12)
    far = replace(TABLE, logprobs=np.minimum(TABLE.logprobs + math.log(4.0), 0.0))
    assert found.value is not None
    # ratios of 6, 2, 4, 4.4 -> p is 1 for the second trajectory's middle token, ...: capped at 2
    capped = [2 * 3, 2 * 3, 2 * 3, 2 * 0.5, 2 * 0.5, 2 * 0.5]
    logs = far.logprobs[far.loss_mask]
    assert value("tis", far).value == pytest.approx(-float(np.dot(capped, logs)) / 2, abs=1e-12)


# A < 0 and a ratio of 5: -min(5 A, 1.2 A) = -5 A = 10, but at most -3 A = 6, and flat there
def test_dual_clip_bounds_the_loss_of_a_bad_token_that_became_likely() -> None:
    one = LossInputs(
        logprobs=f64([-1.0]),
        loss_mask=np.ones(1, dtype=np.bool_),
        trajectory=np.zeros(1, dtype=np.int64),
        rollout_logprobs=f64([-1.0 - math.log(5.0)]),
        advantages=f64([-2.0]),
    )
    assert value("ppo_clip", one).value == pytest.approx(10.0)
    assert value("ppo_dual_clip", one).value == pytest.approx(6.0)
    assert gradient(PRESETS["ppo_clip"], one).tolist() == pytest.approx([10.0])
    assert gradient(PRESETS["ppo_dual_clip"], one).tolist() == [0.0]


# row 0 holds log-ratios of ln 1.5 and ln 0.5: their geometric mean is sqrt(0.75) = 0.866, below
# 1 - 0.0003, so with A = 1 the free side -0.866 is the loss and its slope is shared by two tokens
def test_gspo_gives_a_row_one_ratio() -> None:
    two = LossInputs(
        logprobs=f64([-1.0, -2.0]) + np.log(f64([1.5, 0.5])),
        loss_mask=np.ones(2, dtype=np.bool_),
        trajectory=np.zeros(2, dtype=np.int64),
        rollout_logprobs=f64([-1.0, -2.0]),
        advantages=f64([1.0, 1.0]),
    )
    assert value("gspo", two).value == pytest.approx(-math.sqrt(0.75), abs=1e-12)
    slopes = gradient(PRESETS["gspo"], two)
    assert slopes.tolist() == pytest.approx([-math.sqrt(0.75) / 2] * 2)
    for at in range(2):  # a row's tokens share A: the slope is that of the row's own ratio
        moved = two.logprobs.copy()
        moved[at] += 1e-6
        above = value("gspo", replace(two, logprobs=moved)).value
        assert above is not None
        assert (above + math.sqrt(0.75)) / 1e-6 == pytest.approx(slopes[at], rel=1e-4)
    good = replace(two, logprobs=two.logprobs + math.log(2.0))  # sqrt(3) = 1.73 > 1.0004: held
    assert value("gspo", good).value == pytest.approx(-1.0004, abs=1e-12)
    assert not gradient(PRESETS["gspo"], good).any()


# d = log p - log p_ref = ln 2: k3 = 1/2 - 1 + ln 2
def test_kl_is_added_with_its_weight() -> None:
    one = LossInputs(
        logprobs=f64([-1.0]),
        loss_mask=np.ones(1, dtype=np.bool_),
        trajectory=np.zeros(1, dtype=np.int64),
        rollout_logprobs=f64([-1.0]),
        ref_logprobs=f64([-1.0 - math.log(2.0)]),
        advantages=f64([1.0]),
    )
    k3 = 0.5 - 1.0 + math.log(2.0)
    assert value("grpo_kl", one).value == pytest.approx(-1.0 + 0.04 * k3, abs=1e-12)
    assert gradient(PRESETS["grpo_kl"], one).tolist() == pytest.approx([-1.0 + 0.04 * (1 - 0.5)])
    verl = PRESETS["verl@2026-08/kl-loss"]
    far = replace(one, ref_logprobs=f64([4.0]))  # d = -5: exp(5) - 1 - 5 = 142.4, cut to 10
    assert evaluate(verl, far).value == pytest.approx(-1.0 + 0.001 * 10.0, abs=1e-12)
    assert gradient(verl, far).tolist() == pytest.approx([-1.0])
    gone = replace(one, logprobs=f64([-INF]))
    assert value("grpo_kl", gone).value == INF


def test_the_old_policy_is_the_trainers_and_without_one_the_sampler() -> None:
    assert value("ppo_clip", FULL).value != value("ppo_clip", TABLE).value
    moved = replace(FULL, rollout_logprobs=ROLLOUT + 1.0)
    assert value("ppo_clip", moved) == value("ppo_clip", FULL)
    assert value("tinker@2026-08/ppo", moved) != value("tinker@2026-08/ppo", FULL)
    same = replace(TABLE, old_logprobs=TABLE.rollout_logprobs)
    assert value("ppo_clip", same).value == value("ppo_clip", TABLE).value


def test_names_are_papers_presets_systems_or_all() -> None:
    assert loss_names(None) == tuple(LOSSES)
    assert loss_names(["all"]) == tuple(PRESETS)
    assert loss_names([]) == ()
    assert loss_names(["grpo", "nll", "grpo"]) == ("grpo", "nll")
    verl = loss_names(["verl"])
    assert len(verl) > 5
    assert all(name.startswith("verl@") for name in verl)
    assert loss_names(["trl@2026-07/dapo"]) == ("trl@2026-07/dapo",)
    for asked, hint in (("gpro", "grpo"), ("ver", "verl"), ("nothing-like-it", None), ("", None)):
        with pytest.raises(UsageProblem) as caught:
            loss_names([asked])
        assert caught.value.code == "U103"
        assert (caught.value.hint is None) == (hint is None)
        assert hint is None or hint in (caught.value.hint or "")
    assert set(SYSTEMS) | set(LOSSES) == set(PRESETS)
