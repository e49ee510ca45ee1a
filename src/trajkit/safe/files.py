"""Which files a command reads, how they are opened, and how an output appears whole or not at all.

Outputs are published: written under another name in the same folder, flushed to the disk, then
moved into place. A killed process leaves the old file, a temporary one and a lock file; the next
one that writes the same output clears them away.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trajkit.errors import FileError, Place, RefusedError, UsageProblem
from trajkit.safe.lock import faults_named, locked, name_temp, try_lock
from trajkit.safe.unpack import SourceStream, Tap, unpack

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDIN = Path("-")
SUFFIXES = (".jsonl", ".json", ".ndjson", ".traj")
PACKED_SUFFIXES = ("", ".gz", ".zst")

_ENDINGS = tuple(suffix + packed for suffix in SUFFIXES for packed in PACKED_SUFFIXES)
_BUFFER = 2**20


def expand_sources(sources: Sequence[str]) -> list[Path]:
    """Return the files that `sources` name: in their order, sorted inside each, each file once.

    A source is a file, a folder (searched for `SUFFIXES`, also packed; names that start with `.`
    or `_` are left out), a glob, or `-` for standard input.

    Raises:
        UsageProblem: U104, a source names nothing.
        FileError: F101, something named cannot be read.
    """
    if not sources:
        raise UsageProblem("U104", "expected at least one source, found none")
    found: dict[object, Path] = {}
    for source in sources:
        for path in _expand(source):
            found.setdefault(_identify(path), path)
    return list(found.values())


def _expand(source: str) -> list[Path]:
    if source == str(STDIN):
        return [STDIN]
    path = Path(source)
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a parent is closed
        paths = _search(path)
    elif _is_there(path):
        paths = [path]
    else:
        matches = sorted(map(Path, glob.glob(source, recursive=True)))  # noqa: PTH207 - takes "/*"
        wants_private = path.name.startswith("_")
        matches = [match for match in matches if wants_private or match.name[:1] != "_"]
        paths = [
            found for match in matches for found in (_search(match) if match.is_dir() else [match])
        ]
    if not paths:
        raise UsageProblem(
            "U104",
            f"expected files to read at {source}, found none",
            hint=f"name a file, a folder that holds {', '.join(SUFFIXES)}, a quoted glob, or -",
        )
    return paths


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError as error:
        raise _unreadable(path, error.strerror) from error
    except (OSError, ValueError):  # no such path, or a pattern that cannot be one
        return False
    return True


def _search(folder: Path) -> list[Path]:
    """Return the files under `folder` that look like logs, sorted."""

    def fail(error: OSError) -> None:
        raise _unreadable(Path(error.filename), error.strerror) from error

    found = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] not in "._"]
        found += [
            Path(parent, name)
            for name in names
            if name[0] not in "._" and name.lower().endswith(_ENDINGS)
        ]
    return sorted(found)


def _identify(path: Path) -> object:
    """Return what two names of one readable file have in common."""
    if path == STDIN:
        return STDIN
    status = _stat_source(path)
    if not os.access(path, os.R_OK):
        raise _unreadable(path, "permission denied")
    return status.st_dev, status.st_ino


def _stat_source(path: Path) -> os.stat_result:
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error.strerror) from error
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(path, "not a regular file", hint="feed it through a pipe and name -")
    return status


def _unreadable(path: Path, why: str | None, *, hint: str | None = None) -> FileError:
    message = f"expected a file that can be read, found a fault: {why}"
    return FileError("F101", message, place=Place(file=str(path)), hint=hint)


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[SourceStream]:
    """Yield the unpacked bytes of a source: plain, gzip or zstd by content; `-` is standard input.

    Once read to its end, the stream also knows `n_bytes` and `sha256_hex()` of what is stored.

    Raises:
        FileError: F101, it cannot be read, or changed its size while it was.
        InputError: I108 while reading, packed bytes are damaged, cut, or followed by others.
        RefusedError: R102 while reading, they grow beyond the limit.
    """
    tap = _open_stdin() if path == STDIN else _open_file(path)
    with contextlib.closing(tap), unpack(tap) as stream:
        yield stream


def _open_file(path: Path) -> Tap:
    size = _stat_source(path).st_size
    try:
        handle = io.FileIO(path)
    except OSError as error:
        raise _unreadable(path, error.strerror) from error
    return Tap(handle, str(path), size=size, owns_handle=True)


def _open_stdin() -> Tap:
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:
        raise _unreadable(STDIN, "standard input is closed")
    return Tap(getattr(buffer, "raw", buffer), str(STDIN), size=None, owns_handle=False)


def same_file(a: Path, b: Path) -> bool:
    """Return whether two paths are one file, through links too; by name where one is missing."""
    try:
        return a.samefile(b)
    except OSError:
        return a.resolve() == b.resolve()


def remove_quietly(path: Path) -> None:
    """Return after trying to remove a file; one that is not there or stays is no error."""
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def publish(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes become the file `path`, whole, when the block ends well.

    If the block or the publishing fails in any way, `path` stays as it was. The new file has the
    mode of any new file (0666 without the umask). The stream can seek; what a caller wraps around
    it must be flushed before the block ends.

    Raises:
        UsageProblem: U101, `path` exists and is not to be overwritten, or is a folder.
        RefusedError: R103, `path` is a symbolic link.
        FileError: F103, the disk is full; F102, any other fault, or another process is writing
            `path` at this moment.
    """
    target = path.absolute()
    with faults_named(target):
        _check_target(target, overwrite=overwrite)
    with locked(target):
        temp = name_temp(target)
        with faults_named(target):
            sink = _Sink(temp, target)
        stream = io.BufferedWriter(sink, _BUFFER)
        try:
            yield stream
            if not stream.closed:
                stream.flush()
            with faults_named(target):
                sink.sync()
                _check_target(target, overwrite=overwrite)
                os.replace(temp, target)  # noqa: PTH105 - one way to call the system in this module
                _sync_folder(target.parent)
        except BaseException:
            remove_quietly(temp)
            raise
        finally:
            sink.release()
            stream.close()


