"""`trajkit drift-check`: would re-tokenising give other ids?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trajkit.cli.console import Printer, sampled_line
from trajkit.cli.options import (
    Colour,
    Data,
    Force,
    Limit,
    Only,
    Quiet,
    Steps,
    TokenizerPath,
    step_filter,
)
from trajkit.errors import ExitCode, UsageProblem
from trajkit.safe.text import shorten

if TYPE_CHECKING:
    from trajkit.drift.findings import DriftFinding, DriftReport, Route

_SHOWN = 5
_IDS_SHOWN = 8
_TEXT_SHOWN = 48


def drift_check(
    data: Data,
    tokenizer: TokenizerPath = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            "--route", metavar="ids|chain", help="Which way to check; repeatable. Default: all."
        ),
    ] = None,
    trajectory: Only = None,
    step: Steps = None,
    limit: Limit = None,
    output_format: Annotated[Literal["text", "json", "jsonl"], typer.Option("--format")] = "text",
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report here.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    """Find where re-tokenising the trajectories would change their ids.

    Route ids decodes each action and encodes it again; route chain asks whether each prompt starts
    with the prompt + action before it, and needs no tokenizer. Exit 0 only when every route that
    was to be walked was walked and found nothing; text alone can never be called clean.

      trajkit drift-check steps.parquet -t ./tokenizer
    """
    from trajkit.drift.check import drift_check as run

    with Printer(colour=color, quiet=quiet, out=out, overwrite=force, source=data) as printer:
        report = run(
            data,
            tokenizer,
            routes=_routes(route or ()),
            only=frozenset(trajectory or ()),
            limit=limit,
            steps=step_filter(step),
        )
        if output_format == "json":
            printer.json(report.to_dict())
        elif output_format == "jsonl":
            for finding in report.findings:
                printer.line(json.dumps(finding.to_dict(), ensure_ascii=True))
            printer.note(_verdict(report))
        else:
            _print(printer, report)
    if not report.is_clean:
        raise typer.Exit(ExitCode.FINDINGS)


def _routes(names: Sequence[str]) -> list[Route]:
    from trajkit.drift.findings import Route

    try:
        return [Route(name) for name in names]
    except ValueError:
        known = ", ".join(Route)
        raise UsageProblem(
            "U103", f"--route expects one of {known}, got {', '.join(names)}"
        ) from None


def _print(printer: Printer, report: DriftReport) -> None:
    printer.line(sampled_line(report.by_source, report.n_steps))
    printer.strong(_verdict(report))
    if not any(count.n_checked_steps for count in report.by_route.values()):
        return
    rows = [["route", "steps checked", "drifted", "regions"]]
    for name, count in report.by_route.items():
        drifted = _of(count.n_drifted_steps, count.n_checked_steps)
        rows.append([name, f"{count.n_checked_steps:,}", drifted, f"{count.n_findings:,}"])
    rows += [[name, "not walked", "", "needs -t TOKENIZER"] for name in report.not_walked]
    printer.line()
    printer.table(rows, right="123", head=True)
    branched = sum(count.n_branched_steps for count in report.by_route.values())
    if branched:
        printer.line(
            f"  {branched:,} prompts go on from an older step: branches, or a history that was "
            "edited; ids alone cannot tell"
        )
    if not report.findings:
        return
    printer.line()
    kinds = [[kind, f"{n:,}"] for kind, n in report.by_kind.items() if n]
    printer.table([["kind", "regions"], *kinds], head=True)
    worst = sorted(report.findings, key=lambda f: -f.n_action_tokens)[:_SHOWN]
    for finding in worst:
        printer.line()
        _print_finding(printer, finding)
    rest = len(report.findings) - len(worst)
    if rest:
        printer.line()
        printer.line(f"… {rest:,} more regions (all, one a line: --format jsonl)")


def _verdict(report: DriftReport) -> str:
    """Return the answer in one line."""
    walked = [name for name, count in report.by_route.items() if count.n_checked_steps]
    if report.findings:
        tokens = _of(report.n_drifted_action_tokens, report.n_action_tokens)
        steps = _of(report.n_drifted_steps, report.n_checkable_steps or report.n_steps)
        where = _of(report.n_drifted_trajectories, report.n_trajectories)
        return f"drift: {steps} checkable steps in {where} trajectories, {tokens} action tokens"
    if not report.n_checkable_steps:
        return "not checkable: no step holds the sampler's own ids, so drift cannot be told"
    if not walked:
        return "not checkable: no step could be checked by the routes that were walked"
    if report.not_walked:
        return "partly checked: the prompts hold, the spelling of the actions needs -t TOKENIZER"
    said = {
        "ids": "no action changes when it is decoded and encoded again",
        "chain": "each prompt starts with the prompt + action of an earlier step",
    }
    return "clean: " + "; ".join(said[name] for name in walked)


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" + (f" ({part / whole:.1%})" if whole else "")


def _print_finding(printer: Printer, finding: DriftFinding) -> None:
    spot = f"token {finding.token_start}"
    if finding.action_start is not None:
        spot += f", action token {finding.action_start}"
    if finding.byte_start is not None:
        spot += f", byte {finding.byte_start}"
    name = shorten(finding.trajectory_id, 60)
    printer.line(f"{name} step {finding.step_index}: {finding.kind} by route {finding.route}")
    printer.line(f"  at {spot}")
    other = "next prompt" if finding.route == "chain" else "re-encoded"
    rows = [
        ["recorded", _text(finding.recorded_text), _ids(finding.recorded_ids)],
        [other, _text(finding.retokenized_text), _ids(finding.retokenized_ids)],
    ]
    next_ids = finding.evidence.get("next_ids")
    if not finding.retokenized_ids and next_ids:
        shown = _text(finding.evidence.get("next_text"))
        rows[1] = [other, f"nothing here; it goes on with {shown}", _ids(tuple(next_ids))]
    printer.table(rows)


def _text(text: str | None) -> str:
    return "" if text is None else f'"{shorten(text, _TEXT_SHOWN)}"'


def _ids(ids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ids[:_IDS_SHOWN]))
    return f"[{shown}, … {len(ids)} ids]" if len(ids) > _IDS_SHOWN else f"[{shown}]"
