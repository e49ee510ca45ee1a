"""What is checked before a run, and what is written down about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trajkit.errors import InputError, Place, UsageProblem
from trajkit.safe.files import same_file
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.loader import quiet_transformers
from trajkit.scoring.report import ModelFacts
from trajkit.scoring.running.job import Job
from trajkit.store.beside import row_groups_of
from trajkit.store.read import Dataset
from trajkit.tokenizer import load_tokenizer


def model_facts(loaded: LoadedModel) -> ModelFacts:
    """Return which checkpoint gives the numbers, and on what."""
    with quiet_transformers() as transformers:
        version = str(transformers.__version__)
    return ModelFacts(
        name=loaded.name,
        weights_digest=loaded.weights_digest,
        dtype=loaded.dtype,
        device=loaded.device_name,
        head=str(loaded.head.kind),
        n_vocab=loaded.n_vocab,
        max_positions=loaded.max_positions,
        n_unused_tensors=len(loaded.unused_tensors),
        adapter=loaded.adapter,
        adapter_digest=loaded.adapter_digest,
        torch=str(torch.__version__),
        transformers=version,
    )


def provenance(
    dataset: Dataset, facts: ModelFacts, reference: ModelFacts | None
) -> Mapping[str, Any]:
    """Return what identifies the weights and DATA: their digests, and the software between."""
    return {
        "model": asdict(facts),
        "reference": None if reference is None else asdict(reference),
        "data": {"row_groups": row_groups_of(dataset), "n_steps": dataset.n_steps},
    }


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


def check_job(job: Job, target: Path | None) -> None:
    """Raise U103 when several processes have no place to put their shares together."""
    if job.size > 1 and target is None:
        raise UsageProblem(
            "U103",
            f"{job.size} processes put their shares together beside the output, and there is none"
            + (f" (a launcher set {job.said})" if job.said else ""),
            hint="give one that all of them can write to with -o scores.parquet",
        )


def take_gpu(job: Job) -> None:
    """Take the GPU of this process's number on its machine, where there are any."""
    if job.size > 1 and torch.cuda.is_available():
        torch.cuda.set_device(job.local_rank % torch.cuda.device_count())


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
