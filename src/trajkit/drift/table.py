"""Findings as a Parquet table: one row a differing region, for pandas and DuckDB."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from trajkit.drift.findings import DriftFinding, DriftReport
from trajkit.safe.files import publish
from trajkit.store.beside import row_groups_of
from trajkit.store.read import Dataset
from trajkit.store.schema import FINDINGS_SCHEMA, FINDINGS_SCHEMA_NAME
from trajkit.store.write import ParquetSink

_GROUP = 65_536


def write_findings(report: DriftReport, dataset: Dataset, out: Path, *, overwrite: bool) -> None:
    """Write a report's findings as `trajkit.findings/1`.

    The metadata hold its counts, and the digests of the dataset's row groups: what they speak of.

    Raises:
        UsageProblem, FileError: as `publish` does; `out` stays as it was then.
    """
    counts = report.to_dict()
    del counts["findings"], counts["schema"]
    with publish(out, overwrite=overwrite) as stream:
        sink = ParquetSink(stream, FINDINGS_SCHEMA, FINDINGS_SCHEMA_NAME)
        for start in range(0, max(1, len(report.findings)), _GROUP):
            sink.write_group(findings_table(report.findings[start : start + _GROUP]))
        data = {"row_groups": row_groups_of(dataset), "n_steps": dataset.n_steps}
        sink.close({"report": counts, "data": data})


def findings_table(findings: Sequence[DriftFinding]) -> pa.Table:
    """Return one row per finding, in order."""
    rows = [_row(finding) for finding in findings]
    arrays = [
        pa.array([row[column.name] for row in rows], column.type) for column in FINDINGS_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=FINDINGS_SCHEMA)


def _row(finding: DriftFinding) -> dict[str, Any]:
    fields = finding.to_dict()
    evidence = fields.pop("evidence")
    return fields | {"evidence_json": json.dumps(evidence, ensure_ascii=False)}
