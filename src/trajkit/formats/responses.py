"""Responses-style rows: `{"responses_create_params": {...}, "response": {"output": [...]}}`.

One model call is a run of output items (reasoning, message, function_call). Where the server adds
ids, it adds them to the last item of the call; where it does not, a call ends at the next result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from trajkit.formats.chat import POLICY, plain_text, role_of
from trajkit.formats.fields import Fields, take_sampling
from trajkit.formats.nested import take_tools
from trajkit.formats.raw import Format, RawStep, RawTrajectory
from trajkit.records import Floats, Ids, Observation
from trajkit.safe.json import Record

_IDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
_INDICES = ("_ng_task_index", "_ng_rollout_index")
_RESULTS = "_output"
"""Items the environment wrote end in this: function_call_output, custom_tool_call_output."""
_NOT_COLLECTED = "empty prompt and empty generation ids: read as not recorded"


def _sniff(value: object) -> str | None:
    if not isinstance(value, dict) or not isinstance(value.get("responses_create_params"), dict):
        return None
    response = value.get("response")
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return None
    with_ids = any(isinstance(i, dict) and _IDS[1] in i for i in response["output"])
    return "responses_create_params and response.output[]" + (
        f" with {_IDS[1]}" if with_ids else ", no token ids"
    )


@dataclass(slots=True)
class _Call:
    """One model call being gathered from output items."""

    items: list[dict[str, Any]] = field(default_factory=list)
    prompt_ids: Ids | None = None
    action_ids: Ids | None = None
    logprobs: Floats | None = None
    replies: list[dict[str, Any]] = field(default_factory=list)
    has_empty_ids: bool = False


def _read(record: Record) -> RawTrajectory:
    fields = Fields(record.value, record.place)
    params, response = fields.take_fields("responses_create_params"), fields.take_fields("response")
    if params is None or response is None:
        raise fields.missing("responses_create_params" if params is None else "response")
    output = response.take_list("output")
    if output is None:
        raise response.missing("output")
    before = _input(params)
    tools, doubts = take_tools(params)
    opening, *calls = _calls(output, response)
    before += tuple(opening.replies)
    task_index, trajectory_id = _indices(fields)
    asked = take_sampling(Fields(params.rest(), record.place, params.path))
    sampling = replace(asked, model=None).overruled_by(take_sampling(response))
    steps = list(_steps(calls, before))
    if steps:
        steps[-1] = replace(steps[-1], finish_reason=_finish(response))
    return RawTrajectory(
        trajectory_id=trajectory_id or fields.take_name("trajectory_id"),
        group_id=task_index,
        task_id=fields.take_name("task_id") or task_index,
        reward=fields.take_number("reward"),
        sampling=sampling,
        tools_json=tools,
        steps=tuple(steps),
        messages_after=tuple(calls[-1].replies) if calls else before,
        extra=fields.rest()
        | {"responses_create_params": params.rest(), "response": response.rest()},
        warnings=doubts + ((_NOT_COLLECTED,) if any(call.has_empty_ids for call in calls) else ()),
    )


def _finish(response: Fields) -> str | None:
    """Return why the last call ended early, `None` where it is not said that it did."""
    there = response.rest()
    details = there.get("incomplete_details")
    if there.get("status") != "incomplete" or not isinstance(details, dict):
        return None
    reason = details.get("reason")
    return reason.lower() if isinstance(reason, str) else None


def _input(params: Fields) -> tuple[Any, ...]:
    """Return the items that the first call was given: text alone is what the user said.

    Raises:
        InputError: I201 when it is neither text nor a list of text and objects.
    """
    given = params.take("input")
    if given is None or isinstance(given, str):
        return () if given is None else (given,)
    if not isinstance(given, list):
        raise params.wrong("input", "a string or a list of items", given)
    for index, item in enumerate(given):
        if not isinstance(item, str | dict):
            raise params.wrong(f"input[{index}]", "an item or a string", item)
    return tuple(given)


def _indices(fields: Fields) -> tuple[str | None, str | None]:
    """Return the task's index and the trajectory id made of it, where the row has both indices."""
    if any(fields.rest().get(name) is None for name in _INDICES):
        return None, None
    task, rollout = (fields.take_name(name) for name in _INDICES)
    return task, f"task{task}-rollout{rollout}"


def _calls(output: list[Any], response: Fields) -> Iterator[_Call]:
    """Yield what stands before the first call, as a call without items, and then each call."""
    call = _Call()
    for index, value in enumerate(output):
        item = Fields(value, response.place(), f"$.response.output[{index}]")
        if _is_reply(item, value):
            call.replies.append(value)
            continue
        if not call.items or call.replies or call.action_ids is not None:
            yield call
            call = _Call()
        _take_ids(call, item)
        call.items.append(item.rest())
    yield call


