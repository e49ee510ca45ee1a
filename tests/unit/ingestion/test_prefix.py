"""The parent of a prompt is the step that shares the longest prefix, the latest one of several."""

from __future__ import annotations

from trajkit.ingestion.prefix import Growth, PrefixTree
from trajkit.records import ids_array


def growths(*calls: tuple[list[int], list[int]]) -> list[tuple[int | None, int]]:
    tree = PrefixTree()
    found = [
        tree.add(i, ids_array(prompt), ids_array(action))
        for i, (prompt, action) in enumerate(calls)
    ]
    return [(growth.parent, growth.keep) for growth in found]


def runs_of(tree: PrefixTree) -> list[int]:
    """Return the length of each run of the tree, the empty root left out."""
    todo, lengths = list(tree._root.children.values()), []
    while todo:
        run = todo.pop()
        lengths.append(run.length)
        todo += run.children.values()
    return sorted(lengths)


def test_append_only_prompts_grow_from_the_step_before():
    assert growths(([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 2, 3, 4, 5], [6])) == [
        (None, 0),
        (0, 3),
        (1, 5),
    ]


def test_a_window_grows_from_the_latest_step_that_has_its_head():
    assert growths(([9, 1], [2]), ([9, 3], [4]), ([9, 5], [6])) == [(None, 0), (0, 1), (1, 1)]


def test_a_summary_grows_from_the_instructions_it_keeps():
    assert growths(([9, 8, 1, 2], [3]), ([9, 8, 1, 2, 3, 4], [5]), ([9, 8, 7], [6]))[2] == (1, 2)


def test_a_retry_grows_from_the_first_try_and_keeps_its_whole_prompt():
    assert growths(([1, 2], [3]), ([1, 2], [4]), ([1, 2, 4], [5])) == [(None, 0), (0, 2), (1, 3)]


def test_of_two_steps_with_the_same_ids_the_later_one_is_the_parent():
    assert growths(([1], [2]), ([1], [2]), ([1, 2, 3], []))[2] == (1, 2)


def test_a_later_step_that_ends_earlier_is_not_the_parent_of_what_goes_on():
    assert growths(([1, 2, 3], [4]), ([1, 2], []), ([1, 2, 3, 4], [5]))[2] == (0, 4)
    assert growths(([1, 2, 3], [4]), ([1, 2], []), ([1, 2, 9], [5]))[2] == (1, 2)


def test_a_prompt_that_cuts_an_action_keeps_what_it_shares_of_it():
    assert growths(([1], [2, 3, 4]), ([1, 2, 3, 9], [5])) == [(None, 0), (0, 3)]


def test_a_prompt_that_shares_nothing_has_no_parent():
    assert growths(([1], [2]), ([3], [4]), ([], [1]), ([1, 7], [])) == [
        (None, 0),
        (None, 0),
        (None, 0),
        (2, 1),
    ]


def test_an_empty_action_is_no_obstacle():
    assert growths(([1, 2], []), ([1, 2], []), ([1, 2, 3], [])) == [(None, 0), (0, 2), (1, 2)]


def test_a_growth_says_parent_and_keep():
    tree = PrefixTree()
    tree.add(7, ids_array([1]), ids_array([2]))
    assert tree.add(8, ids_array([1, 2]), ids_array([])) == Growth(parent=7, keep=2)


def test_an_append_only_trajectory_is_one_run_however_long():
    tree, prompt = PrefixTree(), ids_array([0])
    for step in range(300):
        action = ids_array([step, step + 1])
        tree.add(step, prompt, action)
        prompt = ids_array([*prompt, *action, 7])
    assert runs_of(tree) == [300 * 3]
    (run,) = tree._root.children.values()
    assert run.reached == [(900, 299)]


def test_a_window_stores_its_head_once():
    tree = PrefixTree()
    for step in range(200):
        tree.add(step, ids_array([1, 2, 3, 100 + step]), ids_array([5]))
    assert runs_of(tree) == [2] * 200 + [3]


def test_prompts_that_get_shorter_are_found_again_at_every_length():
    calls: list[tuple[list[int], list[int]]] = [(list(range(n)), []) for n in (9, 7, 5, 3)]
    assert growths(*calls, ([0, 1, 2, 3, 4, 5, 99], []))[4] == (1, 6)
    assert growths(*calls, ([0, 1, 2, 3, 99], []))[4] == (2, 4)
    assert growths(*calls, ([0, 99], []))[4] == (3, 1)
