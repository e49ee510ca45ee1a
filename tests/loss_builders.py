"""Data and scores on disk, written without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from trajkit.records import Trajectory
from trajkit.store.read import open_dataset
from trajkit.store.schema import SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.write import DatasetWriter, ParquetSink

Row = tuple[str, int, Sequence[float | None] | None, Sequence[float] | None]
"""Trajectory, step, log-probs, and log-probs of a reference model."""


def data_at(path: Path, trajectories: Sequence[Trajectory]) -> Path:
    """Return the dataset the trajectories were written to."""
    with DatasetWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
    return path


def scores_at(
    path: Path, data: Path, rows: Sequence[Row], *, context: Any = None, **more: Any
) -> Path:
    """Return a table of scores with some rows, as `score -o` writes it; `more` are columns."""
    names, steps, logprobs, references = zip(*rows, strict=True)
    columns: dict[str, Any] = {
        "trajectory_id": names,
        "step_index": steps,
        "status": ["ok"] * len(rows),
        "logprobs": logprobs,
        "ref_logprobs": references,
        "context_logprobs": context or [None] * len(rows),
        **more,
    }
    arrays = [
        pa.array(columns.get(field.name, [None] * len(rows)), field.type) for field in SCORES_SCHEMA
    ]
    with path.open("wb") as stream:
        sink = ParquetSink(stream, SCORES_SCHEMA, SCORES_SCHEMA_NAME)
        sink.write_group(pa.Table.from_arrays(arrays, schema=SCORES_SCHEMA))
        groups = open_dataset(data).metadata["row_groups"]
        sink.close({"data": {"row_groups": groups}, "model": {"name": "m", "dtype": "fp32"}})
    return path
