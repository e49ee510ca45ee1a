"""`trajkit score`: what does a checkpoint say about these exact ids?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trajkit.cli.console import Printer
from trajkit.cli.options import Colour, Data, Force, Limit, Only, Quiet
from trajkit.errors import ExitCode
from trajkit.safe.text import shorten


def score(
    data: Data,
    model: Annotated[
        Path, typer.Option("--model", metavar="DIR", help="Checkpoint: config.json, *.safetensors.")
    ],
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device")] = "auto",
    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        typer.Option("--dtype", help="auto: the checkpoint's own on a GPU, fp32 on CPU."),
    ] = "auto",
    loss: Annotated[
        list[str] | None,
        typer.Option("--loss", metavar="NAME", help="Which losses; repeatable. Default: all."),
    ] = None,
    recheck: Annotated[
        int,
        typer.Option(
            "--recheck", min=0, help="Trajectories to score again step by step: the noise floor."
        ),
    ] = 1,
    require_sampled: Annotated[
        bool, typer.Option("--require-sampled", help="Refuse steps whose ids were not sampled.")
    ] = False,
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

    One forward per token sequence; nothing is re-tokenised. Needs the extra trajkit\[score].

      trajkit score steps.parquet --model ./checkpoint -o scores.parquet
    """
    with Printer(colour=color, quiet=quiet) as printer:
        if not quiet:
            printer.note("loading torch and the checkpoint")
        from trajkit.scoring import require_torch

        require_torch()
        from trajkit.scoring.run import score as run

        report = run(
            data,
            model,
            device=device,
            dtype=dtype,
            losses=loss,
            only=frozenset(trajectory or ()),
            limit=limit,
            out=out,
            overwrite=force,
            recheck=recheck,
            require_sampled=require_sampled,
            progress=printer.progress,
        )
        facts = report.to_dict()
        if output_format == "json":
            printer.json(facts)
        else:
            _print(printer, facts)
    if report.exit_code is not ExitCode.CLEAN:
        raise typer.Exit(report.exit_code)


def _print(printer: Printer, facts: dict[str, Any]) -> None:
    sampled = facts["by_source"]["sampled"]
    share = facts["sampled_share"] or 0.0
    printer.line(f"sampled ids: {sampled:,} of {facts['n_steps']:,} steps ({share:.1%})")
    printer.line(
        f"Scored {facts['n_trajectories']:,} trajectories, {facts['n_action_tokens']:,} action "
        f"tokens, in {facts['n_forwards']:,} forwards of {facts['n_forwarded_tokens']:,} tokens "
        f"(one forward a step: {facts['n_raw_tokens']:,})"
    )
    logprob = facts["logprob"]
    printer.line()
    printer.table(
        [
            ["log-prob", "nats"],
            ["sum", _number(logprob["sum"])],
            ["token mean", _number(logprob["token_mean"])],
            ["sequence mean", _number(logprob["sequence_mean"])],
        ],
        right="1",
    )
    printer.line()
    rows = [["loss", "value", "numerator", "denominator", ""]]
    for name, value in facts["losses"].items():
        numbers = [_number(value[key]) for key in ("value", "numerator", "denominator")]
        rows.append([name, *numbers, _remark(value)])
    printer.table(rows, right="123")
    source = facts.get("advantage_source")
    if source is not None:
        printer.line(f"  advantages: {_ADVANTAGES[source]}")
    printer.line()
    _print_mismatch(printer, facts)
    if out := facts.get("out"):
        printer.line()
        printer.line(f"Wrote {out}")


_ADVANTAGES = {
    "recorded": "as recorded",
    "group_id": "(R − mean) / std within each group_id",
    "first_prompt": "(R − mean) / std among trajectories with the same first prompt",
    "group_id+first_prompt": "(R − mean) / std within group_id, else the same first prompt",
}


def _remark(value: dict[str, Any]) -> str:
    if value.get("reason"):
        return str(value["reason"])
    left_out = value["n_left_out"]
    return f"{left_out:,} tokens without a baseline or log-prob left out" if left_out else ""


def _print_mismatch(printer: Printer, facts: dict[str, Any]) -> None:
    mismatch, floor = facts["mismatch"], facts["noise_floor"]
    if mismatch is None:
        printer.line("sampler: the data record no log-probs to compare with")
        return
    printer.table(
        [
            ["against the sampler's log-probs", "mean |Δ|", "p99 |Δ|", "max |Δ|", "k3", "tokens"],
            [
                "recorded − scored",
                *(_small(mismatch[key]) for key in ("mean_abs", "p99_abs", "max_abs", "k3")),
                f"{mismatch['n']:,}",
            ],
            [
                "noise floor (scored step by step)",
                _small(floor["mean_abs"]) if floor else "",
                "",
                _small(floor["max_abs"]) if floor else "not measured",
                "",
                f"{floor['n']:,}" if floor else "",
            ],
        ],
        right="12345",
    )
    worst = mismatch.get("worst")
    if worst:
        printer.line(
            f"  worst: {shorten(worst['trajectory_id'], 60)} step {worst['step_index']} "
            f"action token {worst['action_position']}"
        )


def _number(value: float | None) -> str:
    if value is None:
        return "null"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _small(value: float | None) -> str:
    return "null" if value is None else f"{value:.2e}"
