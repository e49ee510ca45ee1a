"""JSON that a record keeps as text inside a string: tool schemas, calls."""

from __future__ import annotations

from typing import Any

from trajkit.formats.fields import Fields
from trajkit.safe.json import strict_json

_NO_TOOLS = "tools is text that holds no JSON: it is kept in extra_json"


def calls_in(text: str) -> list[dict[str, Any]] | None:
    """Return the calls that a text holds, in the shape of a chat message's `tool_calls`.

    The text is one JSON object with `name` and `arguments`, or a list of such objects. Arguments
    stay what they are, an object or text.

    Returns:
        the calls; `None` where the text is anything else.
    """
    value = strict_json(text)
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(_is_call(call) for call in calls):
        return None
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in calls
    ]


def take_tools(fields: Fields) -> tuple[str | None, tuple[str, ...]]:
    """Return a record's tool schemas as JSON text, and what is to be said of them.

    Text that is no JSON stays where it is; empty text says that there are no tools.
    """
    tools = fields.rest().get("tools")
    if not isinstance(tools, str) or strict_json(tools) is not None:
        return fields.take_json("tools"), ()
    return None, (_NO_TOOLS,) if tools.strip() else ()


def _is_call(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("arguments"), dict | str)
    )
