"""The table of losses over collected tokens: what is made of what, and its JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from tests.builders import make_trajectory
from trajkit.records import LogprobKind, Trajectory
from trajkit.rl.report import loss_inputs, loss_table
from trajkit.rl.tokens import ScoredStep, ScoredTokens, TokenCollector

CALLS = [([1], [5, 6]), ([1, 5, 6, 2], [7])]


def collected(*trajectories: Trajectory, logprob: float = -1.0, **given: Any) -> ScoredTokens:
    """Return the tokens of trajectories, each with the same log-prob."""
    collector = TokenCollector()
    for trajectory in trajectories:
        collector.add(
            trajectory,
            [
                ScoredStep(
                    step=step,
                    logprobs=np.full(step.n_action_tokens, logprob, dtype=np.float32),
                    **given,
                )
                for step in trajectory.steps
            ],
        )
    return collector.finish()


def pair(**given: Any) -> list[Trajectory]:
    return [
        make_trajectory(CALLS, name, group_id=["g"] * 2, reward=[None, reward], **given)
        for name, reward in (("a", 1.0), ("b", 0.0))
    ]


def test_each_preset_gets_its_own_advantages() -> None:
    recorded = [[-1.0, -1.0], [-1.0]]
    tokens = collected(*pair(rollout_logprobs=recorded))
    names = ("dr_grpo", "rloo", "nll", "reinforce")
    found = loss_table(tokens, names).values
    # ratios of 1; three tokens a trajectory; advantages 0.5 and -0.5, or 1 and -1
    assert found["dr_grpo"].value == pytest.approx(0.0, abs=1e-12)
    assert found["rloo"].value == pytest.approx(-(3 * 1.0 * -1.0 + 3 * -1.0 * -1.0) / 2)
    assert found["nll"].value == pytest.approx(1.0)
    assert found["reinforce"].value == pytest.approx(3.0 / 2)
    assert list(found) == list(names)


def test_recorded_advantages_win_over_every_estimator() -> None:
    given = {"advantages": [[2.0, 2.0], [2.0]], "rollout_logprobs": [[-1.0, -1.0], [-1.0]]}
    tokens = collected(*pair(**given))
    found = loss_table(tokens, ["ppo_clip", "dr_grpo", "rloo", "ppo_gae", "reinforce"])
    assert found.advantages.source == "recorded"
    assert found.values["ppo_clip"].value == pytest.approx(-2.0)
    assert found.values["dr_grpo"].value == pytest.approx(-6.0)
    assert found.values["rloo"].value == pytest.approx(6.0)
    assert found.values["ppo_gae"].value == pytest.approx(-2.0)
    assert found.values["reinforce"].value == pytest.approx(1.5)


def test_gae_needs_values() -> None:
    given = {"rollout_logprobs": [[-1.0, -1.0], [-1.0]], "values": [[0.25, 9.0], [0.5]]}
    found = loss_table(collected(*pair(**given)), ["ppo_gae"]).values["ppo_gae"]
    # a: 1 - 0.25 at two tokens, 1 - 0.5 at one; b: -0.25 at two, -0.5 at one; ratios of 1
    assert found.value == pytest.approx(-(2 * 0.75 + 0.5 - 2 * 0.25 - 0.5) / 6)
    del given["values"]
    missing = loss_table(collected(*pair(**given)), ["ppo_gae"]).values["ppo_gae"]
    assert missing.value is None
    assert "values of a critic" in (missing.reason or "")


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({}, None),
        ({"rollout_logprobs": [[-1.0, None], [None]]}, "rollout_logprobs"),
        ({"old_logprobs": [[-1.0, -1.0], [-1.0]]}, "old_logprobs"),
        (
            {"old_logprobs": [[-1.0, None], [-1.0]], "rollout_logprobs": [[-1.0, -1.0], [-1.0]]},
            "rollout_logprobs",
        ),
    ],
)
def test_the_old_policys_logprobs_are_told(given: Any, source: str | None) -> None:
    assert loss_table(collected(*pair(**given)), []).ratio_source == source


def test_what_is_not_comparable_or_infinite_is_unknown() -> None:
    hot = {"temperature": [0.5] * 2, "logprob_kind": [LogprobKind.PROCESSED] * 2}
    both = {name: [[-1.0, -1.0], [-1.0]] for name in ("old_logprobs", "rollout_logprobs")}
    inputs = loss_inputs(collected(*pair(**both, **hot)))
    assert inputs.old_logprobs is not None
    assert inputs.rollout_logprobs is not None
    assert np.isnan(inputs.old_logprobs).all()
    assert np.isnan(inputs.rollout_logprobs).all()
    odd = {name: [[-math.inf, -1.0], [-1.0]] for name in (*both, "ref_logprobs")}
    inputs = loss_inputs(collected(*pair(**odd)))
    for column in (inputs.old_logprobs, inputs.rollout_logprobs, inputs.ref_logprobs):
        assert column is not None
        assert np.isnan(column).tolist() == [True, False, False] * 2


def test_a_mask_chooses_what_counts_and_not_what_is_scored() -> None:
    mask = np.array([True], dtype=np.bool_)
    calls = [([1], [5])]
    tokens = collected(make_trajectory(calls, "a"), loss_mask=mask)
    assert loss_table(tokens, ["nll"], train="last-step").n_counted_tokens == 1
    none = collected(make_trajectory(calls, "a"), loss_mask=~mask)
    found = loss_table(none, ["nll"], train="answer")
    assert (found.n_counted_tokens, found.values["nll"].reason) == (0, "no token counts")
    assert found.to_dict()["losses"]["nll"]["why_null"] == "no token counts"


def test_the_distance_to_a_reference_by_three_estimators() -> None:
    reference = np.array([-1.0 - math.log(2.0)], dtype=np.float32)
    tokens = collected(make_trajectory([([1], [5])], "a"), ref_logprobs=reference)
    found = loss_table(tokens, ["grpo_kl"])
    gap = math.log(2.0)
    assert found.n_kl_tokens == 1
    assert found.kl == pytest.approx({"k1": gap, "k2": gap**2 / 2, "k3": 0.5 - 1 + gap}, rel=1e-6)
    without = loss_table(collected(make_trajectory([([1], [5])], "a")), [])
    assert (without.kl, without.n_kl_tokens) == (None, 0)
    assert without.to_dict()["kl_to_reference"] is None


def test_the_json_has_numerator_denominator_and_why() -> None:
    table = loss_table(collected(*pair(), logprob=-math.inf), ["nll", "grpo", "reinforce"])
    found = table.to_dict()
    assert json.loads(json.dumps(found["losses"]["grpo"])) == {
        "value": None,
        "numerator": None,
        "denominator": 0,
        "n_tokens": 0,
        "n_left_out": 6,
        "left_out": {"rollout_logprobs": 6},
        "advantage": "group_std",
        "reason": "no comparable log-probs of the sampler are recorded",
        "why_null": "no comparable log-probs of the sampler are recorded",
    }
    assert "probability 0" in found["losses"]["nll"]["why_null"]
    assert found["group_sizes"] == {"min": 2, "max": 2}
    assert (found["train"], found["length"], found["n_counted_tokens"]) == ("action", None, 6)


def test_an_exact_kl_is_a_mean_over_the_counted_tokens_that_have_one() -> None:
    exact = np.array([0.25, np.nan], dtype=np.float32)
    made = make_trajectory([([1], [5, 6])], "a")
    found = loss_table(collected(made, exact_kl=exact), [])
    assert (found.exact_kl, found.n_exact_kl) == (0.25, 1)
    assert found.to_dict()["exact_kl_to_reference"] == {"n": 1, "mean": 0.25}
    assert loss_table(collected(made), []).to_dict()["exact_kl_to_reference"] is None


def test_the_parts_of_a_loss_are_in_its_json() -> None:
    given = {"rollout_logprobs": [[-1.0, -1.0], [-1.0]]}
    entropies = iter((np.array([0.5, 1.5], np.float32), np.array([1.0], np.float32)) * 2)
    collector = TokenCollector()
    for trajectory in pair(**given):
        steps = [
            ScoredStep(
                step=step,
                logprobs=np.full(step.n_action_tokens, -1.0, dtype=np.float32),
                entropy=next(entropies),
            )
            for step in trajectory.steps
        ]
        collector.add(trajectory, steps)
    found = loss_table(collector.finish(), ["ppo_entropy"]).to_dict()["losses"]["ppo_entropy"]
    assert [part["name"] for part in found["parts"]] == ["policy", "entropy"]
    assert found["parts"][1] == {
        "name": "entropy",
        "weight": -0.01,
        "value": 1.0,
        "numerator": 6.0,
        "denominator": 6,
        "n_tokens": 6,
    }
    assert found["value"] == pytest.approx(-0.01)
