"""Where each trajectory of a dataset stands, so that some can be read without those before them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trajkit.records import Trajectory
from trajkit.store.read import (
    PROBLEMS,
    Dataset,
    chosen,
    damaged,
    footer,
    open_part,
    read_group,
    trajectories_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The rows `start` to `end` of a part, which are one trajectory.

    Attributes:
        n_ids: those of its own: what each prompt adds, and each action.
    """

    trajectory_id: str
    part: Path
    start: int
    end: int
    n_ids: int


def spans_of(
    dataset: Dataset, *, only: Collection[str] = (), limit: int | None = None
) -> Iterator[Span]:
    """Yield where the trajectories that `read_trajectories` would yield stand; reads three columns.

    Raises:
        InputError: S103 when a part is not whole.
        UsageProblem: U107 when the dataset ends before each id in `only` was met.
    """
    found = (span for part in dataset.parts for span in _spans(part))
    return chosen(found, dataset, only=only, limit=limit)


def read_spans(spans: Sequence[Span]) -> Iterator[Trajectory]:
    """Yield the trajectories of some spans, which are in the order of the dataset.

    Each row group that holds a row of them is read whole and held against its digest.

    Raises:
        InputError: S103 when a row group is not what was written.
    """
    for part, some in groupby(spans, lambda span: span.part):
        yield from trajectories_of(_rows(part, _joined(some)), part)


_IDS = ("prompt_delta", "action_tokens")


def _spans(part: Path) -> Iterator[Span]:
    name, start, at, n_ids = None, 0, 0, 0
    with open_part(part) as file:
        footer(file, part)
        for group in range(file.num_row_groups):
            names, counts = _counted(file, part, group)
            for one, n_own in zip(names, counts, strict=True):
                if name is not None and one != name:
                    yield Span(trajectory_id=name, part=part, start=start, end=at, n_ids=n_ids)
                    start, n_ids = at, 0
                name, at, n_ids = one, at + 1, n_ids + n_own
    if name is not None:
        yield Span(trajectory_id=name, part=part, start=start, end=at, n_ids=n_ids)


def _counted(file: pq.ParquetFile, part: Path, group: int) -> tuple[list[str], list[int]]:
    """Return the trajectory and the number of own ids of each row of a row group."""
    try:
        table = file.read_row_group(group, columns=["trajectory_id", *_IDS])
    except PROBLEMS as problem:
        raise damaged(part, f"row group {group}: {str(problem).splitlines()[0]}") from problem
    lengths = [pc.fill_null(pc.list_value_length(table.column(name)), 0) for name in _IDS]
    counts = sum(np.asarray(one, dtype=np.int64) for one in lengths)
    return table.column("trajectory_id").to_pylist(), np.asarray(counts).tolist()


def _joined(spans: Iterator[Span]) -> list[tuple[int, int]]:
    """Return the rows of some spans as ranges; spans that touch are one."""
    ranges: list[tuple[int, int]] = []
    for span in spans:
        if ranges and ranges[-1][1] == span.start:
            ranges[-1] = ranges[-1][0], span.end
        else:
            ranges.append((span.start, span.end))
    return ranges


def _rows(part: Path, ranges: Sequence[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some ranges of a part."""
    with open_part(part) as file:
        first = 0
        for group, digest in enumerate(footer(file, part)["row_groups"]):
            end = first + file.metadata.row_group(group).num_rows
            cut = [(max(a, first) - first, min(b, end) - first) for a, b in ranges]
            cut = [(a, b) for a, b in cut if a < b]
            if cut:
                table = read_group(file, part, group, digest)
                for a, b in cut:
                    yield from table.slice(a, b - a).to_batches()
            first = end
