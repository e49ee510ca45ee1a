"""`trajkit score` on the tiny checkpoint: what it prints, writes and exits with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

TINY = Path(__file__).parents[2] / "src" / "trajkit" / "demo" / "tiny"


def trajkit(*words):
    command = [sys.executable, "-m", "trajkit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rollout(trajectory_id, reward, action=(7, 8, 9), **turn):
    first = {"prompt_token_ids": [1, 5, 6], "response_token_ids": list(action)}
    second = {
        "prompt_token_ids": [1, 5, 6, *action, 20, 21],
        "response_token_ids": [30, 2],
    }
    return {
        "trajectory_id": trajectory_id,
        "group_id": "g",
        "reward": reward,
        "temperature": 1.0,
        "turns": [first | turn, second],
    }


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = [rollout("a", 1.0, logprobs=[-1.0, -2.0, -3.0]), rollout("b", 0.0, action=(7, 8))]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = trajkit("ingest", folder / "log.jsonl", "-o", folder / "steps.parquet", "-t", TINY)
    assert done.returncode == 0, done.stderr
    return folder / "steps.parquet"


def test_scores_are_written_beside_a_summary(steps, tmp_path):
    out = tmp_path / "scores.parquet"
    done = trajkit("score", steps, "--model", TINY, "--device", "cpu", "-o", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "sampled ids: 4 of 4 steps (100.0%)"
    assert "Scored 9 of 9 action tokens in 2 of 2 trajectories" in done.stdout
    assert re.search("forwards +2 of 19 tokens in all", done.stdout)
    table = pq.read_table(out)
    assert table.column("trajectory_id").to_pylist() == ["a", "a", "b", "b"]
    assert [len(row) for row in table.column("logprobs").to_pylist()] == [3, 2, 2, 2]


def test_json_has_the_documented_keys_and_only_recorded_logprobs_are_compared(steps):
    done = trajkit("score", steps, "--model", TINY, "--format", "json", "-q")
    facts = json.loads(done.stdout)
    assert facts["schema"] == "trajkit.score/1"
    assert facts["n_action_tokens"] == 9
    assert facts["n_forwarded_tokens"] == 10 + 9
    assert facts["n_raw_tokens"] == 6 + 10 + 5 + 9
    assert facts["mismatch"]["n"] == 3
    assert set(facts["losses"]) == {"nll", "reinforce", "ppo_clip", "grpo"}
    assert facts["losses"]["nll"]["value"] == pytest.approx(-facts["logprob"]["token_mean"])
    assert done.stderr == ""


def test_only_the_losses_asked_for_are_computed(steps):
    done = trajkit("score", steps, "--model", TINY, "--loss", "nll", "--format", "json")
    assert set(json.loads(done.stdout)["losses"]) == {"nll"}


def test_an_unknown_loss_is_a_usage_error_that_names_the_known_ones(steps):
    done = trajkit("score", steps, "--model", TINY, "--loss", "nlll")
    assert done.returncode == 2
    assert "error[U103]" in done.stderr
    assert "ppo_clip" in done.stderr


def test_cuda_without_a_gpu_is_a_usage_error(steps):
    if torch.cuda.is_available():  # then there is nothing to refuse
        return
    done = trajkit("score", steps, "--model", TINY, "--device", "cuda")
    assert done.returncode == 2
    assert "error[U106]" in done.stderr


def test_a_folder_without_a_checkpoint_is_an_error_with_its_place(steps, tmp_path):
    done = trajkit("score", steps, "--model", tmp_path)
    assert done.returncode in (3, 4)
    assert str(tmp_path) in done.stderr
    assert "no config.json" in done.stderr


def test_an_existing_scores_file_is_kept_without_force(steps, tmp_path):
    out = tmp_path / "scores.parquet"
    out.write_bytes(b"mine")
    done = trajkit("score", steps, "--model", TINY, "-o", out)
    assert done.returncode == 2
    assert "error[U101]" in done.stderr
    assert out.read_bytes() == b"mine"


def test_an_id_the_model_has_no_row_for_exits_3_before_any_number(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps(rollout("a", 1.0, action=(7, 600))) + "\n")
    assert trajkit("ingest", tmp_path / "log.jsonl", "-o", tmp_path / "s.parquet").returncode == 0
    done = trajkit("score", tmp_path / "s.parquet", "--model", TINY)
    assert done.returncode == 3
    assert "error[I304]" in done.stderr
    assert done.stdout == ""


def test_text_only_data_has_nothing_to_score(tmp_path):
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    assert trajkit("ingest", tmp_path / "log.jsonl", "-o", tmp_path / "s.parquet").returncode == 0
    done = trajkit("score", tmp_path / "s.parquet", "--model", TINY)
    assert done.returncode == 6
    assert "error[N105]" in done.stderr


def test_what_is_left_out_and_why_is_said_in_the_text(tmp_path):
    rows = [rollout("a", 1.0, logprobs=[-1.0, -2.0, -3.0]), rollout("b", 0.0)]
    rows[0]["temperature"] = 0.7
    rows[1]["turns"].append({"prompt_token_ids": [], "response_token_ids": [5]})
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert trajkit("ingest", tmp_path / "log.jsonl", "-o", tmp_path / "s.parquet").returncode == 0
    done = trajkit("score", tmp_path / "s.parquet", "--model", TINY, "--recheck", "0")
    assert done.returncode == 0, done.stderr
    assert "Scored 10 of 11 action tokens" in done.stdout
    assert "tokens begin their sequence: nothing stands before them" in done.stdout
    assert "3 tokens are not comparable: " in done.stdout
    assert "no comparable log-probs of the sampler are recorded" in done.stdout
    assert "the noise floor was not measured" in done.stdout
    assert "tokenizer not compared" in done.stdout
