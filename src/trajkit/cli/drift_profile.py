"""`drift-check --route profile`: what a tokenizer and a template will do, without any data."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from trajkit.cli.console import Printer
from trajkit.cli.drift_text import example, risk_lines
from trajkit.safe.text import visible

if TYPE_CHECKING:
    from trajkit.drift.profile import Profile

_EXAMPLES = 3


def print_profile(printer: Printer, profile: Profile, form: str) -> None:
    """Print a profile as text or as JSON: the risks first, then what is good to know.

    It is a risk and no measurement, and says so.
    """
    if form == "json":
        printer.json(profile.to_dict())
        return
    template = "no chat template"
    if profile.template is not None:
        template = f"template {profile.template[:12]}"
    name, fingerprint = visible(profile.tokenizer), profile.fingerprint[:12]
    printer.line(f"tokenizer {name} ({fingerprint}), {profile.n_vocab:,} ids, {template}")
    printer.strong(
        f"risk: {len(profile.risks)} of {len(profile.facts)} things that were looked for can change"
        " ids; no data were measured"
    )
    for fact in profile.risks:
        printer.line()
        head, consequence, *_ = risk_lines([fact])
        printer.strong(head)
        printer.line(consequence)
        printer.lines(f"  e.g. {example(one)}" for one in fact.examples[:_EXAMPLES])
    notes = [fact for fact in profile.facts if fact.n and fact not in profile.risks]
    if notes:
        printer.line()
        printer.strong("good to know")
        rows = [
            [f.trait.value, f"{f.n:,} of {f.n_probed:,}", f.consequence, *map(example, f.examples)]
            for f in notes
        ]
        printer.table([[*row, ""][:4] for row in rows], right="1")
    found = {fact.trait for fact in profile.facts if fact.n}
    missed = dict.fromkeys(f.trait.value for f in profile.facts if f.trait not in found)
    if missed:
        printer.line()
        printer.lines(wrap(f"not found: {', '.join(missed)}", printer.width))
