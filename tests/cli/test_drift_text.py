"""Lines and rows that drift-check shows: bars, edges of ids, windows; pure functions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajkit.cli.drift_text import group_rows, histogram, of, window_lines, window_rows
from trajkit.drift.findings import UNEXPLAINED, DriftFinding, DriftKind, Route
from trajkit.drift.price import DriftPrice, Exposure
from trajkit.drift.ranking import ranked
from trajkit.drift.routes.record import SELF_CHECKS


def found(**given: Any) -> DriftFinding:
    fields: dict[str, Any] = {
        "trajectory_id": "t",
        "step_index": 2,
        "route": Route.IDS,
        "kind": DriftKind.TEXT,
        "token_start": 9,
        "action_start": 1,
        "byte_start": 4,
        "recorded_ids": (7, 8),
        "retokenized_ids": (9,),
        "recorded_text": "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
        "retokenized_text": "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
        "n_action_tokens": 2,
        "recorded_edges": (2, 5),
        "retokenized_edges": (5,),
    }
    return DriftFinding(**(fields | given))


def priced(
    by_step: dict[int, int], by_tenth: dict[int, int] | None = None, outside: int = 0
) -> Any:
    return DriftPrice(
        exposure=Exposure(
            by_first_step=Counter(by_step),
            by_first_decile=Counter(by_tenth or {}),
            n_first_outside=outside,
        )
    )


def test_bars_stand_for_counts_and_a_dot_for_none():
    line = histogram(priced({0: 8, 2: 1}, {9: 3}, outside=6), is_ascii=False)
    assert (
        line
        == "first drift by step 0 █·▁ 2   by tenth of the action ·········█   outside an action 6"
    )
    assert histogram(priced({0: 8, 2: 1}), is_ascii=True) == "first drift by step 0 @.: 2"
    assert histogram(priced({}), is_ascii=True) == ""


def test_many_steps_share_bars():
    line = histogram(priced({0: 1, 399: 2}), is_ascii=True)
    assert line.startswith("first drift by step 0 ")
    assert line.endswith(" 399, 10 a bar")
    assert len(line.split()[5]) == 40


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 10**9), min_size=1), st.booleans())
def test_any_histogram_is_one_short_line(by_step, is_ascii):
    line = histogram(priced(by_step), is_ascii=is_ascii)
    assert len(line) < 100
    assert line.isprintable()
    assert line.isascii() or not is_ascii


def test_the_bytes_of_each_id_stand_apart():
    rows = window_rows(found(), is_ascii=False)
    assert rows == [
        ["recorded", '"ca│f\N{LATIN SMALL LETTER E WITH ACUTE}"', "[7, 8]"],
        ["re-encoded", '"caf\N{LATIN SMALL LETTER E WITH ACUTE}"', "[9]"],
    ]
    assert window_rows(found(), is_ascii=True)[0][1].startswith('"ca|f')


def test_an_id_that_ends_inside_a_character_shows_its_bytes():
    rows = window_rows(found(recorded_edges=(4, 5)), is_ascii=True)
    assert rows[0][1] == '"caf\\xc3|\\xa9"'


def test_a_text_whose_bytes_are_not_known_has_no_edges():
    rows = window_rows(found(recorded_text="caf\ufffd", recorded_edges=(2, 6)), is_ascii=True)
    assert rows[0][1] == '"caf\ufffd"'
    assert window_rows(found(recorded_text=None), is_ascii=True)[0][1] == ""


def test_long_regions_are_cut_and_say_so():
    many = found(
        recorded_ids=tuple(range(20)),
        recorded_text="x" * 20,
        recorded_edges=tuple(range(1, 21)),
        evidence={"cut": True, "n_recorded": 900, "n_other": 1},
    )
    (side, text, ids), _ = window_rows(many, is_ascii=True)
    assert (side, text) == ("recorded", '"x|x|x|x|x|x|x|x…"')
    assert ids == "[0, 1, 2, 3, 4, 5, 6, 7, … 900 ids]"


def test_logged_text_has_no_ids_and_a_prompt_may_go_on():
    logged = found(route=Route.SELF, kind=DriftKind.RECORD, retokenized_ids=())
    assert window_rows(logged, is_ascii=True)[1][2] == ""
    broken = found(
        route=Route.CHAIN, retokenized_ids=(), evidence={"next_ids": [4], "next_text": "\n"}
    )
    assert window_rows(broken, is_ascii=True)[1] == [
        *("next prompt", 'nothing here; it goes on with "␊"', "[4]"),
    ]


def test_a_window_says_where_it_is():
    assert window_lines(found(trajectory_id="a\x1bb", cause="eos-added")) == [
        "a␛b step 2: text by route ids, eos-added",
        "  at token 9, action token 1, byte 4",
    ]
    bare = window_lines(found(action_start=None, byte_start=None, evidence={"also": ["join"]}))
    assert bare == ["t step 2: text by route ids (also join)", "  at token 9"]


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0 of 0"), (1, 3, "1 of 3 (33.3%)"), (1000, 2000, "1,000 of 2,000 (50.0%)")],
)
def test_a_count_stands_with_its_whole(part, whole, text):
    assert of(part, whole) == text


def test_a_broken_record_is_named_by_its_cause_where_that_is_known():
    logged = [
        found(kind=DriftKind.RECORD, cause=cause, evidence={"check": "text"})
        for cause in ("newline-translation", UNEXPLAINED)
    ]
    rows = {row[0]: row[-1] for row in group_rows(ranked(logged))[1:]}
    assert rows == {
        "check text": SELF_CHECKS["text"],
        "newline-translation": f"{SELF_CHECKS['text']}: line ends were rewritten",
    }
