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

from trajkit.rl.presets import LOSSES

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
    # 1 5 6 7 8 | 9 20 21 30 | 20 21 30: the shared prompt and the start of the action are read once
    assert re.search("forwards +1 of 12 tokens in all", done.stdout)
    assert "one a sequence: 19, one a step: 30" in done.stdout
    speed = r"12 tokens read in [\d.]+ m?s: [\d,.]+ tokens/s, \d[\d.]* [GM]B of memory at most\n"
    assert re.search(speed, done.stdout)
    table = pq.read_table(out)
    assert table.column("trajectory_id").to_pylist() == ["a", "a", "b", "b"]
    assert [len(row) for row in table.column("logprobs").to_pylist()] == [3, 2, 2, 2]


def test_json_has_the_documented_keys_and_only_recorded_logprobs_are_compared(steps):
    done = trajkit("score", steps, "--model", TINY, "--format", "json", "-q")
    facts = json.loads(done.stdout)
    assert facts["schema"] == "trajkit.score/1"
    assert facts["n_action_tokens"] == 9
    assert facts["n_forwarded_tokens"] == 5 + 4 + 3
    assert facts["n_row_tokens"] == 10 + 9
    assert facts["sharing"] == {"is_shared": True, "why_not": None}
    assert facts["n_raw_tokens"] == 6 + 10 + 5 + 9
    assert facts["mismatch"]["n"] == 3
    assert list(facts["losses"]) == list(LOSSES)
    assert facts["losses"]["nll"]["value"] == pytest.approx(-facts["logprob"]["token_mean"])
    assert done.stderr == ""
    assert facts["hint"] is None
    assert facts["dtype_noise"]["why_null"] == "the run is in fp32 itself"
    assert facts["effort"]["n_tokens"] == 12
    assert facts["effort"]["peak_memory_bytes"] > 10_000_000
    assert facts["effort"]["tokens_per_second"] > 0


def test_half_precision_stands_beside_fp32_in_text(steps):
    words = "score", steps, "--model", TINY, "--device", "cpu", "--dtype", "bf16"
    done = trajkit(*words)
    assert done.returncode == 0, done.stderr
    row = r"noise floor \(bf16 against fp32\) +\d\.\d\de-0\d.* 5\n"
    assert re.search(row, done.stdout)
    assert re.search(r"noise floor \(scored step by step\) .* 5\n", done.stdout)
    done = trajkit(*words, "--recheck-dtype", "none")
    assert "not held against fp32: --recheck-dtype none" in done.stdout
    assert "bf16 against" not in done.stdout


def test_a_plan_counts_what_would_be_read_without_a_model(steps):
    done = trajkit("score", steps, "--plan")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "sampled ids: 4 of 4 steps (100.0%)"
    assert re.search("with one pass a step +30\\n", done.stdout)
    assert re.search("with one pass a sequence +19  1.6x fewer", done.stdout)
    assert re.search("with prefixes shared +12  2.5x fewer", done.stdout)
    assert "no prompt leaves the middle of its parent's" in done.stdout
    facts = json.loads(trajkit("score", steps, "--plan", "--format", "json").stdout)
    assert facts["schema"] == "trajkit.score-plan/1"
    assert (facts["n_raw_tokens"], facts["n_forwarded_tokens"]) == (30, 12)
    assert (facts["train"], facts["n_context_tokens"]) == ("action", 0)


def test_a_plan_counts_context_where_it_is_trained(steps):
    done = trajkit("score", steps, "--plan", "--train", "observation")
    assert done.returncode == 0, done.stderr
    assert "Would score 9 action tokens and 10 context tokens of 4 steps" in done.stdout


def test_a_plan_names_the_prompts_that_drift_made_dear(tmp_path):
    row = rollout("a", 1.0)
    row["turns"][1]["prompt_token_ids"] = [1, 5, 6, 7, 99, 9, 20, 21]
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    assert trajkit("ingest", tmp_path / "log.jsonl", "-o", tmp_path / "s.parquet").returncode == 0
    done = trajkit("score", tmp_path / "s.parquet", "--plan")
    assert "parent's ids: 1, for which tokens are read again: 2" in done.stdout
    assert re.search(r"a +1 +4 +2 +2\n", done.stdout)


