"""Finished windows of a run, kept beside its output: an interrupted run goes on, processes share.

`SCORES.parquet.parts/KEY/00000.parquet` holds the scores of the first window as the final table
will, and in its metadata what scoring it cost. KEY stands for all that the numbers depend on: data,
weights, options, versions. Parts of another run are never taken.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trajkit.errors import InputError
from trajkit.records import Floats, Trajectory, read_only
from trajkit.safe.files import publish
from trajkit.scoring.scored import NUMBERS, ScoredTrajectory, Status, StepScores, scores_table
from trajkit.store.digest import content_digest
from trajkit.store.manifest import unseal
from trajkit.store.read import PROBLEMS
from trajkit.store.schema import METADATA_KEY, SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.scores import lists_of
from trajkit.store.write import ParquetSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What became of some trajectories that were scored together.

    Attributes:
        totals: counts of forwards and tokens, by the names that the report has.
    """

    scored: tuple[ScoredTrajectory, ...]
    totals: Mapping[str, int]


def parts_folder(target: Path) -> Path:
    """Return the folder beside an output where the parts of its runs are kept."""
    return target.with_name(f"{target.name}.parts")


class Parts:
    """The finished windows of one run."""

    def __init__(self, target: Path, facts: Mapping[str, Any]) -> None:
        """`facts` is all that the numbers depend on."""
        told = json.dumps(facts, sort_keys=True, default=str).encode()
        self._root = parts_folder(target)
        self.folder = self._root / hashlib.sha256(told).hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)

    def file(self, number: int) -> Path:
        """Return where the window of a number is kept."""
        return self.folder / f"{number:05}.parquet"

    def made(self, number: int) -> tuple[int, int] | None:
        """Return what tells a window's part from one made later; `None` while there is none."""
        try:
            status = self.file(number).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def load(self, number: int, trajectories: Sequence[Trajectory]) -> Window | None:
        """Return a finished window; `None` where there is none, or it is not what was written."""
        file = self.file(number)
        if not file.is_file():
            return None
        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as part:
                told = unseal((part.metadata.metadata or {})[METADATA_KEY])
                table = part.read()
            if [content_digest(table)] != told["row_groups"]:
                return None
            return _window(table, trajectories, told)
        except (*PROBLEMS, InputError, KeyError, TypeError, ValueError):
            return None

    def save(self, number: int, window: Window) -> None:
        """Keep a window, whole or not at all."""
        rows = [row for one in window.scored for row in one.steps]
        with publish(self.file(number), overwrite=True) as stream:
            sink = ParquetSink(stream, SCORES_SCHEMA, SCORES_SCHEMA_NAME)
            sink.write_group(scores_table(rows))
            longest = [one.n_longest for one in window.scored]
            sink.close({"totals": dict(window.totals), "n_longest": longest})

    def leave(self, *, is_done: bool) -> None:
        """Remove what is no longer needed: all parts when the output is whole, else empty folders.

        Parts of other runs beside the same output go too.
        """
        if is_done:
            shutil.rmtree(self._root, ignore_errors=True)
            return
        with suppress(OSError):
            self.folder.rmdir()
            self._root.rmdir()


_WORDS = ("trajectory_id", "step_index", "status")


def _window(table: pa.Table, trajectories: Sequence[Trajectory], told: Mapping[str, Any]) -> Window:
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    keys = [(step.trajectory_id, step.step_index) for step in steps]
    words = {name: table.column(name).to_pylist() for name in _WORDS}
    found = list(zip(words["trajectory_id"], words["step_index"], strict=True))
    if keys != found:
        raise ValueError("it is of other steps")
    numbers = {name: lists_of(table.column(name)) for name in NUMBERS}
    rows = iter(
        StepScores(
            step=step,
            status=Status(words["status"][at]),
            **{name: _numbers(column[at], name) for name, column in numbers.items()},
        )
        for at, step in enumerate(steps)
    )
    scored = tuple(
        ScoredTrajectory(
            trajectory=trajectory,
            steps=tuple(next(rows) for _ in trajectory.steps),
            n_longest=int(longest),
        )
        for trajectory, longest in zip(trajectories, told["n_longest"], strict=True)
    )
    return Window(scored=scored, totals={name: int(n) for name, n in told["totals"].items()})


def _numbers(values: Floats | None, name: str) -> Any:
    """Return a list of a column as it was scored: ranks whole, and 0 where there is none."""
    if values is None or name != "rank":
        return values
    return read_only(np.nan_to_num(values).astype(np.int32))
