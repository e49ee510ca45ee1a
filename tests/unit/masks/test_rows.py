"""Steps and records as what is judged: one sequence, one mask, who wrote what."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import make_record, make_step, make_trajectory, tiny_tokenizer
from tests.mask_builders import bits, encode, glm
from trajkit.formats.token_row import read_row
from trajkit.masks.marks import marks_of
from trajkit.masks.rows import MaskedRow, Writer, row_of_record, rows_of_trajectory
from trajkit.records import ActionSource, MaskRun, Trajectory
from trajkit.training import policy_named


def rows(trajectory, policy=None) -> list[MaskedRow]:
    return list(rows_of_trajectory(trajectory, policy, None, None))


def row(value) -> MaskedRow:
    record = make_record(value)
    return row_of_record(read_row(record), record, "r", marks_of(tiny_tokenizer()))


def test_without_a_claim_the_actions_are_the_mask():
    (one,) = rows(make_trajectory([([1, 5], [6, 7]), ([1, 5, 6, 7, 8], [9])]))
    assert not one.is_claimed
    assert bits(one.trained) == "001101"
    assert one.writer.tolist() == [0, 0, 1, 1, 0, 1]
    assert bits(one.sampled) == "001101"
    assert one.runs == ((2, 4), (5, 6))
    assert [part.step_index for part in one.parts] == [0, 1]
    assert [one.part_at(token).step_index for token in (0, 3, 4, 5)] == [0, 0, 1, 1]


def test_the_claim_of_one_step_stands_beside_the_actions_of_another():
    masks = [(MaskRun(0, 1, 1.0), MaskRun(1, 3, 0.0), MaskRun(3, 4, 0.5)), None]
    calls = [([1, 5], [6, 7]), ([1, 5, 6, 7, 8], [9])]
    (one,) = rows(make_trajectory(calls, source_mask=masks))
    assert one.is_claimed
    assert one.weights.tolist() == [1, 0, 0, 0.5, 0, 1]
    (chosen,) = rows(make_trajectory(calls, source_mask=masks), policy_named("last-step"))
    assert bits(chosen.trained) == "000001"


def test_runs_of_neighbouring_steps_are_cut_where_a_step_begins():
    first = make_step(0, is_terminal=False, prompt_delta=[5], action_tokens=[6])
    second = make_step(1, parent=first, prompt_delta=[], action_tokens=[7])
    (one,) = rows(Trajectory(trajectory_id="t", steps=(first, second)))
    assert one.runs == ((1, 2), (2, 3))


def test_a_branch_begins_with_ids_that_another_sequence_trains():
    first = make_step(0, is_terminal=False, prompt_delta=[5, 6], action_tokens=[7])
    retry = make_step(1, parent=first, prompt_keep=2, prompt_delta=[8], action_tokens=[9])
    found = rows(Trajectory(trajectory_id="t", steps=(first, retry)))
    assert [bits(one.trained) for one in found] == ["001", "0001"]
    assert found[1].parts[0].start == 2


@pytest.mark.parametrize(
    ("source", "writer", "sampled"),
    [
        (ActionSource.SAMPLED, [0, 1], "01"),
        (ActionSource.RETOKENIZED, [0, 1], "00"),
        (ActionSource.UNKNOWN, [-1, -1], "00"),
    ],
)
def test_who_wrote_a_token_is_as_known_as_the_record_says(source, writer, sampled):
    step = make_step(prompt_delta=[5], action_tokens=[6], action_source=source)
    (one,) = rows(Trajectory(trajectory_id="t", steps=(step,)))
    assert one.writer.tolist() == writer
    assert bits(one.sampled) == sampled


def test_a_run_beyond_a_step_is_told():
    step = make_step(prompt_delta=[5], action_tokens=[6], source_mask=(MaskRun(1, 4, 1.0),))
    (one,) = rows(Trajectory(trajectory_id="t", steps=(step,)))
    assert "[1, 4) over 2 tokens" in one.misfit[0]
    assert bits(one.trained) == "01"


def test_of_a_row_nothing_is_known_but_its_mask():
    one = row({"input_ids": [5, 6, 2], "loss_mask": [0, 1, 1], "finish_reason": "length"})
    assert one.is_claimed
    assert set(one.writer.tolist()) == {Writer.UNKNOWN}
    assert not one.sampled.any()
    assert one.is_cut((1, 3)) is True


def test_what_a_row_says_of_its_end_is_about_its_last_run():
    value = {"input_ids": [5, 6, 5, 6], "loss_mask": [0, 1, 0, 1], "finish_reason": "stop"}
    one = row(value)
    assert (one.is_cut(one.runs[0]), one.is_cut(one.runs[1])) == (None, False)


@pytest.mark.parametrize(
    ("behind", "is_cut"),
    [("", True), ("<|im_end|>\n", True), ("\n<|im_start|>tool\n4", None)],
)
def test_a_row_that_goes_on_behind_its_last_action_was_cut_later(behind, is_cut):
    ids, rest = encode("<|im_start|>assistant\nfou"), encode(behind)
    mask = [0] * (len(ids) - 3) + [1] * 3 + [0] * len(rest)
    one = row({"input_ids": ids + rest, "loss_mask": mask, "finish_reason": "length"})
    assert one.is_cut(one.runs[-1]) is is_cut


def test_a_claim_is_held_against_turns_where_the_policys_are_marked():
    marked = encode("<|im_start|>assistant\na")
    for ids, is_unknown in ((marked, False), (marked[1:], True), ([], False)):
        one = row({"input_ids": ids, "loss_mask": [0] * len(ids)})
        assert one.has_unknown_turns is is_unknown
    (steps,) = rows(make_trajectory([([1, 5], [6, 7])]))
    assert not steps.has_unknown_turns


def test_whose_words_a_row_holds_by_its_turns():
    text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>tool\nc"
    ids = encode(text)
    one = row({"input_ids": ids, "loss_mask": [0] * len(ids)})
    told = {
        name: tiny_tokenizer().text(one.token_ids[mask])
        for name, mask in (("others", one.by_others), ("environment", one.by_environment))
    }
    assert told["others"] == "<|im_start|>user\na<|im_end|>"
    assert told["environment"] == "<|im_start|>tool\nc"


def test_a_stop_that_opens_the_next_message_is_not_the_next_messages_alone():
    ids = encode("<|assistant|>a<|observation|>b", glm())
    record = make_record({"input_ids": ids, "loss_mask": [0, 1, 1, 0]})
    one = row_of_record(read_row(record), record, "r", marks_of(glm()))
    assert np.flatnonzero(one.by_environment).tolist() == [3]
