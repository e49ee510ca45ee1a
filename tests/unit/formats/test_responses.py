"""Responses rows: items become calls, the ids on the last item of a call are the whole call's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import FIXTURES, make_record, records_of
from trajkit.errors import InputError
from trajkit.formats import responses
from trajkit.formats.conversation import conversation_of
from trajkit.records import Observation

GOOD = FIXTURES / "formats" / "responses"

CALL = {"type": "function_call", "call_id": "c", "name": "search", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "found"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}
ITEM_1 = "$.response.output[1]"
ASKED = {"type": "message", "role": "user", "content": "more"}


def read(*output: object, **more: object) -> Any:
    row = {"responses_create_params": {"input": ["task"]}, "response": {"output": list(output)}}
    return responses.FORMAT.read(make_record(row | more))


def with_ids(item: dict[str, Any], prompt: list[Any], action: list[Any]) -> dict[str, Any]:
    return item | {"prompt_token_ids": prompt, "generation_token_ids": action}


def test_the_sample_with_ids_is_read_field_by_field():
    (record,) = records_of(GOOD / "search.jsonl")
    source: Any = record.value
    output = source["response"]["output"]
    raw = responses.FORMAT.read(record)
    first, second = raw.steps
    for call, item in ((first, output[1]), (second, output[3])):
        assert call.prompt_ids is not None
        assert call.action_ids is not None
        assert call.logprobs is not None
        assert call.prompt_ids.tolist() == item["prompt_token_ids"]
        assert call.action_ids.tolist() == item["generation_token_ids"]
        assert len(call.logprobs) == len(call.action_ids)
    ids = {"prompt_token_ids", "generation_token_ids", "generation_log_probs"}
    assert first.action_message == [
        output[0],
        {key: value for key, value in output[1].items() if key not in ids},
    ]
    assert first.messages_added == tuple(source["responses_create_params"]["input"])
    assert second.messages_added == (output[2],)
    assert first.observation == "14 million"
    assert first.observations == (Observation(call_id="call_1", name="search", text="14 million"),)
    assert second.action_text == "14 million"
    assert raw.messages_after == ()


def test_what_the_sample_says_of_the_whole_row_is_mapped_or_kept():
    (record,) = records_of(GOOD / "search.jsonl")
    source: Any = record.value
    raw = responses.FORMAT.read(record)
    assert (raw.trajectory_id, raw.group_id, raw.task_id) == ("task3-rollout0", "3", "3")
    assert (raw.reward, raw.sampling.model, raw.sampling.temperature) == (1.0, "tiny", 1.0)
    assert raw.extra == {
        "agent_ref": {"name": "simple_agent"},
        "responses_create_params": {"temperature": None, "parallel_tool_calls": True},
        "response": {"id": "resp_1", "usage": source["response"]["usage"]},
    }


def test_what_the_response_does_not_say_of_its_sampling_is_as_it_was_asked_for():
    asked = {"input": "task", "model": "policy", "temperature": 0.5, "top_p": 0.75, "min_p": 0.125}
    response: Any = {"output": [], "temperature": None, "top_p": 1.0}
    raw = read(responses_create_params=asked, response=response)
    assert (raw.sampling.temperature, raw.sampling.top_p, raw.sampling.model) == (0.5, 1.0, None)
    assert raw.sampling.altering == {"min_p": 0.125}
    kept = {key: value for key, value in asked.items() if key != "input"}
    assert raw.extra == {"responses_create_params": kept, "response": {}}


def test_parallel_calls_are_one_step_and_their_results_keep_their_names():
    raw = responses.FORMAT.read(records_of(GOOD / "no_ids.jsonl")[0])
    first, second = raw.steps
    assert first.action_ids is None
    assert first.observations == (
        Observation(call_id="call_1", name="search", text="14 million"),
        Observation(call_id="call_2", name="search", text="2.7 million"),
    )
    assert first.observation == "14 million\n2.7 million\nIn one line."
    assert first.messages_added == ("Compare Tokyo and Osaka.",)
    assert [item["type"] for item in second.messages_added] == [
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert raw.tools_json == "[]"


def test_empty_prompt_and_action_ids_are_not_recorded_and_told():
    raw = responses.FORMAT.read(records_of(GOOD / "no_ids.jsonl")[1])
    (call,) = raw.steps
    assert (call.prompt_ids, call.action_ids, call.logprobs) == (None, None, None)
    assert raw.warnings == ("empty prompt and empty generation ids: read as not recorded",)


def test_an_empty_action_after_a_prompt_is_an_action():
    (call,) = read(with_ids(SAID, [1, 2], [])).steps
    assert call.action_ids.tolist() == []


def test_ids_end_a_call_where_no_result_does():
    raw = read(with_ids(CALL, [1], [2]), with_ids(SAID, [1, 2, 3], [4]))
    assert [call.action_ids.tolist() for call in raw.steps] == [[2], [4]]
    assert [len(call.action_message) for call in raw.steps] == [1, 1]


def test_without_ids_a_call_ends_at_the_next_result():
    raw = read({"type": "reasoning", "summary": []}, CALL, RESULT, SAID)
    assert [[i["type"] for i in call.action_message] for call in raw.steps] == [
        ["reasoning", "function_call"],
        ["message"],
    ]


def test_what_stands_before_the_first_call_belongs_to_its_prompt():
    raw = read(ASKED, SAID, RESULT)
    (call,) = raw.steps
    assert call.messages_added == ("task", ASKED)
    assert raw.messages_after == (RESULT,)


def test_a_row_without_a_call_keeps_all_it_has():
    raw = read(ASKED, RESULT)
    assert raw.steps == ()
    assert raw.messages_after == ("task", ASKED, RESULT)
    assert read().messages_after == ("task",)


def test_one_index_alone_is_no_id():
    raw = read(SAID, _ng_rollout_index=4)
    assert (raw.trajectory_id, raw.group_id) == (None, None)
    assert raw.extra["_ng_rollout_index"] == 4


def test_a_given_id_is_kept_beside_the_indices():
    raw = read(SAID, _ng_task_index=0, _ng_rollout_index=1, trajectory_id="mine")
    assert raw.trajectory_id == "task0-rollout1"
    assert raw.extra["trajectory_id"] == "mine"
    assert read(SAID, trajectory_id="mine").trajectory_id == "mine"


def test_odd_call_ids_name_nothing_and_are_no_error():
    raw = read(CALL | {"call_id": ["c"]}, RESULT | {"call_id": {"c": 1}})
    assert raw.steps[0].observations == (Observation(text="found"),)


@pytest.mark.parametrize(
    ("output", "code", "path"),
    [
        (["hi"], "I201", "$.response.output[0]"),
        ([SAID | {"role": "narrator"}], "I203", "$.response.output[0].role"),
        ([SAID, with_ids(CALL, [1], [2, 0.5])], "I301", f"{ITEM_1}.generation_token_ids[1]"),
        ([SAID | {"generation_token_ids": [2]}], "I202", "$.response.output[0].prompt_token_ids"),
        (
            [with_ids(SAID, [1], [2]) | {"generation_log_probs": [-1.0, -2.0]}],
            "I305",
            "$.response.output[0]",
        ),
    ],
)  # fmt: skip
def test_a_wrong_item_is_refused_with_its_path(output, code, path):
    with pytest.raises(InputError) as caught:
        read(*output)
    assert caught.value.code == code
    assert caught.value.place is not None
    assert caught.value.place.path == path


def test_rows_are_known_by_their_two_halves_and_told_with_ids_or_without():
    row: Any = {"responses_create_params": {}, "response": {"output": [SAID]}}
    sniff = responses.FORMAT.sniff
    assert sniff(row) == "responses_create_params and response.output[], no token ids"
    row["response"]["output"] = [with_ids(SAID, [1], [2])]
    told = "responses_create_params and response.output[] with generation_token_ids"
    assert sniff(row) == told
    others: list[object] = [[], {"response": {"output": []}}, {"responses_create_params": {}}]
    for other in others:
        assert sniff(other) is None


# --- as a template takes it

THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Search."}]}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}


def chat(*output: object, **more: object) -> Any:
    found = conversation_of(read(*output, **more), responses.FORMAT)
    assert found is not None
    return found


def test_a_call_is_one_message_and_results_are_tool_messages():
    found = chat(THOUGHT, SAID, CALL, RESULT, SAID, ASKED)
    assert found.messages == (
        {"role": "user", "content": "task"},
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "Search.",
            "tool_calls": [CHAT_CALL],
        },
        {"role": "tool", "content": "found", "tool_call_id": "c"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "more"},
    )
    assert found.actions == (1, 3)


def test_a_call_without_words_has_no_content():
    assert chat(CALL).messages[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [CHAT_CALL],
    }


@pytest.mark.parametrize("given", ["task", [{"role": "user", "content": "task"}]])
def test_text_that_was_given_is_what_the_user_said(given):
    found = chat(SAID, responses_create_params={"input": given})
    assert found.messages[0] == {"role": "user", "content": "task"}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "developer", "content": "a"},
        ),
        (
            ASKED | {"content": [{"type": "input_image", "image_url": "x"}]},
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
        ),
        (
            RESULT | {"output": [{"type": "input_text", "text": "a"}]},
            {"role": "tool", "content": "a", "tool_call_id": "c"},
        ),
        ({"type": "function_call_output"}, {"role": "tool", "content": None}),
        (CALL, {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}),
        (THOUGHT, {"role": "assistant", "content": None, "reasoning_content": "Search."}),
        (
            THOUGHT | {"content": [{"type": "reasoning_text", "text": "All of it."}]},
            {"role": "assistant", "content": None, "reasoning_content": "All of it."},
        ),
        (
            {"type": "reasoning", "summary": 5, "content": [5, {"text": None}]},
            {"role": "assistant", "content": None},
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "run", "input": "ls"}}
                ],
            },
        ),
        (
            {"type": "web_search_call", "id": "w"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "web_search_call", "id": "w"}],
            },
        ),
    ],
)  # fmt: skip
def test_each_kind_of_item_is_a_message(item, message):
    assert responses.as_chat(item) == message


def test_several_messages_of_one_call_are_one_text_and_what_is_no_text_stays():
    said = SAID | {"content": [{"type": "output_text", "text": "b"}]}
    assert responses.as_chat([SAID, said])["content"] == "ok\nb"
    refusal = SAID | {"content": [{"type": "refusal", "refusal": "no"}]}
    assert responses.as_chat([refusal])["content"] == refusal["content"]


@pytest.mark.parametrize(
    ("given", "path"),
    [(5, "input"), ({"role": "user"}, "input"), (["a", None], "input[1]"), ([["a"]], "input[0]")],
)
def test_an_input_that_is_no_list_of_items_is_refused(given, path):
    with pytest.raises(InputError) as caught:
        read(SAID, responses_create_params={"input": given})
    assert caught.value.code == "I201"
    assert caught.value.place is not None
    assert caught.value.place.path == f"$.responses_create_params.{path}"
