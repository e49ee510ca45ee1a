"""Options that mean the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trajkit.errors import UsageProblem

Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="Step records: a .parquet file or an ingest folder.")
]
TokenizerPath = Annotated[
    Path | None,
    typer.Option(
        "-t", "--tokenizer", metavar="PATH", help="Folder with tokenizer.json, or the file."
    ),
]
ChatTemplatePath = Annotated[
    Path | None,
    typer.Option(
        "--chat-template",
        metavar="PATH",
        help="A .jinja file or a folder; default: the one in the tokenizer's folder.",
    ),
]
TemplateKwargs = Annotated[
    str | None,
    typer.Option(
        "--template-kwargs",
        metavar="JSON",
        help='Variables for the chat template: {"enable_thinking": false}.',
    ),
]
Now = Annotated[
    datetime | None,
    typer.Option(
        "--now",
        formats=["%Y-%m-%d"],
        metavar="DATE",
        help="What a chat template that asks takes for today.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--trajectory", metavar="ID", help="Only this trajectory; repeatable."),
]
Limit = Annotated[
    int | None, typer.Option("-n", "--limit", min=1, help="At most so many trajectories.")
]
Steps = Annotated[
    str | None,
    typer.Option("--step", metavar="N|A:B", help="Only step N, or steps A up to before B."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors and the result only.")]
Colour = Annotated[
    Literal["auto", "always", "never"],
    typer.Option("--color", help="Colour the text form; auto obeys NO_COLOR and FORCE_COLOR."),
]


def template_kwargs(text: str | None) -> dict[str, Any]:
    """Return the variables that `--template-kwargs` gives.

    Raises:
        UsageProblem: U103 unless it is a JSON object.
    """
    from trajkit.safe.json import strict_json

    value = strict_json(text or "{}")
    if not isinstance(value, dict):
        raise UsageProblem("U103", f"--template-kwargs expects a JSON object, got {text}")
    return value


def step_filter(text: str | None) -> Callable[[int], bool] | None:
    """Return the test that `--step` describes, `None` when it was not given.

    Raises:
        UsageProblem: U103 unless it is N or A:B with non-negative numbers.
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        start = int(first) if first else 0
        end = int(last) if last else None
    except ValueError:
        start, end = -1, None
    if start < 0 or (end is not None and end < 0) or not text.strip(":"):
        raise UsageProblem("U103", f"--step expects N or A:B, got {text}")
    if not colon:
        return lambda index: index == start
    return lambda index: index >= start and (end is None or index < end)
