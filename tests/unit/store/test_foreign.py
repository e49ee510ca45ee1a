"""Parquet files of other programs: rows as JSON has them, faults named."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import make_trajectory
from tests.mask_builders import write_steps
from trajkit.errors import FileError, InputError
from trajkit.store.foreign import is_foreign, read_foreign


def test_a_file_is_foreign_when_it_lacks_our_metadata(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    own = write_steps(tmp_path / "own.parquet", make_trajectory([([1], [2])]))
    (tmp_path / "text.parquet").write_text("no")
    assert is_foreign(tmp_path / "a.parquet")
    assert not is_foreign(own)
    assert not is_foreign(tmp_path / "text.parquet")
    assert not is_foreign(tmp_path / "nothing.parquet")


def test_rows_come_as_json_values_in_order(tmp_path):
    rows = [
        {
            "ids": [1, 2],
            "x": float("nan"),
            "s": {"k": [0.5, float("nan")]},
            "d": datetime.date(2026, 1, 2),
        },
        {"ids": None, "x": 1.5, "s": None, "d": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    records = list(read_foreign(tmp_path / "a.parquet"))
    assert [record.value for record in records] == [
        {"ids": [1, 2], "x": None, "s": {"k": [0.5, None]}, "d": "2026-01-02"},
        {"ids": None, "x": 1.5, "s": None, "d": None},
    ]
    assert [(record.index, record.line) for record in records] == [(0, 1), (1, 2)]


def test_a_damaged_file_is_named(tmp_path):
    table = pa.table({"a": list(range(5000))})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_dictionary=False, compression="none", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        list(read_foreign(path))
    assert caught.value.code == "S103"
    with pytest.raises(FileError) as missing:
        list(read_foreign(tmp_path / "nothing.parquet"))
    assert missing.value.code == "F101"
