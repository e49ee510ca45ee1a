from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.builders import make_step, make_trajectory
from tests.tokenizer_builders import TINY
from trajkit.drift.findings import DriftKind, Route
from trajkit.drift.routes.chain import check_chain, is_chained
from trajkit.errors import InputError
from trajkit.records import PromptSource
from trajkit.tokenizer import load_tokenizer

P0 = list(range(100, 120))
A0 = [*range(200, 210), 2]
O1 = [4, 1, *range(300, 315), 2, 4, 1, 5]
A1 = [*range(400, 412), 2]
O2 = [4, 1, *range(500, 515), 2, 4, 1, 5]
S0 = [*P0, *A0]
S1 = [*S0, *O1, *A1]


def breaks(*calls, tokenizer=None) -> Any:
    """Return the findings of the chain over whole prompts and actions."""
    steps = make_trajectory(calls).steps
    found = [
        check_chain(step, step.parent or previous, tokenizer) for previous, step in pairwise(steps)
    ]
    return [finding for finding in found if finding is not None]


def test_a_trajectory_that_only_appends_holds():
    assert breaks((P0, A0), (S0 + O1, A1), (S1 + O2, [7])) == []


def test_nothing_added_and_nothing_sampled_hold_too():
    assert breaks((P0, A0), (S0, A1)) == []
    assert breaks((P0, []), (P0, A1)) == []


def test_a_changed_id_in_the_prompt_is_found_where_it_stands():
    changed = [*P0[:7], 9, *P0[8:]]
    (finding,) = breaks((P0, A0), ([*changed, *A0, *O1], A1))
    assert finding.kind is DriftKind.PREFIX
    assert finding.route is Route.CHAIN
    assert finding.step_index == 0
    assert (finding.token_start, finding.action_start, finding.byte_start) == (7, None, None)
    assert finding.recorded_ids == (P0[7],)
    assert finding.retokenized_ids == (9,)
    assert finding.n_action_tokens == 0
    assert finding.evidence == {
        "next_step_index": 1,
        "n_kept": 7,
        "n_recorded": 1,
        "n_other": 1,
        "cut": False,
        "next_ids": P0[8:16],
        "next_text": None,
    }
    assert finding.recorded_text is None
    assert finding.retokenized_text is None


def test_a_changed_id_in_the_action_counts_from_the_actions_start():
    changed = [*A0[:3], 9, 10, *A0[4:]]
    (finding,) = breaks((P0, A0), ([*P0, *changed, *O1], A1))
    assert (finding.token_start, finding.action_start) == (len(P0) + 3, 3)
    assert finding.recorded_ids == (A0[3],)
    assert finding.retokenized_ids == (9, 10)
    assert finding.n_action_tokens == 1


def test_a_dropped_end_of_turn_id_is_lost_and_nothing_stands_for_it():
    (finding,) = breaks((P0, A0), ([*P0, *A0[:-1], *O1], A1))
    assert (finding.token_start, finding.action_start) == (len(S0) - 1, len(A0) - 1)
    assert finding.recorded_ids == (2,)
    assert finding.retokenized_ids == ()
    assert finding.evidence["next_ids"] == O1[:8]
    assert finding.n_action_tokens == 1


def test_inserted_ids_are_found_between_what_stayed():
    (finding,) = breaks((P0, A0), ([*P0, 31, 32, 33, *A0, *O1], A1))
    assert (finding.token_start, finding.action_start) == (len(P0), 0)
    assert finding.recorded_ids == ()
    assert finding.retokenized_ids == (31, 32, 33)
    assert finding.n_action_tokens == 0


def test_a_word_spelt_otherwise_just_before_the_end_is_no_lost_action():
    action = [*A0[:-3], 39, 40, 2]
    (finding,) = breaks((P0, action), ([*P0, *A0[:-3], 72, 17, 18, 2, *O1], A1))
    assert finding.recorded_ids == (39, 40)
    assert finding.retokenized_ids == (72, 17, 18)


