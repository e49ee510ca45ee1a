"""The price of many is the sum of the prices of each, however little was looked at."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory
from trajkit.drift.findings import DriftFinding, DriftKind, Route
from trajkit.drift.price import DriftPrice, price_all, price_drift
from trajkit.records import Segment, SegmentKind, Trajectory


def summed(checked: Any) -> DriftPrice:
    total = DriftPrice()
    for trajectory, findings in checked:
        total += price_drift(trajectory, findings, None)
    return total


def found_in(trajectory: Trajectory) -> DriftFinding:
    step = trajectory.steps[0]
    return DriftFinding(
        trajectory_id=step.trajectory_id,
        step_index=0,
        route=Route.IDS,
        kind=DriftKind.TEXT,
        token_start=step.prompt_len or 0,
        action_start=0,
        byte_start=None,
        recorded_ids=(1,),
        retokenized_ids=(2,),
        recorded_text=None,
        retokenized_text=None,
        n_action_tokens=1,
    )


@st.composite
def checked(draw) -> Any:
    """Return trajectories with findings or without: lines, branches, breaks, empty actions."""
    ids = st.lists(st.integers(1, 3), max_size=4)
    found = []
    for _ in range(draw(st.integers(0, 4))):
        calls: list[tuple[list[int], list[int]]] = []
        is_line = draw(st.booleans())
        for _ in range(draw(st.integers(1, 5))):
            held = [] if not calls else [*calls[-1][0], *calls[-1][1]]
            keep = len(held) if is_line else draw(st.integers(0, len(held)))
            calls.append(([*held[:keep], 9, *draw(ids)], draw(ids)))
        reasons = draw(st.sampled_from([None, "abandoned"]))
        inserted = draw(st.booleans())
        trajectory = make_trajectory(
            calls,
            exclude_reason=[reasons, *[None] * (len(calls) - 1)],
            segments=[
                (Segment(SegmentKind.INSERTED, len(p) - 1, len(p)),) if inserted and a else None
                for p, a in calls
            ],
        )
        has_finding = draw(st.booleans()) and len(calls[0][1]) > 0
        found.append((trajectory, [found_in(trajectory)] if has_finding else []))
    return found


@given(checked())
def test_the_price_of_all_is_the_sum(pairs):
    assert price_all(pairs, None) == summed(pairs)


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (make_step(0, action_text="words"),),
        (make_step(0, prompt_delta=[1]),),
        (make_step(0, prompt_delta=[1], action_tokens=[]),),
    ],
)
def test_trajectories_without_ids_cost_what_they_cost_alone(steps):
    pairs: Any = [(Trajectory(trajectory_id="t", steps=steps), [])]
    assert price_all(pairs, None) == summed(pairs)


def test_a_line_of_three_steps_is_one_row_or_three():
    line = make_trajectory([([1], [2, 3]), ([1, 2, 3, 4], [5]), ([1, 2, 3, 4, 5, 6], [7, 8])])
    price = price_all([(line, [])], None)
    assert price.exposure.n_tokens == 8
    assert {name: cost.n_rows for name, cost in price.by_rule.items()} == {
        name: 3 if name == "row-per-step" else 1 for name in price.by_rule
    }
    assert price.by_rule["row-per-step"].n_repeated_tokens == 3 + 5
    assert price.by_rule["drop"].n_trained_tokens == 5
