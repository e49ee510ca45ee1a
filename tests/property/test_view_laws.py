"""Whatever the data hold, a view shows all of it, safely, on the right side, within the width."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step
from tests.view_builders import (
    TOKENIZER,
    assert_fits,
    assert_safe,
    encoded,
    plain,
    read_back,
    unshown,
)
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.view.columns import view_columns
from trajkit.view.glyphs import show_bytes
from trajkit.view.model import LABEL, Line, Rule, rows, view_of
from trajkit.view.terminal import Face, body, footer, header

any_character = st.characters(exclude_categories=["Cs"])
hostile = st.sampled_from(
    [
        *("\x1b[2J", "\x1b]8;;http://x\x07", "\r", "\n", "\t", "\x00", "\x7f", "\x9b", "\u202e"),
        *("\u200b", "\u2028", "\u200d", "\ufeff", "\u00a0", "\u3000", "\u3164", " ", "  ", "▌ "),
        *("<|im_end|>", "⟦U+202E⟧", "⟪", "⟫", "⟧", "␊", "␣", "── step 9 ", "\\", "A|", "\ufffd"),
        *("日本語", "🙂", "👩\u200d👩\u200d👧", "🇲🇹", "👨🏽", "e\u0301", "❤️", "שלום", "word "),
    ]
)
texts = st.lists(hostile | any_character | st.text(any_character, max_size=30), max_size=12).map(
    "".join
)
widths = st.integers(30, 120)


@st.composite
def ids(draw) -> list[int]:
    """Return ids: of hostile text, byte by byte or as encoded, control ids, anything."""
    found: list[int] = []
    for part in draw(st.lists(texts | st.integers(0, 511), max_size=5)):
        if isinstance(part, int):
            found.append(part)
        else:
            found += encoded(part, control=draw(st.booleans()))
    return found


@st.composite
def token_views(draw) -> Any:
    """Return the view of two steps with segments, and its trajectory."""
    first, second = draw(ids()), draw(ids())
    border = draw(st.integers(0, len(second)))
    step = make_step(
        0,
        trajectory_id=draw(texts),
        group_id=draw(st.none() | texts),
        finish_reason=draw(st.none() | texts),
        exclude_reason=draw(st.none() | texts),
        prompt_delta=first,
        action_tokens=second,
        segments=(
            Segment(SegmentKind.PROMPT, 0, len(first)),
            Segment(SegmentKind.THINK, len(first), len(first) + border),
        ),
    )
    later = make_step(
        1,
        trajectory_id=step.trajectory_id,
        parent=step,
        prompt_keep=draw(st.sampled_from([step.sequence_len, step.prompt_len])),
        prompt_delta=draw(ids()),
        action_tokens=draw(ids()),
    )
    return view_of(Trajectory(trajectory_id=step.trajectory_id, steps=(step, later)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
messages = st.fixed_dictionaries(
    {}, optional={"role": json_values, "content": json_values, "name": texts}
).flatmap(lambda made: st.dictionaries(texts, json_values, max_size=2).map(lambda d: d | made))


@st.composite
def message_views(draw) -> Any:
    """Return the view of a text-only record: messages of any shape, written as JSON."""
    ascii_only = draw(st.booleans())
    step = make_step(
        trajectory_id=draw(texts),
        finish_reason=draw(st.none() | texts),
        messages_json=draw(
            st.none()
            | texts
            | st.lists(messages | json_values, max_size=3).map(
                lambda m: json.dumps(m, ensure_ascii=ascii_only)
            )
        ),
        text_delta=draw(st.none() | texts),
        action_message_json=draw(st.none() | messages.map(json.dumps)),
        action_text=draw(st.none() | texts),
        observation=draw(st.none() | texts),
    )
    return view_of(Trajectory(trajectory_id=step.trajectory_id, steps=(step,)))


def drawn(view, face) -> Any:
    """Return every line the command prints for a view."""
    return [
        *header(view, "tiny", face),
        *body(rows(view, TOKENIZER), face),
        *footer(view, face).splitlines(),
    ]


@given(token_views() | message_views(), widths, st.booleans())
def test_no_line_acts_on_the_terminal_or_is_wider_than_it_may_be(view, width, colour):
    for line in drawn(view, Face(width=width, colour=colour)):
        assert_safe(line)
        assert_fits(line, width)


@given(token_views() | message_views(), widths, st.booleans())
def test_a_terminal_that_cannot_show_unicode_gets_ascii(view, width, colour):
    for line in drawn(view, Face(width=width, colour=colour, ascii=True)):
        assert line.isascii()
        assert_safe(line)
        assert_fits(line, width)


@given(token_views() | message_views(), widths)
def test_colour_changes_nothing_but_colour(view, width):
    coloured = drawn(view, Face(width=width, colour=True))
    assert list(map(plain, coloured)) == drawn(view, Face(width=width))


def spans_of(sequence) -> Any:
    """Return (side, bytes) of each span that a view shows of a sequence."""
    return [
        (span.is_action, b"".join(TOKENIZER.pieces(sequence.token_ids[span.start : span.end])))
        for span in sequence.spans
        if span.step_index is not None
    ]


@given(token_views(), widths)
def test_every_byte_is_shown_on_its_own_side_at_every_width(view, width):
    lines = read_back(body(rows(view, TOKENIZER), Face(width=width)), 7)
    expected = [span for sequence in view.sequences for span in spans_of(sequence)]
    for side in (True, False):
        shown = b"".join(unshown(line.text) for line in lines if line.is_action is side)
        assert shown == b"".join(data for is_action, data in expected if is_action is side)


@given(token_views())
def test_a_line_says_at_which_token_it_begins(view):
    for sequence in view.sequences:
        only = replace(view, sequences=(sequence,))
        found = [row for row in rows(only, TOKENIZER) if isinstance(row, Line)]
        n_kept = sum(s.end for s in sequence.spans if s.step_index is None)
        owner = [
            index
            for index, piece in enumerate(TOKENIZER.pieces(sequence.token_ids))
            for _ in piece
            if index >= n_kept
        ]
        at = 0
        for line in found:
            data = unshown(line.text)
            assert owner[at] == line.token_start
            sides = {bool(sequence.action_mask[index]) for index in owner[at : at + len(data)]}
            assert sides == {line.is_action}
            at += len(data)
        assert at == len(owner)


@given(token_views())
def test_control_ids_and_only_they_stand_in_double_brackets(view):
    shown = [row.text for row in rows(view, TOKENIZER) if isinstance(row, Line)]
    n_control = sum(
        int(token_id) in TOKENIZER.control
        for sequence in view.sequences
        for span in sequence.spans
        if span.step_index is not None
        for token_id in sequence.token_ids[span.start : span.end]
    )
    assert sum(text.count("⟪") for text in shown) == n_control


@given(message_views(), widths)
def test_text_cannot_forge_where_a_message_begins_or_who_wrote_it(view, width):
    found = [row for row in rows(view, TOKENIZER) if isinstance(row, Line)]
    shown = read_back(body(found, Face(width=width)), LABEL)
    labelled = [line for line in found if line.label.strip()]
    assert [line.is_action for line in shown if line.label] == [line.is_action for line in labelled]
    assert len([row for row in rows(view, TOKENIZER) if isinstance(row, Rule)]) == 1


@given(token_views(), st.booleans())
def test_columns_are_of_equal_length_and_spans_partition_them(view, with_tokenizer):
    tokenizer = TOKENIZER if with_tokenizer else None
    for sequence, shown in zip(view.sequences, view_columns(view, tokenizer), strict=True):
        columns = {k: v for k, v in shown["tokens"].items() if v is not None}
        assert {len(column) for column in columns.values()} == {shown["n_tokens"]}
        assert shown["tokens"]["id"] == sequence.token_ids.tolist()
        at = 0
        for span in shown["spans"]:
            assert span["start"] == at < span["end"]
            at = span["end"]
            inside = slice(span["start"], span["end"])
            assert set(shown["tokens"]["kind"][inside]) == {span["kind"]}
            assert set(shown["tokens"]["action"][inside]) == {span["action"]}
            assert set(shown["tokens"]["step"][inside]) == {span["step"]}
        assert at == shown["n_tokens"]
        assert sum(shown["tokens"]["action"]) == shown["n_action_tokens"]
        if with_tokenizer:
            data = bytes.fromhex("".join(shown["tokens"]["bytes"]))
            assert data == b"".join(TOKENIZER.pieces(sequence.token_ids))


@given(st.binary(max_size=60) | texts.map(str.encode))
def test_shown_bytes_can_be_read_back(data):
    assert unshown(show_bytes(data)) == data
