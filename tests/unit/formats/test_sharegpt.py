"""ShareGPT-like conversations: who speaks, what is a step, and what a template is given."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import FIXTURES, make_record, records_of
from trajkit.errors import InputError
from trajkit.formats import sharegpt
from trajkit.formats.conversation import conversation_of
from trajkit.records import Observation

SAMPLES = records_of(FIXTURES / "formats" / "sharegpt" / "tools.jsonl")
BOIL = {"name": "boil", "arguments": {"metres": 2995}}


def read(value: object) -> Any:
    return sharegpt.FORMAT.read(make_record(value))


def chat_of(raw: Any) -> Any:
    return conversation_of(raw, sharegpt.FORMAT)


def entry(speaker: str, value: Any = "x", **more: Any) -> dict[str, Any]:
    return {"from": speaker, "value": value, **more}


def all_messages(raw: Any) -> list[Any]:
    said = [m for call in raw.steps for m in (*call.messages_added, call.action_message)]
    return [*said, *raw.messages_after]


def test_each_word_of_the_policy_is_a_step_with_its_entries_as_they_stand():
    raw = sharegpt.FORMAT.read(SAMPLES[0])
    source: Any = SAMPLES[0].value
    entries = source["conversations"]
    assert [call.action_message for call in raw.steps] == [entries[1], entries[3], entries[5]]
    system = {"system": "Look things up."}
    assert [call.messages_added for call in raw.steps] == [
        (system, entries[0]),
        (entries[2],),
        (entries[4],),
    ]
    assert raw.messages_after == (entries[6],)
    assert (raw.trajectory_id, raw.extra, raw.warnings) == ("share-1", {"source": "own"}, ())
    assert raw.tools_json == source["tools"]


def test_results_are_observations_and_a_user_is_observed_without_being_one():
    steps = sharegpt.FORMAT.read(SAMPLES[0]).steps
    assert [call.observation for call in steps] == ['{"metres": 2995}', "90 °C", "Thank you."]
    assert [call.observations for call in steps] == [
        (Observation(text='{"metres": 2995}'),),
        (Observation(text="90 °C"),),
        None,
    ]
    assert sharegpt.FORMAT.read(SAMPLES[2]).steps[0].observation == ""


def test_a_call_has_no_words_of_its_own_and_an_answer_has():
    texts = [call.action_text for call in sharegpt.FORMAT.read(SAMPLES[0]).steps]
    assert texts == [None, None, "At about 90 °C."]
    texts = [call.action_text for call in sharegpt.FORMAT.read(SAMPLES[2]).steps]
    assert texts == ["height(Ortler)", "<think>3905 > 2995</think>The Ortler."]


def test_a_template_is_given_roles_and_calls():
    chat = chat_of(sharegpt.FORMAT.read(SAMPLES[0]))
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
    assert [message["role"] for message in chat.messages] == roles
    assert chat.actions == (2, 4, 6)
    assert chat.messages[0]["content"] == "Look things up."
    assert chat.messages[4] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": BOIL}],
    }
    assert chat.messages[5] == {"role": "tool", "content": "90 °C"}
    assert chat.tools == [{"name": "boil", "parameters": {"type": "object"}}]


def test_calls_in_one_entry_are_calls_of_one_message_and_its_other_keys_stay():
    chat = chat_of(sharegpt.FORMAT.read(SAMPLES[1]))
    call = chat.messages[2]
    peaks = [c["function"]["arguments"]["peak"] for c in call["tool_calls"]]
    assert peaks == ["Dachstein", "Ortler"]
    assert call["weight"] == 1


def test_a_call_that_is_no_json_stays_content():
    chat = chat_of(sharegpt.FORMAT.read(SAMPLES[2]))
    assert chat.messages[1] == {"role": "assistant", "content": "height(Ortler)"}
    assert chat.tools is None
    answer = sharegpt.as_chat(entry("gpt", json.dumps(BOIL)))
    assert answer == {"role": "assistant", "content": json.dumps(BOIL)}


def test_a_conversation_without_the_policy_has_no_step():
    raw = sharegpt.FORMAT.read(SAMPLES[3])
    assert raw.steps == ()
    assert raw.messages_after == (entry("human", "Hello?"),)


def test_a_system_text_beside_a_system_entry_is_kept_and_told():
    raw = read({"system": "a", "conversations": [entry("system", "b"), entry("gpt")]})
    assert raw.extra == {"system": "a"}
    assert "extra_json" in raw.warnings[0]
    assert raw.steps[0].messages_added == (entry("system", "b"),)


@pytest.mark.parametrize("system", ["", None])
def test_an_empty_system_text_is_no_message(system):
    raw = read({"system": system, "conversations": [entry("human"), entry("gpt")]})
    assert raw.steps[0].messages_added == (entry("human"),)
    assert raw.extra == {"system": system}
    assert raw.warnings == ()


def test_a_system_text_of_a_record_without_steps_is_kept():
    raw = read({"system": "a", "conversations": []})
    assert raw.messages_after == ({"system": "a"},)


def test_tools_that_are_no_json_are_kept_and_told():
    raw = read({"tools": "search(query)", "conversations": [entry("gpt")]})
    assert (raw.tools_json, raw.extra) == (None, {"tools": "search(query)"})
    assert "tools" in raw.warnings[0]


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        ({"conversations": [entry("gpt"), entry("narrator")]}, "I203", "$.conversations[1].from"),
        ({"conversations": [entry("gpt"), {"from": 5}]}, "I201", "$.conversations[1].from"),
        ({"conversations": [{"value": "x"}]}, "I202", "$.conversations[0].from"),
        ({"conversations": [entry("gpt", None)]}, "I202", "$.conversations[0].value"),
        ({"conversations": [entry("gpt", ["x"])]}, "I201", "$.conversations[0].value"),
        ({"conversations": ["x"]}, "I201", "$.conversations[0]"),
        ({"conversations": "x"}, "I201", "$.conversations"),
        ({"conversations": None}, "I202", "$.conversations"),
        ({"conversations": [entry("gpt")], "system": 5}, "I201", "$.system"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(value, code, path):
    with pytest.raises(InputError) as caught:
        read(value)
    assert caught.value.code == code
    assert caught.value.place is not None
    assert caught.value.place.path == path
    assert caught.value.hint


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        ({"conversations": [entry("human")]}, True),
        ({"conversations": []}, True),
        ({"conversations": [{"role": "user", "content": "x"}]}, False),
        ({"conversations": "x"}, False),
        ({"conversations": ["x"]}, False),
        ({"messages": [entry("human")]}, False),
        (None, False),
    ],
)
def test_a_record_is_known_by_its_entries(value, is_known):
    assert (sharegpt.FORMAT.sniff(value) is not None) is is_known


@given(
    st.lists(
        st.builds(entry, st.sampled_from(sorted(sharegpt.ROLES)), st.text(max_size=8)), max_size=9
    )
)
def test_whatever_is_said_comes_back_verbatim_and_in_order(entries):
    raw = read({"conversations": entries})
    assert all_messages(raw) == entries
    policy = [e for e in entries if sharegpt.ROLES[e["from"]] == "assistant"]
    assert [call.action_message for call in raw.steps] == policy
    chat = chat_of(raw)
    assert [m["role"] for m in chat.messages] == [sharegpt.ROLES[e["from"]] for e in entries]
    assert [m["content"] for m in chat.messages if "tool_calls" not in m] == [
        e["value"] for e in entries
    ]
