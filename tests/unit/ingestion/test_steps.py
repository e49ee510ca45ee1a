"""A raw trajectory into steps: where its rewards, messages, spans and unmapped keys go."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.builders import make_floats, tiny_tokenizer
from trajkit.errors import InputError, Place
from trajkit.formats.raw import RawStep, RawTrajectory, Sampling
from trajkit.ingestion.steps import Source, to_trajectory
from trajkit.records import (
    ActionSource,
    LogprobKind,
    PromptSource,
    Segment,
    SegmentKind,
    ids_array,
)

SOURCE = Source(
    format="per-call", file="log.jsonl", record=4, place=Place(file="log.jsonl", line=5)
)


def steps_of(*calls: RawStep, tokenizer=None, **given: Any) -> Any:
    return to_trajectory(RawTrajectory(steps=calls, **given), "t", SOURCE, tokenizer).steps


def call(prompt: list[int] | None = None, action: list[int] | None = None, **given: Any) -> RawStep:
    return RawStep(
        prompt_ids=None if prompt is None else ids_array(prompt),
        action_ids=None if action is None else ids_array(action),
        **given,
    )


def said(text: str, *added: str) -> RawStep:
    """Return a call told as messages alone."""
    return RawStep(messages_added=tuple(added), action_message={"role": "assistant", "text": text})


def test_ids_are_kept_as_they_are_and_called_sampled():
    (step,) = steps_of(call([5, 6], [7, 2], logprobs=make_floats([-0.5, None])))
    assert step.action_tokens.tolist() == [7, 2]
    assert step.action_source is ActionSource.SAMPLED
    assert step.prompt_source is PromptSource.RECORDED
    assert step.logprob_kind is LogprobKind.UNKNOWN
    assert step.rollout_logprobs[0] == np.float32(-0.5)
    assert np.isnan(step.rollout_logprobs[1])


def test_an_empty_action_is_sampled_and_a_missing_one_is_none():
    empty, missing = steps_of(call([5], []), call([5], None))
    assert empty.action_source is ActionSource.SAMPLED
    assert empty.action_tokens.tolist() == []
    assert missing.action_source is ActionSource.NONE
    assert missing.action_tokens is None
    assert missing.prompt_ids.tolist() == [5]


def test_a_call_without_ids_has_no_prompt_and_no_source():
    (step,) = steps_of(said("hello", "hi"))
    assert step.prompt_source is PromptSource.NONE
    assert step.action_source is ActionSource.NONE
    assert step.prompt_len is None
    assert step.logprob_kind is None


def test_the_way_back_and_what_steps_have_in_common_stand_on_every_step():
    steps = steps_of(
        call([5], [6]),
        call([5, 6], [7]),
        group_id="g",
        task_id="task",
        agent="a",
        sampling=Sampling(model="m", temperature=0.5, top_p=1.0, top_k=20),
    )
    for step in steps:
        assert (step.group_id, step.task_id, step.agent, step.model) == ("g", "task", "a", "m")
        assert (step.temperature, step.top_p, step.top_k) == (0.5, 1.0, 20)
        assert (step.source_format, step.source_file, step.source_record) == (
            "per-call",
            "log.jsonl",
            4,
        )


def test_only_the_last_step_is_terminal_and_has_the_trajectorys_reward():
    steps = steps_of(call([5], [6]), call([5, 6], [7]), reward=1.0)
    assert [step.is_terminal for step in steps] == [False, True]
    assert [step.reward for step in steps] == [None, 1.0]
    assert [step.rewards for step in steps] == [None, None]


def test_step_rewards_stay_where_they_are_and_the_total_is_named():
    steps = steps_of(call([5], [6], reward=0.5), call([5, 6], [7]), reward=1.0)
    assert [step.reward for step in steps] == [0.5, None]
    assert steps[0].rewards is None
    (part,) = steps[1].rewards
    assert (part.name, part.value, part.weight, part.kind) == ("trajectory", 1.0, None, "outcome")


def test_a_reward_of_zero_is_a_reward():
    steps = steps_of(call([5], [6], reward=0.0), call([5, 6], [7]), reward=None)
    assert [step.reward for step in steps] == [0.0, None]
    assert steps[1].rewards is None


@pytest.mark.parametrize(
    ("finish_reason", "is_truncated"),
    [("length", True), ("max_tokens", True), ("stop", False), ("tool_calls", False), (None, None)],
)
def test_an_action_is_truncated_where_its_finish_reason_says_so(finish_reason, is_truncated):
    (step,) = steps_of(call([5], [6], finish_reason=finish_reason))
    assert step.is_truncated is is_truncated
    assert step.finish_reason == finish_reason


def test_segments_tell_prompt_context_text_and_the_stop_token():
    first, second = steps_of(
        call([1, 5], [6, 2]), call([1, 5, 6, 2, 9], [7]), tokenizer=tiny_tokenizer()
    )
    assert first.segments == (
        Segment(SegmentKind.PROMPT, 0, 2),
        Segment(SegmentKind.TEXT, 2, 3),
        Segment(SegmentKind.STOP, 3, 4),
    )
    assert second.segments == (Segment(SegmentKind.CONTEXT, 0, 1), Segment(SegmentKind.TEXT, 1, 2))


def test_a_control_token_at_the_end_of_a_cut_action_is_no_stop():
    (step,) = steps_of(call([1], [6, 2], finish_reason="length"), tokenizer=tiny_tokenizer())
    assert [segment.kind for segment in step.segments] == [SegmentKind.PROMPT, SegmentKind.TEXT]


def test_a_retry_has_no_segment_for_what_it_did_not_add():
    _, again = steps_of(call([1, 5], [6]), call([1, 5], []))
    assert again.segments == ()


def test_without_a_tokenizer_there_is_no_text_but_the_sources_own():
    (step,) = steps_of(call([5], [6], action_text="hello"))
    assert step.action_text == "hello"
    assert (step.text_keep, step.text_delta, step.tokenizer) == (None, None, None)


def test_with_a_tokenizer_the_text_is_what_the_ids_spell():
    tokenizer = tiny_tokenizer()
    (step,) = steps_of(call([1], [2], action_text="not this"), tokenizer=tokenizer)
    assert step.action_text == "<|im_end|>"
    assert step.state_before == "<|im_start|>"
    assert step.tokenizer == "tiny"


def test_a_tokenizer_says_nothing_of_steps_without_ids():
    (step,) = steps_of(said("hello"), tokenizer=tiny_tokenizer())
    assert step.tokenizer is None
    assert step.state_before is None


@pytest.mark.parametrize(
    ("calls", "message", "index"),
    [
        ([call([1, 512], [5])], "prompt id 512 (position 1)", 0),
        ([call([1], [5, 6, 4096])], "action id 4096 (position 2)", 0),
        ([call([1], [5]), call([1, 5, 9, 600], [5])], "prompt id 600 (position 3)", 1),
    ],
)
def test_an_id_outside_the_vocabulary_is_named_with_its_position(calls, message, index):
    with pytest.raises(InputError) as caught:
        steps_of(*calls, tokenizer=tiny_tokenizer())
    assert caught.value.code == "I304"
    assert message in caught.value.message
    assert "tiny (512 ids)" in caught.value.message
    assert caught.value.place == Place(
        file="log.jsonl", line=5, trajectory_id="t", step_index=index
    )


def test_messages_of_steps_in_order_are_the_conversation():
    steps = steps_of(said("one", "system", "user"), said("two", "result"), said("three"))
    assert [step.messages_keep for step in steps] == [None, 3, 5]
    assert [json.loads(step.messages_json) for step in steps] == [
        ["system", "user"],
        ["result"],
        [],
    ]
    assert json.loads(steps[1].action_message_json) == {"role": "assistant", "text": "two"}
    assert [step.prompt_parent for step in steps] == [None, 0, 1]


def test_what_a_branch_or_a_retry_kept_of_its_parents_messages_is_not_known():
    def told(prompt: list[int], *added: str) -> RawStep:
        return call(prompt, [8], messages_added=added, action_message={"role": "assistant"})

    steps = steps_of(
        told([1, 5], "user"),
        told([1, 5, 8, 7], "result"),
        told([1, 5, 8, 7]),  # the same prompt again
        told([1, 5, 8, 7, 8], "more"),
        told([1, 5, 9]),  # without the first action
        told([2]),  # from nothing
        told([1, 5, 9, 8]),  # goes on from the last but one
    )
    assert [step.prompt_parent for step in steps] == [None, 0, 1, 2, 3, None, 4]
    assert [step.messages_keep for step in steps] == [None, 2, None, 5, 7, None, None]
    added = [message for step in steps for message in json.loads(step.messages_json)]
    assert added == ["user", "result", "more"]


def test_unmapped_keys_stand_by_where_they_stood():
    steps = steps_of(
        call([5], [6], extra={"seed": 1}),
        call([5, 6], [7]),
        call([5, 6, 7], [8], extra={"record": "mine"}),
        extra={"env": "search", "call": "mine"},
        messages_after=({"role": "user"},),
    )
    extras = [None if step.extra_json is None else json.loads(step.extra_json) for step in steps]
    assert extras == [
        {"record": {"env": "search", "call": "mine"}, "call": {"seed": 1}},
        None,
        {"call": {"record": "mine"}, "messages_after": [{"role": "user"}]},
    ]


def test_tools_stand_on_the_first_step():
    steps = steps_of(call([5], [6]), call([5, 6], [7]), tools_json="[ ]")
    assert [step.tools_json for step in steps] == ["[ ]", None]


def test_a_record_without_a_call_is_one_row_that_is_not_trained():
    (step,) = steps_of(
        reward=0.5,
        messages_after=({"role": "user", "content": "hi"},),
        extra={"env": "x"},
        tools_json="[]",
        sampling=Sampling(model="m"),
    )
    assert step.exclude_reason == "no_step"
    assert step.is_terminal
    assert (step.reward, step.tools_json, step.model) == (0.5, "[]", "m")
    assert (step.action_source, step.action_tokens) == (ActionSource.NONE, None)
    assert json.loads(step.messages_json) == [{"role": "user", "content": "hi"}]
    assert json.loads(step.extra_json) == {"record": {"env": "x"}}


def test_each_step_of_a_long_window_holds_only_its_own_ids():
    calls = [call([1, 2, 3, 10 + k], [7]) for k in range(400)]
    steps = steps_of(*calls)
    assert sum(len(step.prompt_delta) for step in steps) == 4 + 399
    assert all(step.origin is steps[0] for step in steps[1:])


def test_what_a_call_says_of_its_sampling_overrules_the_record():
    first, second = steps_of(
        call([1], [5], sampling=Sampling(temperature=0.5)),
        call([1, 5], [6]),
        sampling=Sampling(model="m", temperature=1.0),
    )
    assert (first.model, first.temperature) == ("m", 0.5)
    assert (second.model, second.temperature) == ("m", 1.0)


def test_settings_without_a_column_stand_at_each_step_whose_logprobs_they_alter():
    logprobs = np.array([-0.5], dtype=np.float32)
    steps = steps_of(
        call([1], [5], logprobs=logprobs, extra={"min_p": 0.125}),
        call([1, 5], [6], logprobs=logprobs, sampling=Sampling(others={"min_p": 0.0})),
        call([1, 5, 6], [7]),
        sampling=Sampling(others={"min_p": 0.125, "presence_penalty": 0.0}),
    )
    extras = [None if step.extra_json is None else json.loads(step.extra_json) for step in steps]
    assert extras == [{"call": {"min_p": 0.125}, "sampling": {"min_p": 0.125}}, None, None]


@pytest.mark.parametrize("finish_reason", ["abort", "content_filter", "error"])
def test_an_unknown_finish_reason_does_not_tell_whether_the_action_was_cut(finish_reason):
    (step,) = steps_of(call([1], [5], finish_reason=finish_reason))
    assert step.is_truncated is None
