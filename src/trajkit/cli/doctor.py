"""`trajkit doctor`: does everything here work?"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trajkit.cli.console import Printer
from trajkit.cli.options import Colour, Quiet, TokenizerPath
from trajkit.errors import ExitCode
from trajkit.safe.text import visible

if TYPE_CHECKING:
    from trajkit.doctor import Check

_NAME_CELLS = 22


def doctor(
    tokenizer: TokenizerPath = None,
    no_torch: Annotated[
        bool, typer.Option("--no-torch", help="Do not load torch: no word on devices.")
    ] = False,
    output_format: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    """Check this installation: libraries, devices, terminal, and small tests that really run.

    Exit 1 if something fails; warnings are parts that are optional or work less well. The output
    names no user, no machine and no variable of the environment: it can go into a bug report.

      trajkit doctor -t ./tokenizer
    """
    from trajkit.doctor import examine, system

    with Printer(colour=color, quiet=quiet) as printer:
        about = system()
        checks = [_terminal(printer)]
        is_text = output_format == "text"
        if is_text:
            versions = f"trajkit {about['trajkit']}, Python {about['python']}, {about['platform']}"
            printer.line(visible(versions))
            _print(printer, checks[0])
        for check in examine(tokenizer=tokenizer, load_torch=not no_torch):
            checks.append(check)
            if is_text:
                _print(printer, check)
        counts = Counter(check.health.value for check in checks)
        worst = next(health for health in ("fail", "warn", "ok") if counts[health])
        if is_text:
            printer.strong(_verdict(counts))
        else:
            found: list[dict[str, Any]] = [check.to_dict() for check in checks]
            printer.json({"schema": "trajkit.doctor/1", "health": worst, **about, "checks": found})
    if worst == "fail":
        raise typer.Exit(ExitCode.FINDINGS)


def _terminal(printer: Printer) -> Check:
    """Return how output looks here: its encoding, its width, its colours."""
    from trajkit.doctor import Check, Health

    facts = {
        "is_terminal": sys.stdout.isatty(),
        "encoding": sys.stdout.encoding,
        "unicode": not printer.ascii,
        "width": printer.width,
        "colour": printer.colour,
    }
    kind = "a terminal" if facts["is_terminal"] else "no terminal"
    colours = "colours" if printer.colour else "no colours"
    found = f"{kind}, {facts['encoding']}, {printer.width} cells, {colours}"
    if not printer.ascii:
        return Check(area="terminal", name="stdout", health=Health.OK, found=found, facts=facts)
    return Check(
        area="terminal",
        name="stdout",
        health=Health.WARN,
        found=f"{found}: other characters are shown escaped",
        hint="PYTHONIOENCODING=utf-8, or a UTF-8 locale",
        facts=facts,
    )


def _print(printer: Printer, check: Check) -> None:
    label = check.name if check.area == "library" else f"{check.area}: {check.name}"
    line = f"{check.health.value:<6}{visible(label):<{_NAME_CELLS}} {visible(check.found)}"
    if check.health == "ok":
        printer.line(line)
    else:
        printer.strong(line)
    if check.hint:
        printer.line(f"      hint: {visible(check.hint)}")


def _verdict(counts: Counter[str]) -> str:
    if not counts["fail"]:
        return f"nothing failed: {counts['ok']} ok, {counts['warn']} warn"
    return f"{counts['fail']} failed: {counts['ok']} ok, {counts['warn']} warn"
