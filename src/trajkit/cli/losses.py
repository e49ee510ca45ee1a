"""`trajkit losses`: what would other losses say of the same log-probs? No model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trajkit.cli.console import Printer, sampled_line
from trajkit.cli.loss_table import Length, Losses, OwnTokenizer, Train, print_losses
from trajkit.cli.options import Colour, Data, Limit, Only, Quiet


def losses(
    data: Data,
    scores: Annotated[
        Path, typer.Argument(metavar="SCORES", help="What trajkit score -o wrote about DATA.")
    ],
    loss: Losses = None,
    train: Train = "action",
    length: Length = None,
    tokenizer: OwnTokenizer = None,
    trajectory: Only = None,
    limit: Limit = None,
    output_format: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
    quiet: Quiet = False,
    color: Colour = "auto",
) -> None:
    r"""Compute losses from log-probs that were scored before: no model, no torch.

    trajkit losses steps.parquet scores.parquet
    trajkit losses steps.parquet scores.parquet --loss verl --loss trl --length 4096
    """
    from trajkit.rl.run import losses as run
    from trajkit.tokenizer import load_tokenizer

    with Printer(colour=color, quiet=quiet) as printer:
        report = run(
            data,
            scores,
            losses=loss,
            train=train,
            tokenizer=None if tokenizer is None else load_tokenizer(tokenizer),
            length=length,
            limit=limit,
            only=frozenset(trajectory or ()),
        )
        facts = report.to_dict()
        if output_format == "json":
            printer.json(facts)
        else:
            _print(printer, facts)


def _print(printer: Printer, facts: dict[str, Any]) -> None:
    printer.line(sampled_line(facts["by_source"], facts["n_steps"]))
    printer.strong(
        f"{facts['n_scored_tokens']:,} of {facts['n_action_tokens']:,} action tokens have scores, "
        f"in {facts['n_trajectories']:,} trajectories"
    )
    rows = [["checkpoint", _model(facts["model"])]]
    if facts["reference"] is not None:
        rows.append(["reference", _model(facts["reference"])])
    if facts["n_unscored"]:
        rows.append([f"{facts['n_unscored']:,} trajectories left out", "not in the scores"])
    printer.table(rows)
    printer.line()
    print_losses(printer, facts)


def _model(model: dict[str, Any]) -> str:
    return " ".join(str(model[name]) for name in ("name", "dtype") if name in model) or "unknown"
