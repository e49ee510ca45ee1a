"""Chat message lists, one conversation a record: `{"messages": [{"role", "content"}], ...}`."""

from __future__ import annotations

from dataclasses import replace

from trajkit.formats.chat import Turn, split_turns, spoken_text, to_chat
from trajkit.formats.fields import Fields, take_whole
from trajkit.formats.nested import take_tools
from trajkit.formats.raw import Format, RawStep, RawTrajectory
from trajkit.safe.json import Record


def _sniff(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    messages = value.get("messages")
    if not isinstance(messages, list):
        return None
    if messages and not (isinstance(messages[0], dict) and "role" in messages[0]):
        return None
    return "messages with roles, no token ids"


def _read(record: Record) -> RawTrajectory:
    fields = Fields(record.value, record.place)
    messages = fields.take_list("messages")
    if messages is None:
        raise fields.missing("messages")
    turns, after = split_turns(messages, record.place)
    tools, warnings = take_tools(fields)
    steps = [step_of(turn) for turn in turns]
    finish = fields.take_text("finish_reason") if steps else None
    if finish is not None and steps[-1].finish_reason is None:
        steps[-1] = replace(steps[-1], finish_reason=finish.lower())
    return RawTrajectory(
        **take_whole(fields),
        tools_json=tools,
        steps=tuple(steps),
        messages_after=after,
        extra=fields.rest(),
        warnings=warnings,
    )


def step_of(turn: Turn) -> RawStep:
    """Return the step of a turn: its messages verbatim, its words where they are all of it."""
    finish = turn.message.get("finish_reason")
    return RawStep(
        finish_reason=finish.lower() if isinstance(finish, str) else None,
        messages_added=turn.added,
        action_message=turn.message,
        action_text=spoken_text(turn.message),
        observation=turn.observation,
        observations=turn.observations,
    )


FORMAT = Format(
    name="messages",
    shape='{"messages": [{"role", "content"}]}',
    sniff=_sniff,
    read=_read,
    as_chat=to_chat,
)
