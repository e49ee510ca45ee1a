"""A digest tells any two contents apart, and only contents."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.builders import make_floats, make_step
from trajkit.records import (
    MaskRun,
    MediaSpan,
    Observation,
    RewardPart,
    Segment,
    SegmentKind,
    StepRef,
)
from trajkit.store.columns import READ_COLUMNS, steps_table
from trajkit.store.digest import content_digest
from trajkit.store.schema import SCHEMA


def digest(**values: Any) -> str:
    step = make_step(0, **{"action_tokens": [5, 6], "observation": "x"} | values)
    return content_digest(steps_table([step], [None]))


def other_value(name: str) -> Any:
    """Return some value for a column that `make_step` leaves null."""
    structs = {
        "spawned_by": StepRef("s", 1),
        "observations": (Observation(text="x"),),
        "segments": (Segment(SegmentKind.PROMPT, 0, 1),),
        "source_mask": (MaskRun(0, 1, 0.5),),
        "media": (MediaSpan(start=0, end=1, type="image"),),
        "rewards": (RewardPart(name="format", value=1.0),),
        "policy_version": ("v1",),
    }
    kind = SCHEMA.field(name).type
    if name in structs:
        return structs[name]
    if pa.types.is_list(kind):
        return [7] if pa.types.is_integer(kind.value_type) else make_floats([0.5])
    if pa.types.is_boolean(kind):
        return False
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind):
        return 1
    return "raw" if name == "logprob_kind" else "error"


@pytest.mark.parametrize("name", [name for name in READ_COLUMNS if name != "prompt_parent"])
def test_each_column_counts(name):
    assert digest(**{name: other_value(name)}) != digest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"action_tokens": []}, {"action_tokens": None}),
        ({"observation": ""}, {"observation": None}),
        ({"observation": "ab", "action_text": "c"}, {"observation": "a", "action_text": "bc"}),
        ({"rollout_logprobs": [None]}, {"rollout_logprobs": [0.0]}),
        ({"rollout_logprobs": [None, 0.0]}, {"rollout_logprobs": [0.0, None]}),
        ({"reward": 0.0}, {"reward": None}),
        ({"observations": ()}, {"observations": None}),
        ({"observations": (Observation(),)}, {"observations": (Observation(text=""),)}),
        ({"is_truncated": False}, {"is_truncated": None}),
        ({"top_k": 0}, {"top_k": None}),
    ],
)
def test_what_is_missing_is_not_what_is_empty(one, other):
    assert digest(**one) != digest(**other)


def test_ids_of_two_steps_do_not_run_into_each_other():
    def two(first: list[int], second: list[int]) -> str:
        steps = [make_step(0, action_tokens=first), make_step(1, action_tokens=second)]
        return content_digest(steps_table(steps, [None, None]))

    assert two([1, 2], [3]) != two([1], [2, 3])


def test_texts_of_two_steps_do_not_run_into_each_other():
    def two(first: str, second: str) -> str:
        steps = [make_step(0, observation=first), make_step(1, observation=second)]
        return content_digest(steps_table(steps, [None, None]))

    assert two("ab", "c") != two("a", "bc")


def test_derived_columns_do_not_count():
    step = make_step(0)
    assert content_digest(steps_table([step], ["state"])) == content_digest(
        steps_table([step], [None])
    )


def test_the_names_and_types_of_columns_count():
    assert content_digest(pa.table({"a": [1]})) != content_digest(pa.table({"b": [1]}))
    assert content_digest(pa.table({"a": pa.array([1], pa.int32())})) != content_digest(
        pa.table({"a": pa.array([1], pa.int64())})
    )
