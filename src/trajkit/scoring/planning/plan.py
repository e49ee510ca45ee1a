"""What a model must read to score some steps: each (context, token) pair once, in tree order.

Dimension key: N ids to read (rows), R runs of them, E pairs to score (edges), A ids of an action.

log p(token | context) belongs to the context, not to the step that asked for it. The prompts of a
group of trajectories are a prefix tree: parents within a trajectory say where each prompt leaves an
earlier one, equal ids say where two trajectories agree. In depth-first order the rows that see a
run are one contiguous range:

    run 0  [a b c]        rows 0..3   seen by rows 0..9
    run 1    [d e]        rows 3..5   seen by rows 3..5
    run 2    [f g h i]    rows 5..9   seen by rows 5..9

Appending, windows, summaries, retries, branches and groups with one prompt are all such trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Ids, Step, Trajectory, read_only
from trajkit.scoring.planning.tree import Node, above, insert, need, preorder
from trajkit.sequence import SequenceStep, build_sequences

Rows: TypeAlias = NDArray[np.int64]
Group: TypeAlias = Sequence[tuple[Trajectory, Sequence[Step]]]
"""Trajectories whose prefixes may be shared, each with those of its steps that are scored."""
_Position = TypeVar("_Position", int, Rows)

_NO_IDS: Ids = read_only(np.empty(0, dtype=np.int32))
_TARGET_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """A step whose action is scored.

    Attributes:
        edges: [A] which edge speaks of each action token; -1 for a token at position 0, which has
            no context.
    """

    step: Step
    edges: Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What to read and which rows to ask about which ids.

    Attributes:
        token_ids: [N] int32; `depth`: [N] int64 each id's position in its own sequence.
        run_start, run_end: [R] rows of each run, in depth-first order; `subtree_end`: [R] the rows
            that see it are `[run_start, subtree_end)`; `run_parent`: [R] -1 for a root.
        edge_row, edge_target: [E] the row whose logits are asked, and for which id; distinct pairs.
        wanted: the steps in the order given.
    """

    token_ids: Ids
    depth: Rows
    run_start: Rows
    run_end: Rows
    subtree_end: Rows
    run_parent: Rows
    edge_row: Rows
    edge_target: Rows
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A prompt that left its parent's ids in the middle, so that a model reads some of them again.

    Attributes:
        n_kept: ids kept of the parent's prompt + action; `n_lost`: those that were not.
        n_read_again: of what came in their place, what the tree did not hold: at most `n_lost`.
    """

    trajectory_id: str
    step_index: int
    n_kept: int
    n_lost: int
    n_read_again: int


def speaker(position: _Position) -> _Position:
    """Return the position whose logits speak of the token at `position`: the causal shift."""
    return position - 1


def step_length(step: Step) -> int:
    """Return how many ids a step's prompt and action have, counted and not taken on trust."""
    n_delta = 0 if step.prompt_delta is None else len(step.prompt_delta)
    return (step.prompt_keep or 0) + n_delta + step.n_action_tokens


def plan_tree(groups: Iterable[Group]) -> tuple[Plan, tuple[Break, ...]]:
    """Return the plan that reads every prefix of a group once, and where prompts left at a price.

    Args:
        groups: share nothing with each other. The prompt and a non-empty action of each scored step
            are recorded.

    Raises:
        InputError: S103 when a prompt keeps more than its parents hold.
    """
    roots: list[Node] = []
    ends: list[tuple[Step, Node]] = []
    breaks: list[Break] = []
    for group in groups:
        root = Node(ids=_NO_IDS, start=0, parent=None)
        roots.append(root)
        for trajectory, steps in group:
            placed = _place(root, trajectory, {step.step_index for step in steps}, breaks)
            ends.extend((step, placed[step.step_index]) for step in steps)
    for step, node in ends:
        need(node, speaker(step_length(step)))
    for node in reversed(preorder(roots)):
        if node.n_needed and node.parent is not None:
            node.parent.n_needed = len(node.parent.ids)
    return _lay_out(roots, ends), tuple(breaks)


