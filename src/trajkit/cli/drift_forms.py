"""The forms of drift-check's report: text, Markdown, GitHub annotations, SARIF, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from trajkit.cli import drift_text as say
from trajkit.cli.annotations import Annotation, Level, RuleInfo, github_line, sarif
from trajkit.cli.console import Printer, sampled_line
from trajkit.cli.pages import FINDINGS, PAGES
from trajkit.safe.text import shorten, visible

if TYPE_CHECKING:
    from trajkit.drift.causes import Severity
    from trajkit.drift.findings import DriftFinding, DriftReport
    from trajkit.drift.ranking import Group
    from trajkit.drift.thresholds import Measured

_WINDOWS = 8
_MD_WINDOWS = 3
_MD_SIGNS = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_[]|#!~$"} | {sign: f"&#{ord(sign)};" for sign in "<>@&"}
)


def print_report(
    printer: Printer,
    report: DriftReport,
    form: str,
    *,
    data: Path,
    measured: Sequence[Measured] = (),
    fix: bool = False,
) -> None:
    """Print a report in a form: text, json, jsonl, md, github or sarif.

    Args:
        printer: where it goes.
        report: what was found.
        form: its name.
        data: what was checked: annotations point at it.
        measured: the thresholds that were given.
        fix: whether to name the setting to change for each cause.
    """
    if form == "json":
        _print_json(printer, report, measured, fix)
    elif form == "jsonl":
        for finding in report.findings:
            printer.line(json.dumps(finding.to_dict(), ensure_ascii=True))
        printer.note(say.verdict(report))
    elif form == "md":
        printer.lines(_markdown(report, measured, fix))
    elif form == "github":
        printer.lines(_github(report, data))
        printer.note(say.verdict(report))
    elif form == "sarif":
        annotations = [_annotation(finding, data) for finding in report.findings]
        printer.json(sarif(annotations, _rule_infos()))
        printer.note(say.verdict(report))
    else:
        _print_text(printer, report, measured, fix)


def _groups(report: DriftReport) -> list[Group]:
    from trajkit.drift.ranking import ranked

    return ranked(report.findings)


def _print_json(
    printer: Printer, report: DriftReport, measured: Sequence[Measured], fix: bool
) -> None:
    groups = _groups(report)
    document = report.to_dict()
    findings = document.pop("findings")
    document["causes"] = [group.to_dict() for group in groups]
    document["fail_on"] = [one.to_dict() for one in measured]
    if fix:
        document["fixes"] = say.fixes(groups)
    printer.json(document | {"findings": findings})


def _print_text(
    printer: Printer, report: DriftReport, measured: Sequence[Measured], fix: bool
) -> None:
    printer.line(sampled_line(report.by_source, report.n_steps))
    printer.strong(say.verdict(report))
    if any(count.n_checked_steps for count in report.by_route.values()):
        printer.line()
        printer.table(say.route_rows(report), right="123", head=True)
        printer.lines(f"  {line}" for line in say.notes(report))
    groups = _groups(report)
    if groups:
        _print_findings(printer, report, groups)
    if report.risks is not None:
        printer.line()
        _print_risks(printer, report)
    if groups and fix:
        printer.line()
        _print_fixes(printer, groups)
    if measured:
        printer.line()
        printer.lines(say.measured_line(one) for one in measured)
    printer.line()
    printer.line(say.provenance(report))


def _print_findings(printer: Printer, report: DriftReport, groups: Sequence[Group]) -> None:
    printer.line()
    printer.table([row[:-1] for row in say.group_rows(groups)], right="23", head=True)
    price = report.price
    if price is not None and (bars := say.histogram(price, is_ascii=printer.ascii)):
        printer.line(f"  {bars}")
    if price is not None and price.exposure.n_drifted_trajectories:
        printer.line()
        printer.lines(say.price_lines(price, report.logprob_price))
        printer.table(say.rule_rows(price), right="123", head=True)
    for group in groups[:_WINDOWS]:
        printer.line()
        printer.lines(say.window_lines(group.worst))
        printer.line(f"  {say.what_of(group)}")
        printer.table(say.window_rows(group.worst, is_ascii=printer.ascii))
    printer.line()
    rest = len(report.findings) - min(len(groups), _WINDOWS)
    if rest:
        noun = "region" if rest == 1 else "regions"
        printer.line(f"… {rest:,} more {noun} (one a line: --format jsonl; -o findings.parquet)")
    printer.line(f"hint: trajkit explain {groups[0].code}")


def _print_fixes(printer: Printer, groups: Sequence[Group]) -> None:
    printer.strong("settings to change")
    for name, text in say.fixes(groups).items():
        printer.line(f"  {name}")
        printer.lines(f"    {line}" for line in wrap(text, printer.width - 4))


def _print_risks(printer: Printer, report: DriftReport) -> None:
    risks = report.risks or ()
    printer.strong(
        "cannot be measured; what would drift, by the tokenizer and the template alone:"
        if risks
        else "cannot be measured; no risk is known of how these texts are joined or rendered"
    )
    printer.lines(f"  {line}" for line in say.risk_lines(risks))


# --- Markdown ---


def _markdown(report: DriftReport, measured: Sequence[Measured], fix: bool) -> Iterator[str]:
    """Yield a report for a comment on a pull request."""
    groups = _groups(report)
    yield f"### drift-check: {report.verdict.value}"
    yield ""
    yield f"{sampled_line(report.by_source, report.n_steps)}  "
    yield _md_escaped(say.verdict(report))
    yield ""
    yield from _md_table(say.route_rows(report), right="123")
    for line in say.notes(report):
        yield f"- {_md_escaped(line)}"
    if groups:
        yield ""
        yield from _md_table(say.group_rows(groups), right="23")
    price = report.price
    if price is not None and price.exposure.n_drifted_trajectories:
        yield ""
        yield from (f"- {line}" for line in say.price_lines(price, report.logprob_price))
        yield ""
        yield from _md_table(say.rule_rows(price), right="123")
    for group in groups[:_MD_WINDOWS]:
        yield ""
        yield from _md_window(group.worst)
    for line in say.risk_lines(report.risks or ()):
        yield f"- {_md_escaped(line.strip())}"
    if fix:
        yield ""
        yield from (f"- `{name}`: {_md_escaped(text)}" for name, text in say.fixes(groups).items())
    yield from (f"- {_md_escaped(say.measured_line(one))}" for one in measured)
    yield ""
    yield _md_escaped(say.provenance(report))


def _md_window(finding: DriftFinding) -> Iterator[str]:
    """Yield a finding as a block of code; every line of it begins with our own words."""
    rows = say.window_rows(finding, is_ascii=False)
    width = max(len(row[0]) for row in rows)
    first, spot = say.window_lines(finding)
    yield "````text"
    yield f"at {first}"
    yield spot
    for side, text, ids in rows:
        yield visible(f"  {side:<{width}}  {text}  {ids}").rstrip()
    yield "````"


def _md_table(rows: Sequence[Sequence[str]], *, right: str) -> Iterator[str]:
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---:' if str(i) in right else '---' for i in range(len(head)))} |"
    for row in body:
        yield f"| {' | '.join(_md_escaped(cell) for cell in row)} |"


def _md_escaped(text: str) -> str:
    """Return text of which nothing is markup, a link, a mention or HTML."""
    return visible(text).translate(_MD_SIGNS)


# --- annotations ---


def _github(report: DriftReport, data: Path) -> Iterator[str]:
    """Yield one annotation a cause: GitHub shows ten of them and no more.

    What could not be checked is an annotation too: a green page would say that it was.
    """
    if not report.findings and not report.is_clean:
        name, told = report.verdict.value, say.verdict(report)
        yield github_line(Annotation(code=name, severity="warning", message=told, file=str(data)))
    for group in _groups(report):
        worst = _annotation(group.worst, data)
        told = f"{group.n_regions:,} regions, {group.n_action_tokens:,} action tokens"
        yield github_line(
            Annotation(
                code=worst.code,
                severity=worst.severity,
                message=f"{say.what_of(group)} ({told}); worst: {_where(group.worst)}",
                file=worst.file,
            )
        )


def _annotation(finding: DriftFinding, data: Path) -> Annotation:
    from trajkit.drift.ranking import check_of, severity_of

    code = _code(finding)
    what = _titles()[code] if check_of(finding) is None else f"{_titles()[code]}: {_check(finding)}"
    return Annotation(
        code=code,
        severity=_level(severity_of(finding.cause, finding.kind)),
        message=f"{what}: {_where(finding)}",
        file=str(data),
        properties={
            "trajectory_id": finding.trajectory_id,
            "step_index": finding.step_index,
            "route": finding.route.value,
            "kind": finding.kind.value,
            "cause": finding.cause,
            "token_start": finding.token_start,
            "action_start": finding.action_start,
            "byte_start": finding.byte_start,
            "n_action_tokens": finding.n_action_tokens,
        },
    )


def _check(finding: DriftFinding) -> str:
    from trajkit.drift.routes.record import SELF_CHECKS

    return SELF_CHECKS[str(finding.evidence["check"])]


def _code(finding: DriftFinding) -> str:
    from trajkit.drift.findings import UNEXPLAINED

    return finding.kind.value if finding.cause == UNEXPLAINED else finding.cause


def _where(finding: DriftFinding) -> str:
    name = shorten(finding.trajectory_id, 60)
    return f"{name} step {finding.step_index}, token {finding.token_start}"


def _level(severity: Severity) -> Level:
    """Return how bad a damage is for other programs: only the policy's context is a note."""
    from trajkit.drift.causes import Severity

    levels: dict[Severity, Level] = {
        Severity.CONTEXT: "note",
        Severity.ACTION_IDS: "warning",
        Severity.ACTION_BYTES: "error",
        Severity.STRUCTURE: "error",
    }
    return levels[severity]


@cache
def _titles() -> dict[str, str]:
    from trajkit.drift.causes import DRIFT_CAUSES

    return FINDINGS | {cause.name: cause.what for cause in DRIFT_CAUSES}


def _rule_infos() -> list[RuleInfo]:
    """Return a rule for each cause and each kind."""
    from trajkit.drift.causes import DRIFT_CAUSES, UNEXPLAINED
    from trajkit.drift.findings import DriftKind
    from trajkit.drift.ranking import severity_of

    causes = [
        RuleInfo(
            code=cause.name,
            severity=_level(cause.severity),
            title=cause.what,
            why=cause.why,
            fix=cause.fix,
        )
        for cause in DRIFT_CAUSES
    ]
    kinds = [
        RuleInfo(
            code=kind.value,
            severity=_level(severity_of(UNEXPLAINED, kind)),
            title=FINDINGS[kind],
            why=PAGES[kind].why,
            fix=PAGES[kind].fix,
        )
        for kind in DriftKind
    ]
    return causes + kinds
