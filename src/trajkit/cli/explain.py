"""`trajkit explain`: what a code or a finding means, why it matters, what to do."""

from __future__ import annotations

from textwrap import wrap
from typing import Annotated

import typer

from trajkit.cli.console import Printer
from trajkit.cli.options import Colour
from trajkit.cli.pages import FINDINGS, PAGES
from trajkit.errors import ERROR_CODES, UsageProblem


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="An error code or a drift kind.")],
    color: Colour = "auto",
) -> None:
    """Explain an error code or a drift kind: what it is, why it hurts, how to mend it.

    trajkit explain I301
    """
    titles = FINDINGS | ERROR_CODES
    name = code if code in titles else code.upper()
    if name not in titles:
        raise UsageProblem(
            "U103", f"there is no page for {code}", hint=f"pages are {', '.join(titles)}"
        )
    page = PAGES[name]
    with Printer(colour=color) as printer:
        printer.strong(f"{name}: {titles[name]}")
        for label, text in (("why", page.why), ("mend", page.fix)):
            folded = wrap(text, printer.width - len("mend  "))
            for number, part in enumerate(folded):
                printer.line(f"{label if number == 0 else '':<6}{part}")
