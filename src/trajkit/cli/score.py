"""`trajkit score`: what does a checkpoint say about these exact ids?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trajkit.cli.console import Printer, sampled_line
from trajkit.cli.loss_table import Length, Losses, Train, number, print_losses
from trajkit.cli.options import Colour, Data, Force, Limit, Only, Quiet, TokenizerPath
from trajkit.errors import ExitCode, UsageProblem
from trajkit.safe.text import shorten, visible


def score(
    data: Data,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="DIR", help="Checkpoint: config.json, *.safetensors."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Count what would be read, and load no model.")
    ] = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device")] = "auto",
    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        typer.Option("--dtype", help="auto: the checkpoint's own on a GPU, fp32 on CPU."),
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
    tokenizer: TokenizerPath = None,
    recheck: Annotated[
        int,
        typer.Option(
            "--recheck", min=0, help="Trajectories to score again step by step: the noise floor."
        ),
    ] = 1,
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
    require_sampled: Annotated[
        bool,
        typer.Option("--require-sampled", help="Exit 1 if a scored step's ids are not sampled."),
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
                max_delta=max_delta,
                loss=loss,
                require_sampled=require_sampled or None,
                ref_model=ref_model,
                adapter=adapter,
                window=window,
                length=length,
                train=None if train == "action" else train,
            )
            found = _forecast(data, model, only, limit, tokens_per_batch)
            if output_format == "json":
                printer.json(found)
            else:
                _print_plan(printer, found)
            return
        if model is None:
            raise UsageProblem(
                "U103", "a checkpoint is needed", hint="give --model DIR, or --plan to count only"
            )
        printer.progress_note("loading torch and the checkpoint")
        from trajkit.scoring import require_torch

        require_torch()
        from trajkit.scoring.job import job_of
        from trajkit.scoring.planning.forecast import WINDOW_TOKENS
        from trajkit.scoring.run import score as run
        from trajkit.tokenizer import load_tokenizer

        job = job_of(os.environ)
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
            require_sampled=require_sampled,
            max_delta=max_delta,
            tokens_per_batch=tokens_per_batch,
            window_tokens=window or WINDOW_TOKENS,
            job=job,
            progress=printer.progress if job.is_first else None,
        )
        if not job.is_first:
            raise typer.Exit
        if report.n_kept_windows:
            printer.note(f"went on: {report.n_kept_windows:,} windows were finished before")
        facts = report.to_dict()
        if output_format == "json":
            printer.json(facts)
        else:
            _print(printer, facts)
    if report.exit_code is ExitCode.NUMERIC:
        printer.note("exit 6: some trajectories have no numbers, see above")
    raise typer.Exit(report.exit_code)


def _named(model: dict[str, Any]) -> str:
    added = model["adapter"]
    return visible(model["name"] if added is None else f"{model['name']} + {added}")


def _print(printer: Printer, facts: dict[str, Any]) -> None:
    printer.line(sampled_line(facts["by_source"], facts["n_steps"]))
    printer.strong(
        f"Scored {facts['n_scored_tokens']:,} of {facts['n_action_tokens']:,} action tokens in "
        f"{facts['n_scored_trajectories']:,} of {facts['n_trajectories']:,} trajectories"
    )
    model = facts["model"]
    forwards = (
        f"{facts['n_forwards']:,} of {facts['n_forwarded_tokens']:,} tokens in all "
        f"(one a sequence: {facts['n_row_tokens']:,}, one a step: {facts['n_raw_tokens']:,})"
    )
    why_not = facts["sharing"]["why_not"]
    sharing = [["not shared", f"each sequence is read by itself: {why_not}"]] if why_not else []
    checked = "tokenizer checked" if facts["tokenizer_checked"] else "tokenizer not compared"
    printer.table(
        [
            [
                "checkpoint",
                f"{_named(model)} {model['dtype']} on {model['device']}, {checked}",
            ],
            *_reference(facts),
            ["forwards", forwards],
            *sharing,
            *_left_out(facts),
        ]
    )
    logprob = facts["logprob"]
    printer.line()
    printer.table(
        [
            ["log-prob", "nats"],
            ["sum", number(logprob["sum"])],
            ["token mean", number(logprob["token_mean"])],
            ["sequence mean", number(logprob["sequence_mean"])],
        ],
        right="1",
        head=True,
    )
    printer.line()
    print_losses(printer, facts)
    printer.line()
    _print_mismatch(printer, facts)
    for one in facts["exceeded"]:
        printer.line(f"--{one['rule']}: {_EXCEEDED[one['rule']](one)}")
    if facts.get("out"):
        printer.line()
        printer.line(f"Wrote {visible(facts['out'])}")


def _reference(facts: dict[str, Any]) -> list[list[str]]:
    """Return a row for the reference model, if one was asked."""
    model = facts["reference"]
    if model is None:
        return []
    read = f"{facts['n_ref_forwarded_tokens']:,} tokens read"
    return [["reference", f"{model['name']} {model['dtype']} on {model['device']}, {read}"]]


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
    only: frozenset[str],
    limit: int | None,
    tokens_per_batch: int | None,
) -> dict[str, Any]:
    """Return what would be read; of a checkpoint the configuration alone is opened."""
    from trajkit.scoring.checkpoint import open_checkpoint
    from trajkit.scoring.planning.forecast import forecast

    found = forecast(
        data,
        limit=limit,
        only=only,
        tokens_per_batch=tokens_per_batch,
        max_positions=None if model is None else open_checkpoint(model).max_positions,
    )
    return found.to_dict()


_EXCEEDED: dict[str, Callable[[dict[str, Any]], str]] = {
    "require-sampled": lambda one: f"{one['found']:,.0f} scored steps are not sampled",
    "max-delta": lambda one: (
        f"max |Δ| {_small(one['found'])} is not known to be at most {one['limit']:g} nats"
        if one["found"] is None
        else f"max |Δ| {_small(one['found'])} exceeds {one['limit']:g} nats"
    ),
}
_MAX_BREAKS = 5


def _print_plan(printer: Printer, facts: dict[str, Any]) -> None:
    printer.line(sampled_line(facts["by_source"], facts["n_steps"]))
    printer.strong(
        f"Would score {facts['n_action_tokens']:,} action tokens of {facts['n_scored_steps']:,} "
        f"steps in {facts['n_trajectories']:,} trajectories"
    )
    printer.table(
        [
            ["read", "tokens", ""],
            *(
                [how, f"{facts[key]:,}", _times_fewer(facts["n_raw_tokens"], facts[key])]
                for how, key in (
                    ("with one pass a step", "n_raw_tokens"),
                    ("with one pass a sequence", "n_row_tokens"),
                    ("with prefixes shared", "n_forwarded_tokens"),
                )
            ),
        ],
        right="12",
        head=True,
    )
    left_out = _left_out({**facts, "n_first_token": 0, "n_neg_inf": 0})
    if left_out:
        printer.table(left_out)
    breaks = facts["breaks"]
    printer.line()
    if not breaks:
        printer.line("no prompt leaves the middle of its parent's prompt or action")
        return
    printer.line(
        f"prompts that leave the middle of their parent's ids: {len(breaks):,}, for which "
        f"tokens are read again: {facts['n_read_again']:,}"
    )
    dearest = sorted(breaks, key=lambda one: -one["n_read_again"])
    rows = [
        [
            shorten(one["trajectory_id"], 60),
            *(f"{one[key]:,}" for key in ("step_index", "n_kept", "n_lost", "n_read_again")),
        ]
        for one in dearest[:_MAX_BREAKS]
    ]
    printer.table(
        [["trajectory", "step", "kept", "lost", "read again"], *rows], right="1234", head=True
    )
    if len(breaks) > _MAX_BREAKS:
        printer.line(f"  and {len(breaks) - _MAX_BREAKS:,} more (--format json lists all)")


def _times_fewer(n_raw: int, n: int) -> str:
    return f"{n_raw / n:.1f}x fewer" if n and n != n_raw else ""


_STATUS = {
    "no_action": "no ids were recorded",
    "no_prompt": "no prompt was recorded",
    "excluded": "excluded by the data",
    "media": "in trajectories with media",
    "nonfinite": "in trajectories whose logits are NaN or infinite",
    "too_long": "in trajectories longer than the model's positions",
}


def _left_out(facts: dict[str, Any]) -> list[list[str]]:
    """Return a row for each reason why steps or tokens have no number."""
    rows = [
        [f"{facts['by_status'][status]:,} steps left out", why]
        for status, why in _STATUS.items()
        if facts["by_status"].get(status)
    ]
    for key, why in (
        ("n_first_token", "tokens begin their sequence: nothing stands before them"),
        ("n_neg_inf", "tokens have probability 0 under the checkpoint: log-prob −inf"),
    ):
        if facts[key]:
            rows.append([f"{facts[key]:,}", why])
    return rows


def _print_mismatch(printer: Printer, facts: dict[str, Any]) -> None:
    mismatch, floor = facts["mismatch"], facts["noise_floor"]
    if mismatch is None:
        printer.line("sampler: no log-probs to compare with")
        return
    head = ["against the sampler's log-probs", "mean |Δ|", "p99 |Δ|", "max |Δ|", "k3", "tokens"]
    rows = [head, ["scored − recorded", *_gap(mismatch)]]
    rows.append(
        ["noise floor (scored step by step)", *_gap(floor)] if floor else ["noise floor", *[""] * 5]
    )
    printer.table(rows, right="12345", head=True)
    if floor is None:
        printer.line("  the noise floor was not measured (--recheck 0)")
    worst = mismatch.get("worst")
    if worst:
        printer.line(
            f"  worst: {shorten(worst['trajectory_id'], 60)} step {worst['step_index']} "
            f"action token {worst['action_position']}"
        )
    if mismatch["n_not_recorded"]:
        printer.line(f"  {mismatch['n_not_recorded']:,} tokens have no recorded log-prob")
    for reason, n_tokens in mismatch["not_comparable"].items():
        printer.line(f"  {n_tokens:,} tokens are not comparable: {reason}")


def _gap(gap: dict[str, Any]) -> list[str]:
    numbers = [_small(gap[key]) for key in ("mean_abs", "p99_abs", "max_abs", "k3")]
    return [*numbers, f"{gap['n']:,}"]


def _small(value: float | None) -> str:
    return "null" if value is None else f"{value:.2e}"
