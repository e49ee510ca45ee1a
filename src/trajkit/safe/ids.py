"""Long arrays of numbers out of a record's bytes, without a look at each number by itself.

A record of token ids is nearly all arrays, and a log whose prompts grow holds each id once a step.
Here such arrays are found by their keys before JSON is decoded, and each is read as a whole; what
an array shares with the one before it under the same key is not read again. Only what is surely
plain is taken: all else is left to the JSON decoder, with its errors.
"""

from __future__ import annotations

import functools
import json
import re
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARK = b"-Infinity"
"""What stands where an array was: a record that holds these bytes itself is left as it is."""

_MIN_BYTES = 2048
"""Of an array's content; shorter ones are decoded as fast."""
_MAX_BITS = 20
_LARGEST_EXACT = 2.0**53
_SPACE = b" \t\r\n"
_COMMA, _ZERO = b",0"
_IDS, _LOGPROBS = b'_ids"', b'probs"'
_OPENING = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+\[")
_LONGEST_KEY = 40
_FLOATS = json.JSONDecoder()


class NumberList(list[Any]):
    """A list of JSON numbers that is known as an array too: int32 ids, or float64.

    It is the list that the JSON decoder would have made, item by item; nobody changes it. The array
    is no public attribute, so that a template which is shown the list cannot reach it.
    """

    __slots__ = ("_array",)

    _array: NDArray[Any]


def array_of(values: object, dtype: type[np.generic]) -> NDArray[Any] | None:
    """Return the read-only array of a `NumberList`; `None` for others and for other numbers."""
    if isinstance(values, NumberList) and values._array.dtype == dtype:  # noqa: SLF001
        return values._array  # noqa: SLF001
    return None


def take_arrays(raw: bytes) -> tuple[bytes, list[NumberList]] | None:
    """Return a record without its long plain arrays, each replaced by `MARK`, and the arrays.

    Sound for any bytes: a quote right behind a letter closes a string, and only the string of a key
    goes on with a colon. What looks like a key with an array is therefore just that, or the record
    is no JSON, with the array and without it.

    Returns:
        the shortened record and the arrays in its order; `None` where there is none to take.
    """
    ids = _heads(raw, _IDS) if len(raw) > _MIN_BYTES else []
    if not ids or MARK in raw:
        return None
    pieces: list[bytes] = []
    taken: list[NumberList] = []
    before: dict[bytes, tuple[bytes, NumberList]] = {}
    n_taken, seen = 0, 0  # bytes from the start
    for start, key in sorted(ids + _heads(raw, _LOGPROBS)):
        if start < seen:
            continue  # inside what was no plain array
        seen = close = raw.find(b"]", start)
        if close < 0:
            break
        content = raw[start:close]
        found = _grown(content, before.get(key)) if key.endswith(b"_ids") else _floats(content)
        if found is None:
            continue
        before[key] = content, found
        pieces += [raw[n_taken : start - 1], MARK]
        taken.append(found)
        n_taken = close + 1
    pieces.append(raw[n_taken:])
    return (b"".join(pieces), taken) if taken else None


def _heads(raw: bytes, end_of_key: bytes) -> list[tuple[int, bytes]]:
    """Return where each long array under a key that ends so has its content, and the key."""
    heads = []
    stop = 0
    for piece, after in pairwise(raw.split(end_of_key)):
        stop += len(piece) + len(end_of_key)
        if len(after) < _MIN_BYTES or after.find(b"]", 0, _MIN_BYTES) >= 0:
            continue
        opening = _OPENING.match(raw, stop)
        if opening is not None:
            key = raw[max(0, stop - _LONGEST_KEY) : stop - 1]
            heads.append((opening.end(), key[key.rfind(b'"') + 1 :]))
    return heads


def _grown(content: bytes, before: tuple[bytes, NumberList] | None) -> NumberList | None:
    """Return the ids of an array's content, of which an earlier content may be the beginning."""
    if before is not None and content.startswith(before[0]):
        rest = content[len(before[0]) :].lstrip(_SPACE)
        shared = before[1]
        if not rest:
            return shared
        if rest[0] == _COMMA:
            added = _ids(rest[1:])
            if added is None:
                return None
            array = np.concatenate([shared._array, added])  # noqa: SLF001
            return _number_list(shared + _integers(added), array)
    ids = _ids(content)
    return None if ids is None else _number_list(_integers(ids), ids)


def _number_list(values: list[Any], array: NDArray[Any]) -> NumberList:
    made = NumberList(values)
    array.setflags(write=False)
    made._array = array  # noqa: SLF001
    return made


def _ids(content: bytes) -> NDArray[np.int32] | None:
    """Return the integers of an array's content; `None` unless all are plain and below 2^20."""
    digits = content.translate(None, _SPACE)
    n = digits.count(b",") + 1
    if digits.translate(None, b"0123456789,") or _n_runs(digits) != n:
        return None  # something else, or nothing beside a comma
    if len(digits) != len(content) and _n_runs(content) != n:
        return None  # space inside a number
    ids = np.fromstring(digits, sep=",", dtype=np.int64)
    if len(ids) != n or ids.max() >= 1 << _MAX_BITS:
        return None
    n_digits = n + sum(int(np.count_nonzero(ids >= 10**k)) for k in range(1, 7))
    if n_digits != len(digits) - (n - 1):
        return None  # a leading zero
    return ids.astype(np.int32)


def _n_runs(text: bytes) -> int:
    """Return how many runs of digits there are in a text of digits, commas and space."""
    is_digit = np.frombuffer(text, dtype=np.uint8) >= _ZERO
    return int(np.count_nonzero(is_digit[1:] > is_digit[:-1])) + int(is_digit[:1].any())


def _integers(ids: NDArray[np.int32]) -> list[int]:
    """Return ids as Python integers, one object for each id however often it stands in lists."""
    known = _known(max(16, int(ids.max()).bit_length()))
    shared: list[int] = known[ids].tolist()
    return shared


@functools.cache
def _known(n_bits: int) -> NDArray[np.object_]:
    return np.array(range(1 << n_bits), dtype=np.object_)


def _floats(content: bytes) -> NumberList | None:
    """Return the numbers of an array's content; `None` unless float64 holds all of them exactly."""
    if content.translate(None, b"0123456789+-.eE," + _SPACE):
        return None
    try:
        values = _FLOATS.decode(f"[{content.decode()}]")
        array = np.array(values, dtype=np.float64)
    except (ValueError, OverflowError):
        return None
    is_exact = len(array) > 0 and bool((np.abs(array) <= _LARGEST_EXACT).all())
    return _number_list(values, array) if is_exact else None
