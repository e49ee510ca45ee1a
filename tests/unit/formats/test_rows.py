"""Pre-tokenised rows into steps: one action a run, the mask beside it, nothing lost in silence."""

from __future__ import annotations

import pytest

from tests.builders import FIXTURES, make_record, tiny_tokenizer
from tests.mask_builders import write_rows
from trajkit.errors import InputError
from trajkit.formats.rows import FORMAT
from trajkit.ingestion.run import ingest
from trajkit.records import ActionSource, MaskRun
from trajkit.sequence import build_sequences
from trajkit.store.read import read_trajectories

IDS = [5, 6, 7, 8, 9, 2]
ROWS = FIXTURES / "formats" / "rows"


def read(value):
    return FORMAT.read(make_record(value))


def test_each_run_of_trained_ids_is_an_action_whose_ids_are_not_called_sampled():
    raw = read({"input_ids": IDS, "loss_mask": [0, 1, 0, 0, 1, 0], "id": "r"})
    prompts = [step.prompt_ids.tolist() for step in raw.steps if step.prompt_ids is not None]
    actions = [step.action_ids.tolist() for step in raw.steps if step.action_ids is not None]
    assert prompts == [[5], [5, 6, 7, 8]]
    assert actions == [[6], [9]]
    assert {step.action_source for step in raw.steps} == {ActionSource.UNKNOWN}
    assert raw.steps[0].tail_ids is None
    assert raw.steps[1].tail_ids is not None
    assert raw.steps[1].tail_ids.tolist() == [2]


def test_the_mask_of_the_source_is_kept_as_runs_over_each_step():
    raw = read({"input_ids": IDS, "loss_mask": [0, 0.5, 1, 0, 1, 0]})
    assert raw.steps[0].source_mask == (MaskRun(0, 1, 0.0), MaskRun(1, 2, 0.5), MaskRun(2, 3, 1.0))
    assert raw.steps[1].source_mask == (MaskRun(0, 1, 0.0), MaskRun(1, 2, 1.0), MaskRun(2, 3, 0.0))


def test_a_row_that_trains_nothing_has_no_action_and_says_so():
    raw = read({"input_ids": IDS, "loss_mask": [0] * 6})
    assert raw.steps[0].action_ids is None
    assert raw.steps[0].source_mask == (MaskRun(0, 6, 0.0),)
    assert any("no action" in warning for warning in raw.warnings)


def test_padding_is_left_out_and_told_but_not_where_it_is_trained():
    row = {"input_ids": IDS, "loss_mask": [0, 0, 0, 1, 1, 1], "attention_mask": [0, 1, 1, 1, 1, 0]}
    raw = read(row)
    assert raw.steps[0].prompt_ids is not None
    assert raw.steps[0].prompt_ids.tolist() == [6, 7]
    assert raw.steps[0].action_ids is not None
    assert raw.steps[0].action_ids.tolist() == [8, 9, 2]
    assert any("padding" in warning for warning in raw.warnings)


def test_what_stands_off_the_mask_is_told():
    raw = read({"input_ids": IDS, "loss_mask": [0, 0, 0, 1, 1, 1], "logprobs": [-0.5] * 6})
    assert raw.steps[0].logprobs is not None
    assert raw.steps[0].logprobs.tolist() == [-0.5] * 3
    assert any("not trained" in warning for warning in raw.warnings)
    filled = read({"input_ids": IDS, "loss_mask": [0, 0, 0, 1, 1, 1], "logprobs": [0.0] * 6})
    assert filled.warnings == ()


def test_versions_and_the_rollout_are_kept():
    raw = read(
        {"input_ids": IDS, "loss_mask": [0, 1] * 3, "rollout_id": "x", "policy_version": ["1", "2"]}
    )
    assert raw.extra == {"rollout_id": "x", "policy_version": ("1", "2")}
    assert read({"input_ids": IDS, "loss_mask": [0, 1] * 3, "policy_version": "1"}).steps[
        0
    ].policy_version == ("1",)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"input_ids": IDS, "labels": [-100, -100, -100, -100, 8, 2]}, "I407"),
        ({"input_ids": IDS, "loss_mask": [0, 0, 0, 1, 1, 1], "logprobs": [-1.0]}, "I305"),
    ],
)
def test_what_mask_check_would_find_stops_the_reading(row, code):
    with pytest.raises(InputError) as caught:
        read(row)
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["labels.jsonl", "masks.jsonl", "responses.jsonl"])
def test_rows_are_ingested_and_their_masks_come_back(name, tmp_path):
    ingest([str(ROWS / name)], tmp_path / "out.parquet", tokenizer=tiny_tokenizer())
    trajectories = list(read_trajectories(tmp_path / "out.parquet"))
    assert len(trajectories) == 2
    for trajectory in trajectories:
        assert len(build_sequences(trajectory)) == 1
        for step in trajectory.steps:
            assert step.action_source is ActionSource.UNKNOWN
            assert step.action_mask is not None
            runs = step.source_mask or ()
            claimed = [run.weight != 0 for run in runs for _ in range(run.start, run.end)]
            assert claimed == step.action_mask.tolist()


def test_an_id_behind_the_last_action_must_be_in_the_vocabulary_too(tmp_path):
    path = write_rows(tmp_path / "r.jsonl", {"input_ids": [5, 6, 600], "loss_mask": [0, 1, 0]})
    with pytest.raises(InputError) as caught:
        ingest([str(path)], tmp_path / "out.parquet", tokenizer=tiny_tokenizer())
    assert caught.value.code == "I304"
    assert "tail id 600" in caught.value.message
