"""JSON records out of hostile bytes: strict, streaming, with a place for every fault.

Strict means that what other readers settle in silence is an error here: UTF-8 only, no key twice,
finite numbers, whole characters, bounded nesting and size. Integers stay exact at any size. The
fast path judges a record with loops in C; only one that fails is walked token by token, in
`trajkit.safe.faults`.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO

from trajkit.errors import InputError, Place, TrajkitError
from trajkit.safe.faults import (
    MAX_DEPTH,
    QUARANTINE_HINT,
    Fault,
    brackets,
    find_fault,
    find_lone_surrogate,
    is_shallow,
)
from trajkit.safe.feed import SPACE, Feed, Window
from trajkit.safe.ids import MARK, NumberList, take_arrays

MAX_RECORD_BYTES = 256 * 2**20

_EXCERPT_SIDE = 40
_ANY = bytes(range(256))
_MARK = MARK.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One JSON value and where it stood.

    `raw` is its exact bytes: the line without its line end, or the item as the array holds it.
    `line` counts from 1; `index` counts the records of the file from 0, bad ones included.
    """

    value: object
    raw: bytes
    file: str
    line: int
    byte_offset: int
    index: int

    @property
    def place(self) -> Place:
        """Return where the record stands."""
        return Place(file=self.file, line=self.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """The exact bytes of a record that cannot be read, and why; its place as in `Record`.

    `error.place` points at the fault itself.
    """

    raw: bytes
    file: str
    line: int
    byte_offset: int
    index: int
    error: TrajkitError


def read_records(
    stream: BinaryIO, file: str, *, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Record | BadRecord]:
    r"""Yield the records of a JSONL file, of one JSON array, or of JSON values that span lines.

    Lines end at `\n` alone (one `\r` before it is dropped); blank ones are skipped. A file whose
    first line is a whole array and which goes on after it is JSONL. A file without records yields
    nothing. Where the end of a damaged value cannot be known, as inside an array, the bad record
    is the whole rest of the file.

    Args:
        stream: any binary stream, unpacked.
        file: its name, for places.
        max_record_bytes: the most that one record may take.

    Raises:
        InputError: I101, the file is UTF-16 or UTF-32.
        RefusedError: R101, a record is too long; it was read only up to the limit.
    """
    feed = Feed(stream, file, max_record_bytes)
    layout, peeked = _find_layout(feed)
    if layout is not _Layout.LINES:
        feed.put_back(b"".join(peeked))
    match layout:
        case _Layout.LINES:
            yield from _read_lines(feed, peeked)
        case _Layout.ARRAY:
            yield from _read_array(feed)
        case _Layout.VALUES:
            yield from _read_values(feed)


def strict_json(text: str) -> Any:
    """Return the value that a text is JSON of; `None` where it is none, or not strictly."""
    try:
        return _decode(text.encode("utf-8"))
    except (ValueError, RecursionError):
        return None


def dumps(value: object) -> str:
    """Return `value` as compact JSON text, keys in their order, nothing escaped without need.

    Raises:
        InputError: I105, a number is NaN or infinite.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise InputError("I105", f"expected finite numbers: {error}") from error


class _Layout(Enum):
    LINES = "one value a line"
    ARRAY = "one array of records"
    VALUES = "values that span lines"


def _find_layout(feed: Feed) -> tuple[_Layout, list[bytes]]:
    """Return how the records stand by the first two lines that are not blank, and what was read."""
    first = feed.read_line(cut=b"[")
    while first and not first.strip(SPACE):
        feed.advance(first)
        first = feed.read_line(cut=b"[")
    is_array = first.lstrip(SPACE).startswith(b"[")
    is_whole_array = is_array and first.rstrip(SPACE).endswith(b"]")
    peeked = [first]
    second = b""
    if is_whole_array or (not is_array and _is_open(first)):
        room = feed.limit
        while peeked[-1].endswith(b"\n") and not second and room >= 0:
            peeked.append(feed.read_line(cut=_ANY))
            second = peeked[-1].strip(SPACE)
            room -= len(peeked[-1])
    if is_array:
        goes_on = second[:1] not in (b"", b",", b"]")
        return _Layout.LINES if is_whole_array and goes_on else _Layout.ARRAY, peeked
    return _Layout.VALUES if second and not _is_container(second) else _Layout.LINES, peeked


def _is_open(line: bytes) -> bool:
    """Return whether a value that starts in this line goes on in the next, between two tokens."""
    left = brackets(line) if line.endswith(b"\n") else None
    return left is not None and left.count(b"[") > left.count(b"]")


def _is_container(line: bytes) -> bool:
    """Return whether the line is a whole object or array by itself."""
    try:
        return isinstance(_STRICT.decode(line.decode()), dict | list)
    except (ValueError, RecursionError):
        return False


def _read_lines(feed: Feed, peeked: list[bytes]) -> Iterator[Record | BadRecord]:
    index = 0
    for line in _lines(feed, peeked):
        n_end = 0 if not line.endswith(b"\n") else 2 if line.endswith(b"\r\n") else 1
        raw, end = line[: len(line) - n_end], line[len(line) - n_end :]
        del line  # a record may be large: one copy is enough
        if len(raw) > feed.limit:
            feed.refuse()
        if raw.strip(SPACE):
            yield _judge(raw, feed, index, is_last=not end)
            index += 1
        feed.offset += len(raw)
        feed.advance(end)


def _lines(feed: Feed, peeked: list[bytes]) -> Iterator[bytes]:
    """Yield the lines that were read ahead, then the others; hold none of them."""
    while peeked:
        yield peeked.pop(0)
    yield from iter(feed.read_line, b"")


def _read_values(feed: Feed) -> Iterator[Record | BadRecord]:
    window = Window(feed)
    index = 0
    while window.peek():
        raw = window.value()
        if raw is None:
            yield _judge(window.rest(), feed, index, is_last=True)
            return
        yield _judge(raw, feed, index, is_last=False)
        index += 1
        window.skip(len(raw))


def _read_array(feed: Feed) -> Iterator[Record | BadRecord]:
    window = Window(feed)
    window.peek()
    window.skip(1)
    index = 0
    goes_on = window.peek() != "]"
    while goes_on:
        raw = window.value()
        if raw is None:
            yield _judge(window.rest(), feed, index, is_last=True)
            return
        yield _judge(raw, feed, index, is_last=False)
        index += 1
        window.skip(len(raw))
        goes_on = window.peek() == ","
        window.skip(int(goes_on))
    wanted = "a comma or the end of the array"
    if window.peek() == "]":
        window.skip(1)
        if not window.peek():
            return
        wanted = "nothing after the array"
    yield _reject(window.rest(), feed, index, _stray(wanted, at_end=not window.peek()))


def _stray(wanted: str, *, at_end: bool) -> Fault:
    """Return the fault of an array that goes on wrongly after an item."""
    return Fault(
        code="I103" if at_end else "I102",
        message=f"expected {wanted}, found {'the end of the input' if at_end else 'more'}",
        hint=f"the file was {'truncated' if at_end else 'damaged'}; {QUARANTINE_HINT}",
        at=0,
    )


def _judge(raw: bytes, feed: Feed, index: int, *, is_last: bool) -> Record | BadRecord:
    """Return the record that stands at the feed's place, or what is wrong with it."""
    try:
        value = _decode(raw)
    except (ValueError, RecursionError):
        return _reject(raw, feed, index, find_fault(raw, is_last=is_last))
    return Record(
        value=value,
        raw=raw,
        file=feed.file,
        line=feed.line,
        byte_offset=feed.offset,
        index=index,
    )


def _reject(raw: bytes, feed: Feed, index: int, fault: Fault) -> BadRecord:
    """Return the record at the feed's place as bad."""
    before, after = raw[: fault.at], raw[fault.at : fault.at + _EXCERPT_SIDE]
    excerpt = before[-_EXCERPT_SIDE:].decode("utf-8", "ignore")
    excerpt += after.decode("utf-8", "replace" if fault.code == "I101" else "ignore")
    n_lines = before.count(b"\n")
    n_characters = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace"))
    place = Place(
        file=feed.file,
        line=feed.line + n_lines,
        column=n_characters + (1 if n_lines else feed.column),
        byte_offset=feed.offset + fault.at,
        path=fault.path,
    )
    return BadRecord(
        raw=raw,
        file=feed.file,
        line=feed.line,
        byte_offset=feed.offset,
        index=index,
        error=InputError(fault.code, fault.message, place=place, hint=fault.hint, excerpt=excerpt),
    )


def _decode(raw: bytes) -> object:
    """Return the value of a record; ValueError or RecursionError if anything is wrong with it.

    Long arrays of ids and log-probs are read apart: the same value, in less time and memory.
    """
    parts = take_arrays(raw)
    if parts is not None:
        with contextlib.suppress(ValueError, RecursionError):
            return _decode_around(*parts)
    return _decode_whole(raw)


def _decode_whole(raw: bytes) -> object:
    text = _sound_text(raw, MAX_DEPTH)
    return _STRICT.decode(text)


def _decode_around(short: bytes, arrays: list[NumberList]) -> object:
    """Return the value of a record whose arrays were taken out, with the arrays in their places."""
    text = _sound_text(short, MAX_DEPTH - 1)  # an array is a level
    ahead = iter(arrays)

    def put_back(constant: str) -> NumberList:
        if constant != _MARK:
            raise ValueError(constant)
        return next(ahead)

    return _strict_decoder(put_back).decode(text)


def _sound_text(raw: bytes, max_depth: int) -> str:
    """Return the text of a record; ValueError if nesting or a character forbids to decode it."""
    text = raw.decode("utf-8")
    if not is_shallow(raw, max_depth):
        raise ValueError("perhaps too deep")
    if find_lone_surrogate(text) is not None:
        raise ValueError("half a character")
    return text


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("overflow")
    return number


def _no_constant(text: str) -> float:
    raise ValueError(text)


def _strict_decoder(parse_constant: Callable[[str], object]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_unique, parse_float=_finite, parse_constant=parse_constant
    )


_STRICT = _strict_decoder(_no_constant)
