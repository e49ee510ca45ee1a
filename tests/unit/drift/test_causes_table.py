"""The table of causes, as a whole."""

from __future__ import annotations

import re

from tests.cause_builders import compared, ids_of
from trajkit.drift.causes import DRIFT_CAUSES, UNEXPLAINED, Severity, cause_of
from trajkit.drift.difference import Difference, Side
from trajkit.drift.findings import DriftKind, Route


def test_names_are_unique_and_spelt_like_the_kinds():
    names = [cause.name for cause in DRIFT_CAUSES]
    assert len(set(names)) == len(names) >= 30
    for name in names:
        assert re.fullmatch(r"[a-z]\w*(-[a-z0-9]\w*)*", name)
    assert not set(names) & {kind.value for kind in DriftKind}


def test_each_cause_has_a_route_a_kind_and_a_whole_page():
    for cause in DRIFT_CAUSES:
        assert cause.routes <= set(Route)
        assert cause.routes
        assert cause.kinds <= set(DriftKind)
        assert cause.kinds
        assert cause.severity in Severity
        for text in (cause.why, cause.example, cause.fix):
            assert text[0] != " "
            assert text.endswith((".", ".'"))
        assert not cause.what.endswith(".")
        assert cause.test.__doc__
        assert cause.test.__doc__.startswith("Tell ")


def test_the_order_puts_what_needs_more_evidence_first():
    order = [cause.name for cause in DRIFT_CAUSES]
    for before, behind in (
        ("vocabulary-mismatch", "control-token-in-content"),
        ("unreachable-token", "non-canonical-sampling"),
        ("skip-special-tokens", "eos-dropped"),
        ("generation-prompt-mismatch", "reasoning-stripped"),
        ("library-version", "reasoning-injected"),
        ("tool-call-reserialisation", "observation-escaped"),
    ):
        assert order.index(before) < order.index(behind)


def test_equal_lists_have_no_difference_and_equal_regions_no_cause():
    ids = ids_of("qwen3", "HAVING a good time")
    assert compared("qwen3", ids, ids) == []
    (difference,) = compared("qwen3", ids, ids_of("qwen3", "HAVING a bad time"))
    tokenizer = difference.tokenizer
    side = Side(ids=ids, pieces=tokenizer.spell(ids), start=1, end=2)
    same = Difference(
        route=Route.PAIR,
        kind=DriftKind.TEXT,
        recorded=side,
        other=side,
        byte_start=0,
        action=(),
        tokenizer=tokenizer,
    )
    assert cause_of(same) == (UNEXPLAINED, {})
