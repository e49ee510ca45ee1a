import json

import pyarrow as pa
import pytest

from tests.builders import make_trajectory
from trajkit.errors import InputError, UsageProblem
from trajkit.store.findings import open_findings
from trajkit.store.read import open_dataset
from trajkit.store.schema import FINDINGS_SCHEMA, FINDINGS_SCHEMA_NAME
from trajkit.store.write import DatasetWriter, ParquetSink

ROW = {
    "trajectory_id": "t",
    "step_index": 0,
    "route": "ids",
    "kind": "ids-only",
    "cause": "UNEXPLAINED",
    "token_start": 1,
    "n_action_tokens": 1,
    "recorded_ids": [6],
    "retokenized_ids": [7, 8],
    "retokenized_text": "x",
    "evidence_json": "{}",
}


def write(file, *groups, schema_name=FINDINGS_SCHEMA_NAME, **metadata):
    with file.open("wb") as stream:
        sink = ParquetSink(stream, FINDINGS_SCHEMA, schema_name)
        for group in groups:
            arrays = [pa.array([row.get(f.name) for row in group], f.type) for f in FINDINGS_SCHEMA]
            sink.write_group(pa.Table.from_arrays(arrays, schema=FINDINGS_SCHEMA))
        sink.close(metadata)
    return file


@pytest.fixture
def data(tmp_path):
    with DatasetWriter(tmp_path / "data.parquet") as writer:
        for name in "tu":
            writer.write(make_trajectory([([5], [6])], name))
    return open_dataset(tmp_path / "data.parquet")


def test_findings_come_by_trajectory_in_order(tmp_path, data):
    other = ROW | {"trajectory_id": "u", "evidence_json": json.dumps({"n_recorded": 90})}
    later = ROW | {"token_start": 2, "retokenized_text": None}
    found = open_findings(write(tmp_path / "f.parquet", [ROW, other], [later]), data)
    first, second = found.of(make_trajectory([([5], [6])], "t"))
    assert (first.token_start, first.n_tokens, first.retokenized_ids) == (1, 1, (7, 8))
    assert (second.token_start, second.retokenized_text) == (2, None)
    (cut,) = found.of(make_trajectory([([5], [6])], "u"))
    assert cut.n_tokens == 90
    assert found.of(make_trajectory([([5], [6])], "v")) == ()


@pytest.mark.parametrize(
    "metadata", [{"data": {"row_groups": ["other"]}}, {"report": {"n_steps": 3}}]
)
def test_findings_of_other_data_are_refused(tmp_path, data, metadata):
    file = write(tmp_path / "f.parquet", [ROW], **metadata)
    with pytest.raises(UsageProblem, match="other data") as caught:
        open_findings(file, data)
    assert caught.value.code == "U103"


def test_findings_that_name_the_datas_row_groups_are_taken(tmp_path, data):
    groups = data.metadata["row_groups"]
    file = write(tmp_path / "f.parquet", [ROW], data={"row_groups": groups}, report={"n_steps": 2})
    assert len(open_findings(file, data).of(make_trajectory([([5], [6])], "t"))) == 1


def test_another_table_is_no_findings(tmp_path, data):
    with pytest.raises(InputError, match="found trajkit/1") as caught:
        open_findings(tmp_path / "data.parquet", data)
    assert caught.value.code == "S101"


def test_evidence_that_is_no_object_is_damage(tmp_path, data):
    for evidence in ("[", "[]", '{"n_recorded": "x"}'):
        file = write(tmp_path / "f.parquet", [ROW | {"evidence_json": evidence}])
        with pytest.raises(InputError) as caught:
            open_findings(file, data).of(make_trajectory([([5], [6])], "t"))
        assert caught.value.code == "S103"
