"""What ids spell: how a vocabulary writes bytes, and the bytes of many ids in one buffer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trajkit.errors import InputError
from trajkit.records import Ids

_Value = TypeVar("_Value", np.int64, np.uint8)
_Places: TypeAlias = NDArray[np.int64]
METASPACE = "▁"
_MOST_IDS = 2**22
"""No vocabulary has so many ids; the table of rows ends here."""


class Spelling(Sequence[bytes]):
    """The bytes of each of N ids: a sequence of N pieces, kept as one buffer.

    Attributes:
        data: all pieces, one after the other.
        ends: [N] where each piece ends in `data`.
    """

    __slots__ = ("data", "ends")

    def __init__(self, data: bytes, ends: _Places) -> None:
        self.data = data
        self.ends = ends

    @classmethod
    def of(cls, pieces: Iterable[bytes]) -> Spelling:
        """Return pieces as a spelling; a spelling as it is."""
        if isinstance(pieces, Spelling):
            return pieces
        pieces = list(pieces)
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        return cls(b"".join(pieces), np.cumsum(lengths))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Spelling: ...
    def __getitem__(self, at: int | slice) -> bytes | Spelling:
        if isinstance(at, slice):
            start, stop, stride = at.indices(len(self))
            if stride != 1:
                raise ValueError("a spelling is cut in one piece")
            before = self.n_bytes(start)
            ends = self.ends[start : max(start, stop)]
            return Spelling(self.data[before : self.n_bytes(max(start, stop))], ends - before)
        at = range(len(self))[at]
        return self.data[self.n_bytes(at) : self.n_bytes(at + 1)]

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for end in self.ends.tolist():
            yield self.data[start:end]
            start = end

    def n_bytes(self, n: int) -> int:
        """Return how many bytes the first `n` pieces have."""
        return int(self.ends[n - 1]) if n else 0

    def __add__(self, other: Spelling) -> Spelling:
        ends = np.concatenate([self.ends, other.ends + len(self.data)])
        return Spelling(self.data + other.data, ends)


class SpellingTable:
    """What ids of one vocabulary spell, learnt as they are met.

    The bytes of all ids met so far lie in one buffer; those of many ids are gathered from it by
    one call of Arrow's `take`, so the cost is one of bytes, not of Python objects.
    """

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        """`spell` returns the bytes of one id, and raises for an id outside the vocabulary."""
        self._spell = spell
        self._rows: NDArray[np.int32] = np.full(1024, -1, dtype=np.int32)
        self._ends: _Places = np.zeros(1024, dtype=np.int64)
        self._buffer: NDArray[np.uint8] = np.empty(8192, dtype=np.uint8)
        self._n_rows = 0

    def not_met(self, ids: Ids) -> list[int]:
        """Return the distinct ids that `of` was not asked for before, ascending."""
        if not len(ids):
            return []
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= _MOST_IDS:
            return list(np.unique(ids).tolist())
        if high >= len(self._rows):
            grown = np.full(max(high + 1, 2 * len(self._rows)), -1, dtype=np.int32)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        fresh = ids[self._rows[ids] < 0]
        return list(np.unique(fresh).tolist()) if len(fresh) else []

    def of(self, ids: Ids) -> Spelling:
        """Return the spelling of ids.

        Raises:
            Exception: what `spell` raises.
        """
        if not len(ids):
            return Spelling(b"", np.empty(0, dtype=np.int64))
        for token_id in self.not_met(ids):
            data = self._spell(token_id)
            if not 0 <= token_id < _MOST_IDS:
                return Spelling.of(map(self._spell, ids.tolist()))
            self._learn(token_id, data)
        _, offsets, values = self._table().take(pa.array(self._rows[ids])).buffers()
        ends = np.frombuffer(offsets, dtype=np.int64)[: len(ids) + 1]
        data = b"" if values is None else memoryview(values)[ends[0] : ends[-1]].tobytes()
        return Spelling(data, ends[1:] - ends[0])

    def _learn(self, token_id: int, data: bytes) -> None:
        row, start = self._n_rows, int(self._ends[self._n_rows])
        self._ends = _room(self._ends, row + 2)
        self._buffer = _room(self._buffer, start + len(data))
        self._buffer[start : start + len(data)] = np.frombuffer(data, dtype=np.uint8)
        self._ends[row + 1] = start + len(data)
        self._rows[token_id] = row
        self._n_rows += 1

    def _table(self) -> pa.LargeBinaryArray:
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._buffer)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self._n_rows, buffers)


def _room(values: NDArray[_Value], n: int) -> NDArray[_Value]:
    """Return an array that has room for `n` values, the present ones in front."""
    if n <= len(values):
        return values
    grown = np.zeros(max(n, 2 * len(values)), dtype=values.dtype)
    grown[: len(values)] = values
    return grown


class Alphabet(StrEnum):
    """How a vocabulary spells bytes."""

    BYTE_LEVEL = "byte-level"
    METASPACE = "metaspace"


def alphabet_of(decoder: Any) -> tuple[Alphabet, bool]:
    """Return how the vocabulary spells bytes, and whether `<0xNN>` stands for a single byte.

    Raises:
        InputError: T103 when the decoder does not say.
    """
    state = state_of(decoder)
    parts = state.get("decoders", [state])
    kinds = {str(part["type"]) for part in parts if "type" in part}
    if "ByteLevel" in kinds:
        return Alphabet.BYTE_LEVEL, False
    spaced = "Metaspace" in kinds or any(
        part.get("type") == "Replace" and part.get("pattern", {}).get("String") == METASPACE
        for part in parts
    )
    if not spaced:
        raise InputError(
            "T103",
            f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) does not say which "
            "bytes an id stands for; byte-level and metaspace vocabularies do",
        )
    return Alphabet.METASPACE, "ByteFallback" in kinds


def _byte_alphabet() -> dict[str, int]:
    """Return the byte behind each character of the byte-level alphabet (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def byte_level(token: str) -> bytes:
    """Return the bytes a token of a byte-level vocabulary stands for."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:  # a token that was put into the vocabulary as plain text
        return token.encode("utf-8")


def stripped_in_decoding(decoder: Any) -> str | None:
    """Return what a decoder takes from the front of the joined bytes of ids: nothing or a space.

    `None` when it does anything else to them.
    """
    state = state_of(decoder)
    parts = state.get("decoders", [state])
    if [part.get("type") for part in parts] == ["ByteLevel"]:
        return ""
    *joins, last = parts
    is_strip = last == {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return (" " if is_strip else "") if (joins if is_strip else parts) == _JOINS else None


_JOINS = [
    {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
"""The decoder of Llama 2, Mistral and Gemma, which the first two follow by a `Strip`."""


def state_of(part: Any) -> dict[str, Any]:
    """Return what a part of a pipeline is made of; empty when there is no such part."""
    state: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return state