def _take_ids(call: _Call, item: Fields) -> None:
    """Move an item's ids to its call; the last item of a call has them."""
    prompt_ids, action_ids = item.take_ids(_IDS[0]), item.take_ids(_IDS[1])
    logprobs = item.take_logprobs(_IDS[2])
    item.check_lengths(action_ids, logprobs)
    if action_ids is None:
        call.prompt_ids = call.prompt_ids if prompt_ids is None else prompt_ids
        return
    if prompt_ids is None:
        raise item.missing(_IDS[0])
    if not len(prompt_ids) and not len(action_ids):
        call.has_empty_ids = True
        return
    call.prompt_ids, call.action_ids, call.logprobs = prompt_ids, action_ids, logprobs


def _is_reply(item: Fields, value: dict[str, Any]) -> bool:
    """Return whether the environment wrote an item, the policy the others."""
    kind = value.get("type")
    if _is_result(value):
        return True
    if kind not in (None, "message") or (kind is None and "role" not in value):
        return False
    return role_of(value, item.place(), item.path) != POLICY


def _is_result(item: dict[str, Any]) -> bool:
    return str(item.get("type")).endswith(_RESULTS)


def _steps(calls: list[_Call], before: tuple[Any, ...]) -> Iterator[RawStep]:
    added = before
    for call in calls:
        yield RawStep(
            prompt_ids=call.prompt_ids,
            action_ids=call.action_ids,
            logprobs=call.logprobs,
            messages_added=added,
            action_message=call.items,
            action_text=plain_text(call.items[0]) if len(call.items) == 1 else None,
            observation=_observation(call.replies),
            observations=_results(call),
        )
        added = tuple(call.replies)


def _observation(replies: list[dict[str, Any]]) -> str | None:
    texts = [text for text in map(_reply_text, replies) if text is not None]
    return "\n".join(texts) if texts else None


def _reply_text(item: dict[str, Any]) -> str | None:
    output = item.get("output")
    if isinstance(output, str):
        return output
    return plain_text({"content": output} if output is not None else item)


def _results(call: _Call) -> tuple[Observation, ...] | None:
    names = {
        item["call_id"]: item.get("name")
        for item in call.items
        if isinstance(item.get("call_id"), str)
    }
    results = []
    for item in filter(_is_result, call.replies):
        call_id = item.get("call_id")
        call_id = call_id if isinstance(call_id, str) else None
        name = names.get(call_id)
        results.append(
            Observation(
                call_id=call_id,
                name=name if isinstance(name, str) else None,
                text=_reply_text(item),
            )
        )
    return tuple(results) or None


def as_chat(source: Any) -> dict[str, Any]:
    """Return an item, or the items of one call, as one chat message; text is the user's.

    Reasoning goes to `reasoning_content`, calls to `tool_calls`, arguments as they are. An item
    that chat messages have no place for stands among the calls as it is.
    """
    if isinstance(source, str):
        return {"role": "user", "content": source}
    if isinstance(source, list):
        return _call_as_chat(source)
    if _is_result(source):
        message = {"role": "tool", "content": _reply_text(source)}
        return message | ({"tool_call_id": source["call_id"]} if "call_id" in source else {})
    if "role" in source:
        return {"role": source["role"], "content": _chat_content(source.get("content"))}
    return _call_as_chat([source])


def _call_as_chat(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the items that one call sampled as the policy's message."""
    thoughts, contents, calls = [], [], []
    for item in items:
        kind = item.get("type")
        if kind == "reasoning":
            thoughts += _thoughts(item)
        elif kind == "message" or (kind is None and "role" in item):
            contents.append(_chat_content(item.get("content")))
        else:
            calls.append(_chat_call(item))
    texts = [content for content in contents if isinstance(content, str)]
    message: dict[str, Any] = {"role": POLICY, "content": "\n".join(texts) if texts else None}
    if len(texts) < len(contents):
        message["content"] = contents[0] if len(contents) == 1 else contents
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _chat_content(content: Any) -> Any:
    """Return a content as one text where all of it is text."""
    if not isinstance(content, list):
        return content
    texts = [plain_text({"content": [part]}) for part in content]
    return "".join(map(str, texts)) if None not in texts else content


def _thoughts(item: dict[str, Any]) -> list[str]:
    """Return the texts of a reasoning item: what was thought, else what was said of it."""
    for key in ("content", "summary"):
        parts = item.get(key)
        listed = parts if isinstance(parts, list) else []
        texts = [part.get("text") for part in listed if isinstance(part, dict)]
        if known := [text for text in texts if isinstance(text, str)]:
            return known
    return []


def _chat_call(item: dict[str, Any]) -> dict[str, Any]:
    match item:
        case {"type": "function_call", "name": name, "arguments": arguments}:
            call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        case {"type": "custom_tool_call", "name": name, "input": given}:
            call = {"type": "custom", "custom": {"name": name, "input": given}}
        case _:
            return item
    return ({"id": item["call_id"]} if "call_id" in item else {}) | call


FORMAT = Format(
    name="responses",
    shape='{"responses_create_params": {"input"}, "response": {"output": [items]}}',
    sniff=_sniff,
    read=_read,
    as_chat=as_chat,
)
