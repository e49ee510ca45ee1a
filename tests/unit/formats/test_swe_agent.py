"""SWE-agent runs: demonstrations are context, what is told twice is kept once, nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import FIXTURES, make_record, records_of
from tests.template_builders import real
from trajkit.errors import InputError
from trajkit.formats import detect, swe_agent
from trajkit.formats.conversation import conversation_of
from trajkit.ingestion.run import ingest
from trajkit.records import EndReason, SegmentKind
from trajkit.store.read import read_trajectories

FOLDER = FIXTURES / "formats" / "swe-agent"
(TOOLS,) = records_of(FOLDER / "tools.traj")
(TEXT,) = records_of(FOLDER / "text.traj")


def read(value: object) -> Any:
    return swe_agent.FORMAT.read(make_record(value))


def test_a_run_is_read_step_by_step_and_demonstrations_are_context():
    raw = swe_agent.FORMAT.read(TOOLS)
    assert [step.action_message["action"] for step in raw.steps] == ["open a.py", "submit"]
    assert [len(step.messages_added) for step in raw.steps] == [5, 1]
    assert raw.steps[0].messages_added[2]["role"] == "assistant"  # of the demonstration
    assert [step.observation for step in raw.steps] == ["1:def f()\r\n", "diff"]
    assert [step.observations[0].call_id for step in raw.steps if step.observations] == [
        "call_1",
        "call_2",
    ]
    assert raw.end_reason is EndReason.AGENT
    assert raw.extra["info"]["submission"] == "diff"
    assert raw.extra["environment"] == "swe_main"


def test_the_messages_come_back_verbatim_and_become_chat():
    raw = swe_agent.FORMAT.read(TOOLS)
    source: Any = TOOLS.value
    said = [m for step in raw.steps for m in (*step.messages_added, step.action_message)]
    assert [*said, *raw.messages_after] == source["history"]
    chat = conversation_of(raw, swe_agent.FORMAT)
    assert chat is not None
    assert chat.actions == (5, 7)
    assert chat.messages[6]["tool_call_id"] == "call_1"
    assert chat.messages[5]["reasoning_content"] == "Look at a.py."


def test_what_trajectory_tells_again_is_left_out_and_the_rest_is_kept():
    raw = swe_agent.FORMAT.read(TOOLS)
    assert [sorted(step.extra) for step in raw.steps] == [
        ["execution_time", "extra_info", "state"]
    ] * 2
    assert raw.warnings == ()


def test_a_query_that_is_not_the_history_is_kept_and_said():
    raw = swe_agent.FORMAT.read(TEXT)
    source: Any = TEXT.value
    assert [step.extra.get("query") for step in raw.steps] == [
        None,
        source["trajectory"][1]["query"],
    ]
    assert raw.steps[1].extra["observation"] == "13 b"  # the history ends before it
    assert "edited history" in raw.warnings[0]
    assert raw.end_reason is EndReason.CONTEXT


@pytest.mark.parametrize("told", [[], [{}] * 3, [1, 2], "none", {"a": 1}])
def test_a_trajectory_that_does_not_fit_its_history_is_kept_whole(told):
    source: Any = TOOLS.value
    raw = read({**source, "trajectory": told})
    assert raw.extra.get("trajectory") == told
    assert raw.warnings == (() if not told else raw.warnings)
    assert len(raw.warnings) == bool(told)
    assert [step.extra for step in raw.steps] == [{}, {}]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("submitted", EndReason.AGENT),
        ("exit_format", EndReason.ERROR),
        ("submitted (exit_command_timeout)", EndReason.TIMEOUT),
        ("exit_cost", None),  # of money, which no reason is
        ("", None),
        (None, None),
        (3, None),
    ],
)
def test_the_exit_status_says_why_a_run_ended(status, reason):
    source: Any = TOOLS.value
    assert read({**source, "info": {"exit_status": status}}).end_reason is reason


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        ({"history": [{"role": "user", "content": "x", "agent": "main"}]}, True),
        ({"history": [], "trajectory": [], "info": {}}, True),
        ({"history": [{"role": "user", "content": "x"}]}, False),
        ({"history": [3]}, False),
        ({"history": "x", "trajectory": [], "info": {}}, False),
        ({"trajectory": [], "info": {}}, False),
        ([], False),
    ],
)
def test_a_run_is_known_by_its_history(value, is_known):
    assert (swe_agent.FORMAT.sniff(value) is not None) is is_known


def test_both_fixtures_are_detected():
    assert [detect(record)[0].name for record in (TOOLS, TEXT)] == ["swe-agent"] * 2


@pytest.mark.parametrize(
    ("history", "code", "path"),
    [
        ([3], "I201", "$.history[0]"),
        ([{"role": "exit", "content": "x", "agent": "main"}], "I203", "$.history[0].role"),
    ],
)
def test_a_message_that_is_none_is_an_error_with_its_place(history, code, path):
    with pytest.raises(InputError) as caught:
        read({"history": history})
    assert caught.value.place is not None
    assert (caught.value.code, caught.value.place.path) == (code, path)


@pytest.mark.parametrize("blocks", [3, [3], [{"thinking": 3}], [{}], None])
def test_odd_thinking_blocks_are_no_reasoning(blocks):
    message = {"role": "assistant", "content": "x", "agent": "main", "thinking_blocks": blocks}
    raw = read({"history": [message]})
    chat = conversation_of(raw, swe_agent.FORMAT)
    assert chat is not None
    assert "reasoning_content" not in chat.messages[0]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "a"),
        ([{"type": "text", "text": "a"}] * 2, [{"type": "text", "text": "a"}] * 2),
        ([{"type": "image_url"}], [{"type": "image_url"}]),
        (["a"], ["a"]),
        ([], []),
    ],
)
def test_one_part_of_text_that_is_marked_for_a_cache_is_that_text(content, shown):
    assert swe_agent.as_chat({"role": "user", "content": content})["content"] == shown


@pytest.mark.model
def test_no_token_of_a_demonstration_is_an_action(tmp_path):
    out = tmp_path / "steps.parquet"
    ingest([str(FOLDER)], out, tokenizer=real("qwen3"), retokenize=True)
    by_text = {t.steps[0].action_text: t for t in read_trajectories(out)}
    for trajectory in by_text.values():
        first = trajectory.steps[0]
        actions = "".join(step.action_text or "" for step in trajectory.steps)
        assert "I look first." not in actions
        assert first.segments is not None
        assert {s.kind for s in first.segments} & {SegmentKind.STOP}
    (tools,) = [t for t in by_text.values() if len(t.steps) == 2 and "open" in str(t.steps[0])]
    assert "I look first." in (tools.steps[0].state_before or "")
    assert tools.steps[1].end_reason is EndReason.AGENT
