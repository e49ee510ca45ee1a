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
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trajkit.errors import InputError
from trajkit.records import Trajectory, read_only
from trajkit.safe.files import publish
from trajkit.scoring.scored import NUMBERS, ScoredTrajectory, Status, StepScores, scores_table
from trajkit.store.digest import content_digest
from trajkit.store.manifest import unseal
from trajkit.store.read import PROBLEMS
from trajkit.store.schema import METADATA_KEY, SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.write import ParquetSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What became of some trajectories that were scored together.

    Attributes:
        totals: counts of forwards and tokens, by the names that the report has.
    """

    scored: tuple[ScoredTrajectory, ...]
    totals: Mapping[str, int]


class Parts:
    """The finished windows of one run."""

    def __init__(self, target: Path, facts: Mapping[str, Any]) -> None:
        """`facts` is all that the numbers depend on."""
        told = json.dumps(facts, sort_keys=True, default=str).encode()
        self._root = target.with_name(f"{target.name}.parts")
        self.folder = self._root / hashlib.sha256(told).hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)

    def file(self, number: int) -> Path:
        """Return where the window of a number is kept."""
        return self.folder / f"{number:05}.parquet"

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
            return _window(table.to_pydict(), trajectories, told)
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


def _window(
    columns: Mapping[str, list[Any]], trajectories: Sequence[Trajectory], told: Mapping[str, Any]
) -> Window:
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    keys = [(step.trajectory_id, step.step_index) for step in steps]
    found = list(zip(columns["trajectory_id"], columns["step_index"], strict=True))
    if keys != found:
        raise ValueError("it is of other steps")
    rows = iter(
        StepScores(
            step=step,
            status=Status(columns["status"][at]),
            **{name: _numbers(columns[name][at], name) for name in NUMBERS},
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


def _numbers(values: list[float | None] | None, name: str) -> NDArray[Any] | None:
    if values is None:
        return None
    if name == "rank":
        return read_only(np.array([0 if v is None else v for v in values], dtype=np.int32))
    array = np.array([np.nan if v is None else v for v in values], dtype=np.float32)
    array.setflags(write=False)
    return array
