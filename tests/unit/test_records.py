"""Prompts and states rebuild from their parents, whatever strategy made the prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builders import make_step, make_trajectory
from trajkit.errors import InputError
from trajkit.records import (
    ActionSource,
    RewardPart,
    Segment,
    SegmentKind,
    Step,
    Trajectory,
    ids_array,
    states_in_order,
)


def texts(*pieces: tuple[str, str | None]) -> Any:
    """Return an append-only chain of steps that have texts and no ids."""
    steps: list[Step] = []
    n_bytes = 0
    for index, (delta, action) in enumerate(pieces):
        parent = steps[-1] if steps else None
        steps.append(
            make_step(index, parent=parent, text_keep=n_bytes, text_delta=delta, action_text=action)
        )
        n_bytes += len((delta + (action or "")).encode())
    return steps


def test_an_append_only_prompt_is_all_that_came_before_and_the_delta():
    trajectory = make_trajectory([([1, 2], [3]), ([1, 2, 3, 4], [5, 6]), ([1, 2, 3, 4, 5, 6], [])])
    assert [step.prompt_keep for step in trajectory.steps] == [0, 3, 6]
    assert trajectory.steps[2].prompt_delta.tolist() == []
    assert trajectory.steps[2].prompt_ids.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_window_keeps_the_first_ids_of_a_prompt_far_up():
    trajectory = make_trajectory([([9, 8, 1], [2]), ([9, 8, 3], [4]), ([9, 8, 5], [6])])
    assert [step.prompt_ids.tolist() for step in trajectory.steps] == [
        [9, 8, 1],
        [9, 8, 3],
        [9, 8, 5],
    ]


def test_a_prompt_may_keep_part_of_an_action():
    trajectory = make_trajectory([([1], [2, 3, 4]), ([1, 2, 3, 7], [5])])
    assert trajectory.steps[1].prompt_keep == 3
    assert trajectory.steps[1].prompt_ids.tolist() == [1, 2, 3, 7]


def test_a_prompt_from_nothing_has_no_parent():
    trajectory = make_trajectory([([1], [2]), ([3], [4])])
    assert trajectory.steps[1].prompt_parent is None
    assert trajectory.steps[1].prompt_ids.tolist() == [3]


def test_rebuilt_ids_are_int32_and_cannot_be_written_to():
    step = make_trajectory([([1], [2]), ([1, 2, 3], [4])]).steps[1]
    assert step.prompt_ids.dtype == np.int32
    for array in (step.prompt_ids, step.action_tokens, step.action_mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_step_without_prompt_ids_has_none_to_rebuild():
    step = make_step(action_tokens=[1])
    assert step.prompt_ids is None
    assert step.state_before is None
    assert step.sequence_len is None


def test_an_empty_action_is_recorded_and_a_missing_one_is_not():
    assert make_step(action_tokens=[]).action_tokens.tolist() == []
    assert make_step(action_tokens=[]).is_checkable
    assert make_step().action_tokens is None
    assert not make_step().is_checkable
    assert not make_step(action_tokens=[1], action_source=ActionSource.RETOKENIZED).is_checkable


def test_a_window_is_one_hop_from_the_step_that_holds_what_it_keeps():
    calls = [([9, 8, 7, 100 + k], [200 + k]) for k in range(2000)]
    steps = make_trajectory_fast(calls)
    assert all(step.origin is steps[0] for step in steps[1:])
    assert steps[1999].prompt_ids.tolist() == [9, 8, 7, 2099]


def make_trajectory_fast(calls: list[tuple[list[int], list[int]]]) -> Any:
    """Return steps that keep three ids of the step before; the oracle would take minutes."""
    steps: list[Step] = []
    for index, (prompt, action) in enumerate(calls):
        parent = steps[-1] if steps else None
        keep = 3 if steps else 0
        steps.append(
            make_step(
                index,
                parent=parent,
                prompt_keep=keep,
                prompt_delta=prompt[keep:],
                action_tokens=action,
            )
        )
    return steps


def test_a_prompt_that_keeps_more_than_its_parents_hold_is_damage():
    parent = make_step(0, prompt_delta=[1, 2], action_tokens=[3])
    for wrong in (
        make_step(1, parent=parent, prompt_keep=4, prompt_delta=[5]),
        make_step(1, prompt_keep=1, prompt_delta=[5]),
    ):
        with pytest.raises(InputError, match="S103"):
            _ = wrong.prompt_ids


def test_a_state_is_the_text_of_all_pieces():
    steps = texts(("Say ", "café"), (" now ", None), ("東京", "!"), ("", ""))
    assert [step.state_before for step in steps] == [
        "Say ",
        "Say café now ",
        "Say café now 東京",
        "Say café now 東京!",
    ]


def test_a_state_keeps_bytes_not_characters():
    root = make_step(0, text_keep=0, text_delta="é東x", action_text="yz")
    cut = make_step(1, parent=root, text_keep=5, text_delta="…")
    assert cut.state_before == "é東…"
    in_action = make_step(1, parent=root, text_keep=7, text_delta="…")
    assert in_action.state_before == "é東xy…"


def test_a_state_that_keeps_more_than_its_parents_hold_is_damage():
    root = make_step(0, text_keep=0, text_delta="ab", action_text="c")
    wrong = make_step(1, parent=root, text_keep=4, text_delta="d")
    with pytest.raises(InputError, match="S103"):
        _ = wrong.state_before
    with pytest.raises(InputError, match="S103"):
        list(states_in_order([root, wrong]))


def test_states_in_order_are_what_each_step_says_by_itself():
    chain = texts(("a", "é"), ("b", "c"), ("d", None))
    retry = make_step(3, parent=chain[0], text_keep=3, text_delta="again")
    unknown = make_step(4)
    after = make_step(5, parent=retry, text_keep=8, text_delta="!")
    steps = [*chain, retry, unknown, after]
    assert list(states_in_order(steps)) == [step.state_before for step in steps]
    assert [step.state_before for step in steps[3:]] == ["aéagain", None, "aéagain!"]


def test_states_in_order_may_begin_in_the_middle():
    chain = texts(("a", "b"), ("c", "d"), ("e", None))
    assert list(states_in_order(chain[1:])) == ["abc", "abcde"]


def test_the_action_mask_holds_the_action_and_leaves_out_what_was_inserted():
    step = make_step(
        prompt_delta=[1, 2],
        action_tokens=[3, 4, 5],
        tail_tokens=[6],
        segments=(
            Segment(SegmentKind.PROMPT, 0, 2),
            Segment(SegmentKind.TEXT, 2, 3),
            Segment(SegmentKind.INSERTED, 3, 4),
            Segment(SegmentKind.STOP, 4, 5),
        ),
    )
    assert step.action_mask.tolist() == [False, False, True, False, True, False]


def test_the_action_mask_needs_no_segments_and_no_prompt():
    assert make_step(action_tokens=[3, 4]).action_mask.tolist() == [True, True]
    assert make_step().action_mask is None


def test_a_trajectory_adds_up_its_steps():
    trajectory = make_trajectory(
        [([1], [2, 3]), ([1, 2, 3], [4])], reward=[0.5, 0.25], group_id=["g", "g"]
    )
    assert trajectory.reward == 0.75
    assert trajectory.n_action_tokens == 3
    assert trajectory.group_id == "g"


def test_a_reward_that_nobody_knows_is_not_zero():
    assert make_trajectory([([1], [2])]).reward is None
    assert Trajectory(trajectory_id="t", steps=()).reward is None


def test_ids_become_a_read_only_array():
    ids = ids_array([1, 2**31 - 1])
    assert ids.dtype == np.int32
    assert not ids.flags.writeable


def test_a_place_names_file_trajectory_and_step():
    assert str(make_step(3, trajectory_id="x").place) == "log.jsonl  (trajectory x, step 3)"


def test_a_trajectorys_own_reward_stands_before_the_sum_of_its_steps():
    whole = (RewardPart(name="trajectory", value=1.0, kind="outcome"),)
    trajectory = make_trajectory(
        [([1], [2, 3]), ([1, 2, 3], [4])], reward=[0.25, 0.5], rewards=[None, whole]
    )
    assert trajectory.reward == 1.0
