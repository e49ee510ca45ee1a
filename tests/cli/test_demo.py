"""The demo computes its figures: other rollouts give other ones, and wrong ones are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[2]
MODEL = Path(os.environ.get("TRAJKIT_MODEL_DIR", ROOT / ".cache" / "smollm2"))
ROLLOUTS = ROOT / "fixtures" / "rollouts" / "smollm2.jsonl"

pytestmark = pytest.mark.model


def demo(rows, folder):
    """Run the demo on some rollouts."""
    log = folder / "rollouts.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "fixtures/demo.py", "--model", MODEL, "--rollouts", log]
    return subprocess.run(
        [*map(str, command), "--out", str(folder / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def n_drifting(rows):
    """Count the actions that decode and encode change, with the library alone."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    actions = [turn["response_token_ids"] for row in rows for turn in row["turns"]]
    texts = tokenizer.decode_batch(actions, skip_special_tokens=False)
    again = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return sum(a != b for a, b in zip(actions, again, strict=True)), len(actions)


def test_other_rollouts_give_other_figures(tmp_path):
    rows = [json.loads(line) for line in ROLLOUTS.read_text().splitlines()][4:6]
    done = demo(rows, tmp_path)
    assert done.returncode == 0, done.stderr
    drifting, n_actions = n_drifting(rows)
    assert f"{drifting} of {n_actions} actions (" in done.stdout
    n_tokens = sum(len(turn["response_token_ids"]) for row in rows for turn in row["turns"])
    assert "score and sampler agree" in done.stdout
    assert f"over {n_tokens} action tokens" in done.stdout


def test_logprobs_of_another_sampler_are_seen(tmp_path):
    row = json.loads(ROLLOUTS.read_text().splitlines()[0])
    row["turns"][1]["logprobs"][3] -= 0.01
    done = demo([row], tmp_path)
    assert done.returncode == 1
    assert "DISAGREE" in done.stdout
