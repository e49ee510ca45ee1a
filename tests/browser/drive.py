"""The written page in a real browser: `make browser`, which needs Chromium, runs this file."""

from __future__ import annotations

import re

import pytest

from tests.browser.chromium import browser
from tests.builders import make_trajectory
from tests.view_builders import TOKENIZER, agent_trajectory, encoded, message_trajectory, unshown
from trajkit.records import ids_array
from trajkit.store.findings import StepFinding
from trajkit.view.drift import with_drift
from trajkit.view.html.page import page_of
from trajkit.view.html.payload import payload_of
from trajkit.view.model import Line, rows, view_of
from trajkit.view.redact import Redaction, redacted

GROUP = ("tokyo-0", "tokyo-1", "tokyo-2")


def sampled(name, answer, reward):
    """Return a trajectory of two steps with log-probs, one of a group."""
    prompt, think = encoded("How many?\n"), encoded("<think>Tokyo</think>")
    second = [*prompt, *think, *encoded("\n3\n")]
    last = encoded(answer)
    return make_trajectory(
        [(prompt, think), (second, last)],
        name,
        group_id=["tokyo"] * 2,
        reward=[None, reward],
        rollout_logprobs=[[-0.0, -5.0, None] + [-1.0] * (len(think) - 3), [-2.0] * len(last)],
    )


def long():
    """Return a trajectory of 40,000 tokens in 40 steps."""
    calls, prompt = [], list[int]()
    for _ in range(40):
        prompt = [*prompt, *([201, 298] * 400)]
        action = [298] * 200
        calls.append((prompt, action))
        prompt = [*prompt, *action]
    return make_trajectory(calls, "long")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    group = [
        sampled(*each) for each in zip(GROUP, ("3", "two", "one"), (0.0, 1.0, 0.5), strict=True)
    ]
    views = [view_of(t) for t in (agent_trajectory(), message_trajectory(), *group, long())]
    page = page_of(payload_of([(view, rows(view, TOKENIZER)) for view in views], TOKENIZER))
    file = tmp_path_factory.mktemp("page") / "view.html"
    file.write_text(page, encoding="ascii")
    return file


@pytest.fixture(scope="module")
def opened():
    with browser() as found:
        yield found


@pytest.fixture
def page(opened, file):
    """Return the page, freshly opened; in the end it had no complaint and asked for nothing."""
    opened.faults.clear()
    opened.asked.clear()
    opened.size(1280, 800)
    opened.open(file)
    yield opened
    assert opened.faults == []
    assert {url.partition("#")[0] for url in opened.asked} <= {
        file.absolute().as_uri(),
        "about:blank",
    }


