"""Findings out of Parquet: where a drift check found other ids than a dataset's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajkit.errors import UsageProblem
from trajkit.records import Trajectory
from trajkit.store.beside import SideTable, open_beside, row_groups_of
from trajkit.store.read import Dataset
from trajkit.store.schema import FINDINGS_SCHEMA, FINDINGS_SCHEMA_NAME

_HINT = "trajkit drift-check DATA -t TOKENIZER -o FINDINGS.parquet finds them"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinding:
    """One region of a step in which ids differ.

    Attributes:
        token_start: first differing id, counted in the step's prompt + action.
        n_tokens: recorded ids that differ; 0 where the other side has more and this one none.
        recorded_ids, retokenized_ids: both sides, the first of them where there are many.
        retokenized_text: what the other ids decode to; `None` when no tokenizer was given.
    """

    step_index: int
    route: str
    kind: str
    cause: str
    token_start: int
    n_tokens: int
    recorded_ids: tuple[int, ...]
    retokenized_ids: tuple[int, ...]
    retokenized_text: str | None


class Findings:
    """A table of findings, read one row group at a time."""

    def __init__(self, table: SideTable) -> None:
        self._table = table
        self._held: tuple[int, dict[str, list[StepFinding]]] = (-1, {})

    def of(self, trajectory: Trajectory) -> tuple[StepFinding, ...]:
        """Return the findings of a trajectory in order; S103 when the table is damaged."""
        found: list[StepFinding] = []
        for group in self._table.groups.get(trajectory.trajectory_id, ()):
            if self._held[0] != group:
                self._held = group, self._rows(group)
            found += self._held[1][trajectory.trajectory_id]
        return tuple(found)

    def _rows(self, group: int) -> dict[str, list[StepFinding]]:
        rows: dict[str, list[StepFinding]] = {}
        for row in self._table.group(group).to_pylist():
            rows.setdefault(row["trajectory_id"], []).append(self._finding(row))
        return rows

    def _finding(self, row: dict[str, Any]) -> StepFinding:
        try:
            evidence = json.loads(row["evidence_json"])
            n_tokens = int(evidence.get("n_recorded", len(row["recorded_ids"])))
        except (ValueError, AttributeError, TypeError) as problem:
            raise self._table.damaged("its evidence cannot be understood") from problem
        return StepFinding(
            step_index=row["step_index"],
            route=row["route"],
            kind=row["kind"],
            cause=row["cause"],
            token_start=row["token_start"],
            n_tokens=n_tokens,
            recorded_ids=tuple(row["recorded_ids"]),
            retokenized_ids=tuple(row["retokenized_ids"]),
            retokenized_text=row.get("retokenized_text"),
        )


def open_findings(path: Path, dataset: Dataset) -> Findings:
    """Return the findings in a file that `trajkit drift-check -o` wrote.

    What can be told from the table's metadata is checked here: that it speaks of no more steps than
    the dataset has, and of the same row groups where it names them.

    Raises:
        FileError: F101 when it cannot be read.
        InputError: S101 when it holds no findings, S103 when it is damaged.
        UsageProblem: U103 when they are findings of other data.
    """
    table = open_beside(path, FINDINGS_SCHEMA, FINDINGS_SCHEMA_NAME, _HINT)
    made_of = table.metadata.get("data", {}).get("row_groups")
    n_steps = table.metadata.get("report", {}).get("n_steps", 0)
    is_other = made_of is not None and made_of != row_groups_of(dataset)
    if is_other or n_steps > dataset.n_steps:
        raise UsageProblem(
            "U103", f"{path} holds findings of other data than {dataset.path}", hint=_HINT
        )
    return Findings(table)
