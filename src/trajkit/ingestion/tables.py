"""Parquet files that trainers dump, as records: pre-tokenised rows, and nothing else.

A table gives each row all of its columns and each struct all of its fields, null where there was
none: ids and masks do not mind, but a conversation would change (a call without an argument has it
as null). So no other format is looked for in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from trajkit.errors import Place, RefusedError, UsageProblem
from trajkit.formats import Format, rows
from trajkit.safe.json import MAX_RECORD_BYTES, Record, dumps
from trajkit.store.foreign import is_foreign, read_foreign

SUFFIX = ".parquet"
_PIECE = 2**20


def is_table(path: Path) -> bool:
    """Return whether a file is Parquet that ingest did not write."""
    return path.suffix == SUFFIX and is_foreign(path)


def table_records(path: Path, name: str) -> Iterator[Record]:
    """Yield a record a row; `raw` is its JSON, `line` its number from 1.

    Raises:
        FileError: F101 when the file cannot be read.
        InputError: S103 when it is damaged.
        RefusedError: R101 when a row is longer than a record may be.
    """
    for record in read_foreign(path):
        raw = dumps(record.value).encode()
        if len(raw) > MAX_RECORD_BYTES:
            raise RefusedError(
                "R101",
                f"expected rows of at most {MAX_RECORD_BYTES:,} bytes as JSON, found {len(raw):,}",
                place=Place(file=name, line=record.line),
            )
        yield replace(record, file=name, raw=raw)


def read_to_end(stream: BinaryIO) -> None:
    """Read what is left of a stream, so that it knows its digest."""
    while stream.read(_PIECE):
        pass


def formats_of_tables(form: Format | None, formats: tuple[Format, ...]) -> tuple[Format, ...]:
    """Return what a row of a table may be.

    Raises:
        UsageProblem: U103 when another format is asked for.
    """
    if form is not None and form.name != rows.FORMAT.name:
        raise UsageProblem(
            "U103",
            f"a Parquet file is read as {rows.FORMAT.name}, not as {form.name}",
            hint="write other logs as JSONL",
        )
    return tuple(entry for entry in formats if entry.name == rows.FORMAT.name)
