"""A dataset is written whole or not at all, and other tools read it as it is."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import assert_same_trajectory, make_step, make_trajectory
from trajkit.errors import FileError, RefusedError, UsageProblem
from trajkit.records import Trajectory, states_in_order
from trajkit.store.read import open_dataset, read_trajectories
from trajkit.store.write import MAX_STATE_BYTES, DatasetWriter, InputFile, Provenance, StatePolicy


def seeds() -> Trajectory:
    """Return three steps that have the five columns every reader looks for."""
    pieces = [("Hi ", "é", "so?"), (" so? ", "", ""), (" ok", None, None)]
    actions = [[5, 6], [], None]
    steps: list[Any] = []
    n_bytes = 0
    for index, ((delta, action, observation), ids) in enumerate(zip(pieces, actions, strict=True)):
        parent = steps[-1] if steps else None
        step = make_step(
            index,
            parent=parent,
            text_keep=n_bytes,
            text_delta=delta,
            action_text=action,
            action_tokens=ids,
            observation=observation,
            reward=[None, 0.0, 1.5][index],
            is_terminal=index == 2,
        )
        steps.append(step)
        n_bytes += len((delta + (action or "")).encode())
    return Trajectory(trajectory_id="t", steps=tuple(steps))


SEEDS = {
    "state_before": ["Hi ", "Hi é so? ", "Hi é so?  ok"],
    "action_tokens": [[5, 6], [], None],
    "observation": ["so?", "", None],
    "reward": [None, 0.0, 1.5],
    "is_terminal": [False, False, True],
}


def chain(trajectory_id: str, n_steps: int = 3) -> Trajectory:
    calls = [([1, *range(k)], [k]) for k in range(n_steps)]
    trajectory: Trajectory = make_trajectory(calls, trajectory_id)
    return trajectory


def write(out: Path, *trajectories: Trajectory, **options: Any) -> DatasetWriter:
    with DatasetWriter(out, **options) as writer:
        writer.group_rows = 2
        writer.part_bytes = 1
        for trajectory in trajectories:
            writer.write(trajectory)
    return writer


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_holds(path: Path, *trajectories: Trajectory) -> None:
    for found, given in zip(read_trajectories(path), trajectories, strict=True):
        assert_same_trajectory(found, given)


# --- other readers


def test_pandas_reads_the_five_columns(tmp_path):
    write(tmp_path / "a.parquet", seeds())
    frame = pd.read_parquet(tmp_path / "a.parquet")
    assert frame["state_before"].tolist() == SEEDS["state_before"]
    found = [None if ids is None else ids.tolist() for ids in frame["action_tokens"]]
    assert found == SEEDS["action_tokens"]
    assert [None if pd.isna(text) else text for text in frame["observation"]] == SEEDS[
        "observation"
    ]
    assert [None if pd.isna(value) else value for value in frame["reward"]] == SEEDS["reward"]
    assert frame["is_terminal"].tolist() == SEEDS["is_terminal"]


def test_polars_reads_the_five_columns(tmp_path):
    write(tmp_path / "a.parquet", seeds())
    frame = pl.read_parquet(tmp_path / "a.parquet")
    assert frame.select(list(SEEDS)).to_dict(as_series=False) == SEEDS
    assert frame.schema["action_tokens"] == pl.List(pl.Int32)
    assert frame.schema["reward"] == pl.Float64


def test_duckdb_reads_the_five_columns(tmp_path):
    write(tmp_path / "a.parquet", seeds())
    query = f"select {', '.join(SEEDS)} from '{tmp_path / 'a.parquet'}' order by step_index"
    connection: Any = duckdb.connect()
    rows = connection.sql(query).fetchall()
    assert [list(column) for column in zip(*rows, strict=True)] == list(SEEDS.values())


def test_every_tool_reads_the_parts_of_a_folder_as_one_table(tmp_path):
    write(tmp_path / "out", chain("a"), chain("b"), chain("c"))
    pattern = str(tmp_path / "out" / "*.parquet")
    assert len(pl.read_parquet(pattern)) == 9
    connection: Any = duckdb.connect()
    assert connection.sql(f"select count(*) from '{pattern}'").fetchall() == [(9,)]


# --- files


def test_trajectories_that_span_row_groups_come_back_whole(tmp_path):
    given = [chain("a", 5), chain("b", 1), chain("c", 4)]
    write(tmp_path / "a.parquet", *given)
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert file.num_row_groups == 5
    assert_holds(tmp_path / "a.parquet", *given)


def test_a_folder_has_parts_of_whole_trajectories_and_a_manifest(tmp_path):
    given = [chain("a"), chain("b"), chain("c")]
    write(tmp_path / "out", *given)
    assert names(tmp_path / "out") == [
        "_manifest.json",
        *(f"part-0000{n}.parquet" for n in range(3)),
    ]
    assert_holds(tmp_path / "out", *given)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.n_steps == 9
    assert dataset.metadata["n_trajectories"] == 3
    assert [pq.read_metadata(part).num_rows for part in dataset.parts] == [3, 3, 3]


def test_an_empty_dataset_is_a_dataset(tmp_path):
    for out in (tmp_path / "a.parquet", tmp_path / "out"):
        write(out)
        assert list(read_trajectories(out)) == []
        assert open_dataset(out).n_steps == 0


def test_two_runs_are_the_same_bytes(tmp_path):
    given = [chain("a", 5), seeds()]
    write(tmp_path / "a.parquet", *given)
    write(tmp_path / "b.parquet", *given)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    write(tmp_path / "one", *given)
    write(tmp_path / "two", *given)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


def test_where_a_dataset_came_from_stands_in_its_metadata(tmp_path):
    with DatasetWriter(tmp_path / "a.parquet") as writer:
        writer.write(chain("a"))
        writer.provenance = Provenance(
            inputs=(InputFile(file="é.jsonl", sha256="ab", n_bytes=7),),
            tokenizer_name="tiny",
            tokenizer_fingerprint="cd",
            options={"limit": None},
        )
    dataset = open_dataset(tmp_path / "a.parquet")
    assert dataset.metadata["inputs"] == [{"file": "é.jsonl", "sha256": "ab", "n_bytes": 7}]
    assert dataset.metadata["options"] == {"limit": None}
    assert dataset.metadata["schema"] == "trajkit/1"
    assert dataset.tokenizer_fingerprint == "cd"


def test_columns_are_encoded_for_what_they_hold(tmp_path):
    write(tmp_path / "a.parquet", seeds(), chain("b"))
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "DELTA_BYTE_ARRAY" in columns["state_before"].encodings
    assert not columns["state_before"].has_dictionary_page
    assert "PLAIN" in columns["action_tokens.list.element"].encodings
    assert "BYTE_STREAM_SPLIT" in columns["rollout_logprobs.list.element"].encodings
    assert columns["action_source"].has_dictionary_page


def test_pages_tell_when_they_are_damaged_even_to_other_readers(tmp_path):
    write(tmp_path / "a.parquet", seeds())
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    state = columns["state_before"]
    raw = bytearray((tmp_path / "a.parquet").read_bytes())
    raw[state.data_page_offset + state.total_compressed_size - 2] ^= 1
    (tmp_path / "b.parquet").write_bytes(raw)
    with (
        pq.ParquetFile(tmp_path / "b.parquet", page_checksum_verification=True) as file,
        pytest.raises(OSError, match="CRC checksum"),
    ):
        file.read()


# --- overwriting and failing


@pytest.mark.parametrize("out", ["a.parquet", "out"])
def test_an_output_that_exists_is_refused_and_stays(tmp_path, out):
    write(tmp_path / out, chain("a"))
    with pytest.raises(UsageProblem, match="U101"):
        write(tmp_path / out, chain("b"))
    assert_holds(tmp_path / out, chain("a"))


@pytest.mark.parametrize("out", ["a.parquet", "out"])
def test_an_output_is_overwritten_when_told_to(tmp_path, out):
    write(tmp_path / out, chain("a"), chain("b"))
    for _ in range(3):
        write(tmp_path / out, chain("c"), overwrite=True)
        assert_holds(tmp_path / out, chain("c"))
    if out == "out":
        assert len(names(tmp_path / out)) == 2  # the manifest and a part


def write_and_fail(out: Path, problem: type[BaseException], **options: Any) -> None:
    with DatasetWriter(out, **options) as writer:
        writer.part_bytes = 1
        writer.write(chain("c"))
        writer.write(chain("d"))
        raise problem


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("out", ["a.parquet", "out"])
def test_a_failure_midway_leaves_the_old_dataset_and_nothing_else(tmp_path, out, problem):
    write(tmp_path / out, chain("a"), chain("b"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(problem):
        write_and_fail(tmp_path / out, problem, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert_holds(tmp_path / out, chain("a"), chain("b"))


@pytest.mark.parametrize("out", ["a.parquet", "deep/er/out"])
def test_a_failure_in_a_new_place_leaves_nothing(tmp_path, out):
    with pytest.raises(ValueError):  # noqa: PT011 - raised by the test
        write_and_fail(tmp_path / out, ValueError)
    assert names(tmp_path) == []


def test_a_part_that_cannot_be_published_takes_the_others_with_it(tmp_path):
    write(tmp_path / "out", chain("a"))
    before = sorted(tmp_path.rglob("*"))

    def fail_at_the_end() -> None:
        with DatasetWriter(tmp_path / "out", overwrite=True) as writer:
            writer.part_bytes = 1
            for trajectory_id in "bcd":
                writer.write(chain(trajectory_id))
            (tmp_path / "out" / "part-00001.1.parquet").mkdir()

    with pytest.raises(UsageProblem, match="U101"):
        fail_at_the_end()
    (tmp_path / "out" / "part-00001.1.parquet").rmdir()
    assert sorted(tmp_path.rglob("*")) == before
    assert_holds(tmp_path / "out", chain("a"))


def test_a_step_that_cannot_be_written_publishes_nothing(tmp_path):
    wrong = Trajectory(trajectory_id="t", steps=(make_step(0, source_record=2**70),))
    with pytest.raises(OverflowError):
        write(tmp_path / "out", chain("a"), wrong)
    assert names(tmp_path) == []


def test_parts_of_a_run_that_died_are_not_in_the_way_and_never_overwritten(tmp_path):
    write(tmp_path / "out", chain("a"))
    stray = tmp_path / "out" / "part-00000.1.parquet"
    stray.write_bytes(b"half")
    write(tmp_path / "out", chain("b"), overwrite=True)
    assert stray.read_bytes() == b"half"
    assert_holds(tmp_path / "out", chain("b"))
    assert names(tmp_path / "out") == [
        "_manifest.json",
        "part-00000.1.parquet",
        "part-00000.2.parquet",
    ]


def test_parquet_files_of_others_in_the_folder_stay(tmp_path):
    (tmp_path / "out").mkdir()
    foreign = tmp_path / "out" / "part-00000.parquet"
    foreign.write_bytes(b"not ours")
    write(tmp_path / "out", chain("a"), overwrite=True)
    assert foreign.read_bytes() == b"not ours"
    assert_holds(tmp_path / "out", chain("a"))


def test_an_output_that_is_another_file_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageProblem, match="U103"):
        write(tmp_path / "notes.txt", chain("a"), overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_a_file_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="F102"):
        write(tmp_path / "file" / "out", chain("a"))


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "real.parquet").write_bytes(b"mine")
    (tmp_path / "link.parquet").symlink_to("real.parquet")
    with pytest.raises(RefusedError, match="R103"):
        write(tmp_path / "link.parquet", chain("a"), overwrite=True)
    assert (tmp_path / "real.parquet").read_bytes() == b"mine"


# --- state_before


def state_column(path: Path) -> list[str | None]:
    return list(pq.read_table(path, columns=["state_before"]).column(0).to_pylist())


def test_states_are_written_as_told(tmp_path):
    for state, expected in (
        (StatePolicy.AUTO, SEEDS["state_before"]),
        (StatePolicy.FULL, SEEDS["state_before"]),
        (StatePolicy.NONE, [None] * 3),
    ):
        path = tmp_path / f"{state}.parquet"
        write(path, seeds(), state=state)
        assert state_column(path) == expected
        found = next(read_trajectories(path))
        assert [step.state_before for step in found.steps] == SEEDS["state_before"]


def test_the_content_is_the_same_whether_states_are_written_or_not(tmp_path):
    digests = []
    for state in StatePolicy:
        write(tmp_path / f"{state}.parquet", seeds(), state=state)
        digests.append(open_dataset(tmp_path / f"{state}.parquet").metadata["row_groups"])
    assert digests[0] == digests[1] == digests[2]


def test_states_over_the_limit_are_left_out_and_counted(tmp_path):
    first = make_step(0, text_keep=0, text_delta="x" * (MAX_STATE_BYTES // 2), is_terminal=False)
    last = make_step(1, parent=first, text_keep=MAX_STATE_BYTES // 2, text_delta="y")
    long = Trajectory(trajectory_id="long", steps=(first, last))
    writer = write(tmp_path / "a.parquet", long, seeds(), chain("without text"))
    assert writer.n_states_left_out == 1
    assert state_column(tmp_path / "a.parquet")[:2] == [None, None]
    assert state_column(tmp_path / "a.parquet")[2:5] == SEEDS["state_before"]


def test_states_count_in_bytes(tmp_path):
    wide = make_step(0, text_keep=0, text_delta="é" * (MAX_STATE_BYTES // 2 + 1))
    writer = write(tmp_path / "a.parquet", Trajectory(trajectory_id="wide", steps=(wide,)))
    assert writer.n_states_left_out == 1


def told_story(n_steps: int, n_words: int = 30) -> Trajectory:
    """Return an append-only trajectory of text in which words come and go as they do."""
    words = random.Random(5)
    nouns = ["ferry", "notebook", "citadel", "captain", "harbour", "answer", "ticket", "lantern"]
    verbs = ["finds", "asks", "repairs", "follows", "sells", "measures", "forgets", "paints"]

    def sentence(n_words: int) -> str:
        parts = []
        for _ in range(n_words):
            parts += [words.choice(nouns), words.choice(verbs), str(words.randrange(10_000))]
        return " ".join(parts) + ".\n"

    steps: list[Any] = []
    n_bytes = 0
    for index in range(n_steps):
        delta, action = f"<|im_start|>user\n{sentence(n_words)}<|im_end|>\n", sentence(12)
        parent = steps[-1] if steps else None
        steps.append(
            make_step(
                index,
                parent=parent,
                text_keep=n_bytes,
                text_delta=delta,
                action_text=action,
                is_terminal=index == n_steps - 1,
            )
        )
        n_bytes += len(delta) + len(action)
    return Trajectory(trajectory_id="story", steps=tuple(steps))


def room_of_states(path: Path) -> int:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    found = [c.total_compressed_size for c in columns if c.path_in_schema == "state_before"]
    return sum(found)


def packed_size(text: str | None) -> int:
    assert text is not None
    return len(pa.Codec("zstd", compression_level=3).compress(text.encode(), asbytes=True))


def test_states_take_little_more_than_their_distinct_text(tmp_path):
    story = told_story(60)
    with DatasetWriter(tmp_path / "a.parquet") as writer:
        writer.write(story)
    *_, last = states_in_order(story.steps)
    assert room_of_states(tmp_path / "a.parquet") <= 1.5 * packed_size(last)


def test_states_of_long_observations_take_little_more_than_their_distinct_text(tmp_path):
    story = told_story(30, n_words=4000)
    *_, last = states_in_order(story.steps)
    with DatasetWriter(tmp_path / "a.parquet") as writer:
        for trajectory_id in ("a", "b"):
            writer.write(Trajectory(trajectory_id=trajectory_id, steps=story.steps))
    assert writer.n_states_left_out == 0
    assert last is not None
    assert len(last) * 15 > 32 * 2**20  # the states of one would fill a row group
    assert room_of_states(tmp_path / "a.parquet") <= 1.5 * 2 * packed_size(last)


def test_full_states_are_not_all_in_memory_at_once(tmp_path):
    story = told_story(500)
    total = sum(len(state) for state in states_in_order(story.steps) if state is not None)
    tracemalloc.start()
    try:
        with DatasetWriter(tmp_path / "a.parquet", state=StatePolicy.FULL) as writer:
            writer.long_group_bytes = total // 50
            writer.write(story)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 100e6
    assert peak < total / 5


def test_twice_the_steps_take_twice_the_room(tmp_path):
    sizes = []
    for n_steps in (500, 1000):
        path = tmp_path / f"{n_steps}.parquet"
        write_all_at_once(path, told_story(n_steps))
        sizes.append(path.stat().st_size)
    assert sizes[1] < 2.2 * sizes[0]


def write_all_at_once(path: Path, trajectory: Trajectory) -> None:
    with DatasetWriter(path, state=StatePolicy.NONE) as writer:
        writer.write(trajectory)


def test_ids_and_logprobs_stand_in_the_file_as_int32_and_float32(tmp_path):
    logprobs = np.array([-0.1, np.nan], dtype=np.float32)
    step = make_step(0, action_tokens=[0, 2**31 - 1], rollout_logprobs=logprobs)
    write(tmp_path / "a.parquet", Trajectory(trajectory_id="t", steps=(step,)))
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column("action_tokens").to_pylist() == [[0, 2147483647]]
    assert table.column("rollout_logprobs").to_pylist() == [[float(np.float32(-0.1)), None]]
    assert table.schema.field("action_tokens").type.value_type == pa.int32()
    assert table.schema.field("rollout_logprobs").type.value_type == pa.float32()
