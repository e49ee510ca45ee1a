"""Tables that stand beside a dataset: a row or more a step, and what they were made of.

They are read one row group at a time, and each group is held against its digest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trajkit.errors import FileError, InputError, Place
from trajkit.store.digest import content_digest
from trajkit.store.manifest import unseal
from trajkit.store.read import PROBLEMS, Dataset, open_dataset
from trajkit.store.schema import METADATA_KEY


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideTable:
    """An open table.

    Attributes:
        metadata: what was written with it.
        hint: how to make it anew.
        groups: the row groups that hold rows of a trajectory, by its id.
    """

    path: Path
    file: pq.ParquetFile
    metadata: dict[str, Any]
    hint: str
    groups: dict[str, list[int]] = field(default_factory=dict)

    def group(self, number: int) -> pa.Table:
        """Return a row group; S103 when it is not what was written."""
        table = self._read(number, None)
        if content_digest(table) != self.metadata["row_groups"][number]:
            raise self.damaged(f"row group {number} has another digest")
        return table

    def index(self) -> None:
        """Fill `groups`; reads one column."""
        for number in range(self.file.num_row_groups):
            for name in self._read(number, ["trajectory_id"]).column(0).unique().to_pylist():
                self.groups.setdefault(name, []).append(number)

    def damaged(self, why: str) -> InputError:
        """Return the error that says why the table is not what was written."""
        return InputError(
            "S103",
            f"expected the table as it was written, found it damaged: {why}",
            place=Place(file=str(self.path)),
            hint=self.hint,
        )

    def _read(self, number: int, columns: list[str] | None) -> pa.Table:
        try:
            return self.file.read_row_group(number, columns=columns)
        except PROBLEMS as problem:
            raise self.damaged(str(problem).splitlines()[0]) from problem


def open_beside(path: Path, schema: pa.Schema, schema_name: str, hint: str) -> SideTable:
    """Return a table of a schema, all of whose columns it has.

    Raises:
        FileError: F101 when it cannot be read.
        InputError: S101 when it is another table, S103 when it is damaged.
    """
    place = Place(file=str(path))
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        columns = file.schema_arrow
    except PROBLEMS as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            message = f"cannot be read: {problem.strerror}"
            raise FileError("F101", message, place=place) from problem
        message = "this is not a Parquet file that can be read"
        raise InputError("S101", message, place=place) from problem
    raw = (file.metadata.metadata or {}).get(METADATA_KEY)
    table = SideTable(path=path, file=file, metadata={}, hint=hint)
    try:
        table.metadata.update({} if raw is None else unseal(raw))
    except (ValueError, KeyError, TypeError) as problem:
        raise table.damaged(f"its metadata cannot be understood: {problem}") from problem
    names = [each.name for each in schema if each.name in columns.names]
    known = all(columns.field(name).type == schema.field(name).type for name in names)
    needed = {each.name for each in schema if not each.nullable}
    if table.metadata.get("schema") != schema_name or not known or not needed <= set(names):
        raise InputError(
            "S101",
            f"expected a table {schema_name}, found {table.metadata.get('schema', 'another')}",
            place=place,
            hint=hint,
        )
    if len(table.metadata.get("row_groups", ())) != file.num_row_groups:
        raise table.damaged("row groups are missing")
    table.index()
    return table


def row_groups_of(dataset: Dataset) -> list[str]:
    """Return the digest of each row group of a dataset, in order: what its steps are."""
    parts = (open_dataset(part) for part in dataset.parts)
    return [digest for part in parts for digest in part.metadata.get("row_groups", [])]
