"""The small conversations a template is asked about: what policies write, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A conversation of one kind.

    Attributes:
        name: what is asked with it.
        messages: the conversation; every word in it occurs once.
        is_cut: whether the policy's messages were cut by a limit: no end of turn was sampled.
    """

    name: str
    messages: Sequence[Message]
    is_cut: bool = False

    @property
    def has_tools(self) -> bool:
        """Return whether tools are called."""
        return any("tool_calls" in message for message in self.messages)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look a city up.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "its name"}},
                "required": ["city"],
            },
        },
    }
]


def user(text: str) -> Message:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def says(text: str, reasoning: str | None = None) -> Message:
    """Return a message of the policy that holds words."""
    thought = {} if reasoning is None else {"reasoning_content": reasoning}
    return {"role": "assistant", "content": text, **thought}


def call(city: str, number: int = 1) -> Message:
    """Return a tool call."""
    return {
        "id": f"callident{number}",
        "type": "function",
        "function": {"name": "lookup", "arguments": {"city": city}},
    }


def calls(*cities: str, reasoning: str | None = None) -> Message:
    """Return a message of the policy that calls a tool, once for each city."""
    made = [call(city, number) for number, city in enumerate(cities, 1)]
    return {**says("", reasoning), "tool_calls": made}


def result(text: str, number: int = 1) -> Message:
    """Return a tool's result."""
    return {
        "role": "tool",
        "tool_call_id": f"callident{number}",
        "name": "lookup",
        "content": text,
    }


SHAPES: tuple[Shape, ...] = (
    Shape(
        name="plain chat",
        messages=(
            user("alpha?"),
            says("beta one."),
            user("gamma?"),
            says("delta two."),
            user("e?"),
        ),
    ),
    Shape(
        name="system",
        messages=(
            {"role": "system", "content": "Stay brief."},
            *(user("alpha?"), says("beta one."), user("gamma?")),
        ),
    ),
    Shape(
        name="reasoning",
        messages=(
            *(user("alpha?"), says("beta one.", "weigh this"), user("gamma?")),
            *(says("delta two.", "weigh that"), user("epsilon?")),
        ),
    ),
    Shape(
        name="reasoning inside the text",
        messages=(
            *(user("alpha?"), says("<think>\nweigh this\n</think>\n\nbeta one."), user("gamma?")),
            *(says("<think>\nweigh that\n</think>\n\ndelta two."), user("epsilon?")),
        ),
    ),
    Shape(
        name="cut in reasoning",
        messages=(user("alpha?"), says("<think>\nweigh thi"), user("gamma?")),
        is_cut=True,
    ),
    Shape(
        name="cut",
        messages=(user("alpha?"), says("beta on"), user("gamma?")),
        is_cut=True,
    ),
    Shape(
        name="tool loop",
        messages=(
            *(user("alpha?"), calls("Oslo"), result("cloudy"), calls("Rome"), result("sunny")),
            says("beta one."),
        ),
    ),
    Shape(
        name="tool loop with reasoning",
        messages=(
            *(user("alpha?"), calls("Oslo", reasoning="weigh this"), result("cloudy")),
            *(calls("Rome", reasoning="weigh that"), result("sunny"), says("beta one.", "so be")),
        ),
    ),
    Shape(
        name="tool, then user",
        messages=(
            *(user("alpha?"), calls("Oslo", reasoning="weigh this"), result("cloudy")),
            *(says("beta one.", "weigh that"), user("gamma?"), says("delta two.", "so be")),
        ),
    ),
    Shape(
        name="parallel calls",
        messages=(
            *(user("alpha?"), calls("Oslo", "Rome"), result("cloudy", 1), result("sunny", 2)),
            *(says("beta one."), user("gamma?")),
        ),
    ),
    Shape(
        name="white space",
        messages=(user(" alpha? \n"), says("\n  beta one. \n"), user("gamma?")),
    ),
    Shape(
        name="empty",
        messages=(user("alpha?"), says(""), user("gamma?")),
    ),
)
"""Each is rendered as its steps would be: every prompt, and the conversation up to every action."""
