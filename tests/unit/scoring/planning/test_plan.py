from typing import Any

import numpy as np
import pytest

from tests.builders import make_step, make_trajectory
from tests.plan_builders import contexts, read_by
from trajkit.errors import InputError
from trajkit.records import Trajectory, ids_array
from trajkit.scoring.planning.plan import (
    Break,
    plan_rows,
    plan_tree,
    row_tokens,
    speaker,
    step_length,
)
from trajkit.scoring.scored import steps_to_score

APPEND = [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([1, 2, 3, 4, 5, 6, 7], [8, 9])]
WINDOW = [
    ([1, 10, 11], [20, 21]),
    ([1, 10, 11, 20, 21, 30], [22]),
    ([1, 10, 30, 22, 31], [23, 24]),
]
RETRY = [([1, 2, 3], [4, 5]), ([1, 2, 3], [4, 6]), ([1, 2, 3, 4, 6, 7], [8])]


def asked(*trajectories: Trajectory) -> Any:
    return [(one, steps_to_score(one)) for one in trajectories]


def tree(*trajectories: Trajectory) -> Any:
    return plan_tree([asked(*trajectories)])[0]


def test_appending_is_one_run() -> None:
    plan = tree(make_trajectory(APPEND))
    assert plan.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]  # 9 has nothing behind it
    assert plan.depth.tolist() == list(range(8))
    assert (plan.run_start.tolist(), plan.run_end.tolist()) == ([0], [8])
    assert plan.edge_row.tolist() == [1, 2, 4, 6, 7]
    assert plan.edge_target.tolist() == [3, 4, 6, 8, 9]


def test_a_branch_is_a_run_below_what_it_shares() -> None:
    plan = tree(make_trajectory(RETRY))
    assert plan.token_ids.tolist() == [1, 2, 3, 4, 6, 7]
    assert plan.run_end.tolist() == [6]  # 5 is asked for and not read: nothing branches in the tree
    pairs = set(zip(plan.edge_row.tolist(), plan.edge_target.tolist(), strict=True))
    assert pairs == {(2, 4), (3, 5), (3, 6), (5, 8)}


def test_runs_are_in_depth_first_order_and_know_their_subtree() -> None:
    branch = [([1, 2], [3, 4, 5]), ([1, 2, 3, 4, 5, 6], [7, 7]), ([1, 2, 3, 9], [8, 8])]
    plan = tree(make_trajectory(branch), make_trajectory([([1, 6], [5, 5])], "other"))
    assert plan.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 9, 8, 6, 5]
    assert plan.run_start.tolist() == [0, 1, 3, 7, 9]
    assert plan.run_end.tolist() == [1, 3, 7, 9, 11]
    assert plan.subtree_end.tolist() == [11, 9, 7, 9, 11]
    assert plan.run_parent.tolist() == [-1, 0, 1, 1, 0]
    assert plan.depth.tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 4, 1, 2]


@pytest.mark.parametrize("calls", [APPEND, WINDOW, RETRY])
def test_each_wanted_pair_is_asked_in_its_own_context(calls: Any) -> None:
    trajectory = make_trajectory(calls)
    plan = tree(trajectory)
    for (prompt, action), wanted in zip(calls, plan.wanted, strict=True):
        for at, edge in enumerate(wanted.edges):
            assert plan.edge_target[edge] == action[at]
            assert read_by(plan, int(plan.edge_row[edge])) == tuple(
                [*prompt, *action][: len(prompt) + at]
            )


def test_the_same_action_twice_is_asked_once() -> None:
    group = [make_trajectory([([1, 2], [3, 4])], name) for name in "ab"]
    plan = tree(*group)
    assert len(plan.edge_row) == 2
    assert [wanted.edges.tolist() for wanted in plan.wanted] == [[0, 1], [0, 1]]


def test_a_token_at_position_0_has_no_edge() -> None:
    plan = tree(make_trajectory([([], [9, 8])]))
    assert plan.wanted[0].edges.tolist() == [-1, 0]
    assert plan.token_ids.tolist() == [9]


def test_groups_share_nothing() -> None:
    group = [make_trajectory([([1, 2], [3])], name) for name in "ab"]
    plan, _ = plan_tree([asked(one) for one in group])
    assert plan.token_ids.tolist() == [1, 2, 1, 2]
    assert plan.run_parent.tolist() == [-1, -1]


def test_what_no_scored_step_needs_is_not_read() -> None:
    trajectory = make_trajectory(APPEND, exclude_reason=[None, "x", "x"])
    assert tree(trajectory).token_ids.tolist() == [1, 2, 3]
    trajectory = make_trajectory(APPEND, exclude_reason=["x", "x", None])
    plan = tree(trajectory)
    assert len(plan.token_ids) == 8
    assert plan.edge_row.tolist() == [6, 7]


