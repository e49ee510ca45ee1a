from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.builders import make_trajectory
from tests.plan_builders import read_by
from trajkit.scoring.planning.pack import (
    Pack,
    Pass,
    Run,
    halve,
    pack_rows,
    pack_trees,
    pass_of,
)
from trajkit.scoring.planning.plan import Plan, plan_rows, plan_tree
from trajkit.scoring.scored import steps_to_score

PROMPT = [1, 2, 3, 4]
GROUP = [[(PROMPT, [branch, 5, 5, 5])] for branch in (10, 20, 30)]
DEEP = [
    ([1, 2], [3, 4, 5]),
    ([1, 2, 3, 4, 5, 6], [7, 7]),
    ([1, 2, 3, 9], [8, 8, 8]),
    ([1, 6, 6, 6, 6], [5, 5]),
]


def asked(*calls: Any) -> Any:
    made = [make_trajectory(one, f"t{at}") for at, one in enumerate(calls)]
    return [(one, steps_to_score(one)) for one in made]


def tree(*calls: Any) -> Plan:
    return plan_tree([asked(*calls)])[0]


def seen_in(reading: Pass, row: int) -> tuple[int, ...]:
    """Return the ids a row of a pass sees: of the runs whose subtree it is in, up to itself."""
    seen: list[int] = []
    for run in reading.runs:
        if run.start <= row < run.subtree_end:
            seen += reading.token_ids[run.start : min(run.end, row + 1)].tolist()
    return tuple(seen)


def assert_whole(plan: Plan, packs: Sequence[Pack]) -> None:
    """Check that every edge is asked once, from a row that has seen what the plan says."""
    asked_edges: list[int] = []
    for pack in packs:
        reading = pass_of(plan, pack)
        assert len(reading.token_ids) == pack.n_tokens
        for edge, row in zip(reading.edges.tolist(), reading.edge_row.tolist(), strict=True):
            wanted = read_by(plan, int(plan.edge_row[edge]))
            assert seen_in(reading, row) == wanted
            assert reading.depth[row] == len(wanted) - 1
        asked_edges += reading.edges.tolist()
    assert sorted(asked_edges) == list(range(len(plan.edge_row)))


def test_what_fits_is_one_pass() -> None:
    plan = tree(*GROUP)
    (pack,) = pack_trees(plan, 1000)
    assert pack.n_tokens == len(plan.token_ids) == 4 + 3 * 3
    assert pack.path == ()
    assert_whole(plan, [pack])
    assert pass_of(plan, pack).runs == (
        Run(start=0, end=4, subtree_end=13),
        Run(start=4, end=7, subtree_end=7),
        Run(start=7, end=10, subtree_end=10),
        Run(start=10, end=13, subtree_end=13),
    )


@pytest.mark.parametrize("budget", [1, 5, 7, 8, 10, 11, 13])
@pytest.mark.parametrize("calls", [GROUP, [DEEP], [DEEP, *GROUP]])
def test_every_budget_asks_every_edge_once(calls: Any, budget: int) -> None:
    plan = tree(*calls)
    packs = pack_trees(plan, budget)
    assert_whole(plan, packs)
    sizes = [pack.n_tokens for pack in packs]
    assert sizes == sorted(sizes, reverse=True)
    longest = int(plan.depth.max()) + 1
    assert max(sizes) <= max(budget, longest)


def test_a_long_sequence_with_retries_is_not_read_again_for_each_of_them() -> None:
    context, calls = [1], []
    for step in range(10):
        context = [*context, 20 + step]
        calls += [(context, [40 + step]), (context, [50 + step, 0])]
    plan = tree(calls)
    packs = pack_trees(plan, 2)
    assert max(pack.n_tokens for pack in packs) == 12
    assert sum(pack.n_tokens for pack in packs) < 3 * len(plan.token_ids)
    assert_whole(plan, packs)


def test_a_cut_repeats_the_path_and_no_more() -> None:
    plan = tree(*GROUP)
    packs = pack_trees(plan, 10)
    assert [pack.n_tokens for pack in packs] == [10, 7]
    reading = pass_of(plan, packs[1])
    assert reading.token_ids.tolist() == [*PROMPT, 30, 5, 5]
    assert reading.runs == (Run(start=0, end=7, subtree_end=7),)  # an only child goes on


def test_a_context_that_is_cut_from_all_below_it_is_read_with_them_alone() -> None:
    shared = [2, 3, 4, 5, 6, 7, 8]
    plan = tree(*([(([1, *shared]), [branch, 5])] for branch in (10, 20)))
    assert not (plan.edge_row < 7).any()
    packs = pack_trees(plan, 9)
    assert [pack.n_tokens for pack in packs] == [9, 9]
    assert_whole(plan, packs)


def test_a_subtree_that_fits_elsewhere_is_not_cut() -> None:
    small = [([40, 41, 42], [43, 44])]
    plan = tree(*GROUP, small)
    packs = pack_trees(plan, 14)
    assert sorted(pack.n_tokens for pack in packs) == [4, 13]
    assert all(pack.path == () for pack in packs)


def test_rows_are_a_pass_each_the_longest_first() -> None:
    plan = plan_rows(asked(*GROUP, DEEP))
    packs = pack_rows(plan)
    assert all(len(pack.own) == 1 for pack in packs)
    sizes = [pack.n_tokens for pack in packs]
    assert sizes == sorted(sizes, reverse=True)
    assert_whole(plan, packs)


@pytest.mark.parametrize("calls", [GROUP, [DEEP], [DEEP, *GROUP]])
def test_halves_own_what_the_whole_owned(calls: Any) -> None:
    plan = tree(*calls)
    packs = pack_trees(plan, 1000)
    while any(len(pack.own) > 1 for pack in packs):
        packs = [part for pack in packs for part in halve(plan, pack)]
        own = [run for pack in packs for run in pack.own]
        assert len(own) == len(set(own))
        assert_whole(plan, packs)
    alone = packs[0]
    assert halve(plan, alone) == [alone]


def test_nothing_to_read_is_no_pass() -> None:
    plan = plan_tree([])[0]
    assert pack_trees(plan, 10) == []
    assert pack_rows(plan) == []


def test_many_small_trees_fill_a_pass() -> None:
    plan = plan_tree([asked([([at, 1], [2, 3])]) for at in range(50)])[0]
    packs = pack_trees(plan, 30)
    assert [pack.n_tokens for pack in packs] == [30] * 5
    assert_whole(plan, packs)
    np.testing.assert_array_equal(pass_of(plan, packs[0]).depth, [0, 1, 2] * 10)
