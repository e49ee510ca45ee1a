"""Which earlier step a prompt grows from: a radix tree over the sequences of one trajectory."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from trajkit.align import common_prefix
from trajkit.records import Ids


@dataclass(frozen=True, slots=True)
class Growth:
    """The step a prompt shares its longest prefix with, and how many ids they share."""

    parent: int | None
    keep: int


class PrefixTree:
    """The sequences (prompt + action) of a trajectory's steps, each distinct id stored once.

    `add` compares each id of prompt and action once, whatever number of steps came before; a
    trajectory that only appends stays one run.
    """

    def __init__(self) -> None:
        self._root = _Run(np.empty(0, dtype=np.int32), 0)

    def add(self, step: int, prompt: Ids, action: Ids) -> Growth:
        """Return what the prompt grows from, and remember prompt + action as the step's sequence.

        The parent is the step with the longest common prefix, the latest one of several.
        """
        passed: list[_Run] = []
        run, offset, keep = _follow(self._root, 0, prompt, passed)
        growth = Growth(run.latest(offset) if keep else None, keep)
        if keep == len(prompt):
            run, offset, known = _follow(run, offset, action, passed)
            rest = action[known:]
        else:
            rest = np.concatenate([prompt[keep:], action])
        if len(rest):
            run = _grow(run, offset, rest, passed)
            offset = run.length
        for whole in passed:
            whole.mark(whole.length, step)
        run.mark(offset, step)
        return growth


@dataclass(slots=True)
class _Run:
    """A run of ids without a branch: a growable buffer, who comes how far, what follows it."""

    buffer: Ids
    length: int
    reached: list[tuple[int, int]] = field(default_factory=list)
    """(ids of the run that a step's sequence holds, the step): fewer and fewer, later and later.

    Steps that a later one outreaches are forgotten: nobody asks for them again.
    """
    children: dict[int, _Run] = field(default_factory=dict)

    @property
    def ids(self) -> Ids:
        return self.buffer[: self.length]

    def latest(self, offset: int) -> int:
        """Return the latest step whose sequence holds the run's first `offset` ids."""
        return self.reached[bisect_right(self.reached, -offset, key=lambda mark: -mark[0]) - 1][1]

    def mark(self, offset: int, step: int) -> None:
        """Remember that the latest step's sequence holds the run's first `offset` ids."""
        while self.reached and self.reached[-1][0] <= offset:
            self.reached.pop()
        self.reached.append((offset, step))

    def extend(self, ids: Ids) -> None:
        need = self.length + len(ids)
        if need > len(self.buffer):
            grown = np.empty(2 * need, dtype=np.int32)
            grown[: self.length] = self.ids
            self.buffer = grown
        self.buffer[self.length : need] = ids
        self.length = need

    def split(self, offset: int) -> None:
        """Cut the run in two, so that something can branch off behind its first `offset` ids."""
        beyond = [(end, step) for end, step in self.reached if end > offset]
        behind = _Run(
            self.buffer[offset : self.length],
            self.length - offset,
            reached=[(end - offset, step) for end, step in beyond],
            children=self.children,
        )
        within = self.reached[len(beyond) :]
        whole = [] if within and within[0][0] == offset else [(offset, beyond[-1][1])]
        self.reached = whole + within
        self.children = {int(behind.buffer[0]): behind}
        self.length = offset


def _follow(run: _Run, offset: int, ids: Ids, passed: list[_Run]) -> tuple[_Run, int, int]:
    """Return the run and the offset in it where ids leave what is known, and how many are known.

    Runs that the ids go through and leave behind are added to `passed`.
    """
    known = 0
    while True:
        shared = common_prefix(run.ids[offset:], ids[known:])
        offset, known = offset + shared, known + shared
        child = run.children.get(int(ids[known])) if known < len(ids) else None
        if offset < run.length or child is None:
            return run, offset, known
        passed.append(run)
        run, offset = child, 0


def _grow(run: _Run, offset: int, ids: Ids, passed: list[_Run]) -> _Run:
    """Return the run that ends with the ids, new behind the first `offset` ones of another."""
    if offset < run.length:
        run.split(offset)
    elif run.length and not run.children:
        run.extend(ids)
        return run
    passed.append(run)
    child = run.children[int(ids[0])] = _Run(ids, len(ids))
    return child
