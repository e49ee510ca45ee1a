import gc
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tokenizers
import torch

from tests.builders import make_step, make_trajectory
from tests.score_builders import (
    N_VOCAB,
    TINY,
    assert_close,
    chain,
    plain_logprobs,
    random_model,
    save_checkpoint,
    tiny_llama,
    write_data,
)
from trajkit.errors import ExitCode, InputError, NumericError, TrajkitError, UsageProblem
from trajkit.records import ActionSource, LogprobKind, Segment, SegmentKind, Step, Trajectory
from trajkit.rl.presets import LOSSES
from trajkit.scoring.forward import head as head_module
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.mismatch import FIGURES
from trajkit.scoring.report import ScoreReport
from trajkit.scoring.run import score
from trajkit.store.read import open_dataset
from trajkit.store.schema import METADATA_KEY, SCORES_SCHEMA
from trajkit.tokenizer import load_tokenizer

FIRST = chain(([1, 10, 11, 12], [20, 21, 2]), ([30, 31], [22, 2]))
SECOND = chain(([1, 10, 11, 12], [20, 40, 2]), ([30, 32], [41, 42, 43, 2]))
THIRD = chain(([1, 50, 51], [52, 53]))


def sampled(model: LoadedModel, calls: Any, name: str, **given: Any) -> Trajectory:
    """Return a trajectory whose recorded log-probs are the model's own."""
    recorded = [
        plain_logprobs(model.model, [*prompt, *action])[len(prompt) :].tolist()
        for prompt, action in calls
    ]
    made: Trajectory = make_trajectory(calls, name, rollout_logprobs=recorded, **given)
    return made


def three(model: LoadedModel) -> list[Trajectory]:
    return [
        sampled(model, FIRST, "a", group_id=["g", "g"], reward=[None, 1.0]),
        sampled(model, SECOND, "b", group_id=["g", "g"], reward=[0.0, 0.0]),
        sampled(model, THIRD, "c", reward=[0.5]),
    ]


@pytest.fixture
def data(llama: LoadedModel, tmp_path: Path) -> Path:
    return write_data(tmp_path / "data.parquet", three(llama))


