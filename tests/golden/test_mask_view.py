"""What mask-view prints, to be read by a person: `cat` the files, with and without colour.

`pytest tests/golden --rewrite` writes them anew.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.view_builders import TOKENIZER, agent_trajectory, message_trajectory, read_page
from trajkit.view.html.page import page_of
from trajkit.view.html.payload import payload_of
from trajkit.view.model import rows, view_of
from trajkit.view.svg import svg_of
from trajkit.view.terminal import Face, body, footer, header

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
        ("count-people/7", rows(view_of(agent_trajectory()), TOKENIZER, lambda step: step == 3))
    ]
    golden("agent.svg", svg_of(found, 80) + "\n")
