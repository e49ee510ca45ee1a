"""One run by several processes: which of them this is, and how they hear of each other.

Processes that a launcher starts with `RANK` and `WORLD_SIZE` (torchrun, accelerate) or
`SLURM_PROCID` and `SLURM_NTASKS` (srun) take every n-th window of the data. They share nothing but
a folder: each shows there that it is alive, or that it failed, and the first of them puts together
what all have written.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trajkit.errors import FileError, Place, UsageProblem
from trajkit.safe.files import publish_bytes

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_OWN_NAMES = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
              "SLURM_STEP_ID")  # fmt: skip
_SIGN_EVERY_S = 2.0
SILENCE_S = 600.0
"""A process that has not shown itself for so long is taken for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process among those of one run.

    Attributes:
        rank: its number; the first one, 0, reports.
        size: how many there are.
        local_rank: its number on its machine: the GPU it takes.
        name: tells this start of the run from an earlier one that left its files.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    name: str = "alone"

    @property
    def is_first(self) -> bool:
        """Return whether this process puts the parts together and reports."""
        return self.rank == 0

    def takes(self, number: int) -> bool:
        """Return whether the window of that number is this process's."""
        return number % self.size == self.rank


ALONE = Job()


def job_of(environment: Mapping[str, str]) -> Job:
    """Return which process of a run this is, as its launcher says; alone where none says so.

    Raises:
        UsageProblem: U103 when what a launcher says is no rank.
    """
    for rank, size, local in _LAUNCHERS:
        if rank not in environment or size not in environment:
            continue
        names = [environment[name] for name in _OWN_NAMES if name in environment]
        try:
            numbers = [int(environment.get(name, "0")) for name in (rank, size, local)]
        except ValueError:
            numbers = [-1, 0, 0]
        if not 0 <= numbers[0] < numbers[1] or numbers[2] < 0:
            said = f"{rank}={environment[rank]} {size}={environment[size]}"
            raise UsageProblem("U103", f"a launcher set {said[:80]}, which is no rank of a run")
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(names))[:80] or "run"
        return Job(rank=numbers[0], size=numbers[1], local_rank=numbers[2], name=name)
    return ALONE


class Company:
    """The processes of one run, seen through a folder."""

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder = folder
        self._job = job
        self._seen: dict[int, tuple[float, float]] = {}
        """By rank, the last sign, and when it was noticed here: clocks of machines differ."""
        self._stale = {rank: self._failure(rank) for rank in range(job.size)}
        """What an earlier start of the same name left: no failure of this one."""

    @contextmanager
    def present(self) -> Iterator[None]:
        """Show that this process is alive while inside, and then that it is done or failed."""
        if self._job.size == 1:
            yield
            return
        stop = threading.Event()
        sign = threading.Thread(target=self._sign, args=(stop,), daemon=True)
        sign.start()
        try:
            yield
            self._file(self._job.rank, "done").touch()
        except BaseException as problem:
            text = str(problem).splitlines()[:1] or [type(problem).__name__]
            publish_bytes(self._file(self._job.rank, "failed"), text[0].encode(), overwrite=True)
            raise
        finally:
            stop.set()
            sign.join()
            self._file(self._job.rank, "alive").unlink(missing_ok=True)

    def wait_for(self, file: Path, rank: int) -> None:
        """Return once another process's file is there.

        Raises:
            FileError: F104 when that process failed, or gives no sign of life.
        """
        start = time.monotonic()
        while not file.exists():
            failure = self._failure(rank)
            if failure is not None and failure != self._stale.get(rank):
                raise _gone(rank, self._folder, f"it failed: {failure[1]}")
            if time.monotonic() - max(start, self._last_sign(rank)) > SILENCE_S:
                raise _gone(rank, self._folder, f"no sign of it for {SILENCE_S:g} seconds")
            time.sleep(0.05)

    def wait_for_all(self) -> None:
        """Return once every other process has finished its share: late ones find theirs kept.

        Raises:
            FileError: F104 as in `wait_for`.
        """
        for rank in range(1, self._job.size):
            self.wait_for(self._file(rank, "done"), rank)

    def _failure(self, rank: int) -> tuple[int, str] | None:
        """Return when a process failed, by its own clock, and why; `None` when it did not."""
        file = self._file(rank, "failed")
        try:
            return file.stat().st_mtime_ns, file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def _last_sign(self, rank: int) -> float:
        try:
            made = self._file(rank, "alive").stat().st_mtime
        except OSError:
            return 0.0
        if self._seen.get(rank, (0.0, 0.0))[0] != made:
            self._seen[rank] = made, time.monotonic()
        return self._seen[rank][1]

    def _sign(self, stop: threading.Event) -> None:
        file = self._file(self._job.rank, "alive")
        while True:
            with suppress(OSError):  # the first process has put all together, and left
                file.touch()
            if stop.wait(_SIGN_EVERY_S):
                return

    def _file(self, rank: int, what: str) -> Path:
        return self._folder / f"{self._job.name}-{rank}.{what}"


def _gone(rank: int, folder: Path, why: str) -> FileError:
    return FileError(
        "F104",
        f"process {rank} of the run did not finish its share: {why}",
        place=Place(file=str(folder)),
        hint="start the run again: what is finished is kept",
    )
