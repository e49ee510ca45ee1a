"""ShareGPT-like conversations: `{"conversations": [{"from", "value"}], "tools", "system"}`.

A call stands in an entry of its own, as JSON text, and is a step like any other word of the policy.
A `system` text of the record is the first message, `{"system": text}`, where the conversation has
no system entry of its own.
"""

from __future__ import annotations

from typing import Any

from trajkit.errors import InputError
from trajkit.formats.chat import INSTRUCTIONS, POLICY, Turn, split_turns
from trajkit.formats.fields import Fields, take_whole
from trajkit.formats.nested import calls_in, take_tools
from trajkit.formats.raw import Format, RawStep, RawTrajectory
from trajkit.safe.faults import QUARANTINE_HINT
from trajkit.safe.json import Record

ROLES: dict[str, str] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": POLICY,
    "chatgpt": POLICY,
    "assistant": POLICY,
    "function_call": POLICY,
    "tool_call": POLICY,
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""What `from` says, and the role of a chat message that it is."""
_CALLS = ("function_call", "tool_call")
_TWO_SYSTEMS = "system beside a system entry: the record's own is kept in extra_json"


def as_chat(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as a chat message; its other keys stay.

    The value of a call becomes `tool_calls`, arguments as they are; where it is no JSON of a call
    it stays content.
    """
    if "from" not in entry:
        return {"role": "system", "content": entry["system"]}
    message = {"role": ROLES[entry["from"]], "content": entry["value"]}
    calls = calls_in(entry["value"]) if entry["from"] in _CALLS else None
    if calls is not None:
        message |= {"content": None, "tool_calls": calls}
    return message | {key: entry[key] for key in entry if key not in ("from", "value", *message)}


def _sniff(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    entries = value.get("conversations")
    if not isinstance(entries, list):
        return None
    if entries and not (isinstance(entries[0], dict) and "from" in entries[0]):
        return None
    return "conversations with from and value, no token ids"


def _read(record: Record) -> RawTrajectory:
    fields = Fields(record.value, record.place)
    entries = fields.take_list("conversations")
    if entries is None:
        raise fields.missing("conversations")
    for index, entry in enumerate(entries):
        _check(Fields(entry, record.place, f"$.conversations[{index}]"))
    messages, doubts = _with_system(fields, entries)
    turns, after = split_turns([as_chat(entry) for entry in messages], record.place)
    tools, warnings = take_tools(fields)
    return RawTrajectory(
        **take_whole(fields),
        tools_json=tools,
        steps=_steps(turns, messages),
        messages_after=tuple(messages[len(messages) - len(after) :]),
        extra=fields.rest(),
        warnings=doubts + warnings,
    )


def _check(entry: Fields) -> None:
    """Raise I201, I202 or I203 unless an entry has a speaker that is known, and a text."""
    speaker = entry.take_text("from")
    if speaker is None:
        raise entry.missing("from")
    if speaker not in ROLES:
        raise InputError(
            "I203",
            f"expected a known speaker, found {speaker[:40]!r}",
            place=entry.place("from"),
            hint=f"from is one of {', '.join(ROLES)}; {QUARANTINE_HINT}",
        )
    if entry.take_text("value") is None:
        raise entry.missing("value")


def _with_system(fields: Fields, entries: list[Any]) -> tuple[list[Any], tuple[str, ...]]:
    """Return the entries, the record's own system text first; and what is to be said of it."""
    if not fields.rest().get("system"):
        return entries, ()
    if any(ROLES[entry["from"]] in INSTRUCTIONS for entry in entries):
        return entries, (_TWO_SYSTEMS,)
    return [{"system": fields.take_text("system")}, *entries], ()


def _steps(turns: list[Turn], messages: list[Any]) -> tuple[RawStep, ...]:
    """Return the steps of turns, their messages as they stand in the record."""
    steps, at = [], 0
    for turn in turns:
        own = at + len(turn.added)
        steps.append(
            RawStep(
                messages_added=tuple(messages[at:own]),
                action_message=messages[own],
                action_text=turn.message["content"],
                observation=turn.observation,
                observations=turn.observations,
            )
        )
        at = own + 1
    return tuple(steps)


FORMAT = Format(
    name="sharegpt",
    shape='{"conversations": [{"from", "value"}]}',
    sniff=_sniff,
    read=_read,
    as_chat=as_chat,
)
