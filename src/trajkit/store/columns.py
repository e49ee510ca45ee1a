"""Steps as Arrow columns, and Arrow columns as steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trajkit.errors import InputError, Place
from trajkit.records import (
    ActionSource,
    EndReason,
    LogprobKind,
    MaskRun,
    MediaSpan,
    Observation,
    PromptSource,
    RewardPart,
    Segment,
    SegmentKind,
    Step,
    StepRef,
)
from trajkit.store.schema import COLUMNS, DERIVED, SCHEMA

_Values: TypeAlias = Sequence[Any]

_IDS = ("action_tokens", "prompt_delta", "tail_tokens")
_FLOATS = (
    "rollout_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "advantages",
    "values",
    "token_rewards",
)
READ_COLUMNS = tuple(column.name for column in COLUMNS if column.name not in DERIVED)


def steps_table(steps: Sequence[Step], states: Sequence[str | None]) -> pa.Table:
    """Return one row per step in the order of `SCHEMA`; `states` fills `state_before`."""
    arrays = []
    for field in SCHEMA:
        values: _Values
        if field.name == "state_before":
            values = states
        else:
            values = [getattr(step, field.name) for step in steps]
        arrays.append(_to_arrow(values, field.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _to_arrow(values: _Values, kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind):
        return _lists_to_arrow(values, kind)
    if pa.types.is_struct(kind):
        return _structs_to_arrow(values, kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def _lists_to_arrow(values: _Values, kind: pa.ListType) -> pa.ListArray:
    counts = [0 if value is None else len(value) for value in values]
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    known = [value for value in values if value is not None]
    item = kind.value_type
    flat: pa.Array
    if pa.types.is_primitive(item):
        flat = _flat_numbers(known, item)
    elif pa.types.is_struct(item):
        flat = _structs_to_arrow([part for value in known for part in value], item)
    else:
        flat = pa.array([part for value in known for part in value], item)
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=kind, mask=missing)


def _flat_numbers(arrays: Sequence[NDArray[Any]], item: pa.DataType) -> pa.Array:
    flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=item.to_pandas_dtype())
    missing = np.isnan(flat) if pa.types.is_floating(item) else None
    return pa.array(flat, item, mask=missing)


def _structs_to_arrow(values: _Values, kind: pa.StructType) -> pa.StructArray:
    children = [
        pa.array([None if v is None else getattr(v, field.name) for v in values], field.type)
        for field in kind
    ]
    missing = pa.array([v is None for v in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)


def steps_of(batch: pa.RecordBatch, file: str) -> Iterator[dict[str, Any]]:
    """Yield the keyword arguments of one `Step` per row; arrays are views over the batch's buffers.

    `prompt_parent` is still the parent's index: only the reader knows the step it names.

    Raises:
        InputError: S103 when a value is none that a column can have.
    """
    names = [name for name in READ_COLUMNS if name in batch.schema.names]
    try:
        columns = [_from_arrow(batch.column(name), name) for name in names]
    except ValueError as problem:  # a word this version does not know, a null among ids
        raise InputError("S103", f"a column holds {problem}", place=Place(file=file)) from problem
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


_ENUMS: dict[str, Callable[[str], Any]] = {
    "action_source": ActionSource,
    "prompt_source": PromptSource,
    "end_reason": EndReason,
    "logprob_kind": LogprobKind,
}

_STRUCTS: dict[str, Callable[..., Any]] = {
    "segments": lambda kind, start, end: Segment(SegmentKind(kind), start, end),
    "source_mask": MaskRun,
    "observations": lambda call_id, name, text, is_error: Observation(
        call_id=call_id, name=name, text=text, is_error=is_error
    ),
    "media": lambda start, end, type_, ref, sha256: MediaSpan(
        start=start, end=end, type=type_, ref=ref, sha256=sha256
    ),
    "rewards": lambda name, value, weight, kind: RewardPart(
        name=name, value=value, weight=weight, kind=kind
    ),
}


def _from_arrow(array: pa.Array, name: str) -> _Values:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if name in _IDS or name in _FLOATS:
        return _number_views(array, np.int32 if name in _IDS else np.float32)
    if name in _STRUCTS:
        return _struct_lists(array, _STRUCTS[name])
    if name == "spawned_by":
        return [None if ref is None else StepRef(**ref) for ref in array.to_pylist()]
    if name == "policy_version":
        return [None if value is None else tuple(value) for value in array.to_pylist()]
    values = array.to_pylist()
    if name in _ENUMS:
        words: dict[str | None, Any] = {w: _ENUMS[name](w) for w in set(values) if w is not None}
        return [words.get(value) for value in values]
    return list(values)


def _number_views(array: pa.ListArray, dtype: type[np.generic]) -> list[NDArray[Any] | None]:
    """Return one read-only numpy view per row over the array's own values."""
    values = array.values
    if values.null_count and dtype is np.int32:
        raise ValueError("a null among ids")
    flat = values.to_numpy(zero_copy_only=not values.null_count)  # null becomes NaN
    flat.setflags(write=False)
    offsets = array.offsets.to_numpy()
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return [
        flat[start:end] if known else None
        for start, end, known in zip(
            offsets[:-1].tolist(), offsets[1:].tolist(), valid.tolist(), strict=True
        )
    ]


def _struct_lists(array: pa.ListArray, make: Callable[..., Any]) -> list[tuple[Any, ...] | None]:
    fields = [child.to_pylist() for child in array.values.flatten()]
    parts = [make(*row) for row in zip(*fields, strict=True)]
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [
        tuple(parts[start:end]) if known else None
        for start, end, known in zip(offsets[:-1], offsets[1:], valid, strict=True)
    ]
