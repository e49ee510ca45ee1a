"""Thresholds: what they count, what is too much, and what is no threshold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajkit.drift.findings import DriftFinding, DriftKind, DriftReport, Route
from trajkit.drift.thresholds import parse_threshold
from trajkit.errors import UsageProblem


def found(step: int, kind: DriftKind, cause: str) -> DriftFinding:
    return DriftFinding(
        trajectory_id="t",
        step_index=step,
        route=Route.IDS,
        kind=kind,
        cause=cause,
        token_start=0,
        action_start=0,
        byte_start=0,
        recorded_ids=(),
        retokenized_ids=(),
        recorded_text=None,
        retokenized_text=None,
        n_action_tokens=0,
    )


def report(**given: Any) -> DriftReport:
    """Return a report of three regions in two of ten steps."""
    counts: dict[str, Any] = {
        "n_trajectories": 4,
        "n_drifted_trajectories": 1,
        "n_steps": 20,
        "n_checkable_steps": 10,
        "n_drifted_steps": 2,
        "n_action_tokens": 2000,
        "n_checkable_action_tokens": 1000,
        "n_drifted_action_tokens": 5,
        "findings": [
            found(0, DriftKind.TEXT, "eos-added"),
            found(0, DriftKind.TEXT, "UNEXPLAINED"),
            found(1, DriftKind.STRUCTURE, "eos-added"),
        ],
    }
    return DriftReport(**(counts | given))


@pytest.mark.parametrize(
    ("text", "n", "whole", "holds"),
    [
        ("trajectories>0", 1, 4, True),
        ("trajectories>25%", 1, 4, False),
        ("trajectories>=25%", 1, 4, True),
        ("steps>10%", 2, 10, True),
        ("steps>20%", 2, 10, False),
        ("steps", 2, 10, True),
        ("action-tokens>0.5%", 5, 1000, False),
        ("action-tokens >= 0.5 %", 5, 1000, True),
        ("action-tokens>0.499%", 5, 1000, True),
        ("action-tokens>4", 5, 1000, True),
        ("regions>2", 3, None, True),
        ("regions>3", 3, None, False),
        ("kind:text", 2, None, True),
        ("kind:text>2", 2, None, False),
        ("kind:text>9%", 1, 10, True),
        ("kind:text>10%", 1, 10, False),
        ("kind:ids-only", 0, None, False),
        ("kind:record", 0, None, False),
        ("cause:eos-added>1", 2, None, True),
        ("cause:UNEXPLAINED", 1, None, True),
        ("cause:eos-dropped", 0, None, False),
    ],
)
def test_a_threshold_is_held_against_its_count(text, n, whole, holds):
    measured = parse_threshold(text).measured(report())
    assert (measured.n, measured.whole, measured.holds) == (n, whole, holds)
    assert measured.to_dict() == {"threshold": text, "n": n, "of": whole, "holds": holds}


@pytest.mark.parametrize(
    "text",
    [
        *("", "steps>", "steps<1", "steps>-1", "steps>1e3", "steps>1%%", "tokens>0", "steps=0"),
        *("regions>1%", "kind:", "kind:nothing", "cause:nobody>1%", "kind:text>x", "steps>\n"),
        *("\x1b[2J", "steps>" + "9" * 400, "steps>1.", "kind:text;steps"),
    ],
)
def test_what_is_no_threshold_is_a_usage_error(text):
    with pytest.raises(UsageProblem) as caught:
        parse_threshold(text)
    assert caught.value.code == "U103"
    assert caught.value.hint


def test_a_share_of_nothing_is_zero():
    nothing = DriftReport()
    assert not parse_threshold("steps>0%").measured(nothing).holds
    assert parse_threshold("steps>=0%").measured(nothing).holds


@given(st.integers(0, 1000), st.integers(0, 100))
def test_shares_are_exact(n_drifted, limit):
    given_report = report(n_drifted_action_tokens=n_drifted)
    more = parse_threshold(f"action-tokens>{limit}%").measured(given_report)
    assert more.holds == (n_drifted * 100 > limit * 1000)
    reached = parse_threshold(f"action-tokens>={limit}%").measured(given_report)
    assert reached.holds == (n_drifted * 100 >= limit * 1000)


@given(st.text(max_size=30))
def test_any_text_is_a_threshold_or_a_usage_error(text):
    try:
        threshold = parse_threshold(text)
    except UsageProblem as problem:
        assert problem.code == "U103"  # noqa: PT017 - either outcome is right
    else:
        assert threshold.measured(report()).n >= 0
