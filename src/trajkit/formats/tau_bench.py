"""tau-bench results: `[{"task_id", "trial", "reward", "traj": [messages], "info"}]`.

The messages are chat messages; the user among them is a simulator, so what it says is observed.
"""

from __future__ import annotations

from trajkit.formats.chat import split_turns, to_chat
from trajkit.formats.fields import Fields, take_whole
from trajkit.formats.messages import step_of
from trajkit.formats.nested import take_tools
from trajkit.formats.raw import Format, RawTrajectory
from trajkit.safe.json import Record

_INDICES = ("task_id", "trial")


def _sniff(value: object) -> str | None:
    if not isinstance(value, dict) or "traj" not in value:
        return None
    found = [key for key in (*_INDICES, "reward", "info") if key in value]
    return f"traj with {', '.join(found)}, no token ids" if found else None


def _read(record: Record) -> RawTrajectory:
    fields = Fields(record.value, record.place)
    messages = fields.take_list("traj")
    if messages is None:
        raise fields.missing("traj")
    turns, after = split_turns(messages, record.place, "$.traj")
    has_indices = all(fields.rest().get(name) is not None for name in _INDICES)
    whole = take_whole(fields)
    task = whole["task_id"]
    if has_indices and whole["trajectory_id"] is None:
        whole["trajectory_id"] = f"task{task}-trial{fields.take_name('trial')}"
    whole["group_id"] = task if whole["group_id"] is None else whole["group_id"]
    tools, warnings = take_tools(fields)
    return RawTrajectory(
        **whole,
        tools_json=tools,
        steps=tuple(map(step_of, turns)),
        messages_after=after,
        extra=fields.rest(),
        warnings=warnings,
    )


FORMAT = Format(
    name="tau-bench",
    shape='[{"task_id", "trial", "reward", "traj": [{"role", "content"}]}]',
    sniff=_sniff,
    read=_read,
    as_chat=to_chat,
)
