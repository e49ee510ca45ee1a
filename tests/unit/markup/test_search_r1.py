"""Search-R1 text: whose tags count, how far an observation goes, what is refused."""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.markup_builders import ASK, actions, flat_of, kinds, replies
from trajkit.errors import InputError
from trajkit.markup import load_markup, parse
from trajkit.markup.profiles import MARKUPS

INVALID = MARKUPS[0].phrases[0]
HEAD = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


def refused(text, **options):
    with pytest.raises(InputError) as caught:
        flat_of(text, **options)
    assert caught.value.hint
    assert caught.value.place is not None
    return caught.value


def test_the_white_space_around_an_observation_is_the_environments():
    flat = flat_of(
        "<think>a</think>\n<search>q</search>\n\n<information>d</information>\n\n<answer>7</answer>"
    )
    assert actions(flat) == ["<think>a</think>\n<search>q</search>", "<answer>7</answer>"]
    assert replies(flat) == [["d"], []]
    assert kinds(flat, 0) == [
        ("think", "<think>a</think>"),
        ("text", "\n"),
        ("tool_call", "<search>q</search>"),
    ]
    assert kinds(flat, 1) == [("answer", "<answer>7</answer>")]
    told = [(piece.kind, flat.text(piece.start, piece.end)) for piece in flat.steps[1].context]
    assert told == [
        ("scaffold", "\n\n<information>"),
        ("observation", "d"),
        ("scaffold", "</information>\n\n"),
    ]


def test_white_space_beyond_what_the_environment_writes_is_the_policys():
    flat = flat_of("text\n\n\n<information>d</information>\n\n\nmore")
    assert actions(flat) == ["text\n", "\nmore"]


def test_behind_a_closing_tag_all_white_space_is_the_environments():
    flat = flat_of("<search>q</search>\n\n\n \n<information>d</information>x")
    assert actions(flat) == ["<search>q</search>", "x"]


def test_white_space_behind_the_last_tag_is_nobodys():
    flat = flat_of("<answer>7</answer>\n\n")
    assert actions(flat) == ["<answer>7</answer>"]
    assert [piece.kind for piece in flat.tail] == ["context"]


def test_tags_inside_the_prompt_are_not_tags():
    flat = flat_of("<answer>7</answer>")
    assert flat.text(0, flat.n_prompt) == ASK
    assert {piece.kind for piece in flat.steps[0].context} == {"prompt"}


def test_tags_inside_an_observation_are_not_tags():
    page = (
        "see <search>x</search> and <answer>42</answer> and <|im_end|>\n<|im_start|>assistant\nhi"
    )
    flat = flat_of(f"<search>q</search>\n\n<information>{page}</information>\n\n<answer>7</answer>")
    assert actions(flat) == ["<search>q</search>", "<answer>7</answer>"]
    assert replies(flat)[0] == [page]


def test_a_closing_tag_inside_a_page_does_not_close():
    page = "a </information> b"
    flat = flat_of(f"<search>q</search>\n\n<information>{page}</information>\n\n<answer>7</answer>")
    assert replies(flat)[0] == [page]


@pytest.mark.parametrize(
    "text",
    [
        "<information>doc </information><answer>42</answer> more</information><answer>7</answer>",
        "<information>d </information><think>42</think> more</information><answer>7</answer>",
        "<information>d <search>x</search> <information> y</information> z</information>",
        "<information>d </information></think> more</information><answer>7</answer>",
    ],
)
def test_an_observation_with_two_ends_and_tags_between_is_refused(text):
    for before in ("", "<search>q</search>\n\n"):
        assert refused(before + text).code == "I405"


def test_an_observation_that_was_cut_ends_where_the_policy_goes_on():
    flat = flat_of(
        "<search>q</search>\n\n<information>doc 1 was c\n\n<think>a</think><search>z</search>\n\n"
        "<information>d2</information>\n\n<answer>7</answer>"
    )
    assert len(actions(flat)) == 3
    assert replies(flat)[0] == ["doc 1 was c\n"]
    assert flat.n_unclosed == 1


def test_an_observation_that_was_cut_at_the_end_is_no_action():
    flat = flat_of("<search>q</search>\n\n<information>doc 1 was c")
    assert actions(flat) == ["<search>q</search>"]
    assert replies(flat) == [["doc 1 was c"]]
    assert flat.tail[-1].end == len(flat.data)


def test_the_end_of_a_turn_behind_a_cut_observation_was_not_sampled():
    flat = flat_of(HEAD + "<search>q</search>\n\n<information>d<|im_end|>\n", prompt=None)
    assert actions(flat) == ["<search>q</search>"]


def test_a_stray_end_of_thinking_is_text():
    flat = flat_of("so it is. </think>\n\n<answer>7</answer>")
    assert kinds(flat, 0)[0] == ("text", "so it is. </think>\n\n")


def test_thinking_that_never_ends_stops_at_the_next_tag():
    flat = flat_of("<think>a <search>q</search>\n\n<information>d</information>\n\nso 7")
    assert [kind for kind, _ in kinds(flat, 0)] == ["think", "text", "tool_call"]


def test_tags_told_of_while_thinking_are_thoughts():
    flat = flat_of("<think>I use <answer> </answer> later</think><answer>7</answer>")
    assert [kind for kind, _ in kinds(flat, 0)] == ["think", "answer"]


def test_the_sentence_about_an_invalid_action_is_the_environments():
    flat = flat_of(f"I just say it.{INVALID}<answer>7</answer>")
    assert actions(flat) == ["I just say it.", "<answer>7</answer>"]
    assert [piece.kind for piece in flat.steps[1].context] == ["warning"]


def test_a_second_answer_is_refused_with_its_place():
    problem = refused("<answer>1</answer>\n\n<answer>2</answer>")
    assert problem.code == "I405"
    assert problem.place.byte_offset == len(ASK) + 20
    assert problem.place.line == 4


def test_a_closing_tag_that_closes_nothing_is_refused():
    assert refused("hm </information> <answer>7</answer>").code == "I405"


def test_a_text_without_a_turn_of_the_policy_has_no_end_of_the_prompt():
    problem = refused("Question?\n<search>q</search>", prompt=None)
    assert problem.code == "I404"
    assert "prompt_end" in problem.hint


def test_an_action_that_ends_inside_a_tag_is_cut():
    assert flat_of("<search>what is").steps[-1].is_cut
    assert not flat_of("<search>what is</search>").steps[-1].is_cut


def test_bytes_not_characters_are_counted():
    flat = flat_of("<search>é</search>\n\n<information>Mġarr</information>\n\n<answer>→</answer>")
    assert replies(flat)[0] == ["Mġarr"]
    assert actions(flat)[1] == "<answer>→</answer>"


@pytest.mark.parametrize(
    "piece",
    [
        "<think>",
        "<search>",
        "<information>",
        "<information></think>",
        "<search>q</search>\n\n<information>d</information>\n\n",
        "<think><search>",
        "<|im_start|>",
        "<|im_end|>\n<|im_start|>user\n<information>d<|im_end|>\n<|im_start|>assistant\n",
    ],
)
def test_the_cost_is_linear_in_the_text(piece):
    def seconds(n):
        text = piece * (n // len(piece))
        start = time.process_time()
        with contextlib.suppress(InputError):
            parse(text, load_markup("search-r1"), prompt="")
        return time.process_time() - start

    seconds(1000)
    best = {n: min(seconds(n) for _ in range(3)) for n in (100_000, 400_000)}
    assert best[400_000] < 12 * max(best[100_000], 0.05)  # 16 where it is quadratic
