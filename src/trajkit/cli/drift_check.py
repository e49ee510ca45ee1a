"""`trajkit drift-check`: would re-tokenising give other ids?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from trajkit.safe.text import shorten, visible

if TYPE_CHECKING:
    from trajkit.drift.findings import DriftFinding, DriftReport, Route

_SHOWN = 5
_IDS_SHOWN = 8
_TEXT_SHOWN = 48
_SAID = {
    "ids": "no action changes when it is decoded and encoded again",
    "chain": "each prompt starts with the prompt + action of an earlier step",
    "join": "no sequence changes when it is joined as one text and encoded",
    "render": "the chat template gives the recorded ids",
    "pair": "both recordings hold the same ids",
}
_OTHER = {
    "ids": "re-encoded",
    "chain": "next prompt",
    "join": "re-encoded",
    "render": "rendered",
    "pair": "other data",
}


def drift_check(
    data: Data,
    tokenizer: TokenizerPath = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            "--route",
            metavar="ids|chain|join|render|pair",
            help="Which way to check; repeatable. Default: all that the data allow.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="DATA", help="Another recording of the same trajectories."
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            "--chat-template",
            metavar="FILE",
            help="Renders the messages. Default: the one in the tokenizer's folder.",
        ),
    ] = None,
    template_kwargs: Annotated[
        str | None,
        typer.Option(
            "--template-kwargs", metavar="JSON", help='Its variables: {"enable_thinking": false}.'
        ),
    ] = None,
    now: Annotated[
        str | None,
        typer.Option("--now", metavar="DATE", help="What the template takes for today."),
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

    Route ids decodes each action and encodes it again, join does so with each whole sequence; chain
    asks whether each prompt starts with the prompt + action before it, and needs no tokenizer;
    render puts the messages through the chat template; pair compares with another recording.
    Exit 0 only when every route that the data allow was walked and found nothing; text alone can
    never be called clean.

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
            against=against,
            chat_template=chat_template,
            template_kwargs=_kwargs(template_kwargs),
            now=_date(now),
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


def _kwargs(text: str | None) -> dict[str, Any]:
    """Return the variables in `--template-kwargs`."""
    try:
        value = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageProblem(
            "U103",
            "--template-kwargs expects a JSON object",
            hint="""--template-kwargs '{"enable_thinking": false}'""",
        )
    return value


def _date(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise UsageProblem("U103", f"--now expects a date like 2025-08-06, got {text}") from None


def _print(printer: Printer, report: DriftReport) -> None:
    printer.line(sampled_line(report.by_source, report.n_steps))
    printer.strong(_verdict(report))
    if not any(count.n_checked_steps for count in report.by_route.values()):
        return
    rows = [["route", "steps checked", "drifted", "regions"]]
    for name, count in report.by_route.items():
        drifted = _of(count.n_drifted_steps, count.n_checked_steps)
        rows.append([name, f"{count.n_checked_steps:,}", drifted, f"{count.n_findings:,}"])
    rows += [[name, "not walked", "", why] for name, why in report.not_walked.items()]
    printer.line()
    printer.table(rows, right="123", head=True)
    for line in _notes(report):
        printer.line(f"  {line}")
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
        why = _reasons(report.not_walked)
        return f"not checkable: no step could be checked by the routes that were walked{why}"
    if report.unchecked:
        why = _reasons(report.unchecked)
        return f"partly checked: no drift found, but not all was checked{why}"
    return "clean: " + "; ".join(_SAID[name] for name in walked)


def _reasons(by_route: Mapping[str, str]) -> str:
    told = "; ".join(f"{name}: {why}" for name, why in by_route.items())
    return f" ({told})" if told else ""


def _notes(report: DriftReport) -> Iterator[str]:
    """Yield what stands below the table of routes."""
    for name, count in report.by_route.items():
        if count.n_branched_steps:
            yield (
                f"{count.n_branched_steps:,} prompts go on from an older step: branches, or a "
                "history that was edited; ids alone cannot tell"
            )
        for why, n_steps in count.left_out.items():
            yield f"{name}: {n_steps:,} steps not checked: {why}"
    if (template := report.template) is not None:
        said = f"rendered with {visible(str(template['file']))} ({template['sha256'][:12]})"
        if template["kwargs"]:
            said += f", {visible(json.dumps(template['kwargs']))}"
        yield said + (f", today {template['now'][:10]}" if template["tells_time"] else "")
    if (against := report.against) is not None and against["n_other_trajectories"]:
        yield f"{against['n_other_trajectories']:,} trajectories stand in the other recording alone"


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" + (f" ({part / whole:.1%})" if whole else "")


def _print_finding(printer: Printer, finding: DriftFinding) -> None:
    from trajkit.drift.findings import UNEXPLAINED

    spot = f"token {finding.token_start}"
    if finding.action_start is not None:
        spot += f", action token {finding.action_start}"
    if finding.byte_start is not None:
        spot += f", byte {finding.byte_start}"
    name = shorten(finding.trajectory_id, 60)
    said = f"{name} step {finding.step_index}: {finding.kind} by route {finding.route}"
    also = finding.evidence.get("also")
    said += f" (also {', '.join(also)})" if also else ""
    printer.line(said if finding.cause == UNEXPLAINED else f"{said}, {finding.cause}")
    printer.line(f"  at {spot}")
    other = _OTHER[finding.route]
    known = finding.evidence if finding.evidence.get("cut") else {}
    n_recorded, n_other = known.get("n_recorded"), known.get("n_other")
    rows = [
        ["recorded", _text(finding.recorded_text), _ids(finding.recorded_ids, n_recorded)],
        [other, _text(finding.retokenized_text), _ids(finding.retokenized_ids, n_other)],
    ]
    next_ids = finding.evidence.get("next_ids")
    if not finding.retokenized_ids and next_ids:
        shown = _text(finding.evidence.get("next_text"))
        rows[1] = [other, f"nothing here; it goes on with {shown}", _ids(tuple(next_ids))]
    printer.table(rows)


def _text(text: str | None) -> str:
    return "" if text is None else f'"{shorten(text, _TEXT_SHOWN)}"'


def _ids(ids: tuple[int, ...], n: int | None = None) -> str:
    """Return the first ids and how many there are, `n` where the finding was cut."""
    shown = ", ".join(map(str, ids[:_IDS_SHOWN]))
    return f"[{shown}, … {n or len(ids):,} ids]" if len(ids) > _IDS_SHOWN else f"[{shown}]"
