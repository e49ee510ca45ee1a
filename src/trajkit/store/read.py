"""Trajectories out of Parquet, one at a time, with arrays that are views over Arrow buffers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from trajkit.errors import FileError, InputError, Place, UsageProblem
from trajkit.records import Step, Trajectory
from trajkit.store.columns import steps_of
from trajkit.store.digest import content_digest
from trajkit.store.manifest import Part, read_manifest, unseal
from trajkit.store.schema import DERIVED, METADATA_KEY, SCHEMA, SCHEMA_NAME

PROBLEMS = (OSError, pa.ArrowException, UnicodeDecodeError)
"""What the Parquet library raises at a file that is not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Step records on disk: the parts in order and the metadata they were written with."""

    path: Path
    parts: tuple[Path, ...]
    metadata: dict[str, Any]
    n_steps: int

    @property
    def tokenizer_fingerprint(self) -> str | None:
        """Return the fingerprint of the tokenizer used at ingest, `None` when there was none."""
        value = self.metadata.get("tokenizer_fingerprint")
        return value if isinstance(value, str) else None


def open_dataset(path: Path | str) -> Dataset:
    """Return the dataset at a `.parquet` file or a folder with a manifest; reads footers only.

    Raises:
        InputError: S101 not a trajkit file, S102 newer schema, S103 damaged, S104 not whole.
        FileError: F101 when it cannot be read.
    """
    path = Path(path)
    parts = read_manifest(path) if path.is_dir() else (Part(path=path, row_groups=None),)
    n_steps, metadata = 0, {}
    for part in reversed(parts):
        with open_part(part.path) as file:
            metadata = footer(file, part.path)
            n_steps += file.metadata.num_rows
        if part.row_groups not in (None, tuple(metadata["row_groups"])):
            raise damaged(part.path, "it is not the part that the manifest names")
    return Dataset(
        path=path, parts=tuple(part.path for part in parts), metadata=metadata, n_steps=n_steps
    )


def read_trajectories(
    data: Dataset | Path | str,
    *,
    only: Collection[str] = (),
    limit: int | None = None,
) -> Iterator[Trajectory]:
    """Yield the trajectories of a dataset in order, whole, one row group in memory at a time.

    Each row group's content is held against its digest before a step of it is yielded.

    Args:
        data: a dataset, or the path of one.
        only: ids to keep; empty keeps all.
        limit: how many trajectories to yield at most.

    Raises:
        InputError: S103 when a row group is not what was written.
        UsageProblem: U107 when the dataset ends before each id in `only` was met.
    """
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    found = (one for part in dataset.parts for one in trajectories_of(_batches(part), part))
    return chosen(found, dataset, only=only, limit=limit)


class _Named(Protocol):
    @property
    def trajectory_id(self) -> str: ...


_Item = TypeVar("_Item", bound=_Named)


def chosen(
    items: Iterable[_Item], dataset: Dataset, *, only: Collection[str], limit: int | None
) -> Iterator[_Item]:
    """Yield what has an id in `only`, or all if it is empty, `limit` at most; U107 as above."""
    wanted = frozenset(only)
    most = len(wanted) or None  # no id occurs twice
    found = _wanted(items, dataset, wanted)
    return islice(found, min((n for n in (limit, most) if n is not None), default=None))


def _wanted(items: Iterable[_Item], dataset: Dataset, wanted: frozenset[str]) -> Iterator[_Item]:
    missing = set(wanted)
    for item in items:
        if not wanted or item.trajectory_id in wanted:
            missing.discard(item.trajectory_id)
            yield item
    if missing:
        raise UsageProblem(
            "U107",
            f"no trajectory has the id {min(missing)}",
            place=Place(file=str(dataset.path)),
            hint="trajkit info DATA lists the ids",
        )


def open_part(part: Path) -> pq.ParquetFile:
    """Return an open part of a dataset; S101 or F101 when it is none."""
    place = Place(file=str(part))
    try:
        return pq.ParquetFile(part, page_checksum_verification=True)
    except FileNotFoundError as problem:
        raise FileError("F101", "there is no such file", place=place) from problem
    except PROBLEMS as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            message = f"cannot be read: {problem.strerror}"
            raise FileError("F101", message, place=place) from problem
        raise InputError(
            "S101",
            "this is not a Parquet file that can be read",
            place=place,
            hint="trajkit ingest SOURCE -o OUT.parquet turns logs into one",
        ) from problem


def footer(file: pq.ParquetFile, part: Path) -> dict[str, Any]:
    """Return a part's trajkit metadata after checking that this trajkit can read what follows."""
    raw = (file.metadata.metadata or {}).get(METADATA_KEY)
    if raw is None:
        raise InputError(
            "S101",
            "a Parquet file without trajkit's metadata: not step records, or written again by "
            "another tool",
            place=Place(file=str(part)),
            hint="trajkit ingest SOURCE -o OUT.parquet turns logs into step records",
        )
    metadata = _metadata(raw, part)
    if len(metadata["row_groups"]) != file.num_row_groups:
        raise damaged(part, "row groups are missing")
    _check_schema(_schema(file, part), part)
    return metadata