def test_nothing_wanted_is_nothing_read() -> None:
    plan = tree(make_trajectory(APPEND, exclude_reason=["x"] * 3))
    assert len(plan.token_ids) == len(plan.run_start) == len(plan.edge_row) == 0
    assert plan.wanted == ()


def test_a_parent_without_a_recorded_prompt_is_rebuilt_from_what_is_known() -> None:
    first = make_step(0, action_tokens=[5, 6], is_terminal=False)
    second = make_step(1, parent=first, prompt_keep=2, prompt_delta=[7], action_tokens=[8])
    plan = tree(Trajectory(trajectory_id="t", steps=(first, second)))
    assert plan.token_ids.tolist() == [5, 6, 7]


@pytest.mark.parametrize("told", [None, 0, 2, 99])
def test_lengths_are_counted_whatever_the_data_say_of_them(told: int | None) -> None:
    first = make_step(0, prompt_delta=[1, 2, 3], action_tokens=[4, 5], prompt_len=told)
    second = make_step(
        1, parent=first, prompt_keep=4, prompt_delta=[7], action_tokens=[8], prompt_len=told
    )
    plan = tree(Trajectory(trajectory_id="t", steps=(first, second)))
    assert set(contexts(plan)) == {(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 7)}
    assert step_length(second) == 6


def test_a_prompt_that_keeps_more_than_there_is_is_an_error() -> None:
    first = make_step(0, prompt_delta=[1, 2, 3], action_tokens=[4, 5])
    second = make_step(1, parent=first, prompt_keep=9, prompt_delta=[7], action_tokens=[8])
    with pytest.raises(InputError) as caught:
        tree(Trajectory(trajectory_id="t", steps=(first, second)))
    assert caught.value.code == "S103"


def test_rows_are_the_sequences_one_by_one() -> None:
    trajectory = make_trajectory(WINDOW)
    steps = steps_to_score(trajectory)
    plan = plan_rows([(trajectory, steps)])
    assert plan.token_ids.tolist() == [1, 10, 11, 20, 21, 30, 22, 1, 10, 30, 22, 31, 23, 24]
    assert plan.run_parent.tolist() == [-1, -1]
    assert row_tokens(trajectory, steps) == 14
    asked_of = [(speaker(3), 20), (3, 21), (5, 22), (7 + 4, 23), (12, 24)]
    assert list(zip(plan.edge_row.tolist(), plan.edge_target.tolist(), strict=True)) == asked_of


def test_rows_that_end_before_the_switch_get_a_sequence_of_their_own() -> None:
    trajectory = make_trajectory(APPEND)
    plan = plan_rows([(trajectory, steps_to_score(trajectory))], switch=6)
    assert (plan.run_end - plan.run_start).tolist() == [6, 9]


@pytest.mark.parametrize(
    ("calls", "breaks"),
    [
        (APPEND, []),
        (RETRY, []),
        (WINDOW, [(2, 2, 5, 3)]),
        # the second prompt spells the action 3 4 as 3 9: what is behind it is read again
        ([([1, 2], [3, 4]), ([1, 2, 3, 9, 5], [6])], [(1, 3, 1, 1)]),
        # a prompt that lost the middle of an earlier one
        ([([1, 2, 7, 8], [3, 4]), ([1, 2, 3, 4, 5], [6])], [(1, 2, 4, 3)]),
    ],
)
def test_breaks_are_where_a_prompt_leaves_the_middle_of_its_parents_ids(
    calls: Any, breaks: Any
) -> None:
    _, found = plan_tree([asked(make_trajectory(calls))])
    assert found == tuple(
        Break(trajectory_id="t", step_index=step, n_kept=kept, n_lost=lost, n_read_again=again)
        for step, kept, lost, again in breaks
    )


def test_what_another_trajectory_reads_already_is_not_read_again() -> None:
    calls = WINDOW[:1] + WINDOW[2:]
    _, breaks = plan_tree([asked(make_trajectory(WINDOW, "a"), make_trajectory(calls, "b"))])
    assert [one.trajectory_id for one in breaks] == ["a"]


def test_a_long_trajectory_costs_its_length() -> None:
    context: list[int] = [1]
    calls = []
    for step in range(400):
        context = [*context, step % 7, step % 5]
        calls.append((context, [step % 11]))
        context = [*context, step % 11]
    trajectory = make_trajectory(calls)
    plan = tree(trajectory)
    assert len(plan.token_ids) == len(context) - 1
    assert len(plan.run_start) == 1
    assert set(contexts(plan)) == {tuple(context[:n]) for n in range(1, len(context))}


def test_ids_are_kept_as_they_are() -> None:
    top = 2**31 - 1
    plan = tree(make_trajectory([([top, 0], [top])]))
    assert plan.edge_target.tolist() == [top]
    np.testing.assert_array_equal(plan.token_ids, ids_array([top, 0]))