def publish_bytes(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Return once `data` is the whole content of the file `path`; raises what `publish` raises."""
    with publish(path, overwrite=overwrite) as stream:
        stream.write(data)


class _Sink(io.RawIOBase):
    """A new temporary file, locked; each fault in writing it is an error about `target`.

    A caller may close the stream above it: the descriptor stays open until `release`.
    """

    def __init__(self, temp: Path, target: Path) -> None:
        super().__init__()
        self._target = target
        self._fault: BaseException | None = None
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor: int | None = os.open(temp, flags, 0o666)
        try_lock(self._descriptor)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._descriptor is None:
            raise ValueError("the output is published or given up")
        return self._descriptor

    def write(self, data: ReadableBuffer) -> int:
        if self._descriptor is None:  # given up: what is still in the buffer goes nowhere
            return memoryview(data).nbytes
        with self._faults_kept():
            return os.write(self._descriptor, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with self._faults_kept():
            return os.lseek(self.fileno(), offset, whence)

    @contextlib.contextmanager
    def _faults_kept(self) -> Iterator[None]:
        try:
            with faults_named(self._target):
                yield
        except FileError as error:
            self._fault = self._fault or error
            raise

    def sync(self) -> None:
        """Return once everything is on the disk; raise the first fault, even one kept silent."""
        if self._fault is not None:
            raise self._fault
        os.fsync(self.fileno())

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _check_target(target: Path, *, overwrite: bool) -> None:
    """Return if `target` may be written: nothing is there, or a file that may be replaced."""
    place = Place(file=str(target))
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        message = "expected a plain path for the output, found a symbolic link"
        raise RefusedError("R103", message, place=place, hint="name the file that it points to")
    if stat.S_ISDIR(mode):
        message = "expected a file name for the output, found a folder"
        raise UsageProblem("U101", message, place=place, hint="name a file in that folder")
    if not stat.S_ISREG(mode):
        message = "expected a plain file for the output, found a device, pipe or socket"
        raise FileError("F102", message, place=place, hint="leave the output out to print it")
    if not overwrite:
        message = "expected a new name for the output, found a file of that name"
        raise UsageProblem("U101", message, place=place, hint="--force replaces it")


def _sync_folder(folder: Path) -> None:
    """Return once the folder's list of names is on the disk, where the file system can do it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
