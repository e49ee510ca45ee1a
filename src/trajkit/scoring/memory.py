"""Memory of a device or of this process: what is free, and the most that was in use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_KB = 1024
_FULL = ("out of memory", "ALLOC_FAILED")
"""What libraries of a GPU say when its memory is full, where torch's allocator does not."""


def free_bytes(device: torch.device) -> int | None:
    """Return how many bytes this process could still take; `None` where the system does not say.

    On a GPU, what its allocator keeps for later is among them.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(kept)
    return min(_left_on_host(), default=None)


@contextmanager
def memory_full_told() -> Iterator[None]:
    """Raise each error that means a full GPU as `torch.OutOfMemoryError`, whoever raised it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as problem:
        if any(words in str(problem) for words in _FULL):
            raise torch.OutOfMemoryError(str(problem)) from problem
        raise


def forget_peak(device: torch.device) -> None:
    """Count a GPU's peak from here on; that of a process cannot be taken back."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Return the most bytes in use: of a GPU's tensors, or of the process since it began.

    `None` where the system does not say.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    found = _kilobytes(_STATUS, "VmHWM")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * _KB


def _left_on_host() -> Iterator[int]:
    """Yield what the machine has left, and what the process's control group has."""
    available = _kilobytes(_MEMINFO, "MemAvailable")
    if available is not None:
        yield available
    try:
        most = int((_CGROUP / "memory.max").read_text())
        yield max(0, most - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # none, or without a limit
        return


def _kilobytes(file: Path, name: str) -> int | None:
    """Return a figure in bytes that a file of the kernel gives in kB; `None` without it."""
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * _KB for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