def test_reasoning_that_a_template_removes_is_a_break_in_the_action():
    (finding,) = breaks((P0, A0), ([*P0, *A0[6:], *O1], A1))
    assert (finding.action_start, finding.n_action_tokens) == (0, 6)
    assert finding.recorded_ids == tuple(A0[:6])
    assert finding.retokenized_ids == ()


def test_a_window_is_found_where_it_leaves_off():
    window = [*P0, *O1[6:], *A1, *O2]
    (finding,) = breaks((P0, A0), (S0 + O1, A1), (window, [7]))
    assert finding.step_index == 1
    assert (finding.token_start, finding.action_start) == (len(P0), None)
    assert finding.recorded_ids == (*A0, *O1[:6])
    assert finding.retokenized_ids == ()
    assert finding.evidence["next_step_index"] == 2
    assert finding.n_action_tokens == 0  # the action of step 1 itself is kept


def test_a_prompt_that_shares_nothing_is_found_at_token_0():
    (finding,) = breaks((P0, A0), ([7, 8, 9], A1))
    assert (finding.token_start, finding.action_start) == (0, None)
    assert finding.recorded_ids == tuple(S0)
    assert finding.retokenized_ids == ()
    assert finding.evidence["next_ids"] == [7, 8, 9]
    assert finding.n_action_tokens == len(A0)


def test_the_same_prompt_asked_again_is_a_retry():
    assert breaks((P0, A0), (P0, A1)) == []
    assert breaks((P0, A0), (P0, A1), (P0, [7])) == []
    # also when other steps lie between
    assert breaks((P0, A0), (S0 + O1, A1), (P0, [7]), (S0 + O1, [8])) == []


def test_a_branch_from_an_earlier_step_holds():
    calls = [(P0, A0), (S0 + O1, A1), (S1 + O2, [7])]
    assert breaks(*calls, ([*S0, 60, 61, 62], [8])) == []
    # the new observation begins as the abandoned one did
    assert breaks(*calls, ([*S0, *O1[:4], 60, 61], [8])) == []
    assert breaks(*calls, ([*S0, *O1[:4], 60, 61], [8]), ([*S0, *O1[:4], 60, 61, 8, 9], [6])) == []


def test_ids_are_searched_for_as_ids_and_not_as_bytes():
    # the bytes of the abandoned action 1 stand in those of 256, 0, one place off
    assert breaks(([7, 8], [9]), ([7, 8, 9, 5], [1]), ([7, 8, 9, 256, 0], [3])) == []


def test_an_action_that_was_replaced_is_a_break_although_the_step_before_it_is_held():
    (finding,) = breaks((P0, A0), (S0 + O1, A1), ([*S0, *O1, *A1[:5], 60, 61, 62], [7]))
    assert (finding.step_index, finding.action_start) == (1, 5)
    (finding,) = breaks((P0, A0), (S0 + O1, A1), ([*S0, *O1, 60, 61, 62], [7]))
    assert (finding.step_index, finding.action_start) == (1, 0)


def test_ids_of_the_template_alone_are_no_agreement():
    template = [2, 4, 1, 5]
    other = [*P0[:10], 61, 62, *template, 63, *template, *A0, *O1]
    (finding,) = breaks(([*P0[:10], 51, *template, *P0[10:]], A0), (other, A1))
    assert finding.recorded_ids == (51, *template, *P0[10:])
    assert finding.retokenized_ids == (61, 62, *template, 63, *template)


def test_an_observation_that_was_edited_is_no_branch_because_its_action_comes_back():
    edited = [*O1[:9], 60, *O1[10:]]
    (finding,) = breaks((P0, A0), (S0 + O1, A1), ([*S0, *edited, *A1, *O2], [7]))
    assert finding.step_index == 1
    assert finding.token_start == len(S0) + 9
    assert finding.action_start is None
    assert (finding.recorded_ids, finding.retokenized_ids) == ((O1[9],), (60,))


