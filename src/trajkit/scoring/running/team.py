"""Processes that hold one model together: the first leads, the others read what it reads.

The first process alone opens the data, plans, keeps and reports. Whatever needs the model it says
to the others as an order, so that all of them meet in the same layers in the same order; orders and
results travel as Python objects between processes of one program, sums of layers as tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trajkit.errors import ExitCode, FileError, TrajkitError, UsageProblem
from trajkit.records import Ids
from trajkit.scoring.memory import free_bytes
from trajkit.scoring.planning.pack import Pass
from trajkit.scoring.planning.plan import Rows
from trajkit.scoring.report import ScoreReport
from trajkit.scoring.running.job import SILENCE_S, Job

if TYPE_CHECKING:
    from trajkit.scoring.loaded import LoadedModel

_PATIENCE = timedelta(hours=12)
"""How long a process waits for its next order; the death of the first one is noticed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Order: load this checkpoint, your part of it."""

    path: Path | str
    dtype: str
    adapter: Path | str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    """Order: read this pass.

    Attributes:
        model, reference: numbers of loaded models, in the order of loading.
        targets, chunk_rows: see `pass_scores`.
    """

    model: int
    reference: int | None
    reading: Pass
    targets: Rows | Ids
    chunk_rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Order: say how much memory is free."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class End:
    """Order: there is nothing more to do.

    Attributes:
        report: what the run found, `None` when it failed.
        failure: what the first process ended with, and the exit code that means.
    """

    report: ScoreReport | None = None
    failure: tuple[str, ExitCode] | None = None


class LeaderFailedError(FileError):
    """The first process failed, and says so itself; this one has nothing to add."""

    def __init__(self, sentence: str, exit_code: ExitCode) -> None:
        super().__init__("F104", f"process 0 of the run failed: {sentence}")
        self.exit_code = exit_code


class Team:
    """The processes of one model, as one of them sees them.

    Attributes:
        device: where this process keeps its part.
        is_busy: whether the processes are in the midst of something that needs all of them.
        models: what they have loaded, in the same order in all.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        self.rank = job.rank
        self.size = job.size
        self.device = device
        self.is_busy = False
        self.models: list[LoadedModel] = []
        on_gpu = device.type == "cuda"
        limit = timedelta(seconds=SILENCE_S)
        self._orders = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._layers = dist.new_group(backend="nccl", timeout=limit) if on_gpu else dist.group.WORLD

    @property
    def is_first(self) -> bool:
        """Return whether this process leads."""
        return self.rank == 0

    def take(self, model: LoadedModel) -> None:
        """Note that all processes have loaded a model."""
        self.models.append(model)
        self.is_busy = False

    def say(self, order: Load | Read | Measure | End) -> None:
        """Tell the others what comes next; those have heard it already."""
        self.is_busy = True
        if self.is_first:
            self._met(dist.broadcast_object_list, [order], src=0, group=self._orders)

    def hear(self) -> Load | Read | Measure | End:
        """Return the first process's next order."""
        found: list[Any] = [None]
        self._met(dist.broadcast_object_list, found, src=0, group=self._orders)
        order: Load | Read | Measure | End = found[0]
        return order

    @contextmanager
    def in_step(self, kind: type[TrajkitError]) -> Iterator[None]:
        """Let an error of one process inside be the error of all; any other error is its own.

        Raises:
            TrajkitError: the first process's, or of the first process that had one.
        """
        problem: TrajkitError | None = None
        try:
            yield
        except kind as found:
            problem = found
        told = None if problem is None else _told(problem)
        errors: list[Any] = [None] * self.size
        self._met(dist.all_gather_object, errors, told, group=self._orders)
        first = next((error for error in errors if error is not None), None)
        if first is not None:
            self.is_busy = False
            raise _error(*first) from problem

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of the parts, added in float32 at least, in the dtype of this one."""
        wide = torch.promote_types(part.dtype, torch.float32)
        total = part.to(wide, copy=True, memory_format=torch.contiguous_format)
        self._met(dist.all_reduce, total, group=self._layers)
        return total.to(part.dtype)

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """Return the parts side by side along the last dimension."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        self._met(dist.all_gather, parts, part, group=self._layers)
        return torch.cat(parts, dim=-1)

    def begin(
        self,
        loaded: LoadedModel,
        reading: Pass,
        targets: Rows | Ids,
        reference: LoadedModel | None,
        chunk_rows: int | None,
    ) -> tuple[Pass, Rows | Ids]:
        """Return what this process is asked of a pass that all read, after saying so.

        Each is asked about its share of the edges; where those are too few, each about all.
        """
        self.say(
            Read(
                model=self._number(loaded),
                reference=None if reference is None else self._number(reference),
                reading=reading,
                targets=targets,
                chunk_rows=chunk_rows,
            )
        )
        n = len(targets)
        own = slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)
        if n < self.size:
            own = slice(n)
        few = replace(reading, edges=reading.edges[own], edge_row=reading.edge_row[own])
        return few, targets[own]

    def end(self, columns: Sequence[NDArray[Any]], n: int) -> list[NDArray[Any]]:
        """Return the numbers of all n edges for the first process, for the others their own."""
        shares: list[Any] | None = [None] * self.size if self.is_first else None
        self._met(dist.gather_object, list(columns), shares, dst=0, group=self._orders)
        self.is_busy = False
        if shares is None:
            return list(columns)
        return [np.concatenate(parts)[:n] for parts in zip(*shares, strict=True)]

    def _number(self, loaded: LoadedModel) -> int:
        return next(at for at, model in enumerate(self.models) if model is loaded)

    def free_memory(self) -> int:
        """Return the bytes that the fullest device has left."""
        self.say(Measure())
        least = torch.tensor(free_bytes(self.device) or 0, dtype=torch.int64)
        self._met(dist.all_reduce, least, op=dist.ReduceOp.MIN, group=self._orders)
        self.is_busy = False
        return int(least)

    def leave(self) -> None:
        """Cut the connections in the midst of something: who waits for this process notices."""
        dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - destroying would wait
        del self._orders, self._layers

    def _met(self, meet: Callable[..., object], *args: object, **how: object) -> None:
        """Meet the others.

        Raises:
            FileError: F104 when one of them is gone.
        """
        try:
            meet(*args, **how)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            raise FileError(
                "F104",
                f"a process that holds a part of the model is gone: {_sentence(problem)}",
                hint="what it said is above; start the run again: what is finished is kept",
            ) from problem


