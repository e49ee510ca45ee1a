import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trajkit.errors import UsageProblem
from trajkit.rl.losses import LossValue, context_gradient, evaluate, gradient, loss_names
from trajkit.rl.presets import JOINT, LOSSES, PRESETS, SYSTEMS
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
    step=np.array([0, 0, 0, 1, 2, 2, 2, 3]),
    entropy=f64([NAN, 0.5, 1.5, 1.0, NAN, 2.0, 0.25, 0.75]),
    exact_kl=f64([NAN, 0.1, 0.2, 0.0, NAN, 0.4, 0.05, 0.25]),
    context=LossInputs(
        logprobs=f64([-1.0, -3.0, -0.5, -2.0, -4.0]),
        loss_mask=np.ones(5, dtype=np.bool_),
        trajectory=np.array([0, 0, 0, 7, 7]),
        row=np.array([0, 0, 1, 7, 7]),
        step=np.array([0, 0, 1, 2, 2]),
        action_entropy=f64([0.8, 0.8, 0.3, 0.9, 0.9]),
        group_reward=f64([0.25, 0.25, 0.25, 0.75, 0.75]),
    ),
    group=np.zeros(8, dtype=np.int64),
    old_logprobs=ROLLOUT + np.log(f64([1.0, 2.2, 0.4, 1.0, 1.0, 1.3, 3.5, 0.9])),
    ref_logprobs=np.where(np.isnan(ROLLOUT), NAN, -1.5),
    length=10,
)


def value(name: str, inputs: LossInputs = TABLE) -> LossValue:
    return evaluate(PRESETS[name], inputs)


def moved(loss: Loss, inputs: LossInputs, at: int, by: float) -> float:
    """Return the loss with one log-prob moved, and with it what a stopped gradient holds fast.

    A ratio that is held stays what it is when both of its log-probs move.
    """
    columns = ["logprobs"]
    if loss.term in (Term.CLIP_WEIGHT, Term.MASK_SHIFT_WEIGHT):
        columns += ["old_logprobs", "rollout_logprobs"]
    changed = {name: getattr(inputs, name).copy() for name in columns}
    for each in changed.values():
        each[at] += by
    found = evaluate(loss, replace(inputs, **changed)).value
    assert found is not None
    return found


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
    assert not context_gradient(replace(PRESETS[name], observed=None), FULL).any()


@pytest.mark.parametrize("name", PRESETS)
def test_the_slope_is_what_central_differences_measure(name: str) -> None:
    loss = PRESETS[name]
    inputs = replace(FULL, logprobs=np.where(FULL.loss_mask, FULL.logprobs, -1.0))
    if loss.ratio is not None and loss.ratio.level is not Level.TOKEN:
        # the tokens of a row share their advantage there, or the slope is GSPO-token's; the ratios
        # of rows are sqrt(0.75), 1, sqrt(0.55) and 1.5, outside of GSPO's clip: on its free side
        shared = f64([NAN, 1.0, 1.0, -2.0, NAN, 0.5, 0.5, -2.0])
        inputs = replace(inputs, advantages=shared, old_logprobs=None)
    slopes = gradient(loss, inputs)
    for at in range(len(slopes)):
        above, below = (moved(loss, inputs, at, by) for by in (1e-5, -1e-5))
        measured = (above - below) / 2e-5
        assert slopes[at] == pytest.approx(measured, rel=1e-7, abs=1e-8)
        if not FULL.loss_mask[at]:
            assert measured == 0.0
    assert slopes.any()


@pytest.mark.parametrize("name", [n for n, loss in PRESETS.items() if loss.observed is not None])
def test_the_slope_at_observations_is_what_central_differences_measure(name: str) -> None:
    loss, context = PRESETS[name], FULL.context
    assert context is not None
    slopes = context_gradient(loss, FULL)
    for at in range(len(slopes)):
        found = []
        for by in (1e-5, -1e-5):
            logprobs = context.logprobs.copy()
            logprobs[at] += by
            moved_context = replace(context, logprobs=logprobs)
            found.append(value(name, replace(FULL, context=moved_context)).value)
        assert found[0] is not None
        assert found[1] is not None
        assert slopes[at] == pytest.approx((found[0] - found[1]) / 2e-5, rel=1e-7, abs=1e-9)
    assert (slopes <= 0.0).all()
    assert slopes.any()
    np.testing.assert_array_equal(
        gradient(loss, FULL), gradient(replace(loss, observed=None), FULL)
    )


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
        ("agent-r1@2026-04/step-gae", "advantages", "no values of a critic"),
        ("ppo_entropy", "entropy", "no entropies"),
        ("grpo_exact_kl", "exact_kl", "no exact_kl in the scores"),
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
    assert set(SYSTEMS) | set(LOSSES) | set(JOINT) == set(PRESETS)
    assert loss_names(["echo"]) == ("echo",)


