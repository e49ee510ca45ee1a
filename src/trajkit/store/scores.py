"""Scores out of Parquet: what a checkpoint said about the actions of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trajkit.errors import FileError, InputError, Place, UsageProblem
from trajkit.records import Floats, Trajectory
from trajkit.store.digest import content_digest
from trajkit.store.manifest import unseal
from trajkit.store.read import PROBLEMS, Dataset, open_dataset
from trajkit.store.schema import METADATA_KEY, SCORES_SCHEMA, SCORES_SCHEMA_NAME

_NUMBERS = ("logprobs", "entropy", "rank")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepNumbers:
    """What a checkpoint said about one step's action; each `None` where it was not scored.

    Attributes:
        logprobs, entropy: [A] float32 nats, NaN where missing.
        rank: [A] float32 whole numbers, NaN where missing.
    """

    logprobs: Floats | None
    entropy: Floats | None
    rank: Floats | None


class Scores:
    """A table of scores, read one row group at a time; each is held against its digest."""

    def __init__(self, path: Path, file: pq.ParquetFile, digests: Sequence[str]) -> None:
        self._path, self._file, self._digests = path, file, digests
        self._groups: dict[str, list[int]] = {}
        self._held: tuple[int, dict[tuple[str, int], StepNumbers]] = (-1, {})
        for group in range(file.num_row_groups):
            for name in self._column(group).unique().to_pylist():
                self._groups.setdefault(name, []).append(group)

    def of(self, trajectory: Trajectory) -> Mapping[int, StepNumbers]:
        """Return the numbers of a trajectory by step index; steps without a row are left out.

        Raises:
            InputError: S103 when the table is damaged, or a step has other numbers than ids.
        """
        found: dict[int, StepNumbers] = {}
        for group in self._groups.get(trajectory.trajectory_id, ()):
            rows = self._rows(group)
            for step in trajectory.steps:
                numbers = rows.get((trajectory.trajectory_id, step.step_index))
                if numbers is not None:
                    self._check(numbers, step.n_action_tokens)
                    found[step.step_index] = numbers
        return found

    def _column(self, group: int) -> pa.ChunkedArray:
        return self._read(group, ["trajectory_id"]).column(0)

    def _rows(self, group: int) -> dict[tuple[str, int], StepNumbers]:
        if self._held[0] != group:
            table = self._read(group, None)
            if content_digest(table) != self._digests[group]:
                raise _damaged(self._path, f"row group {group} has another digest")
            columns = {name: _lists(table.column(name)) for name in _NUMBERS}
            keys = zip(
                table.column("trajectory_id").to_pylist(),
                table.column("step_index").to_pylist(),
                strict=True,
            )
            rows = {
                key: StepNumbers(**{name: column[row] for name, column in columns.items()})
                for row, key in enumerate(keys)
            }
            self._held = group, rows
        return self._held[1]

    def _read(self, group: int, columns: list[str] | None) -> pa.Table:
        try:
            return self._file.read_row_group(group, columns=columns)
        except PROBLEMS as problem:
            raise _damaged(self._path, str(problem).splitlines()[0]) from problem

    def _check(self, numbers: StepNumbers, n: int) -> None:
        for values in (numbers.logprobs, numbers.entropy, numbers.rank):
            if values is not None and len(values) != n:
                raise _damaged(self._path, f"{len(values)} numbers for {n} action ids")


def open_scores(path: Path, dataset: Dataset) -> Scores:
    """Return the scores in a file that `trajkit score -o` wrote.

    Raises:
        FileError: F101 when it cannot be read.
        InputError: S101 when it holds no scores, S103 when it is damaged.
        UsageProblem: U103 when they are scores of other data.
    """
    place = Place(file=str(path))
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except PROBLEMS as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            message = f"cannot be read: {problem.strerror}"
            raise FileError("F101", message, place=place) from problem
        message = "this is not a Parquet file that can be read"
        raise InputError("S101", message, place=place) from problem
    metadata = _metadata(path, file)
    groups = [group for part in dataset.parts for group in _groups_of(part)]
    if metadata.get("data", {}).get("row_groups") != groups:
        raise UsageProblem(
            "U103",
            f"{path} holds scores of other data than {dataset.path}",
            hint="trajkit score DATA --model DIR -o SCORES.parquet scores these",
        )
    return Scores(path, file, metadata["row_groups"])


def _groups_of(part: Path) -> list[str]:
    return list(open_dataset(part).metadata.get("row_groups", []))


def _metadata(path: Path, file: pq.ParquetFile) -> dict[str, Any]:
    """Return the table's trajkit metadata after checking that it holds scores."""
    raw = (file.metadata.metadata or {}).get(METADATA_KEY)
    try:
        metadata = {} if raw is None else unseal(raw)
    except (ValueError, KeyError, TypeError) as problem:
        raise _damaged(path, f"its metadata cannot be understood: {problem}") from problem
    names = [field.name for field in SCORES_SCHEMA if field.name in file.schema_arrow.names]
    known = all(file.schema_arrow.field(n).type == SCORES_SCHEMA.field(n).type for n in names)
    if metadata.get("schema") != SCORES_SCHEMA_NAME or not known or not set(_NUMBERS) <= set(names):
        raise InputError(
            "S101",
            f"expected a table {SCORES_SCHEMA_NAME}, found {metadata.get('schema', 'another')}",
            place=Place(file=str(path)),
            hint="give what trajkit score -o wrote",
        )
    if len(metadata.get("row_groups", ())) != file.num_row_groups:
        raise _damaged(path, "row groups are missing")
    return metadata


def _lists(column: pa.ChunkedArray) -> list[Floats | None]:
    """Return each list as float32, NaN where a number is null."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    flat = array.values.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    flat = flat.astype(np.float32, copy=True)
    flat.setflags(write=False)
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [
        flat[start:end] if is_known else None
        for start, end, is_known in zip(offsets, offsets[1:], valid, strict=False)
    ]


def _damaged(path: Path, why: str) -> InputError:
    return InputError(
        "S103",
        f"expected the scores as they were written, found them damaged: {why}",
        place=Place(file=str(path)),
        hint="score the data again",
    )
