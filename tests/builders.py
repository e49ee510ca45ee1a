"""Steps and trajectories made by hand, and what it means that two steps are the same.

What is made is `Any` to the type checker: tests look into optional fields without asking first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trajkit.records import ActionSource, PromptSource, Step, Trajectory, ids_array
from trajkit.safe.json import Record, read_records
from trajkit.tokenizer import Tokenizer, load_tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
TINY = Path(__file__).parents[1] / "src" / "trajkit" / "demo" / "tiny"

Call = tuple[Sequence[int], Sequence[int]]
"""The whole prompt and the action of one policy call."""


def make_step(index: int = 0, **given: Any) -> Any:
    """Return a `Step`: terminal, without ids, from record 0 of `log.jsonl`, unless told otherwise.

    Lists given as ids or log-probs become arrays; a step given ids is `sampled`, `recorded`.
    """
    for name in ("action_tokens", "prompt_delta", "tail_tokens"):
        if given.get(name) is not None:
            given[name] = ids_array(given[name])
    for name in _FLOATS:
        if given.get(name) is not None:
            given[name] = make_floats(given[name])
    has_action = given.get("action_tokens") is not None
    has_prompt = given.get("prompt_delta") is not None
    defaults: dict[str, Any] = {
        "trajectory_id": "t",
        "step_index": index,
        "is_terminal": True,
        "action_source": ActionSource.SAMPLED if has_action else ActionSource.NONE,
        "prompt_source": PromptSource.RECORDED if has_prompt else PromptSource.NONE,
        "source_format": "per-call",
        "source_file": "log.jsonl",
        "source_record": 0,
    }
    if has_prompt:
        parent = given.get("parent")
        defaults["prompt_keep"] = 0 if parent is None else parent.sequence_len
        keep = given.get("prompt_keep", defaults["prompt_keep"])
        defaults["prompt_len"] = keep + len(given["prompt_delta"])
    return Step(**(defaults | given))


def make_trajectory(calls: Iterable[Call], trajectory_id: str = "t", **given: Sequence[Any]) -> Any:
    """Return a `Trajectory` of calls with ids: each prompt grows from where it shares the most.

    Args:
        calls: whole prompt and action of each step.
        trajectory_id: its id.
        given: other fields of the steps, one value a step.
    """
    calls = list(calls)
    steps: list[Step] = []
    for index, (prompt, action) in enumerate(calls):
        parent, keep = grown_from(prompt, calls[:index])
        steps.append(
            make_step(
                index,
                trajectory_id=trajectory_id,
                is_terminal=index == len(calls) - 1,
                parent=None if parent is None else steps[parent],
                prompt_keep=keep,
                prompt_delta=list(prompt)[keep:],
                action_tokens=list(action),
                **{name: values[index] for name, values in given.items()},
            )
        )
    return Trajectory(trajectory_id=trajectory_id, steps=tuple(steps))


def make_record(value: object, *, line: int = 1) -> Record:
    """Return the record that a value stands in, in `log.jsonl`."""
    raw = json.dumps(value).encode()
    return Record(value=value, raw=raw, file="log.jsonl", line=line, byte_offset=0, index=line - 1)


def records_of(path: Path) -> list[Record]:
    """Return the records of a file of which none is bad."""
    with path.open("rb") as stream:
        found = list(read_records(stream, path.name))
    return [record for record in found if isinstance(record, Record)]


def grown_from(prompt: Sequence[int], earlier: Sequence[Call]) -> tuple[int | None, int]:
    """Return the earlier call whose prompt + action shares most with a prompt, and how much.

    The rule, one id at a time: the longest common prefix, the latest of several; none is `None`.
    """
    best: int | None = None
    keep = 0
    for index, (other, action) in enumerate(earlier):
        shared = 0
        for left, right in zip(prompt, [*other, *action], strict=False):
            if left != right:
                break
            shared += 1
        if shared and shared >= keep:
            best, keep = index, shared
    return best, keep


@cache
def tiny_tokenizer() -> Tokenizer:
    """Return the committed tokenizer: byte-level, 512 ids, ChatML control tokens 0 to 2."""
    return load_tokenizer(TINY)


def make_floats(values: Sequence[float | None]) -> Any:
    """Return float32 log-probs, NaN for `None`, read-only."""
    array = np.array(values, dtype=np.float32)
    array.setflags(write=False)
    return array


def assert_same_step(left: Step, right: Step) -> None:
    """Check that two steps are equal field by field: types, ids, NaN where NaN, same parent."""
    for field in fields(Step):
        mine, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(mine, Step) or isinstance(other, Step):
            assert mine is not None, field.name
            assert other is not None, field.name
            assert mine.step_index == other.step_index, field.name
        elif isinstance(mine, np.ndarray):
            assert isinstance(other, np.ndarray), field.name
            assert mine.dtype == other.dtype, field.name
            np.testing.assert_array_equal(mine, other, err_msg=field.name)
        else:
            assert type(mine) is type(other), field.name
            assert mine == other, field.name


def assert_same_trajectory(left: Trajectory, right: Trajectory) -> None:
    """Check that two trajectories are equal step by step."""
    assert left.trajectory_id == right.trajectory_id
    for mine, other in zip(left.steps, right.steps, strict=True):
        assert_same_step(mine, other)


_FLOATS = (
    "rollout_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "advantages",
    "values",
    "token_rewards",
)
