"""The bytes of one source in order: line by line, or through a window that finds JSON values."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from typing import BinaryIO, NoReturn

from trajkit.errors import InputError, Place, RefusedError

SPACE = b" \t\r\n"

_PIECE = 2**20  # bytes read at a time; a single record may take many
_BIG_PIECE = 16 * _PIECE
_CLOSERS = {"{": "}", "[": "]", '"': '"'}
_SPACES = re.compile(r"[ \t\r\n]*")
_BINARY = {b"PAR1": "a Parquet file", b"PK\x03\x04": "a zip archive"}
# Finds where a value ends: numbers are measured, not made, and control characters are let through.
_SCANNER = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len, strict=False)


class Feed:
    """The bytes of one file, and the place of the record that comes next.

    `line` and `column` (in characters) count from 1, `offset` (in bytes) from 0.

    Raises:
        InputError: I101, the file is no UTF-8: UTF-16, UTF-32, Parquet, a zip archive.
    """

    def __init__(self, stream: BinaryIO, file: str, limit: int) -> None:
        self.file = file
        self.limit = limit
        self.line = 1
        self.column = 1
        self.offset = 0
        self._stream = stream
        self._head: io.BytesIO | None = None  # what was put back
        start = b""
        while len(start) < 4 and (more := stream.read(4 - len(start))):
            start += more
        self._refuse_binary(start)
        if start.startswith(b"\xef\xbb\xbf"):
            start, self.offset = start[3:], 3
        self.put_back(start)

    def put_back(self, data: bytes) -> None:
        """Make `data` what is read next."""
        self._head = io.BytesIO(data + (self._head.read() if self._head else b""))

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, none only at the end."""
        if self._head and (piece := self._head.read(size)):
            return piece
        self._head = None
        return self._stream.read(size)

    def read_line(self, *, cut: bytes = b"") -> bytes:
        """Return the next line with its end, none at the end of the file.

        Args:
            cut: a line that starts with one of these and is too long comes cut, not as an error.

        Raises:
            RefusedError: R101, the line is over the limit; no more than that was read.
        """
        pieces: list[bytes] = []
        room = self.limit + 3  # two for the line end, one to see that it is too long
        while True:
            ask = min(_PIECE, room)
            piece = self._head.readline(ask) if self._head else b""
            if not piece:
                self._head = None
                piece = self._stream.readline(ask)
            pieces.append(piece)
            room -= len(piece)
            if piece.endswith(b"\n") or not piece:
                break
            if room == 0:
                if cut and pieces[0].lstrip(SPACE)[:1] in cut:
                    break
                self.refuse()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def advance(self, data: bytes) -> None:
        """Move the place of the next record past `data`."""
        self.offset += len(data)
        n_lines = data.count(b"\n")
        if n_lines:
            self.line += n_lines
            self.column = 1
            data = data[data.rfind(b"\n") + 1 :]
        self.column += len(data.decode("utf-8", "replace"))

    def refuse(self) -> NoReturn:
        """Raise R101 for the record that stands at the current place."""
        raise RefusedError(
            "R101",
            f"expected records of at most {self.limit} bytes, found a longer one",
            place=Place(file=self.file, line=self.line, byte_offset=self.offset),
            hint="check that the file holds one record a line",
        )

    def _refuse_binary(self, start: bytes) -> None:
        """Raise I101 for what is no text by its first bytes."""
        if start in _BINARY:
            raise InputError(
                "I101",
                f"expected text, found {_BINARY[start]}",
                place=Place(file=self.file, byte_offset=0),
                hint=f"trajkit info {shlex.quote(self.file)} tells whether it was ingested before"
                if start == b"PAR1"
                else "unpack it first; .gz and .zst are read as they are",
            )
        has_mark = start[:2] in (b"\xff\xfe", b"\xfe\xff")
        if has_mark or (0 in start and any(start)):
            raise InputError(
                "I101",
                "expected UTF-8, found what looks like UTF-16 or UTF-32",
                place=Place(file=self.file, byte_offset=0),
                hint=f"iconv -f UTF-16 -t UTF-8 {shlex.quote(self.file)} > utf8.jsonl",
            )


class Window:
    """A sliding view of a feed, for values that are no lines.

    Its text is the bytes as Latin-1, so that an index counts bytes and a cut character does no
    harm: the brackets and quotes that end a value are ASCII in UTF-8 and here alike.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """Return the next character that is not space, after moving to it; `""` at the end."""
        while True:
            match = _SPACES.match(self._text, self._at)
            self._advance(match.end() if match else self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._grow():
                return ""

    def skip(self, n_bytes: int) -> None:
        """Move on by bytes that were seen."""
        self._advance(self._at + n_bytes)

    def value(self) -> bytes | None:
        """Return the bytes of the next value, after moving to it; None if it has no end.

        Raises:
            RefusedError: R101, the value is over the limit.
        """
        closer = _CLOSERS.get(self.peek(), "")
        while True:
            end = None
            with contextlib.suppress(ValueError, RecursionError):
                end = _SCANNER.raw_decode(self._text, self._at)[1]
            if (len(self._text) if end is None else end) - self._at > self._feed.limit:
                self._feed.refuse()
            is_whole = end is not None and (bool(closer) or end < len(self._text))
            if is_whole or not self._grow_to(closer):
                return None if end is None else self._text[self._at : end].encode("latin-1")

    def rest(self) -> bytes:
        """Return all bytes from here to the end of the file.

        Raises:
            RefusedError: R101, they are over the limit.
        """
        while True:
            if len(self._text) - self._at > self._feed.limit:
                self._feed.refuse()
            if not self._grow():
                return self._text[self._at :].encode("latin-1")

    def _grow_to(self, closer: str) -> bool:
        """Return whether there was more to read, having read on to a `closer` or the limit."""
        n_seen = len(self._text) - self._at
        if not self._grow():
            return False
        while self._text.find(closer, n_seen) < 0 and len(self._text) <= self._feed.limit:
            n_seen = len(self._text)
            if not self._grow():
                break
        return True

    def _grow(self) -> bool:
        """Return whether there was more to read; what was moved past is forgotten."""
        held = len(self._text) - self._at
        piece = self._feed.read(max(_PIECE, min(held, _BIG_PIECE)))
        self._text = self._text[self._at :] + piece.decode("latin-1")
        self._at = 0
        return bool(piece)

    def _advance(self, end: int) -> None:
        if end > self._at:
            self._feed.advance(self._text[self._at : end].encode("latin-1"))
            self._at = end