def _metadata(raw: bytes, part: Path) -> dict[str, Any]:
    try:
        name = str(json.loads(raw)["schema"])
        newer = name.startswith("trajkit/") and name != SCHEMA_NAME
        metadata = {} if newer else unseal(raw)
    except (ValueError, KeyError, TypeError) as problem:
        raise damaged(part, f"its metadata cannot be understood: {problem}") from problem
    if name != SCHEMA_NAME:
        raise InputError(
            "S102" if newer else "S101",
            f"expected a table {SCHEMA_NAME}, found {name}",
            place=Place(file=str(part)),
            hint="upgrade trajkit" if newer else "give what trajkit ingest wrote",
        )
    return metadata


def _schema(file: pq.ParquetFile, part: Path) -> pa.Schema:
    try:
        return file.schema_arrow
    except PROBLEMS as problem:
        raise damaged(part, "its schema cannot be understood") from problem


def _check_schema(schema: pa.Schema, part: Path) -> None:
    for field in SCHEMA:
        spot = schema.get_field_index(field.name)
        if spot < 0 and not field.nullable:
            raise damaged(part, f"the column {field.name} is missing")
        if spot >= 0 and schema.field(spot).type != field.type:
            message = f"the column {field.name} is {schema.field(spot).type}, not {field.type}"
            raise damaged(part, message)


def damaged(part: Path, why: str) -> InputError:
    """Return the error that says why a part is not what was written."""
    return InputError(
        "S103",
        f"expected the file as it was written, found it damaged: {why}",
        place=Place(file=str(part)),
        hint="ingest the logs again",
    )


def trajectories_of(batches: Iterable[pa.RecordBatch], part: Path) -> Iterator[Trajectory]:
    """Yield the trajectories whose rows follow each other in the batches of a part."""
    steps: list[Step] = []
    for step in _steps(batches, part):
        if steps and step.trajectory_id != steps[0].trajectory_id:
            yield _whole(steps)
            steps = []
        steps.append(step)
    if steps:
        yield _whole(steps)


def _steps(batches: Iterable[pa.RecordBatch], part: Path) -> Iterator[Step]:
    """Yield the steps, each linked to its parent."""
    known: dict[int, Step] = {}
    trajectory_id: str | None = None
    for batch in batches:
        for fields in steps_of(batch, str(part)):
            if fields["trajectory_id"] != trajectory_id:
                trajectory_id, known = fields["trajectory_id"], {}
            index = fields.pop("prompt_parent")
            if index is not None and index not in known:
                place = Place(
                    file=str(part), trajectory_id=trajectory_id, step_index=fields["step_index"]
                )
                raise InputError("S103", f"its parent, step {index}, is missing", place=place)
            step = Step(parent=None if index is None else known[index], **fields)
            known[step.step_index] = step
            yield step


def _batches(part: Path) -> Iterator[pa.RecordBatch]:
    with open_part(part) as file:
        for group, digest in enumerate(footer(file, part)["row_groups"]):
            yield from read_group(file, part, group, digest).to_batches()


def read_group(file: pq.ParquetFile, part: Path, group: int, digest: str) -> pa.Table:
    """Return a row group of a part in one chunk; S103 when it is not what was written."""
    columns = [name for name in file.schema_arrow.names if name not in DERIVED]
    try:
        table = file.read_row_group(group, columns=columns)
        found = content_digest(table)
    except PROBLEMS as problem:
        reason = str(problem).splitlines()[0]
        raise damaged(part, f"row group {group}: {reason}") from problem
    if found != digest:
        raise damaged(part, f"row group {group} has another digest")
    return table.combine_chunks()


def _whole(steps: Sequence[Step]) -> Trajectory:
    return Trajectory(trajectory_id=steps[0].trajectory_id, steps=tuple(steps))
