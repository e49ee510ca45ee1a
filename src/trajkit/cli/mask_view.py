"""`trajkit mask-view`: which tokens train?"""

from __future__ import annotations

from collections.abc import Iterator
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


def mask_view(
    data: Data,
    tokenizer: TokenizerPath = None,
    trajectory: Only = None,
    step: Steps = None,
    limit: Limit = None,
    output_format: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
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
    --trajectory or --limit asks for others.

      trajkit mask-view steps.parquet -t ./tokenizer --step 1
    """
    from trajkit.drift.check import require_same_tokenizer
    from trajkit.store.read import open_dataset, read_trajectories
    from trajkit.tokenizer import load_tokenizer

    dataset = open_dataset(data)
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    if loaded is not None:
        require_same_tokenizer(dataset, loaded)
    only = frozenset(trajectory or ())
    count = limit if limit is not None or only else 1
    chosen = read_trajectories(dataset, only=only, limit=count)
    first = next(chosen, None)
    if first is None:
        raise UsageProblem(
            "U107",
            "no trajectory has this id" if only else "the dataset is empty",
            place=Place(file=str(data)),
            hint="trajkit info DATA lists ids",
        )
    with Printer(colour=color, quiet=quiet, out=out, overwrite=force, width=width) as printer:
        if output_format == "json":
            from trajkit.view.columns import view_columns
            from trajkit.view.model import view_of

            shown = [c for t in _all(first, chosen) for c in view_columns(view_of(t), loaded)]
            printer.json({"schema": "trajkit.mask-view/1", "trajectories": shown})
            return
        _print(printer, _all(first, chosen), loaded, step)
        if count == 1 and not only and dataset.n_steps > len(first.steps):
            printer.note(
                "hint: the first trajectory only; --trajectory ID or --limit N shows others"
            )


def _all(first: Trajectory, rest: Iterator[Trajectory]) -> Iterator[Trajectory]:
    yield first
    yield from rest


def _print(
    printer: Printer, trajectories: Iterator[Trajectory], tokenizer: object, step: str | None
) -> None:
    from trajkit.tokenizer import Tokenizer
    from trajkit.view.model import rows, view_of
    from trajkit.view.terminal import Face, body, footer, header

    known = tokenizer if isinstance(tokenizer, Tokenizer) else None
    face = Face(width=printer.width, colour=printer.colour, ascii=printer.ascii)
    wanted = step_filter(step) or (lambda _: True)
    for number, trajectory in enumerate(trajectories):
        if number:
            printer.line()
        view = view_of(trajectory)
        printer.lines(header(view, None if known is None else known.name, face))
        printer.lines(body(rows(view, known, wanted), face))
        printer.line(footer(view))
