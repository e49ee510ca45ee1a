"""`trajkit explain`: what a code, a drift kind or cause, or a mask rule means, and what to do."""

from __future__ import annotations

from textwrap import wrap
from typing import Annotated

import typer

from trajkit.cli.console import Printer
from trajkit.cli.options import Colour
from trajkit.cli.pages import FINDINGS, PAGES
from trajkit.errors import ERROR_CODES, UsageProblem
from trajkit.masks.texts import RULE_TEXTS


def explain(
    code: Annotated[
        str,
        typer.Argument(metavar="CODE", help="An error code, a drift kind or cause, a mask rule."),
    ],
    color: Colour = "auto",
) -> None:
    """Explain an error code, a drift kind or cause, or a mask rule: why it hurts, the remedy.

    trajkit explain I301
    """
    from trajkit.drift.causes import DRIFT_CAUSES  # the table comes with numpy

    causes = {cause.name: cause for cause in DRIFT_CAUSES}
    rules = {code: text.title for code, text in RULE_TEXTS.items()}
    titles = FINDINGS | {name: cause.what for name, cause in causes.items()} | rules | ERROR_CODES
    spellings = (code, code.upper(), code.lower().replace("_", "-"))
    name = next((one for one in spellings if one in titles), None)
    if name is None:
        raise UsageProblem(
            "U103", f"there is no page for {code}", hint=f"pages are {', '.join(titles)}"
        )
    if name in causes:
        cause = causes[name]
        parts = [("why", cause.why), ("e.g.", cause.example), ("mend", cause.fix)]
    else:
        page = RULE_TEXTS[name] if name in RULE_TEXTS else PAGES[name]
        parts = [("why", page.why), ("mend", page.fix)]
    with Printer(colour=color) as printer:
        printer.strong(f"{name}: {titles[name]}")
        for label, text in parts:
            folded = wrap(text, printer.width - len("mend  "))
            for number, part in enumerate(folded):
                printer.line(f"{label if number == 0 else '':<6}{part}")
