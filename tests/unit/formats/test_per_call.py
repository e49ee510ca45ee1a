"""Per-call token records: ids as they are, messages beside them, the rest kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builders import FIXTURES, make_record, records_of
from trajkit.errors import InputError
from trajkit.formats import per_call
from trajkit.formats.conversation import conversation_of

GOOD = FIXTURES / "formats" / "per-call"


def read(value: object) -> Any:
    return per_call.FORMAT.read(make_record(value))


def turn(**more: object) -> dict[str, object]:
    return {"prompt_token_ids": [1], "response_token_ids": [2], **more}


def test_the_sample_is_read_field_by_field():
    raw = per_call.FORMAT.read(records_of(GOOD / "search.jsonl")[0])
    source: Any = records_of(GOOD / "search.jsonl")[0].value
    assert (raw.trajectory_id, raw.group_id, raw.reward) == ("tokyo-0", "tokyo", 1.0)
    assert (raw.sampling.model, raw.sampling.temperature) == ("tiny", 1.0)
    assert raw.extra == {"env": "search"}
    assert raw.messages_after == ()
    for call, given in zip(raw.steps, source["turns"], strict=True):
        assert call.prompt_ids is not None
        assert call.action_ids is not None
        assert call.logprobs is not None
        assert call.prompt_ids.tolist() == given["prompt_token_ids"]
        assert call.action_ids.tolist() == given["response_token_ids"]
        known = [np.nan if value is None else np.float32(value) for value in given["logprobs"]]
        np.testing.assert_array_equal(call.logprobs, known)
        assert call.finish_reason == "stop"
    assert [call.extra for call in raw.steps] == [{}, {"seed": 7}]
    assert raw.steps[0].observation == source["messages"][3]["content"]
    said = [[*call.messages_added, call.action_message] for call in raw.steps]
    assert said == [source["messages"][:3], source["messages"][3:]]


def test_a_retry_without_messages_and_an_aborted_call_are_read():
    raw = per_call.FORMAT.read(records_of(GOOD / "search.jsonl")[1])
    assert [call.finish_reason for call in raw.steps] == ["length", "abort", "stop"]
    assert [call.logprobs for call in raw.steps] == [None, None, None]
    assert raw.steps[1].action_ids is not None
    assert raw.steps[1].action_ids.tolist() == []
    assert not any(call.has_messages for call in raw.steps)


def test_other_names_of_the_same_things_are_read():
    (record,) = records_of(GOOD / "window.jsonl")
    raw = per_call.FORMAT.read(record)
    assert raw.trajectory_id == "12"
    assert [call.reward for call in raw.steps] == [0.5, None, 0.25]
    assert all(call.logprobs is not None for call in raw.steps)
    assert raw.extra == {}
    assert all(call.extra == {} for call in raw.steps)


@pytest.mark.parametrize("calls", ["turns", "steps", "calls"])
@pytest.mark.parametrize(
    "action",
    [
        "response_token_ids",
        "completion_token_ids",
        "generation_token_ids",
        "output_token_ids",
        "token_ids",
    ],
)
def test_a_record_is_known_by_its_calls_and_their_ids(calls, action):
    value = {calls: [{"prompt_ids": [1], action: [2]}]}
    assert per_call.FORMAT.sniff(value) == f"{calls}[] with {action}"
    assert read(value).steps[0].action_ids.tolist() == [2]


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"turns": []},
        {"turns": "many"},
        {"turns": [5]},
        {"turns": [{"text": "hi"}]},
        {"messages": [{"role": "user"}]},
    ],
)
def test_what_has_no_calls_with_ids_is_another_format(value):
    assert per_call.FORMAT.sniff(value) is None


def test_ids_in_a_later_call_alone_are_seen_and_the_first_call_has_none():
    raw = read({"turns": [{"text": "hi"}, turn()]})
    assert per_call.FORMAT.sniff({"turns": [{"text": "hi"}, turn()]}) is not None
    assert raw.steps[0].action_ids is None
    assert raw.steps[0].extra == {"text": "hi"}


def test_the_list_with_the_ids_is_read_and_a_count_of_the_same_kind_is_kept():
    raw = read({"turns": 3, "steps": [turn()]})
    assert len(raw.steps) == 1
    assert raw.extra == {"turns": 3}


def test_messages_that_do_not_match_the_calls_are_kept_and_told():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    raw = read({"turns": [turn(), turn()], "messages": messages})
    assert raw.extra == {"messages": messages}
    assert "differ in number" in raw.warnings[0]
    assert not raw.steps[0].has_messages


def test_messages_behind_the_last_call_are_kept():
    messages = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    raw = read({"turns": [turn()], "messages": messages})
    assert raw.messages_after == (messages[1],)
    assert raw.steps[0].observation == "c"


def test_a_record_asked_for_by_name_may_have_no_calls_and_keeps_its_messages():
    messages = [{"role": "user", "content": "a"}]
    raw = read({"turns": [], "messages": messages, "reward": 0.5})
    assert raw.steps == ()
    assert raw.messages_after == tuple(messages)


def test_a_record_without_calls_is_refused():
    with pytest.raises(InputError, match="I202"):
        read({"trajectory_id": "x"})


def test_action_ids_without_prompt_ids_are_refused_with_their_path():
    with pytest.raises(InputError) as caught:
        read({"turns": [turn(), {"response_token_ids": [2]}]})
    assert caught.value.code == "I202"
    assert caught.value.place is not None
    assert caught.value.place.path == "$.turns[1].prompt_token_ids"


def test_prompt_ids_without_an_action_are_a_call_that_sampled_nothing_known():
    (call,) = read({"turns": [{"prompt_token_ids": [1], "response_token_ids": None}]}).steps
    assert call.prompt_ids.tolist() == [1]
    assert call.action_ids is None


def test_a_wrong_id_deep_inside_is_named_with_line_and_path():
    with pytest.raises(InputError) as caught:
        per_call.FORMAT.read(
            make_record({"turns": [turn(), turn(response_token_ids=[1, 2, 3, 4.5])]}, line=7)
        )
    assert str(caught.value.place) == "log.jsonl:7  $.turns[1].response_token_ids[3]"


def test_sampling_parameters_are_read_from_each_call():
    raw = read({"turns": [turn(temperature=0.5, top_p=0.75), turn()], "temperature": 1.0})
    assert raw.sampling.temperature == 1.0
    assert (raw.steps[0].sampling.temperature, raw.steps[0].sampling.top_p) == (0.5, 0.75)
    assert raw.steps[1].sampling.temperature is None
    assert raw.steps[0].extra == {}


def test_sampling_params_of_a_call_and_of_the_record_are_read():
    raw = read(
        {
            "turns": [
                turn(sampling_params={"temperature": 0.5, "stop": ["x"]}),
                turn(sampling_params={"min_p": 0}),
            ],
            "sampling_params": {"temperature": 0.75, "top_p": 0.875, "min_p": 0.25},
        }
    )
    first, second = (raw.sampling.overruled_by(call.sampling) for call in raw.steps)
    assert (first.temperature, first.top_p, first.altering) == (0.5, 0.875, {"min_p": 0.25})
    assert (second.temperature, second.top_p, second.altering) == (0.75, 0.875, {})
    assert raw.extra == {"sampling_params": {"min_p": 0.25}}
    assert [call.extra for call in raw.steps] == [
        {"sampling_params": {"stop": ["x"]}},
        {"sampling_params": {"min_p": 0}},
    ]


def test_messages_are_given_to_a_template_as_it_takes_them():
    said = {"role": "assistant", "content": [{"type": "text", "value": "b"}]}
    raw = read({"turns": [turn()], "messages": [said], "tools": "none"})
    chat = conversation_of(raw, per_call.FORMAT)
    assert chat is not None
    assert chat.messages == ({"role": "assistant", "content": "b"},)
    assert raw.steps[0].action_message == said
    assert raw.extra == {"tools": "none"}
    assert len(raw.warnings) == 1
