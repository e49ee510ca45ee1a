"""A prefix tree of id sequences that grows by what each sequence adds to an earlier one.

A sequence is known by the node of its last id and its length: nodes are split when another sequence
leaves in their middle, and whoever ended in the upper part is found again on the way up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trajkit.align import common_prefix
from trajkit.records import Ids


@dataclass(slots=True, eq=False)
class Node:
    """A stretch of ids that every sequence through it shares.

    Attributes:
        start: the position of its first id in these sequences.
        level: nodes above it, when it was made.
        jump: some node above, chosen so that every way up is short; see `_jump_from`.
        children: by their first id.
        n_needed: how many of its ids are to be read; `row`: where the first of them is.
    """

    ids: Ids
    start: int
    parent: Node | None
    level: int = 0
    jump: Node | None = None
    children: dict[int, Node] = field(default_factory=dict)
    n_needed: int = 0
    row: int = -1


def insert(node: Node, depth: int, ids: Ids) -> tuple[Node, int]:
    """Return the node of the last id after adding ids behind `depth`, and how many were new."""
    node, at = above(node, depth), 0
    while True:
        rest = node.ids[depth - node.start :]
        n_same = common_prefix(rest, ids[at:])
        at, depth = at + n_same, depth + n_same
        if at == len(ids):
            return node, 0
        if n_same < len(rest):
            node = _split(node, depth)
        child = node.children.get(int(ids[at]))
        if child is None:
            child = Node(ids[at:], depth, node, node.level + 1, _jump_from(node))
            node.children[int(ids[at])] = child
            return child, len(ids) - at
        node = child


def above(node: Node, depth: int) -> Node:
    """Return the node that holds the id before `depth`, on the way up from `node`."""
    while node.start >= depth and node.parent is not None:
        jump = node.jump
        node = jump if jump is not None and jump.start >= depth else node.parent
    return node


def _jump_from(parent: Node) -> Node | None:
    """Return where a child of `parent` jumps, so that ways up take a logarithmic number of hops.

    Myers, "An applicative random-access stack" (1983). Splits shift levels, which costs hops and
    nothing else: a node above stays above.
    """
    middle = parent.jump
    if middle is None or middle.jump is None:
        return parent
    is_even = parent.level - middle.level == middle.level - middle.jump.level
    return middle.jump if is_even else parent


def _split(node: Node, depth: int) -> Node:
    """Return a new node with the ids before `depth`; `node` keeps those behind, and its identity.

    Whoever ends in `node` is found again by its length.
    """
    n = depth - node.start
    upper = Node(node.ids[:n], node.start, node.parent, node.level, node.jump)
    upper.children[int(node.ids[n])] = node
    if node.parent is not None:
        node.parent.children[int(node.ids[0])] = upper
    node.ids, node.start, node.parent = node.ids[n:], depth, upper
    return upper


def need(node: Node, depth: int) -> None:
    """Mark the ids before `depth` as to be read, in the node that holds the last of them."""
    if depth > 0:
        node = above(node, depth)
        node.n_needed = max(node.n_needed, depth - node.start)


def preorder(roots: Sequence[Node]) -> list[Node]:
    """Return every node, each before the nodes below it."""
    order: list[Node] = []
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(reversed(node.children.values()))
    return order
