"""Parquet rows into steps: the same as from JSONL, and what else a table holds is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import FIXTURES, records_of, tiny_tokenizer
from tests.mask_builders import write_rows
from trajkit.errors import InputError, RefusedError, TrajkitError, UsageProblem
from trajkit.ingestion import tables
from trajkit.ingestion.run import ingest
from trajkit.store.read import open_dataset, read_trajectories

ROWS = FIXTURES / "formats" / "rows"
IDS = [5, 6, 7, 8, 9, 2]
MESSAGES = {"messages": [{"role": "assistant", "content": "x"}]}


def table(path, *rows: Any, **options: Any):
    """Write rows as a table with all of their columns."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    pq.write_table(pa.table(columns), path, **options)
    return path


def told(out) -> list[Any]:
    """Return of each step what its row told."""
    return [
        (
            t.trajectory_id,
            None if s.prompt_ids is None else s.prompt_ids.tolist(),
            None if s.action_tokens is None else s.action_tokens.tolist(),
            s.source_mask,
            None if s.rollout_logprobs is None else s.rollout_logprobs.tolist(),
        )
        for t in read_trajectories(out)
        for s in t.steps
    ]


@pytest.mark.parametrize("name", ["labels", "masks", "responses"])
def test_a_table_gives_the_steps_that_its_json_gives(name, tmp_path):
    rows = [{"id": f"r{r.index}", **r.value} for r in records_of(ROWS / f"{name}.jsonl")]  # type: ignore[dict-item]
    write_rows(tmp_path / "rows.jsonl", *rows)
    table(tmp_path / "rows.parquet", *rows, row_group_size=1)
    for suffix in ("jsonl", "parquet"):
        source, out = tmp_path / f"rows.{suffix}", tmp_path / f"{suffix}.parquet"
        report = ingest([str(source)], out, tokenizer=tiny_tokenizer())
        assert [d.format for d in report.detected] == ["rows"]
    assert told(tmp_path / "parquet.parquet") == told(tmp_path / "jsonl.parquet")


def test_rows_without_an_id_are_called_by_their_values_and_the_file_by_its_digest(tmp_path):
    row = {"input_ids": IDS, "loss_mask": [0, 0, 1, 1, 0, 1], "logprobs": [-0.5, float("nan")] * 3}
    source = table(tmp_path / "a.parquet", row, row, {**row, "loss_mask": [0] * 6})
    report = ingest([str(source)], tmp_path / "out.parquet")
    names = [t.trajectory_id for t in read_trajectories(tmp_path / "out.parquet")]
    assert names[1] == f"{names[0]}-2"
    assert names[2][:16] != names[0]
    assert report.n_read == 3
    (told_of,) = open_dataset(tmp_path / "out.parquet").metadata["inputs"]
    assert told_of["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert told_of["n_bytes"] == source.stat().st_size
    assert ingest([str(source)], None, limit=1).n_read == 1


@pytest.mark.parametrize(
    ("row", "options", "code"),
    [
        ({"input_ids": IDS, "loss_mask": [1, 0, 1]}, {}, "I407"),
        ({"input_ids": [5, -1], "loss_mask": [0, 1]}, {}, "I302"),
        ({"input_ids": [5, 6], "loss_mask": [0.0, float("inf")]}, {}, "I201"),
        ({"input_ids": IDS, "a": 1}, {}, "I402"),
        (MESSAGES, {}, "I402"),
        (MESSAGES, {"from_format": "messages"}, "U103"),
    ],
)
def test_what_is_no_row_is_an_error_with_its_place(row, options, code, tmp_path):
    source = table(tmp_path / "a.parquet", row)
    with pytest.raises(TrajkitError) as caught:
        ingest([str(source)], None, **options)
    assert caught.value.code == code
    if code[0] == "I":
        assert str(caught.value.place).startswith("a.parquet:1")


def test_a_bad_row_is_set_aside_as_json(tmp_path):
    good, bad = ({"input_ids": IDS, "loss_mask": mask} for mask in ([1] * 6, [1, 1, 1]))
    source = table(tmp_path / "a.parquet", good, bad)
    report = ingest([str(source)], tmp_path / "out.parquet", on_error="quarantine")
    assert (report.n_read, report.n_written, report.n_quarantined) == (2, 1, 1)
    (line,) = (tmp_path / "_out.quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["record"] == 1


def test_a_dataset_of_ours_and_a_damaged_table_are_no_rows(tmp_path):
    source = table(tmp_path / "a.parquet", {"input_ids": IDS, "loss_mask": [1] * 6})
    ingest([str(source)], tmp_path / "own.parquet")
    data = bytearray(source.read_bytes())
    for path, content in (("own.parquet", None), ("cut.parquet", bytes(data[:-9]))):
        if content is not None:
            (tmp_path / path).write_bytes(content)
        with pytest.raises(InputError) as caught:
            ingest([str(tmp_path / path)], None)
        assert caught.value.code == "I101"


def test_a_row_over_the_limit_is_refused(tmp_path, monkeypatch):
    source = table(tmp_path / "a.parquet", {"input_ids": IDS, "loss_mask": [1] * 6})
    monkeypatch.setattr(tables, "MAX_RECORD_BYTES", 20)
    with pytest.raises(RefusedError) as caught:
        ingest([str(source)], None, on_error="quarantine")
    assert caught.value.code == "R101"


# --- --align


def test_a_mask_that_fits_two_ways_is_read_as_asked(tmp_path):
    row = {"id": "r", "prompt_ids": [5], "response_ids": IDS[1:], "loss_mask": [0, 1, 1, 1, 0]}
    path = write_rows(tmp_path / "rows.jsonl", row)
    with pytest.raises(InputError) as caught:
        ingest([str(path)], None)
    assert caught.value.code == "I406"
    assert caught.value.hint == "say which: --align response|shifted"
    for align in ("response", "shifted"):
        ingest([str(path)], tmp_path / f"{align}.parquet", align=align)
    assert told(tmp_path / "response.parquet") == told(tmp_path / "shifted.parquet")


def test_a_mask_of_the_next_id_stands_where_it_was_said_to(tmp_path):
    rolled = {"input_ids": IDS, "loss_mask": [0, 0, 1, 1, 1, 0]}
    path = write_rows(tmp_path / "rows.jsonl", rolled)
    actions = {}
    for align in ("auto", "shifted"):
        ingest([str(path)], tmp_path / f"{align}.parquet", align=align)
        actions[align] = told(tmp_path / f"{align}.parquet")[0][2]
    assert actions == {"auto": [7, 8, 9], "shifted": [8, 9, 2]}
    assert open_dataset(tmp_path / "shifted.parquet").metadata["options"]["align"] == "shifted"


@pytest.mark.parametrize("options", [{"align": "left"}, {"align": "input", "from_format": "flat"}])
def test_an_alignment_that_cannot_be_is_a_usage_error(options, tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", {"input_ids": IDS, "loss_mask": [1] * 6})
    with pytest.raises(UsageProblem) as caught:
        ingest([str(path)], None, **options)
    assert caught.value.code == "U103"


def test_columns_of_numpy_arrays_are_lists(tmp_path):
    ids, mask = np.array(IDS, dtype=np.int64), np.array([0, 0, 1, 1, 1, 1], dtype=np.float32)
    source = table(tmp_path / "a.parquet", {"input_ids": ids, "loss_mask": mask})
    report = ingest([str(source)], tmp_path / "out.parquet")
    assert report.n_action_tokens == 4
