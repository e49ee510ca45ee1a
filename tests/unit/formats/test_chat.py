"""Messages are cut at the policy's own: before it stands context, behind it observation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajkit.errors import InputError, Place
from trajkit.formats.chat import plain_text, split_turns, spoken_text, to_chat
from trajkit.records import Observation

PLACE = Place(file="log.jsonl", line=2)


def message(role: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def calls(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"id": key, "function": {"name": name, "arguments": "{}"}} for key, name in pairs]


def test_each_message_of_the_policy_is_a_turn_with_what_stands_before_it():
    messages = [
        message("system"),
        message("user"),
        message("assistant", "a"),
        message("user", "b"),
        message("assistant", "c"),
        message("user", "d"),
    ]
    turns, after = split_turns(messages, PLACE)
    assert [turn.added for turn in turns] == [tuple(messages[:2]), (messages[3],)]
    assert [turn.message for turn in turns] == [messages[2], messages[4]]
    assert [turn.observation for turn in turns] == ["b", "d"]
    assert after == (messages[5],)


def test_without_a_message_of_the_policy_all_messages_stand_after():
    messages = [message("system"), message("user")]
    assert split_turns(messages, PLACE) == ([], tuple(messages))


def test_two_messages_of_the_policy_in_a_row_are_two_turns():
    turns, _ = split_turns([message("assistant", "a"), message("assistant", "b")], PLACE)
    assert [turn.added for turn in turns] == [(), ()]
    assert [turn.observation for turn in turns] == [None, None]


def test_instructions_after_an_action_are_no_observation():
    turns, after = split_turns([message("assistant"), message("system", "be brief")], PLACE)
    assert turns[0].observation is None
    assert after == (message("system", "be brief"),)


def test_results_are_named_by_the_call_they_answer():
    turns, _ = split_turns(
        [
            message("assistant", None, tool_calls=calls(("1", "search"), ("2", "add"))),
            message("tool", "two", tool_call_id="2"),
            message("tool", "one", tool_call_id="1"),
            message("tool", "given", tool_call_id="1", name="mine"),
            message("tool", "stray", tool_call_id="9"),
            message("function", "old", name="legacy"),
            message("user", "and?"),
        ],
        PLACE,
    )
    assert turns[0].observations == (
        Observation(call_id="2", name="add", text="two"),
        Observation(call_id="1", name="search", text="one"),
        Observation(call_id="1", name="mine", text="given"),
        Observation(call_id="9", name=None, text="stray"),
        Observation(call_id=None, name="legacy", text="old"),
    )
    assert turns[0].observation == "two\none\ngiven\nstray\nold\nand?"


def test_an_empty_result_is_text_and_a_null_one_is_not():
    turns, _ = split_turns([message("assistant"), message("tool", "")], PLACE)
    assert turns[0].observation == ""
    turns, _ = split_turns([message("assistant"), message("tool", None)], PLACE)
    assert turns[0].observation is None
    assert turns[0].observations == (Observation(),)


@pytest.mark.parametrize("odd", [5, "search", {"id": "1"}, [5, None, {"id": 3}, {"id": "1"}], None])
def test_odd_calls_name_nothing_and_are_no_error(odd):
    turns, _ = split_turns(
        [message("assistant", None, tool_calls=odd), message("tool", "r", tool_call_id="1")], PLACE
    )
    assert turns[0].observations == (Observation(call_id="1", text="r"),)


@pytest.mark.parametrize("role", ["narrator", "Assistant", "ai", 5, ["user"], None])
def test_a_role_that_nobody_knows_is_refused_with_its_path(role):
    with pytest.raises(InputError) as caught:
        split_turns([message("user"), {"role": role, "content": "x"}], PLACE)
    assert caught.value.code == "I203"
    assert caught.value.place == Place(file="log.jsonl", line=2, path="$.messages[1].role")
    assert "assistant" in str(caught.value.hint)


def test_a_message_that_is_no_object_is_refused_with_its_path():
    with pytest.raises(InputError) as caught:
        split_turns([message("user"), "hello"], PLACE)
    assert caught.value.code == "I201"
    assert caught.value.place == Place(file="log.jsonl", line=2, path="$.messages[1]")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        (None, None),
        (5, None),
        ([], None),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "text", "value": "a"}], "a"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
        (["a", "b"], "ab"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], None),
        ([{"type": "text", "text": "see"}, {"type": "image"}], "see"),
        ([{"type": "reasoning", "value": "hm"}, {"type": "text", "value": "a"}], "a"),
        ([{"type": "text", "text": 5}, None], None),
    ],
)
def test_the_text_of_a_message_is_its_content_or_the_text_parts_of_it(content, text):
    assert plain_text({"content": content}) == text


def test_a_message_with_calls_or_reasoning_is_not_all_that_was_spoken():
    assert spoken_text(message("assistant", "hello")) == "hello"
    assert spoken_text(message("assistant", "hello", tool_calls=[])) == "hello"
    assert spoken_text(message("assistant", "hello", tool_calls=calls(("1", "a")))) is None
    assert spoken_text(message("assistant", "hello", reasoning_content="hm")) is None
    assert spoken_text(message("assistant", [{"type": "text", "text": "a"}])) == "a"
    assert spoken_text(message("assistant", [{"type": "tool_call", "value": "{}"}, "a"])) is None


def test_the_path_of_a_message_is_the_path_of_its_list():
    with pytest.raises(InputError) as caught:
        split_turns([message("user"), message("narrator")], PLACE, "$.traj")
    assert caught.value.place is not None
    assert caught.value.place.path == "$.traj[1].role"


# --- as a template takes it


@pytest.mark.parametrize(
    "plain",
    [
        message("user", "hello"),
        message("assistant", None, tool_calls=calls(("1", "a")), reasoning_content="hm"),
        message("tool", "r", tool_call_id="1", name="a"),
        message("user", [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]),
        message("assistant", ["a", {"type": "text", "text": "b"}]),
        message("assistant", []),
        message("assistant", [5, None, {"type": "reasoning"}, {"type": "text", "value": 5}]),
    ],
)
def test_a_plain_message_is_equal_to_itself(plain):
    assert to_chat(plain) == plain


def test_an_older_message_is_put_in_today_s_words():
    call = {"name": "a", "arguments": "{}"}
    assert to_chat({"role": "assistant", "content": None, "function_call": call}) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": call}],
    }
    assert to_chat(message("function", "r", name="a")) == message("tool", "r", name="a")


plain_parts = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)})


@given(
    st.dictionaries(
        st.sampled_from(["role", "name", "tool_call_id", "reasoning_content", "weight"]),
        st.text(max_size=5),
    ),
    st.none() | st.text(max_size=5) | st.lists(plain_parts | st.text(max_size=5), max_size=4),
)
def test_any_plain_message_is_equal_to_itself(keys, content):
    plain = {**keys, "content": content}
    assert to_chat(plain) == plain


def part(kind: str, value: str) -> dict[str, Any]:
    return {"type": kind, "value": value}


def test_text_under_value_becomes_one_text():
    assert to_chat(message("tool", [part("text", "14 "), part("text", "million")])) == message(
        "tool", "14 million"
    )


def test_reasoning_and_calls_get_keys_of_their_own():
    call = '{"name": "search", "arguments": {"q": "x"}}'
    said = message(
        "assistant",
        [part("reasoning", "Search."), part("tool_call", call), part("tool_call", call)],
        loss_weight=1.0,
    )
    made = {"type": "function", "function": {"name": "search", "arguments": {"q": "x"}}}
    assert to_chat(said) == message(
        "assistant", None, loss_weight=1.0, reasoning_content="Search.", tool_calls=[made, made]
    )
    said = message("assistant", [part("reasoning", "Easy."), part("text", "7")])
    assert to_chat(said) == message("assistant", "7", reasoning_content="Easy.")


def test_what_the_message_has_already_stays_in_front():
    said = message(
        "assistant",
        [part("reasoning", "b"), part("tool_call", '{"name": "g", "arguments": {}}')],
        reasoning_content="a",
        tool_calls=calls(("1", "f")),
    )
    chat = to_chat(said)
    assert chat["reasoning_content"] == "a\nb"
    assert [call["function"]["name"] for call in chat["tool_calls"]] == ["f", "g"]


def test_a_call_that_is_none_stays_content_and_so_do_images():
    said = message("assistant", [part("tool_call", "search(x)"), {"type": "image"}])
    assert to_chat(said) == message(
        "assistant", [{"type": "text", "text": "search(x)"}, {"type": "image"}]
    )


def test_keys_of_the_wrong_type_are_no_error():
    said = message("assistant", [part("reasoning", "b")], reasoning_content=5, tool_calls="f")
    assert to_chat(said)["reasoning_content"] == "b"