def seen(page, selector):
    """Return the texts of what a selector finds."""
    return page.run(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")


def search(page, text):
    page.press("/")
    page.call("Input.insertText", text=text)
    page.frames()
    return seen(page, ".found")[0]


@pytest.mark.parametrize("side", [True, False], ids=["action", "context"])
def test_the_exact_text_is_drawn_on_its_side(page, side):
    look = "action" if side else "context"
    drawn = seen(page, f".row.{look} .text")
    lines = [row for row in rows(view_of(agent_trajectory()), TOKENIZER) if isinstance(row, Line)]
    assert drawn == [line.text for line in lines if line.is_action is side]
    assert set(seen(page, f".row.{look} .bar")) == {"▌" if side else "·"}


def test_a_token_under_the_pointer_is_explained(page):
    page.point("document.querySelectorAll('.row.action .c')[1]", click=True)
    facts = dict(zip(seen(page, ".inspect dt"), seen(page, ".inspect dd"), strict=True))
    token = int(facts["token"])
    (sequence, *_) = view_of(agent_trajectory()).sequences
    assert facts["id"] == str(sequence.token_ids[token])
    assert facts["bytes"] == TOKENIZER.pieces(ids_array([int(facts["id"])]))[0].hex()
    assert unshown(facts["text"]).hex() == facts["bytes"]
    assert (facts["step"], facts["kind"]) == ("0", "think")
    assert facts["side"] == "action (trained)"
    assert page.run("location.hash") == f"#/count-people%2F7/0/{token}"


def test_a_link_opens_its_token(page, file):
    page.open(file, "#/long/30/30100")
    assert (
        dict(zip(seen(page, ".inspect dt"), seen(page, ".inspect dd"), strict=True))["token"]
        == "30100"
    )
    top = page.run("document.querySelector('.pinned').getBoundingClientRect().top")
    assert 100 < top < 750
    page.press("ArrowRight")
    assert page.run("location.hash") == "#/long/30/30101"


def test_steps_and_trajectories_are_a_key_away(page):
    page.press("j")
    assert page.run("location.hash") == "#/count-people%2F7/1"
    page.press("j")
    page.press("k")
    assert page.run("location.hash") == "#/count-people%2F7/1"
    page.press("n")
    page.wait("document.querySelector('h2').firstChild.textContent === 'text-only'")
    assert seen(page, ".row.message .at")[0] == "system"
    page.press("p")
    page.wait("document.querySelector('h2').firstChild.textContent === 'count-people/7'")


def test_a_group_stands_side_by_side_by_reward(page, file):
    page.open(file, "#/tokyo-0")
    page.press("g")
    page.wait("document.querySelectorAll('.pane').length === 3")
    assert seen(page, "h2 .reward") == ["reward 1", "reward 0.5", "reward 0"]
    assert page.run(
        "[...document.querySelectorAll('.pane h2')].map((e) => e.firstChild.textContent)"
    ) == [*("tokyo-1", "tokyo-2", "tokyo-0")]
    page.press("g")
    page.wait("document.querySelectorAll('.pane').length === 1")


def test_an_overlay_draws_log_probs_by_height_and_tells_missing_ones(page, file):
    page.open(file, "#/tokyo-0")
    page.press("o")
    page.press("o")
    assert "log-prob (sampler)" in seen(page, ".scale")[0]
    looks = page.run("[...document.querySelectorAll('.row.action .c')].map((e) => e.className)")
    assert looks[:4] == ["c", "c up8", "c unknown", "c up2"]
    assert page.run("document.querySelectorAll('.row.context .c[class*=up]').length") == 0


def test_search_finds_text_and_ids_and_says_how_many(page):
    assert search(page, "TOKYO") == "1 of 4"
    assert all("Tokyo" in text for text in seen(page, ".hit"))
    page.press("Enter")
    assert seen(page, ".found") == ["2 of 4"]
    page.run("document.querySelector('input').value = ''")
    assert search(page, "id:2") == "1 of 6"
    assert set(seen(page, ".hit")) == {"⟪<|im_end|>⟫"}


def test_a_long_trajectory_draws_only_what_is_near(page, file):
    page.open(file, "#/long")
    assert 0 < page.run("document.querySelectorAll('.c').length") < 4000
    page.run("document.querySelector('.scroll').scrollTop = 1e9")
    page.frames()
    page.wait("document.querySelector('.where').textContent === 'at step 39'")
    assert page.run("document.querySelectorAll('.c').length") < 4000
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.querySelectorAll('.rule').length") == 40


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """Return a page with a drift mark in its second step, and a word that is not to be shown."""
    trajectory = sampled("tokyo-0", "Tokyo 3", 0.0)
    sequence = view_of(trajectory).sequences[0]
    start = sequence.steps[1].action_start
    finding = StepFinding(
        step_index=1,
        route="ids",
        kind="ids-only",
        cause="UNEXPLAINED",
        token_start=start,
        n_tokens=1,
        recorded_ids=(int(sequence.token_ids[start]),),
        retokenized_ids=(298,),
        retokenized_text="search",
    )
    view = with_drift(view_of(trajectory), [finding])
    hidden = redacted(view, TOKENIZER, Redaction(patterns=(re.compile("think"),)))
    page = page_of(payload_of([(hidden, rows(hidden, TOKENIZER))], TOKENIZER))
    file = tmp_path_factory.mktemp("marked") / "view.html"
    file.write_text(page, encoding="ascii")
    return file, start


def test_drift_is_underlined_found_by_its_key_and_told(opened, marked):
    file, start = marked
    opened.faults.clear()
    opened.size(1280, 800)
    opened.open(file)
    assert opened.run("document.querySelectorAll('.c.drift').length") == 1
    look = "getComputedStyle(document.querySelector('.c.drift')).textDecorationStyle"
    assert opened.run(look) == "wavy"
    opened.press("d")
    told = opened.run("document.querySelector('.inspect').textContent")
    assert "ids-only \u00b7 UNEXPLAINED \u00b7 other text search, other ids 298" in told
    assert opened.run("location.hash") == f"#/tokyo-0/1/{start}"
    assert opened.faults == []


def test_what_is_not_shown_cannot_be_found(opened, marked):
    file, _ = marked
    opened.faults.clear()
    opened.open(file)
    assert "think" not in opened.run("document.querySelector('.scroll').textContent")
    opened.press("/")
    opened.run(
        "{ const q = document.querySelector('input'); q.value = 'think';"
        " q.dispatchEvent(new Event('input')); }"
    )
    assert opened.run("document.querySelector('.found').textContent") == "nothing"
    opened.run("document.querySelector('.row.action .c:nth-child(2)').click()")
    told = opened.run("document.querySelector('.inspect').textContent")
    assert "idnot shown" in told
    assert "bytesnot shown" in told
    assert opened.faults == []


def test_a_token_is_chosen_without_a_pointer(page, file):
    assert page.run("document.activeElement.className") == "scroll"
    page.press("j")
    page.press("Enter")
    facts = dict(zip(seen(page, ".inspect dt"), seen(page, ".inspect dd"), strict=True))
    assert (facts["step"], facts["side"]) == ("1", "action (trained)")
    page.press("Escape")
    assert search(page, "Tokyo") == "1 of 4"
    page.press("Escape")
    page.press("Enter")
    assert "Tokyo" in page.run("document.querySelector('.pinned').parentNode.textContent")
    assert page.run("document.querySelector('.pinned').classList.contains('current')")


def test_the_index_is_one_stop_and_its_arrows_walk(page):
    assert page.run("document.querySelectorAll('.index [tabindex=\"0\"]').length") == 1
    assert page.run("document.querySelectorAll('[aria-current=true]').length") == 1
    page.run("document.querySelector('.index [aria-current]').focus()")
    page.press("ArrowDown")
    assert "text-only" in page.run("document.activeElement.textContent")
    page.press("ArrowUp")
    page.press("ArrowUp")
    assert "count-people/7" in page.run("document.activeElement.textContent")


@pytest.mark.parametrize("width", [320, 1024, 2560])
def test_every_width_shows_text_and_nothing_stands_outside(page, file, width):
    page.size(width, 700)
    page.open(file)
    assert page.run("document.documentElement.scrollWidth") == width
    shown = page.run(
        "(() => { const b = document.querySelector('.row.action .text').getBoundingClientRect();"
        " return [b.left, b.right, b.width]; })()"
    )
    assert 0 < shown[0] < shown[1] <= width
    assert 150 < shown[2] < 1200


def test_a_dark_page_prints_dark_on_white_and_whole(page):
    page.press("t")
    page.press("t")
    assert page.run("document.documentElement.style.colorScheme") == "dark"
    page.look(medium="print")
    colour = "getComputedStyle(document.body).color"
    assert page.run(colour) == "rgb(27, 31, 36)"
    assert page.run("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    page.look()
    assert page.run(colour) == "rgb(215, 220, 226)"


def test_forced_colours_leave_the_bar_to_actions_alone(page):
    page.look(forced=True)
    look = "getComputedStyle(document.querySelector('.row.{} .bar')).borderLeftColor"
    assert page.run(look.format("context")) == "rgba(0, 0, 0, 0)"
    assert page.run(look.format("action")) == "rgb(0, 0, 0)"
    page.look()


HOSTILE = (
    *("</script><script>window.done=1</script>", "<!--<script>", "<img src=x onerror=done=1>"),
    *("\u2028\u2029\u202e abc \u200f", "a\u0300" * 200, "\x00\x1b[31m\x85\ufeff", "x" * 5000),
    *("\U0001f468\u200d\U0001f469", "\u05e9\u05dc\u05d5\u05dd", "__proto__", "", "\ufffe"),
)
LINKS = ("#%00%ff", "#</script>", "#/__proto__/0/1", "#/many-7/-1/999999999999", "#%E0%A4%A")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Return a page of hostile texts and names, and of 2,000 trajectories in one group."""
    prompt = encoded("q")
    found = [
        make_trajectory(
            [(prompt, encoded(text, control=False))],
            text[:300],
            group_id=[text[:50]],
            reward=[float("inf")],
            rollout_logprobs=[[float("-inf")] * len(encoded(text, control=False))],
        )
        for text in HOSTILE
    ]
    found += [make_trajectory([(prompt, [298])], f"many-{i}", group_id=["m"]) for i in range(2000)]
    views = [view_of(each) for each in found]
    page = page_of(payload_of([(view, rows(view, TOKENIZER)) for view in views], TOKENIZER))
    file = tmp_path_factory.mktemp("crowd") / "view.html"
    file.write_text(page, encoding="ascii")
    return file


@pytest.mark.parametrize("link", LINKS)
def test_hostile_names_texts_links_and_searches_do_nothing(opened, crowd, link):
    opened.faults.clear()
    opened.asked.clear()
    opened.open(crowd, link)
    for key in "oojdbn":
        opened.press(key)
    for text in ("(((['.*\\\\", "id:99999999999999999999", "\u2028", "</script>"):
        search(opened, text)
        opened.press("Escape")
    assert opened.run("typeof window.done") == "undefined"
    assert opened.run("document.querySelectorAll('script').length") == 2
    assert opened.faults == []
    assert {url.partition("#")[0] for url in opened.asked} <= {
        crowd.absolute().as_uri(),
        "about:blank",
    }


def test_a_large_group_stands_side_by_side_in_part_and_says_so(opened, crowd):
    opened.open(crowd, "#/many-7")
    opened.press("g")
    opened.wait("document.querySelectorAll('.pane').length === 24")
    assert seen(opened, ".found") == ["the first 24 of 2,000"]


def test_themes_help_and_borders_answer_their_keys(page):
    page.press("t")
    assert page.run("document.documentElement.style.colorScheme") == "light"
    page.press("?")
    assert page.run("document.querySelector('dialog').open")
    page.press("Escape")
    page.run("document.querySelector('dialog').close()")
    page.press("b")
    assert page.run("document.body.classList.contains('borders')")


def test_nothing_else_can_run_in_the_page(page):
    with pytest.raises(AssertionError, match="TrustedHTML"):
        page.run("document.body.innerHTML = '<b>x</b>'")
    page.run(
        "{ const s = document.createElement('style'); s.textContent = '*{}';"
        " document.head.append(s); }"
    )
    page.wait("true")
    assert any("Content Security Policy" in fault for fault in page.faults)
    page.faults.clear()
