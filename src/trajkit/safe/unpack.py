"""The bytes of one source, plain, gzip or zstd by content: hashed on the way, damage an error."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from typing import TYPE_CHECKING, Protocol

from trajkit.errors import FileError, InputError, Place, RefusedError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_RATIO = 200  # unpacked bytes for one packed byte ...
MAX_RATIO_FROM = 256 * 2**20  # ... looked at once this many came out

_BUFFER = 2**20
_PACKED_BUFFER = 2**18
_MAGIC_SIZE = 4
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f


class SourceStream(io.BufferedReader):
    """The unpacked bytes of a source; knows the packed ones it came from once it is at its end."""

    def __init__(self, raw: io.RawIOBase, tap: Tap) -> None:
        super().__init__(raw, _BUFFER)
        self._tap = tap

    @property
    def n_bytes(self) -> int:
        """How many bytes were read from the disk or pipe so far, as they are stored."""
        return self._tap.n_bytes

    @property
    def is_at_end(self) -> bool:
        """Whether the source was read to its end."""
        return self._tap.is_at_end

    def sha256_hex(self) -> str:
        """Return the SHA-256 of the stored bytes, those that were in fact read.

        Raises:
            ValueError: the source was not read to its end.
        """
        if not self.is_at_end:
            raise ValueError("the digest of a source is known only at its end")
        return self._tap.digest.hexdigest()


class Tap(io.RawIOBase):
    """The stored bytes, counted and hashed as they pass.

    Args:
        handle: what they come from.
        name: the file, for places.
        size: how many there must be; None where nobody knows, as in a pipe.
        owns_handle: close `handle` too.
    """

    def __init__(self, handle: Handle, name: str, *, size: int | None, owns_handle: bool) -> None:
        super().__init__()
        self.name = name
        self.n_bytes = 0
        self.digest = hashlib.sha256()
        self.is_at_end = False
        self._handle = handle
        self._size = size
        self._owns_handle = owns_handle
        self._head = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def peek_magic(self) -> bytes:
        """Return the first bytes, fewer only if there are no more; they stay to be read."""
        while len(self._head) < _MAGIC_SIZE:
            piece = bytearray(_MAGIC_SIZE - len(self._head))
            n_bytes = self._fill(memoryview(piece))
            if n_bytes == 0:
                break
            self._head += piece[:n_bytes]
        return self._head

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Return how many bytes came, 0 at the end.

        Raises:
            FileError: F101, the disk fails, or the file changed its size.
        """
        view = memoryview(buffer).cast("B")
        if not self._head:
            return self._fill(view)
        head = self._head[: len(view)]
        view[: len(head)] = head
        self._head = self._head[len(head) :]
        return len(head)

    def close(self) -> None:
        """Close the handle too, if it is owned."""
        if self._owns_handle and not self.closed:
            self._handle.close()
        super().close()

    def _fill(self, view: memoryview) -> int:
        if self.is_at_end:
            return 0
        try:
            n_bytes = self._handle.readinto(view)
        except OSError as error:
            raise self._unreadable(f"{error.strerror or error}") from error
        if n_bytes is None:
            raise self._unreadable("it gives nothing and does not wait")
        self.n_bytes += n_bytes
        self.digest.update(view[:n_bytes])
        self.is_at_end = n_bytes == 0
        if self.is_at_end and self._size not in (None, self.n_bytes):
            raise self._unreadable(
                f"it had {self._size} bytes when opened and {self.n_bytes} at its end"
            )
        return n_bytes

    def _unreadable(self, why: str) -> FileError:
        return FileError(
            "F101",
            f"expected to read the file to its end, found a fault: {why}",
            place=Place(file=self.name, byte_offset=self.n_bytes),
            hint="try again when no other process writes to it",
        )


class Handle(Protocol):
    """What stored bytes are read from."""

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Return how many bytes were put into `buffer`; None if there are none yet."""

    def close(self) -> None:
        """Close it."""


def unpack(tap: Tap) -> SourceStream:
    """Return the unpacked bytes behind `tap`: plain, gzip or zstd, told by their first bytes.

    Reading raises InputError I108 where packed bytes are damaged, cut, or followed by others, and
    RefusedError R102 where they grow beyond `MAX_RATIO`.
    """
    magic = tap.peek_magic()
    if magic.startswith(_GZIP):
        packed = io.BufferedReader(tap, _PACKED_BUFFER)
        return SourceStream(_Unpacked(gzip.GzipFile(fileobj=packed), tap), tap)
    is_skippable = magic[1:] == _ZSTD_SKIPPABLE and 0x50 <= magic[0] <= 0x5F
    if magic == _ZSTD or is_skippable:
        return SourceStream(_Unpacked(_open_zstd(tap), tap), tap)
    return SourceStream(tap, tap)


def _open_zstd(tap: Tap) -> _Reader:
    # Of the readers that were tried this one finds each cut and each stray byte by itself.
    import pyarrow as pa

    packed = pa.PythonFile(io.BufferedReader(tap, _PACKED_BUFFER), mode="r")
    reader: _Reader = pa.CompressedInputStream(packed, "zstd")
    return reader


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class _Unpacked(io.RawIOBase):
    """What comes out of a decompressor, watched for damage and for bombs."""

    def __init__(self, reader: _Reader, tap: Tap) -> None:
        super().__init__()
        self._reader = reader
        self._tap = tap
        self._n_out = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        try:
            piece = self._reader.read(len(view))
        except (EOFError, OSError, ValueError, zlib.error) as error:
            raise self._damaged(str(error)) from error
        if not piece and self._tap.read(1):
            raise self._damaged("other bytes follow")
        self._n_out += len(piece)
        if self._n_out > max(MAX_RATIO_FROM, MAX_RATIO * self._tap.n_bytes):
            raise RefusedError(
                "R102",
                f"expected at most {MAX_RATIO} bytes out of each packed byte, found more: "
                f"{self._tap.n_bytes} bytes became {self._n_out}",
                place=Place(file=self._tap.name, byte_offset=self._tap.n_bytes),
                hint="if you trust the file, unpack it first and read what comes out",
            )
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
            self._tap.close()
        super().close()

    def _damaged(self, why: str) -> InputError:
        return InputError(
            "I108",
            f"expected whole packed data, found it damaged or cut: {why}",
            place=Place(file=self._tap.name, byte_offset=self._tap.n_bytes),
            hint="copy the file again, or unpack what is left of it (gzip -dc, zstd -dc)",
        )
