"""The table of findings: a row each, what the report says of itself in the metadata."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders import make_trajectory
from trajkit.drift.findings import DriftFinding, DriftKind, DriftReport, Route
from trajkit.drift.table import findings_table, write_findings
from trajkit.errors import UsageProblem
from trajkit.store.read import open_dataset
from trajkit.store.schema import FINDINGS_SCHEMA
from trajkit.store.write import DatasetWriter


def found(**given: Any) -> DriftFinding:
    fields: dict[str, Any] = {
        "trajectory_id": "t",
        "step_index": 1,
        "route": Route.CHAIN,
        "kind": DriftKind.PREFIX,
        "token_start": 7,
        "action_start": None,
        "byte_start": None,
        "recorded_ids": (1, 2),
        "retokenized_ids": (),
        "recorded_text": None,
        "retokenized_text": None,
        "n_action_tokens": 2,
        "evidence": {"n_kept": 7, "next_text": "\N{SLIGHTLY SMILING FACE}"},
    }
    return DriftFinding(**(fields | given))


def test_a_finding_is_a_row_with_nulls_where_nothing_is_known():
    table = findings_table([found(), found(recorded_text="x", byte_start=3, recorded_edges=(1, 2))])
    assert table.schema == FINDINGS_SCHEMA
    first, second = table.to_pylist()
    assert (first["recorded_ids"], first["retokenized_ids"]) == ([1, 2], [])
    assert (first["action_start"], first["byte_start"], first["recorded_text"]) == (None,) * 3
    assert (first["recorded_edges"], second["recorded_edges"]) == ([], [1, 2])
    assert (second["byte_start"], second["recorded_text"]) == (3, "x")
    assert (first["route"], first["kind"], first["cause"]) == ("chain", "prefix", "UNEXPLAINED")
    assert json.loads(first["evidence_json"])["n_kept"] == 7


def test_a_report_is_written_whole_and_never_over_another_file(tmp_path):
    out = tmp_path / "findings.parquet"
    with DatasetWriter(tmp_path / "steps.parquet") as writer:
        writer.write(make_trajectory([([5], [6])]))
    dataset = open_dataset(tmp_path / "steps.parquet")
    report = DriftReport(n_trajectories=3, findings=[found(), found(step_index=2)])
    write_findings(report, dataset, out, overwrite=False)
    assert pq.read_table(out).column("step_index").to_pylist() == [1, 2]
    told = json.loads(pq.read_metadata(out).metadata[b"trajkit"])
    assert (told["schema"], told["report"]["n_trajectories"]) == ("trajkit.findings/1", 3)
    assert told["data"] == {"row_groups": dataset.metadata["row_groups"], "n_steps": 1}
    before = out.read_bytes()
    with pytest.raises(UsageProblem) as caught:
        write_findings(DriftReport(), dataset, out, overwrite=False)
    assert (caught.value.code, out.read_bytes()) == ("U101", before)
    write_findings(DriftReport(), dataset, out, overwrite=True)
    assert pq.read_table(out).num_rows == 0