@contextmanager
def together(job: Job, device: torch.device) -> Iterator[Team]:
    """Yield the team of the processes that a launcher started, and take it apart at the end.

    Where the first process fails between two passes, the others are told, and end with its exit
    code; where a process fails within one, it leaves the others, who notice.

    Raises:
        UsageProblem: U103 when no launcher started several; U106 when they have no GPU each.
        FileError: F104 when one does not come, or is gone.
    """
    launch = "torchrun --nproc-per-node N -m trajkit score ... --tensor-parallel"
    if job.size < 2 or "MASTER_ADDR" not in os.environ:
        raise UsageProblem(
            "U103",
            "--tensor-parallel divides a model among processes, and no launcher started several",
            hint=f"start them with {launch}",
        )
    if device.type == "cuda":
        device = _own_gpu(job)
    try:
        dist.init_process_group(
            "gloo", rank=job.rank, world_size=job.size, timeout=timedelta(seconds=SILENCE_S)
        )
        team = Team(job, device)
    except (RuntimeError, ValueError) as problem:  # ValueError: a group is there already
        message = f"the processes do not find each other: {_sentence(problem)}"
        raise FileError("F104", message, hint=f"start them with {launch}") from problem
    try:
        yield team
    except BaseException as problem:
        if team.is_first and not team.is_busy:
            code = problem.exit_code if isinstance(problem, TrajkitError) else ExitCode.IO
            team.say(End(failure=(str(problem) or type(problem).__name__, code)))
            dist.destroy_process_group()
        else:
            team.leave()
        raise
    dist.destroy_process_group()


def no_room(n_tokens: int) -> UsageProblem:
    """Return the U106 of a pass that ran out of memory where others wait in the middle of it."""
    return UsageProblem(
        "U106",
        f"a GPU's memory is full at a pass of {n_tokens:,} tokens, and a pass that several "
        "processes share cannot be tried again",
        hint=f"--tokens-per-batch {max(1, n_tokens // 2)}",
    )


def _own_gpu(job: Job) -> torch.device:
    """Return the GPU of this process's number on its machine, after taking it."""
    n_gpus = torch.cuda.device_count()
    if job.local_rank >= n_gpus:
        raise UsageProblem(
            "U106",
            f"--tensor-parallel wants a GPU for each process; this machine has {n_gpus}",
            hint=f"--nproc-per-node {n_gpus}",
        )
    torch.cuda.set_device(job.local_rank)
    return torch.device("cuda", job.local_rank)


def _told(problem: TrajkitError) -> tuple[Any, ...]:
    return type(problem), problem.code, problem.message, problem.place, problem.hint


def _error(
    kind: type[TrajkitError], code: str, message: str, place: Any, hint: str | None
) -> TrajkitError:
    return kind(code, message, place=place, hint=hint)


def _sentence(problem: BaseException) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