def read_scores(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def metadata_of(path: Path) -> dict[str, Any]:
    raw = pq.read_metadata(path).metadata[METADATA_KEY]
    found: dict[str, Any] = json.loads(raw)
    return found


def test_counts_sums_and_shares(llama: LoadedModel, data: Path) -> None:
    report = score(data, llama)
    counts = report.counts
    assert (counts.n_trajectories, counts.n_scored_trajectories) == (3, 3)
    assert (counts.n_steps, counts.n_scored_steps) == (5, 5)
    assert counts.n_action_tokens == counts.n_scored_tokens == 3 + 2 + 3 + 4 + 2
    assert (counts.n_forwards, counts.n_recheck_forwards) == (1, 2)
    assert counts.n_forwarded_tokens == (10 + 12 - 5) + 4
    assert counts.n_row_tokens == 11 + 13 + 5
    assert counts.n_raw_tokens == (7 + 11) + (7 + 13) + 5
    assert report.sampled_share == 1.0
    assert report.by_source == {"sampled": 5}
    assert report.by_status == {"ok": 5}
    assert report.exit_code is ExitCode.CLEAN

    per_trajectory: list[list[float]] = [[], [], []]
    for values, trajectory in zip(per_trajectory, three(llama), strict=True):
        for step in trajectory.steps:
            assert step.rollout_logprobs is not None
            values.extend(step.rollout_logprobs.tolist())
    flat = [value for values in per_trajectory for value in values]
    assert report.logprob.sum == pytest.approx(sum(flat), abs=1e-4)
    assert report.logprob.token_mean == pytest.approx(sum(flat) / 14, abs=1e-5)
    means = [sum(values) / len(values) for values in per_trajectory]
    assert report.logprob.sequence_mean == pytest.approx(sum(means) / 3, abs=1e-5)
    assert report.logprob.trajectory_mean == pytest.approx(sum(flat) / 3, abs=1e-4)
    assert report.nll == -(report.logprob.token_mean or 0.0)


def test_losses_of_an_unchanged_policy(llama: LoadedModel, data: Path) -> None:
    report = score(data, llama)
    assert list(report.losses) == list(LOSSES)
    assert report.losses["nll"].value == pytest.approx(report.nll)
    assert report.losses["nll"].denominator == 14
    assert report.table.advantages.source == "group_id"
    assert report.table.advantages.n_without_baseline == 1
    # ratios are 1: GRPO's two equal and opposite advantages cancel, c has none and is left out
    grpo = report.losses["grpo"]
    assert (grpo.denominator, grpo.n_left_out) == (2, 2)
    assert grpo.value == pytest.approx(0.0, abs=1e-5)
    assert "zero up to rounding" in (grpo.remark or "")
    advantage = 0.5 / (math.sqrt(0.5) + 1e-6)
    ppo = report.losses["ppo_clip"]
    assert ppo.numerator == pytest.approx(-advantage * (5 - 7), abs=1e-4)
    assert ppo.denominator == 12
    reinforce = report.losses["reinforce"]
    assert reinforce.denominator == 3


def test_the_mismatch_of_an_unchanged_policy_is_the_noise_of_arithmetic(
    llama: LoadedModel, data: Path
) -> None:
    report = score(data, llama, recheck=2)
    assert report.mismatch is not None
    gap = report.mismatch.gap
    assert gap.n == 14
    assert gap.max_abs is not None
    assert gap.max_abs < 1e-5
    assert gap.share_outside == 0.0
    assert abs(gap.k3 or 0.0) < 1e-9
    assert report.noise_floor is not None
    assert report.noise_floor.gap.n == 12


def test_the_worst_token_is_named(llama: LoadedModel, tmp_path: Path) -> None:
    trajectories = three(llama)
    recorded = trajectories[1].steps[1].rollout_logprobs
    assert recorded is not None
    moved = recorded.copy()
    moved[2] -= 3.0
    calls = [None, moved.tolist()]
    trajectories[1] = make_trajectory(SECOND, "b", rollout_logprobs=calls)
    report = score(write_data(tmp_path / "d.parquet", trajectories), llama)
    assert report.mismatch is not None
    assert report.mismatch.gap.max_abs == pytest.approx(3.0, abs=1e-4)
    worst = report.mismatch.worst[0]
    assert asdict(worst.place) == {"trajectory_id": "b", "step_index": 1, "action_position": 2}
    assert worst.rollout_logprob == moved[2]
    assert worst.logprob == pytest.approx(moved[2] + 3.0, abs=1e-4)
    assert list(report.mismatch.by_step) == [(0, 0), (1, 1)]
    assert list(report.mismatch.by_kind) == ["text"]
    assert report.mismatch.n_not_recorded == 3


def test_logprobs_of_another_temperature_are_left_out_and_said_to_be(
    llama: LoadedModel, tmp_path: Path
) -> None:
    hot = {
        "temperature": [0.7, 0.7],
        "logprob_kind": [LogprobKind.PROCESSED] * 2,
        "group_id": ["g", "g"],
        "reward": [None, 0.5],
    }
    trajectories = [*three(llama)[:2], sampled(llama, SECOND, "hot", **hot)]
    report = score(write_data(tmp_path / "d.parquet", trajectories), llama)
    assert report.mismatch is not None
    assert report.mismatch.gap.n == 12
    assert report.mismatch.n_not_comparable == 7
    assert report.mismatch.not_comparable == {"temperature 0.7": 7}
    assert report.losses["ppo_clip"].n_left_out == 7
    assert report.losses["nll"].denominator == 19


def test_nothing_recorded_gives_no_mismatch_and_reasons(llama: LoadedModel, tmp_path: Path) -> None:
    data = write_data(tmp_path / "d.parquet", [make_trajectory(FIRST, "a")])
    report = score(data, llama)
    assert report.mismatch is None
    assert report.table.advantages.source is None
    assert report.losses["nll"].value is not None
    for name in ("reinforce", "ppo_clip", "grpo"):
        assert report.losses[name].value is None
        assert report.losses[name].reason
    assert report.to_dict()["mismatch"] is None
    assert "reason" not in report.to_dict()["losses"]["nll"]


def test_the_first_prompt_groups_what_has_no_group_id(llama: LoadedModel, tmp_path: Path) -> None:
    trajectories = [
        sampled(llama, FIRST, "a", reward=[None, 1.0]),
        sampled(llama, SECOND, "b", reward=[None, 0.0]),
        sampled(llama, THIRD, "c", reward=[0.5]),
    ]
    report = score(write_data(tmp_path / "d.parquet", trajectories), llama)
    assert report.table.advantages.source == "first_prompt"
    assert report.table.advantages.n_without_baseline == 1
    named = [
        sampled(llama, THIRD, "d", reward=[1.0], group_id=["g"]),
        sampled(llama, THIRD, "e", reward=[0.0], group_id=["g"]),
    ]
    both = score(write_data(tmp_path / "both.parquet", [*trajectories, *named]), llama)
    assert both.table.advantages.source == "group_id+first_prompt"


def test_recorded_advantages_win_when_every_token_has_one(
    llama: LoadedModel, tmp_path: Path
) -> None:
    given = {"advantages": [[1.0, 2.0, 3.0], [4.0, 5.0]], "reward": [None, 1.0]}
    whole = [sampled(llama, FIRST, "a", **given)]
    report = score(write_data(tmp_path / "whole.parquet", whole), llama)
    assert report.table.advantages.source == "recorded"
    assert report.losses["ppo_clip"].value == pytest.approx(-3.0, abs=1e-4)
    partial = [*whole, *three(llama)[1:]]
    assert report.table.advantages.n_recorded_ignored == 0
    assert report.table.advantages.group_sizes == ()
    report = score(write_data(tmp_path / "partial.parquet", partial), llama)
    assert report.table.advantages.source is None
    assert report.table.advantages.n_recorded_ignored == 5


def test_the_scores_file_has_a_row_for_every_step_in_order(
    llama: LoadedModel, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    report = score(data, llama, out=out)
    assert report.out == str(out)
    assert pq.read_schema(out).remove_metadata() == SCORES_SCHEMA
    rows = read_scores(out)
    assert [(row["trajectory_id"], row["step_index"]) for row in rows] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0),
    ]  # fmt: skip
    wanted = [step for trajectory in three(llama) for step in trajectory.steps]
    for row, step in zip(rows, wanted, strict=True):
        assert_close(row["logprobs"], step.rollout_logprobs, atol=1e-5)
        assert len(row["entropy"]) == len(row["rank"]) == step.n_action_tokens
        assert row["status"] == "ok"
        assert row["context_logprobs"] is None
        assert row["ref_logprobs"] is None


