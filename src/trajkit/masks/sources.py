"""What a path holds, as rows to judge: step records, or pre-tokenised rows in JSONL or Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from trajkit.errors import InputError, Place, UsageProblem
from trajkit.formats.alignment import Align
from trajkit.formats.row_keys import is_row
from trajkit.formats.token_row import TokenRow, read_row
from trajkit.masks.marks import Marks
from trajkit.masks.rows import MaskedRow, row_of_record, rows_of_trajectory
from trajkit.records import Step
from trajkit.safe.files import open_source
from trajkit.safe.json import BadRecord, Record, read_records
from trajkit.store.foreign import is_foreign, read_foreign
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.tokenizer import Tokenizer, require_same_tokenizer
from trajkit.training import TrainPolicy

_PARQUET = ".parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of the data is asked for.

    Attributes:
        only: trajectory ids; empty takes all.
        limit: how many trajectories at most.
        policy: the loss mask to judge; `None` takes the source's own.
        align: how the masks of rows stand.
    """

    only: frozenset[str] = frozenset()
    limit: int | None = None
    policy: TrainPolicy | None = None
    align: Align = Align.AUTO


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """One trajectory, or one pre-tokenised row, as what is judged.

    Attributes:
        steps: its step records; empty for a row.
        misfit: why a row could not be brought to its ids; it has no `rows` then.
    """

    trajectory_id: str
    rows: tuple[MaskedRow, ...]
    steps: tuple[Step, ...] = ()
    misfit: InputError | None = None
    place: Place = field(default_factory=Place)
    record: int = 0


def is_dataset(data: Path) -> bool:
    """Return whether a path is to be read as step records; a file without our metadata is not."""
    return data.is_dir() or (data.suffix == _PARQUET and not is_foreign(data))


def open_steps(data: Path, tokenizer: Tokenizer | None) -> Dataset:
    """Return the step records at a path, held against the tokenizer they were made with.

    Raises:
        InputError: as `open_dataset`, and T102.
    """
    dataset = open_dataset(data)
    if tokenizer is not None:
        require_same_tokenizer(
            tokenizer,
            fingerprint=dataset.tokenizer_fingerprint,
            name=dataset.metadata.get("tokenizer_name"),
            file=str(data),
        )
    return dataset


def judged_steps(
    dataset: Dataset, wanted: Wanted, tokenizer: Tokenizer | None, marks: Marks | None
) -> Iterator[Judged]:
    """Yield the trajectories of step records.

    Raises:
        InputError: I304 when an id is not in the vocabulary; as `read_trajectories`.
    """
    for trajectory in read_trajectories(dataset, only=wanted.only, limit=wanted.limit):
        for step in trajectory.steps:
            for ids in (step.prompt_delta, step.action_tokens, step.tail_tokens):
                if ids is not None and tokenizer is not None:
                    tokenizer.require_known(ids, "a step's", step.place)
        yield Judged(
            trajectory_id=trajectory.trajectory_id,
            rows=tuple(rows_of_trajectory(trajectory, wanted.policy, tokenizer, marks)),
            steps=trajectory.steps,
        )


def judged_rows(
    data: Path, wanted: Wanted, tokenizer: Tokenizer | None, marks: Marks | None
) -> Iterator[Judged]:
    """Yield the pre-tokenised rows of a file. A row without an id is called by its number, `#3`.

    Raises:
        InputError: what is wrong with the first bad record; I109 without any; I304.
        UsageProblem: U107 when an id that was asked for is not there.
    """
    missing = set(wanted.only)
    n_read = 0
    found = _named(data, wanted.align)
    for name, record, row in islice(found, None if wanted.only else wanted.limit):
        n_read += 1
        if wanted.only and name not in wanted.only:
            continue
        missing.discard(name)
        yield _judged(name, record, row, tokenizer, marks)
    if missing:
        raise UsageProblem("U107", f"no row has the id {min(missing)}", place=Place(file=str(data)))
    if not n_read:
        raise InputError(
            "I109", "expected at least one row, found none", place=Place(file=str(data))
        )


def _judged(
    name: str,
    record: Record,
    row: TokenRow | InputError,
    tokenizer: Tokenizer | None,
    marks: Marks | None,
) -> Judged:
    place = replace(record.place, trajectory_id=name)
    if isinstance(row, InputError):
        return Judged(trajectory_id=name, rows=(), misfit=row, place=place, record=record.index)
    if tokenizer is not None:
        tokenizer.require_known(row.token_ids, "a row's", place)
    rows = (row_of_record(row, record, name, marks),)
    return Judged(trajectory_id=name, rows=rows, place=place, record=record.index)


def _named(data: Path, align: Align) -> Iterator[tuple[str, Record, TokenRow | InputError]]:
    """Yield each record with its name and its row, or why its mask does not fit."""
    for record in _records(data):
        if is_row(record.value) is None:
            raise InputError(
                "I402",
                "this is no pre-tokenised row: expected ids with a mask",
                place=record.place,
                hint="trajkit ingest SOURCE -o OUT.parquet turns logs into step records",
            )
        row: TokenRow | InputError
        try:
            row = read_row(record, align)
            name = row.whole["trajectory_id"]
        except InputError as problem:
            if problem.code != "I407":
                raise
            row, name = problem, _id_of(record)
        yield name or f"#{record.index}", record, row


def _id_of(record: Record) -> str | None:
    value = record.value if isinstance(record.value, dict) else {}
    name = value.get("trajectory_id", value.get("id"))
    return str(name) if type(name) in (str, int) else None


def _records(data: Path) -> Iterator[Record]:
    if data.suffix == _PARQUET:
        yield from read_foreign(data)
        return
    with open_source(data) as stream:
        for record in read_records(stream, str(data)):
            if isinstance(record, BadRecord):
                raise record.error
            yield record
