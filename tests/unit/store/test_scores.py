"""Scores read back: the numbers that were written, of the data they are of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import make_step, make_trajectory
from trajkit.errors import TrajkitError
from trajkit.records import Trajectory
from trajkit.store.read import open_dataset
from trajkit.store.schema import SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.scores import open_scores
from trajkit.store.write import DatasetWriter, ParquetSink

FIRST = make_trajectory([([5], [6, 7]), ([5, 6, 7, 8], [9])], "a")
SECOND = make_trajectory([([5], [6])], "b")
NONE = Trajectory(trajectory_id="c", steps=(make_step(trajectory_id="c", action_text="x"),))
ROWS = [
    ("a", 0, [-0.5, None], [1.0, None], [3, None]),
    ("a", 1, [-1.5], [2.0], [0]),
    ("b", 0, [-2.5], [3.0], [262143]),
    ("c", 0, None, None, None),
]


@pytest.fixture
def data(tmp_path):
    return written(tmp_path / "data.parquet", [FIRST, SECOND, NONE])


def written(path, trajectories):
    with DatasetWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
    return open_dataset(path)


def scores_file(path, dataset, rows=ROWS, groups=((0, 2), (2, 4))):
    """Write rows as a table of scores, in row groups."""
    with path.open("wb") as stream:
        sink = ParquetSink(stream, SCORES_SCHEMA, SCORES_SCHEMA_NAME)
        for start, end in groups:
            names, steps, *numbers = zip(*rows[start:end], strict=True)
            columns: dict[str, Any] = dict(
                zip(("logprobs", "entropy", "rank"), numbers, strict=True)
            )
            columns |= {"trajectory_id": names, "step_index": steps, "status": ["ok"] * len(names)}
            arrays = [
                pa.array(columns.get(field.name, [None] * len(names)), field.type)
                for field in SCORES_SCHEMA
            ]
            sink.write_group(pa.Table.from_arrays(arrays, schema=SCORES_SCHEMA))
        sink.close({"data": {"row_groups": dataset.metadata["row_groups"], "n_steps": 4}})
    return path


def plain(values):
    return None if values is None else [None if np.isnan(v) else float(v) for v in values]


def said(scores, trajectory):
    """Return the numbers of each step as plain lists."""
    return {
        index: tuple(map(plain, (numbers.logprobs, numbers.entropy, numbers.rank)))
        for index, numbers in scores.of(trajectory).items()
    }


@pytest.mark.parametrize("groups", [((0, 2), (2, 4)), ((0, 1), (1, 3), (3, 4)), ((0, 4),)])
def test_the_numbers_of_each_step_come_back(tmp_path, data, groups):
    scores = open_scores(scores_file(tmp_path / "s.parquet", data, groups=groups), data)
    found = {
        (trajectory.trajectory_id, index): numbers
        for trajectory in (SECOND, FIRST, NONE)
        for index, numbers in said(scores, trajectory).items()
    }
    assert found == {(name, step): tuple(rest) for name, step, *rest in ROWS}


def test_a_trajectory_without_rows_has_no_numbers(tmp_path, data):
    scores = open_scores(scores_file(tmp_path / "s.parquet", data), data)
    assert scores.of(make_trajectory([([5], [6])], "other")) == {}


def test_scores_of_other_data_are_refused(tmp_path, data):
    other = written(tmp_path / "other.parquet", [SECOND])
    file = scores_file(tmp_path / "s.parquet", other)
    with pytest.raises(TrajkitError, match="scores of other data") as caught:
        open_scores(file, data)
    assert caught.value.code == "U103"


def test_a_step_with_other_numbers_than_ids_is_damage(tmp_path, data):
    rows = [("a", 0, [-0.5], [1.0], [3]), *ROWS[1:]]
    scores = open_scores(scores_file(tmp_path / "s.parquet", data, rows), data)
    with pytest.raises(TrajkitError) as caught:
        scores.of(FIRST)
    assert caught.value.code == "S103"


def test_what_is_no_table_of_scores_says_so(tmp_path, data):
    (tmp_path / "text").write_text(json.dumps({}))
    pq.write_table(pa.table({"x": [1]}), tmp_path / "plain.parquet")
    for name, code in [
        ("missing", "F101"),
        ("text", "S101"),
        ("plain.parquet", "S101"),
        ("data.parquet", "S101"),
    ]:
        with pytest.raises(TrajkitError) as caught:
            open_scores(tmp_path / name, data)
        assert caught.value.code == code, name


def test_a_flipped_byte_is_an_error(tmp_path, data):
    file = scores_file(tmp_path / "s.parquet", data)
    whole = file.read_bytes()
    codes = set()
    expected = [said(open_scores(file, data), trajectory) for trajectory in (FIRST, SECOND, NONE)]
    for at in range(4, len(whole), 37):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            scores = open_scores(file, data)
            assert [said(scores, each) for each in (FIRST, SECOND, NONE)] == expected
        except TrajkitError as problem:
            codes.add(problem.code)
    assert codes <= {"S101", "S103", "F101", "U103"}
    assert "S103" in codes


def test_a_table_from_before_the_exact_kl_is_read_without_it(tmp_path, data):
    made = open_scores(scores_file(tmp_path / "s.parquet", data), data)
    assert made.of(FIRST)[0].exact_kl is None
    path, older = tmp_path / "older.parquet", SCORES_SCHEMA
    older = older.remove(older.get_field_index("exact_kl"))
    with path.open("wb") as stream:
        sink = ParquetSink(stream, older, SCORES_SCHEMA_NAME)
        table = pq.read_table(tmp_path / "s.parquet").select(older.names).cast(older)
        sink.write_group(table)
        sink.close({"data": {"row_groups": data.metadata["row_groups"]}})
    assert said(open_scores(path, data), FIRST) == said(made, FIRST)