def test_the_scores_file_says_what_it_was_made_of(
    llama: LoadedModel, data: Path, tmp_path: Path
) -> None:
    score(data, llama, out=tmp_path / "s.parquet", only=("a", "c"), limit=5)
    metadata = metadata_of(tmp_path / "s.parquet")
    assert metadata["schema"] == "trajkit.scores/1"
    assert metadata["model"]["weights_digest"] == llama.weights_digest
    assert (metadata["model"]["dtype"], metadata["model"]["device"]) == ("fp32", "cpu")
    assert metadata["model"]["torch"] == str(torch.__version__)
    assert metadata["data"]["row_groups"] == open_dataset(data).metadata["row_groups"]
    assert metadata["options"] == {"limit": 5, "only": ["a", "c"]}
    assert [row["trajectory_id"] for row in read_scores(tmp_path / "s.parquet")] == ["a", "a", "c"]


def test_the_digests_of_every_part_are_kept(llama: LoadedModel, tmp_path: Path) -> None:
    folder = write_data(tmp_path / "data", three(llama))
    score(folder, llama, out=tmp_path / "s.parquet")
    digests = metadata_of(tmp_path / "s.parquet")["data"]["row_groups"]
    parts = [open_dataset(part) for part in open_dataset(folder).parts]
    assert digests == [digest for part in parts for digest in part.metadata["row_groups"]]