def test_a_prompt_that_ends_inside_an_action_lost_the_rest_of_it():
    (finding,) = breaks((P0, A0), ([*P0, *A0[:4]], A1))
    assert finding.action_start == 4
    assert finding.recorded_ids == tuple(A0[4:])
    assert finding.evidence["next_ids"] == []


def test_a_break_is_found_once_and_what_grows_from_it_holds():
    broken = [*P0[:5], 9, *P0[6:], *A0, *O1]
    findings = breaks((P0, A0), (broken, A1), ([*broken, *A1, *O2], [7]))
    assert [f.step_index for f in findings] == [0]


def test_a_kept_prefix_that_is_shorter_than_it_could_be_is_no_other_finding():
    first = make_step(0, prompt_delta=P0, action_tokens=A0)
    later = make_step(
        1, parent=first, prompt_keep=4, prompt_delta=[*P0[4:10], 9, *P0[11:], *A0], action_tokens=A1
    )
    finding = check_chain(later, first, None)
    assert finding is not None
    assert (finding.token_start, finding.recorded_ids) == (10, (P0[10],))
    assert finding.retokenized_ids == (9,)


def test_long_regions_are_cut_and_say_so():
    long = list(range(1000, 1100))
    (finding,) = breaks(([1], [*long, 2]), ([1, *range(2000, 2100), 2, 3], [4]))
    assert len(finding.recorded_ids) == 64
    assert finding.evidence["cut"] is True
    assert finding.n_action_tokens == finding.evidence["n_recorded"] >= 100


def test_with_a_tokenizer_ids_have_texts_and_bytes():
    tiny = load_tokenizer(TINY)
    search, tokyo, space = 298, 462, 223
    (finding,) = breaks(
        ([1, 5], [tokyo, space, search, 2]),
        ([1, 5, tokyo, space, 0, 2, 201, 1], [7]),
        tokenizer=tiny,
    )
    assert finding.recorded_text == "search"
    assert finding.retokenized_text == "<|endoftext|>"
    assert finding.byte_start == len("Tokyo ")
    assert finding.evidence["next_text"] == "<|im_end|>\n<|im_start|>"


def test_an_id_that_the_tokenizer_does_not_know_is_named_with_its_step():
    tiny = load_tokenizer(TINY)
    with pytest.raises(InputError) as caught:
        breaks(([1, 600], [2]), ([1, 5, 2], [3]), tokenizer=tiny)
    assert caught.value.code == "I304"
    assert caught.value.place is not None
    assert caught.value.place.step_index == 0


def test_only_recorded_prompts_behind_the_first_are_judged():
    assert is_chained(make_step(1, prompt_delta=[1]))
    assert not is_chained(make_step(0, prompt_delta=[1]))
    assert not is_chained(make_step(1))
    assert not is_chained(make_step(1, prompt_delta=[1], prompt_source=PromptSource.RENDERED))


class Unread(np.ndarray):
    """Ids whose number may be asked, and nothing else."""

    def __array_ufunc__(self, *_, **__):
        raise AssertionError("ids were looked at")

    __array_function__ = __getitem__ = tobytes = tolist = __array_ufunc__


def test_a_step_that_holds_costs_no_look_at_any_id():
    step = make_step(0, prompt_delta=[1], action_tokens=[2])
    unread = np.zeros(1000, dtype=np.int32).view(Unread)
    for index in range(1, 100):
        grown = replace(
            make_step(index, parent=step, prompt_delta=[0] * 1000, action_tokens=[2]),
            prompt_delta=unread,
            action_tokens=unread,
        )
        assert check_chain(grown, step, None) is None
        step = grown
    with pytest.raises(AssertionError, match="ids were looked at"):
        check_chain(replace(step, prompt_keep=5), step.parent, None)
