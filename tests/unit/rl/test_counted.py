"""Which tokens a training policy counts, step by step."""

from __future__ import annotations

import pytest

from tests.builders import make_trajectory
from trajkit.records import Segment, SegmentKind
from trajkit.rl.counted import ALL_ACTIONS, counted_tokens
from trajkit.sequence import build_sequences
from trajkit.training import TRAIN_POLICIES, loss_mask, policy_named

CALLS = [([1, 2], [5, 6, 7]), ([1, 2, 5, 6, 7, 3], [8, 9]), ([1, 4], [8])]
SEGMENTS = [
    (Segment(SegmentKind.THINK, 2, 4), Segment(SegmentKind.TOOL_CALL, 4, 5)),
    (
        Segment(SegmentKind.OBSERVATION, 0, 1),
        Segment(SegmentKind.THINK, 1, 2),
        Segment(SegmentKind.ANSWER, 2, 3),
        Segment(SegmentKind.SCAFFOLD, 3, 4),
        Segment(SegmentKind.OBSERVATION, 4, 5),
    ),
    (Segment(SegmentKind.ANSWER, 1, 2),),
]
MADE = make_trajectory(
    CALLS,
    segments=SEGMENTS,
    reward=[None, 0.5, 1.0],
    tail_tokens=[None, [30, 31], None],
)
"""Two sequences: steps 0 and 1 with a tail behind, and step 2, which keeps one id."""


def plain(name: str, of: str = "action") -> dict[int, list[int]]:
    counted = counted_tokens(MADE, policy_named(name))
    return {index: getattr(one, of).astype(int).tolist() for index, one in counted.items()}


def test_the_default_needs_no_mask() -> None:
    assert policy_named("action") is ALL_ACTIONS
    assert counted_tokens(MADE, ALL_ACTIONS) == {}


def test_each_policy_by_hand() -> None:
    assert plain("last-step") == {0: [0, 0, 0], 1: [0, 0], 2: [1]}
    assert plain("no-think") == {0: [0, 0, 1], 1: [0, 1], 2: [1]}
    assert plain("rewarded") == {0: [0, 0, 0], 1: [1, 1], 2: [1]}
    assert plain("answer") == {0: [0, 0, 0], 1: [0, 0], 2: [1]}
    assert plain("observation") == {0: [0, 0, 0], 1: [0, 0], 2: [0]}
    assert plain("all") == {0: [1, 1, 1], 1: [1, 1], 2: [1]}


def test_context_is_delta_and_tail() -> None:
    assert plain("observation", "context") == {0: [0, 0], 1: [1, 0, 1], 2: [0]}
    assert plain("all", "context") == {0: [1, 1], 1: [1, 1, 1], 2: [1]}
    assert plain("last-step", "context") == {0: [0, 0], 1: [0, 0, 0], 2: [0]}


def test_a_tail_that_a_later_prompt_passes_by_does_not_count() -> None:
    calls = [([1], [5]), ([1, 5, 2], [6])]
    made = make_trajectory(calls, tail_tokens=[[9, 9], None])
    counted = counted_tokens(made, policy_named("all"))
    assert counted[0].context.tolist() == [True, False, False]
    assert counted[1].context.tolist() == [True]


@pytest.mark.parametrize("policy", TRAIN_POLICIES[1:], ids=lambda policy: policy.name)
def test_masks_are_those_of_whole_sequences(policy):
    whole = sum(int(loss_mask(one, policy).sum()) for one in build_sequences(MADE))
    counted = counted_tokens(MADE, policy).values()
    assert sum(int(one.action.sum() + one.context.sum()) for one in counted) == whole
