"""Some trajectories of a dataset are read without the others, and are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders import make_trajectory
from trajkit.errors import InputError, UsageProblem
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.store.spans import read_spans, spans_of
from trajkit.store.write import DatasetWriter

TURNS = [([1, 2], [3]), ([1, 2, 3, 4], [5, 6]), ([1, 2, 3, 4, 5, 6, 7], [8])]


@pytest.fixture(params=["one.parquet", "folder"])
def dataset(tmp_path: Path, request: Any, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Return seven trajectories of one to three steps in row groups of two, parts of few."""
    monkeypatch.setattr(DatasetWriter, "group_rows", 2)
    monkeypatch.setattr(DatasetWriter, "part_bytes", 400)
    made = [make_trajectory(TURNS[: 1 + at % 3], f"t{at}") for at in range(7)]
    with DatasetWriter(tmp_path / request.param) as writer:
        for one in made:
            writer.write(one)
    return open_dataset(tmp_path / request.param)


def contents(one: Any) -> Any:
    return one.trajectory_id, [
        (step.step_index, step.prompt_ids.tolist(), step.action_tokens.tolist())
        for step in one.steps
    ]


def test_the_fixture_has_row_groups_inside_trajectories_and_parts(dataset):
    spans = list(spans_of(dataset))
    assert any(span.start // 2 != (span.end - 1) // 2 for span in spans)
    assert (len({span.part for span in spans}) > 1) == dataset.path.is_dir()


def test_spans_are_the_trajectories_in_order_with_their_own_ids(dataset):
    spans, whole = list(spans_of(dataset)), list(read_trajectories(dataset))
    assert [span.trajectory_id for span in spans] == [one.trajectory_id for one in whole]
    assert [span.end - span.start for span in spans] == [len(one.steps) for one in whole]
    assert [span.n_ids for span in spans[:4]] == [3, 6, 8, 3]  # 2 + 1, 1 + 2, 1 + 1


@pytest.mark.parametrize("wanted", [[0], [6], [1, 2], [2, 3, 4, 5], [0, 2, 6], [1, 3, 5], []])
def test_what_is_read_of_spans_is_what_is_read_of_all(dataset, wanted):
    spans, whole = list(spans_of(dataset)), list(read_trajectories(dataset))
    found = list(read_spans([spans[at] for at in wanted]))
    assert [contents(one) for one in found] == [contents(whole[at]) for at in wanted]


def test_some_are_chosen_as_in_reading(dataset):
    def names(**options: Any) -> list[str]:
        return [span.trajectory_id for span in spans_of(dataset, **options)]

    assert names(only=["t5", "t1"]) == ["t1", "t5"]
    assert names(limit=2) == ["t0", "t1"]
    assert names(only=["t5", "t1"], limit=1) == ["t1"]
    with pytest.raises(UsageProblem) as caught:
        names(only=["t5", "none"])
    assert caught.value.code == "U107"


def test_a_damaged_row_group_is_told_where_it_is_read(dataset):
    spans = list(spans_of(dataset))
    part = spans[0].part
    held = bytearray(part.read_bytes())
    held[8:40] = bytes(32)  # the first page
    part.write_bytes(held)
    with pytest.raises(InputError) as caught:
        list(read_spans(spans[:1]))
    assert caught.value.code == "S103"
    assert [one.trajectory_id for one in read_spans(spans[-1:])] == ["t6"]
    with pytest.raises(InputError) as caught:
        list(spans_of(dataset))
    assert caught.value.code == "S103"
