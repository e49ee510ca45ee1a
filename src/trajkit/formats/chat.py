"""What chat messages have in common, whichever format carries them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trajkit.errors import InputError, Place
from trajkit.formats.nested import calls_in
from trajkit.records import Observation
from trajkit.safe.faults import QUARANTINE_HINT

POLICY = "assistant"
ENVIRONMENT = ("tool", "function", "user")
"""Roles whose text reaches the policy as an observation when it stands after an action."""
INSTRUCTIONS = ("system", "developer")
_TOOLS = ("tool", "function")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of the policy, what was added before it, and what came back after it."""

    added: tuple[Any, ...]
    message: dict[str, Any]
    observation: str | None
    observations: tuple[Observation, ...] | None


def split_turns(
    messages: Sequence[Any],
    place: Place,
    path: str = "$.messages",
    is_action: Callable[[dict[str, Any]], bool] | None = None,
) -> tuple[list[Turn], tuple[Any, ...]]:
    """Return a turn per message of the policy, and the messages after the last one.

    Args:
        messages: chat messages.
        place: the record they stand in.
        path: where in the record.
        is_action: whether a message is the policy's; by its role when not given.

    Raises:
        InputError: I201 when a message is no object, I203 when its role is not known.
    """
    roles = [role_of(message, place, f"{path}[{i}]") for i, message in enumerate(messages)]
    spots = [
        i
        for i, role in enumerate(roles)
        if (role == POLICY if is_action is None else is_action(messages[i]))
    ]
    turns = []
    for number, spot in enumerate(spots):
        before = spots[number - 1] + 1 if number else 0
        after = spots[number + 1] if number + 1 < len(spots) else len(messages)
        replies = messages[spot + 1 : after]
        names = _call_names(messages[spot])
        turns.append(
            Turn(
                added=tuple(messages[before:spot]),
                message=messages[spot],
                observation=_joined(m for m in replies if m["role"] in ENVIRONMENT),
                observations=_results(replies, names),
            )
        )
    return turns, tuple(messages[spots[-1] + 1 :] if spots else messages)


def plain_text(message: dict[str, Any]) -> str | None:
    """Return a message's text: its content, or the text parts of it; `None` when it has none."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [_part_text(part) for part in content]
    known = [part for part in parts if part is not None]
    return "".join(known) if known else None


def spoken_text(message: dict[str, Any]) -> str | None:
    """Return the policy's words when they are all of its message: no calls, no separate reasoning.

    A message with calls was sampled as some markup this message no longer shows.
    """
    hidden = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
    if any(message.get(key) for key in hidden):
        return None
    content = message.get("content")
    if isinstance(content, list) and any(_part_text(part) is None for part in content):
        return None
    return plain_text(message)


def to_chat(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates take it; a plain chat message is equal to itself.

    Parts of the content that have a key of their own in a chat message move there: reasoning to
    `reasoning_content`, calls to `tool_calls`. Text that stands under `value` becomes text. What is
    left is one text where it is nothing but text, and null where it is nothing. A `function_call`
    of older logs is a call, and the role `function` is `tool`.
    """
    message = _renewed(message)
    content = message.get("content")
    if not isinstance(content, list) or not any(map(_is_foreign, content)):
        return message
    thoughts, calls, left = [], [], []
    for part in content:
        text = _value_of(part) if _is_foreign(part) else None
        found = calls_in(text) if text is not None and part["type"] == "tool_call" else None
        if found is not None:
            calls += found
        elif text is not None and part["type"] == "reasoning":
            thoughts.append(text)
        else:
            left.append(part if text is None else {"type": "text", "text": text})
    texts = [text for text in map(_part_text, left) if text is not None]
    chat = dict(message)
    chat["content"] = left if len(texts) < len(left) else "".join(texts) if texts else None
    if thoughts:
        said = message.get("reasoning_content")
        before = [said] if isinstance(said, str) and said else []
        chat["reasoning_content"] = "\n".join([*before, *thoughts])
    if calls:
        known = message.get("tool_calls")
        chat["tool_calls"] = [*(known if isinstance(known, list) else ()), *calls]
    return chat


def one_text(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is one part of text with that text as its content.

    Agents write such a part where it has to carry a mark for a cache; templates take both forms or
    text alone. Several parts are joined in one way here and another there: they stay.
    """
    content = message.get("content")
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return message
    text = _part_text(content[0])
    return message if text is None else message | {"content": text}


def _renewed(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in today's words."""
    found = dict(message)
    if found.get("role") == "function":
        found["role"] = "tool"
    call = found.get("function_call")
    if isinstance(call, dict) and not found.get("tool_calls"):
        del found["function_call"]
        found["tool_calls"] = [{"type": "function", "function": call}]
    return found


def role_of(message: Any, place: Place, path: str) -> str:
    """Return a message's role.

    Args:
        message: what should be a message.
        place: the record it stands in.
        path: where in the record.

    Raises:
        InputError: I201 when the message is no object, I203 when its role is not known.
    """
    if not isinstance(message, dict):
        raise InputError(
            "I201",
            "expected a message object",
            place=replace(place, path=path),
            excerpt=json.dumps(message)[:80],
            hint=QUARANTINE_HINT,
        )
    role = message.get("role")
    if role != POLICY and role not in ENVIRONMENT and role not in INSTRUCTIONS:
        known = ", ".join((*INSTRUCTIONS, POLICY, *ENVIRONMENT))
        raise InputError(
            "I203",
            "expected a known role, found " + ("none" if role is None else json.dumps(role)[:40]),
            place=replace(place, path=f"{path}.role"),
            hint=f"roles are {known}",
        )
    return str(role)


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") not in ("text", "input_text", "output_text"):
        return None
    text = part.get("text", part.get("value"))
    return text if isinstance(text, str) else None


def _is_foreign(part: Any) -> bool:
    """Return whether a part of a content stands elsewhere, or otherwise, in a chat message."""
    if not isinstance(part, dict) or _value_of(part) is None:
        return False
    kind = part.get("type")
    return kind in ("reasoning", "tool_call") or (kind == "text" and "text" not in part)


def _value_of(part: dict[str, Any]) -> str | None:
    value = part.get("value", part.get("text"))
    return value if isinstance(value, str) else None


def _call_names(message: dict[str, Any]) -> dict[str, str]:
    """Return the function names of a message's calls by call id."""
    names = {}
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("id"), str):
            function = call.get("function")
            name = function.get("name") if isinstance(function, dict) else call.get("name")
            if isinstance(name, str):
                names[call["id"]] = name
    return names


def _joined(messages: Iterable[dict[str, Any]]) -> str | None:
    texts = [text for text in map(plain_text, messages) if text is not None]
    return "\n".join(texts) if texts else None


def _results(
    replies: Sequence[dict[str, Any]], names: dict[str, str]
) -> tuple[Observation, ...] | None:
    results = []
    for message in replies:
        if message["role"] not in _TOOLS:
            continue
        call_id, name = message.get("tool_call_id"), message.get("name")
        call_id = call_id if isinstance(call_id, str) else None
        results.append(
            Observation(
                call_id=call_id,
                name=name if isinstance(name, str) else names.get(call_id or ""),
                text=plain_text(message),
            )
        )
    return tuple(results) or None
