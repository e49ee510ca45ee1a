"""One writer a file: a lock beside it while it is written, and what dead writers left removed.

The lock is `flock` on `.NAME.lock`; the kernel drops it with the process. A lock file that is there
but free is the trace of a killed writer, and only then is the folder searched for its temporary
file. Where the file system knows no locks, writers are not kept apart and nothing is cleared.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from trajkit.errors import FileError, Place

_TRIES = 100  # each failure means that another writer came and went meanwhile


def name_temp(target: Path) -> Path:
    """Return a new name for a temporary file of `target`, in the same folder."""
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")


@contextlib.contextmanager
def faults_named(target: Path) -> Iterator[None]:
    """Yield; an OSError inside becomes F103 (no room) or F102 (anything else) for `target`."""
    try:
        yield
    except OSError as error:
        place = Place(file=str(target))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some room, or write to another disk"
            message = f"expected room for the output, found none: {error.strerror}"
            raise FileError("F103", message, place=place, hint=hint) from error
        message = f"expected to write the output, found a fault: {error.strerror or error}"
        raise FileError("F102", message, place=place) from error


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Yield while this process alone may write `target`; temporary files of dead writers are gone.

    Raises:
        FileError: F102, another process is writing `target`, or the folder cannot be written.
    """
    path = target.with_name(f".{target.name}.lock")
    with faults_named(target):
        if not path.parent.is_dir():
            raise FileError(
                "F102",
                "expected a folder to write the output into, found none",
                place=Place(file=str(target)),
                hint=f"mkdir -p {shlex.quote(str(path.parent))}",
            )
        descriptor, is_left_over = _acquire(path, target)
    try:
        if is_left_over:
            _remove_temps(target)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - before the lock is dropped, never after
        with contextlib.suppress(OSError):
            os.close(descriptor)


def try_lock(descriptor: int) -> bool | None:
    """Return whether the lock on an open file was free and is now held; None if there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _acquire(path: Path, target: Path) -> tuple[int, bool]:
    """Return the descriptor of the lock, and whether the file was left by a dead writer."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):  # removed between two looks: try again
            descriptor, is_new = _open_lock(path)
            is_held = try_lock(descriptor)
            if is_held is None:
                return descriptor, False
            if is_held and _is_there(path, descriptor):
                return descriptor, not is_new
            os.close(descriptor)
            if not is_held:
                break
    raise FileError(
        "F102",
        "expected to be the only writer of the output, found another process writing it",
        place=Place(file=str(target)),
        hint="wait for the other process, or name another output",
    )


def _open_lock(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, flags), False


def _is_there(path: Path, descriptor: int) -> bool:
    """Return whether the open file still is the one under this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _remove_temps(target: Path) -> None:
    """Remove the temporary files of `target` that no living process holds."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError):
        for name in filter(pattern.fullmatch, os.listdir(target.parent)):  # noqa: PTH208 - names
            path = target.with_name(name)
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if try_lock(descriptor):
                    path.unlink()
            finally:
                os.close(descriptor)