# the policy's part is as without the others; the parts add up with their weights
def test_an_entropy_bonus_lowers_the_loss_by_its_coefficient_a_nat() -> None:
    found = value("ppo_entropy", FULL)
    plain = value("ppo_clip", FULL)
    assert plain.numerator is not None
    assert found.numerator == pytest.approx(plain.numerator - 0.01 * 6.0, abs=1e-12)
    policy, entropy = found.parts
    assert (policy.value, policy.denominator) == (plain.value, 6)
    assert (entropy.name, entropy.weight, entropy.numerator) == ("entropy", -0.01, 6.0)
    assert plain.parts == ()
    np.testing.assert_array_equal(
        gradient(PRESETS["ppo_entropy"], FULL), gradient(PRESETS["ppo_clip"], FULL)
    )


# trajectory 0: (0.1 + 0.2 + 0) / 3 = 0.1; trajectory 7: (0.4 + 0.05 + 0.25) / 3 = 0.7 / 3
def test_an_exact_kl_is_taken_as_it_was_scored() -> None:
    found = value("grpo_exact_kl", FULL)
    plain = value("grpo", FULL).value
    assert plain is not None
    policy, kl = found.parts
    assert (kl.name, kl.weight, kl.denominator) == ("kl", 0.04, 2)
    assert kl.numerator == pytest.approx(0.1 + 0.7 / 3, abs=1e-12)
    assert policy.value == plain
    assert found.value == pytest.approx(plain + 0.04 * (0.1 + 0.7 / 3) / 2, abs=1e-12)


# -log p of observations: 1, 3, 0.5 in trajectory 0 (rows 0, 0, 1), 2, 4 in trajectory 7
@pytest.mark.parametrize(
    ("name", "weight", "numerator", "denominator", "n"),
    [
        ("env_sft", 1.0, 4.5 / 3 + 6.0 / 2, 2, 5),
        ("echo", 0.05, 4.5 / 3 + 6.0 / 2, 2, 5),
        ("echo_token_mean", 0.05, 10.5, 5, 5),
        ("rllm@2026-06/echo", 0.05, 4.0 / 2 + 0.5 + 6.0 / 2, 3, 5),
        ("prime-rl@2026-08/echo", 0.1, 10.5, 5, 5),
        # actions of entropy 0.9, 0.8, 0.3: the half of three is two, steps 0 and 2
        ("paw_select", 0.05, 4.0 / 2 + 6.0 / 2, 2, 4),
        (
            "paw_tolerant",
            0.05,
            (3 - math.exp(-1) - math.exp(-3) - math.exp(-0.5)) / 3
            + (2 - math.exp(-2) - math.exp(-4)) / 2,
            2,
            5,
        ),
        ("paw_adaptive", 0.05, 0.75 * 4.5 / 3 + 0.25 * 6.0 / 2, 2, 5),
        (
            "paw",
            0.05,
            0.75 * (2 - math.exp(-1) - math.exp(-3)) / 2
            + 0.25 * (2 - math.exp(-2) - math.exp(-4)) / 2,
            2,
            4,
        ),
    ],
)
def test_a_loss_on_observations_stands_beside_the_policys(
    name: str, weight: float, numerator: float, denominator: int, n: int
) -> None:
    found = value(name, FULL)
    policy, observation = found.parts
    assert (observation.name, observation.weight) == ("observation", weight)
    assert observation.numerator == pytest.approx(numerator, abs=1e-12)
    assert (observation.denominator, observation.n_tokens) == (denominator, n)
    alone = evaluate(replace(PRESETS[name], observed=None), FULL)
    assert policy.value == alone.value
    assert found.value == pytest.approx(policy.value + weight * numerator / denominator, abs=1e-12)
    assert (found.numerator, found.denominator, found.n_tokens) == (None, None, 6 + n)


def test_an_observed_loss_without_observations_says_what_it_lacks() -> None:
    context = FULL.context
    assert context is not None
    nothing = replace(context, loss_mask=np.zeros(5, dtype=np.bool_))
    for missing in (None, nothing):
        found = value("echo", replace(FULL, context=missing))
        assert found.value is None
        assert "--train action-observation" in (found.reason or "")
        assert not gradient(PRESETS["echo"], replace(FULL, context=missing)).any()
    unknown = replace(context, action_entropy=np.full(5, NAN), group_reward=None)
    inputs = replace(FULL, context=unknown)
    assert "entropy of an action" in (value("paw_select", inputs).reason or "")
    assert "reward of the groups" in (value("paw_adaptive", inputs).reason or "")
    assert value("paw_adaptive", inputs).left_out == {"group_reward": 5}
    assert value("echo", inputs).value is not None
    assert value("echo", replace(TABLE, old_logprobs=None, context=None)).value is None


def test_observations_without_an_input_are_left_out_and_counted() -> None:
    context = FULL.context
    assert context is not None
    partial = replace(context, action_entropy=f64([0.8, 0.8, 0.3, NAN, NAN]))
    found = value("paw_select", replace(FULL, context=partial))
    assert found.left_out == {"action_entropy": 2}
    assert found.n_left_out == 2
    assert (found.parts[1].denominator, found.parts[1].n_tokens) == (1, 2)


