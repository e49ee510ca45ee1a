"""The command line: one function per command, registered here and nowhere else."""

from __future__ import annotations

from typing import Annotated

import typer

from trajkit import __version__
from trajkit.cli.demo import demo
from trajkit.cli.doctor import doctor
from trajkit.cli.drift_check import drift_check
from trajkit.cli.explain import explain
from trajkit.cli.info import info
from trajkit.cli.ingest import ingest
from trajkit.cli.losses import losses
from trajkit.cli.mask_check import mask_check
from trajkit.cli.mask_view import mask_view
from trajkit.cli.schema import schema
from trajkit.cli.score import score

app = typer.Typer(
    name="trajkit",
    help="Convert and audit the trajectories of LLM agents: token ids, drift, masks, log-probs.",
    epilog="Exit codes: 0 clean, 1 findings, 2 usage, 3 bad input, 4 I/O, 5 refused, 6 numbers, "
    "70 a bug in trajkit.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"trajkit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Convert and audit the trajectories of LLM agents: token ids, drift, masks, log-probs."""


app.command("ingest")(ingest)
app.command("drift-check")(drift_check)
app.command("mask-check")(mask_check)
app.command("mask-view")(mask_view)
app.command("score")(score)
app.command("losses")(losses)
app.command("info")(info)
app.command("schema")(schema)
app.command("explain")(explain)
app.command("demo")(demo)
app.command("doctor")(doctor)
