"""A real checkpoint against the log-probs its own sampler recorded, in float64 and with a cache."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import make_trajectory
from tests.score_builders import write_data
from trajkit.records import Trajectory, ids_array
from trajkit.scoring.forward.logprobs import token_scores
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.run import score

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[3]
ROLLOUTS = ROOT / "fixtures" / "rollouts" / "smollm2.jsonl"
MAX_GAP = 1e-4


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    folder = Path(os.environ.get("TRAJKIT_MODEL_DIR", ROOT / ".cache" / "smollm2"))
    return load_model(folder, device="cpu")


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    lines = ROLLOUTS.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def trajectory_of(record: dict[str, Any]) -> Trajectory:
    turns = record["turns"]
    n = len(turns)
    made: Trajectory = make_trajectory(
        [(turn["prompt_token_ids"], turn["response_token_ids"]) for turn in turns],
        record["trajectory_id"],
        rollout_logprobs=[turn["logprobs"] for turn in turns],
        group_id=[record["group_id"]] * n,
        reward=[None] * (n - 1) + [record["reward"]],
        temperature=[record["temperature"]] * n,
    )
    return made


def gap(model: LoadedModel, ids: list[int], start: int, recorded: list[float]) -> float:
    targets = np.arange(start, start + len(recorded), dtype=np.int64)
    found = token_scores(model, ids_array(ids), targets).logprobs
    return float(np.abs(found - np.array(recorded)).max())


def test_recorded_logprobs_come_back(
    smollm2: LoadedModel, records: list[dict[str, Any]], tmp_path: Path
) -> None:
    data = write_data(tmp_path / "data.parquet", [trajectory_of(record) for record in records])
    report = score(data, smollm2, recheck=2)
    assert report.mismatch is not None
    assert report.mismatch.n_not_comparable == 0
    assert report.mismatch.gap.n == sum(
        len(turn["response_token_ids"]) for record in records for turn in record["turns"]
    )
    assert (report.mismatch.gap.max_abs or 1.0) <= MAX_GAP
    assert report.mismatch.gap.share_outside == 0.0
    assert report.noise_floor is not None
    assert (report.noise_floor.gap.max_abs or 1.0) <= MAX_GAP
    assert report.counts.n_forwards == 1
    counts = report.counts
    assert counts.n_forwarded_tokens < counts.n_row_tokens < counts.n_raw_tokens
    assert report.table.advantages.source == "group_id"
    unknown = {name for name, value in report.losses.items() if value.value is None}
    assert unknown == {"ppo_gae", "grpo_kl"}  # no critic's values, no reference model


def test_one_other_id_or_a_shift_by_one_is_far_away(
    smollm2: LoadedModel, records: list[dict[str, Any]]
) -> None:
    turn = records[0]["turns"][1]
    prompt, action = turn["prompt_token_ids"], turn["response_token_ids"]
    assert gap(smollm2, prompt + action, len(prompt), turn["logprobs"]) <= MAX_GAP
    changed = [*prompt[:-6], prompt[-6] + 1, *prompt[-5:]]
    assert gap(smollm2, changed + action, len(prompt), turn["logprobs"]) > 0.1
    assert gap(smollm2, prompt + action, len(prompt) - 1, turn["logprobs"]) > 0.1
    assert gap(smollm2, [*prompt[1:], *action], len(prompt) - 1, turn["logprobs"]) > 0.1
