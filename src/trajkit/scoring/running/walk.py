"""The windows of a run, one after the other: by one process, or shared out among several.

The next window is read while one is scored, and the last one kept and counted: the model waits for
neither. What is counted is counted in the order of the data, whoever scored it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from trajkit.records import Trajectory
from trajkit.scoring.planning.forecast import cut, windows
from trajkit.scoring.running.company import Claims, Company
from trajkit.scoring.running.overlap import Behind, ahead
from trajkit.scoring.running.parts import Parts, Window
from trajkit.store.read import Dataset, read_trajectories
from trajkit.store.spans import Span, read_spans, spans_of

if TYPE_CHECKING:
    from trajkit.scoring.under_way import Progress, Run

_Read: TypeAlias = tuple[int, list[Trajectory], Window | None]
"""A window's number, what is in it, and what an earlier start of the run made of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a run reads of DATA, and how many ids make a window of it."""

    dataset: Dataset
    only: Collection[str]
    limit: int | None
    window_tokens: int

    def windows(self) -> Iterator[list[Trajectory]]:
        """Yield the windows in order."""
        found = read_trajectories(self.dataset, only=self.only, limit=self.limit)
        return windows(found, self.window_tokens)

    def spans(self) -> list[list[Span]]:
        """Return where the trajectories of the same windows stand."""
        found = spans_of(self.dataset, only=self.only, limit=self.limit)
        return list(cut(found, self.window_tokens, lambda span: span.n_ids))

    def longest_first(self, spans: Sequence[Sequence[Span]]) -> list[int]:
        """Return the numbers of windows, those of a multiple of the usual size first.

        The others stay in order: they lie beside each other in the file.
        """
        sizes = [sum(span.n_ids for span in one) // self.window_tokens for one in spans]
        return sorted(range(len(sizes)), key=lambda number: -sizes[number])


def walk(
    run: Run, chosen: Chosen, parts: Parts | None, company: Company | None, told: Progress | None
) -> int:
    """Return how many windows an earlier start had finished, when all are finished and counted.

    In company that is all of them for the first process; for another, those it took.

    Raises:
        FileError: F104 when another process is gone.
    """
    if parts is None or company is None:
        return _walk_alone(run, chosen.windows(), parts, told)
    return _Shared(run, chosen, parts, company, told).walk()


def _walk_alone(
    run: Run, windows: Iterable[list[Trajectory]], parts: Parts | None, told: Progress | None
) -> int:
    def read() -> Iterator[_Read]:
        for number, window in enumerate(windows):
            yield number, window, None if parts is None else parts.load(number, window)

    n_kept = 0
    try:
        with Behind() as behind, closing(ahead(read())) as coming:
            for number, window, found in coming:
                n_kept += found is not None
                scored = run.scored(window, told) if found is None else found
                into = parts if found is None else None
                behind.do(partial(_finish, run, into, number, scored))
                run.measure_noise_early()
    finally:
        if parts is not None:
            parts.drop_if_empty()
    return n_kept


def _finish(run: Run, parts: Parts | None, number: int, window: Window) -> None:
    if parts is not None:
        parts.save(number, window)
    run.take(window)


class _Shared:
    """The windows of a run that several processes share out among them.

    Each takes the next one that nobody has, the longest first. The first process counts what all
    have finished while it scores windows of its own.
    """

    def __init__(
        self,
        run: Run,
        chosen: Chosen,
        parts: Parts,
        company: Company,
        told: Progress | None,
    ) -> None:
        company.agree(parts.folder.name)
        self._run = run
        self._windows = chosen.spans()
        self._order = chosen.longest_first(self._windows)
        self._parts = parts
        self._company = company
        self._claims = Claims(parts.folder, company)
        self._told = told
        self._n_counted = 0

    def walk(self) -> int:
        """Take windows until all have somebody; the first process then waits for the rest."""
        order, company = self._order, self._company
        last = max(0, len(order) - 2 * company.size)  # read ahead, one would wait while others idle
        n_kept = 0
        with Behind() as behind, closing(ahead(self._taken(order[:last]))) as coming:
            for number, window, found in chain(coming, self._taken(order[last:])):
                n_kept += found is not None
                scored = self._run.scored(window, self._told) if found is None else found
                behind.do(partial(self._finish, number, scored, is_new=found is None))
                self._run.measure_noise_early()
        if company.is_first:
            while self._n_counted < len(self._windows):
                self._count(self._wait_for(self._n_counted))
                self._run.measure_noise_early()
            company.see_off()
        return n_kept

    def _taken(self, numbers: Iterable[int]) -> Iterator[_Read]:
        """Yield the windows that nobody else has."""
        for number in numbers:
            self._company.check()
            if self._claims.take(number):
                window = self._read(number)
                yield number, window, self._parts.load(number, window)

    def _finish(self, number: int, window: Window, *, is_new: bool) -> None:
        if is_new:
            self._parts.save(number, window)
        if not self._company.is_first:
            self._run.take(window)
            return
        while self._n_counted < len(self._windows):
            found = self._found(self._n_counted)
            if found is None:
                return
            self._count(found)

    def _found(self, number: int) -> Window | None:
        if not self._parts.file(number).exists():
            return None
        return self._parts.load(number, self._read(number))

    def _count(self, window: Window) -> None:
        self._run.take(window)
        self._n_counted += 1

    def _wait_for(self, number: int) -> Window:
        """Return a window once whoever has it has finished it; this process's when nobody has."""
        window = self._read(number)
        while True:
            made = self._parts.made(number)
            found = self._parts.load(number, window)
            if found is not None:
                return found
            if self._claims.take(number, from_done=True):
                found = self._run.scored(window, self._told)
                self._parts.save(number, found)
                return found
            holder = self._claims.holder(number)
            if holder is not None:
                self._company.wait(partial(self._is_over, number, made), holder)

    def _is_over(self, number: int, made: tuple[int, int] | None) -> bool:
        """Return whether a window was made anew, or nobody is making it."""
        return self._parts.made(number) != made or self._claims.holder(number) is None

    def _read(self, number: int) -> list[Trajectory]:
        return list(read_spans(self._windows[number]))
