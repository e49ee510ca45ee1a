"""`score` where the model is divided: the first process runs it, the others do what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trajkit.errors import TrajkitError
from trajkit.scoring.forward.logprobs import pass_scores
from trajkit.scoring.loading.loader import quiet_transformers
from trajkit.scoring.loading.model import choose_device, load_model
from trajkit.scoring.report import ScoreReport
from trajkit.scoring.run import score
from trajkit.scoring.running.job import Job
from trajkit.scoring.running.team import (
    End,
    LeaderFailedError,
    Load,
    Measure,
    Read,
    Team,
    no_room,
    together,
)
from trajkit.store.read import Dataset


def score_together(
    data: Dataset | Path | str, model: Path | str, *, job: Job, device: str = "auto", **options: Any
) -> ScoreReport:
    """Return what `score` returns, in every process of a job that holds the model together.

    Only the first process opens the data and writes. All of them must find the checkpoint at the
    same path.

    Args:
        data: see `score`, as all that is not said here.
        model: its folder.
        job: which process this is.
        device: `auto` takes the GPU of this process's number.
        **options: other arguments of `score`.

    Raises:
        UsageProblem: U103 when no launcher started several processes, or the model has no plan by
            which it can be divided; U106 when a pass does not fit in memory.
        FileError: F104 when another process is gone; `LeaderFailedError` when the first one failed.
        TrajkitError: what `score` raises.
    """
    with together(job, choose_device(device)) as team:
        if not team.is_first:
            return follow(team)
        report = score(data, model, device=device, team=team, **options)
        team.say(End(report=report))
        return report


def follow(team: Team) -> ScoreReport:
    """Do what the first process says until it is done; return what it found."""
    with quiet_transformers():
        while True:
            match team.hear():
                case Load() as order:
                    _load(team, order)
                case Read() as order:
                    _read(team, order)
                case Measure():
                    team.free_memory()
                case End(report=report, failure=failure):
                    if failure is not None or report is None:
                        raise LeaderFailedError(*(failure or ("no report",)))
                    return report


def _load(team: Team, order: Load) -> None:
    """Load a part of a model; an error that all processes have is the first one's to tell."""
    try:
        load_model(order.path, dtype=order.dtype, adapter=order.adapter, team=team)
    except TrajkitError:
        if team.is_busy:
            raise


def _read(team: Team, order: Read) -> None:
    reference = None if order.reference is None else team.models[order.reference]
    try:
        pass_scores(
            team.models[order.model],
            order.reading,
            order.targets,
            reference=reference,
            chunk_rows=order.chunk_rows,
        )
    except torch.OutOfMemoryError as problem:
        raise no_room(len(order.reading.token_ids)) from problem
