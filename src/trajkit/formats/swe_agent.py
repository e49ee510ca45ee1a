"""SWE-agent runs (`.traj`): `{"history": [messages], "trajectory": [steps], "info", ...}`.

`history` is the conversation; demonstrations in it (`is_demo`) are context, whoever speaks in them.
`trajectory` tells each action again: what of it stands in the history too is left out. Its `query`
is what the model was really shown: a history processor may have elided old observations, and then
the prompts of these steps are not the history's, which is said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trajkit.formats.chat import POLICY, Turn, one_text, plain_text, split_turns, to_chat
from trajkit.formats.fields import Fields, take_whole
from trajkit.formats.messages import step_of
from trajkit.formats.nested import take_tools
from trajkit.formats.raw import Format, RawStep, RawTrajectory
from trajkit.records import EndReason
from trajkit.safe.json import Record

_MARKS = ("message_type", "agent", "thought", "is_demo")
"""Keys that SWE-agent's messages have and others have not."""
_SHOWN = ("role", "content", "tool_calls")
_EDITED = "the model was shown an edited history (query): the prompts here are the whole history's"
_APART = "trajectory and history tell another number of actions: trajectory is kept in extra_json"

END_REASONS: dict[str, EndReason] = {
    "submitted": EndReason.AGENT,
    "exit_context": EndReason.CONTEXT,
    "exit_command_timeout": EndReason.TIMEOUT,
    "exit_total_execution_time": EndReason.TIMEOUT,
    "exit_format": EndReason.ERROR,
    "exit_error": EndReason.ERROR,
    "exit_api": EndReason.ERROR,
    "exit_environment_error": EndReason.ERROR,
}
"""What `info.exit_status` says; a status with a reason in brackets is that reason."""


def as_chat(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates take it.

    The id of the call that a result answers, and the text of thinking blocks, stand where a chat
    message has them; a part of text that is marked for a cache is that text.
    """
    chat = one_text(to_chat(message))
    ids = chat.get("tool_call_ids")
    if isinstance(ids, list) and ids and "tool_call_id" not in chat:
        chat = chat | {"tool_call_id": ids[0]}
    blocks = chat.get("thinking_blocks")
    parts = blocks if isinstance(blocks, list) else []
    thoughts = [part["thinking"] for part in parts if isinstance(part, dict) and "thinking" in part]
    if thoughts and all(isinstance(text, str) for text in thoughts):
        chat = chat | {"reasoning_content": "\n".join(thoughts)}
    return chat


def _sniff(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    history = value.get("history")
    if not isinstance(history, list):
        return None
    first = history[0] if history and isinstance(history[0], dict) else {}
    marks = [key for key in _MARKS if key in first]
    if marks and "role" in first:
        return f"history with {', '.join(marks)}, no token ids"
    is_run = isinstance(value.get("trajectory"), list) and isinstance(value.get("info"), dict)
    return "history, trajectory and info, no token ids" if is_run else None


def _read(record: Record) -> RawTrajectory:
    fields = Fields(record.value, record.place)
    history = fields.take_list("history")
    if history is None:
        raise fields.missing("history")
    chat = [as_chat(m) if isinstance(m, dict) else m for m in history]
    turns, after = split_turns(chat, record.place, "$.history", _is_action)
    steps = _steps(turns, history)
    told = fields.rest().get("trajectory")
    warnings: tuple[str, ...] = ()
    if (
        isinstance(told, list)
        and len(told) == len(steps)
        and all(isinstance(t, dict) for t in told)
    ):
        fields.take("trajectory")
        steps, warnings = _with_told(steps, told, history)
    elif told:
        warnings = (_APART,)
    tools, doubts = take_tools(fields)
    return RawTrajectory(
        **take_whole(fields),
        tools_json=tools,
        steps=steps,
        messages_after=tuple(history[len(history) - len(after) :]),
        end_reason=_end_reason(fields.rest().get("info")),
        extra=fields.rest(),
        warnings=warnings + doubts,
    )


def _is_action(message: dict[str, Any]) -> bool:
    """Return whether the policy of this run wrote a message: a demonstration was written before."""
    return message["role"] == POLICY and not message.get("is_demo")


def _steps(turns: list[Turn], history: list[Any]) -> tuple[RawStep, ...]:
    """Return the steps of turns, their messages as they stand in the record."""
    steps, at = [], 0
    for turn in turns:
        own = at + len(turn.added)
        step = step_of(turn)
        steps.append(
            replace(step, messages_added=tuple(history[at:own]), action_message=history[own])
        )
        at = own + 1
    return tuple(steps)


def _with_told(
    steps: tuple[RawStep, ...], told: list[dict[str, Any]], history: list[Any]
) -> tuple[tuple[RawStep, ...], tuple[str, ...]]:
    """Return the steps with what `trajectory` alone says of each."""
    found, at, is_edited = [], 0, False
    for step, entry in zip(steps, told, strict=True):
        at += len(step.messages_added)
        known = {
            "response": plain_text(step.action_message),
            "thought": step.action_message.get("thought"),
            "action": step.action_message.get("action"),
            "observation": step.observation,
        }
        extra = {k: v for k, v in entry.items() if k not in known or v != known[k]}
        query = extra.get("query")
        if _is_shown(query, history, at):
            del extra["query"]
        is_edited |= bool(extra.get("query"))
        found.append(replace(step, extra=extra))
        at += 1
    return tuple(found), (_EDITED,) if is_edited else ()


def _is_shown(query: Any, history: list[Any], n: int) -> bool:
    """Return whether a query is the first `n` messages: what a model sees of them is the same."""
    if not isinstance(query, list) or len(query) != n:
        return False
    return all(
        isinstance(one, dict) and all(one.get(key) == other.get(key) for key in _SHOWN)
        for one, other in zip(query, history[:n], strict=True)
    )


def _end_reason(info: Any) -> EndReason | None:
    status = info.get("exit_status") if isinstance(info, dict) else None
    if not isinstance(status, str):
        return None
    inner = status.partition("(")[2].rstrip(") ")
    return END_REASONS.get(inner or status)


FORMAT = Format(
    name="swe-agent",
    shape='{"history": [{"role", "content", "message_type"}], "trajectory", "info"}',
    sniff=_sniff,
    read=_read,
    as_chat=as_chat,
)
