"""Per-call token records: one trajectory a record, one object per policy call, with its ids.

{"trajectory_id", "turns": [{"prompt_token_ids", "response_token_ids", "logprobs",
 "finish_reason"}], "messages", "reward", ...}
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trajkit.errors import InputError
from trajkit.formats.chat import Turn, split_turns, to_chat
from trajkit.formats.fields import Fields, take_sampling, take_whole
from trajkit.formats.nested import take_tools
from trajkit.formats.raw import Format, RawStep, RawTrajectory
from trajkit.safe.json import Record

_CALLS = ("turns", "steps", "calls")
_PROMPT = ("prompt_token_ids", "prompt_ids")
_ACTION = (
    "response_token_ids",
    "completion_token_ids",
    "generation_token_ids",
    "output_token_ids",
    "token_ids",
)
_LOGPROBS = ("logprobs", "response_logprobs", "generation_log_probs", "rollout_log_probs")


def _sniff(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    for calls in _CALLS:
        action = _action_name(value.get(calls))
        if action is not None:
            return f"{calls}[] with {action}"
    return None


def _action_name(calls: object) -> str | None:
    """Return the key of the action ids in the first call that has them."""
    if not isinstance(calls, list):
        return None
    found = (name for call in calls if isinstance(call, dict) for name in _ACTION if name in call)
    return next(found, None)


def _read(record: Record) -> RawTrajectory:
    fields = Fields(record.value, record.place)
    there = fields.rest()
    named = (name for name in _CALLS if _action_name(there.get(name)) is not None)
    name = next(named, None) or next((name for name in _CALLS if name in there), _CALLS[0])
    calls = fields.take_list(name)
    if calls is None:
        raise fields.missing(name)
    turns, after, warnings = _turns(fields, len(calls))
    tools, doubts = take_tools(fields)
    steps = tuple(
        _step(Fields(call, record.place, f"$.{name}[{i}]"), turns[i] if turns else None)
        for i, call in enumerate(calls)
    )
    return RawTrajectory(
        **take_whole(fields),
        tools_json=tools,
        steps=steps,
        messages_after=after,
        extra=fields.rest(),
        warnings=warnings + doubts,
    )


def _turns(fields: Fields, n_calls: int) -> tuple[list[Turn], tuple[Any, ...], tuple[str, ...]]:
    """Return the record's messages cut at the policy's own, when there are as many as calls."""
    messages = fields.rest().get("messages")
    if not isinstance(messages, list):
        return [], (), ()
    turns, after = split_turns(messages, fields.place())
    if len(turns) != n_calls:
        return [], (), ("messages and calls differ in number: messages are kept in extra_json",)
    fields.take("messages")
    return turns, after, ()


def _step(call: Fields, turn: Turn | None) -> RawStep:
    prompt_ids = call.take_ids(*_PROMPT)
    action_ids = call.take_ids(*_ACTION)
    logprobs = call.take_logprobs(*_LOGPROBS)
    call.check_lengths(action_ids, logprobs)
    if action_ids is not None and prompt_ids is None:
        raise InputError(
            "I202",
            "a call with action ids has no prompt ids",
            place=call.place(_PROMPT[0]),
            hint="without the prompt neither drift nor log-probs can be computed",
        )
    step = RawStep(
        prompt_ids=prompt_ids,
        action_ids=action_ids,
        logprobs=logprobs,
        reward=call.take_number("reward"),
        finish_reason=_lower(call.take_text("finish_reason")),
        sampling=take_sampling(call),
        extra=call.rest(),
    )
    if turn is None:
        return step
    return replace(
        step,
        messages_added=turn.added,
        action_message=turn.message,
        observation=turn.observation,
        observations=turn.observations,
    )


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


FORMAT = Format(
    name="per-call",
    shape='{"turns": [{"prompt_token_ids", "response_token_ids", "logprobs"}]}',
    sniff=_sniff,
    read=_read,
    as_chat=to_chat,
)
