"""Losses out of a table of scores: the same sums, other masks, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import make_step, make_trajectory, tiny_tokenizer
from tests.loss_builders import Row, data_at, scores_at
from trajkit.errors import NumericError, TrajkitError
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.rl.presets import LOSSES
from trajkit.rl.run import check_told_by, losses
from trajkit.store.read import Dataset, open_dataset

CALLS = [([1], [5, 6]), ([1, 5, 6, 2], [7])]
ROLLOUT = [[-0.5, -0.25], [-2.0]]


def one(name: str, reward: float, **given: Any) -> Trajectory:
    made: Trajectory = make_trajectory(
        CALLS,
        name,
        group_id=["g", "g"],
        reward=[None, reward],
        rollout_logprobs=ROLLOUT,
        **given,
    )
    return made


TEXT = Trajectory(trajectory_id="t", steps=(make_step(action_text="x"),))
ROWS: list[Row] = [
    ("a", 0, [-1.0, -0.5], None),
    ("a", 1, [-2.0], None),
    ("b", 0, [-0.25, None], [-0.5, -0.5]),
    ("b", 1, [-4.0], [-4.0]),
    ("t", 0, None, None),
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    data = data_at(tmp_path / "d.parquet", [one("a", 1.0), one("b", 0.0), TEXT])
    return data, scores_at(tmp_path / "s.parquet", data, ROWS)


def test_counts_and_sums(files: tuple[Path, Path]) -> None:
    report = losses(*files)
    assert (report.n_trajectories, report.n_unscored, report.n_steps) == (3, 0, 5)
    assert (report.n_action_tokens, report.n_scored_tokens) == (6, 5)
    assert report.by_source == {"sampled": 4, "none": 1}
    found = report.table.values
    assert list(found) == list(LOSSES)
    assert found["nll"].numerator == pytest.approx(1.0 + 0.5 + 2.0 + 0.25 + 4.0)
    assert found["nll"].denominator == found["nll"].n_tokens == 5
    assert found["reinforce"].value == pytest.approx(1.0 * 3.5 / 2)
    assert report.table.ratio_source == "rollout_logprobs"
    assert report.model == {"name": "m", "dtype": "fp32"}


def test_trajectories_that_were_not_scored_are_counted(tmp_path: Path) -> None:
    data = data_at(tmp_path / "d.parquet", [one("a", 1.0), one("b", 0.0), TEXT])
    scores = scores_at(tmp_path / "s.parquet", data, ROWS[:2])
    report = losses(data, scores)
    assert (report.n_trajectories, report.n_unscored, report.n_scored_tokens) == (1, 2, 3)
    assert report.table.values["grpo"].value is None


def test_a_policy_chooses_and_a_selection_selects(files: tuple[Path, Path]) -> None:
    last = losses(*files, train="last-step", losses=["nll"]).table
    assert (last.train, last.n_counted_tokens) == ("last-step", 2)
    assert last.values["nll"].value == pytest.approx((2.0 + 4.0) / 2)
    only = losses(*files, only=["b"], losses=["nll"])
    assert only.table.values["nll"].value == pytest.approx((0.25 + 4.0) / 2)
    assert losses(*files, limit=1, losses=["nll"]).n_trajectories == 1
    text_needed = losses(*files, train="no-think", losses=["nll"], tokenizer=tiny_tokenizer())
    assert text_needed.table.n_counted_tokens == 5


def test_a_reference_in_the_scores_gives_kl(files: tuple[Path, Path]) -> None:
    table = losses(*files, losses=["grpo_kl"]).table
    assert table.n_kl_tokens == 2
    assert table.kl is not None
    assert table.kl["k1"] == pytest.approx((0.25 + 0.0) / 2)
    assert table.values["grpo_kl"].left_out["ref_logprobs"] == 3


def test_lengths_reach_the_presets_that_divide_by_one(files: tuple[Path, Path]) -> None:
    name = "verl@2026-01/seq-mean-token-sum-norm"
    assert losses(*files, losses=[name]).table.values[name].value is None
    assert losses(*files, losses=[name], length=7).table.values[name].denominator == 7


def test_the_report_is_json_with_its_schema(files: tuple[Path, Path]) -> None:
    found = json.loads(json.dumps(losses(*files).to_dict(), allow_nan=False))
    assert found["schema"] == "trajkit.losses/1"
    assert list(found)[1] == "sampled_share"
    assert found["sampled_share"] == pytest.approx(4 / 5)
    promised = {"value", "numerator", "denominator", "n_tokens", "why_null"}
    assert all(promised <= set(value) for value in found["losses"].values())
    assert found["reference"] is None


def test_scores_of_other_data_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    other = data_at(tmp_path / "other.parquet", [one("a", 1.0)])
    with pytest.raises(TrajkitError) as caught:
        losses(other, files[1])
    assert caught.value.code == "U103"


def test_scores_without_a_number_are_said_to_be(tmp_path: Path) -> None:
    data = data_at(tmp_path / "d.parquet", [TEXT])
    scores = scores_at(tmp_path / "s.parquet", data, ROWS[-1:])
    with pytest.raises(NumericError) as caught:
        losses(data, scores)
    assert caught.value.code == "N105"


@pytest.mark.parametrize("train", ["observation", "all", "nothing"])
def test_policies_that_scores_cannot_answer_are_refused(
    files: tuple[Path, Path], train: str
) -> None:
    with pytest.raises(TrajkitError) as caught:
        losses(*files, train=train)
    assert caught.value.code == "U103"


def test_context_in_the_scores_is_counted_by_likelihoods_alone(tmp_path: Path) -> None:
    data = data_at(tmp_path / "d.parquet", [one("a", 1.0)])
    context: list[list[float | None]] = [[None], [-3.0]]
    scores = scores_at(tmp_path / "s.parquet", data, ROWS[:2], context=context)
    table = losses(data, scores, train="all", losses=["nll", "reinforce"]).table
    assert table.values["nll"].numerator == pytest.approx(1.0 + 0.5 + 2.0 + 3.0)
    assert table.values["nll"].denominator == table.n_counted_tokens == 4
    assert table.n_counted_context == 1
    assert table.values["reinforce"].n_tokens == 3
    damaged = scores_at(tmp_path / "x.parquet", data, ROWS[:2], context=[[None], [-3.0, -1.0]])
    with pytest.raises(TrajkitError) as caught:
        losses(data, damaged, train="all")
    assert caught.value.code == "S103"


def test_observations_of_the_scores_stand_beside_the_policy(tmp_path: Path) -> None:
    spans = [(), (Segment(SegmentKind.OBSERVATION, 0, 1),)]
    made = [one("a", 1.0, segments=spans), one("b", 0.0, segments=spans)]
    data = data_at(tmp_path / "d.parquet", made)
    rows: list[Row] = [(name, step, [-1.0] * (2 - step), None) for name in "ab" for step in (0, 1)]
    context = [[None], [-3.0], [None], [-5.0]]
    more = {"entropy": [[1.0, 2.0], [0.5]] * 2, "exact_kl": [[0.1, 0.3], [0.2]] * 2}
    scores = scores_at(tmp_path / "s.parquet", data, rows, context=context, **more)
    names = ["echo", "paw", "ppo_entropy", "grpo_exact_kl", "nll"]
    table = losses(data, scores, train="action-observation", losses=names).table
    parts = table.values["echo"].parts
    assert (parts[1].numerator, parts[1].denominator, parts[1].n_tokens) == (8.0, 2, 2)
    # both answer an action of entropy 1.5; the group's mean reward is 0.5
    wanted = 0.5 * (2 - math.exp(-3) - math.exp(-5))
    assert table.values["paw"].parts[1].numerator == pytest.approx(wanted)
    assert table.values["ppo_entropy"].parts[1].numerator == pytest.approx(7.0)
    assert table.exact_kl == pytest.approx(0.2)
    assert table.values["nll"].denominator == 8
    without = losses(data, scores, losses=["echo"]).table.values["echo"]
    assert (without.value, without.parts) == (None, ())
    assert "--train action-observation" in (without.reason or "")


@pytest.mark.parametrize("reward", [math.inf, 1e300])
def test_rewards_that_no_float_can_square_end_in_a_reason(tmp_path: Path, reward: float) -> None:
    data = data_at(tmp_path / "d.parquet", [one("a", reward), one("b", -reward), one("c", 1.0)])
    rows: list[Row] = [(name, 0, [-1.0, -0.5], None) for name in "abc"]
    table = losses(data, scores_at(tmp_path / "s.parquet", data, rows), losses=["all"], length=3)
    found = table.to_dict()["losses"]
    assert found["nll"]["value"] == pytest.approx(0.75)
    assert all(each["value"] is not None or each["why_null"] for each in found.values())


def test_an_infinite_recorded_advantage_is_none(tmp_path: Path) -> None:
    odd = one("a", 1.0, advantages=[[math.inf, 1.0], [1.0]])
    data = data_at(tmp_path / "d.parquet", [odd, one("b", 0.0)])
    table = losses(data, scores_at(tmp_path / "s.parquet", data, ROWS[:4])).table
    assert (table.advantages.source, table.advantages.n_recorded_ignored) == ("group_id", 2)


def test_thoughts_are_not_told_by_another_tokenizer(tmp_path: Path) -> None:
    own = tiny_tokenizer()
    dataset = open_dataset(data_at(tmp_path / "d.parquet", [one("a", 1.0)]))
    check_told_by(dataset, own)  # the data name none

    def named(fingerprint: str) -> Dataset:
        return replace(dataset, metadata={**dataset.metadata, "tokenizer_fingerprint": fingerprint})

    check_told_by(named(own.fingerprint), own)
    check_told_by(named("0" * 64), None)
    with pytest.raises(TrajkitError) as caught:
        losses(named("0" * 64), tmp_path / "s.parquet", tokenizer=own)
    assert caught.value.code == "T102"
