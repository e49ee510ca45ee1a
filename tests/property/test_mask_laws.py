"""Over random trees of prompts: sequences lose no token, and say of each who wrote it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.sequence import build_sequences, step_spans

few_ids = st.integers(0, 3)  # few, so that prompts share prefixes by chance too
action_kinds = st.sampled_from(
    [SegmentKind.THINK, SegmentKind.TEXT, SegmentKind.INSERTED, SegmentKind.STOP]
)


@st.composite
def trees(draw) -> Any:
    """Return a trajectory whose prompts extend, retry, cut or drop earlier ones."""
    calls: list[tuple[list[int], list[int]]] = []
    for _ in range(draw(st.integers(1, 7))):
        prompt, action = draw(st.sampled_from(calls)) if calls else ([], [])
        whole = prompt + action
        kept = draw(st.sampled_from([len(whole), len(prompt), draw(st.integers(0, len(whole)))]))
        added = draw(st.lists(few_ids, max_size=4))
        calls.append((whole[:kept] + added, draw(st.lists(few_ids, max_size=4))))
    segments = [draw(segmented(step)) for step in make_trajectory(calls).steps]
    tails = [None] * (len(calls) - 1) + [draw(st.none() | st.lists(few_ids, max_size=3))]
    return make_trajectory(calls, segments=segments, tail_tokens=tails)


@st.composite
def segmented(draw, step: Any) -> Any:
    """Return segments over a step's delta and action, some of it unnamed."""
    n_delta = len(step.prompt_delta)
    borders = sorted(draw(st.sets(st.integers(0, n_delta + step.n_action_tokens), max_size=5)))
    found = []
    for start, end in pairwise(borders):
        if draw(st.booleans()):
            kind = SegmentKind.CONTEXT if start < n_delta else draw(action_kinds)
            found.append(Segment(kind, start, end))
    return tuple(found)


def n_sampled(step: Any) -> int:
    """Return the sampled ids of a step that nothing inserted, counted one by one."""
    n_delta = len(step.prompt_delta)
    inserted = {
        position
        for segment in step.segments
        if segment.kind is SegmentKind.INSERTED
        for position in range(segment.start, segment.end)
    }
    return sum(n_delta + index not in inserted for index in range(step.n_action_tokens))


@given(trees())
def test_spans_partition_the_tokens_of_each_sequence(trajectory):
    for sequence in build_sequences(trajectory):
        at = 0
        for span in sequence.spans:
            assert span.start == at
            assert span.end > span.start
            at = span.end
        assert at == len(sequence.token_ids)


@given(trees())
def test_the_mask_counts_every_sampled_id_once_and_no_inserted_one(trajectory):
    sequences = build_sequences(trajectory)
    masked = sum(int(sequence.action_mask.sum()) for sequence in sequences)
    assert masked == sum(n_sampled(step) for step in trajectory.steps)


@given(trees())
def test_each_action_stands_in_exactly_one_sequence_behind_its_whole_prompt(trajectory):
    owned = []
    for sequence in build_sequences(trajectory):
        for place in sequence.steps:
            owned.append(place.step.step_index)
            assert place.step.prompt_ids is not None
            assert place.step.action_tokens is not None
            before = sequence.token_ids[: place.action_start]
            action = sequence.token_ids[place.action_start : place.action_end]
            assert before.tolist() == place.step.prompt_ids.tolist()
            assert action.tolist() == place.step.action_tokens.tolist()
    assert sorted(owned) == list(range(len(trajectory.steps)))


@given(trees())
def test_the_mask_of_a_sequence_is_the_mask_of_its_steps(trajectory):
    for sequence in build_sequences(trajectory):
        for place in sequence.steps:
            assert place.step.action_mask is not None
            n_own = place.action_end - place.start
            assert (
                sequence.action_mask[place.start : place.action_end].tolist()
                == place.step.action_mask[:n_own].tolist()
            )


@given(trees())
def test_a_step_continues_a_sequence_only_where_it_keeps_all_of_the_step_before(trajectory):
    for sequence in build_sequences(trajectory):
        for earlier, later in pairwise(sequence.steps):
            assert later.step.parent is earlier.step
            assert later.step.prompt_keep == earlier.step.sequence_len == earlier.action_end


@given(trees())
def test_segments_of_a_step_cover_it_and_stop_at_the_actions_borders(trajectory):
    for step in trajectory.steps:
        n_delta = len(step.prompt_delta)
        n_tail = 0 if step.tail_tokens is None else len(step.tail_tokens)
        covered = np.zeros(n_delta + step.n_action_tokens + n_tail, dtype=int)
        for segment in step_spans(step):
            covered[segment.start : segment.end] += 1
            for border in (n_delta, n_delta + step.n_action_tokens):
                assert not segment.start < border < segment.end
        assert covered.tolist() == [1] * len(covered)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_only_the_action_is_trained_whatever_its_size(n_prompt, n_action, n_tail):
    step = make_step(
        prompt_delta=[1] * n_prompt, action_tokens=[2] * n_action, tail_tokens=[3] * n_tail
    )
    (sequence,) = build_sequences(Trajectory(trajectory_id="t", steps=(step,)))
    assert (sequence.token_ids == 2).tolist() == sequence.action_mask.tolist()
