"""Scores out of Parquet: what a checkpoint said about the actions of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trajkit.errors import UsageProblem
from trajkit.records import Floats, Step, Trajectory
from trajkit.store.beside import SideTable, open_beside, row_groups_of
from trajkit.store.read import Dataset
from trajkit.store.schema import SCORES_SCHEMA, SCORES_SCHEMA_NAME

_NUMBERS = ("logprobs", "entropy", "rank", "ref_logprobs")
_COLUMNS = (*_NUMBERS, "context_logprobs")
_LATER = ("exact_kl",)
"""Columns that tables written before them do not have."""
_HINT = "trajkit score DATA --model DIR -o SCORES.parquet scores the data"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepNumbers:
    """What a checkpoint said about one step's action; each `None` where it was not scored.

    Attributes:
        logprobs, entropy: [A] float32 nats, NaN where missing.
        rank: [A] float32 whole numbers, NaN where missing.
        ref_logprobs: [A] float32 nats under a reference checkpoint, NaN where missing.
        exact_kl: [A] float32 nats, KL(checkpoint || reference) over the vocabulary, NaN where
            missing.
        context_logprobs: [D + L] float32 nats of delta and tail, NaN where missing.
    """

    logprobs: Floats | None
    entropy: Floats | None
    rank: Floats | None
    ref_logprobs: Floats | None = None
    exact_kl: Floats | None = None
    context_logprobs: Floats | None = None


class Scores:
    """A table of scores, read one row group at a time."""

    def __init__(self, table: SideTable) -> None:
        self._table = table
        self._held: tuple[int, dict[tuple[str, int], StepNumbers]] = (-1, {})

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Return what was written with the table: which weights, which data, which options."""
        return self._table.metadata

    def of(self, trajectory: Trajectory) -> Mapping[int, StepNumbers]:
        """Return the numbers of a trajectory by step index; steps without a row are left out.

        Raises:
            InputError: S103 when the table is damaged, or a step has other numbers than ids.
        """
        found: dict[int, StepNumbers] = {}
        for group in self._table.groups.get(trajectory.trajectory_id, ()):
            rows = self._rows(group)
            for step in trajectory.steps:
                numbers = rows.get((trajectory.trajectory_id, step.step_index))
                if numbers is not None:
                    self._check(numbers, step)
                    found[step.step_index] = numbers
        return found

    def _rows(self, group: int) -> dict[tuple[str, int], StepNumbers]:
        if self._held[0] != group:
            table = self._table.group(group)
            there = [name for name in (*_COLUMNS, *_LATER) if name in table.column_names]
            columns = {name: lists_of(table.column(name)) for name in there}
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

    def _check(self, numbers: StepNumbers, step: Step) -> None:
        around = (step.prompt_delta, step.tail_tokens)
        n_context = sum(len(ids) for ids in around if ids is not None)
        for name in (*_COLUMNS, *_LATER):
            values = getattr(numbers, name)
            n = n_context if name == "context_logprobs" else step.n_action_tokens
            if values is not None and len(values) != n:
                raise self._table.damaged(f"{len(values)} {name} for {n} ids")


def open_scores(path: Path, dataset: Dataset) -> Scores:
    """Return the scores in a file that `trajkit score -o` wrote.

    Raises:
        FileError: F101 when it cannot be read.
        InputError: S101 when it holds no scores, S103 when it is damaged.
        UsageProblem: U103 when they are scores of other data.
    """
    table = open_beside(path, SCORES_SCHEMA, SCORES_SCHEMA_NAME, _HINT)
    if not set(_COLUMNS) <= set(table.file.schema_arrow.names):
        raise table.damaged("columns are missing")
    if table.metadata.get("data", {}).get("row_groups") != row_groups_of(dataset):
        raise UsageProblem(
            "U103", f"{path} holds scores of other data than {dataset.path}", hint=_HINT
        )
    return Scores(table)


def lists_of(column: pa.ChunkedArray) -> list[Floats | None]:
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
