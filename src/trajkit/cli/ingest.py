"""`trajkit ingest`: logs into step records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trajkit.cli.console import Printer, sampled_line
from trajkit.cli.options import (
    ChatTemplatePath,
    Colour,
    Force,
    Now,
    Quiet,
    TemplateKwargs,
    TokenizerPath,
    template_kwargs,
)
from trajkit.errors import ExitCode, UsageProblem
from trajkit.safe.text import visible

if TYPE_CHECKING:
    from trajkit.ingestion.report import IngestReport


def ingest(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Files, folders, quoted globs, or -.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT", help="A .parquet file or a folder."),
    ] = None,
    from_format: Annotated[
        str, typer.Option("--from", metavar="NAME", help="Input format, or auto.")
    ] = "auto",
    tokenizer: TokenizerPath = None,
    retokenize: Annotated[
        bool, typer.Option("--retokenize", help="Make ids from text with -t, and say so.")
    ] = False,
    chat_template: ChatTemplatePath = None,
    template_variables: TemplateKwargs = None,
    now: Now = None,
    markup: Annotated[
        str | None,
        typer.Option(
            "--markup", metavar="NAME|FILE", help="Tag profile of flat text: a name or a .toml."
        ),
    ] = None,
    align: Annotated[
        str,
        typer.Option(
            "--align",
            metavar="auto|input|response|shifted|labels",
            help="How the masks of pre-tokenised rows stand to their ids.",
        ),
    ] = "auto",
    state: Annotated[
        Literal["auto", "full", "none"],
        typer.Option("--state", help="Write state_before: below 64 MiB a trajectory, or as told."),
    ] = "auto",
    on_error: Annotated[
        Literal["stop", "quarantine"],
        typer.Option("--on-error", help="Stop at a bad record, or set its exact bytes aside."),
    ] = "stop",
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="Records to read.")] = (
        None
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and report, write nothing.")
    ] = False,
    force: Force = False,
    output_format: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    """Turn logs into one step-level Parquet dataset; raw action ids are kept as they are.

    Reads per-call token records, Responses-style rows, chat message lists, flat text with tags
    (.json, .jsonl, .txt, .gz, .zst) and pre-tokenised rows (.parquet too), and says which it took a
    file for. With -t, ids are checked
    against the vocabulary and the text columns are filled; with --retokenize, ids are made from
    flat text, or from messages by a chat template, and are called retokenized ever after.

      trajkit ingest rollouts.jsonl -o steps.parquet -t ./tokenizer
    """
    if out is None and not dry_run:
        raise UsageProblem("U103", "an output is needed", hint="give -o OUT.parquet, or --dry-run")
    from trajkit.ingestion.run import OnError
    from trajkit.ingestion.run import ingest as run
    from trajkit.store.write import StatePolicy

    with Printer(colour=color, quiet=quiet) as printer:
        report = run(
            sources,
            None if dry_run else out,
            from_format=from_format,
            tokenizer=tokenizer,
            retokenize=retokenize,
            chat_template=chat_template,
            template_kwargs=template_kwargs(template_variables),
            now=now,
            markup=markup,
            align=align,
            state=StatePolicy(state),
            on_error=OnError(on_error),
            limit=limit,
            overwrite=force,
        )
        if output_format == "json":
            printer.json(report.to_dict())
        else:
            _print(printer, report)
    if report.n_quarantined:
        raise typer.Exit(ExitCode.FINDINGS)


def _print(printer: Printer, report: IngestReport) -> None:
    printer.line(sampled_line(report.by_source, report.n_steps))
    verb = f"Wrote {report.out}:" if report.out else "Nothing written:"
    printer.strong(
        f"{visible(verb)} {report.n_trajectories:,} trajectories, {report.n_steps:,} steps, "
        f"{report.n_action_tokens:,} action tokens"
    )
    counts = f"{report.n_read:,} read = {report.n_written:,} written"
    counts += f" + {report.n_quarantined:,} quarantined"
    rows = [["records", counts]]
    rows += [["format", f"{d.file}: {d.format} ({d.reason})"] for d in report.detected]
    told = ", ".join(f"{n:,} {name}" for name, n in sorted(report.by_source.items()))
    rows.append(["action ids", told or "none"])
    if report.n_straddling_tokens:
        rows.append(["straddling", f"{report.n_straddling_tokens:,} tokens"])
    if report.n_control_text:
        rows.append(["control text", f"{report.n_control_text:,} times in messages"])
    if report.n_states_left_out:
        rows.append(
            ["state_before", f"left out for {report.n_states_left_out:,} trajectories over 64 MiB"]
        )
    if report.quarantine:
        rows.append(["quarantine", report.quarantine])
    printer.table(rows)
    for warning in report.warnings:
        printer.note(f"warning: {warning}")
