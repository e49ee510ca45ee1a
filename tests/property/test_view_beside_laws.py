"""Findings, scores, another tokenizer and redaction: what stands beside the text is safe too."""

from __future__ import annotations

import json
import unicodedata
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_view_laws import OTHER, texts, token_views, widths
from tests.view_builders import (
    HIDDEN,
    TOKENIZER,
    assert_fits,
    assert_safe,
    read_page,
    strings_in,
)
from trajkit.store.findings import StepFinding
from trajkit.store.scores import StepNumbers
from trajkit.view.against import compared
from trajkit.view.beneath import with_beneath
from trajkit.view.columns import view_columns
from trajkit.view.drift import with_drift
from trajkit.view.fold import folded_rows
from trajkit.view.html.page import TAGS, page_of
from trajkit.view.html.payload import payload_of
from trajkit.view.lanes import LANES
from trajkit.view.model import Line, rows, view_of
from trajkit.view.redact import NOTHING, Redaction, redacted, redaction_of
from trajkit.view.spans import span_rows
from trajkit.view.svg import svg_of
from trajkit.view.terminal import (
    Face,
    annotated,
    comparison_head,
    drift_head,
    footer,
    header,
    scale,
)

numbers = st.sampled_from([0.0, -0.0, -1.0, 7.0, float("nan"), float("inf"), float("-inf"), 1e30])
redactions = st.sampled_from(
    [NOTHING, redaction_of(["[a-z]"]), redaction_of(["\x1b", "."]), Redaction(hides_text=True)]
)


def scored(draw: Any, step: Any) -> StepNumbers:
    """Return a checkpoint's numbers of an action, any of them missing or infinite."""
    n = step.n_action_tokens
    columns = [
        draw(
            st.none()
            | st.lists(numbers, min_size=n, max_size=n).map(
                lambda given: np.array(given, dtype=np.float32)
            )
        )
        for _ in ("logprobs", "entropy", "rank")
    ]
    return StepNumbers(logprobs=columns[0], entropy=columns[1], rank=columns[2])


@st.composite
def known_views(draw) -> Any:
    """Return a view of which all is known that may be, some of it not to be shown."""
    plain_view = draw(token_views())
    trajectory = plain_view.trajectory
    view = view_of(trajectory, {s.step_index: scored(draw, s) for s in trajectory.steps})
    findings = []
    for sequence in view.sequences:
        for place in sequence.steps:
            if not place.action_end:
                continue
            start = draw(st.integers(0, place.action_end))
            ids = sequence.token_ids[start : start + draw(st.integers(0, 3))].tolist()
            findings.append(
                StepFinding(
                    step_index=place.step.step_index,
                    route=draw(texts),
                    kind=draw(texts),
                    cause=draw(texts),
                    token_start=start,
                    n_tokens=len(ids),
                    recorded_ids=tuple(ids),
                    retokenized_ids=tuple(draw(st.lists(st.integers(0, 511), max_size=3))),
                    retokenized_text=draw(st.none() | texts),
                )
            )
    return redacted(with_drift(view, findings), TOKENIZER, draw(redactions))


@settings(max_examples=60)
@given(known_views(), widths, st.sampled_from(LANES), st.booleans(), st.integers(2, 6))
def test_no_line_beside_the_text_acts_on_the_terminal_or_is_too_wide(
    view, width, lane, ascii_only, n_kept
):
    face = Face(width=width, ascii=ascii_only, colour=True)
    comparison = compared(view, TOKENIZER, OTHER)
    shown = folded_rows(view, rows(view, TOKENIZER), TOKENIZER, n_kept, face.room)
    beneath = with_beneath(view, shown, TOKENIZER, lane, comparison)
    lines = [
        *header(view, "tiny", face),
        *scale(lane, face),
        *drift_head(view, face),
        *comparison_head(comparison, face),
        *annotated(beneath, face, has_ids=True),
        *footer(view, face).splitlines(),
    ]
    for line in lines:
        assert_safe(line)
        assert_fits(line, width)
        assert not ascii_only or line.isascii()
    for row in span_rows(view, rows(view, TOKENIZER)):
        assert_safe("".join(map(face.spell, row)))


@settings(max_examples=60)
@given(known_views())
def test_a_page_of_all_that_is_known_is_its_own_tags_and_safe_text(view):
    page = page_of(payload_of([(view, rows(view, TOKENIZER))], TOKENIZER))
    assert page.isascii()
    read = read_page(page)
    assert set(read.tags) == TAGS
    for text in strings_in([read.title, read.shared, read.trajectories]):
        assert not {c for c in text if unicodedata.category(c) in HIDDEN}, ascii(text)
    n_findings = sum(map(len, view.marks.values()))
    (entry,), (held,) = read.shared["index"], read.trajectories
    assert entry["n_findings"] == n_findings == sum(map(len, held["marks"]))
    json.dumps([read.shared, read.trajectories], allow_nan=False)


@settings(max_examples=60)
@given(known_views(), widths)
def test_a_drawing_marks_what_is_found_and_its_text_stays_exact(view, width):
    found = list(with_beneath(view, rows(view, TOKENIZER), TOKENIZER))
    text = svg_of([("t", found)], width)
    assert text.isascii()
    root = ET.fromstring(text)
    assert {c for e in root.iter() for c in e.text or "" if unicodedata.category(c) in HIDDEN} <= {
        "\n"
    }
    marks = [e for e in root.iter() if e.get("class") == "drift"]
    assert bool(marks) is any(beneath.strips for _, beneath in found)
    told = "".join(e.text or "" for e in root.iter() if e.get("class") == "told")
    assert told == "".join(f"drift {note}" for _, beneath in found for note in beneath.notes)


@settings(max_examples=60)
@given(known_views())
def test_json_has_a_number_or_null_for_each_token_and_every_finding_once(view):
    columns = view_columns(view, TOKENIZER)
    json.dumps(columns, allow_nan=False)
    assert sum(len(each["drift"]) for each in columns) == sum(map(len, view.marks.values()))
    for each in columns:
        assert each["lanes"].keys() <= {lane.name for lane in LANES}
        for values in each["lanes"].values():
            assert len(values) == each["n_tokens"]
            outside = zip(values, each["tokens"]["action"], strict=True)
            assert all(value is None for value, is_action in outside if not is_action)


@given(known_views())
def test_what_stands_beneath_a_line_is_as_long_as_the_line(view):
    for row, beneath in with_beneath(view, rows(view, TOKENIZER), TOKENIZER, LANES[0]):
        if isinstance(row, Line):
            for strip in beneath.strips:
                assert "".join(text for text, _, _ in strip.marks) == row.text
        for note in beneath.notes:
            assert_safe(note)
