"""What is not to be shown is nowhere: in no face, in no place, spelt in no way."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory
from tests.view_builders import (
    TOKENIZER,
    encoded,
    plain,
    read_page,
    strings_in,
    unpacked,
    unshown,
)
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.store.findings import StepFinding
from trajkit.view.beneath import with_beneath
from trajkit.view.columns import view_columns
from trajkit.view.drift import with_drift
from trajkit.view.fold import folded_rows
from trajkit.view.glyphs import BLOCK, HIDDEN
from trajkit.view.html.page import page_of
from trajkit.view.html.payload import payload_of
from trajkit.view.model import Line, rows, view_of
from trajkit.view.redact import Redaction, redacted
from trajkit.view.spans import span_rows
from trajkit.view.svg import svg_of
from trajkit.view.terminal import Face, annotated, footer, header

SECRETS = ("Tokyo", "東京", "4417  9", 'q"\\x', "é🦊")
"""None occurs in what a face says by itself, and none overlaps itself."""
secrets = st.sampled_from(SECRETS)
around = st.sampled_from(
    ["", "a", " ", "\n", "To", "kyo", "京", "\x1b", "<|im_end|>", '{"', "44", "é", "🦊", BLOCK]
)
hidden_texts = st.lists(secrets | around, max_size=8).map("".join)


@st.composite
def hidden_ids(draw) -> list[int]:
    """Return ids that spell secrets and pieces of them, merged or byte by byte."""
    parts = draw(st.lists(st.tuples(hidden_texts, st.booleans()), max_size=4))
    return [one for text, control in parts for one in encoded(text, control=control)]


@st.composite
def token_trajectories(draw) -> Any:
    """Return three steps: the second goes on from the first, the third keeps a part of it."""
    prompt, action, more, last = (draw(hidden_ids()) for _ in range(4))
    first = [*prompt, *action]
    keep = draw(st.integers(0, len(first)))
    return make_trajectory(
        [(prompt, action), ([*first, *more], last), ([*first[:keep], *more], action)],
        draw(hidden_texts),
        group_id=[draw(hidden_texts)] * 3,
        finish_reason=[draw(st.none() | hidden_texts) for _ in range(3)],
        exclude_reason=[draw(st.none() | hidden_texts) for _ in range(3)],
        rollout_logprobs=[None, [-1.0] * len(last), None],
    )


json_texts = hidden_texts | hidden_texts.map(lambda t: json.dumps({"q": t, t: [t]}))
json_values = st.recursive(
    json_texts | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(hidden_texts, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def message_trajectories(draw) -> Any:
    """Return a step of messages, or of texts, with secrets in any place."""
    message = st.dictionaries(
        st.sampled_from(["role", "content", "name"]) | hidden_texts, json_values, max_size=3
    )
    dumped = st.lists(message | json_texts, max_size=2).map(
        lambda m: json.dumps(m, ensure_ascii=draw(st.booleans()))
    )
    step = make_step(
        trajectory_id=draw(hidden_texts),
        messages_json=draw(st.none() | dumped | hidden_texts),
        text_delta=draw(st.none() | hidden_texts),
        action_message_json=draw(st.none() | dumped),
        action_text=draw(st.none() | hidden_texts),
        action_tokens=draw(st.none() | hidden_ids()),
        observation=draw(st.none() | hidden_texts),
    )
    return Trajectory(trajectory_id=step.trajectory_id, steps=(step,))


@st.composite
def found_in(draw, trajectory) -> Any:
    """Return a view of a trajectory with a finding at some tokens of its second step."""
    view = view_of(trajectory)
    sequence = view.sequences[0]
    place = sequence.steps[-1]
    if place.action_end == 0:
        return view
    start = draw(st.integers(0, place.action_end - 1))
    ids = tuple(sequence.token_ids[start : start + draw(st.integers(0, 3))].tolist())
    finding = StepFinding(
        step_index=place.step.step_index,
        route="ids",
        kind="ids-only",
        cause="UNEXPLAINED",
        token_start=start,
        n_tokens=len(ids),
        recorded_ids=ids,
        retokenized_ids=(7, 8),
        retokenized_text=draw(hidden_texts),
    )
    return with_drift(view, [finding])


def faces_of(view) -> list[str]:
    """Return every text that a face gives of a view, the packed data of a page too."""
    face, ascii_face = Face(width=100_000), Face(width=100_000, ascii=True, colour=True)
    found = []
    for each in (face, ascii_face):
        shown = folded_rows(view, rows(view, TOKENIZER), TOKENIZER, 4, 100)
        beneath = with_beneath(view, shown, TOKENIZER)
        found += [*header(view, "tiny", each), *annotated(beneath, each, has_ids=True)]
        found.append(footer(view, each))
    found += [cell for row in span_rows(view, rows(view, TOKENIZER)) for cell in row]
    found += strings_in(view_columns(view, TOKENIZER))
    page = page_of(payload_of([(view, rows(view, TOKENIZER))], TOKENIZER))
    found += [text for text in held_in(page) if text]
    marked = with_beneath(view, rows(view, TOKENIZER), TOKENIZER)
    drawing = ET.fromstring(svg_of([(view.trajectory.trajectory_id, [*marked])], 100_000))
    found += ["".join(group.itertext()) for group in drawing]
    return [plain(text) for text in found]


def held_in(page: str) -> list[str]:
    """Return every text that a page holds, and each of its lines; the frame is the same always."""
    title = html.unescape(page[page.index("<title>") : page.index("</title>")])
    inside = json.loads(page.split('id="held">')[1].split("</script>")[0])
    shared, trajectory = unpacked(inside["shared"]), unpacked(inside["trajectories"][0])
    texts = shared["cells"]["text"]
    cells = iter(trajectory["cells"])
    lines = ["".join(texts[next(cells)] for _ in range(n)) for n in trajectory["rows"]["n"]]
    return [title, *lines, *strings_in([shared, trajectory])]


def assert_nowhere(secret: str, texts: list[str]) -> None:
    data = secret.encode()
    for text in texts:
        assert secret not in text
        if re.search("[^ -~]", text):
            assert data not in unshown(text), text


@settings(max_examples=40)
@given(st.data(), token_trajectories(), secrets)
def test_no_face_shows_a_byte_sequence_that_matches(data, trajectory, secret):
    view = data.draw(found_in(trajectory))
    redaction = Redaction(patterns=(re.compile(re.escape(secret)),))
    assert_nowhere(secret, faces_of(redacted(view, TOKENIZER, redaction)))


@settings(max_examples=60)
@given(message_trajectories(), secrets)
def test_no_face_shows_a_message_that_matches(trajectory, secret):
    redaction = Redaction(patterns=(re.compile(re.escape(secret)),))
    assert_nowhere(secret, faces_of(redacted(view_of(trajectory), TOKENIZER, redaction)))


def touched(ids, secret) -> set[int]:
    """Return the positions of ids that hold any byte of a secret, found byte by byte."""
    owner = [i for i, piece in enumerate(TOKENIZER.pieces(ids)) for _ in piece]
    data, found = b"".join(TOKENIZER.pieces(ids)), set()
    at = data.find(secret.encode())
    while at >= 0:
        found |= set(owner[at : at + len(secret.encode())])
        at = data.find(secret.encode(), at + 1)
    return found


@given(token_trajectories(), secrets)
def test_the_id_of_a_token_that_holds_any_byte_of_a_match_is_nowhere(trajectory, secret):
    whole = view_of(trajectory)
    view = redacted(whole, TOKENIZER, Redaction(patterns=(re.compile(re.escape(secret)),)))
    columns = view_columns(view, TOKENIZER)
    for sequence, other, shown in zip(whole.sequences, view.sequences, columns, strict=True):
        hidden = touched(sequence.token_ids, secret)
        assert {int(at) for at in np.flatnonzero(other.token_ids == HIDDEN)} >= hidden
        for column in ("id", "text", "bytes"):
            assert all(shown["tokens"][column][at] is None for at in hidden)
    page = read_page(page_of(payload_of([(view, rows(view, TOKENIZER))], TOKENIZER)))
    shown_ids = {one for sequence in view.sequences for one in sequence.token_ids.tolist()}
    assert set(page.shared["ids"]) <= shown_ids - {HIDDEN}


@given(token_trajectories(), secrets)
def test_a_token_without_any_byte_of_a_match_is_shown(trajectory, secret):
    whole = view_of(trajectory)
    view = redacted(whole, TOKENIZER, Redaction(patterns=(re.compile(re.escape(secret)),)))
    anywhere = any(touched(sequence.token_ids, secret) for sequence in whole.sequences)
    for sequence, other in zip(whole.sequences, view.sequences, strict=True):
        is_hidden = other.token_ids == HIDDEN
        assert (other.token_ids == sequence.token_ids)[~is_hidden].all()
        assert anywhere or not is_hidden.any()
        n_kept = sequence.steps[0].start
        own = {int(at) for at in np.flatnonzero(is_hidden) if at >= n_kept}
        others = [each for each in whole.sequences if each is not sequence]
        if not any(touched(each.token_ids, secret) for each in others):
            assert own == {at for at in touched(sequence.token_ids, secret) if at >= n_kept}


@given(st.data(), token_trajectories() | message_trajectories())
def test_without_text_a_view_holds_kinds_and_numbers_and_not_one_id(data, trajectory):
    whole = data.draw(found_in(trajectory)) if view_of(trajectory).has_ids else view_of(trajectory)
    view = redacted(whole, None, Redaction(hides_text=True))
    page = read_page(page_of(payload_of([(view, rows(view, None))], None)))
    assert page.shared["ids"] == []
    assert {one for cell in page.shared["cells"]["ids"] for one in cell} <= {None}
    assert set("".join(page.shared["cells"]["text"])) <= {BLOCK}
    for sequence, other, shown in zip(
        whole.sequences, view.sequences, view_columns(view, None), strict=False
    ):
        assert (other.token_ids == HIDDEN).all()
        assert shown["tokens"]["action"] == sequence.action_mask.tolist()
        assert [s["kind"] for s in shown["spans"]] == [s.kind.value for s in sequence.spans]
    assert (view.n_tokens, view.n_action_tokens) == (whole.n_tokens, whole.n_action_tokens)


def test_segments_keep_their_kinds():
    step = make_step(
        prompt_delta=encoded("Tokyo"),
        action_tokens=encoded("Tokyo"),
        segments=(Segment(SegmentKind.PROMPT, 0, len(encoded("Tokyo"))),),
    )
    view = redacted(
        view_of(Trajectory(trajectory_id="t", steps=(step,))), None, Redaction(hides_text=True)
    )
    lines = [row for row in rows(view, None) if isinstance(row, Line)]
    assert [line.note.partition(",")[0] for line in lines] == ["prompt", "text"]
