"""Message lists: nothing is added, nothing is lost, null stays null."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import FIXTURES, make_record, records_of
from trajkit.errors import InputError
from trajkit.formats import messages
from trajkit.formats.conversation import conversation_of
from trajkit.records import Observation

GOOD = FIXTURES / "formats" / "messages" / "tools.jsonl"


def read(value: object) -> Any:
    return messages.FORMAT.read(make_record(value))


@pytest.mark.parametrize("number", range(4))
def test_the_conversation_of_each_sample_comes_back_verbatim(number):
    record = records_of(GOOD)[number]
    source: Any = record.value
    raw = messages.FORMAT.read(record)
    said = [m for call in raw.steps for m in (*call.messages_added, call.action_message)]
    assert [*said, *raw.messages_after] == source["messages"]


def test_null_content_and_calls_stay_and_the_result_has_its_name():
    raw = messages.FORMAT.read(records_of(GOOD)[0])
    first, second = raw.steps
    assert first.action_message["content"] is None
    assert first.action_text is None
    assert first.observations == (Observation(call_id="call_1", name="search", text="14 million"),)
    assert second.action_text == "14 million"
    assert second.observation == ""
    assert (raw.trajectory_id, raw.reward, raw.extra) == ("chat-1", 1.0, {})
    assert raw.tools_json == '[{"type":"function","function":{"name":"search"}}]'


def test_content_parts_are_read_and_tools_given_as_text_stay_as_they_stood():
    raw = messages.FORMAT.read(records_of(GOOD)[1])
    assert raw.steps[0].action_text is None
    assert raw.steps[0].observation == "14 million"
    assert raw.steps[1].action_text == "14 million"
    assert raw.tools_json == '[{"type": "function",  "function": {"name": "search"}}]'
    assert raw.trajectory_id is None


def test_a_conversation_without_the_policy_has_no_step():
    raw = messages.FORMAT.read(records_of(GOOD)[2])
    assert raw.steps == ()
    assert len(raw.messages_after) == 1


def test_every_key_is_mapped_or_kept():
    raw = read(
        {
            "trajectory_id": "t",
            "id": "other",
            "group_id": 5,
            "task_id": "task",
            "agent": "a",
            "model": "m",
            "temperature": 0.5,
            "top_p": 1,
            "top_k": 40,
            "reward": 0,
            "tools": None,
            "messages": [{"role": "user", "content": "x"}],
            "source": {"url": "y"},
        }
    )
    assert (raw.trajectory_id, raw.group_id, raw.task_id, raw.agent) == ("t", "5", "task", "a")
    assert (raw.sampling.model, raw.sampling.temperature) == ("m", 0.5)
    assert (raw.sampling.top_p, raw.sampling.top_k) == (1.0, 40)
    assert raw.reward == 0.0
    assert raw.tools_json is None
    assert raw.extra == {"id": "other", "source": {"url": "y"}}


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, True),
        ({"messages": []}, True),
        ({"messages": [{"from": "human", "value": "x"}]}, False),
        ({"messages": "hi"}, False),
        ({"messages": ["hi"]}, False),
        ({"prompt": "hi"}, False),
        ([], False),
        (None, False),
    ],
)
def test_a_record_is_known_by_its_messages(value, is_known):
    assert (messages.FORMAT.sniff(value) is not None) is is_known


def test_a_record_without_messages_is_refused():
    with pytest.raises(InputError, match="I202"):
        read({"messages": None})


def test_parts_become_what_a_template_takes():
    chat = conversation_of(messages.FORMAT.read(records_of(GOOD)[1]), messages.FORMAT)
    assert chat is not None
    assert [message["content"] for message in chat.messages] == [
        "How many?",
        '{"name": "search"}',
        "14 million",
        "14 million",
    ]
    assert chat.messages[1]["reasoning_content"] == "Search."


def test_tools_that_are_no_json_are_kept_and_told():
    raw = read({"messages": [{"role": "assistant", "content": "x"}], "tools": "search"})
    assert (raw.tools_json, raw.extra) == (None, {"tools": "search"})
    assert "tools" in raw.warnings[0]
    assert conversation_of(raw, messages.FORMAT) is not None
