"""Whatever the data hold, a view shows all of it, safely, on the right side, within the width."""

from __future__ import annotations

import json
import unicodedata
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step
from tests.tokenizer_builders import metaspace
from tests.view_builders import (
    HIDDEN,
    TOKENIZER,
    assert_fits,
    assert_safe,
    encoded,
    page_lines,
    plain,
    read_back,
    read_page,
    strings_in,
    unmarked,
    unshown,
)
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.tokenizer import Tokenizer
from trajkit.view.against import compared
from trajkit.view.beneath import with_beneath
from trajkit.view.cells import cells_of, with_ids
from trajkit.view.columns import view_columns
from trajkit.view.fold import folded_rows
from trajkit.view.glyphs import show_bytes
from trajkit.view.html.page import TAGS, page_of
from trajkit.view.html.payload import payload_of
from trajkit.view.lanes import LANES
from trajkit.view.model import LABEL, Line, Rule, rows, view_of
from trajkit.view.svg import svg_of
from trajkit.view.terminal import Face, annotated, body, footer, header

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
OTHER = Tokenizer(metaspace(prefix=True), "meta")


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


@given(token_views() | message_views(), st.booleans())
def test_cells_are_the_line_and_cover_its_tokens(view, with_text):
    tokenizer = TOKENIZER if with_text else None
    for line, ids in with_ids(view, rows(view, tokenizer)):
        if not isinstance(line, Line):
            continue
        cells = cells_of(line, ids, tokenizer)
        assert "".join(cell.text for cell in cells) == line.text
        if line.token_start is None:
            assert [cell.n_tokens for cell in cells] == [0]
            continue
        assert cells[0].start == line.token_start
        assert all(a.end == b.start for a, b in pairwise(cells))
        assert all(cell.n_tokens > 0 for cell in cells)


@given(token_views())
def test_a_cell_shows_what_its_own_tokens_spell(view):
    shown: dict[tuple[int, int, int], bytes] = {}
    spelt: dict[tuple[int, int, int], bytes] = {}
    for line, ids in with_ids(view, rows(view, TOKENIZER)):
        for cell in cells_of(line, ids, TOKENIZER) if isinstance(line, Line) else []:
            key = id(ids), cell.start, cell.end
            shown[key] = shown.get(key, b"") + unshown(cell.text)
            spelt[key] = b"".join(TOKENIZER.pieces(ids[cell.start : cell.end]))
    for key, data in spelt.items():
        # bytes of a token that a newline parts may stand on another line with other tokens
        assert shown[key] == data or data.find(b"\n") >= 0


@given(st.lists(token_views() | message_views(), max_size=3), st.booleans())
def test_a_page_is_its_own_tags_and_holds_the_exact_text(views, with_text):
    tokenizer = TOKENIZER if with_text else None
    page = page_of(payload_of([(view, rows(view, tokenizer)) for view in views], tokenizer))
    assert page.isascii()
    assert {c for c in page if unicodedata.category(c) in HIDDEN} <= {"\n"}
    read = read_page(page)
    assert set(read.tags) == TAGS
    assert read.links == []
    for text in strings_in([read.title, read.shared, read.trajectories]):
        assert not {c for c in text if unicodedata.category(c) in HIDDEN}, ascii(text)
    for number, view in enumerate(views):
        lines = [
            (row, ids)
            for row, ids in with_ids(view, rows(view, tokenizer))
            if isinstance(row, Line)
        ]
        assert page_lines(read, number) == [
            (
                line.is_action,
                line.token_start,
                line.text,
                [ids[cell.start : cell.end].tolist() for cell in cells_of(line, ids, tokenizer)],
            )
            for line, ids in lines
        ]


@given(st.lists(token_views() | message_views(), max_size=2), widths)
def test_a_drawing_is_its_own_tags_and_holds_the_exact_text(views, width):
    found = [(str(number), list(rows(view, TOKENIZER))) for number, view in enumerate(views)]
    text = svg_of([(name, unmarked(lines)) for name, lines in found], width)
    assert text.isascii()
    assert {c for c in text if unicodedata.category(c) in HIDDEN} <= {"\n"}
    root = ET.fromstring(text)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "g", "path", "circle", "text"}
    drawn = {True: "", False: ""}
    for row in list(root)[3:-1]:
        for element in row:
            look, *others = (element.get("class") or "none").split()
            is_text = element.tag.endswith("text") and "small" not in others
            if is_text and look in ("action", "context"):
                drawn[look == "action"] += element.text or ""
    for side, shown in drawn.items():
        lines = [row for _, every in found for row in every if isinstance(row, Line)]
        assert shown == "".join(line.text for line in lines if line.is_action is side)


@given(token_views() | message_views(), widths, st.sampled_from(LANES), st.booleans())
def test_what_stands_beneath_is_safe_fits_and_changes_no_line(view, width, lane, ascii_only):
    face = Face(width=width, ascii=ascii_only)
    comparison = compared(view, TOKENIZER, OTHER)
    found = with_beneath(view, rows(view, TOKENIZER), TOKENIZER, lane, comparison)
    drawn = list(annotated(found, face, has_ids=True))
    for line in drawn:
        assert_safe(line)
        assert_fits(line, width)
    rest = iter(drawn)
    assert all(line in rest for line in body(rows(view, TOKENIZER), face))


@given(token_views(), st.booleans())
def test_what_is_compared_adds_up_and_every_strip_is_as_long_as_its_line(view, is_same):
    other = TOKENIZER if is_same else OTHER
    found = compared(view, TOKENIZER, other)
    own = sum(s.end - s.start for q in view.sequences for s in q.spans if s.step_index is not None)
    assert found.n_recorded + sum(found.n_left_out.values()) == own
    assert found.n_same_ids <= found.n_same_borders <= min(found.n_recorded, found.n_other)
    assert found.n_common <= found.n_borders
    for line, ids in with_ids(view, rows(view, TOKENIZER)):
        if not isinstance(line, Line):
            continue
        for _, marks in found.strips(line, ids):
            assert "".join(text for text, _, _ in marks) == line.text


@given(token_views() | message_views(), st.integers(2, 6), st.integers(10, 60))
def test_folding_loses_no_action_and_says_how_much_it_takes(view, n_kept, width):
    whole = list(rows(view, TOKENIZER))
    found = list(folded_rows(view, whole, TOKENIZER, n_kept, width))
    is_action = [row for row in found if isinstance(row, Line) and row.is_action]
    assert is_action == [row for row in whole if isinstance(row, Line) and row.is_action]
    assert [row for row in found if isinstance(row, Rule) and row.step] == [
        row for row in whole if isinstance(row, Rule) and row.step
    ]
    labels = [row.label for row in whole if isinstance(row, Line) and row.label]
    assert [row.label for row in found if isinstance(row, Line) and row.label] == labels
    folds = [row for row in found if isinstance(row, Rule) and row.facts[0].startswith("…")]
    if not folds:
        assert found == whole
    for fold in folds:
        assert fold.facts[0].endswith(" folded")
