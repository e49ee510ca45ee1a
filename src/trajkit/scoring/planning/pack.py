"""A plan cut into passes of bounded size: which runs go together, and how they lie in a pass.

A tree larger than the budget is cut between runs. What both sides need, the path from the root to
the cut, is read again; an edge stays in the pass that first reads its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Ids, Mask
from trajkit.scoring.planning.plan import Plan, Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pack:
    """Runs of a plan that one pass reads.

    Attributes:
        own: the runs whose edges are scored here, in depth-first order of their trees.
        path: the runs above them that are read for their sake alone.
        n_tokens: ids in all of these.
    """

    own: tuple[int, ...]
    path: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's place in a pass: rows `[start, end)`, seen by rows `[start, subtree_end)`."""

    start: int
    end: int
    subtree_end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """What one forward pass reads, T ids, and which rows of it are asked about.

    Attributes:
        token_ids: [T] int32; `depth`: [T] int64 position of each id in its own sequence.
        runs: in depth-first order; a single one is an ordinary sequence.
        edges: [E] indexes into the plan's edges; `edge_row`: [E] the row of this pass that speaks.
    """

    token_ids: Ids
    depth: Rows
    runs: tuple[Run, ...]
    edges: Rows
    edge_row: Rows


def pack_rows(plan: Plan) -> list[Pack]:
    """Return one pack a run, the longest first: nothing is shared."""
    sizes = (plan.run_end - plan.run_start).tolist()
    packs = [Pack(own=(run,), path=(), n_tokens=size) for run, size in enumerate(sizes)]
    return sorted(packs, key=lambda pack: -pack.n_tokens)


def pack_trees(plan: Plan, budget: int) -> list[Pack]:
    """Return packs of at most `budget` ids that own each run once, the longest first.

    The longest sequence has to be read in one pass, so packs of its size cost no more memory.
    """
    budget = max(budget, int(plan.depth.max(initial=-1)) + 1)
    roots = np.flatnonzero(plan.run_parent < 0)
    ends = np.append(roots[1:], len(plan.run_parent))
    largest_first = np.argsort(plan.run_start[roots] - plan.subtree_end[roots], kind="stable")
    order = [run for tree in largest_first for run in range(roots[tree], ends[tree])]
    return sorted(_cut(plan, order, budget), key=lambda pack: -pack.n_tokens)


