"""What `trajkit score` says for people, of a run and of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trajkit.cli.console import Printer, sampled_line
from trajkit.cli.loss_table import number, print_losses
from trajkit.safe.text import shorten, shown_bytes, visible


def pace(effort: dict[str, Any]) -> str:
    """Return how fast ids are read, and the most memory that was in use, where known."""
    speed, peak = effort["tokens_per_second"], effort["peak_memory_bytes"]
    parts = [
        *([] if speed is None else [f"{speed:,.{_digits(speed)}f} tokens/s"]),
        *([] if peak is None else [f"{shown_bytes(peak)} {_MEMORY[effort['peak_memory_of']]}"]),
    ]
    return ", ".join(parts)


_MEMORY = {"gpu": "of the GPU's memory at most", "process": "of memory at most"}


def _digits(speed: float) -> int:
    return 1 if speed < _SLOW else 0


_SLOW = 10


def _print_effort(printer: Printer, facts: dict[str, Any]) -> None:
    """Write what scoring took, if this process scored anything."""
    effort, n_all = facts["effort"], facts["n_forwarded_tokens"] + facts["n_ref_forwarded_tokens"]
    n_here = effort["n_tokens"]
    if n_here:
        read = "tokens read" if n_here == n_all else f"of {n_all:,} tokens read here"
        printer.line()
        printer.line(f"{n_here:,} {read} in {_seconds(effort['seconds'])}: {pace(effort)}")


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _named(model: dict[str, Any]) -> str:
    added = model["adapter"]
    return visible(model["name"] if added is None else f"{model['name']} + {added}")


def print_report(printer: Printer, facts: dict[str, Any]) -> None:
    """Write the report of a run, given in its JSON form."""
    printer.line(sampled_line(facts["by_source"], facts["n_steps"]))
    printer.strong(
        f"Scored {facts['n_scored_tokens']:,} of {facts['n_action_tokens']:,} action tokens in "
        f"{facts['n_scored_trajectories']:,} of {facts['n_trajectories']:,} trajectories"
    )
    model = facts["model"]
    forwards = (
        f"{facts['n_forwards']:,} of {facts['n_forwarded_tokens']:,} tokens in all "
        f"(one a sequence: {facts['n_row_tokens']:,}, one a step: {facts['n_raw_tokens']:,})"
    )
    why_not = facts["sharing"]["why_not"]
    sharing = [["not shared", f"each sequence is read by itself: {why_not}"]] if why_not else []
    checked = "tokenizer checked" if facts["tokenizer_checked"] else "tokenizer not compared"
    printer.table(
        [
            [
                "checkpoint",
                f"{_named(model)} {model['dtype']} on {model['device']}, {checked}",
            ],
            *_reference(facts),
            ["forwards", forwards],
            *sharing,
            *_left_out(facts),
        ]
    )
    logprob = facts["logprob"]
    printer.line()
    printer.table(
        [
            ["log-prob", "nats"],
            ["sum", number(logprob["sum"])],
            ["token mean", number(logprob["token_mean"])],
            ["sequence mean", number(logprob["sequence_mean"])],
        ],
        right="1",
        head=True,
    )
    printer.line()
    print_losses(printer, facts)
    printer.line()
    _print_mismatch(printer, facts)
    for one in facts["exceeded"]:
        printer.line(f"--{one['rule']}: {_EXCEEDED[one['rule']](one)}")
    _print_effort(printer, facts)
    if facts.get("out"):
        printer.line(f"Wrote {visible(facts['out'])}")


def _reference(facts: dict[str, Any]) -> list[list[str]]:
    """Return a row for the reference model, if one was asked."""
    model = facts["reference"]
    if model is None:
        return []
    read = f"{facts['n_ref_forwarded_tokens']:,} tokens read"
    return [["reference", f"{model['name']} {model['dtype']} on {model['device']}, {read}"]]


_EXCEEDED: dict[str, Callable[[dict[str, Any]], str]] = {
    "require-sampled": lambda one: f"{one['found']:,.0f} scored steps are not sampled",
    "max-delta": lambda one: (
        f"max |Δ| {_small(one['found'])} is not known to be at most {one['limit']:g} nats"
        if one["found"] is None
        else f"max |Δ| {_small(one['found'])} exceeds {one['limit']:g} nats"
    ),
}
_MAX_BREAKS = 5


def print_plan(printer: Printer, facts: dict[str, Any]) -> None:
    """Write the forecast of a run, given in its JSON form."""
    printer.line(sampled_line(facts["by_source"], facts["n_steps"]))
    n_context = facts["n_context_tokens"]
    context = f" and {n_context:,} context tokens" if n_context else ""
    printer.strong(
        f"Would score {facts['n_action_tokens']:,} action tokens{context} of "
        f"{facts['n_scored_steps']:,} steps in {facts['n_trajectories']:,} trajectories"
    )
    printer.table(
        [
            ["read", "tokens", ""],
            *(
                [how, f"{facts[key]:,}", _times_fewer(facts["n_raw_tokens"], facts[key])]
                for how, key in (
                    ("with one pass a step", "n_raw_tokens"),
                    ("with one pass a sequence", "n_row_tokens"),
                    ("with prefixes shared", "n_forwarded_tokens"),
                )
            ),
        ],
        right="12",
        head=True,
    )
    left_out = _left_out({**facts, **_PLANNED})
    if left_out:
        printer.table(left_out)
    breaks = facts["breaks"]
    printer.line()
    if not breaks:
        printer.line("no prompt leaves the middle of its parent's prompt or action")
        return
    printer.line(
        f"prompts that leave the middle of their parent's ids: {len(breaks):,}, for which "
        f"tokens are read again: {facts['n_read_again']:,}"
    )
    dearest = sorted(breaks, key=lambda one: -one["n_read_again"])
    rows = [
        [
            shorten(one["trajectory_id"], 60),
            *(f"{one[key]:,}" for key in ("step_index", "n_kept", "n_lost", "n_read_again")),
        ]
        for one in dearest[:_MAX_BREAKS]
    ]
    printer.table(
        [["trajectory", "step", "kept", "lost", "read again"], *rows], right="1234", head=True
    )
    if len(breaks) > _MAX_BREAKS:
        printer.line(f"  and {len(breaks) - _MAX_BREAKS:,} more (--format json lists all)")


_PLANNED = {"n_first_token": 0, "n_neg_inf": 0, "n_without_reference": 0, "hint": None}
"""What a run counts and a plan does not."""


def _times_fewer(n_raw: int, n: int) -> str:
    return f"{n_raw / n:.1f}x fewer" if n and n != n_raw else ""


_STATUS = {
    "no_action": "no ids were recorded",
    "no_prompt": "no prompt was recorded",
    "excluded": "excluded by the data",
    "media": "in trajectories with media",
    "nonfinite": "in trajectories whose logits are NaN or infinite",
    "too_long": "in trajectories longer than the model's positions",
}


def _left_out(facts: dict[str, Any]) -> list[list[str]]:
    """Return a row for each reason why steps or tokens have no number."""
    hints = {"nonfinite": facts["hint"]}
    rows = [
        [
            f"{facts['by_status'][status]:,} steps left out",
            "; ".join(filter(None, (why, hints.get(status)))),
        ]
        for status, why in _STATUS.items()
        if facts["by_status"].get(status)
    ]
    if facts["n_without_reference"]:
        n = f"{facts['n_without_reference']:,} without reference"
        rows.append([n, "trajectories too long for it, or whose logits are NaN or infinite"])
    for key, why in (
        ("n_first_token", "tokens begin their sequence: nothing stands before them"),
        ("n_neg_inf", "tokens have probability 0 under the checkpoint: log-prob −inf"),
    ):
        if facts[key]:
            rows.append([f"{facts[key]:,}", why])
    return rows


_HALF = ("bf16", "fp16")


def _print_mismatch(printer: Printer, facts: dict[str, Any]) -> None:
    """Write how far the sampler's log-probs are, and beside it how far two ways to score are."""
    mismatch = facts["mismatch"]
    rows = [*([["scored − recorded", *_gap(mismatch)]] if mismatch else []), *_noise(facts)]
    against = "against the sampler's log-probs"
    if mismatch is None:
        printer.line("sampler: no log-probs to compare with")
        against = "the same, scored otherwise"
    if rows:
        head = [against, "mean |Δ|", "p99 |Δ|", "max |Δ|", "k3", "tokens"]
        printer.table([head, *rows], right="12345", head=True)
    wide = facts["dtype_noise"]
    if facts["noise_floor"] is None:
        printer.line("  the noise floor was not measured (--recheck 0)")
    elif wide["why_null"] is not None and facts["model"]["dtype"] in _HALF:
        printer.line(f"  not held against {wide['against']}: {visible(wide['why_null'])}")
    if mismatch is not None:
        _print_remarks(printer, mismatch)


