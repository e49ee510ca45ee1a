"""How losses are shown: the same table whether a model was asked or a file of its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trajkit.cli.console import Printer

Losses = Annotated[
    list[str] | None,
    typer.Option(
        "--loss",
        metavar="PRESET",
        help="A paper's (grpo), a system's (verl@2026-08/token-mean; verl for all of its), or all; "
        "repeatable. Default: the papers'.",
    ),
]
Train = Annotated[
    str,
    typer.Option(
        "--train",
        metavar="POLICY",
        help="What counts: action, last-step, answer, no-think, rewarded, observation, "
        "action-observation or all.",
    ),
]
OwnTokenizer = Annotated[
    Path | None,
    typer.Option(
        "-t",
        "--tokenizer",
        metavar="PATH",
        help="The data's tokenizer (folder or tokenizer.json): tells thoughts from answers for "
        "--train answer and no-think. Default of score: the checkpoint's.",
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--length",
        metavar="N",
        min=1,
        help="What presets divide by that divide by a constant: the longest response.",
    ),
]


def print_losses(printer: Printer, facts: dict[str, Any]) -> None:
    """Write the table of losses, and what they were made of."""
    from trajkit.training import policy_named

    rows = [["loss", "value", "numerator", "denominator", "tokens", ""]]
    for name, value in facts["losses"].items():
        keys = ("value", "numerator", "denominator", "n_tokens")
        rows.append([name, *(number(value[key]) for key in keys), _remark(value)])
        rows += [_part(part) for part in value.get("parts", ())]
    printer.table(rows, right="1234", head=True)
    if facts["train"] != "action":
        printer.line(f"  counted: {facts['n_counted_tokens']:,} tokens (--train {facts['train']})")
        if policy_named(facts["train"]).trains_context and not facts["n_counted_context"]:
            printer.line(
                "  none of them is context: the data do not say what the environment wrote"
            )
    source = facts["advantage_source"]
    if source is not None:
        printer.line(f"  advantages: {_ADVANTAGES[source]}")
    ratio = facts["ratio_source"]
    if ratio is not None:
        printer.line(f"  ratios: {_RATIOS[ratio]}")
    exact = facts["exact_kl_to_reference"]
    if exact is not None:
        printer.line(
            f"  exact KL to the reference model, nats a token: {number(exact['mean'])} "
            f"({exact['n']:,} tokens)"
        )
    kl = facts["kl_to_reference"]
    if kl is not None:
        means = ", ".join(f"{name} {number(kl[name])}" for name in ("k1", "k2", "k3"))
        printer.line(f"  KL to the reference model, nats a token: {means} ({kl['n']:,} tokens)")


def number(value: float | None) -> str:
    """Return a number as a person reads it; null stays null."""
    if value is None:
        return "null"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


_ADVANTAGES = {
    "recorded": "as recorded",
    "group_id": "rewards within each group_id",
    "first_prompt": "rewards among trajectories with the same first prompt",
    "group_id+first_prompt": "rewards within group_id, else the same first prompt",
}
_RATIOS = {
    "old_logprobs": "to the trainer's recorded log-probs (old_logprobs)",
    "rollout_logprobs": "to the sampler's log-probs: no old_logprobs of a trainer everywhere",
}
_INPUTS = {
    "logprobs": "a log-prob",
    "rollout_logprobs": "a comparable log-prob of the sampler",
    "old_logprobs": "a log-prob of the trainer",
    "ref_logprobs": "a log-prob of the reference model",
    "exact_kl": "an exact KL to the reference model",
    "entropy": "an entropy",
    "action_entropy": "an entropy of the action they answer",
    "group_reward": "a reward in their group",
    "advantages": "an advantage",
    "returns": "a reward",
}


def _part(part: dict[str, Any]) -> list[str]:
    """Return the row of one part: its name, with the weight that the loss takes it with."""
    weight = "" if part["weight"] == 1.0 else f"{part['weight']:+g} x "
    keys = ("value", "numerator", "denominator", "n_tokens")
    return [f"  {weight}{part['name']}", *(number(part[key]) for key in keys), ""]


def _remark(value: dict[str, Any]) -> str:
    if value["why_null"]:
        return str(value["why_null"])
    left_out = [f"{n:,} tokens without {_INPUTS[name]}" for name, n in value["left_out"].items()]
    return "; ".join([*left_out, *([value["remark"]] if value.get("remark") else [])])
