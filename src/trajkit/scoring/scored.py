"""What becomes of each step: its status, its numbers, and its row of a `trajkit.scores/1` table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trajkit.records import Floats, Ids, Step, Trajectory
from trajkit.store.schema import SCORES_SCHEMA


class Status(StrEnum):
    """What became of a step; only `OK` has numbers."""

    OK = "ok"
    NO_ACTION = "no_action"
    NO_PROMPT = "no_prompt"
    EXCLUDED = "excluded"
    MEDIA = "media"
    NONFINITE = "nonfinite"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepScores:
    """What the model says about a step's action.

    Attributes:
        logprobs: [A] float32 nats, NaN for a token at position 0; `None` unless `OK`, where A may
            be 0.
        entropy: [A] float32 nats; NaN and `None` as above.
        rank: [A] int32; meaningless where log-prob is NaN, `None` as above.
        ref_logprobs: [A] float32 nats under the reference model; `None` where it gave none.
        exact_kl: [A] float32 nats, KL(model || reference) over the vocabulary; `None` where not
            asked.
        context_logprobs: [D + L] float32 nats of delta and tail, NaN as above; `None` where not
            asked.
    """

    step: Step
    status: Status
    logprobs: Floats | None = None
    entropy: Floats | None = None
    rank: Ids | None = None
    ref_logprobs: Floats | None = None
    exact_kl: Floats | None = None
    context_logprobs: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredTrajectory:
    """A trajectory's steps with their scores.

    Attributes:
        n_longest: ids of the longest step that is to be scored, whether it was or not.
    """

    trajectory: Trajectory
    steps: tuple[StepScores, ...]
    n_longest: int


def statuses_of(trajectory: Trajectory) -> list[Status]:
    """Return what each step is before a model is asked: `OK` when it can be scored."""
    if any(step.media for step in trajectory.steps):
        return [Status.MEDIA] * len(trajectory.steps)
    return [_status(step) for step in trajectory.steps]


def steps_to_score(trajectory: Trajectory) -> list[Step]:
    """Return the steps whose action has an id to score."""
    statuses = statuses_of(trajectory)
    return [
        step
        for step, status in zip(trajectory.steps, statuses, strict=True)
        if status is Status.OK and step.n_action_tokens
    ]


def _status(step: Step) -> Status:
    if step.exclude_reason is not None:
        return Status.EXCLUDED
    if step.action_tokens is None:
        return Status.NO_ACTION
    return Status.NO_PROMPT if step.prompt_delta is None else Status.OK


_NULL_WHERE = {
    "logprobs": "logprobs",
    "entropy": "logprobs",
    "rank": "logprobs",
    "context_logprobs": "context_logprobs",
    "ref_logprobs": "ref_logprobs",
    "exact_kl": "exact_kl",
}
"""The columns of numbers, each with the one that is NaN where it has none."""
NUMBERS = tuple(_NULL_WHERE)
"""The columns of numbers."""


def scores_table(rows: Sequence[StepScores]) -> pa.Table:
    """Return one row per step, in order; a token without a log-prob is null in every list."""
    columns: dict[str, pa.Array] = {
        "trajectory_id": pa.array([row.step.trajectory_id for row in rows], pa.string()),
        "step_index": pa.array([row.step.step_index for row in rows], pa.int32()),
        "status": pa.array([str(row.status) for row in rows], pa.string()),
    }
    for name, other in _NULL_WHERE.items():
        known = [getattr(row, other) for row in rows]
        unknown = [None if each is None else np.isnan(each) for each in known]
        columns[name] = _lists([getattr(row, name) for row in rows], name, _flat(unknown))
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type)
        for field in SCORES_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCORES_SCHEMA)


def _lists(values: Sequence[NDArray[Any] | None], name: str, unknown: NDArray[Any]) -> pa.ListArray:
    kind = SCORES_SCHEMA.field(name).type
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=offsets[1:])
    flat = _flat(values).astype(kind.value_type.to_pandas_dtype())
    missing = pa.array([value is None for value in values], pa.bool_())
    items = pa.array(flat, kind.value_type, mask=unknown.astype(np.bool_))
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=missing)


def _flat(values: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    known = [value for value in values if value is not None]
    return np.concatenate(known) if known else np.empty(0)
