"""The price of many trajectories: those without drift cost next to nothing to price."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trajkit.drift.findings import DriftFinding
from trajkit.drift.price.rules import Line, costs_of_lines, straight
from trajkit.drift.price.tokens import DriftPrice, Exposure, price_drift
from trajkit.records import Trajectory
from trajkit.tokenizer import Tokenizer


def price_all(
    checked: Iterable[tuple[Trajectory, Sequence[DriftFinding]]], tokenizer: Tokenizer | None
) -> DriftPrice:
    """Return the sum of `price_drift` over trajectories with their findings.

    Raises:
        InputError: as `price_drift`.
    """
    priced = DriftPrice()
    n_straight = n_steps = n_tokens = n_action = n_repeated = 0
    for trajectory, findings in checked:
        line = None if findings else straight(trajectory.steps)
        if line is None:
            priced += price_drift(trajectory, findings, tokenizer)
            continue
        n_straight += 1
        n_steps += line.n_steps
        n_tokens += line.n_tokens
        n_action += line.n_action
        n_repeated += line.n_repeated
    exposure = Exposure(
        n_trajectories=n_straight, n_steps=n_steps, n_tokens=n_tokens, n_action_tokens=n_action
    )
    lines = Line(n_straight, n_steps, n_tokens, n_action, n_repeated)
    return priced + DriftPrice(exposure=exposure, by_rule=costs_of_lines(lines, n_findings=0))
