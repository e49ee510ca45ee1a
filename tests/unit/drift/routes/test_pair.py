"""Route `pair`: two recordings of the same trajectories, each difference told where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory, tiny_tokenizer
from tests.drift_builders import told
from trajkit.drift.findings import DriftKind
from trajkit.drift.routes.pair import NO_PARTNER, Partners, walk_pair
from trajkit.drift.walked import unexplained
from trajkit.errors import InputError
from trajkit.records import Trajectory

IM_START, IM_END, NEWLINE, SEARCH, TOKYO = 1, 2, 201, 298, 462
LETTERS = [85, 71, 67, 84, 69, 74]
P0, A0 = [IM_START, TOKYO, NEWLINE], [SEARCH, IM_END]
BETWEEN = [NEWLINE, IM_START, TOKYO]
P1, A1 = [*P0, *A0, *BETWEEN], [SEARCH, IM_END]
P2 = [*P1, *A1, *BETWEEN]


def walk(mine: Trajectory, *others: Trajectory, wanted: Any = lambda _: True) -> Any:
    (walked,) = walk_pair([mine], tiny_tokenizer(), wanted, unexplained, Partners(iter(others)))
    return walked


def steps(*calls: tuple[Sequence[int], Sequence[int]]) -> Any:
    return make_trajectory(calls)


def test_equal_recordings_hold_the_same_ids():
    mine = steps((P0, A0), (P1, A1), (P2, [TOKYO]))
    walked = walk(mine, steps((P0, A0), (P1, A1), (P2, [TOKYO])))
    assert (walked.checked, walked.found, walked.left_out) == ((0, 1, 2), (), ())


def test_an_action_spelt_otherwise_is_told_once_although_later_prompts_hold_it():
    spelt = [*LETTERS, IM_END]
    p1 = [*P0, *spelt, *BETWEEN]
    p2 = [*p1, *A1, *BETWEEN]
    walked = walk(
        steps((P0, A0), (P1, A1), (P2, [TOKYO])), steps((P0, spelt), (p1, A1), (p2, [TOKYO]))
    )
    (finding,) = told(walked)
    assert (finding.step_index, finding.token_start, finding.action_start) == (0, len(P0), 0)
    assert (finding.recorded_ids, finding.retokenized_ids) == ((SEARCH,), tuple(LETTERS))
    assert (finding.kind, finding.n_action_tokens) == (DriftKind.IDS_ONLY, 1)


def test_a_history_that_only_the_other_rewrites_is_told_at_the_prompt_that_holds_it_first():
    p1 = [*P0, *LETTERS, IM_END, *BETWEEN]
    p2 = [*p1, *A1, *BETWEEN]
    walked = walk(
        steps((P0, A0), (P1, A1), (P2, [TOKYO])), steps((P0, A0), (p1, A1), (p2, [TOKYO]))
    )
    (finding,) = told(walked)
    assert (finding.step_index, finding.token_start, finding.action_start) == (1, len(P0), None)
    assert (finding.recorded_ids, finding.retokenized_ids) == ((SEARCH,), tuple(LETTERS))


def test_a_difference_behind_another_is_told_at_its_own_place():
    other = steps((P0, [*LETTERS, IM_END]), ([*P0, *LETTERS, IM_END, *BETWEEN], [TOKYO, IM_END]))
    findings = told(walk(steps((P0, A0), (P1, A1)), other))
    assert [(f.step_index, f.token_start, f.action_start) for f in findings] == [
        (0, len(P0), 0),
        (1, len(P1), 0),
    ]


def test_steps_and_trajectories_without_a_partner_are_counted():
    mine = steps((P0, A0), (P1, A1))
    walked = walk(mine, steps((P0, A0)))
    assert (walked.checked, walked.left_out) == ((0,), ((NO_PARTNER, 1),))
    assert walk(mine).left_out == ((NO_PARTNER, 2),)
    bare = Trajectory(trajectory_id="t", steps=(make_step(0, action_text="search"),))
    assert walk(mine, bare).left_out == ((NO_PARTNER, 2),)
    assert walk(bare, mine).left_out == ()


def test_partners_are_found_in_any_order_and_the_rest_is_counted():
    named = [make_trajectory([(P0, A0)], name) for name in "abcd"]
    partners = Partners(iter(named))
    assert partners.take("c") is named[2]
    assert partners.take("a") is named[0]
    assert partners.take("x") is None
    assert partners.take("a") is None
    assert partners.n_left() == 2


def test_only_the_steps_asked_for_are_told():
    other = steps((P0, [*LETTERS, IM_END]), ([*P0, *LETTERS, IM_END, *BETWEEN], A1))
    walked = walk(steps((P0, A0), (P1, A1)), other, wanted=lambda index: index == 1)
    assert (walked.checked, walked.found) == ((1,), ())


def test_an_id_of_the_other_that_is_not_in_the_vocabulary_is_an_error():
    with pytest.raises(InputError) as caught:
        walk(steps((P0, A0)), steps((P0, [600])))
    assert caught.value.code == "I304"


ids = st.lists(st.integers(3, 40), max_size=4)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=5), st.data())
def test_recordings_differ_where_their_first_differing_step_does(turns, data):
    calls, prompt = [], [IM_START]
    for delta, action in turns:
        calls.append(([*prompt, *delta], action))
        prompt = [*prompt, *delta, *action]
    at = data.draw(st.integers(0, len(calls) - 1))
    changed = [(p, [*a, TOKYO]) if k == at else (p, a) for k, (p, a) in enumerate(calls)]
    walked = walk(make_trajectory(calls), make_trajectory(changed))
    assert [one.finding.step_index for one in walked.found] == [at]
    assert walk(make_trajectory(calls), make_trajectory(calls)).found == ()
