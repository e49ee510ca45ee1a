"""What mask-view prints, to be read by a person: `cat` the files, with and without colour.

`pytest tests/golden --rewrite` writes them anew.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.tokenizer_builders import metaspace
from tests.view_builders import TOKENIZER, agent_trajectory, message_trajectory, read_page, unmarked
from trajkit.tokenizer import Tokenizer
from trajkit.view.against import compared
from trajkit.view.beneath import with_beneath
from trajkit.view.fold import folded_rows
from trajkit.view.html.page import page_of
from trajkit.view.html.payload import payload_of
from trajkit.view.model import rows, view_of
from trajkit.view.redact import Redaction, redacted
from trajkit.view.svg import svg_of
from trajkit.view.terminal import Face, annotated, body, comparison_head, footer, header

FACES = {
    "80": Face(width=80),
    "160": Face(width=160),
    "80-ansi": Face(width=80, colour=True),
    "160-ansi": Face(width=160, colour=True),
    "80-ascii": Face(width=80, ascii=True),
}


def drawn(trajectory, tokenizer, face) -> Any:
    """Return what the command prints for one trajectory."""
    view = view_of(trajectory)
    name = None if tokenizer is None else tokenizer.name
    lines = [*header(view, name, face), *body(rows(view, tokenizer), face), footer(view, face)]
    return "".join(line + "\n" for line in lines)


@pytest.mark.parametrize("face", FACES)
def test_an_agents_steps_look_as_they_did(face, golden):
    golden(f"agent-{face}.txt", drawn(agent_trajectory(), TOKENIZER, FACES[face]))


@pytest.mark.parametrize("face", FACES)
def test_a_text_only_record_looks_as_it_did(face, golden):
    golden(f"messages-{face}.txt", drawn(message_trajectory(), TOKENIZER, FACES[face]))


def test_what_is_not_to_be_shown_looks_as_it_did(golden):
    redaction = Redaction(patterns=(re.compile("14 mil|Tokyo|\\w+/7|agree"),))
    found = [
        annotated_lines(redacted(view_of(trajectory), TOKENIZER, redaction))
        for trajectory in (agent_trajectory(), message_trajectory())
    ]
    blank = redacted(view_of(agent_trajectory()), TOKENIZER, Redaction(hides_text=True))
    golden("redacted-80.txt", "\n".join([*found, annotated_lines(blank)]))


def test_another_tokenizers_cuts_look_as_they_did(golden):
    view = view_of(agent_trajectory())
    comparison = compared(view, TOKENIZER, Tokenizer(metaspace(prefix=True), "meta"))
    head = "".join(f"{line}\n" for line in comparison_head(comparison, FACES["80"]))
    golden("against-80.txt", head + annotated_lines(view, comparison))


def annotated_lines(view, comparison=None) -> Any:
    """Return what the command prints for one trajectory with something under its lines."""
    face = FACES["80"]
    shown = folded_rows(view, rows(view, TOKENIZER), TOKENIZER, 6, face.room)
    beneath = with_beneath(view, shown, TOKENIZER, None, comparison)
    lines = [*header(view, "tiny", face), *annotated(beneath, face), footer(view, face)]
    return "".join(line + "\n" for line in lines)


def test_ids_without_a_tokenizer_look_as_they_did(golden):
    golden("ids-80.txt", drawn(agent_trajectory(), None, FACES["80"]))


def test_a_page_holds_what_it_did(golden):
    views = [view_of(trajectory) for trajectory in (agent_trajectory(), message_trajectory())]
    page = page_of(payload_of([(view, rows(view, TOKENIZER)) for view in views], TOKENIZER))
    read = read_page(page)
    frame = page
    for source in read.sources:
        frame = frame.replace(source, "...")
    before, _, behind = frame.partition('id="held">')
    frame = before + 'id="held">...' + behind[behind.index("</script>") :]
    policy = re.sub("sha256-[^']*", "sha256-...", frame)
    held = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}\n"
        for part in (read.shared, *read.trajectories)
        for key, value in part.items()
    ]
    golden("page.html", f"{policy}\n\n{''.join(held)}")


def test_a_drawing_looks_as_it_did(golden):
    found = [
        (
            "count-people/7",
            unmarked(rows(view_of(agent_trajectory()), TOKENIZER, lambda step: step == 3)),
        )
    ]
    golden("agent.svg", svg_of(found, 80) + "\n")
