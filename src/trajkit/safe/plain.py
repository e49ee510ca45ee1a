"""A plain-text source as one record, with the same places and limits as JSON ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from trajkit.errors import InputError, Place
from trajkit.safe.feed import Feed
from trajkit.safe.json import MAX_RECORD_BYTES, BadRecord, Record

TEXT_SUFFIX = ".txt"
_PACKED = (".gz", ".zst")
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*[\[{\]])")


def is_text(name: str, head: bytes) -> bool:
    """Return whether a source is plain text: named so, and its first bytes are no JSON record.

    Args:
        name: the file's name.
        head: its first bytes, unpacked.
    """
    lowered = name.lower()
    for suffix in _PACKED:
        lowered = lowered.removesuffix(suffix)
    return lowered.endswith(TEXT_SUFFIX) and _JSON.match(head) is None


def read_text(
    stream: BinaryIO, file: str, *, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Record | BadRecord]:
    """Yield the whole of a text source as one record whose value is a string; none if it is blank.

    Args:
        stream: any binary stream, unpacked.
        file: its name, for places.
        max_record_bytes: the most that the text may take.

    Raises:
        InputError: I101, the file is UTF-16 or UTF-32.
        RefusedError: R101, the text is too long.
    """
    feed = Feed(stream, file, max_record_bytes)
    pieces: list[bytes] = []
    n_bytes = 0
    while piece := feed.read(2**20):
        pieces.append(piece)
        n_bytes += len(piece)
        if n_bytes > max_record_bytes:
            feed.refuse()
    raw = b"".join(pieces)
    if not raw.strip():
        return
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        place = Place(
            file=file,
            line=raw.count(b"\n", 0, fault.start) + 1,
            byte_offset=feed.offset + fault.start,
        )
        error = InputError(
            "I101",
            f"expected UTF-8, found the byte 0x{raw[fault.start]:02x}",
            place=place,
            hint="iconv -f LATIN1 -t UTF-8 makes UTF-8 of a text in another encoding",
        )
        yield BadRecord(raw=raw, file=file, line=1, byte_offset=feed.offset, index=0, error=error)
        return
    yield Record(value=text, raw=raw, file=file, line=1, byte_offset=feed.offset, index=0)
