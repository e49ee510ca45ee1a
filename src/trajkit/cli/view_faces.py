"""The faces of `trajkit mask-view`: each writes what is shown in one form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajkit.cli.console import Printer
from trajkit.errors import UsageProblem

if TYPE_CHECKING:
    from trajkit.records import Trajectory
    from trajkit.store.findings import Findings
    from trajkit.store.scores import Scores
    from trajkit.tokenizer import Tokenizer
    from trajkit.view.lanes import Lane
    from trajkit.view.model import Row, View
    from trajkit.view.redact import Redaction
    from trajkit.view.select import Selection
    from trajkit.view.terminal import Face


@dataclass(frozen=True, slots=True, kw_only=True)
class Under:
    """What the text form shows beside the text.

    Attributes:
        lane: numbers under actions.
        ids: whether ids stand under each line.
        spans: whether a table of spans stands instead of the text.
        against: another tokenizer, whose tokens are drawn too.
        n_kept: lines of long context that stay; `None` shows all.
    """

    lane: Lane | None
    ids: bool
    spans: bool
    against: Tokenizer | None
    n_kept: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What was asked for: trajectories in order, which of their rows, and what is known of them."""

    trajectories: Iterator[Trajectory]
    tokenizer: Tokenizer | None
    wanted: Callable[[int], bool]
    selection: Selection
    scores: Scores | None
    findings: Findings | None
    redaction: Redaction
    under: Under

    def plain_views(self) -> Iterator[View]:
        """Return the view of each trajectory, without what is not to be shown."""
        from trajkit.view.prepare import prepared

        return prepared(
            self.trajectories,
            self.tokenizer,
            scores=self.scores,
            findings=self.findings,
            redaction=self.redaction,
        )

    def views(self) -> Iterator[tuple[View, Iterator[Row]]]:
        """Yield each view with the rows that are wanted."""
        from trajkit.view.model import rows
        from trajkit.view.select import selected

        for view in self.plain_views():
            found = rows(view, self.tokenizer, self.wanted)
            yield view, selected(view, found, self.tokenizer, self.selection)


def _print_json(printer: Printer, shown: Shown) -> int:
    from trajkit.view.columns import view_columns

    n_steps = 0
    found: list[dict[str, Any]] = []
    for view in shown.plain_views():
        n_steps += len(view.trajectory.steps)
        found += view_columns(view, shown.tokenizer, shown.wanted)
    printer.json({"schema": "trajkit.mask-view/1", "trajectories": found})
    return n_steps


def _print_text(printer: Printer, shown: Shown) -> int:
    from trajkit.view.terminal import Face, drift_head, footer, header, scale

    face = Face(width=printer.width, colour=printer.colour, ascii=printer.ascii)
    name = None if shown.tokenizer is None else shown.tokenizer.name
    lane = shown.under.lane
    n_steps = 0
    for view, rows in shown.views():
        if n_steps:
            printer.line()
        n_steps += len(view.trajectory.steps)
        printer.lines(header(view, name, face))
        printer.lines([] if lane is None else scale(lane, face))
        printer.lines(drift_head(view, face) if shown.findings is not None else [])
        _print_body(printer, shown, view, rows, face)
        printer.line(footer(view, face))
    return n_steps


def _print_body(
    printer: Printer, shown: Shown, view: View, rows: Iterator[Row], face: Face
) -> None:
    from trajkit.view.against import compared
    from trajkit.view.beneath import with_beneath
    from trajkit.view.fold import folded_rows
    from trajkit.view.spans import HEAD, span_rows
    from trajkit.view.terminal import annotated, body, comparison_head

    under, tokenizer = shown.under, shown.tokenizer
    if under.spans:
        table = [tuple(map(face.spell, row)) for row in span_rows(view, rows)]
        printer.table([HEAD, *table], right="0345", head=True)
        return
    comparison = None
    if under.against is not None and tokenizer is not None:
        comparison = compared(view, tokenizer, under.against)
        printer.lines(comparison_head(comparison, face))
    if under.n_kept is not None:
        rows = folded_rows(view, rows, tokenizer, under.n_kept, face.room)
    if under.lane is None and not under.ids and comparison is None and not view.marks:
        printer.lines(body(rows, face))
        return
    found = with_beneath(view, rows, tokenizer, under.lane, comparison)
    printer.lines(annotated(found, face, has_ids=under.ids))


def _print_html(printer: Printer, shown: Shown) -> int:
    from trajkit.view.html.page import page_of
    from trajkit.view.html.payload import payload_of

    payload = payload_of(shown.views(), shown.tokenizer)
    printer.line(page_of(payload))
    return sum(entry["n_steps"] for entry in payload.shared["index"])


def _print_svg(printer: Printer, shown: Shown) -> int:
    text, n_steps = _drawing(printer, shown)
    printer.line(text)
    return n_steps


def publish_png(printer: Printer, shown: Shown, out: Path, *, source: Path, overwrite: bool) -> int:
    """Write a picture to a file; return how many steps the shown trajectories have."""
    from trajkit.safe.files import publish_bytes, same_file
    from trajkit.view.png import png_of

    if same_file(out, source):
        raise UsageProblem("U102", f"{out} is the input too", hint="give another path with -o")
    text, n_steps = _drawing(printer, shown)
    picture, n_boxes = png_of(text)
    publish_bytes(out, picture, overwrite=overwrite)
    if n_boxes:
        plural = "" if n_boxes == 1 else "s"
        printer.note(f"note: {n_boxes:,} character{plural} that no font here has: drawn as boxes")
    return n_steps


def _drawing(printer: Printer, shown: Shown) -> tuple[str, int]:
    from trajkit.safe.text import shorten
    from trajkit.view.beneath import with_beneath
    from trajkit.view.svg import svg_of

    found = [
        (view.trajectory, list(with_beneath(view, rows, shown.tokenizer)))
        for view, rows in shown.views()
    ]
    names = [shorten(trajectory.trajectory_id, 60) for trajectory, _ in found]
    drawing = svg_of(zip(names, (rows for _, rows in found), strict=True), printer.width)
    return drawing, sum(len(trajectory.steps) for trajectory, _ in found)


FACES: dict[str, Callable[[Printer, Shown], int]] = {
    "text": _print_text,
    "html": _print_html,
    "svg": _print_svg,
    "json": _print_json,
}
"""Write what is shown; return how many steps the shown trajectories have."""
