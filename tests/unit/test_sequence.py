from typing import Any

import numpy as np
import pytest

from tests.builders import make_step, make_trajectory
from trajkit.errors import InputError
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.sequence import build_sequences, step_spans


def spans(sequence) -> Any:
    return [(s.start, s.end, s.kind.value, s.step_index, s.is_action) for s in sequence.spans]


def owned(sequence) -> Any:
    return [place.step.step_index for place in sequence.steps]


def test_an_append_only_trajectory_is_one_sequence():
    trajectory = make_trajectory(
        [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([1, 2, 3, 4, 5, 6, 7, 8], [9])]
    )
    (sequence,) = build_sequences(trajectory)
    assert sequence.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert spans(sequence) == [
        (0, 2, "context", 0, False),
        (2, 4, "text", 0, True),
        (4, 5, "context", 1, False),
        (5, 6, "text", 1, True),
        (6, 8, "context", 2, False),
        (8, 9, "text", 2, True),
    ]
    sampled = np.flatnonzero(sequence.action_mask)
    assert sampled.tolist() == [2, 3, 5, 8]
    assert [(p.start, p.action_start, p.action_end) for p in sequence.steps] == [
        (0, 2, 4),
        (4, 5, 6),
        (6, 8, 9),
    ]
    assert not sequence.token_ids.flags.writeable


def test_a_window_begins_a_sequence_with_the_kept_ids_as_context():
    trajectory = make_trajectory([([1, 2, 3], [4]), ([1, 2, 9], [5])])
    first, second = build_sequences(trajectory)
    assert first.token_ids.tolist() == [1, 2, 3, 4]
    assert second.token_ids.tolist() == [1, 2, 9, 5]
    assert spans(second) == [
        (0, 2, "context", None, False),
        (2, 3, "context", 1, False),
        (3, 4, "text", 1, True),
    ]
    assert owned(second) == [1]


def test_a_retry_is_a_sequence_of_its_own_and_the_first_try_keeps_its_place():
    trajectory = make_trajectory([([1, 2], [3]), ([1, 2], [4]), ([1, 2, 4, 5], [6])])
    first, second = build_sequences(trajectory)
    assert first.token_ids.tolist() == [1, 2, 3]
    assert second.token_ids.tolist() == [1, 2, 4, 5, 6]
    assert [owned(first), owned(second)] == [[0], [1, 2]]
    assert second.action_mask.tolist() == [False, False, True, False, True]


def test_of_two_steps_that_extend_the_same_one_the_first_goes_on_and_the_second_begins_anew():
    trajectory = make_trajectory([([1], [2]), ([1, 2, 3], [4]), ([1, 2, 5], [6])])
    first, second = build_sequences(trajectory)
    assert first.token_ids.tolist() == [1, 2, 3, 4]
    assert second.token_ids.tolist() == [1, 2, 5, 6]
    assert owned(second) == [2]


def test_a_prompt_that_shares_nothing_is_a_sequence_without_kept_ids():
    trajectory = make_trajectory([([1, 2], [3]), ([7, 8], [9])])
    _, second = build_sequences(trajectory)
    assert spans(second) == [(0, 2, "context", 1, False), (2, 3, "text", 1, True)]


def test_inserted_ids_stand_in_the_action_and_are_no_action():
    segments = (
        Segment(SegmentKind.PROMPT, 0, 2),
        Segment(SegmentKind.THINK, 2, 3),
        Segment(SegmentKind.INSERTED, 3, 5),
        Segment(SegmentKind.STOP, 5, 6),
    )
    step = make_step(prompt_delta=[1, 2], action_tokens=[3, 4, 5, 6], segments=segments)
    (sequence,) = build_sequences(Trajectory(trajectory_id="t", steps=(step,)))
    assert spans(sequence) == [
        (0, 2, "prompt", 0, False),
        (2, 3, "think", 0, True),
        (3, 5, "inserted", 0, False),
        (5, 6, "stop", 0, True),
    ]
    assert sequence.action_mask.tolist() == [False, False, True, False, False, True]
    assert sequence.action_mask.tolist() == step.action_mask.tolist()


def test_the_tail_stands_behind_the_last_action_and_nowhere_else():
    first = make_step(0, prompt_delta=[1], action_tokens=[2])
    last = make_step(
        1,
        parent=first,
        prompt_delta=[3],
        action_tokens=[4],
        tail_tokens=[5, 6],
        segments=(Segment(SegmentKind.OBSERVATION, 3, 4),),
    )
    (sequence,) = build_sequences(Trajectory(trajectory_id="t", steps=(first, last)))
    assert sequence.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert spans(sequence)[2:] == [
        (2, 3, "context", 1, False),
        (3, 4, "text", 1, True),
        (4, 5, "context", 1, False),
        (5, 6, "observation", 1, False),
    ]


def test_a_tail_that_a_later_prompt_contradicts_is_not_put_between():
    first = make_step(0, prompt_delta=[1], action_tokens=[2], tail_tokens=[9])
    last = make_step(1, parent=first, prompt_delta=[3], action_tokens=[4])
    (sequence,) = build_sequences(Trajectory(trajectory_id="t", steps=(first, last)))
    assert sequence.token_ids.tolist() == [1, 2, 3, 4]
    assert [span[:2] for span in spans(sequence)] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_segment_that_reaches_into_the_action_is_cut_at_its_border():
    step = make_step(
        prompt_delta=[1, 2], action_tokens=[3, 4], segments=(Segment(SegmentKind.CONTEXT, 0, 3),)
    )
    assert [(s.kind.value, s.start, s.end) for s in step_spans(step)] == [
        ("context", 0, 2),
        ("context", 2, 3),
        ("text", 3, 4),
    ]
    (sequence,) = build_sequences(Trajectory(trajectory_id="t", steps=(step,)))
    assert sequence.action_mask.sum() == 2


@pytest.mark.parametrize(
    "bad",
    [
        [Segment(SegmentKind.PROMPT, 0, 2), Segment(SegmentKind.TEXT, 1, 3)],
        [Segment(SegmentKind.PROMPT, 0, 9)],
        [Segment(SegmentKind.PROMPT, -1, 1)],
        [Segment(SegmentKind.PROMPT, 2, 1)],
    ],
)
def test_segments_that_overlap_or_leave_the_tokens_are_damage(bad):
    step = make_step(prompt_delta=[1, 2], action_tokens=[3], segments=tuple(bad))
    with pytest.raises(InputError) as caught:
        list(step_spans(step))
    assert caught.value.code == "S103"
    assert caught.value.place is not None
    assert caught.value.place.step_index == 0


def test_steps_without_prompt_ids_are_left_out():
    first = make_step(0, action_tokens=[5])
    second = make_step(1, prompt_delta=[1], action_tokens=[2])
    (sequence,) = build_sequences(Trajectory(trajectory_id="t", steps=(first, second)))
    assert sequence.token_ids.tolist() == [1, 2]
    assert build_sequences(Trajectory(trajectory_id="t", steps=(first,))) == ()


def test_a_step_that_sampled_nothing_owns_an_empty_action():
    (sequence,) = build_sequences(make_trajectory([([1, 2], []), ([1, 2, 3], [4])]))
    assert [(p.action_start, p.action_end) for p in sequence.steps] == [(2, 2), (3, 4)]
    assert sequence.action_mask.tolist() == [False, False, False, True]
