import re
from importlib.resources import files

import pytest

from tests.builders import make_step
from tests.view_builders import TOKENIZER, agent_trajectory, read_page
from trajkit.records import Trajectory
from trajkit.safe.html import source_hash
from trajkit.view.html.page import SCRIPTS, TAGS, page_of
from trajkit.view.html.payload import payload_of
from trajkit.view.model import rows, view_of


def page(*trajectories):
    views = [view_of(trajectory) for trajectory in trajectories]
    return page_of(payload_of([(view, rows(view, TOKENIZER)) for view in views], TOKENIZER))


def source(name):
    return files("trajkit.view.html").joinpath(name).read_text(encoding="utf-8")


def test_a_page_has_the_listed_elements_and_loads_nothing():
    text = page(agent_trajectory())
    assert text.isascii()
    read = read_page(text)
    assert set(read.tags) == TAGS
    assert read.links == []
    assert re.findall(r"https?:|url\(|@import", text) == []


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else():
    read = read_page(page(agent_trajectory()))
    style, script = read.sources
    assert dict(part.split(" ", 1) for part in read.policy.split("; ")) == {
        "default-src": "'none'",
        "style-src": source_hash(style),
        "script-src": source_hash(script),
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_a_name_is_no_markup():
    step = make_step(trajectory_id="</title><script>alert(1)</script>\x1b" + "x" * 100)
    read = read_page(page(Trajectory(trajectory_id=step.trajectory_id, steps=(step,))))
    assert set(read.tags) == TAGS
    assert read.title.startswith("</title><script>alert(1)</script>␛xx")
    assert len(read.title) < 90


def test_every_source_is_in_the_page():
    folder = files("trajkit.view.html")
    names = {entry.name for entry in folder.iterdir() if entry.name.endswith(".js")}
    assert names == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_elements_of_text_alone_and_asks_nobody(name):
    text = source(name)
    assert text.isascii()
    forbidden = (
        "innerHTML|outerHTML|insertAdjacent|document\\.write|eval\\(|Function\\(|fetch\\(|"
        'XMLHttp|WebSocket|import\\(|localStorage|cookie|setAttribute\\("on|\\.src\\b|\\.href\\b'
    )
    assert re.findall(forbidden, text) == []
    assert "</script" not in text


def test_the_style_sheet_loads_nothing():
    text = source("page.css")
    assert text.isascii()
    assert re.findall(r"url\(|@import|</style", text) == []


def test_a_page_without_trajectories_is_a_page():
    read = read_page(page())
    assert set(read.tags) == TAGS
    assert read.trajectories == []
