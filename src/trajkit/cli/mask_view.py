"""`trajkit mask-view`: which tokens train?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trajkit.cli.console import Printer
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
from trajkit.errors import Place, UsageProblem

if TYPE_CHECKING:
    from trajkit.records import Trajectory
    from trajkit.store.read import Dataset
    from trajkit.store.scores import Scores
    from trajkit.tokenizer import Tokenizer
    from trajkit.view.lanes import Lane
    from trajkit.view.model import Row, View
    from trajkit.view.select import Selection

_PAGE_LIMIT = 32
"""Trajectories of a page, unless --limit or --trajectory asks for others."""


@dataclass(frozen=True, slots=True)
class _Under:
    """What the text form shows beside the text: a lane, ids, or a table instead of it."""

    lane: Lane | None
    ids: bool
    spans: bool


@dataclass(frozen=True, slots=True)
class _Shown:
    """What was asked for: trajectories in order, and which of their rows."""

    trajectories: Iterator[Trajectory]
    tokenizer: Tokenizer | None
    wanted: Callable[[int], bool]
    selection: Selection
    scores: Scores | None
    under: _Under

    def views(self) -> Iterator[tuple[View, Iterator[Row]]]:
        """Yield the view of each trajectory with the rows that are wanted."""
        from trajkit.view.model import rows, view_of
        from trajkit.view.select import selected

        for trajectory in self.trajectories:
            scores = {} if self.scores is None else self.scores.of(trajectory)
            view = view_of(trajectory, scores)
            found = rows(view, self.tokenizer, self.wanted)
            yield view, selected(view, found, self.tokenizer, self.selection)


def mask_view(
    data: Data,
    tokenizer: TokenizerPath = None,
    trajectory: Only = None,
    step: Steps = None,
    limit: Limit = None,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", metavar="A:B", help="Only tokens A up to before B of a sequence."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="KIND", help="Only action, context or a kind of segment; repeatable."
        ),
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="TEXT", help="Only lines that hold this.")
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option("--scores", metavar="SCORES", help="What trajkit score -o wrote of DATA."),
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option(
            "--overlay", metavar="LANE", help="Draw numbers under actions: logprob, entropy, ..."
        ),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print ids under each line.")] = False,
    spans: Annotated[bool, typer.Option("--spans", help="Print a table of spans instead.")] = False,
    output_format: Annotated[
        Literal["text", "html", "svg", "json"], typer.Option("--format")
    ] = "text",
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the view here.")
    ] = None,
    width: Annotated[int | None, typer.Option("--width", min=40, help="Cells a line may take.")] = (
        None
    ),
    force: Force = False,
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    """Show which tokens the policy sampled and which are context, with everything visible.

    A bar in the gutter marks actions, whatever the colours. Shows the first trajectory unless
    --trajectory or --limit asks for others; an HTML page holds up to 32.

      trajkit mask-view steps.parquet -t ./tokenizer --step 1
      trajkit mask-view steps.parquet -t ./tokenizer --format html -o view.html
    """
    from trajkit.store.read import open_dataset
    from trajkit.store.scores import open_scores
    from trajkit.tokenizer import load_tokenizer, require_same_tokenizer

    selection = _selection(tokens, only or (), grep, output_format)
    under = _Under(_lane(overlay, has_scores=scores is not None), ids, spans)
    if output_format != "text" and (overlay or ids or spans):
        raise UsageProblem("U103", "--overlay, --ids and --spans are for the text form")
    if output_format == "html" and out is None and sys.stdout.isatty():
        raise UsageProblem("U103", "--format html needs a file", hint="give one with -o view.html")
    dataset = open_dataset(data)
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    if loaded is not None:
        require_same_tokenizer(
            loaded,
            fingerprint=dataset.tokenizer_fingerprint,
            name=dataset.metadata.get("tokenizer_name"),
            file=str(data),
        )
    names = frozenset(trajectory or ())
    wanted = step_filter(step) or (lambda _: True)
    default = _PAGE_LIMIT if output_format == "html" else 1
    most = limit if limit is not None or names else default
    numbers = None if scores is None else open_scores(scores, dataset)
    chosen = _chosen(dataset, names, most, wanted)
    shown = _Shown(chosen, loaded, wanted, selection, numbers, under)
    with Printer(
        colour=color, quiet=quiet, out=out, overwrite=force, source=data, width=width
    ) as printer:
        n_steps = _FACES[output_format](printer, shown)
        is_cut = limit is None and not names and n_steps < dataset.n_steps
        if is_cut and output_format != "json":
            first = f"the first {most} trajectories" if default > 1 else "the first trajectory"
            printer.note(f"hint: {first} only; --trajectory ID or --limit N shows others")


def _selection(
    tokens: str | None, kinds: list[str] | tuple[()], text: str | None, output_format: str
) -> Selection:
    """Return what --tokens, --only and --grep ask for; U103 where they cannot mean anything."""
    from trajkit.view.select import Selection, kind_names

    for kind in kinds:
        if kind not in kind_names():
            known = ", ".join(kind_names())
            raise UsageProblem("U103", f"--only expects one of {known}, got {kind}")
    try:
        within = step_filter(tokens)
    except UsageProblem as problem:
        message = f"--tokens expects N or A:B, got {tokens}"
        raise UsageProblem("U103", message) from problem
    selection = Selection(tokens=within, kinds=frozenset(kinds), text=text)
    if output_format == "json" and not selection.is_everything:
        raise UsageProblem(
            "U103",
            "--tokens, --only and --grep choose lines; JSON holds whole columns",
            hint="leave them out, or choose steps with --step",
        )
    return selection


def _lane(name: str | None, *, has_scores: bool) -> Lane | None:
    """Return the lane of a name; U103 when there is none, or when it has no numbers to draw."""
    from trajkit.view.lanes import LANES

    found = {lane.name: lane for lane in LANES}
    if name is not None and name not in found:
        raise UsageProblem("U103", f"--overlay expects one of {', '.join(found)}, got {name}")
    lane = None if name is None else found[name]
    if lane is not None and lane.is_scored and not has_scores:
        raise UsageProblem(
            "U103",
            f"--overlay {name} needs what a checkpoint said",
            hint="trajkit score DATA --model DIR -o scores.parquet, then --scores scores.parquet",
        )
    return lane


def _chosen(
    dataset: Dataset, only: frozenset[str], limit: int | None, wanted: Callable[[int], bool]
) -> Iterator[Trajectory]:
    """Yield the trajectories that have something to show; none at all is a usage error."""
    from trajkit.store.read import read_trajectories

    is_empty = True
    for trajectory in read_trajectories(dataset, only=only, limit=limit):
        if any(wanted(step.step_index) for step in trajectory.steps):
            is_empty = False
            yield trajectory
    if is_empty:
        raise UsageProblem(
            "U107",
            "no step has this index" if dataset.n_steps else "the dataset is empty",
            place=Place(file=str(dataset.path)),
        )


def _print_json(printer: Printer, shown: _Shown) -> int:
    from trajkit.view.columns import view_columns
    from trajkit.view.model import view_of

    n_steps = 0
    found = []
    for trajectory in shown.trajectories:
        n_steps += len(trajectory.steps)
        found += view_columns(view_of(trajectory), shown.tokenizer, shown.wanted)
    printer.json({"schema": "trajkit.mask-view/1", "trajectories": found})
    return n_steps


def _print_text(printer: Printer, shown: _Shown) -> int:
    from trajkit.view.beneath import with_beneath
    from trajkit.view.spans import HEAD, span_rows
    from trajkit.view.terminal import Face, annotated, body, footer, header, scale

    lane, ids = shown.under.lane, shown.under.ids
    face = Face(width=printer.width, colour=printer.colour, ascii=printer.ascii)
    name = None if shown.tokenizer is None else shown.tokenizer.name
    n_steps = 0
    for view, rows in shown.views():
        if n_steps:
            printer.line()
        n_steps += len(view.trajectory.steps)
        printer.lines(header(view, name, face))
        if lane is not None:
            printer.lines(scale(lane, face))
        if shown.under.spans:
            table = [tuple(map(face.spell, row)) for row in span_rows(view, rows)]
            printer.table([HEAD, *table], right="0345", head=True)
        elif lane is not None or ids:
            found = with_beneath(view, rows, shown.tokenizer, lane)
            printer.lines(annotated(found, face, has_ids=ids))
        else:
            printer.lines(body(rows, face))
        printer.line(footer(view, face))
    return n_steps


def _print_html(printer: Printer, shown: _Shown) -> int:
    from trajkit.view.html.page import page_of
    from trajkit.view.html.payload import payload_of

    payload = payload_of(shown.views(), shown.tokenizer)
    printer.line(page_of(payload))
    return sum(entry["n_steps"] for entry in payload.shared["index"])


def _print_svg(printer: Printer, shown: _Shown) -> int:
    from trajkit.safe.text import shorten
    from trajkit.view.svg import svg_of

    found = [(view.trajectory, list(rows)) for view, rows in shown.views()]
    names = [shorten(trajectory.trajectory_id, 60) for trajectory, _ in found]
    printer.line(svg_of(zip(names, (rows for _, rows in found), strict=True), printer.width))
    return sum(len(trajectory.steps) for trajectory, _ in found)


_FACES: dict[str, Callable[[Printer, _Shown], int]] = {
    "text": _print_text,
    "html": _print_html,
    "svg": _print_svg,
    "json": _print_json,
}
"""Write what is shown; return how many steps the shown trajectories have."""
