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
from trajkit.safe.json import strict_json
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
        empty_content: whether a message with calls and no content needs an empty text in its place.
        empty_words: whether any other message without content does.
    """

    text_arguments: bool
    object_arguments: bool
    nulls: Nulls
    empty_content: bool = False
    empty_words: bool = False


_NO_CONTENT = ((Nulls.DROPPED, None), (Nulls.KEPT, None), (Nulls.DROPPED, ""))
"""What a message without content may be given as, from the closest to the log on."""


def habits_of(template: ChatTemplate) -> Habits:
    """Return how a template wants its messages.

    A template that shows a call in neither form takes both: it leaves calls out, and nothing is
    lost by the form. Where both are shown, text is taken only if it stands where the object does.
    """
    for nulls, content in _NO_CONTENT:
        text, parsed = _shown_forms(template, nulls, content)
        if text or parsed:
            break
    else:
        text, parsed = True, True
        nulls, content = _silent_form(template)
    return Habits(
        text_arguments=text,
        object_arguments=parsed,
        nulls=nulls,
        empty_content=content is not None,
        empty_words=not _takes_no_words(template, nulls),
    )


def _silent_form(template: ChatTemplate) -> tuple[Nulls, str | None]:
    """Return how a message without content is given to a template that leaves calls out."""
    empty = _written(template, _OBJECT, *_NO_CONTENT[-1])
    taken = (
        form for form in _NO_CONTENT if _is_wordless(_written(template, _OBJECT, *form), empty)
    )
    return next(taken, _NO_CONTENT[0])


def _shown_forms(template: ChatTemplate, nulls: Nulls, content: str | None) -> tuple[bool, bool]:
    """Return whether a template shows a call whose arguments are text, and one of an object."""
    text, parsed = (_written(template, form, nulls, content) for form in (_TEXT, _OBJECT))
    takes_text = text is not None and _TEXT in text
    takes_object = parsed is not None and _KEY in parsed and _VALUE in parsed
    if takes_text and takes_object and text is not None and parsed is not None:
        left, _, right = text.partition(_TEXT)
        inside = parsed.removeprefix(left).removesuffix(right)
        is_in_place = len(left) + len(inside) + len(right) == len(parsed)
        if not is_in_place or (inside != repr(_OBJECT) and strict_json(inside) != _OBJECT):
            takes_text = False  # the object has a spelling of its own
        elif inside == repr(_OBJECT):
            takes_object = False
    return takes_text, takes_object


def _takes_no_words(template: ChatTemplate, nulls: Nulls) -> bool:
    """Return whether a message without content and calls may stand, and is written without a word.

    Where no such message may stand, not even an empty one, nothing is gained by another form.
    """
    missing, empty = (_answered(template, content, nulls) for content in (None, ""))
    return empty is None or _is_wordless(missing, empty)


def _is_wordless(missing: str | None, empty: str | None) -> bool:
    """Return whether what is written of no content is no word for it that "" does not write."""
    if missing is None or empty is None:
        return missing is not None
    return all(missing.count(word) <= empty.count(word) for word in ("None", "null"))


def suited(messages: Iterable[Mapping[str, Any]], habits: Habits) -> list[dict[str, Any]]:
    """Return messages with the arguments of calls in a form that a template with habits takes."""
    return [_suited(message, habits) for message in messages]


def _answered(template: ChatTemplate, content: str | None, nulls: Nulls) -> str | None:
    """Return what a template writes of a small answer and a question behind, `None` for no."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "trajkituser"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "trajkituser"},
    ]
    try:
        render_text(template, messages[:2], Setting(nulls=nulls))
        return render_text(template, messages, Setting(nulls=nulls))
    except TrajkitError:
        return None


def _written(
    template: ChatTemplate, arguments: Any, nulls: Nulls, content: str | None
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
    has_calls = isinstance(calls, list)
    fitting = dict(message)
    if isinstance(calls, list):
        fitting["tool_calls"] = [_suited_call(call, habits) for call in calls]
    needs_text = habits.empty_content if has_calls else habits.empty_words
    if needs_text and message.get("content") is None:
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
    """Return the object a text holds, the text itself when it holds none, or not strictly."""
    value = strict_json(text)
    return value if isinstance(value, dict) else text
