"""Text by pieces: each delta and action by itself, cut wherever a prompt leaves off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.builders import make_step, make_trajectory, tiny_tokenizer
from trajkit.ingestion.spelling import Speller
from trajkit.records import Step, ids_array


def ids(text: str) -> list[int]:
    """Return one id a byte of text: ids 3.. of the tiny tokenizer are the 256 single bytes."""
    tokenizer = tiny_tokenizer()
    table = {tokenizer.token_bytes(i): i for i in range(3, 259)}
    return [table[bytes([byte])] for byte in text.encode()]


def spelt(*calls: tuple[Sequence[int], Sequence[int]]) -> Any:
    """Return the steps of calls with their texts."""
    speller = Speller(tiny_tokenizer())
    steps: list[Step] = []
    for index, step in enumerate(make_trajectory(calls).steps):
        parent = None if step.prompt_parent is None else steps[step.prompt_parent]
        keep, delta = speller.delta(index, parent, step.prompt_keep or 0, step.prompt_delta)
        steps.append(
            make_step(
                index,
                parent=parent,
                prompt_keep=step.prompt_keep,
                prompt_delta=step.prompt_delta,
                action_tokens=step.action_tokens,
                text_keep=keep,
                text_delta=delta,
                action_text=tiny_tokenizer().text(step.action_tokens),
            )
        )
    return steps


def test_the_single_bytes_are_where_the_helper_looks_for_them():
    assert tiny_tokenizer().text(ids_array(ids("aé東"))) == "aé東"


def test_an_append_only_state_keeps_all_and_adds_its_delta():
    first, second = spelt((ids("Hi "), ids("é")), (ids("Hi é!"), []))
    assert (first.text_keep, first.text_delta) == (0, "Hi ")
    assert (second.text_keep, second.text_delta) == (5, "!")
    assert second.state_before == "Hi é!"


def test_a_window_keeps_the_text_of_its_head():
    steps = spelt((ids("Hé one"), []), (ids("Hé two"), []), (ids("Hé three"), []))
    assert [(step.text_keep, step.text_delta) for step in steps[1:]] == [
        (4, "two"),
        (5, "hree"),  # it shares the t with the step before
    ]
    assert [step.state_before for step in steps] == ["Hé one", "Hé two", "Hé three"]


def test_a_character_cut_by_the_end_of_an_action_is_replaced_on_both_sides():
    half, rest = ids("東")[:2], ids("東")[2:]
    _, second = spelt((ids("a"), half), (ids("a") + half + rest, []))
    assert second.text_keep == 4  # "a" and U+FFFD
    assert second.text_delta == "\ufffd"
    assert second.state_before == "a\ufffd\ufffd"


def test_a_prompt_that_cuts_an_action_inside_a_character_spells_the_cut():
    _, second = spelt((ids("a"), ids("b東")), (ids("ab") + ids("東")[:2] + ids("x"), []))
    assert second.prompt_keep == 4
    assert second.text_keep == 2
    assert second.text_delta == "\ufffdx"
    assert second.state_before == "ab\ufffdx"


def test_a_prompt_that_cuts_a_prompt_inside_a_character_spells_the_cut():
    _, second = spelt((ids("é東"), []), (ids("é") + ids("東")[:1] + ids("!"), []))
    assert second.text_keep == 2
    assert second.state_before == "é\ufffd!"


def test_a_cut_character_is_carried_through_prompts_that_grow_from_the_cut():
    start = ids("ab") + ids("東")[:2]
    steps = spelt((ids("a"), ids("b東")), (start + ids("x"), ids("y")), (start + ids("xyz"), []))
    assert steps[2].state_before == "ab\ufffdxyz"
    again = spelt((ids("a"), ids("b東")), (start + ids("x"), ids("y")), (start, []), (start, []))
    assert [step.state_before for step in again[2:]] == ["ab\ufffd"] * 2


def test_a_prompt_that_keeps_part_of_a_delta_keeps_the_cut_character_before_it():
    start = ids("ab") + ids("東")[:2]
    steps = spelt((ids("a"), ids("b東")), (start + ids("xy"), []), (start + ids("xz"), []))
    assert steps[2].prompt_keep == 5
    assert steps[2].text_keep == 6
    assert steps[2].state_before == "ab\ufffdxz"


def test_a_prompt_that_keeps_less_than_the_cut_goes_behind_it():
    start = ids("ab") + ids("東")[:2]
    steps = spelt((ids("a"), ids("b東")), (start + ids("x"), []), (ids("ab") + ids("東")[:1], []))
    assert steps[2].prompt_keep == 3
    assert steps[2].state_before == "ab\ufffd"
    assert steps[2].text_keep == 2


def test_control_tokens_are_text_of_the_state():
    steps = spelt(([1, *ids("user")], [2]), ([1, *ids("user"), 2, *ids("\n")], []))
    assert steps[1].state_before == "<|im_start|>user<|im_end|>\n"
