"""`trajkit losses`: what it prints, that it needs no torch, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.builders import make_trajectory
from tests.loss_builders import data_at, scores_at
from trajkit.rl.presets import LOSSES, PRESETS

CALLS = [([1], [5, 6]), ([1, 5, 6, 2], [7])]
ROLLOUT = [[-0.5, -0.25], [-2.0]]


def trajkit(*words):
    command = [sys.executable, "-m", "trajkit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("losses")
    made = [
        make_trajectory(
            CALLS, name, group_id=["g"] * 2, reward=[None, reward], rollout_logprobs=ROLLOUT
        )
        for name, reward in (("a", 1.0), ("b", 0.0))
    ]
    data = data_at(folder / "d.parquet", made)
    rows = [("a", 0, [-1.0, -0.5], None), ("a", 1, [-2.0], None), ("b", 0, [-0.25, -3.0], None)]
    return data, scores_at(folder / "s.parquet", data, rows)


def test_the_table_has_value_numerator_denominator_and_tokens(files):
    done = trajkit("losses", *files)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "sampled ids: 4 of 4 steps (100.0%)"
    assert lines[1] == "5 of 6 action tokens have scores, in 2 trajectories"
    head = next(at for at, line in enumerate(lines) if line.split()[:1] == ["loss"])
    assert lines[head].split() == ["loss", "value", "numerator", "denominator", "tokens"]
    assert lines[head + 1].split() == ["nll", "1.35", "6.75", "5", "5"]
    assert [line.split()[0] for line in lines[head + 1 : head + 1 + len(LOSSES)]] == list(LOSSES)
    assert "advantages: rewards within each group_id" in done.stdout
    assert "ratios: to the sampler's log-probs" in done.stdout
    assert re.search("ppo_gae +null +null +0 +0  no values of a critic", done.stdout)


def test_json_has_every_preset_asked_for(files):
    done = trajkit("losses", *files, "--loss", "all", "--length", 8, "--format", "json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["schema"] == "trajkit.losses/1"
    assert list(facts["losses"]) == list(PRESETS)
    assert facts["losses"]["verl@2026-01/seq-mean-token-sum-norm"]["denominator"] == 8
    assert facts["losses"]["slime@2026-08/per-rollout+tis"]["why_null"]


def test_a_policy_is_named_beside_what_it_counts(files):
    done = trajkit("losses", *files, "--train", "rewarded", "--loss", "nll")
    assert "counted: 1 tokens (--train rewarded)" in done.stdout
    refused = trajkit("losses", *files, "--train", "observation")
    assert refused.returncode == 2
    assert "--train observation counts context" in refused.stderr
    assert "hint: trajkit score DATA --model DIR --train observation" in refused.stderr


def test_no_torch_is_imported(files):
    script = (
        "import sys; from trajkit.__main__ import main\n"
        "try: main()\nfinally: sys.stderr.write(str('torch' in sys.modules))"
    )
    words = [sys.executable, "-c", script, "losses", *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "False")


def test_scores_of_other_data_exit_2(files, tmp_path):
    other = data_at(tmp_path / "other.parquet", [make_trajectory(CALLS, "a")])
    done = trajkit("losses", other, files[1])
    assert done.returncode == 2
    assert "error[U103]" in done.stderr
    assert "scores of other data" in done.stderr


def test_a_file_that_is_no_table_of_scores_exits_3(files):
    done = trajkit("losses", files[0], files[0])
    assert done.returncode == 3
    assert "error[S101]" in done.stderr


def test_an_unknown_preset_names_the_systems(files):
    done = trajkit("losses", *files, "--loss", "verl@2026-08/token-men")
    assert done.returncode == 2
    assert "did you mean verl@2026-08/token-mean" in done.stderr


def test_each_part_has_its_row(files, tmp_path):
    data, _ = files
    rows = [("a", 0, [-1.0, -0.5], None), ("b", 0, [-0.25, -3.0], None)]
    entropy = [[0.5, 0.25], [1.0, 2.25]]
    exact = [[0.5, 0.25], None]
    scores = scores_at(tmp_path / "s.parquet", data, rows, entropy=entropy, exact_kl=exact)
    done = trajkit("losses", data, scores, "--loss", "ppo_entropy", "--loss", "echo")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^    policy +\S+ +\S+ +4 +4$", done.stdout, re.M)
    assert re.search(r"^    -0.01 x entropy +1 +4 +4 +4$", done.stdout, re.M)
    assert re.search(r"echo +null .*--train action-observation", done.stdout)
    assert "exact KL to the reference model, nats a token: 0.375 (2 tokens)" in done.stdout
