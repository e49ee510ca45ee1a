"""`trajkit info`: what is in a dataset."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import typer

from trajkit.cli.console import Printer, sampled_line
from trajkit.cli.options import Colour, Data, Limit
from trajkit.safe.text import shorten


def info(
    data: Data,
    limit: Limit = None,
    output_format: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
    color: Colour = "auto",
) -> None:
    """Print what a dataset holds: counts, where its ids come from, how it was made, its ids."""
    with Printer(colour=color) as printer:
        facts = summary(data, limit)
        if output_format == "json":
            printer.json(facts)
            return
        n_steps, by_source = facts["n_steps"], facts["by_source"]
        printer.line(sampled_line(by_source, n_steps))
        sources = ", ".join(f"{n:,} {name}" for name, n in by_source.items() if n)
        rows = [
            ["table", f"{facts['table']} written by trajkit {facts['trajkit_version']}"],
            ["trajectories", f"{facts['n_trajectories']:,}"],
            ["steps", f"{n_steps:,} ({sources})"],
            ["action tokens", f"{facts['n_action_tokens']:,}"],
            ["rewards", f"{facts['n_rewarded']:,} of {facts['n_trajectories']:,} trajectories"],
            ["groups", f"{facts['n_groups']:,}"],
            ["tokenizer", str(facts["tokenizer_name"] or "none at ingest")],
        ]
        rows += [["input", _input(i)] for i in facts["inputs"]]
        printer.table(rows)
        printer.line()
        shown = facts["trajectories"][:20]
        printer.table(
            [["trajectory", "steps", "action tokens", "reward", "group"]]
            + [
                [
                    shorten(t["trajectory_id"], 60),
                    f"{t['n_steps']:,}",
                    f"{t['n_action_tokens']:,}",
                    "" if t["reward"] is None else f"{t['reward']:g}",
                    shorten(t["group_id"] or "", 40),
                ]
                for t in shown
            ],
            right="123",
            head=True,
        )
        if len(facts["trajectories"]) > len(shown):
            rest = len(facts["trajectories"]) - len(shown)
            printer.line(f"  … {rest:,} more (all: --format json)")


def _input(entry: dict[str, Any]) -> str:
    part = "" if entry["sha256"] else " read, the rest left by --limit"
    return f"{entry['file']} ({entry['n_bytes']:,} bytes{part})"


def summary(data: Any, limit: int | None) -> dict[str, Any]:
    """Return what `info` prints."""
    from trajkit.records import ActionSource
    from trajkit.store.read import open_dataset, read_trajectories

    dataset = open_dataset(data)
    by_source: Counter[str] = Counter()
    trajectories = []
    for trajectory in read_trajectories(dataset, limit=limit):
        by_source.update(step.action_source.value for step in trajectory.steps)
        trajectories.append(
            {
                "trajectory_id": trajectory.trajectory_id,
                "group_id": trajectory.group_id,
                "n_steps": len(trajectory.steps),
                "n_action_tokens": trajectory.n_action_tokens,
                "reward": trajectory.reward,
            }
        )
    metadata = dataset.metadata
    return {
        "schema": "trajkit.info/1",
        "table": metadata.get("schema"),
        "trajkit_version": metadata.get("trajkit_version"),
        "n_trajectories": len(trajectories),
        "n_steps": sum(t["n_steps"] for t in trajectories),
        "n_action_tokens": sum(t["n_action_tokens"] for t in trajectories),
        "n_rewarded": sum(t["reward"] is not None for t in trajectories),
        "n_groups": len({t["group_id"] for t in trajectories if t["group_id"] is not None}),
        "by_source": {source.value: by_source[source.value] for source in ActionSource},
        "tokenizer_name": metadata.get("tokenizer_name"),
        "tokenizer_fingerprint": metadata.get("tokenizer_fingerprint"),
        "options": metadata.get("options"),
        "inputs": metadata.get("inputs", []),
        "trajectories": trajectories,
    }