def halve(plan: Plan, pack: Pack) -> list[Pack]:
    """Return smaller packs that own the same runs; one alone when it cannot be cut."""
    if len(pack.own) < 2:
        return [pack]
    parts = _cut(plan, pack.own, pack.n_tokens // 2)
    if len(parts) < 2:
        middle = len(pack.own) // 2
        halves = (pack.own[:middle], pack.own[middle:])
        parts = [part for half in halves for part in _cut(plan, half, pack.n_tokens)]
    return parts


def _cut(plan: Plan, runs: Sequence[int], budget: int) -> list[Pack]:
    """Return packs of consecutive runs. A subtree that fits in a pack is not cut.

    A run of context that is cut from those below it is owned by no one: it is read with them.
    """
    sizes = plan.run_end - plan.run_start
    n_below = np.searchsorted(plan.run_start, plan.subtree_end) - np.arange(len(sizes))
    has_edges = np.diff(
        np.searchsorted(plan.edge_row, np.append(plan.run_start, len(plan.token_ids)))
    )
    upto = np.concatenate([[0], np.cumsum(sizes[list(runs)])])
    packs: list[Pack] = []
    open_pack = _Open(plan)
    at = 0
    while at < len(runs):
        run = runs[at]
        room = budget - open_pack.n_tokens - open_pack.price(run)
        behind = min(at + int(n_below[run]), len(runs))
        subtree = int(upto[behind] - upto[at])
        fits_alone = int(plan.depth[plan.run_start[run]]) + subtree <= budget
        if subtree > room and not fits_alone and not has_edges[run]:
            at += 1
            continue
        with_child = int(sizes[run] + (sizes[runs[at + 1]] if behind > at + 1 else 0))
        if subtree > room and open_pack.own and (fits_alone or with_child > room):
            packs.append(open_pack.close())
            open_pack = _Open(plan)
            continue
        end = behind if subtree <= room else at + 1
        open_pack.take(runs[at:end])
        at = end
    return [*packs, open_pack.close()] if open_pack.own else packs


class _Open:
    """A pack under way."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._inside: set[int] = set()
        self._path: list[int] = []
        self.own: list[int] = []
        self.n_tokens = 0

    def price(self, run: int) -> int:
        """Return how many ids above a run are not in the pack yet."""
        return sum(self._size(above) for above in self._missing(run))

    def take(self, runs: Sequence[int]) -> None:
        """Own some runs, the first of which is above or before the others."""
        missing = self._missing(runs[0])
        self._path.extend(missing)
        self.own.extend(runs)
        self._inside.update(missing, runs)
        self.n_tokens += sum(self._size(run) for run in (*missing, *runs))

    def close(self) -> Pack:
        return Pack(own=tuple(self.own), path=tuple(self._path), n_tokens=self.n_tokens)

    def _missing(self, run: int) -> list[int]:
        missing: list[int] = []
        above = int(self._plan.run_parent[run])
        while above >= 0 and above not in self._inside:
            missing.append(above)
            above = int(self._plan.run_parent[above])
        return missing

    def _size(self, run: int) -> int:
        return int(self._plan.run_end[run] - self._plan.run_start[run])


def pass_of(plan: Plan, pack: Pack) -> Pass:
    """Return what a pack reads, its runs joined where one simply goes on from another."""
    chosen = np.array(sorted((*pack.own, *pack.path)), dtype=np.int64)
    sizes = plan.run_end[chosen] - plan.run_start[chosen]
    ends = np.cumsum(sizes)
    moved = ends - sizes - plan.run_start[chosen]
    rows = np.arange(int(ends[-1])) - np.repeat(moved, sizes)
    own = np.isin(chosen, np.array(pack.own, dtype=np.int64))
    edges, edge_row = _edges_of(plan, chosen[own], moved[own])
    return Pass(
        token_ids=plan.token_ids[rows],
        depth=plan.depth[rows],
        runs=_joined(plan.run_parent[chosen], chosen, ends - sizes, ends),
        edges=edges,
        edge_row=edge_row,
    )


def _edges_of(plan: Plan, runs: Rows, moved: Rows) -> tuple[Rows, Rows]:
    """Return the edges whose rows are in some runs, and those rows in the pass."""
    first = np.searchsorted(plan.edge_row, plan.run_start[runs])
    n_edges = np.searchsorted(plan.edge_row, plan.run_end[runs]) - first
    edges = np.arange(int(n_edges.sum())) + np.repeat(first - np.cumsum(n_edges) + n_edges, n_edges)
    return edges, plan.edge_row[edges] + np.repeat(moved, n_edges)


def _joined(parents: Rows, chosen: Rows, starts: Rows, ends: Rows) -> tuple[Run, ...]:
    """Return the runs of a pass; an only child is one run with its parent."""
    n = len(chosen)
    place = {int(run): at for at, run in enumerate(chosen)}
    above = [place.get(int(parent), -1) for parent in parents]
    subtree_end = ends.copy()
    n_children: NDArray[np.int64] = np.zeros(n, dtype=np.int64)
    for at in range(n - 1, -1, -1):
        if above[at] >= 0:
            n_children[above[at]] += 1
            subtree_end[above[at]] = max(subtree_end[above[at]], subtree_end[at])
    is_only: Mask = np.array([up >= 0 and n_children[up] == 1 for up in above], dtype=np.bool_)
    heads = np.flatnonzero(~is_only)
    tails = np.append(heads[1:], n) - 1
    return tuple(
        Run(start=int(starts[head]), end=int(ends[tail]), subtree_end=int(subtree_end[head]))
        for head, tail in zip(heads, tails, strict=True)
    )
