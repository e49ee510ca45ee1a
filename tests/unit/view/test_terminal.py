from typing import Any

import pytest

from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, encoded
from trajkit.records import SegmentKind, Trajectory
from trajkit.view.model import Line, Rule, rows, view_of
from trajkit.view.terminal import Face, body, footer, header


def line(text, **fields) -> Any:
    defaults: dict[str, Any] = {"token_start": 3, "is_action": False, "kind": SegmentKind.TEXT}
    return Line(**(defaults | fields), text=text)


def drawn(*given, **face) -> Any:
    return list(body(given, Face(**face)))


def test_the_gutter_says_which_side_a_line_is_on_without_any_colour():
    assert drawn(line("said", is_action=True), line("read", token_start=12)) == [
        "▌       3 said",
        "·      12 read",
    ]
    assert drawn(line("said", is_action=True), line("read"), ascii=True) == [
        "A|      3 said",
        " |      3 read",
    ]


def test_colour_repeats_the_side_and_turns_control_ids_round():
    (painted,) = drawn(line("a⟪<|x|>⟫b", is_action=True), colour=True)
    assert painted == ("\x1b[1;36m▌ \x1b[0m      3 \x1b[1;36ma\x1b[7m⟪<|x|>⟫\x1b[27mb\x1b[0m")
    (painted,) = drawn(line("c"), colour=True)
    assert painted == "\x1b[2m· \x1b[0m      3 \x1b[2mc\x1b[0m"


def test_long_lines_are_folded_between_words_and_the_gutter_goes_on():
    words = "one two three four five six seven eight"
    assert drawn(line(words, is_action=True), width=40) == [
        "▌       3 one two three four five six ",
        "▌         seven eight",
    ]


def test_a_word_longer_than_a_row_is_cut():
    assert drawn(line("x" * 45), width=30) == [
        "·       3 " + "x" * 20,
        "·         " + "x" * 20,
        "·         " + "x" * 5,
    ]
    assert drawn(line("ab " + "x" * 30), width=30)[0] == "·       3 ab " + "x" * 17


def test_wide_characters_take_two_cells():
    assert drawn(line("日" * 15), width=30) == ["·       3 " + "日" * 10, "·         " + "日" * 5]
    assert drawn(line("a" + "日" * 10), width=30) == ["·       3 a" + "日" * 9, "·         日"]


def test_a_row_that_is_full_to_the_cell_ends_before_a_wide_word():
    assert drawn(line("x" * 19 + " " + "日" * 12), width=30) == [
        "·       3 " + "x" * 19 + " ",
        "·         " + "日" * 10,
        "·         " + "日" * 2,
    ]


def test_a_sign_is_not_cut_where_it_fits_on_a_row():
    assert drawn(line("x" * 15 + "⟦U+202E⟧" + "y"), width=30) == [
        "·       3 " + "x" * 15,
        "·         ⟦U+202E⟧y",
    ]
    control = f"⟪{'z' * 30}⟫"
    folded = drawn(line(control), width=30)
    assert "".join(row[10:] for row in folded) == control


def test_a_message_shows_its_label_in_a_column_of_its_own():
    found = drawn(
        line("Hello", token_start=None, label="user"), line("there", token_start=None), width=40
    )
    assert found == ["· user      Hello", "·           there"]
    assert drawn(line("x", token_start=None, label="日本語日本語")) == ["· 日本語日  x"]


def test_a_rule_fills_the_width_or_goes_on_to_a_second_line():
    assert drawn(Rule(facts=("step 0", "stop")), width=30) == ["── step 0 · stop " + "─" * 13]
    facts = ("step 0", "action 12 tokens", "sampled", "terminal")
    assert drawn(Rule(facts=facts), width=30) == [
        "── step 0 · action 12 tokens ─",
        "── sampled · terminal ────────",
    ]
    assert drawn(Rule(facts=("step 0", "stop")), width=30, ascii=True) == [
        "-- step 0 - stop " + "-" * 13
    ]


def test_a_terminal_without_unicode_gets_signs_spelt_with_a_backslash():
    shown = "a\\n ␛␊␉␣ ⟪<|x|>⟫ ⟦U+202E⟧ é 日"
    assert drawn(line(shown), ascii=True) == [
        r" |      3 a\\n \x1b\n\t\s \[<|x|>\] \<U+202E\> \xe9 \u65e5"
    ]


def test_the_header_names_the_trajectory_its_counts_and_where_its_ids_come_from():
    trajectory = make_trajectory([([5, 6, 7], [8])], "t\x1b1", group_id=["g"], reward=[0.5])
    assert list(header(view_of(trajectory), "tiny", Face(width=100)))[:2] == [
        "t␛1 · 1 step · 4 tokens · action 1 (25.0%) · reward 0.5 · group g",
        "action ids: sampled in 1 of 1 step · tokenizer tiny",
    ]
    view = view_of(trajectory)
    assert "tokenizer none, so ids are shown" in list(header(view, None, Face()))[1]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_legend_explains_every_mark(width):
    view = view_of(make_trajectory([([5], [6])]))
    shown = " ".join(header(view, "tiny", Face(width=width)))
    for words in (
        *("▌ action (trained)", "· context (not trained)", "⟪⟫ one control id"),
        *("␊ newline", "␉ tab", "␣ space", "⟦⟧ no glyph"),
    ):
        assert words in shown


def test_the_legend_of_a_text_only_record_has_no_control_ids():
    view = view_of(Trajectory(trajectory_id="t", steps=(make_step(action_text="x"),)))
    assert "control id" not in " ".join(header(view, None, Face()))


def test_the_footer_adds_up():
    view = view_of(make_trajectory([([5, 6, 7], [8])]))
    assert footer(view) == "total 4 tokens · action (trained) 1 (25.0%) · context (not trained) 3"
    assert footer(view, Face(ascii=True)).isascii()


def test_the_footer_of_a_record_without_ids_says_that_there_is_no_mask():
    step = make_step(action_text="x")
    view = view_of(Trajectory(trajectory_id="t", steps=(step,)))
    assert footer(view) == ("1 step without prompt ids: no mask to show, only who wrote which text")
    mixed = Trajectory(
        trajectory_id="t", steps=(make_step(prompt_delta=[5], action_tokens=[6]), step)
    )
    assert footer(view_of(mixed)).splitlines() == [
        "total 2 tokens · action (trained) 1 (50.0%) · context (not trained) 1",
        "1 step without prompt ids: no mask to show, only who wrote which text",
    ]


def test_an_empty_trajectory_has_a_share_of_0():
    view = view_of(make_trajectory([([], [])]))
    assert footer(view) == "total 0 tokens · action (trained) 0 (0%) · context (not trained) 0"


def test_lines_come_before_the_end_is_reached():
    trajectory = make_trajectory([(encoded("search\n"), [5]), ([5], [6]), ([6], [7])])
    asked = []

    def wanted(index):
        asked.append(index)
        return True

    found = body(rows(view_of(trajectory), TOKENIZER, wanted), Face())
    first = [next(found), next(found), next(found)]
    assert first[2] == "·       0 search␊"
    assert max(asked) == 0
