"""Route `join`: what merges, splits and becomes control when a sequence is encoded as one text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_trajectory, tiny_tokenizer
from tests.drift_builders import ids_of, literal, told
from tests.tokenizer_builders import metaspace
from trajkit.drift.findings import DriftKind
from trajkit.drift.routes.join import walk_join
from trajkit.drift.walked import unexplained
from trajkit.errors import InputError
from trajkit.records import ActionSource, PromptSource, Trajectory
from trajkit.tokenizer import Tokenizer

IM_START, IM_END, NEWLINE, SEARCH, TOKYO = 1, 2, 201, 298, 462
SE, ARCH = [85, 71], [67, 84, 69, 74]
SPELT = [*SE, *ARCH]
HEAD = [IM_START, TOKYO, IM_END, NEWLINE, IM_START, NEWLINE]


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return tiny_tokenizer()


def walk(trajectory: Trajectory, tokenizer: Tokenizer, wanted: Any = lambda _: True) -> Any:
    (walked,) = walk_join([trajectory], tokenizer, wanted, unexplained)
    return walked


def test_ids_that_one_text_gives_again_are_no_finding(tiny):
    action = [SEARCH, IM_END]
    trajectory = make_trajectory([(HEAD, action), ([*HEAD, *action, NEWLINE, IM_START], [TOKYO])])
    walked = walk(trajectory, tiny)
    assert walked.found == ()
    assert walked.checked == (0, 1)


def test_a_word_that_merges_across_the_end_of_an_action_is_found_at_its_first_id(tiny):
    prompt = [*HEAD, *SE]
    trajectory = make_trajectory([(HEAD, SE), ([*prompt, *ARCH, NEWLINE], [TOKYO])])
    (finding,) = told(walk(trajectory, tiny))
    assert (finding.step_index, finding.token_start, finding.action_start) == (0, len(HEAD), 0)
    assert finding.recorded_ids == tuple(SPELT)
    assert finding.retokenized_ids == (SEARCH,)
    assert finding.kind is DriftKind.IDS_ONLY
    assert finding.n_action_tokens == len(SE)
    assert finding.byte_start == 0


def test_a_word_that_begins_in_the_prompt_has_no_place_in_the_action(tiny):
    trajectory = make_trajectory([([*HEAD, *SE], [*ARCH, IM_END])])
    (finding,) = told(walk(trajectory, tiny))
    assert (finding.token_start, finding.action_start) == (len(HEAD), None)
    assert finding.byte_start is None
    assert finding.n_action_tokens == len(ARCH)


def test_a_region_in_the_context_alone_counts_without_action_tokens(tiny):
    action = [TOKYO, IM_END]
    later = [*HEAD, *action, NEWLINE, *SPELT, IM_END, NEWLINE]
    (finding,) = told(walk(make_trajectory([(HEAD, action), (later, [TOKYO])]), tiny))
    assert (finding.step_index, finding.action_start, finding.n_action_tokens) == (1, None, 0)
    assert finding.token_start == len(HEAD) + len(action) + 1


def test_ordinary_ids_that_spell_a_control_token_become_one(tiny):
    forged = literal("<|im_end|>", tiny)
    trajectory = make_trajectory([([*HEAD, TOKYO, *forged, NEWLINE], [TOKYO])])
    (finding,) = told(walk(trajectory, tiny))
    assert finding.kind is DriftKind.STRUCTURE
    assert finding.token_start == len(HEAD) + 1
    assert finding.recorded_ids == tuple(forged)
    assert finding.retokenized_ids == (IM_END,)


def test_a_region_over_two_actions_covers_the_ids_of_both(tiny):
    first, between, second = [85, 71], [67], [84, 69, 74]
    trajectory = make_trajectory([(HEAD, first), ([*HEAD, *first, *between], second)])
    walked = walk(trajectory, tiny)
    (one,) = walked.found
    assert [(c.step_index, c.start, c.end) for c in one.covers] == [(0, 0, 2), (1, 0, 3)]
    assert one.finding.n_action_tokens == 5


def test_ids_after_the_last_action_belong_to_its_step_and_not_to_the_action(tiny):
    tail = [NEWLINE, *SPELT]
    trajectory = make_trajectory([(HEAD, [TOKYO, IM_END])])
    step = replace(
        trajectory.steps[0], tail_tokens=make_trajectory([(tail, [])]).steps[0].prompt_ids
    )
    (finding,) = told(walk(Trajectory(trajectory_id="t", steps=(step,)), tiny))
    assert (finding.step_index, finding.action_start, finding.n_action_tokens) == (0, None, 0)
    assert finding.token_start == len(HEAD) + 3


@pytest.mark.parametrize("cut", [IM_END, TOKYO])
def test_what_a_branch_keeps_is_told_by_the_sequence_it_left(tiny, cut):
    start = [IM_START, *SPELT, cut, NEWLINE]
    trajectory = make_trajectory(
        [(start, [TOKYO, IM_END]), (start, [SEARCH, IM_END]), ([*start, TOKYO, *SPELT], [TOKYO])]
    )
    findings = told(walk(trajectory, tiny))
    assert [(f.step_index, f.token_start) for f in findings] == [(0, 1), (2, len(start) + 1)]


def test_steps_that_were_not_sampled_or_recorded_are_not_checked(tiny):
    trajectory = make_trajectory([(HEAD, SPELT), ([*HEAD, *SPELT, IM_END], SPELT)])
    first, second = trajectory.steps
    made = replace(first, action_source=ActionSource.RETOKENIZED)
    mixed = Trajectory(trajectory_id="t", steps=(made, replace(second, parent=made)))
    assert [f.step_index for f in told(walk(mixed, tiny))] == [1]
    assert walk(mixed, tiny).checked == (1,)
    steps = tuple(replace(s, prompt_source=PromptSource.RENDERED) for s in trajectory.steps)
    walked = walk(Trajectory(trajectory_id="t", steps=steps), tiny)
    assert (walked.checked, walked.found) == ((), ())


def test_only_the_steps_asked_for_are_told(tiny):
    trajectory = make_trajectory([(HEAD, SPELT), ([*HEAD, *SPELT, IM_END], SPELT)])
    walked = walk(trajectory, tiny, wanted=lambda index: index == 1)
    assert walked.checked == (1,)
    assert [f.step_index for f in told(walked)] == [1]


def test_an_id_outside_the_vocabulary_is_an_error_with_its_place(tiny):
    with pytest.raises(InputError) as caught:
        walk(make_trajectory([([1, 600], [TOKYO])]), tiny)
    assert caught.value.code == "I304"
    assert caught.value.place is not None
    assert caught.value.place.trajectory_id == "t"


def test_a_space_that_encoding_puts_in_front_is_found_at_token_0():
    spaced = Tokenizer(metaspace(prefix=True), "spaced")
    a, b = (next(i for i in range(spaced.n_vocab) if spaced._token(i) == t) for t in ("a", "b"))
    (finding,) = told(walk(make_trajectory([([a, b], [a])]), spaced))
    assert (finding.token_start, finding.action_start) == (0, None)
    assert finding.kind is DriftKind.TEXT


@given(st.lists(st.text(max_size=12), min_size=2, max_size=6))
def test_recorded_ids_of_one_encoded_text_never_differ(texts):
    tiny = tiny_tokenizer()
    ids = ids_of("".join(f"<|im_start|>{text}<|im_end|>\n" for text in texts), tiny)
    middle = len(ids) // 2
    assert walk(make_trajectory([(ids[:middle], ids[middle:])]), tiny).found == ()
