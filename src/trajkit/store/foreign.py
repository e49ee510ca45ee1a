"""Rows of Parquet files that other programs wrote, as the records a JSONL file would give."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trajkit.errors import FileError, InputError, Place
from trajkit.safe.json import Record
from trajkit.store.read import PROBLEMS
from trajkit.store.schema import METADATA_KEY

_BATCH_ROWS = 64
_SOUND = {int, bool, str, type(None)}
_NUMBERS = {*_SOUND, float} - {str}


def is_foreign(path: Path) -> bool:
    """Return whether a file is Parquet without trajkit's metadata.

    A file that cannot be opened is not: whoever opens it as a dataset says what is wrong with it.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except PROBLEMS:
        return False
    return METADATA_KEY not in metadata


def read_foreign(path: Path) -> Iterator[Record]:
    """Yield one record a row: its values as JSON has them, null where a number is NaN.

    Raises:
        FileError: F101 when it cannot be read.
        InputError: S103 when it is damaged.
    """
    place = Place(file=str(path))
    index = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in _plain_rows(batch):
                    yield Record(
                        value=row,
                        raw=b"",
                        file=str(path),
                        line=index + 1,
                        byte_offset=0,
                        index=index,
                    )
                    index += 1
    except PROBLEMS as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            message = f"cannot be read: {problem.strerror}"
            raise FileError("F101", message, place=place) from problem
        raise InputError(
            "S103",
            f"expected a whole Parquet file: {str(problem).splitlines()[0]}",
            place=place,
            hint="write the file again",
        ) from problem


def _plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for index in range(batch.num_rows):  # one row at a time: its values are many Python objects
        (row,) = batch.slice(index, 1).to_pylist()
        yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what JSON cannot hold becomes its text."""
    if isinstance(value, list):
        kinds = set(map(type, value))
        if kinds <= _SOUND or (kinds <= _NUMBERS and math.isfinite(sum(v or 0 for v in value))):
            return value
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value
