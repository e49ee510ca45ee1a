"""Laws of the store: what is written is what is read, whatever stands in the fields."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import assert_same_trajectory, make_floats
from trajkit.records import (
    ActionSource,
    EndReason,
    LogprobKind,
    MaskRun,
    MediaSpan,
    Observation,
    PromptSource,
    RewardPart,
    Segment,
    SegmentKind,
    Step,
    StepRef,
    Trajectory,
    ids_array,
)
from trajkit.store.digest import content_digest
from trajkit.store.read import open_dataset, read_trajectories
from trajkit.store.write import DatasetWriter, StatePolicy

texts = st.text(max_size=8)
int32s = st.integers(-(2**31), 2**31 - 1)
counts = st.integers(0, 2**31 - 1)
doubles = st.floats(allow_nan=False)
singles = st.floats(width=32, allow_nan=False)
ids = st.lists(counts, max_size=6).map(ids_array)
floats = st.lists(st.none() | singles, max_size=6).map(make_floats)


def lists_of(kind: Any, /, *parts: Any, **named: Any) -> Any:
    return st.lists(st.builds(kind, *parts, **named), max_size=3).map(tuple)


maybe = st.none().__or__
FIELDS: dict[str, Any] = {
    "is_terminal": st.booleans(),
    "action_source": st.sampled_from(ActionSource),
    "prompt_source": st.sampled_from(PromptSource),
    "source_format": texts,
    "source_file": texts,
    "source_record": st.integers(-(2**63), 2**63 - 1),
    "spawned_by": maybe(st.builds(StepRef, texts, int32s)),
    "end_reason": maybe(st.sampled_from(EndReason)),
    "logprob_kind": maybe(st.sampled_from(LogprobKind)),
    "is_truncated": maybe(st.booleans()),
    "observations": maybe(
        lists_of(
            Observation,
            call_id=maybe(texts),
            name=maybe(texts),
            text=maybe(texts),
            is_error=maybe(st.booleans()),
        )
    ),
    "segments": maybe(lists_of(Segment, st.sampled_from(SegmentKind), int32s, int32s)),
    "source_mask": maybe(lists_of(MaskRun, int32s, int32s, doubles)),
    "media": maybe(
        lists_of(
            MediaSpan, start=int32s, end=int32s, type=texts, ref=maybe(texts), sha256=maybe(texts)
        )
    ),
    "rewards": maybe(
        lists_of(
            RewardPart,
            name=texts,
            value=maybe(doubles),
            weight=maybe(doubles),
            kind=maybe(texts),
        )
    ),
    "policy_version": maybe(st.lists(texts, max_size=3).map(tuple)),
    "started_at": maybe(st.datetimes(timezones=st.just(UTC))),
    "text_keep": maybe(st.integers(-(2**63), 2**63 - 1)),
}
FIELDS |= {name: maybe(ids) for name in ("action_tokens", "prompt_delta", "tail_tokens")}
FIELDS |= {
    name: maybe(floats)
    for name in (
        "rollout_logprobs",
        "old_logprobs",
        "ref_logprobs",
        "advantages",
        "values",
        "token_rewards",
    )
}
FIELDS |= {name: maybe(doubles) for name in ("reward", "latency_s")}
FIELDS |= {name: maybe(singles) for name in ("temperature", "top_p")}
FIELDS |= {name: maybe(int32s) for name in ("prompt_keep", "prompt_len", "messages_keep", "top_k")}
_ELSEWHERE = {"trajectory_id", "step_index", "parent", "origin"}
FIELDS |= {
    field.name: maybe(texts)
    for field in fields(Step)
    if field.name not in FIELDS and field.name not in _ELSEWHERE
}


@st.composite
def trajectories(draw: Any) -> list[Trajectory]:
    """Draw trajectories whose steps have any value in any field, and any earlier parent."""
    found = []
    for trajectory_id in draw(st.lists(texts, max_size=3, unique=True)):
        steps: list[Step] = []
        for index in range(draw(st.integers(1, 4))):
            values = {name: draw(strategy) for name, strategy in FIELDS.items()}
            parent = draw(maybe(st.sampled_from(steps))) if steps else None
            steps.append(
                Step(trajectory_id=trajectory_id, step_index=index, parent=parent, **values)
            )
        found.append(Trajectory(trajectory_id=trajectory_id, steps=tuple(steps)))
    return found


def written(path: Path, found: list[Trajectory], n_rows: int) -> bytes:
    with DatasetWriter(path, state=StatePolicy.NONE) as writer:
        writer.group_rows = n_rows
        for trajectory in found:
            writer.write(trajectory)
    return path.read_bytes()


@given(trajectories(), st.integers(1, 5))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_field_of_every_step_comes_back_as_it_was(found, n_rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "steps.parquet")
        once = written(path, found, n_rows)
        assert once == written(Path(folder, "again.parquet"), found, n_rows)
        dataset = open_dataset(path)
        again = list(read_trajectories(dataset))
        with pq.ParquetFile(path) as file:
            tables = [file.read_row_group(group) for group in range(file.num_row_groups)]
    for mine, other in zip(found, again, strict=True):
        assert_same_trajectory(mine, other)
    assert dataset.n_steps == sum(len(trajectory.steps) for trajectory in found)
    assert dataset.metadata["row_groups"] == [content_digest(table) for table in tables]
    assert all(0 < table.num_rows <= n_rows for table in tables)


@given(st.lists(st.none() | st.lists(st.none() | singles, max_size=4), max_size=6))
@settings(deadline=None)
def test_a_digest_does_not_see_how_the_buffers_lie(rows):
    kind = pa.list_(pa.field("element", pa.float32()))
    array = pa.array(rows, kind)
    whole = pa.table({"a": array})
    padded = pa.table({"a": pa.array([[1.0], None, *rows, [2.0]], kind)}).slice(2, len(rows))
    cut = pa.table({"a": pa.chunked_array([array[:1], array[1:]], kind)})
    assert content_digest(whole) == content_digest(padded) == content_digest(cut)
