"""`trajkit demo`: something to try the commands on."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from trajkit.cli.console import Printer
from trajkit.cli.options import Colour, Quiet
from trajkit.safe.text import visible

COMMANDS = (
    ("ingest", "{0}/logs -o {0}/steps.parquet -t {0}/tiny"),
    ("drift-check", "{0}/steps.parquet -t {0}/tiny"),
    ("mask-view", "{0}/steps.parquet -t {0}/tiny"),
    ("score", "{0}/steps.parquet --model {0}/tiny -o {0}/scores.parquet"),
)
"""What to type next; `{0}` is the folder."""


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to make, or an empty one.")
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Write into a folder with files; only the demo's own change."),
    ] = False,
    output_format: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    """Write a tiny tokenizer, a tiny checkpoint and four trajectories to try the commands on.

    Works offline. The checkpoint is random and the conversations are made up; the ids and the
    log-probs beside them belong to this checkpoint.

      trajkit demo try-trajkit
    """
    from trajkit.demo.write import FILES, write_demo

    written = write_demo(folder, overwrite=force)
    sizes = [path.stat().st_size for path in written]
    commands = next_commands(folder)
    with Printer(colour=color, quiet=quiet) as printer:
        if output_format == "json":
            files = [
                {"file": str(path), "n_bytes": size, "holds": holds}
                for path, size, holds in zip(written, sizes, FILES.values(), strict=True)
            ]
            printer.json(
                {
                    "schema": "trajkit.demo/1",
                    "folder": str(folder),
                    "files": files,
                    "commands": commands,
                }
            )
            return
        printer.strong(visible(f"Wrote {folder}: {len(written)} files, {sum(sizes):,} bytes"))
        printer.table([[name, holds] for name, holds in FILES.items()])
        printer.line()
        printer.line("Now try:")
        for command in commands:
            printer.line(f"  {visible(command)}")
        if find_spec("torch") is None:
            printer.note("hint: score needs torch: pip install 'trajkit[score]'")


def next_commands(folder: Path) -> list[str]:
    """Return the commands that work on a demo folder, ready for a shell."""
    name = str(folder)
    name = shlex.quote(f"./{name}" if name.startswith("-") else name)
    return [f"trajkit {verb} {words.format(name)}" for verb, words in COMMANDS]