def test_two_runs_write_the_same_bytes(llama: LoadedModel, data: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        score(data, llama, out=tmp_path / f"{name}.parquet")
    one, two = ((tmp_path / f"{name}.parquet").read_bytes() for name in ("one", "two"))
    assert one == two


def test_many_rows_are_written_in_groups(
    llama: LoadedModel, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trajkit.scoring.under_way._GROUP_ROWS", 2)
    score(data, llama, out=tmp_path / "s.parquet")
    assert pq.read_metadata(tmp_path / "s.parquet").num_row_groups == 3
    assert len(read_scores(tmp_path / "s.parquet")) == 5


def test_what_has_no_numbers_is_null_and_counted(llama: LoadedModel, tmp_path: Path) -> None:
    inserted = (Segment(SegmentKind.INSERTED, 3, 4),)
    trajectories = [
        make_trajectory([([], [9, 8, 7])], "first-token"),
        make_trajectory(FIRST, "excluded", exclude_reason=[None, "abandoned"]),
        Trajectory(
            trajectory_id="text",
            steps=(make_step(trajectory_id="text", action_text="hi"),),
        ),
        make_trajectory([([1, 2, 3], [4, 5])], "inserted", segments=[inserted]),
    ]
    out = tmp_path / "s.parquet"
    report = score(write_data(tmp_path / "d.parquet", trajectories), llama, out=out)
    counts = report.counts
    assert report.by_status == {"ok": 3, "excluded": 1, "no_action": 1}
    assert report.by_source == {"sampled": 4, "none": 1}
    assert report.sampled_share == pytest.approx(4 / 5)
    assert counts.n_action_tokens == 3 + (3 + 2) + 0 + 1
    assert counts.n_first_token == 1
    assert counts.n_scored_tokens == 2 + 3 + 1
    assert counts.n_scored_trajectories == 3
    rows = read_scores(out)
    assert rows[0]["logprobs"][0] is None
    assert rows[0]["entropy"][0] is None
    assert rows[0]["rank"][0] is None
    assert rows[0]["logprobs"][1] is not None
    assert [row["status"] for row in rows] == ["ok", "ok", "excluded", "no_action", "ok"]
    assert rows[2]["logprobs"] is None
    assert len(rows[4]["logprobs"]) == 2


def test_an_impossible_action_is_kept_and_counted(
    llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_logits = head_module.logits_of

    def forbid(*args: Any) -> torch.Tensor:
        logits: torch.Tensor = true_logits(*args)
        logits[:, 21] = -math.inf
        return logits

    monkeypatch.setattr("trajkit.scoring.forward.logprobs.logits_of", forbid)
    out = tmp_path / "s.parquet"
    report = score(write_data(tmp_path / "d.parquet", three(llama)), llama, out=out)
    assert report.counts.n_neg_inf == 1
    assert report.exit_code is ExitCode.CLEAN
    assert report.logprob.sum == -math.inf
    assert report.losses["nll"].value == math.inf
    assert report.mismatch is not None
    assert report.mismatch.gap.n_infinite == 1
    assert read_scores(out)[0]["logprobs"][1] == -math.inf
    as_json = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert as_json["logprob"]["sum"] is None
    assert as_json["losses"]["nll"]["value"] is None
    assert "probability 0" in as_json["losses"]["nll"]["reason"]


def test_a_step_that_sampled_nothing_has_empty_lists(llama: LoadedModel, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    silent = make_trajectory([([1, 2], []), ([1, 2, 3], [4])], "silent")
    report = score(write_data(tmp_path / "d.parquet", [silent]), llama, out=out)
    first, second = read_scores(out)
    assert (first["logprobs"], first["entropy"], first["rank"]) == ([], [], [])
    assert first["status"] == "ok"
    assert len(second["logprobs"]) == 1
    assert report.noise_floor is not None
    assert report.noise_floor.gap.n == 1


def test_unknown_first_prompts_are_no_group(llama: LoadedModel, tmp_path: Path) -> None:
    def opaque(name: str, reward: float) -> Trajectory:
        """Return a trajectory whose first prompt was not recorded, its second was."""
        steps = (
            make_step(0, trajectory_id=name, action_tokens=[5], is_terminal=False),
            make_step(1, trajectory_id=name, prompt_delta=[1, 2], action_tokens=[3], reward=reward),
        )
        return Trajectory(trajectory_id=name, steps=steps)

    data = write_data(tmp_path / "d.parquet", [opaque("a", 1.0), opaque("b", 0.0)])
    report = score(data, llama)
    assert report.table.advantages.source is None
    assert report.table.advantages.n_without_baseline == 2
    assert report.table.advantages.group_sizes == ()


def test_groups_are_counted_by_the_members_seen(llama: LoadedModel, data: Path) -> None:
    whole = score(data, llama)
    assert sorted(whole.table.advantages.group_sizes) == [1, 2]
    cut = score(data, llama, limit=1)
    assert cut.table.advantages.group_sizes == (1,)


LONG = chain(([1] * 60, [3]), ([2] * 60, [4]))


def test_a_trajectory_that_is_too_long_is_left_out_and_the_run_goes_on(
    llama: LoadedModel, data: Path, tmp_path: Path
) -> None:
    long = make_trajectory(LONG, "long", reward=[None, 1.0], group_id=["g", "g"])
    trajectories = [long, *three(llama)]
    out = tmp_path / "s.parquet"
    report = score(write_data(tmp_path / "d.parquet", trajectories), llama, out=out)
    assert report.exit_code is ExitCode.NUMERIC
    assert report.to_dict()["n_too_long"] == 1
    assert (report.counts.n_trajectories, report.counts.n_scored_trajectories) == (4, 3)
    assert report.by_status == {"ok": 5, "too_long": 2}
    assert report.logprob == score(data, llama).logprob
    assert sorted(report.table.advantages.group_sizes) == [1, 2]
    rows = read_scores(out)
    assert [row["status"] for row in rows] == ["too_long"] * 2 + ["ok"] * 5
    assert [rows[0][name] for name in ("logprobs", "entropy", "rank")] == [None] * 3


def test_when_everything_is_too_long_there_is_no_report(llama: LoadedModel, tmp_path: Path) -> None:
    data = write_data(tmp_path / "d.parquet", [make_trajectory(LONG, "long")])
    problem = problem_of(data, llama, out=tmp_path / "s.parquet")
    assert isinstance(problem, NumericError)
    assert problem.code == "N103"
    assert "122 tokens" in problem.message
    assert problem.place is not None
    assert problem.place.trajectory_id == "long"
    assert not (tmp_path / "s.parquet").exists()


@pytest.fixture
def poisoned(tmp_path: Path) -> LoadedModel:
    loaded = load_model(
        save_checkpoint(random_model("llama", **TINY), tmp_path / "poisoned"), device="cpu"
    )
    with torch.no_grad():
        loaded.model.model.embed_tokens.weight[50] = float("nan")
    return loaded


def test_logits_that_are_not_finite_fail_their_trajectory_and_the_run_goes_on(
    llama: LoadedModel, poisoned: LoadedModel, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.parquet"
    report = score(data, poisoned, out=out)
    assert report.exit_code is ExitCode.NUMERIC
    assert report.counts.n_nonfinite == 1
    assert report.by_status == {"ok": 4, "nonfinite": 1}
    assert report.counts.n_scored_tokens == 12
    assert report.logprob.sum == pytest.approx(score(data, llama, only=("a", "b")).logprob.sum)
    rows = read_scores(out)
    assert rows[4] | {"trajectory_id": "", "step_index": 0} == {
        "trajectory_id": "",
        "step_index": 0,
        "logprobs": None,
        "entropy": None,
        "rank": None,
        "context_logprobs": None,
        "ref_logprobs": None,
        "exact_kl": None,
        "status": "nonfinite",
    }


def test_when_no_trajectory_is_finite_there_is_still_a_report(
    poisoned: LoadedModel, data: Path
) -> None:
    report = score(data, poisoned, only=("c",))
    assert report.exit_code is ExitCode.NUMERIC
    assert report.logprob.sum is None
    assert report.nll is None
    assert report.losses["nll"].reason == "no token counts"
    assert report.noise_floor is not None
    assert report.noise_floor.gap.n == 0
    json.dumps(report.to_dict(), allow_nan=False)


def problem_of(*args: Any, **options: Any) -> TrajkitError:
    with pytest.raises(TrajkitError) as caught:
        score(*args, **options)
    return caught.value


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (make_step(trajectory_id="t", action_text="hi"), "1 no_action"),
        (make_step(trajectory_id="t", action_tokens=[1]), "1 no_prompt"),
        (make_step(trajectory_id="t", prompt_delta=[1], action_tokens=[]), "1 ok"),
        (make_step(trajectory_id="t", prompt_delta=[], action_tokens=[5]), "1 ok"),
    ],
)
def test_nothing_to_score(llama: LoadedModel, tmp_path: Path, step: Step, status: str) -> None:
    trajectory = Trajectory(trajectory_id="t", steps=(step,))
    out = tmp_path / "s.parquet"
    problem = problem_of(write_data(tmp_path / "d.parquet", [trajectory]), llama, out=out)
    assert isinstance(problem, NumericError)
    assert problem.code == "N105"
    assert status in problem.message
    assert not out.exists()


def test_no_data_at_all(llama: LoadedModel, tmp_path: Path) -> None:
    assert problem_of(write_data(tmp_path / "d.parquet", []), llama).code == "N105"


def test_a_selection_that_names_nothing(llama: LoadedModel, data: Path) -> None:
    problem = problem_of(data, llama, only=("nobody",))
    assert isinstance(problem, UsageProblem)
    assert problem.code == "U107"


def test_limits_and_names_select(llama: LoadedModel, data: Path) -> None:
    assert score(data, llama, limit=1).counts.n_trajectories == 1
    assert score(data, llama, only=("b",)).counts.n_scored_tokens == 7


def test_the_data_are_never_replaced(llama: LoadedModel, data: Path) -> None:
    before = data.read_bytes()
    assert problem_of(data, llama, out=data, overwrite=True).code == "U102"
    link = data.with_name("link.parquet")
    link.hardlink_to(data)
    assert problem_of(data, llama, out=link, overwrite=True).code == "U102"
    assert data.read_bytes() == before


@pytest.mark.parametrize("name", ["scores", "scores.json", "scores.parquet.gz", ".parquet"])
def test_an_output_that_is_not_named_parquet_is_told_before_anything_is_opened(
    tmp_path: Path, name: str
) -> None:
    problem = problem_of(tmp_path / "no-data", tmp_path / "no-model", out=tmp_path / name)
    assert isinstance(problem, UsageProblem)
    assert problem.code == "U103"
    assert problem.hint == "-o scores.parquet"


def test_an_output_that_exists_is_kept_unless_told(
    llama: LoadedModel, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.parquet"
    out.write_bytes(b"old")
    assert problem_of(data, llama, out=out).code == "U101"
    assert out.read_bytes() == b"old"
    score(data, llama, out=out, overwrite=True)
    assert len(read_scores(out)) == 5


def test_an_output_that_exists_is_told_before_the_model_is_loaded(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.parquet"
    out.write_bytes(b"old")
    assert problem_of(data, tmp_path / "no-model", out=out).code == "U101"


def test_a_failing_run_publishes_nothing(llama: LoadedModel, tmp_path: Path) -> None:
    trajectories = [*three(llama), make_trajectory([([1, N_VOCAB], [2])], "bad")]
    data = write_data(tmp_path / "d.parquet", trajectories)
    out = tmp_path / "s.parquet"
    problem = problem_of(data, llama, out=out)
    assert isinstance(problem, InputError)
    assert problem.code == "I304"
    assert not out.exists()
    del problem
    gc.collect()  # a writer left open would complain here


@pytest.mark.parametrize("source", [ActionSource.RETOKENIZED, ActionSource.UNKNOWN])
def test_ids_that_are_not_the_samplers_are_a_finding_on_request(
    llama: LoadedModel, tmp_path: Path, source: ActionSource
) -> None:
    trajectory = make_trajectory(FIRST, "a", action_source=[ActionSource.SAMPLED, source])
    data = write_data(tmp_path / "d.parquet", [trajectory])
    assert score(data, llama).sampled_share == 0.5
    report = score(data, llama, require_sampled=True)
    assert report.exit_code is ExitCode.FINDINGS
    assert report.counts.n_not_sampled == 1
    assert report.to_dict()["exceeded"] == [{"rule": "require-sampled", "limit": 0.0, "found": 1.0}]
    excluded = make_trajectory(
        FIRST, "a", action_source=[ActionSource.SAMPLED, source], exclude_reason=[None, "copied"]
    )
    data = write_data(tmp_path / "e.parquet", [excluded])
    report = score(data, llama, require_sampled=True)
    assert report.counts.n_scored_steps == 1
    assert report.exit_code is ExitCode.CLEAN


def test_a_limit_on_the_distance_to_the_sampler(
    llama: LoadedModel, data: Path, tmp_path: Path
) -> None:
    assert score(data, llama, max_delta=1e-3).exit_code is ExitCode.CLEAN
    tight = score(data, llama, max_delta=0.0)
    assert tight.mismatch is not None
    (one,) = tight.exceeded
    assert (one.rule, one.found) == ("max-delta", tight.mismatch.gap.max_abs)
    assert tight.exit_code is ExitCode.FINDINGS
    nothing = write_data(tmp_path / "n.parquet", [make_trajectory(FIRST, "a")])
    unknown = score(nothing, llama, max_delta=1.0)
    assert [one.found for one in unknown.exceeded] == [None]
    assert unknown.exit_code is ExitCode.FINDINGS


@pytest.mark.parametrize(("name", "hint"), [("gpro", "grpo"), ("nothing-like-it", None)])
def test_an_unknown_loss_lists_the_known_ones(
    llama: LoadedModel, data: Path, name: str, hint: str | None
) -> None:
    problem = problem_of(data, llama, losses=[name])
    assert problem.code == "U103"
    assert all(known in problem.message for known in LOSSES)
    assert (problem.hint is None) == (hint is None)
    assert hint is None or hint in (problem.hint or "")


def test_only_the_losses_asked_for(llama: LoadedModel, data: Path) -> None:
    assert list(score(data, llama, losses=["grpo", "nll", "grpo"]).losses) == ["grpo", "nll"]
    assert score(data, llama, losses=[]).losses == {}


def test_recheck_can_be_left_out(llama: LoadedModel, data: Path) -> None:
    without = score(data, llama, recheck=0)
    assert without.noise_floor is None
    assert without.counts.n_recheck_forwards == 0
    assert without.to_dict()["noise_floor"] is None
    many = score(data, llama, recheck=100).noise_floor
    assert many is not None
    assert many.gap.n == 14


def test_progress_is_told_after_each_pass(llama: LoadedModel, data: Path) -> None:
    told: list[tuple[int, int]] = []
    score(data, llama, tokens_per_batch=5, progress=lambda done, n, _: told.append((done, n)))
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == (5, 5)


def test_the_room_prints_nothing(
    llama_dir: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    score(data, llama_dir, device="cpu")
    assert capfd.readouterr() == ("", "")


def test_the_report_is_json_with_the_promised_keys(llama: LoadedModel, data: Path) -> None:
    found = json.loads(json.dumps(score(data, llama).to_dict(), allow_nan=False))
    assert found["schema"] == "trajkit.score/1"
    assert list(found)[1] == "sampled_share"
    promised = {
        "n_trajectories", "n_steps", "n_action_tokens", "n_forwarded_tokens", "n_raw_tokens",
        "sampled_share", "logprob", "losses", "mismatch", "noise_floor", "n_scored_steps",
        "n_forwards", "by_source", "by_status", "nll", "n_nonfinite", "n_neg_inf",
        "n_first_token", "advantage_source", "n_without_baseline", "model", "n_too_long",
        "n_recheck_forwards", "n_groups", "group_sizes", "n_recorded_advantages_ignored",
        "n_row_tokens", "sharing",
    }  # fmt: skip
    assert promised <= set(found)
    assert {"sum", "token_mean", "sequence_mean"} <= set(found["logprob"])
    assert {"value", "numerator", "denominator"} <= set(found["losses"]["grpo"])
    mismatch = {"n", *FIGURES, "worst", "by_step", "by_kind", "aliases"}
    assert mismatch <= set(found["mismatch"])
    assert {"n", "mean_abs", "p99_abs", "max_abs", "k3"} == set(found["noise_floor"])
    assert found["group_sizes"] == {"min": 1, "max": 2}
    assert found["n_groups"] == 2
    assert found["losses"]["grpo"]["left_out"] == {"advantages": 2}
    assert "remark" not in found["losses"]["nll"]


def word_tokenizer(folder: Path, words: list[str]) -> str:
    vocab = {word: at for at, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.decoder = tokenizers.decoders.ByteLevel()
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder).fingerprint


def test_data_of_another_tokenizer_are_refused(llama: LoadedModel, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    own = word_tokenizer(folder, ["a", "b"])
    other = word_tokenizer(tmp_path / "other", ["b", "a"])
    assert own != other
    same = write_data(tmp_path / "same.parquet", three(llama), fingerprint=own)
    assert score(same, folder, device="cpu").tokenizer_checked
    foreign = write_data(tmp_path / "foreign.parquet", three(llama), fingerprint=other)
    problem = problem_of(foreign, folder, device="cpu")
    assert isinstance(problem, InputError)
    assert problem.code == "T102"
    told_by = load_tokenizer(tmp_path / "other")
    problem = problem_of(same, folder, device="cpu", tokenizer=told_by)
    assert isinstance(problem, InputError)
    assert problem.code == "T102"
    assert "--tokenizer" in problem.message
    unknown = write_data(tmp_path / "unknown.parquet", three(llama))
    assert not score(unknown, folder, device="cpu").tokenizer_checked


def test_a_tokenizer_of_an_unknown_kind_is_not_compared(llama: LoadedModel, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(
        str(folder / "tokenizer.json")
    )
    data = write_data(tmp_path / "d.parquet", three(llama), fingerprint="0" * 64)
    assert not score(data, folder, device="cpu").tokenizer_checked


def test_a_damaged_tokenizer_stops_the_run(llama: LoadedModel, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    (folder / "tokenizer.json").write_text("{")
    data = write_data(tmp_path / "d.parquet", three(llama), fingerprint="0" * 64)
    assert problem_of(data, folder, device="cpu").code == "T101"


def test_a_model_may_be_given_by_its_folder(llama_dir: Path, data: Path) -> None:
    report: ScoreReport = score(data, llama_dir, device="cpu", dtype="bf16")
    assert report.model.dtype == "bf16"
    assert report.model.name == "tiny"
    assert report.mismatch is not None
    assert 0.0 < (report.mismatch.gap.max_abs or 0.0) < 1.0


def test_a_reference_model_fills_its_column_and_the_losses_with_kl(
    llama: LoadedModel, data: Path, tmp_path: Path
) -> None:
    other = load_model(tiny_llama(tmp_path / "other", seed=5), device="cpu")
    out = tmp_path / "s.parquet"
    report = score(data, llama, ref_model=other, out=out)
    gaps = []
    for row, trajectory_step in zip(
        read_scores(out), [s for t in three(llama) for s in t.steps], strict=True
    ):
        prompt, action = trajectory_step.prompt_ids, trajectory_step.action_tokens
        assert prompt is not None
        assert action is not None
        wanted = plain_logprobs(other.model, [*prompt, *action])[len(prompt) :]
        assert_close(row["ref_logprobs"], wanted, atol=1e-5)
        gaps += [ours - theirs for ours, theirs in zip(row["logprobs"], wanted, strict=True)]
        ids = torch.tensor([[*prompt, *action]])
        with torch.inference_mode():
            rows = slice(len(prompt) - 1, -1)
            log_p, log_q = (
                one.model(input_ids=ids).logits[0, rows].double().log_softmax(-1)
                for one in (llama, other)
            )
        exact = (log_p.exp() * (log_p - log_q)).sum(-1)
        assert float(exact.min()) > 0.1
        assert_close(row["exact_kl"], exact.numpy(), atol=1e-5)
    assert report.table.kl is not None
    assert report.table.n_kl_tokens == len(gaps) == 14
    assert report.table.kl["k1"] == pytest.approx(sum(gaps) / 14, abs=1e-5)
    k3 = sum(math.exp(-gap) - 1 + gap for gap in gaps) / 14
    assert report.table.kl["k3"] == pytest.approx(k3, rel=1e-4)
    assert report.losses["grpo_kl"].value is not None
    assert report.reference is not None
    assert report.reference.weights_digest == other.weights_digest
    assert report.counts.n_ref_forwarded_tokens == report.counts.n_forwarded_tokens
    assert metadata_of(out)["reference"]["weights_digest"] == other.weights_digest


def test_what_a_reference_model_cannot_read_is_null(
    llama: LoadedModel, data: Path, tmp_path: Path
) -> None:
    short = load_model(tiny_llama(tmp_path / "short", max_position_embeddings=6), device="cpu")
    report = score(data, llama, ref_model=short, out=tmp_path / "s.parquet")
    assert report.counts.n_without_reference == 2
    assert report.exit_code is ExitCode.NUMERIC
    rows = read_scores(tmp_path / "s.parquet")
    assert [row["ref_logprobs"] is None for row in rows] == [True, True, True, True, False]
    assert all(row["exact_kl"] is None for row in rows)  # they cannot read the same passes
    assert all(row["logprobs"] is not None for row in rows)
    assert report.losses["grpo_kl"].left_out["ref_logprobs"] == 12


def test_a_policy_chooses_what_losses_count_and_nothing_else(
    llama: LoadedModel, data: Path
) -> None:
    whole, last = score(data, llama), score(data, llama, train="last-step")
    assert last.table.train == "last-step"
    assert last.table.n_counted_tokens == last.losses["nll"].denominator == 2 + 4 + 2
    assert last.logprob == whole.logprob
    assert last.counts == whole.counts


def test_thoughts_are_told_by_the_checkpoints_own_tokenizer(tmp_path: Path) -> None:
    made = make_trajectory([([5], [6, 7])], "a")
    data = write_data(tmp_path / "d.parquet", [made])
    bare = tiny_llama(tmp_path / "bare")
    problem = problem_of(data, bare, train="no-think")
    assert problem.code == "U103"
    assert "-t" in (problem.hint or "")
    word_tokenizer(bare, [chr(ord("a") + at) for at in range(20)])
    assert score(data, bare, train="no-think", losses=["nll"]).table.n_counted_tokens == 2


def test_an_unknown_policy_is_told_before_the_model_is_loaded(data: Path, tmp_path: Path) -> None:
    problem = problem_of(data, tmp_path / "no-model", train="unknown")
    assert problem.code == "U103"
    assert "--train" in problem.message


def test_context_is_scored_where_a_policy_trains_it(
    llama: LoadedModel, data: Path, tmp_path: Path
) -> None:
    plain = score(data, llama, out=tmp_path / "p.parquet")
    whole = score(data, llama, out=tmp_path / "s.parquet", train="all", losses=["nll", "grpo"])
    by_hand: list[float] = []
    for row, before, step in zip(
        read_scores(tmp_path / "s.parquet"),
        read_scores(tmp_path / "p.parquet"),
        [step for made in three(llama) for step in made.steps],
        strict=True,
    ):
        prompt, action, delta = step.prompt_ids, step.action_tokens, step.prompt_delta
        assert prompt is not None
        assert action is not None
        assert delta is not None
        everything = plain_logprobs(llama.model, [*prompt, *action])
        context = everything[len(prompt) - len(delta) : len(prompt)]
        found = [math.nan if value is None else value for value in row["context_logprobs"]]
        assert_close(found, context, atol=1e-5)
        assert_close(row["logprobs"], before["logprobs"], atol=1e-5)
        assert before["context_logprobs"] is None
        by_hand += [value for value in found if not math.isnan(value)] + row["logprobs"]
    nll = whole.losses["nll"]
    assert nll.denominator == whole.table.n_counted_tokens == len(by_hand) == 10 + 12 + 4
    assert nll.numerator == pytest.approx(-sum(by_hand), abs=1e-4)
    # context has neither ratio nor advantage: GRPO is over the same actions as before
    assert whole.losses["grpo"].n_tokens == plain.losses["grpo"].n_tokens
    assert whole.logprob.sum == pytest.approx(plain.logprob.sum, abs=1e-4)
