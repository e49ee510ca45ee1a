import numpy as np
import pytest

from trajkit.records import ids_array
from trajkit.scoring.planning.tree import Node, above, insert, need, preorder


def new_root() -> Node:
    return Node(ids=ids_array([]), start=0, parent=None)


def path_of(node: Node, length: int) -> list[int]:
    """Return the ids of a sequence from the node of its last id and its length."""
    ids: list[int] = []
    while length:
        node = above(node, length)
        ids = node.ids[: length - node.start].tolist() + ids
        length = node.start
    return ids


def test_what_is_there_already_is_not_new() -> None:
    root = new_root()
    _, n_new = insert(root, 0, ids_array([1, 2, 3]))
    assert n_new == 3
    node, n_new = insert(root, 0, ids_array([1, 2]))
    assert n_new == 0
    assert path_of(node, 2) == [1, 2]
    _, n_new = insert(root, 0, ids_array([1, 2, 9, 9]))
    assert n_new == 2


def test_who_ended_in_a_node_that_was_split_is_found_by_its_length() -> None:
    root = new_root()
    end, _ = insert(root, 0, ids_array([1, 2, 3, 4]))
    insert(root, 0, ids_array([1, 2, 9]))
    assert end.start == 2
    for length in range(5):
        assert path_of(end, length) == [1, 2, 3, 4][:length]
    grown, _ = insert(end, 1, ids_array([7]))
    assert path_of(grown, 2) == [1, 7]


def test_going_on_from_a_sequence_costs_what_is_added() -> None:
    root = new_root()
    node, _ = insert(root, 0, ids_array([1, 2]))
    node, n_new = insert(node, 2, ids_array([3]))
    assert n_new == 1
    assert path_of(node, 3) == [1, 2, 3]
    same, n_new = insert(node, 3, ids_array([]))
    assert (same, n_new) == (node, 0)


@pytest.mark.parametrize("n", [10, 1000])
def test_ways_up_are_short(n: int) -> None:
    node = root = new_root()
    for depth in range(n):
        node, _ = insert(node, depth, ids_array([depth]))
    assert len(preorder([root])) == n + 1
    hops = 0
    at = node
    while at.start > 3:  # the way of `above(node, 4)`, counted
        jump = at.jump
        at = jump if jump is not None and jump.start >= 4 else (at.parent or root)
        hops += 1
    assert at is above(node, 4)
    assert hops <= 3 * np.log2(n)


def test_every_node_comes_before_those_below_it() -> None:
    root = new_root()
    for ids in ([1, 2, 3], [1, 2, 4], [1, 5], [6]):
        insert(root, 0, ids_array(ids))
    order = preorder([root])
    assert len(order) == 1 + 6
    for at, node in enumerate(order):
        assert node.parent is None or node.parent in order[:at]


def test_a_need_is_marked_where_its_last_id_is() -> None:
    root = new_root()
    end, _ = insert(root, 0, ids_array([1, 2, 3, 4]))
    insert(root, 0, ids_array([1, 2, 9]))
    need(end, 3)
    need(end, 0)
    assert end.n_needed == 1
    need(end, 2)
    assert end.parent is not None
    assert (end.parent.n_needed, end.n_needed, root.n_needed) == (2, 1, 0)
