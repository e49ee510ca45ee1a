"""mini-swe-agent runs: `{"messages": [...], "info", "trajectory_format": "mini-swe-agent-1.1"}`.

Messages are chat messages with an `extra` of the agent's own; the last one of version 2 has the
role `exit` and says how the run ended. `extra.response` is what the server answered: where it
holds the ids of prompt and action, these are the sampler's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trajkit.errors import Place
from trajkit.formats.chat import one_text, split_turns, to_chat
from trajkit.formats.fields import Fields, take_sampling, take_whole
from trajkit.formats.messages import step_of
from trajkit.formats.nested import take_tools
from trajkit.formats.raw import Format, RawStep, RawTrajectory, Sampling
from trajkit.records import EndReason
from trajkit.safe.json import Record

_NAME = "mini-swe-agent"
_MODEL_KWARGS = ("info", "config", "model", "model_kwargs")
"""Where the agent keeps what it asks of the server with each call."""
_NO_PROMPT = "a response holds action ids without the prompt's: its step keeps the message alone"

END_REASONS: dict[str, EndReason] = {
    "Submitted": EndReason.AGENT,
    "TimeExceeded": EndReason.TIMEOUT,
    "ContextWindowExceeded": EndReason.CONTEXT,
    "ContextWindowExceededError": EndReason.CONTEXT,
}
"""What `info.exit_status` says. `LimitsExceeded` may be steps or money: no reason is both."""


def as_chat(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the server was given it: without the agent's `extra`."""
    return one_text(to_chat({key: value for key, value in message.items() if key != "extra"}))


def _sniff(value: object) -> str | None:
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return None
    told, info = value.get("trajectory_format"), value.get("info")
    if isinstance(told, str) and told.startswith(_NAME):
        return f"trajectory_format {told[:40]}"
    return "info with mini_version" if isinstance(info, dict) and "mini_version" in info else None


def _read(record: Record) -> RawTrajectory:
    fields = Fields(record.value, record.place)
    messages = fields.take_list("messages")
    if messages is None:
        raise fields.missing("messages")
    last = messages[-1] if messages else None
    leave = {"exit": last} if isinstance(last, dict) and last.get("role") == "exit" else {}
    turns, after = split_turns(messages[:-1] if leave else messages, record.place)
    steps: list[RawStep] = []
    warnings: set[str] = set()
    at = 0
    for turn in turns:
        at += len(turn.added)
        step, doubt = _answered(step_of(turn), record.place, f"$.messages[{at}].extra.response")
        steps.append(step)
        warnings.update(doubt)
        at += 1
    tools, doubts = take_tools(fields)
    whole = take_whole(fields)
    whole["sampling"] = _configured(fields, record.place).overruled_by(whole["sampling"])
    return RawTrajectory(
        **whole,
        tools_json=tools,
        steps=tuple(steps),
        messages_after=after,
        end_reason=_end_reason(fields.rest().get("info"), leave.get("exit")),
        extra=fields.rest() | leave,
        warnings=(*sorted(warnings), *doubts),
    )


def _configured(fields: Fields, place: Place) -> Sampling:
    """Return how the agent's configuration, which stays where it is, asks for sampling."""
    given = _at(fields.rest(), *_MODEL_KWARGS)
    return take_sampling(Fields(given, place, ".".join((fields.path, *_MODEL_KWARGS))))


def _answered(step: RawStep, place: Place, path: str) -> tuple[RawStep, tuple[str, ...]]:
    """Return a step with what the server's response says of it, and what is to be told.

    Raises:
        InputError: I301 to I306 when ids or log-probs are none; I305 when they differ in number.
    """
    response = _at(step.action_message, "extra", "response")
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return step, ()
    finish = choice.get("finish_reason")
    if isinstance(finish, str) and step.finish_reason is None:
        step = replace(step, finish_reason=finish.lower())
    own = choice.get("provider_specific_fields")
    held = [part for part in (choice, own, response) if isinstance(part, dict)]
    told = {
        name: next((part[name] for part in held if isinstance(part.get(name), list)), None)
        for name in ("token_ids", "prompt_token_ids")
    }
    if told["token_ids"] is None:
        return step, ()
    if told["prompt_token_ids"] is None:
        return step, (_NO_PROMPT,)
    call = Fields(told | {"logprobs": _logprobs(choice)}, place, path)
    action_ids, logprobs = call.take_ids("token_ids"), call.take_logprobs("logprobs")
    call.check_lengths(action_ids, logprobs)
    prompt_ids = call.take_ids("prompt_token_ids")
    return replace(step, prompt_ids=prompt_ids, action_ids=action_ids, logprobs=logprobs), ()


def _logprobs(choice: dict[str, Any]) -> list[Any] | None:
    """Return the log-probs that chat completions tell, null for what has none."""
    content = _at(choice, "logprobs").get("content")
    if not isinstance(content, list):
        return None
    return [entry.get("logprob") if isinstance(entry, dict) else None for entry in content]


def _at(value: Any, *names: str) -> dict[str, Any]:
    """Return the object that stands below an object, an empty one where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _end_reason(info: Any, leave: Any) -> EndReason | None:
    told = [_at(info), _at(leave, "extra")]
    status = next((part["exit_status"] for part in told if part.get("exit_status")), None)
    if isinstance(status, str) and status in END_REASONS:
        return END_REASONS[status]
    return EndReason.ERROR if any("traceback" in part for part in told) else None


FORMAT = Format(
    name=_NAME,
    shape='{"messages": [{"role", "content", "extra"}], "info", "trajectory_format"}',
    sniff=_sniff,
    read=_read,
    as_chat=as_chat,
)
