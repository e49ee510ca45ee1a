"""Responses rows: items become calls, the ids on the last item of a call are the whole call's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import FIXTURES, make_record, records_of
from trajkit.errors import InputError
from trajkit.formats import responses
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
