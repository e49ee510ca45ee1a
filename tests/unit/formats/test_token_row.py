"""One pre-tokenised row: what its keys mean, how its mask stands, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import make_record
from tests.mask_builders import bits
from trajkit.errors import InputError
from trajkit.formats.alignment import Align
from trajkit.formats.row_keys import MASKS, RESPONSE, is_row
from trajkit.formats.token_row import read_row

IDS = [5, 6, 7, 8, 2]


def read(value, align=Align.AUTO):
    return read_row(make_record(value), align)


def trained(value, align=Align.AUTO) -> str:
    return bits(read(value, align).weights != 0)


@pytest.mark.parametrize("name", MASKS)
def test_every_name_of_a_mask_is_read(name):
    row = {"input_ids": IDS, name: [0, 0, 1, 1, 1]}
    assert is_row(row)
    assert trained(row) == "00111"


@pytest.mark.parametrize("name", RESPONSE)
def test_every_name_of_a_response_is_read(name):
    row = {"prompt_ids": [5, 6], name: [7, 8, 2], "response_mask": [1, 0, 1]}
    assert is_row(row)
    assert trained(row) == "00101"
    assert read(row).n_prompt == 2


@pytest.mark.parametrize(
    ("row", "mask", "align"),
    [
        ({"input_ids": IDS, "labels": [-100, -100, 7, 8, 2]}, "00111", Align.LABELS),
        ({"input_ids": IDS, "labels": [-100, 7, 8, 2, -100]}, "00111", Align.SHIFTED),
        ({"input_ids": IDS, "loss_mask": [0, 1, 1, 1]}, "00111", Align.SHIFTED),
        ({"input_ids": IDS, "loss_mask": [False, False, True, True, True]}, "00111", Align.INPUT),
        ({"input_ids": IDS, "loss_mask": [0, 0, 0.5, 0.5, 1]}, "00111", Align.INPUT),
        ({"tokens": IDS, "response_length": 3, "loss_mask": [1, 1, 0]}, "00110", Align.RESPONSE),
        ({"input_ids": IDS, "response_mask": [1, 1]}, "00011", Align.RESPONSE),
        (
            {
                "prompt_ids": [5],
                "completion_ids": [6, 7, 8, 2],
                "completion_mask": [1, 1, 1, 0],
                "tool_mask": [1, 0, 1, 1],
            },
            "01010",
            Align.RESPONSE,
        ),
    ],
)
def test_each_convention_comes_to_the_same_index(row, mask, align):
    found = read(row)
    assert bits(found.weights != 0) == mask
    assert found.align is align
    assert found.why


def test_two_ways_to_fit_are_an_error_that_names_both_and_align_decides():
    row = {"prompt_ids": [5], "response_ids": [6, 7, 8, 2], "loss_mask": [1, 0, 1, 1]}
    with pytest.raises(InputError) as caught:
        read(row)
    assert caught.value.code == "I406"
    assert "--align response|shifted" in str(caught.value.hint)
    assert trained(row, Align.RESPONSE) == "01011"
    assert trained(row, Align.SHIFTED) == "01011"
    rolled = {"input_ids": IDS, "loss_mask": [0, 1, 1, 1, 0]}
    assert trained(rolled, Align.SHIFTED) == "00111"


@pytest.mark.parametrize(
    ("row", "align"),
    [
        ({"input_ids": IDS, "loss_mask": [1, 1]}, Align.AUTO),
        ({"input_ids": IDS, "loss_mask": [1] * 6}, Align.AUTO),
        ({"input_ids": IDS, "loss_mask": [1] * 4}, Align.INPUT),
        ({"input_ids": IDS, "labels": [5, 6]}, Align.AUTO),
        ({"input_ids": IDS, "loss_mask": [1] * 5, "attention_mask": [1]}, Align.AUTO),
        ({"input_ids": IDS, "loss_mask": [1] * 5, "advantages": [1.0]}, Align.AUTO),
        ({"input_ids": IDS, "loss_mask": [1] * 5, "labels": [-100, 6, 7, 8, 2]}, Align.AUTO),
    ],
)
def test_what_fits_nothing_or_contradicts_is_refused(row, align):
    with pytest.raises(InputError) as caught:
        read(row, align)
    assert caught.value.code == "I407"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"input_ids": [5, 6.0], "loss_mask": [0, 1]}, "I301"),
        ({"input_ids": [5, -1], "loss_mask": [0, 1]}, "I302"),
        ({"input_ids": [5, 6], "loss_mask": [0, "1"]}, "I201"),
        ({"input_ids": [5, 6], "loss_mask": [0, None]}, "I201"),
        ({"input_ids": [5, 6], "loss_mask": [0, 10**400]}, "I201"),
        ({"input_ids": [5, 6], "labels": [5, "6"]}, "I201"),
        ({"input_ids": [5, 6], "loss_mask": [0, 1], "logprobs": [0.0, 2.0]}, "I306"),
        ({"tokens": [5, 6], "response_length": 3, "loss_mask": [0, 1]}, "I201"),
        ({"input_ids": [5, 6], "prompt_ids": 3}, "I202"),
        ({"prompt_ids": [5], "loss_mask": [1]}, "I202"),
    ],
)
def test_values_of_another_type_are_refused_where_they_stand(row, code):
    with pytest.raises(InputError) as caught:
        read(row)
    assert caught.value.code == code
    assert caught.value.place is not None
    assert caught.value.place.path


@pytest.mark.parametrize(
    ("logprobs", "spread_out"),
    [
        ([None, None, -1.0, -2.0, -3.0], [None, None, -1.0, -2.0, -3.0]),
        ([-1.0, -2.0, -3.0], [None, None, -1.0, -2.0, -3.0]),
        ([0.0, -1.0, -2.0, -3.0], [None, 0.0, -1.0, -2.0, -3.0]),
    ],
)
def test_log_probs_stand_by_all_ids_by_the_trained_ones_or_by_targets(logprobs, spread_out):
    row = read({"input_ids": IDS, "loss_mask": [0, 0, 1, 1, 1], "logprobs": logprobs})
    assert row.logprobs is not None
    assert [None if np.isnan(v) else v for v in row.logprobs.tolist()] == spread_out


def test_log_probs_of_another_number_are_counted_and_not_guessed():
    row = read({"input_ids": IDS, "loss_mask": [0, 0, 1, 1, 1], "logprobs": [-1.0, -2.0]})
    assert row.logprobs is None
    assert row.misfit_logprobs == 2


def test_rewards_that_are_not_one_a_token_stay_what_they_are():
    row = read({"input_ids": IDS, "loss_mask": [0, 0, 1, 1, 1], "rewards": [1.0, 0.5]})
    assert row.token_rewards is None
    assert row.extra == {"rewards": [1.0, 0.5]}


def test_a_reward_by_name_stays_what_it_is_and_one_for_each_id_is_read():
    row = {"input_ids": IDS, "loss_mask": [0, 0, 1, 1, 1]}
    named = read({**row, "reward": {"score": 1.0}})
    assert (named.whole["reward"], named.extra) == (None, {"reward": {"score": 1.0}})
    each = read({**row, "reward": [0, 0, 0, 0, 1.0]})
    assert each.token_rewards is not None
    assert (each.whole["reward"], each.extra) == (None, {})


def test_values_of_a_response_follow_its_mask():
    row = read({"input_ids": IDS, "response_mask": [1, 0, 1], "advantages": [1.0, 2.0, 3.0]})
    assert row.advantages is not None
    assert row.advantages[2:].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(row.advantages[:2]).all()


def test_labels_stand_as_asked():
    row = {"input_ids": IDS, "labels": [-100, 7, 8, 2, -100]}
    assert trained(row, Align.SHIFTED) == "00111"
    assert trained(row, Align.LABELS) == "01110"
    assert read(row, Align.LABELS).wrong_labels.tolist() == [1, 2, 3]
    with pytest.raises(InputError) as caught:
        read({"input_ids": IDS, "labels": [7, 8, 2, -100]}, Align.LABELS)
    assert caught.value.code == "I407"
    with pytest.raises(InputError) as caught:
        read({"input_ids": IDS, "loss_mask": [0, 0, 1, 1, 1]}, Align.LABELS)
    assert caught.value.code == "I202"


def test_the_labels_that_are_other_ids_are_told():
    row = read({"input_ids": IDS, "labels": [-100, -100, 7, 9, 2]})
    assert row.wrong_labels.tolist() == [3]


def test_what_a_row_says_beside_its_mask():
    row = read(
        {
            "id": 7,
            "rollout_id": 3,
            "input_ids": IDS,
            "loss_mask": [0, 0, 1, 1, 1],
            "attention_mask": [0, 1, 1, 1, 1],
            "rewards": [0, 0, 0, 0, 1.5],
            "reward_score": 1.5,
            "stop_reason": "LENGTH",
            "status": "truncated",
            "weight_versions": [3, 4],
            "note": "kept",
        }
    )
    assert (row.whole["trajectory_id"], row.rollout, row.whole["reward"]) == ("7", "3", 1.5)
    assert (row.finish_reason, row.is_truncated) == ("length", True)
    assert row.policy_version == ("3", "4")
    assert row.attention is not None
    assert row.token_rewards is not None
    assert bits(row.attention) == "01111"
    assert row.token_rewards.tolist() == [0, 0, 0, 0, 1.5]
    assert row.extra == {"status": "truncated", "note": "kept"}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"input_ids": IDS},
        {"labels": IDS},
        {"input_ids": "abc", "labels": [1]},
        {"prompt_ids": [1], "response_mask": [1]},
        {"turns": [{"prompt_token_ids": [1], "response_token_ids": [2]}]},
    ],
)
def test_what_has_no_ids_with_a_mask_is_no_row(value):
    assert is_row(value) is None


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ([-1, 7, 7, 7, 7], ("7",)),
        ([7, 7, 7, 7, 8], ("7", "8")),
        ([3], ("3",)),
        ("v1", ("v1",)),
    ],
)
def test_versions_are_those_of_the_ids_that_are_trained(versions, found):
    row = read({"input_ids": IDS, "loss_mask": [0, 1, 1, 1, 1], "versions": versions})
    assert row.policy_version == found
