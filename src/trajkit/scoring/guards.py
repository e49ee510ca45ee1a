"""What must hold before a model is asked: options that make sense, data that fit the checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from trajkit.errors import InputError, Place, UsageProblem
from trajkit.records import ActionSource, Trajectory
from trajkit.safe.files import same_file
from trajkit.scoring.losses import LOSSES
from trajkit.store.read import Dataset
from trajkit.tokenizer import load_tokenizer


def loss_names(losses: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of `LOSSES` asked for, each once; `None` asks for all. Raises U103."""
    names = tuple(LOSSES) if losses is None else tuple(dict.fromkeys(losses))
    for name in names:
        if name not in LOSSES:
            close = difflib.get_close_matches(name, LOSSES, n=1)
            raise UsageProblem(
                "U103",
                f"--loss is one of {', '.join(LOSSES)}, not {name!r}",
                hint=f"did you mean {close[0]}?" if close else None,
            )
    return names


def check_name(target: Path | None) -> None:
    """Raise U103 when the output's name does not say what the file will be."""
    if target is not None and target.suffix != ".parquet":
        raise UsageProblem(
            "U103",
            "scores are written as Parquet: the output's name ends in .parquet",
            place=Place(file=str(target)),
            hint=f"-o {target.name.split('.')[0] or 'scores'}.parquet",
        )


def check_target(target: Path | None, dataset: Dataset) -> None:
    """Raise U102 when the output is a file of the data."""
    if target is not None and any(same_file(target, part) for part in dataset.parts):
        raise UsageProblem(
            "U102", "the scores would replace the data they are of", place=Place(file=str(target))
        )


def check_tokenizer(dataset: Dataset, folder: Path) -> bool:
    """Return whether DATA's tokenizer could be compared with the checkpoint's; T102 if they differ.

    Both sides must be known: DATA names the tokenizer it was made with, if any was used.
    """
    wanted = dataset.tokenizer_fingerprint
    if wanted is None or not (folder / "tokenizer.json").is_file():
        return False
    try:
        found = load_tokenizer(folder).fingerprint
    except InputError as problem:
        if problem.code == "T103":
            return False
        raise
    if found != wanted:
        name = dataset.metadata.get("tokenizer_name") or "another tokenizer"
        raise InputError(
            "T102",
            f"the data were made with {name}, which is not the checkpoint's tokenizer",
            place=Place(file=str(folder / "tokenizer.json")),
            hint="score the checkpoint whose tokenizer sampled these ids",
        )
    return True


def demand_sampled(trajectory: Trajectory) -> None:
    """Raise I202 at the first step that trains on ids which are not the sampler's own."""
    for step in trajectory.steps:
        if step.exclude_reason is None and step.action_source is not ActionSource.SAMPLED:
            raise InputError(
                "I202",
                f"the sampler's own action ids are missing: this step's are {step.action_source}",
                place=step.place,
                hint="leave --require-sampled out to score ids of other origin",
            )
