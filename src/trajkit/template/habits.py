"""How a template wants its messages: found by asking it about one small call, not by its name.

Logs keep the arguments of a call as JSON text or as an object, and `"content": null` beside it.
Templates differ in what they take: given the other form some refuse, some print a string of a
string. What a template writes of a small call decides which form of the log's it is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trajkit.errors import TrajkitError
from trajkit.template.leaves import Nulls
from trajkit.template.load import ChatTemplate
from trajkit.template.rendering import Setting, render_text

_KEY, _VALUE = "trajkitkey", "trajkitvalue"
_OBJECT = {_KEY: _VALUE}
_TEXT = json.dumps(_OBJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a template takes.

    Attributes:
        text_arguments: whether a call's arguments may be JSON text: it is written as it is.
        object_arguments: whether they may be an object.
        nulls: whether a message without content shows its null.
        empty_content: whether such a message needs an empty text in its place.
    """

    text_arguments: bool
    object_arguments: bool
    nulls: Nulls
    empty_content: bool = False


def habits_of(template: ChatTemplate) -> Habits:
    """Return how a template wants its messages.

    A template that shows a call in neither form takes both: it leaves calls out, and nothing is
    lost by the form.
    """
    for nulls, content in ((Nulls.DROPPED, None), (Nulls.KEPT, None), (Nulls.DROPPED, "")):
        text, parsed = (_written(template, form, content, nulls) for form in (_TEXT, _OBJECT))
        takes_text = text is not None and _TEXT in text
        takes_object = parsed is not None and _KEY in parsed and _VALUE in parsed
        if takes_text or takes_object:
            return Habits(
                text_arguments=takes_text,
                object_arguments=takes_object,
                nulls=nulls,
                empty_content=content is not None,
            )
    return Habits(text_arguments=True, object_arguments=True, nulls=Nulls.DROPPED)


def suited(messages: Iterable[Mapping[str, Any]], habits: Habits) -> list[dict[str, Any]]:
    """Return messages with the arguments of calls in a form that a template with habits takes."""
    return [_suited(message, habits) for message in messages]


def _written(
    template: ChatTemplate, arguments: Any, content: str | None, nulls: Nulls
) -> str | None:
    """Return what a template writes of a small call, `None` when it refuses it or what follows."""
    call = {"id": "callcall1", "type": "function"}
    function = {"name": "trajkitname", "arguments": arguments}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "trajkituser"},
        {"role": "assistant", "content": content, "tool_calls": [call | {"function": function}]},
        {"role": "tool", "tool_call_id": "callcall1", "content": "trajkitresult"},
        {"role": "assistant", "content": "trajkitanswer"},
        {"role": "user", "content": "trajkituser"},
    ]
    try:
        for end in range(3, len(messages) + 1):
            render_text(template, messages[:end], Setting(nulls=nulls))
        return render_text(template, messages[:2], Setting(nulls=nulls))
    except TrajkitError:
        return None


def _suited(message: Mapping[str, Any], habits: Habits) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    fitting = {**message, "tool_calls": [_suited_call(call, habits) for call in calls]}
    if habits.empty_content and message.get("content") is None:
        fitting["content"] = ""
    return fitting


def _suited_call(call: Any, habits: Habits) -> Any:
    """Return a call, in OpenAI's form or as a bare name and arguments."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _suited_call(call["function"], habits)}
    arguments = call.get("arguments")
    if isinstance(arguments, str) and not habits.text_arguments:
        return {**call, "arguments": _parsed(arguments)}
    if isinstance(arguments, dict) and not habits.object_arguments:
        return {**call, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return call


def _parsed(text: str) -> Any:
    """Return the object a text holds, the text itself when it holds none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
