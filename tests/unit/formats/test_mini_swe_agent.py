"""mini-swe-agent runs: messages are steps, a server's ids are the sampler's, no exit is a turn."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.builders import FIXTURES, make_record, records_of, tiny_tokenizer
from trajkit.errors import InputError
from trajkit.formats import detect, mini_swe_agent
from trajkit.formats.conversation import conversation_of
from trajkit.ingestion.run import ingest
from trajkit.records import ActionSource, EndReason
from trajkit.store.read import read_trajectories

FOLDER = FIXTURES / "formats" / "mini-swe-agent"
(TEXT,) = records_of(FOLDER / "text.jsonl")
(IDS,) = records_of(FOLDER / "ids.jsonl")


def read(value: object) -> Any:
    return mini_swe_agent.FORMAT.read(make_record(value))


def answering(**changes: Any) -> dict[str, Any]:
    """Return the run with ids, its first response changed."""
    run: Any = copy.deepcopy(IDS.value)
    response = run["messages"][1]["extra"]["response"]
    for key, value in changes.items():
        (response if key in response else response["choices"][0])[key] = value
    changed: dict[str, Any] = run
    return changed


def test_a_run_of_text_is_read_message_by_message():
    raw = mini_swe_agent.FORMAT.read(TEXT)
    (step,) = raw.steps
    assert (step.action_ids, step.finish_reason) == (None, "stop")
    assert step.observation is not None
    assert "12 a.py" in step.observation
    assert raw.end_reason is None  # of steps or of money: no reason is both
    assert raw.extra["info"]["exit_status"] == "LimitsExceeded"


def test_ids_that_the_server_returned_are_the_samplers(tmp_path):
    ingest([str(FOLDER / "ids.jsonl")], tmp_path / "s.parquet", tokenizer=tiny_tokenizer())
    ((first, second),) = [t.steps for t in read_trajectories(tmp_path / "s.parquet")]
    assert {step.action_source for step in (first, second)} == {ActionSource.SAMPLED}
    assert (first.action_text, second.action_text) == ("I list.<|im_end|>", "Done.<|im_end|>")
    assert first.prompt_ids is not None
    assert first.action_tokens is not None
    assert second.prompt_keep == len(first.prompt_ids) + len(first.action_tokens)
    assert first.rollout_logprobs is not None
    assert set(first.rollout_logprobs.tolist()) == {-0.5}
    assert (first.finish_reason, second.end_reason) == ("tool_calls", EndReason.AGENT)


def test_what_the_agent_asks_of_the_model_is_how_it_sampled():
    run = answering()
    asked: Any = {"temperature": 0.5, "drop_params": True, "presence_penalty": 1.5}
    run["info"]["config"] = {"model": {"model_name": "m", "model_kwargs": asked}}
    raw = read(run)
    assert raw.sampling.temperature == 0.5
    assert raw.sampling.altering == {"presence_penalty": 1.5}
    assert raw.extra["info"]["config"]["model"]["model_kwargs"] == asked
    assert read(run | {"temperature": 1.0}).sampling.temperature == 1.0
    asked["temperature"] = "0.5"
    with pytest.raises(InputError) as caught:
        read(run)
    assert caught.value.place is not None
    assert caught.value.place.path == "$.info.config.model.model_kwargs.temperature"


def test_the_exit_is_kept_and_is_no_message():
    raw = mini_swe_agent.FORMAT.read(IDS)
    assert raw.extra["exit"]["content"] == "patch"
    chat = conversation_of(raw, mini_swe_agent.FORMAT)
    assert chat is not None
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.messages[0]["content"] == "List the files."
    assert all("extra" not in message for message in chat.messages)


@pytest.mark.parametrize(
    ("info", "leave", "reason"),
    [
        ({"exit_status": "Submitted"}, None, EndReason.AGENT),
        ({}, {"exit_status": "TimeExceeded"}, EndReason.TIMEOUT),
        ({"exit_status": "KeyError", "traceback": "..."}, None, EndReason.ERROR),
        ({"exit_status": 3}, {"traceback": "..."}, EndReason.ERROR),
        ({"exit_status": "UserInterruption"}, None, None),
        (None, None, None),
    ],
)
def test_the_exit_status_says_why_a_run_ended(info, leave, reason):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    out = [] if leave is None else [{"role": "exit", "content": "", "extra": leave}]
    assert read({"info": info, "messages": messages + out}).end_reason is reason


def test_action_ids_without_the_prompts_are_told_and_not_read():
    raw = read(answering(prompt_token_ids=None))
    assert raw.steps[0].action_ids is None
    assert raw.steps[1].action_ids is not None
    assert "without the prompt's" in raw.warnings[0]


@pytest.mark.parametrize(
    "response",
    [None, 3, [], {}, {"choices": []}, {"choices": [3]}, {"choices": {}}, {"choices": [{}]}],
)
def test_a_response_of_another_shape_is_no_ids(response):
    message = {"role": "assistant", "content": "y", "extra": {"response": response}}
    (step,) = read({"messages": [message]}).steps
    assert (step.action_ids, step.finish_reason) == (None, None)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"token_ids": ["1"]}, "I301"),
        ({"prompt_token_ids": [-1]}, "I302"),
        ({"token_ids": [1]}, "I305"),
        ({"logprobs": {"content": [{"logprob": 2.0}]}}, "I306"),
    ],
)
def test_ids_that_are_none_are_errors_with_their_place(changes, code):
    with pytest.raises(InputError) as caught:
        read(answering(**changes))
    assert caught.value.code == code
    assert str(caught.value.place).startswith("log.jsonl")
    assert caught.value.place is not None
    assert "$.messages[1].extra.response" in str(caught.value.place.path)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"messages": [], "trajectory_format": "mini-swe-agent-1"}, "mini-swe-agent"),
        ({"messages": [], "info": {"mini_version": "1.0"}}, "mini-swe-agent"),
        ({"messages": [], "info": {}, "trajectory_format": 3}, "messages"),
    ],
)
def test_a_run_is_known_by_what_it_says_of_itself(value, name):
    assert detect(make_record(value))[0].name == name


def test_an_exit_in_the_middle_is_no_message():
    with pytest.raises(InputError) as caught:
        read({"messages": [{"role": "exit"}, {"role": "user", "content": "x"}]})
    assert caught.value.code == "I203"