def _noise(facts: dict[str, Any]) -> list[list[str]]:
    """Return a row for each way in which a sample was scored again."""
    floor, wide = facts["noise_floor"], facts["dtype_noise"]
    rows = [["noise floor (scored step by step)", *_gap(floor)]] if floor else []
    if wide["why_null"] is None:
        ways = f"{facts['model']['dtype']} against {wide['against']}"
        rows.append([f"noise floor ({ways})", *_gap(wide)])
    return rows


def _print_remarks(printer: Printer, mismatch: dict[str, Any]) -> None:
    """Write the ratio's figures, where the distance lies, and what is in no figure."""
    if mismatch["ess"] is not None:
        printer.line(
            f"  ratio: mean {number(mismatch['mean_ratio'])}, ESS {_share(mismatch['ess'])}, "
            f"chi² {_small(mismatch['chi2'])}, outside [0.8, 1.2] "
            f"{_share(mismatch['share_outside'])}"
        )
    for title, rows in (("part of the action", _by_kind(mismatch)), ("step", _by_step(mismatch))):
        if len(rows) > 1:
            printer.line()
            head = [title, "mean |Δ|", "p99 |Δ|", "max |Δ|", "k3", "tokens"]
            printer.table([head, *rows], right="12345", head=True)
    if mismatch["worst"]:
        printer.line()
    for at, worst in enumerate(mismatch["worst"][:_MAX_WORST]):
        printer.line(
            f"  {'      ' if at else 'worst:'} {shorten(worst['trajectory_id'], 60)} "
            f"step {worst['step_index']} action token {worst['action_position']}: scored "
            f"{_figure(worst['logprob'])}, recorded {_figure(worst['rollout_logprob'])}"
        )
    if mismatch["n_not_recorded"]:
        printer.line(f"  {mismatch['n_not_recorded']:,} tokens have no recorded log-prob")
    for reason, n_tokens in mismatch["not_comparable"].items():
        printer.line(f"  {n_tokens:,} tokens are not comparable: {reason}")


_MAX_WORST = 3


def _by_kind(mismatch: dict[str, Any]) -> list[list[str]]:
    return [[kind, *_gap(gap)] for kind, gap in mismatch["by_kind"].items()]


def _by_step(mismatch: dict[str, Any]) -> list[list[str]]:
    def named(one: dict[str, Any]) -> str:
        first, last = one["first"], one["last"]
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"

    return [[named(one), *_gap(one)] for one in mismatch["by_step"]]


def _figure(value: float | None) -> str:
    return "−inf" if value is None else f"{value:.4f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _gap(gap: dict[str, Any]) -> list[str]:
    numbers = [_small(gap[key]) for key in ("mean_abs", "p99_abs", "max_abs", "k3")]
    return [*numbers, f"{gap['n']:,}"]


def _small(value: float | None) -> str:
    return "null" if value is None else f"{value:.2e}"
