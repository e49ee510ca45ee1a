"""The columns on disk are the fields of a step, with the types and names that others rely on."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa

from trajkit.records import Step
from trajkit.store.schema import COLUMNS, DERIVED, SCHEMA


def test_every_column_is_a_field_of_a_step_and_the_other_way_round():
    in_memory_only = {"parent", "origin"}
    on_disk = {column.name for column in COLUMNS}
    attributes = {field.name for field in fields(Step)} - in_memory_only
    assert on_disk == attributes | {"prompt_parent"} | DERIVED


def test_the_five_seed_columns_have_their_types():
    assert SCHEMA.field("state_before").type == pa.large_string()
    assert SCHEMA.field("action_tokens").type == pa.list_(pa.int32())
    assert SCHEMA.field("observation").type == pa.large_string()
    assert SCHEMA.field("reward").type == pa.float64()
    assert SCHEMA.field("is_terminal").type == pa.bool_()


def test_only_what_every_step_has_may_not_be_null():
    assert [column.name for column in COLUMNS if not column.nullable] == [
        "trajectory_id",
        "step_index",
        "is_terminal",
        "action_source",
        "prompt_source",
        "source_format",
        "source_file",
        "source_record",
    ]


def test_every_column_has_a_meaning():
    assert all(len(column.meaning) >= 4 for column in COLUMNS)
