"""A whole trajectory as one list of chat messages, the way a template is given it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trajkit.errors import InputError
from trajkit.formats.raw import Format, RawTrajectory
from trajkit.records import Step, Trajectory
from trajkit.safe.json import strict_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Chat messages, and which of them the policy wrote.

    Attributes:
        messages: all of them, in order.
        actions: the index of each step's own message, ascending.
        tools: schemas of the tools the policy could call; `None` when the source has none.
    """

    messages: tuple[dict[str, Any], ...]
    actions: tuple[int, ...]
    tools: list[Any] | None


def conversation_of(raw: RawTrajectory, form: Format) -> Conversation | None:
    """Return the conversation of a source record, `None` where it has none for every step."""
    steps = [(step.messages_added, step.action_message) for step in raw.steps]
    return _joined(steps, raw.messages_after, raw.tools_json, form)


def recorded_conversation(trajectory: Trajectory, form: Format) -> Conversation | None:
    """Return the conversation of recorded steps, `None` where some step has no message.

    Args:
        trajectory: whole.
        form: the format it was read from.

    Raises:
        InputError: S103 when a message column does not hold JSON.
    """
    steps = []
    extra: dict[str, Any] = {}
    for step in trajectory.steps:
        if step.action_message_json is None:
            return None
        added = _stored(step, step.messages_json, list)
        steps.append((added, _stored(step, step.action_message_json, object)))
        extra = _stored(step, step.extra_json, dict)
    if not steps:
        return None
    return _joined(steps, extra.get("messages_after", ()), trajectory.steps[0].tools_json, form)


def _stored(step: Step, text: str | None, kind: type) -> Any:
    """Return the value of a column of JSON text; an empty one where the column is null."""
    try:
        value = kind() if text is None else json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind) or (value is None and text != "null"):
        raise InputError("S103", "its messages are no JSON", place=step.place)
    return value


def _joined(
    steps: Iterable[tuple[Iterable[Any], Any]],
    after: Iterable[Any],
    tools_json: str | None,
    form: Format,
) -> Conversation | None:
    if form.as_chat is None:
        return None
    messages, actions = [], []
    for added, action in steps:
        if action is None:
            return None
        messages += [form.as_chat(message) for message in added]
        actions.append(len(messages))
        messages.append(form.as_chat(action))
    messages += [form.as_chat(message) for message in after]
    tools = None if tools_json is None else strict_json(tools_json)
    return Conversation(
        messages=tuple(messages),
        actions=tuple(actions),
        tools=tools if isinstance(tools, list) else None,
    )
