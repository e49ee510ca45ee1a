"""The processes of one run, seen through a folder: who is there, who failed, who has a window.

Each process has a sign there, `NAME-RANK.alive`, which it renews while it lives and which holds a
word of its own; `NAME-RANK.key` says which run it is at. When it leaves, `NAME-RANK.done` or
`.failed` stays until the last one leaves. Nobody compares clocks: what was there when a process
came is old, whatever it says, and what changes after that is news. So that no word is missed, who
leaves before the others have come waits for them a little.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

from trajkit.errors import FileError, Place, TrajkitError
from trajkit.safe.files import remove_quietly
from trajkit.safe.lock import faults_named, locked
from trajkit.scoring.running.job import SILENCE_S, Job
from trajkit.scoring.running.parts import drop_empty, make_folder, parts_folder

_What: TypeAlias = Literal["alive", "key", "done", "failed"]
_WORDS: tuple[_What, ...] = "alive", "key", "done", "failed"
_Word: TypeAlias = tuple[int, str]
"""When it was said, by the clock of whoever said it, and what."""

_SIGN_EVERY_S = 2.0
_LOOK_EVERY_S = 0.05
_LATE_S = 60.0
"""How much later than this one another process may come, and still be waited for."""

_AGAIN = "start the run again: what is finished is kept"
_PASSING = "F101", "F102", "F103"
"""Faults that may be over at the next start; the data and options of a run stay as they are."""


class Company:
    """The processes of one run."""

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder = folder
        self._job = job
        self._others = [rank for rank in range(job.size) if rank != job.rank]
        self._old = {
            (rank, what): self._word(rank, what) for rank in self._others for what in _WORDS
        }
        self._heard: dict[int, tuple[_Word, float]] = {}
        """By rank, its newest sign of life, and when it was noticed here."""
        self._came = time.monotonic()
        self._own = os.urandom(8).hex()
        self._key: str | None = None

    @property
    def size(self) -> int:
        """Return how many processes there are."""
        return self._job.size

    @property
    def is_first(self) -> bool:
        """Return whether this process puts together what all have finished."""
        return self._job.is_first

    @property
    def me(self) -> str:
        """Return what this process signs with: no other has the same, nor an earlier start."""
        return f"{self._job.name}-{self._job.rank}.{self._own}"

    @contextmanager
    def present(self) -> Iterator[None]:
        """Show that this process is alive while inside, and then that it is done or failed.

        Raises:
            RefusedError: R103, the folder is a symbolic link.
            FileError: F102, another start of the same name is running, or the folder cannot be
                written.
        """
        make_folder(self._folder)
        try:
            with locked(self._file(self._job.rank, "alive")), self._signing(), self._last_word():
                yield
        finally:
            self._tidy()

    @contextmanager
    def _signing(self) -> Iterator[None]:
        alive = self._file(self._job.rank, "alive")
        with faults_named(self._folder):
            alive.write_text(self._own)
            for what in _WORDS[1:]:
                self._file(self._job.rank, what).unlink(missing_ok=True)
        left = threading.Event()
        sign = threading.Thread(target=self._sign, args=(left,), daemon=True)
        sign.start()
        try:
            yield
        finally:
            left.set()
            sign.join()
            remove_quietly(alive)

    @contextmanager
    def _last_word(self) -> Iterator[None]:
        try:
            yield
            self._leave("done", self._own, [] if self._job.is_first else [0])
        except BaseException as problem:
            hearers = self._others if isinstance(problem, Exception) else []
            with suppress(TrajkitError):  # the first problem is the one to tell
                self._leave("failed", _told(problem), hearers)
            raise

    def agree(self, key: str) -> None:
        """Say which run this process is at: a word that stands for all its numbers depend on."""
        self._key = key
        self._say("key", key)

    def check(self) -> None:
        """Raise F104 when another process failed, or is at another run than this one."""
        for rank in self._others:
            failure = self._news(rank, "failed")
            if failure is not None:
                sentence, _, hint = failure[1].partition("\n")
                raise FileError(
                    "F104",
                    f"process {rank} of the run did not finish its share: it failed: {sentence}",
                    hint=hint or None,
                )
            key = self._news(rank, "key")
            if key is not None and self._key is not None and key[1] != self._key:
                raise FileError(
                    "F104",
                    f"process {rank} of the run reads other data, or was given other options",
                    place=Place(file=str(self._folder)),
                    hint="DATA, checkpoints, options, versions and kind of device are those of all",
                )

    def wait(self, is_over: Callable[[], bool], rank: int) -> None:
        """Return once something is over that another process has in hand.

        Raises:
            FileError: F104 when a process failed, or that one gives no sign of life.
        """
        start = time.monotonic()
        while not is_over():
            self.check()
            if time.monotonic() - max(start, self._last_sign(rank)) > SILENCE_S:
                raise self._gone(rank, f"no sign of it for {SILENCE_S:g} seconds")
            time.sleep(_LOOK_EVERY_S)

    def see_off(self) -> None:
        """Return when every other process has left, or never came: their files may be removed.

        Raises:
            FileError: F104 as in `wait`.
        """
        for rank in self._others:
            self.wait(lambda rank=rank: self._has_left(rank), rank)  # type: ignore[misc]
        self.check()

    def rank_of(self, signature: str, *, also_done: bool) -> int | None:
        """Return who signed so, `None` unless it is at work as its sign tells, or `also_done`."""
        name, _, own = signature.rpartition(".")
        at = name.rpartition("-")[2]
        if name != f"{self._job.name}-{at}" or not at.isdecimal() or int(at) >= self.size:
            return None  # of another run, or of an earlier start with more processes
        words = self._word(int(at), "alive"), self._word(int(at), "done") if also_done else None
        is_one = signature == self.me or any(word is not None and word[1] == own for word in words)
        return int(at) if is_one else None

    def _has_left(self, rank: int) -> bool:
        if self._news(rank, "done") is not None:
            return True
        return not self._has_come(rank) and time.monotonic() - self._came > _LATE_S

    def _leave(self, what: _What, text: str, hearers: list[int]) -> None:
        """Say that this process leaves, to those as well who come a little later."""
        missing = [rank for rank in hearers if not self._has_come(rank)]
        file = self._say(what, text)
        if not missing:
            return
        while not all(map(self._has_come, missing)) and time.monotonic() - self._came < _LATE_S:
            time.sleep(_LOOK_EVERY_S)
        for word in (self._file(self._job.rank, "key"), file):
            with suppress(OSError):  # none, or the first process has put all together, and tidied
                os.utime(word)

    def _say(self, what: _What, text: str) -> Path:
        """Write a word, whole or not at all; return where."""
        file = self._file(self._job.rank, what)
        with faults_named(file):
            words = file.with_name(f"{self.me}.tmp")
            words.write_text(text, encoding="utf-8")
            words.replace(file)
        return file

    def _tidy(self) -> None:
        """Remove all words when the last one has left: nobody is there to hear them."""
        if any(self._file(rank, "alive").exists() for rank in range(self.size)):
            return
        if all(self._news(rank, "done") or self._news(rank, "failed") for rank in self._others):
            for rank in range(self.size):
                for what in _WORDS:
                    remove_quietly(self._file(rank, what))
        drop_empty(self._folder)

    def _has_come(self, rank: int) -> bool:
        """Return whether another process was there after this one came, even if it left since."""
        self._last_sign(rank)
        return rank in self._heard or any(
            self._word(rank, what) != self._old[rank, what] for what in _WORDS
        )

    def _last_sign(self, rank: int) -> float:
        """Return when the newest sign of another process was noticed; 0 when there was none."""
        word = self._news(rank, "alive")
        if word is not None and self._heard.get(rank, (None, 0.0))[0] != word:
            self._heard[rank] = word, time.monotonic()
        return self._heard[rank][1] if rank in self._heard else 0.0

    def _news(self, rank: int, what: _What) -> _Word | None:
        word = self._word(rank, what)
        return None if word == self._old[rank, what] else word

    def _word(self, rank: int, what: _What) -> _Word | None:
        file = self._file(rank, what)
        try:
            return file.stat().st_mtime_ns, file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def _sign(self, left: threading.Event) -> None:
        file = self._file(self._job.rank, "alive")
        while not left.wait(_SIGN_EVERY_S):
            with suppress(OSError):  # the folder is gone
                os.utime(file)
            for rank in self._others:
                if rank not in self._heard:
                    self._last_sign(rank)

    def _file(self, rank: int, what: str) -> Path:
        return self._folder / f"{self._job.name}-{rank}.{what}"

    def _gone(self, rank: int, why: str) -> FileError:
        return FileError(
            "F104",
            f"process {rank} of the run did not finish its share: {why}",
            place=Place(file=str(self._folder)),
            hint=_AGAIN,
        )


def _told(problem: BaseException) -> str:
    """Return what the others are told of a failure: its sentence, then what helps, if known."""
    line = (str(problem).splitlines() or [type(problem).__name__])[0]
    if not isinstance(problem, TrajkitError):
        return f"{line}\n{_AGAIN}"
    return f"{line}\n{problem.hint or (_AGAIN if problem.code in _PASSING else '')}"


@contextmanager
def in_company(target: Path | None, job: Job) -> Iterator[Company | None]:
    """Yield the processes that write an output together, `None` where this is the only one.

    While inside, this process shows that it is alive; then that it is done or failed.
    """
    if target is None or job.size == 1:
        yield None
        return
    company = Company(parts_folder(target), job)
    with company.present():
        yield company


class Claims:
    """Who has which window of a run.

    A claim is a link to nothing that names who made it: the system makes it whole or not at all,
    and for one process only. It is never removed. The next claim of a window counts when whoever
    made the one before is gone.
    """

    def __init__(self, folder: Path, company: Company) -> None:
        self._folder = folder
        self._company = company

    def take(self, number: int, *, from_done: bool = False) -> bool:
        """Return whether the window of a number is this process's, after a try to make it so.

        Args:
            number: of the window.
            from_done: take it from a process that said it was done with its share, too.
        """
        for bid in count():
            file = self._file(number, bid)
            with faults_named(file):
                try:
                    file.symlink_to(self._company.me)
                except FileExistsError:
                    signature = str(file.readlink())
                    if self._company.rank_of(signature, also_done=not from_done) is not None:
                        return signature == self._company.me
                else:
                    return True
        raise AssertionError

    def holder(self, number: int) -> int | None:
        """Return the rank of the process that is at work on a window; `None` when nobody is."""
        for bid in count():
            try:
                signature = str(self._file(number, bid).readlink())
            except OSError:
                return None
            rank = self._company.rank_of(signature, also_done=False)
            if rank is not None:
                return rank
        raise AssertionError

    def _file(self, number: int, bid: int) -> Path:
        return self._folder / f"{number:05}.{bid}.claim"