def plan_rows(trajectories: Group, *, switch: int | None = None) -> Plan:
    """Return the plan that reads each token sequence by itself, from its first id.

    Args:
        trajectories: each with those of its steps that are scored.
        switch: the length beyond which a model reads all of a sequence with other rotary
            frequencies: steps that end before it get a sequence of their own.
    """
    ids: list[Ids] = []
    edges: list[tuple[Step, Rows, Ids]] = []
    at = 0
    for trajectory, steps in trajectories:
        wanted = {step.step_index for step in steps}
        for sequence in build_sequences(trajectory):
            places = [place for place in sequence.steps if place.step.step_index in wanted]
            for group in _by_length(places, switch):
                ids.append(sequence.token_ids[: group[-1].action_end])
                edges.extend(
                    (
                        place.step,
                        _shifted(at, np.arange(place.action_start, place.action_end)),
                        _ids_or_none(place.step.action_tokens),
                    )
                    for place in group
                )
                at += len(ids[-1])
    return _plan_of_rows(ids, edges)


def row_tokens(trajectory: Trajectory, steps: Sequence[Step]) -> int:
    """Return how many ids `plan_rows` would read, without building a sequence."""
    wanted = {step.step_index for step in steps}
    row_of: dict[int, int] = {}
    lengths: list[int] = []
    for step in trajectory.steps:
        if step.prompt_delta is None:
            continue
        parent, row = step.parent, None
        if parent is not None and step.prompt_keep == parent.sequence_len:
            row = row_of.pop(parent.step_index, None)
        if row is None:
            row = len(lengths)
            lengths.append(0)
        row_of[step.step_index] = row
        if step.step_index in wanted:
            lengths[row] = step_length(step)
    return sum(lengths)


def _place(
    root: Node, trajectory: Trajectory, wanted: set[int], breaks: list[Break]
) -> dict[int, Node]:
    """Return the node that holds the last id of each step, after growing the tree by them."""
    placed: dict[int, Node] = {}
    for step in trajectory.steps:
        if step.prompt_delta is None:
            continue
        parent, keep = step.parent, step.prompt_keep or 0
        delta, action = step.prompt_delta, _ids_or_none(step.action_tokens)
        start = None if parent is None else placed.get(parent.step_index)
        if parent is None or start is None or keep > step_length(parent):
            start, keep, delta = root, 0, _ids_or_none(step.prompt_ids)
        node, n_new = insert(start, keep, np.concatenate([delta, action]))
        placed[step.step_index] = node
        if step.step_index in wanted:
            breaks.extend(_breaks(step, n_new))
    return placed


def _breaks(step: Step, n_new: int) -> Iterator[Break]:
    """Yield a break when a prompt leaves the middle of its parent's prompt, or of its action.

    One that holds all of the parent's prompt and none of its action is a retry or a branch: what it
    adds is not there to be kept.
    """
    parent, kept = step.parent, step.prompt_keep or 0
    if parent is None:
        return
    n_lost = step_length(parent) - kept
    if n_lost in (0, parent.n_action_tokens):
        return
    n_again = min(n_lost, max(0, n_new - step.n_action_tokens))
    if n_again:
        yield Break(
            trajectory_id=step.trajectory_id,
            step_index=step.step_index,
            n_kept=kept,
            n_lost=n_lost,
            n_read_again=n_again,
        )


def _lay_out(roots: Sequence[Node], ends: Sequence[tuple[Step, Node]]) -> Plan:
    """Return the plan of marked trees: stretches with one child become one run."""
    ids: list[Ids] = []
    depth: list[Rows] = []
    starts: list[int] = []
    parents: list[int] = []
    at = 0
    stack = [(child, -1) for root in reversed(roots) for child in _needed(root)]
    while stack:
        node, parent = stack.pop()
        starts.append(at)
        parents.append(parent)
        children = [node]
        while len(children) == 1:
            (node,) = children
            node.row = at
            ids.append(node.ids[: node.n_needed])
            depth.append(np.arange(node.start, node.start + node.n_needed))
            at += node.n_needed
            children = _needed(node)
        stack.extend((child, len(starts) - 1) for child in children)
    run_end = np.array([*starts[1:], at][: len(starts)], dtype=np.int64)
    edges = [(step, _rows_of(step, node), _ids_or_none(step.action_tokens)) for step, node in ends]
    return _plan(ids, depth, np.array(starts, dtype=np.int64), run_end, parents, edges)


