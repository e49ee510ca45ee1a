"""`trajkit mask-check`: which tokens train, and is that right?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trajkit.cli.annotations import Annotation, RuleInfo, github_line, sarif
from trajkit.cli.console import Printer, sampled_line
from trajkit.cli.options import (
    Colour,
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
    from trajkit.masks.against import MaskComparison, MaskDifference
    from trajkit.masks.findings import MaskFinding, MaskReport, Stretch

_IDS_SHOWN = 8
_TEXT_SHOWN = 48
_NAME_SHOWN = 60
_DIFFERENCES_SHOWN = 5

_Rows = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Step records, or pre-tokenised rows: a JSONL or Parquet file of ids with masks.",
    ),
]


def mask_check(
    data: _Rows,
    tokenizer: TokenizerPath = None,
    train: Annotated[
        str | None,
        typer.Option(
            "--train",
            metavar="POLICY",
            help="Judge this loss mask in place of the source's: action, last-step, answer, "
            "no-think, rewarded, observation, action-observation, all.",
        ),
    ] = None,
    align: Annotated[
        str,
        typer.Option(
            "--align",
            metavar="auto|input|response|shifted|labels",
            help="How the masks of rows stand to their ids.",
        ),
    ] = "auto",
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="DATA2", help="Compare two masks of the same tokens."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="RULE", help="Report this rule only; repeatable."),
    ] = None,
    trajectory: Only = None,
    step: Steps = None,
    limit: Limit = None,
    output_format: Annotated[
        Literal["text", "json", "jsonl", "github", "sarif"], typer.Option("--format")
    ] = "text",
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report here.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    """Find masks that train the wrong tokens.

    Rules ask for stops, headers, shifts, padding, text of the environment, log-probs and rewards;
    trajkit explain RULE says what each is about. Exit 1 when a warning or an error was found, or a
    rule could not be run; notes alone exit 0.

      trajkit mask-check rows.jsonl -t ./tokenizer
    """
    with Printer(colour=color, quiet=quiet, out=out, overwrite=force, source=data) as printer:
        if against is not None:
            _refuse_beside_against(rule, step, output_format)
            is_clean = _against(
                printer,
                _compared(data, against, tokenizer, train, align, trajectory, limit),
                output_format,
            )
        else:
            from trajkit.masks.check import mask_check as run

            report = run(
                data,
                tokenizer,
                train=train,
                align=align,
                rules=rule or (),
                only=trajectory or (),
                limit=limit,
                steps=step_filter(step),
            )
            _print(printer, report, output_format, data)
            is_clean = report.is_clean
    if not is_clean:
        raise typer.Exit(ExitCode.FINDINGS)


def _print(printer: Printer, report: MaskReport, output_format: str, data: Path) -> None:
    if output_format == "json":
        printer.json(report.to_dict())
    elif output_format == "jsonl":
        for finding in report.findings:
            printer.line(json.dumps(finding.to_dict(), ensure_ascii=True))
        printer.note(_verdict(report))
    elif output_format == "github":
        printer.lines(github_line(_annotation(finding, data)) for finding in report.findings)
        printer.note(_verdict(report))
    elif output_format == "sarif":
        notes = [_annotation(finding, data) for finding in report.findings]
        printer.json(sarif(notes, _rule_infos()))
    else:
        _print_text(printer, report)


def _print_text(printer: Printer, report: MaskReport) -> None:
    if report.source == "steps":
        printer.line(sampled_line(report.by_source, report.n_steps))
    printer.strong(_verdict(report))
    printer.line()
    printer.table(_facts(report))
    if report.findings:
        printer.line()
        _print_rules(printer, report)
    for finding in _worst(report):
        printer.line()
        _print_finding(printer, finding, printer.ascii)
    rest = len(report.findings) - len(_worst(report))
    if rest > 0:
        printer.line()
        printer.line(f"… {_count(rest, 'more finding')} (all, one a line: --format jsonl)")


def _verdict(report: MaskReport) -> str:
    """Return the answer in one line."""
    if not report.n_sequences and not report.findings:
        return "not checkable: no ids, so no mask can be told"
    if not report.findings:
        if report.n_without_turns and report.tokenizer is not None and report.not_run:
            return f"{_unknown_turns(report)}; nothing else found"
        if report.not_run:
            return "partly checked: nothing found; rules about stops and text need -t TOKENIZER"
        return "clean: no rule is broken"
    by_severity = {
        severity: sum(finding.severity == severity for finding in report.findings)
        for severity in ("error", "warning", "note")
    }
    counts = [_count(n, severity) for severity, n in by_severity.items() if n]
    where = len({finding.trajectory_id for finding in report.findings})
    whole = f"{where:,} of {report.n_trajectories:,} trajectories"
    unsure = ""
    if report.not_run and report.tokenizer is None:
        unsure = "; rules about stops and text need -t TOKENIZER"
    elif report.not_run:
        unsure = f"; {_unknown_turns(report)}"
    return f"masks: {', '.join(counts)} in {whole}{unsure}"


def _unknown_turns(report: MaskReport) -> str:
    """Return that nothing tells whose text some sequences train."""
    part = "not" if report.n_without_turns == report.n_sequences else "partly"
    of = f"{report.n_without_turns:,} of {_count(report.n_sequences, 'sequence')}"
    return f"{part} checkable: no turn markers in {of}"


def _facts(report: MaskReport) -> list[list[str]]:
    share = report.n_trained_tokens / report.n_tokens if report.n_tokens else 0.0
    whose = (
        f"the loss mask {report.policy}"
        if report.policy is not None
        else f"the source's own in {report.n_claimed:,} of {report.n_sequences:,} sequences"
        + (", the actions in the others" if report.n_claimed < report.n_sequences else "")
    )
    rows = [
        ["trained", f"{report.n_trained_tokens:,} of {report.n_tokens:,} tokens ({share:.1%})"],
        ["mask", whose],
    ]
    if report.by_align:
        told = ", ".join(f"{n:,} {align}" for align, n in report.by_align.items())
        rows.append(["aligned", told])
    if report.n_without_ids:
        rows.append(["left out", f"{_count(report.n_without_ids, 'step')} without ids"])
    if report.not_run:
        no = "no -t TOKENIZER" if report.tokenizer is None else "no turn of the policy is marked"
        rows.append(["not run", f"{_count(len(report.not_run), 'rule')}: {no}"])
        if report.tokenizer is not None:
            rows += [["", code] for code in report.not_run]
    return rows


def _print_rules(printer: Printer, report: MaskReport) -> None:
    from trajkit.masks.findings import SEVERITIES
    from trajkit.masks.rules import MASK_RULES

    rows = [["rule", "severity", "findings", ""]]
    worst: dict[str, str] = {}
    for severity in reversed(SEVERITIES):
        for finding in report.findings:
            if finding.severity is severity:
                worst[finding.rule] = severity.value
    for rule in MASK_RULES:
        n = report.by_rule.get(rule.code, 0)
        if n:
            rows.append([rule.code, worst[rule.code], f"{n:,}", rule.text.title])
    printer.table(rows, right="2", head=True)


def _worst(report: MaskReport) -> list[MaskFinding]:
    """Return the first of the worst findings of each rule, worst rule first."""
    from trajkit.masks.findings import SEVERITIES

    first: dict[str, MaskFinding] = {}
    for finding in sorted(report.findings, key=lambda found: SEVERITIES.index(found.severity)):
        first.setdefault(finding.rule, finding)
    return [first[code] for code in report.by_rule if code in first]


def _print_finding(printer: Printer, finding: MaskFinding, is_ascii: bool) -> None:
    printer.line(f"{finding.severity.value} {finding.rule}: {shorten(_where(finding), 100)}")
    printer.line(f"  {shorten(finding.detail, 100)}")
    if finding.window:
        printer.table([_row(stretch, is_ascii) for stretch in finding.window], right="1")


def _where(finding: MaskFinding) -> str:
    spot = shorten(finding.trajectory_id, _NAME_SHOWN)
    if finding.step_index is not None:
        spot += f" step {finding.step_index}"
    if finding.token_start is None or finding.token_end is None:
        return spot
    if finding.token_end - finding.token_start == 1:
        return f"{spot}, token {finding.token_start}"
    return f"{spot}, tokens {finding.token_start} to {finding.token_end - 1}"


def _row(stretch: Stretch, is_ascii: bool) -> list[str]:
    signs = ("#", ".") if is_ascii else ("▌", "·")
    return [
        signs[0] if stretch.trained else signs[1],
        str(stretch.token_start),
        "trained" if stretch.trained else "not trained",
        "" if stretch.text is None else f'"{shorten(stretch.text, _TEXT_SHOWN)}"',
        _ids(stretch.ids),
    ]


def _ids(ids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ids[:_IDS_SHOWN]))
    return f"[{shown}, … {len(ids)} ids]" if len(ids) > _IDS_SHOWN else f"[{shown}]"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _annotation(finding: MaskFinding, data: Path) -> Annotation:
    from trajkit.masks.texts import RULE_TEXTS

    title = RULE_TEXTS[finding.rule].title
    return Annotation(
        code=finding.rule,
        severity=finding.severity.value,
        message=f"{title}: {_where(finding)} ({finding.detail})",
        file=str(data),
        line=finding.line,
        properties={
            "trajectory_id": finding.trajectory_id,
            "step_index": finding.step_index,
            "token_start": finding.token_start,
            "token_end": finding.token_end,
            "record": finding.record,
        },
    )


def _rule_infos() -> list[RuleInfo]:
    from trajkit.masks.rules import MASK_RULES

    return [
        RuleInfo(
            code=rule.code,
            severity=rule.severity.value,
            title=rule.text.title,
            why=rule.text.why,
            fix=rule.text.fix,
        )
        for rule in MASK_RULES
    ]


def _refuse_beside_against(rule: object, step: object, output_format: str) -> None:
    if rule or step:
        raise UsageProblem("U103", "--against compares whole masks: leave out --rule and --step")
    if output_format in ("github", "sarif"):
        raise UsageProblem("U103", f"--against has no form {output_format}; text, json or jsonl")


def _compared(
    data: Path,
    against: Path,
    tokenizer: Path | None,
    train: str | None,
    align: str,
    trajectory: list[str] | None,
    limit: int | None,
) -> MaskComparison:
    from trajkit.formats.alignment import align_named
    from trajkit.masks.against import compare_masks
    from trajkit.masks.sources import Wanted
    from trajkit.tokenizer import load_tokenizer
    from trajkit.training import policy_named

    wanted = Wanted(
        only=frozenset(trajectory or ()),
        limit=limit,
        policy=None if train is None else policy_named(train),
        align=align_named(align),
    )
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    return compare_masks(data, against, loaded, wanted)


def _against(printer: Printer, result: MaskComparison, output_format: str) -> bool:
    if output_format == "json":
        printer.json(result.to_dict())
        return result.is_clean
    if output_format == "jsonl":
        for difference in result.to_dict()["differences"]:
            printer.line(json.dumps(difference, ensure_ascii=True))
        return result.is_clean
    same = result.n_sequences - len(result.differences)
    printer.strong(f"masks agree in {same:,} of {_count(result.n_sequences, 'sequence')}")
    printer.line()
    printer.table(
        [
            ["trained by both", f"{result.n_both:,}"],
            ["here alone", f"{result.n_here:,}"],
            ["there alone", f"{result.n_there:,}"],
            ["trajectories here alone", f"{len(result.only_here):,}"],
            ["trajectories there alone", f"{len(result.only_there):,}"],
        ],
        right="1",
    )
    for difference in result.differences[:_DIFFERENCES_SHOWN]:
        printer.line()
        _print_difference(printer, difference)
    return result.is_clean


def _print_difference(printer: Printer, difference: MaskDifference) -> None:
    name = shorten(difference.trajectory_id, _NAME_SHOWN)
    where = f"sequence {difference.sequence} of {name}"  # a line of a log begins with our words
    if difference.token_start is None:
        printer.line(f"{where}: {difference.detail}")
        return
    printer.line(f"{where}, from token {difference.token_start}: {difference.detail}")
    text = "" if difference.text is None else f'"{shorten(difference.text, _TEXT_SHOWN)}"'
    printer.table(
        [
            ["ids", _ids(difference.ids), text],
            ["here", _bits(difference.here), ""],
            ["there", _bits(difference.there), ""],
        ]
    )


def _bits(trained: tuple[bool, ...]) -> str:
    return "".join("1" if is_trained else "0" for is_trained in trained)
