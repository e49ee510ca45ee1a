"""DATA and a checkpoint in, log-probs of every recorded action out, with losses and mismatch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from trajkit import __version__
from trajkit.errors import UsageProblem
from trajkit.rl.losses import loss_names
from trajkit.rl.report import loss_table
from trajkit.rl.run import check_told_by
from trajkit.safe.files import publish
from trajkit.scoring.checks import (
    check_job,
    check_name,
    check_target,
    check_tokenizer,
    model_facts,
    provenance,
    take_gpu,
)
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.loader import quiet_transformers
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.noise import recheck_dtype_named
from trajkit.scoring.planning.forecast import WINDOW_TOKENS
from trajkit.scoring.report import Limits, ScoreReport
from trajkit.scoring.running.company import in_company
from trajkit.scoring.running.job import ALONE, Job
from trajkit.scoring.running.parts import Parts
from trajkit.scoring.running.team import Team
from trajkit.scoring.running.walk import Chosen, walk
from trajkit.scoring.under_way import Counting, Progress, Recheck, Run
from trajkit.store.read import Dataset, open_dataset
from trajkit.store.schema import SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.write import ParquetSink
from trajkit.tokenizer import Tokenizer, load_tokenizer
from trajkit.training import TrainPolicy, policy_named


def score(  # noqa: PLR0913 - one argument an option of the command
    data: Dataset | Path | str,
    model: LoadedModel | Path | str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    losses: Sequence[str] | None = None,
    train: str = "action",
    tokenizer: Tokenizer | None = None,
    length: int | None = None,
    ref_model: LoadedModel | Path | str | None = None,
    limit: int | None = None,
    only: Collection[str] = (),
    out: Path | str | None = None,
    overwrite: bool = False,
    recheck: int = 1,
    recheck_dtype: str = "auto",
    require_sampled: bool = False,
    max_delta: float | None = None,
    tokens_per_batch: int | None = None,
    window_tokens: int = WINDOW_TOKENS,
    adapter: Path | str | None = None,
    job: Job = ALONE,
    team: Team | None = None,
    progress: Progress | None = None,
) -> ScoreReport:
    """Return what a checkpoint says about the recorded actions, reading every prefix once.

    A trajectory longer than the model's positions, or whose logits are not finite, has no numbers;
    the run goes on, and the report's `exit_code` says so.

    Args:
        data: step records.
        model: a checkpoint folder, or one that `load_model` returned (`device` and `dtype` are
            then its own).
        device: auto, cpu or cuda.
        dtype: auto, fp32, bf16 or fp16.
        losses: see `loss_names`; `None` takes the papers' losses.
        train: the name of a training policy: what the losses are over. One that trains context asks
            for the log-probs of context too.
        tokenizer: tells such a policy thoughts and answers where no segment does; `None` for the
            checkpoint's own.
        length: the constant that some presets divide by: a trainer's longest response.
        ref_model: a second checkpoint, for the losses with a KL term; reads all of it too.
        limit: how many trajectories at most.
        only: trajectory ids; empty takes all.
        out: a Parquet file for `trajkit.scores/1`, one row per step, published when all is done.
            Until then finished windows are kept beside it, and the same run goes on from there.
        overwrite: replace `out`.
        recheck: how many trajectories to pass again step by step, for the noise floor.
        recheck_dtype: whether these are scored in float32 too where the run is in half precision,
            with the same weights widened: auto where they fit beside it, fp32 (else on the CPU), or
            none.
        require_sampled: a scored step whose ids are not the sampler's own is a finding.
        max_delta: a log-prob that differs more from the sampler's is a finding; so is having none.
        tokens_per_batch: the most ids of one pass; `None` for what the device holds.
        window_tokens: ids that are planned, kept and shared out together; trajectories further
            apart share no prefix.
        adapter: the folder of a LoRA adapter to merge into `model`.
        job: which process of a run this is. Each scores its share of the windows; the first waits
            for the others, writes `out` and returns the whole report, the others that of their own.
        team: the processes that hold the models together, for the first of them: see
            `score_together`.
        progress: called after each pass with the steps done, about, the steps in DATA, and what it
            took up to there.

    Raises:
        UsageProblem: U101 to U103, U105 to U107.
        InputError: I304 an id outside the vocabulary, T102 another tokenizer's data; what
            `open_dataset` and `load_model` raise.
        FileError: F104 when another process of the run is gone.
        NumericError: N104 two passes disagree; when there is nothing to score, N103 if a sequence
            is too long, else N105.
    """
    names, policy = loss_names(losses), policy_named(train)
    wider = recheck_dtype_named(recheck_dtype)
    target = None if out is None else Path(out)
    check_name(target)
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    check_target(target, dataset)
    check_job(job, target)
    parts: Parts | None = None
    with ExitStack() as stack:
        company = stack.enter_context(in_company(target, job))
        sink = None
        if target is not None and job.is_first:
            stream = stack.enter_context(publish(target, overwrite=overwrite))
            sink = ParquetSink(stream, SCORES_SCHEMA, SCORES_SCHEMA_NAME)
        is_checked = check_tokenizer(dataset, _folder(model))
        if ref_model is not None:
            check_tokenizer(dataset, _folder(ref_model))
        tokenizer = _teller(dataset, tokenizer, policy, _folder(model))
        take_gpu(job)
        loaded = _loaded(model, device, dtype, adapter, team)
        reference = None if ref_model is None else _loaded(ref_model, device, dtype, None, team)
        run = Run(
            loaded,
            sink,
            reference=reference,
            counting=Counting(policy, tokenizer),
            recheck=Recheck(recheck if job.is_first else 0, wider),
            tokens_per_batch=tokens_per_batch,
            n_all_steps=dataset.n_steps,
        )
        options = {"limit": limit, "only": sorted(only)}
        told = provenance(
            dataset, model_facts(loaded), None if reference is None else model_facts(reference)
        )
        asked = {
            "trains_context": policy.trains_context,
            "tokens_per_batch": tokens_per_batch,
            "window_tokens": window_tokens,
        }
        if target is not None:
            parts = Parts(target, {"trajkit": __version__, **told, **options, **asked})
        stack.enter_context(quiet_transformers())
        chosen = Chosen(dataset=dataset, only=only, limit=limit, window_tokens=window_tokens)
        n_kept = walk(run, chosen, parts, company, progress)
        if job.is_first:
            run.check_not_empty()
        report = run.report(
            target if job.is_first else None,
            Limits(require_sampled=require_sampled, max_delta=max_delta),
            losses=lambda tokens: loss_table(tokens, names, train=policy.name, length=length),
            tokenizer_checked=is_checked,
            n_kept=n_kept,
        )
        if sink is not None:
            run.close({**told, "options": options})
    if parts is not None and job.is_first:
        parts.remove()
    return report


def _folder(model: LoadedModel | Path | str) -> Path:
    return model.path if isinstance(model, LoadedModel) else Path(model)


def _loaded(
    model: LoadedModel | Path | str,
    device: str,
    dtype: str,
    adapter: Path | str | None,
    team: Team | None,
) -> LoadedModel:
    if isinstance(model, LoadedModel):
        if not model.weights_digest:
            raise UsageProblem(
                "U103",
                "a module in memory has no checkpoint that scores could name",
                hint="score_batch scores trajectories with it, or save it and give the folder",
            )
        return model
    return load_model(model, device=device, dtype=dtype, adapter=adapter, team=team)


def _teller(
    dataset: Dataset, tokenizer: Tokenizer | None, policy: TrainPolicy, folder: Path
) -> Tokenizer | None:
    """Return what tells thoughts from answers: the one given, else the checkpoint's if needed."""
    check_told_by(dataset, tokenizer)
    if tokenizer is not None or not policy.needs_kinds:
        return tokenizer
    return load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None
