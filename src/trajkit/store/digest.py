"""A digest of a table's content that survives compression, encodings and row-group changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trajkit.store.schema import DERIVED


def content_digest(table: pa.Table) -> str:
    """Return the sha256 hex digest of a table's logical content, derived columns left out.

    Two tables with equal schema and equal values have equal digests, however their buffers lie:
    each column feeds its name, its validity, its lengths and its values, in a fixed byte order.
    """
    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name not in DERIVED:
            digest.update(f"{name}:{column.type}:{len(column)}\n".encode())
            _feed(_whole(column), digest.update)
    return digest.hexdigest()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _feed(array: pa.Array, update: Callable[[Any], object]) -> None:
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    update(_bits(array.is_valid()))
    if pa.types.is_list(kind):
        update(pc.fill_null(pc.list_value_length(array), 0).to_numpy())
        _feed(array.flatten(), update)
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            _feed(child, update)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        filled = pc.fill_null(array, "").cast(pa.large_binary())
        update(pc.binary_length(filled).to_numpy())
        update(_joined(filled))
    elif pa.types.is_boolean(kind):
        update(_bits(pc.fill_null(array, fill_value=False)))
    else:
        plain = array.cast(pa.int64()) if pa.types.is_timestamp(kind) else array
        update(np.ascontiguousarray(pc.fill_null(plain, 0).to_numpy()))


def _bits(array: pa.BooleanArray) -> bytes:
    return np.packbits(array.to_numpy(zero_copy_only=False)).tobytes()


def _joined(array: pa.Array) -> memoryview:
    """Return the bytes of all values of a large_binary array, one after the other."""
    _, offsets, values = array.buffers()
    if values is None or not len(array):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    return memoryview(values)[bounds[0] : bounds[-1]]
