"""What scoring takes, while it runs: no number of a table depends on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trajkit.scoring.memory import forget_peak, peak_bytes
from trajkit.scoring.report import Effort


class Meter:
    """Adds up the effort of scoring on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._since: float | None = None
        self._n_finished = 0
        self._n_under_way = 0
        self._peak: int | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count time and memory while inside."""
        forget_peak(self._device)
        self._since, self._n_under_way = time.monotonic(), 0
        try:
            yield
        finally:
            self._peak = self._highest()
            self._seconds += time.monotonic() - self._since
            self._n_finished += self._n_under_way
            self._since, self._n_under_way = None, 0

    def read(self, n_tokens: int) -> None:
        """Take how many ids were read since `running` began."""
        self._n_under_way = n_tokens

    def effort(self) -> Effort:
        """Return the effort up to now."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return Effort(
            seconds=self._seconds + running,
            n_tokens=self._n_finished + self._n_under_way,
            peak_memory_bytes=self._peak if self._since is None else self._highest(),
            peak_memory_of="gpu" if self._device.type == "cuda" else "process",
        )

    def _highest(self) -> int | None:
        peaks = (self._peak, peak_bytes(self._device))
        return max((peak for peak in peaks if peak is not None), default=None)
