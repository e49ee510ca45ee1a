"""Findings by cause: the gravest first, each with its worst."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trajkit.drift.causes import DRIFT_CAUSES, UNEXPLAINED, Severity
from trajkit.drift.findings import DriftFinding, DriftKind, Route
from trajkit.drift.ranking import ranked, severity_name, severity_of


def found(cause: str, kind: DriftKind, n: int, **evidence: Any) -> DriftFinding:
    return DriftFinding(
        trajectory_id="t",
        step_index=0,
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
        n_action_tokens=n,
        evidence=evidence,
    )


def test_what_damages_more_stands_before_what_is_more():
    groups = ranked(
        [
            found("non-canonical-sampling", DriftKind.IDS_ONLY, 50),
            found("eos-added", DriftKind.STRUCTURE, 0),
            found("invalid-utf8", DriftKind.TEXT, 1),
            found("invalid-utf8", DriftKind.TEXT, 3),
        ]
    )
    assert [(g.cause, g.n_regions, g.n_action_tokens) for g in groups] == [
        ("eos-added", 1, 0),
        ("invalid-utf8", 2, 4),
        ("non-canonical-sampling", 1, 50),
    ]
    assert groups[1].worst.n_action_tokens == 3
    assert groups[0].to_dict()["severity"] == "structure"
    assert [group.code for group in groups] == [group.cause for group in groups]


def test_what_is_unexplained_is_told_by_kind_and_a_record_by_its_check():
    groups = ranked(
        [
            found(UNEXPLAINED, DriftKind.TEXT, 1),
            found(UNEXPLAINED, DriftKind.IDS_ONLY, 1),
            found(UNEXPLAINED, DriftKind.RECORD, 1, check="stop"),
            found(UNEXPLAINED, DriftKind.RECORD, 9, check="text"),
        ]
    )
    assert [(group.kind, group.check) for group in groups] == [
        ("record", "text"),
        ("record", "stop"),
        ("text", None),
        ("ids-only", None),
    ]
    assert [group.code for group in groups] == ["record", "record", "text", "ids-only"]


def test_severities_are_those_of_the_table_of_causes():
    for cause in DRIFT_CAUSES:
        assert severity_of(cause.name, DriftKind.TEXT) is cause.severity
    assert severity_name(Severity.ACTION_IDS) == "action ids"


_FOUND = st.builds(
    found,
    st.sampled_from([UNEXPLAINED, *(cause.name for cause in DRIFT_CAUSES)]),
    st.sampled_from([kind for kind in DriftKind if kind is not DriftKind.RECORD]),
    st.integers(0, 9),
)


@given(st.lists(_FOUND, max_size=20))
def test_groups_hold_every_finding_once(findings):
    groups = ranked(findings)
    assert Counter({(g.cause, g.kind): g.n_regions for g in groups}) == Counter(
        (f.cause, f.kind) for f in findings
    )
    assert sum(group.n_action_tokens for group in groups) == sum(
        found.n_action_tokens for found in findings
    )
    order = [-group.severity for group in groups]
    assert order == sorted(order)
    for group in groups:
        assert group.worst in findings
