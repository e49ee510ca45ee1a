"""How a difference becomes a finding: whose it is, where it stands, and that it counts once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builders import make_step, tiny_tokenizer
from trajkit.drift.difference import differences, in_context
from trajkit.drift.findings import Route
from trajkit.drift.walked import (
    SHOWN,
    Covered,
    action_spans,
    alone,
    edges,
    facts_of,
    found_in,
    merged,
    require_actions_known,
    unexplained,
)
from trajkit.errors import InputError
from trajkit.records import ids_array
from trajkit.sequence import SequenceStep

SEARCH, TOKYO, NEWLINE = 298, 462, 201
LETTERS = [85, 71, 67, 84, 69, 74]


def two_steps() -> Any:
    """Return two steps: prompts `[0, 2)` and `[4, 6)`, actions `[2, 4)` and `[6, 8)`."""
    first = make_step(0, prompt_delta=[5, 6], action_tokens=[7, 8])
    second = make_step(1, parent=first, prompt_delta=[9, 10], action_tokens=[11, 12])
    return [
        SequenceStep(step=first, start=0, action_start=2, action_end=4),
        SequenceStep(step=second, start=4, action_start=6, action_end=8),
    ]


def find(recorded: list[int], other: list[int], steps: Any, offset: int = 0, **given: Any) -> Any:
    left = ids_array(recorded)
    parts = differences(
        left,
        ids_array(other),
        tiny_tokenizer(),
        route=Route.JOIN,
        action=action_spans(steps, offset, offset + len(left)),
    )
    return list(found_in(parts, steps, offset, given.pop("cause_of", unexplained), **given))


ALL = [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("at", "step", "action_start"),
    [(0, 0, None), (1, 0, None), (2, 0, 0), (3, 0, 1), (4, 1, None), (6, 1, 0), (7, 1, 1)],
)
def test_a_difference_belongs_to_the_step_whose_own_ids_hold_its_first(at, step, action_start):
    other = [*ALL[:at], TOKYO, *ALL[at + 1 :]]
    (found,) = find(ALL, other, two_steps())
    finding = found.finding
    assert (finding.step_index, finding.token_start) == (step, at)
    assert finding.action_start == action_start
    assert finding.n_action_tokens == (0 if action_start is None else 1)
    assert (finding.byte_start is None) == (action_start is None)


def test_what_is_inserted_between_two_steps_is_the_later_one_s_unless_comparing_ended_there():
    (found,) = find(ALL, [*ALL[:4], TOKYO, *ALL[4:]], two_steps())
    assert (found.finding.step_index, found.finding.action_start) == (1, None)
    (found,) = find(ALL[2:4], [*ALL[2:4], TOKYO], two_steps(), offset=2)
    assert (found.finding.step_index, found.finding.action_start) == (0, 2)
    (found,) = find(ALL, [*ALL[:4], TOKYO, *ALL[4:]], two_steps(), stop=4)
    assert (found.finding.step_index, found.finding.action_start) == (0, 2)


def test_a_region_over_several_actions_covers_each_of_them():
    (found,) = find(ALL, [5, TOKYO, 12], two_steps())
    assert found.covers == (Covered(0, 0, 2), Covered(1, 0, 1))
    assert found.finding.n_action_tokens == 3


def test_bytes_are_counted_from_the_action_s_start_whatever_the_list_begins_with():
    step = make_step(prompt_delta=[TOKYO], action_tokens=[TOKYO, NEWLINE, *LETTERS])
    steps = [alone(step)]
    whole = [TOKYO, TOKYO, NEWLINE]
    (found,) = find([*whole, *LETTERS], [*whole, SEARCH], steps)
    (cut,) = find(LETTERS, [SEARCH], steps, offset=3)
    assert found.finding.byte_start == cut.finding.byte_start == len("Tokyo\n")
    assert found.key == cut.key


def test_long_regions_are_cut_and_told_apart_all_the_same():
    steps = [alone(make_step(prompt_delta=[], action_tokens=[5] * 100))]
    (one,) = find([5] * 100, [7] * 200, steps)
    (two,) = find([5] * 100, [7] * 199 + [8], steps)
    assert len(one.finding.recorded_ids) == len(one.finding.retokenized_ids) == SHOWN
    assert one.finding.evidence == {"cut": True, "n_recorded": 100, "n_other": 200}
    assert one.finding.n_action_tokens == 100
    assert one.finding.retokenized_ids == two.finding.retokenized_ids
    assert one.key != two.key


def test_a_difference_that_two_routes_find_is_one_finding_that_names_both():
    (one,) = find(ALL, [*ALL[:3], TOKYO, *ALL[4:]], two_steps())
    (again,) = find(ALL[3:], [TOKYO, *ALL[4:]], two_steps(), offset=3)
    (other,) = find(ALL, [TOKYO, *ALL[1:]], two_steps())
    first, second = merged([one, again, other])
    assert (first.token_start, second.token_start) == (0, 3)
    assert second.evidence == {"also": ["join"]}
    assert "also" not in first.evidence


def test_the_cause_is_asked_with_what_the_record_says_of_the_step():
    step = make_step(
        prompt_delta=[],
        action_tokens=[7, 8],
        finish_reason="length",
        is_truncated=True,
        action_text="ab",
        action_message_json='{"role": "assistant", "content": "ab"}',
    )
    seen: list[Any] = []

    def cause_of(difference: Any) -> Any:
        seen.append(difference.facts)
        return "NAMED", {"why": 1}

    (found,) = find([7, 8], [7, TOKYO], [alone(step)], cause_of=cause_of)
    assert (found.finding.cause, found.finding.evidence) == ("NAMED", {"why": 1})
    assert seen == [
        {
            "finish_reason": "length",
            "is_truncated": True,
            "text": "ab",
            "message": {"role": "assistant", "content": "ab"},
        }
    ]
    damaged = make_step(action_message_json="{")
    assert facts_of(damaged) == {}


def test_differences_in_context_are_the_same_with_more_around_them():
    tiny = tiny_tokenizer()
    parts = list(
        differences(
            ids_array([7, *LETTERS, 9]),
            ids_array([7, SEARCH, 9]),
            tiny,
            route=Route.RENDER,
            action=((0, 8),),
        )
    )
    lead, trail = ids_array([TOKYO, NEWLINE]), ids_array([5])
    (wide,) = in_context(parts, lead, trail, ((2, 10),))
    assert wide.recorded.region.tolist() == LETTERS
    assert wide.other.region.tolist() == [SEARCH]
    assert wide.recorded.before(2) == b"\n" + tiny.token_bytes(7)
    assert wide.other.behind(2) == tiny.token_bytes(9) + tiny.token_bytes(5)
    assert wide.byte_start == len("Tokyo\n") + len(tiny.token_bytes(7))
    np.testing.assert_array_equal(wide.recorded.ids, [TOKYO, NEWLINE, 7, *LETTERS, 9, 5])
    assert list(in_context([], lead, trail, ())) == []


@pytest.mark.parametrize("wrong", [-1, 512, 2**22, 2**31 - 1])
def test_an_unknown_id_is_refused_with_the_step_that_holds_it(wrong):
    steps = [
        make_step(0, prompt_delta=[1], action_tokens=[298, 2]),
        make_step(1),
        make_step(2, prompt_delta=[1], action_tokens=[298, wrong]),
    ]
    tiny = tiny_tokenizer()
    require_actions_known(steps[:2], tiny)
    require_actions_known([], tiny)
    with pytest.raises(InputError) as caught:
        require_actions_known(steps, tiny)
    assert caught.value.code == "I304"
    assert "(position 1)" in caught.value.message
    assert caught.value.place is not None
    assert caught.value.place.step_index == 2


def test_edges_are_where_ids_end_and_no_more_of_them_than_are_shown():
    assert edges([b"ab", b"", b"c"]) == (2, 2, 3)
    assert len(edges([b"x"] * 999)) == SHOWN
