"""What is read is what was written, or an error that says what is wrong: never other numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import assert_same_trajectory, make_floats, make_step, make_trajectory
from trajkit.errors import FileError, InputError, TrajkitError, UsageProblem
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.store.columns import steps_table
from trajkit.store.manifest import MANIFEST, seal
from trajkit.store.read import open_dataset, read_trajectories
from trajkit.store.schema import METADATA_KEY, SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.write import DatasetWriter, ParquetSink


def sample(trajectory_id: str) -> Any:
    return make_trajectory(
        [([1, 5], [6, 7]), ([1, 5, 6, 7, 8], [9]), ([1, 5, 2], [3])],
        trajectory_id,
        rollout_logprobs=[[-0.5, None], [-1.0], [-0.25]],
        segments=[(Segment(SegmentKind.PROMPT, 0, 2),), None, ()],
        reward=[None, None, 1.0],
        observation=["café", "", None],
    )


def write(out: Path, *ids: str) -> Path:
    with DatasetWriter(out) as writer:
        writer.part_bytes = 1
        for trajectory_id in ids:
            writer.write(sample(trajectory_id))
    return out


def write_table(path: Path, table: pa.Table, name: str = "trajkit/1") -> Path:
    """Write a table as if trajkit had."""
    with path.open("wb") as stream:
        sink = ParquetSink(stream, table.schema, name)
        sink.write_group(table)
        sink.close({})
    return path


def table_of(trajectory: Trajectory) -> pa.Table:
    return steps_table(trajectory.steps, [None] * len(trajectory.steps))


def refused(path: Path) -> TrajkitError:
    with pytest.raises(TrajkitError) as caught:
        list(read_trajectories(path))
    assert caught.value.place is not None
    assert caught.value.place.file is not None
    return caught.value


# --- what is there


def test_steps_come_back_linked_to_their_parents(tmp_path):
    (found,) = read_trajectories(write(tmp_path / "a.parquet", "x"))
    first, second, third = found.steps
    assert second.parent is first
    assert third.parent is second
    assert third.origin is first
    assert_same_trajectory(found, sample("x"))


def test_arrays_are_read_only_views(tmp_path):
    (found,) = read_trajectories(write(tmp_path / "a.parquet", "x"))
    step = found.steps[0]
    for array in (step.action_tokens, step.prompt_delta, step.rollout_logprobs):
        assert array is not None
        assert not array.flags.writeable
        assert not array.flags.owndata


def test_only_some_trajectories_are_read_when_asked_for(tmp_path):
    data = write(tmp_path / "out", "a", "b", "c", "d")
    for only, limit, expected in [
        ((), None, "abcd"),
        ((), 2, "ab"),
        (["d", "b"], None, "bd"),
        (["d", "b"], 1, "b"),
        ((), 9, "abcd"),
    ]:
        found = read_trajectories(data, only=only, limit=limit)
        assert "".join(trajectory.trajectory_id for trajectory in found) == expected


def test_an_id_that_is_not_there_is_an_error_when_the_dataset_ends(tmp_path):
    data = write(tmp_path / "out", "a", "b")
    found = read_trajectories(data, only=["b", "nobody"])
    assert next(found).trajectory_id == "b"
    with pytest.raises(UsageProblem, match="nobody") as caught:
        next(found)
    assert caught.value.code == "U107"


def test_a_limit_reads_no_further(tmp_path):
    data = write(tmp_path / "out", "a", "b")
    part = open_dataset(data).parts[1]
    found = read_trajectories(data, limit=1)
    part.write_bytes(b"gone")
    assert [trajectory.trajectory_id for trajectory in found] == ["a"]


def test_a_column_that_an_older_writer_did_not_have_is_unknown(tmp_path):
    table = table_of(sample("x")).drop_columns(["media", "observation"])
    (found,) = read_trajectories(write_table(tmp_path / "a.parquet", table))
    assert [step.observation for step in found.steps] == [None] * 3
    assert found.steps[0].action_tokens is not None
    assert found.steps[0].action_tokens.tolist() == [6, 7]


def test_a_column_of_a_newer_writer_is_left_alone(tmp_path):
    table = table_of(sample("x")).append_column("mood", pa.array(["good"] * 3))
    (found,) = read_trajectories(write_table(tmp_path / "a.parquet", table))
    assert_same_trajectory(found, sample("x"))


# --- what is no dataset


def test_a_missing_file_is_a_file_error(tmp_path):
    problem = refused(tmp_path / "nowhere.parquet")
    assert isinstance(problem, FileError)
    assert problem.code == "F101"


@pytest.mark.parametrize("content", [b"", b"PAR1", b'{"messages": []}\n', b"PAR1" + b"\0" * 90])
def test_what_is_no_parquet_is_refused(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    problem = refused(tmp_path / "a.parquet")
    assert problem.code == "S101"
    assert "trajkit ingest" in str(problem.hint)


def test_parquet_of_others_is_refused(tmp_path):
    pq.write_table(pa.table({"messages": ["hi"]}), tmp_path / "a.parquet")
    assert refused(tmp_path / "a.parquet").code == "S101"


def test_scores_are_no_steps(tmp_path):
    table = SCORES_SCHEMA.empty_table()
    path = write_table(tmp_path / "scores.parquet", table, SCORES_SCHEMA_NAME)
    problem = refused(path)
    assert problem.code == "S101"
    assert "trajkit.scores/1" in problem.message


def test_a_newer_schema_is_refused_and_says_so(tmp_path):
    problem = refused(write_table(tmp_path / "a.parquet", table_of(sample("x")), "trajkit/2"))
    assert problem.code == "S102"
    assert "upgrade" in str(problem.hint)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"5", b'{"a": 1}', b'{"schema": "trajkit/1"}'])
def test_metadata_that_makes_no_sense_is_damage(tmp_path, text):
    table = table_of(sample("x")).replace_schema_metadata({METADATA_KEY: text})
    pq.write_table(table, tmp_path / "a.parquet")
    assert refused(tmp_path / "a.parquet").code == "S103"


def test_a_column_of_another_type_is_damage(tmp_path):
    table = table_of(sample("x"))
    spot = table.schema.get_field_index("step_index")
    table = table.set_column(spot, "step_index", pa.array([0, 1, 2], pa.int64()))
    problem = refused(write_table(tmp_path / "a.parquet", table))
    assert problem.code == "S103"
    assert "step_index" in problem.message


def test_a_column_that_must_be_there_is_missed(tmp_path):
    table = table_of(sample("x")).drop_columns(["is_terminal"])
    assert refused(write_table(tmp_path / "a.parquet", table)).code == "S103"


def with_column(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    spot = table.schema.get_field_index(name)
    return table.set_column(
        spot, table.schema.field(spot), pa.array(values, table.schema.field(spot).type)
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("action_source", ["guessed", "sampled", "sampled"]),
        ("end_reason", ["bored", None, None]),
        ("segments", [[{"kind": "novel", "start": 0, "end": 1}], None, None]),
        ("action_tokens", [[1, None], None, None]),
        ("prompt_parent", [None, 7, None]),
        ("prompt_parent", [None, 1, None]),
    ],
)
def test_a_value_that_no_step_can_have_is_damage(tmp_path, name, values):
    table = with_column(table_of(sample("x")), name, values)
    assert refused(write_table(tmp_path / "a.parquet", table)).code == "S103"


# --- damage


def test_content_that_is_not_what_was_written_is_damage(tmp_path):
    other = with_column(table_of(sample("x")), "reward", [None, None, 2.0])
    metadata = {
        METADATA_KEY: pq.read_metadata(write(tmp_path / "a.parquet", "x")).metadata[METADATA_KEY]
    }
    pq.write_table(other.replace_schema_metadata(metadata), tmp_path / "b.parquet")
    problem = refused(tmp_path / "b.parquet")
    assert problem.code == "S103"
    assert "digest" in problem.message


def test_a_file_that_was_cut_anywhere_is_refused(tmp_path):
    whole = write(tmp_path / "a.parquet", "x", "y").read_bytes()
    cut = tmp_path / "cut.parquet"
    for length in range(0, len(whole), 97):
        cut.write_bytes(whole[:length])
        assert refused(cut).code in ("S101", "S103")


def test_a_bit_that_flipped_is_an_error_or_changes_nothing(tmp_path):
    raw = bytearray(write(tmp_path / "a.parquet", "x").read_bytes())
    metadata = open_dataset(tmp_path / "a.parquet").metadata
    flipped = tmp_path / "flipped.parquet"
    codes = []
    for bit in random.Random(7).sample(range(len(raw) * 8), 300):
        raw[bit // 8] ^= 1 << bit % 8
        flipped.write_bytes(raw)
        raw[bit // 8] ^= 1 << bit % 8
        try:
            found = list(read_trajectories(flipped))
            assert open_dataset(flipped).metadata == metadata
        except TrajkitError as problem:
            codes.append(problem.code)
        else:
            assert len(found) == 1
            assert_same_trajectory(found[0], sample("x"))
    assert set(codes) <= {"S101", "S102", "S103"}
    assert len(codes) > 150


# --- folders


def test_a_folder_without_a_manifest_is_no_dataset(tmp_path):
    data = write(tmp_path / "out", "a")
    (data / MANIFEST).unlink()
    problem = refused(data)
    assert problem.code == "S104"
    assert "trajkit ingest" in str(problem.hint)


def test_a_part_that_is_gone_is_missed(tmp_path):
    data = write(tmp_path / "out", "a", "b")
    open_dataset(data).parts[1].unlink()
    problem = refused(data)
    assert problem.code == "S104"
    assert "part-00001.parquet" in problem.message


def test_a_part_of_another_dataset_is_not_taken(tmp_path):
    data = write(tmp_path / "out", "a", "b")
    other = write(tmp_path / "other", "a", "c")
    open_dataset(other).parts[1].replace(open_dataset(data).parts[1])
    assert refused(data).code == "S103"


def test_a_part_that_no_manifest_names_is_not_read(tmp_path):
    data = write(tmp_path / "out", "a")
    write(data / "part-00009.parquet", "stray")
    assert [trajectory.trajectory_id for trajectory in read_trajectories(data)] == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b'{"parts": [{"file": "part-00000.parquet"}]}',
        seal({"parts": []}),
        seal({"parts": [{"file": "../a.parquet", "row_groups": []}]}),
        seal({"parts": [{"file": "/etc/passwd", "row_groups": []}]}),
        seal({"parts": 5}),
    ],
)
def test_a_manifest_that_is_not_as_written_is_damage(tmp_path, text):
    data = write(tmp_path / "out", "a")
    (data / MANIFEST).write_bytes(text)
    assert refused(data).code == "S103"


def test_a_manifest_that_was_edited_is_damage(tmp_path):
    data = write(tmp_path / "out", "a", "b")
    document = json.loads((data / MANIFEST).read_text())
    del document["parts"][1]
    (data / MANIFEST).write_text(json.dumps(document))
    assert refused(data).code == "S103"


def test_nan_on_the_way_in_is_null_on_disk_and_nan_on_the_way_out(tmp_path):
    step = make_step(0, action_tokens=[5, 6, 7], rollout_logprobs=make_floats([None, -0.5, None]))
    table = table_of(Trajectory(trajectory_id="t", steps=(step,)))
    path = write_table(tmp_path / "a.parquet", table)
    assert pq.read_table(path).column("rollout_logprobs").to_pylist() == [[None, -0.5, None]]
    (found,) = read_trajectories(path)
    assert found.steps[0].rollout_logprobs is not None
    assert np.isnan(found.steps[0].rollout_logprobs).tolist() == [True, False, True]


def test_an_error_is_an_input_error(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"x")
    assert isinstance(refused(tmp_path / "a.parquet"), InputError)
