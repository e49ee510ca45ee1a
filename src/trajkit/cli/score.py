"""`trajkit score`: what does a checkpoint say about these exact ids?"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trajkit.cli.console import Printer
from trajkit.cli.loss_table import Length, Losses, OwnTokenizer, Train
from trajkit.cli.options import Colour, Data, Force, Limit, Only, Quiet
from trajkit.cli.score_text import pace, print_plan, print_report
from trajkit.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from trajkit.scoring.report import Effort, ScoreReport


_RECHECK = 1


def score(
    data: Data,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="DIR", help="Checkpoint: config.json, *.safetensors."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Count what would be read, and load no model.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option("--device", help="auto: a GPU where there is one."),
    ] = "auto",
    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        typer.Option(
            "--dtype",
            help="auto: the checkpoint's own on a GPU, fp32 on CPU. To audit recorded log-probs, "
            "fp16: an eighth of bf16's rounding.",
        ),
    ] = "auto",
    ref_model: Annotated[
        Path | None,
        typer.Option("--ref-model", metavar="DIR", help="A second checkpoint, for KL terms."),
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option("--adapter", metavar="DIR", help="A LoRA adapter to merge into --model."),
    ] = None,
    loss: Losses = None,
    train: Train = "action",
    length: Length = None,
    tokenizer: OwnTokenizer = None,
    recheck: Annotated[
        int,
        typer.Option(
            "--recheck", min=0, help="Trajectories to score again step by step: the noise floor."
        ),
    ] = _RECHECK,
    recheck_dtype: Annotated[
        Literal["auto", "fp32", "none"],
        typer.Option(
            "--recheck-dtype",
            help="Hold a run in half precision against fp32 too, on the rechecked trajectories: "
            "costs a copy of the weights, twice as large, and their passes. auto: where it fits "
            "beside the run; fp32: else on the CPU, which may take long.",
        ),
    ] = "auto",
    tokens_per_batch: Annotated[
        int | None,
        typer.Option(
            "--tokens-per-batch", min=1, help="The most tokens of one pass; default: what fits."
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            metavar="TOKENS",
            min=1,
            help="What is planned, kept and shared out together; default: about a million.",
        ),
    ] = None,
    tensor_parallel: Annotated[
        bool,
        typer.Option(
            "--tensor-parallel",
            help="Under torchrun: the processes hold one model together, each a part of it.",
        ),
    ] = False,
    require_sampled: Annotated[
        bool,
        typer.Option(
            "--require-sampled",
            help="Exit 1 if a scored step's ids are not sampled; steps without ids are not scored.",
        ),
    ] = False,
    max_delta: Annotated[
        float | None,
        typer.Option(
            "--max-delta",
            metavar="NATS",
            min=0.0,
            help="Exit 1 if a log-prob differs more from the sampler's.",
        ),
    ] = None,
    trajectory: Only = None,
    limit: Limit = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="SCORES", help="Write per-token scores (.parquet)."),
    ] = None,
    force: Force = False,
    output_format: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    r"""Score the recorded ids with a checkpoint: log-probs, losses, distance to the sampler.

    Shared prefixes are read once; nothing is re-tokenised. Needs the extra trajkit\[score].

      trajkit score steps.parquet --model ./checkpoint -o scores.parquet
      trajkit score steps.parquet --plan
    """
    only = frozenset(trajectory or ())
    with Printer(colour=color, quiet=quiet) as printer:
        if plan:
            _refuse_with_plan(
                output=out,
                force=force or None,
                max_delta=max_delta,
                loss=loss,
                require_sampled=require_sampled or None,
                ref_model=ref_model,
                adapter=adapter,
                tensor_parallel=tensor_parallel or None,
                length=length,
                tokenizer=tokenizer,
                device=None if device == "auto" else device,
                dtype=None if dtype == "auto" else dtype,
                recheck=None if recheck == _RECHECK else recheck,
                recheck_dtype=None if recheck_dtype == "auto" else recheck_dtype,
            )
            found = _forecast(
                data,
                model,
                train=train,
                only=only,
                limit=limit,
                tokens_per_batch=tokens_per_batch,
                window_tokens=window,
            )
            if output_format == "json":
                printer.json(found)
            else:
                print_plan(printer, found)
            return
        if model is None:
            raise UsageProblem(
                "U103", "a checkpoint is needed", hint="give --model DIR, or --plan to count only"
            )
        printer.progress_note("loading torch and the checkpoint")
        from trajkit.scoring import require_torch

        require_torch()
        from trajkit.scoring.planning.forecast import WINDOW_TOKENS
        from trajkit.scoring.run import score as score_alone
        from trajkit.scoring.running.job import job_of
        from trajkit.tokenizer import load_tokenizer

        job = job_of(os.environ)
        is_part = bool(only) or limit is not None
        run = _together if tensor_parallel else score_alone
        report = run(
            data,
            model,
            device=device,
            dtype=dtype,
            losses=loss,
            train=train,
            tokenizer=None if tokenizer is None else load_tokenizer(tokenizer),
            length=length,
            ref_model=ref_model,
            adapter=adapter,
            only=only,
            limit=limit,
            out=out,
            overwrite=force,
            recheck=recheck,
            recheck_dtype=recheck_dtype,
            require_sampled=require_sampled,
            max_delta=max_delta,
            tokens_per_batch=tokens_per_batch,
            window_tokens=window or WINDOW_TOKENS,
            job=job,
            progress=partial(_progress, printer, is_part) if job.is_first else None,
        )
        if not job.is_first:
            raise typer.Exit
        if report.n_kept_windows:
            printer.note(f"went on: {report.n_kept_windows:,} windows were finished before")
        facts = report.to_dict()
        if output_format == "json":
            printer.json(facts)
        else:
            print_report(printer, facts)
    if report.exit_code is ExitCode.NUMERIC:
        printer.note("exit 6: some trajectories have no numbers, see above")
    raise typer.Exit(report.exit_code)


def _progress(printer: Printer, is_part: bool, n_done: int, n_all: int, effort: Effort) -> None:
    """Show the steps done, of all where all are asked for, and how fast it goes."""
    n_steps = f"{n_done:,} steps" if is_part else f"{n_done:,} of {n_all:,} steps"
    printer.progress(", ".join(filter(None, (n_steps, pace(effort.to_dict())))))


def _together(*args: Any, **options: Any) -> ScoreReport:
    """Score as one of the processes of a model; what the first one fails of, it tells itself."""
    from trajkit.scoring.running.team import LeaderFailedError
    from trajkit.scoring.running.together import score_together

    try:
        return score_together(*args, **options)
    except LeaderFailedError as problem:
        raise typer.Exit(problem.exit_code) from problem


def _refuse_with_plan(**given: object) -> None:
    """Raise U103 for options that ask something of a model."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if names:
        raise UsageProblem(
            "U103", f"--plan asks no model, so {' and '.join(names)} cannot be answered"
        )


def _forecast(
    data: Path,
    model: Path | None,
    *,
    train: str,
    only: frozenset[str],
    limit: int | None,
    tokens_per_batch: int | None,
    window_tokens: int | None,
) -> dict[str, Any]:
    """Return what would be read; of a checkpoint the configuration alone is opened."""
    from trajkit.scoring.loading.checkpoint import open_checkpoint
    from trajkit.scoring.planning.forecast import WINDOW_TOKENS, forecast

    found = forecast(
        data,
        train=train,
        limit=limit,
        only=only,
        tokens_per_batch=tokens_per_batch,
        window_tokens=window_tokens or WINDOW_TOKENS,
        max_positions=None if model is None else open_checkpoint(model).max_positions,
    )
    return found.to_dict()
