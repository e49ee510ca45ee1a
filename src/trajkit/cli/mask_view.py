"""`trajkit mask-view`: which tokens train?"""

from __future__ import annotations

import sys
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
from trajkit.cli.pager import PagedPrinter
from trajkit.errors import Place, UsageProblem

if TYPE_CHECKING:
    from trajkit.records import Trajectory
    from trajkit.store.read import Dataset
    from trajkit.tokenizer import Tokenizer
    from trajkit.view.lanes import Lane
    from trajkit.view.redact import Redaction
    from trajkit.view.select import Selection

_PAGE_LIMIT = 32
"""Trajectories of a page, unless --limit or --trajectory asks for others."""
_FOLD = 20
"""Lines of long context that a terminal shows, unless --fold or --unfold asks for others."""


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
    findings: Annotated[
        Path | None,
        typer.Option(
            "--findings", metavar="FINDINGS", help="What trajkit drift-check -o wrote of DATA."
        ),
    ] = None,
    against_tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--against-tokenizer",
            metavar="PATH",
            help="Draw, under each line, how this tokenizer cuts the same text.",
        ),
    ] = None,
    redact: Annotated[
        list[str] | None,
        typer.Option(
            "--redact", metavar="REGEX", help="Show nothing that this matches; repeatable."
        ),
    ] = None,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Show kinds, counts and numbers; no text, no ids.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print ids under each line.")] = False,
    spans: Annotated[bool, typer.Option("--spans", help="Print a table of spans instead.")] = False,
    output_format: Annotated[
        Literal["text", "html", "svg", "png", "json"], typer.Option("--format")
    ] = "text",
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the view here.")
    ] = None,
    width: Annotated[int | None, typer.Option("--width", min=40, help="Cells a line may take.")] = (
        None
    ),
    fold: Annotated[
        int | None,
        typer.Option(
            "--fold", min=2, metavar="N", help="Keep N lines of long context; 20 on a terminal."
        ),
    ] = None,
    unfold: Annotated[bool, typer.Option("--unfold", help="Fold nothing.")] = False,
    no_pager: Annotated[
        bool, typer.Option("--no-pager", help="Never start $PAGER for a long view.")
    ] = False,
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
    from trajkit.cli.view_faces import FACES, Shown, Under, publish_png
    from trajkit.store.findings import open_findings
    from trajkit.store.read import open_dataset
    from trajkit.store.scores import open_scores
    from trajkit.view.redact import redaction_of

    selection = _selection(tokens, only or (), grep, output_format)
    lane = _lane(overlay, has_scores=scores is not None)
    redaction = redaction_of(redact or (), hides_text=no_text)
    text_only = {
        "--overlay": overlay,
        "--ids": ids,
        "--spans": spans,
        "--against-tokenizer": against_tokenizer,
        "--fold": fold,
    }
    _check_form(output_format, out, [name for name, given in text_only.items() if given])
    dataset = open_dataset(data)
    loaded = _tokenizer(tokenizer, dataset)
    on_screen = output_format == "text" and out is None and sys.stdout.isatty()
    if fold is None and on_screen and selection.is_everything:
        fold = _FOLD
    names = frozenset(trajectory or ())
    wanted = step_filter(step) or (lambda _: True)
    default = _PAGE_LIMIT if output_format == "html" else 1
    most = limit if limit is not None or names else default
    shown = Shown(
        trajectories=_chosen(dataset, names, most, wanted),
        tokenizer=loaded,
        wanted=wanted,
        selection=selection,
        scores=None if scores is None else open_scores(scores, dataset),
        findings=None if findings is None else open_findings(findings, dataset),
        redaction=redaction,
        under=Under(
            lane=lane,
            ids=ids,
            spans=spans,
            against=_other(against_tokenizer, loaded, redaction),
            n_kept=None if unfold else fold,
        ),
    )
    is_picture = output_format == "png"
    printer_of = PagedPrinter if on_screen and not no_pager else Printer
    with printer_of(
        colour=color,
        quiet=quiet,
        out=None if is_picture else out,
        overwrite=force,
        source=data,
        width=width,
    ) as printer:
        if is_picture and out is not None:
            n_steps = publish_png(printer, shown, out, source=data, overwrite=force)
        else:
            n_steps = FACES[output_format](printer, shown)
    is_cut = limit is None and not names and n_steps < dataset.n_steps
    if is_cut and output_format != "json":
        first = f"the first {most} trajectories" if default > 1 else "the first trajectory"
        printer.note(f"hint: {first} only; --trajectory ID or --limit N shows others")


def _check_form(output_format: str, out: Path | None, text_only: list[str]) -> None:
    """Raise U103 where a form cannot be what was asked for, or cannot go to the terminal."""
    if output_format != "text" and text_only:
        raise UsageProblem("U103", f"{', '.join(text_only)}: for the text form only")
    if out is not None:
        return
    if output_format == "html" and sys.stdout.isatty():
        raise UsageProblem("U103", "--format html needs a file", hint="give one with -o view.html")
    if output_format == "png":
        raise UsageProblem("U103", "--format png needs a file", hint="give one with -o view.png")


def _tokenizer(path: Path | None, dataset: Dataset) -> Tokenizer | None:
    """Return the tokenizer of a dataset; T102 where it behaves otherwise than the one at ingest."""
    from trajkit.tokenizer import load_tokenizer, require_same_tokenizer

    if path is None:
        return None
    loaded = load_tokenizer(path)
    require_same_tokenizer(
        loaded,
        fingerprint=dataset.tokenizer_fingerprint,
        name=dataset.metadata.get("tokenizer_name"),
        file=str(dataset.path),
    )
    return loaded


def _other(
    path: Path | None, tokenizer: Tokenizer | None, redaction: Redaction
) -> Tokenizer | None:
    """Return the tokenizer to compare with; U103 where there is no text to compare."""
    from trajkit.tokenizer import load_tokenizer

    if path is not None and (tokenizer is None or redaction.hides_text):
        raise UsageProblem(
            "U103",
            "--against-tokenizer compares how a text is cut, and there is none",
            hint="give the tokenizer of the data with -t, and leave out --no-text",
        )
    return None if path is None else load_tokenizer(path)


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
