"""Several masks of one row into one weight for each id, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import make_record
from tests.mask_builders import bits
from trajkit.errors import InputError
from trajkit.formats.token_row import TokenRow, read_row

IDS = [5, 6, 7, 8, 2]
SPLIT: dict[str, Any] = {"prompt_ids": [5, 6], "completion_ids": [7, 8, 9, 2]}


@pytest.mark.parametrize(
    ("row", "mask"),
    [
        ({**SPLIT, "completion_mask": [1] * 4, "env_mask": [1, 0, 0, 1]}, "001001"),
        (
            {
                **SPLIT,
                "completion_mask": [1] * 4,
                "tool_mask": [1, 0, 1, 1],
                "env_mask": [1, 1, 0, 1],
            },
            "001001",
        ),
        (
            {
                "prompts": [5, 6],
                "responses": [7, 8, 9, 2],
                "response_mask": [1] * 4,
                "info_mask": [1, 1, 1, 0, 0, 1],
            },
            "001001",
        ),
        ({**SPLIT, "loss_mask": [0, 0, 1, 0, 0, 1], "env_mask": [1] * 4}, "001001"),
        ({**SPLIT, "completion_mask": [1] * 4, "attention_mask": [1] * 6}, "001111"),
        ({**SPLIT, "completion_mask": [1] * 4, "padding_mask": [0] * 6}, "001111"),
        ({**SPLIT, "completion_mask": [1] * 4, "image_mask": [[0], [1]]}, "001111"),
        ({**SPLIT, "completion_mask": [1, 0, 0, 1], "token_mask": [0, 0, 1, 0, 1, 1]}, "001001"),
    ],
)
def test_masks_that_a_trainer_multiplies_are_one(row, mask):
    assert trained(row) == mask


@pytest.mark.parametrize(
    "row",
    [
        {**SPLIT, "completion_mask": [1] * 4, "turn_mask": [1, 0, 0, 1]},
        {**SPLIT, "completion_mask": [1] * 4, "turn_mask": [0, 0, 1, 0, 0, 1]},
        {**SPLIT, "loss_mask": [0, 0, 1, 1, 1, 1], "env_mask": [1, 0, 0, 1]},
        {
            "input_ids": IDS,
            "labels": [-100, 6, 7, 8, 2],
            "valid_masks": [True, True, False] + [True] * 2,
        },
    ],
)
def test_a_mask_that_nobody_knows_and_that_would_train_less_is_refused(row):
    with pytest.raises(InputError) as caught:
        read(row)
    assert caught.value.code == "I407"
    assert "_mask" in str(caught.value.hint)


@pytest.mark.parametrize("weight", [-100, -1, 1.5, 2])
def test_a_weight_is_from_0_to_1(weight):
    with pytest.raises(InputError) as caught:
        read({"input_ids": IDS, "loss_mask": [0, 1, weight, 1, 1]})
    assert caught.value.code == "I201"
    assert "from 0 to 1" in str(caught.value)


def test_labels_that_a_table_made_floats_are_labels():
    found = read({"input_ids": IDS, "labels": [-100.0, *map(float, IDS[1:])]})
    assert bits(found.weights != 0) == "01111"
    assert not len(found.wrong_labels)
    with pytest.raises(InputError):
        read({"input_ids": IDS, "labels": [-100.0, 6.5, 7.0, 8.0, 2.0]})


def read(row: dict[str, Any]) -> TokenRow:
    return read_row(make_record(row))


def trained(row: dict[str, Any]) -> str:
    return bits(read(row).weights != 0)
