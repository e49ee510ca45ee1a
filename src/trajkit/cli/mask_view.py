"""`trajkit mask-view`: which tokens train?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    from trajkit.tokenizer import Tokenizer


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
    from trajkit.store.read import open_dataset
    from trajkit.tokenizer import load_tokenizer, require_same_tokenizer

    dataset = open_dataset(data)
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    if loaded is not None:
        require_same_tokenizer(
            loaded,
            fingerprint=dataset.tokenizer_fingerprint,
            name=dataset.metadata.get("tokenizer_name"),
            file=str(data),
        )
    only = frozenset(trajectory or ())
    wanted = step_filter(step) or (lambda _: True)
    is_first_only = limit is None and not only
    chosen = _chosen(dataset, only, 1 if is_first_only else limit, wanted)
    with Printer(
        colour=color, quiet=quiet, out=out, overwrite=force, source=data, width=width
    ) as printer:
        if output_format == "json":
            _print_json(printer, chosen, loaded, wanted)
            return
        for number, shown in enumerate(chosen):
            if number:
                printer.line()
            _print(printer, shown, loaded, wanted)
            if is_first_only and dataset.n_steps > len(shown.steps):
                printer.note(
                    "hint: the first trajectory only; --trajectory ID or --limit N shows others"
                )


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


def _print_json(
    printer: Printer,
    trajectories: Iterator[Trajectory],
    tokenizer: Tokenizer | None,
    wanted: Callable[[int], bool],
) -> None:
    from trajkit.view.columns import view_columns
    from trajkit.view.model import view_of

    shown = [c for t in trajectories for c in view_columns(view_of(t), tokenizer, wanted)]
    printer.json({"schema": "trajkit.mask-view/1", "trajectories": shown})


def _print(
    printer: Printer,
    trajectory: Trajectory,
    tokenizer: Tokenizer | None,
    wanted: Callable[[int], bool],
) -> None:
    from trajkit.view.terminal import Face, lines

    face = Face(width=printer.width, colour=printer.colour, ascii=printer.ascii)
    printer.lines(lines(trajectory, tokenizer, face, wanted))