def _needed(node: Node) -> list[Node]:
    """Return the children to read, the last first: a stack hands them out in order."""
    return [child for child in reversed(node.children.values()) if child.n_needed]


def _rows_of(step: Step, node: Node) -> Rows:
    """Return the row that speaks of each action token [A] of a step that ends in `node`."""
    end = speaker(step_length(step))
    start = end - step.n_action_tokens
    pieces: list[Rows] = []
    while end > max(start, 0):
        node = above(node, end)
        first = max(start, node.start)
        pieces.append(np.arange(first, end) - node.start + node.row)
        end = first
    if start < 0:
        pieces.append(np.array([-1]))
    return np.concatenate(pieces[::-1])


def _plan_of_rows(ids: Sequence[Ids], edges: Sequence[tuple[Step, Rows, Ids]]) -> Plan:
    lengths = np.array([len(part) for part in ids], dtype=np.int64)
    depth = [np.arange(len(part)) for part in ids]
    run_end = np.cumsum(lengths)
    return _plan(ids, depth, run_end - lengths, run_end, [-1] * len(ids), edges)


def _plan(
    ids: Sequence[Ids],
    depth: Sequence[Rows],
    run_start: Rows,
    run_end: Rows,
    run_parent: Sequence[int],
    edges: Sequence[tuple[Step, Rows, Ids]],
) -> Plan:
    """Return the plan of runs in depth-first order; the same pair of row and id is one edge."""
    subtree_end = run_end.copy()
    for run in range(len(run_parent) - 1, -1, -1):
        parent = run_parent[run]
        if parent >= 0:
            subtree_end[parent] = max(subtree_end[parent], subtree_end[run])
    rows = np.concatenate([np.empty(0, dtype=np.int64), *(row for _, row, _ in edges)])
    targets = np.concatenate([_NO_IDS, *(target for _, _, target in edges)]).astype(np.int64)
    known = rows >= 0
    pairs, which = np.unique(
        (rows[known] << _TARGET_BITS) | (targets[known] & (2**_TARGET_BITS - 1)),
        return_inverse=True,
    )
    edge_of = np.full(len(rows), -1, dtype=np.int64)
    edge_of[known] = which
    ends = np.cumsum([len(row) for _, row, _ in edges])
    return Plan(
        token_ids=read_only(np.concatenate([_NO_IDS, *ids])),
        depth=np.concatenate([np.empty(0, dtype=np.int64), *depth]),
        run_start=run_start,
        run_end=run_end,
        subtree_end=subtree_end,
        run_parent=np.array(run_parent, dtype=np.int64),
        edge_row=pairs >> _TARGET_BITS,
        edge_target=pairs & (2**_TARGET_BITS - 1),
        wanted=tuple(
            Wanted(step=step, edges=edge_of[end - len(row) : end])
            for (step, row, _), end in zip(edges, ends, strict=True)
        ),
    )


def _shifted(first_row: int, positions: Rows) -> Rows:
    """Return the rows that speak of positions of a sequence that begins at `first_row`."""
    return np.where(positions > 0, first_row + speaker(positions), -1)


def _by_length(places: list[SequenceStep], switch: int | None) -> list[list[SequenceStep]]:
    """Return the places in groups that one pass can score, none of them empty."""
    if switch is None:
        groups = [places]
    else:
        groups = [
            [place for place in places if place.action_end <= switch],
            [place for place in places if place.action_end > switch],
        ]
    return [group for group in groups if group]


def _ids_or_none(ids: Ids | None) -> Ids:
    return _NO_IDS if ids is None else ids