def test_infinite_terms_of_both_signs_have_no_value() -> None:
    logprobs = TABLE.logprobs.copy()
    logprobs[[1, 5]] = -INF
    inputs = replace(TABLE, logprobs=logprobs, returns=np.where(TABLE.trajectory == 0, 1.0, -1.0))
    found = value("reinforce", inputs)
    assert (found.value, found.numerator, found.denominator) == (None, None, 0)
    assert "both signs: a token has probability 0" in (found.reason or "")


def test_ratios_that_no_float_holds_are_infinite_and_of_both_signs_have_no_value() -> None:
    """exp(800) with A > 0 and with A < 0; what is clipped or bounded stays a number."""
    far = replace(TABLE, rollout_logprobs=TABLE.logprobs - 800.0)
    one_sided = replace(far, advantages=np.where(TABLE.loss_mask, -1.0, NAN))
    assert value("tinker@2026-08/importance_sampling", one_sided).value == INF
    assert value("ppo_clip", one_sided).value == INF
    assert gradient(PRESETS["ppo_clip"], one_sided)[1] == INF
    both = value("tinker@2026-08/importance_sampling", far)
    assert both.value is None
    assert "a ratio that no float holds" in (both.reason or "")
    bounded = value("miles@2026-08/per-token", one_sided).value
    assert bounded == pytest.approx(math.exp(20.0), rel=1e-12)
    assert value("ppo_dual_clip", one_sided).value == pytest.approx(3.0)


# d = log p - log p_ref = ln 2 everywhere, but 0 in rows 1 and 8: k3 is 1/2 - 1 + ln 2 in rows 0 and
# 7, whose means are averaged with two zeros, while the policy's tokens are averaged as they are
def test_a_kl_may_have_a_denominator_of_its_own() -> None:
    gap = np.where(np.isin(FULL.rows, (1, 8)), 0.0, math.log(2.0))
    inputs = replace(FULL, ref_logprobs=FULL.logprobs - gap)
    found, plain = value("skyrl@2026-08/token_mean+kl", inputs), value("ppo_clip", inputs)
    policy, kl = found.parts
    assert policy.value == pytest.approx(plain.value, rel=1e-12)
    k3 = 0.5 - 1.0 + math.log(2.0)
    assert (kl.name, kl.denominator) == ("kl", 4)
    assert kl.numerator == pytest.approx(2 * k3, abs=1e-12)
    assert found.value == pytest.approx(policy.value + 0.001 * k3 / 2, abs=1e-12)
    assert (found.numerator, found.denominator, found.n_tokens) == (None, None, 6)


def extreme(seed: int) -> LossInputs:
    """Return tokens whose log-probs, ratios and weights go as far as records may."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))

    def column(size: int, far: list[float]) -> Any:
        return np.where(
            rng.uniform(size=size) < 0.4, rng.choice(far, size), rng.uniform(-3, -0.05, size)
        )

    recorded = [-800.0, 0.0, -1e5]
    return LossInputs(
        logprobs=column(n, [-INF, -800.0, 0.0, -1e5]),
        loss_mask=rng.uniform(size=n) < 0.9,
        trajectory=rng.integers(0, 2, n),
        row=rng.integers(0, 3, n),
        step=rng.integers(0, 3, n),
        group=np.zeros(n, dtype=np.int64),
        rollout_logprobs=column(n, recorded),
        old_logprobs=column(n, recorded) if seed % 3 else None,
        ref_logprobs=column(n, recorded),
        exact_kl=rng.choice([0.0, 1.0, INF], n, p=[0.4, 0.5, 0.1]),
        entropy=rng.uniform(0.0, 3.0, n),
        advantages=rng.choice([0.0, 1.0, -1.0, -2.5], n),
        returns=rng.choice([0.0, 1.0, -1.0, -2.5], n),
        length=8,
        context=LossInputs(
            logprobs=column(4, [-INF, -800.0, 0.0]),
            loss_mask=np.ones(4, dtype=np.bool_),
            trajectory=np.zeros(4, dtype=np.int64),
            step=rng.integers(0, 2, 4),
            action_entropy=rng.uniform(0.0, 3.0, 4),
            group_reward=rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0], 4),
        ),
    )


@pytest.mark.parametrize("name", PRESETS)
def test_no_loss_is_a_nan_and_one_without_a_value_says_why(name: str) -> None:
    n_values = 0
    for seed in range(40):
        inputs = extreme(seed)
        found = value(name, inputs)
        assert (found.value is None) == (found.reason is not None)
        assert not any(math.isnan(part.value) for part in found.parts)
        assert found.value is None or not math.isnan(found.value)
        slopes = gradient(PRESETS[name], inputs)
        assert found.value is None or found.value == INF or not np.isnan(slopes).any()
        assert not np.isnan(context_gradient(PRESETS[name], inputs)).any()
        n_values += found.value is not None
    assert n_values > 20