def test_a_plan_for_a_checkpoint_leaves_out_what_is_too_long_for_it(steps, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "max_position_embeddings": 9})
    )
    (tmp_path / "model.safetensors").write_bytes(b"never opened")
    done = trajkit("score", steps, "--plan", "--model", tmp_path, "--format", "json")
    assert json.loads(done.stdout)["by_status"] == {"ok": 2, "too_long": 2}


def test_a_plan_answers_nothing_that_needs_a_model(steps, tmp_path):
    out = tmp_path / "scores.parquet"
    done = trajkit("score", steps, "--plan", "-o", out, "--max-delta", "1", "--recheck-dtype=fp32")
    assert done.returncode == 2
    assert "--output and --max-delta and --recheck-dtype cannot be answered" in done.stderr
    assert not out.exists()


def test_a_plan_imports_no_torch(steps):
    code = (
        "import sys; from trajkit.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "score", str(steps), "--plan"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_without_a_checkpoint_or_a_plan_there_is_nothing_to_do(steps):
    done = trajkit("score", steps)
    assert done.returncode == 2
    assert "error[U103]: a checkpoint is needed" in done.stderr
    assert "--plan" in done.stderr


def test_limits_that_are_not_kept_exit_1_and_are_named(steps):
    words = "score", steps, "--model", TINY, "--require-sampled"
    assert trajkit(*words, "--max-delta", "100").returncode == 0
    done = trajkit(*words, "--max-delta", "0.5")
    assert done.returncode == 1
    assert re.search(r"--max-delta: max \|Δ\| \S+ exceeds 0.5 nats", done.stdout)


def test_passes_can_be_kept_small(steps):
    words = "score", steps, "--model", TINY, "--format", "json"
    small = json.loads(trajkit(*words, "--tokens-per-batch", "9").stdout)
    whole = json.loads(trajkit(*words).stdout)
    assert small["n_forwards"] == 2
    assert small["n_forwarded_tokens"] == 9 + 8
    assert small["logprob"]["sum"] == pytest.approx(whole["logprob"]["sum"], abs=1e-4)


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


def test_without_recorded_logprobs_the_noise_is_told_all_the_same(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps(rollout("a", 1.0)) + "\n")
    assert trajkit("ingest", tmp_path / "log.jsonl", "-o", tmp_path / "s.parquet").returncode == 0
    done = trajkit("score", tmp_path / "s.parquet", "--model", TINY, "--device", "cpu")
    assert "sampler: no log-probs to compare with" in done.stdout
    assert re.search(r"noise floor \(scored step by step\) .* 5\n", done.stdout)


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


@pytest.mark.parametrize("train", ["last-step", "all"])
def test_losses_says_the_same_of_the_scores_as_score_did(steps, tmp_path, train):
    out = tmp_path / "scores.parquet"
    asked = ["--loss", "all", "--length", 32, "--train", train, "--format", "json", "-q"]
    model = ["--model", TINY, "--ref-model", TINY, "--device", "cpu"]
    scored = json.loads(trajkit("score", steps, *model, "-o", out, *asked).stdout)
    again = json.loads(trajkit("losses", steps, out, *asked).stdout)
    assert again["losses"] == scored["losses"]
    shared = set(again) & set(scored) - {"schema"}
    assert {name: again[name] for name in shared} == {name: scored[name] for name in shared}
    assert {"kl_to_reference", "ratio_source", "advantage_source", "model"} <= shared
    zero = pytest.approx(0.0, abs=1e-6)  # threads may add in another order
    assert scored["kl_to_reference"] == {
        "n": 4 if train == "last-step" else 9,
        "k1": zero,
        "k2": zero,
        "k3": zero,
    }


def test_a_reference_model_is_named_and_its_distance_told(steps):
    done = trajkit("score", steps, "--model", TINY, "--ref-model", TINY, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert re.search("reference +tiny fp32 on cpu, 12 tokens read", done.stdout)
    assert "KL to the reference model, nats a token: k1 0, k2 0, k3 0 (9 tokens)" in done.stdout
