"""Finished windows of a run, kept beside its output: an interrupted run goes on, processes share.

`SCORES.parquet.parts/KEY/00000.parquet` holds the scores of the first window as the final table
will, and in its metadata what scoring it cost. KEY stands for all that the numbers depend on: data,
weights, options, versions. Parts of another run are never taken.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trajkit.errors import InputError, Place, RefusedError
from trajkit.records import Floats, Trajectory, read_only
from trajkit.safe.files import publish, remove_quietly
from trajkit.safe.lock import faults_named
from trajkit.scoring.scored import NUMBERS, ScoredTrajectory, Status, StepScores, scores_table
from trajkit.store.digest import content_digest
from trajkit.store.manifest import unseal
from trajkit.store.read import PROBLEMS
from trajkit.store.schema import METADATA_KEY, SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.scores import lists_of
from trajkit.store.write import ParquetSink

_RUN = re.compile(r"[0-9a-f]{16}")
_IN_ROOT = re.compile(
    r"[\w.-]+-\d+\.(alive|done|failed|key|[0-9a-f]{16}\.tmp)|\.[\w.-]+-\d+\.alive\.lock", re.ASCII
)
_IN_RUN = re.compile(r"\d{5,}\.(parquet|\d+\.claim)|\.\d{5,}\.parquet\.([0-9a-f]{16}\.tmp|lock)")
"""The names of all that runs make: their folders, signs of processes, parts and claims."""


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


def make_folder(folder: Path) -> None:
    """Return once a folder of parts is there.

    Raises:
        RefusedError: R103, its name is a symbolic link.
        FileError: F102 or F103, it cannot be made.
    """
    with faults_named(folder):
        if folder.is_symlink():
            raise RefusedError(
                "R103",
                "expected a plain folder for the parts of the output, found a symbolic link",
                place=Place(file=str(folder)),
                hint="remove the link, or name another output",
            )
        folder.mkdir(exist_ok=True)


def drop_empty(root: Path) -> None:
    """Remove the folders of runs that have no part, and the one around them if nothing is left."""
    for folder in _runs(root):
        _drop(folder)
    _drop(root)


def _runs(root: Path) -> list[Path]:
    return [one for one in _inside(root) if _RUN.fullmatch(one.name) and not one.is_symlink()]


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # gone, or no folder
        return []


def _drop(folder: Path) -> None:
    with suppress(OSError):  # something is in it
        folder.rmdir()


class Parts:
    """The finished windows of one run."""

    def __init__(self, target: Path, facts: Mapping[str, Any]) -> None:
        """`facts` is all that the numbers depend on."""
        told = json.dumps(facts, sort_keys=True, default=str).encode()
        self._root = parts_folder(target)
        self.folder = self._root / hashlib.sha256(told).hexdigest()[:16]
        make_folder(self._root)
        make_folder(self.folder)

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

    def drop_if_empty(self) -> None:
        """Leave no folder behind where no window was finished."""
        drop_empty(self._root)

    def remove(self) -> None:
        """Remove the parts of this and all other runs beside the output, and their folders.

        What runs do not make stays, and the folder it is in.
        """
        for folder in _runs(self._root):
            _remove_named(folder, _IN_RUN)
        _remove_named(self._root, _IN_ROOT)
        drop_empty(self._root)


def _remove_named(folder: Path, names: re.Pattern[str]) -> None:
    for file in _inside(folder):
        if names.fullmatch(file.name):
            remove_quietly(file)


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
