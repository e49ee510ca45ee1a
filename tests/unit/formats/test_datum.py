"""A datum of Tinker: inputs and targets are one row, weights speak of the targets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_record
from trajkit.errors import InputError
from trajkit.formats import detect, rows
from trajkit.formats.alignment import Align
from trajkit.formats.datum import as_row, is_datum
from trajkit.formats.token_row import TokenRow, read_row
from trajkit.records import MaskRun

IDS = [5, 6, 7, 8, 2]
INPUT, TARGETS, WEIGHTS = IDS[:-1], IDS[1:], [0.0, 0.0, 1.0, 1.0]


def datum(**loss: Any) -> dict[str, Any]:
    return {"model_input": INPUT, "loss_fn_inputs": {"target_tokens": TARGETS, **loss}}


def read(value: Any) -> TokenRow:
    return read_row(make_record(value))


@pytest.mark.parametrize(
    "value",
    [
        datum(weights=WEIGHTS),
        datum(mask=WEIGHTS),
        {"model_input": INPUT, "target_tokens": TARGETS, "weights": WEIGHTS},
        {
            "model_input": {
                "chunks": [{"tokens": [5], "type": "encoded_text"}, {"tokens": IDS[1:4]}]
            },
            "loss_fn_inputs": {
                "target_tokens": {"data": TARGETS, "dtype": "int64", "shape": [4]},
                "weights": {"data": WEIGHTS, "dtype": "float32", "shape": [4]},
            },
        },
    ],
)
def test_each_way_to_write_a_datum_is_one_row(value):
    row = read(value)
    assert row.token_ids.tolist() == IDS
    assert row.weights.tolist() == [0, *WEIGHTS]
    assert row.align is Align.SHIFTED
    assert row.extra == {}
    form, reason = detect(make_record(value))
    assert (form.name, reason.partition(" with ")[0]) == ("rows", "model_input and target_tokens")


def test_what_stands_beside_the_targets_speaks_of_them():
    row = read(datum(mask=WEIGHTS, logprobs=[0.0, 0.0, -0.5, -1.0], advantages=[0, 0, 2, 2]))
    assert row.logprobs is not None
    assert row.logprobs.tolist()[1:] == [0.0, 0.0, -0.5, -1.0]
    assert row.advantages is not None
    assert row.advantages.tolist()[3:] == [2, 2]


def test_fractional_weights_are_kept_and_told():
    raw = rows.FORMAT.read(make_record(datum(weights=[0, 0.25, 0.5, 0.5])))
    (step,) = raw.steps
    assert step.source_mask == (MaskRun(0, 2, 0.0), MaskRun(2, 3, 0.25), MaskRun(3, 5, 0.5))
    assert step.action_ids is not None
    assert step.action_ids.tolist() == [7, 8, 2]
    assert "between 0 and 1" in raw.warnings[0]


def test_a_target_that_the_input_does_not_go_on_with_is_a_wrong_label():
    value = datum(weights=[0, 1, 1, 1])
    value["loss_fn_inputs"]["target_tokens"] = [9, 7, 9, 2]
    assert read(value).wrong_labels.tolist() == [3]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target_tokens": TARGETS[1:]}, "I407"),
        ({"weights": [1.0, 1.0]}, "I407"),
        ({"weights": [0, 0, -1, 1]}, "I201"),
        ({"weights": [0, 0, 2, 1]}, "I201"),
        ({"target_tokens": [*TARGETS[:-1], -100]}, "I302"),
    ],
)
def test_a_datum_that_does_not_fit_is_an_error(changes, code):
    value = datum(weights=WEIGHTS)
    value["loss_fn_inputs"] |= changes
    with pytest.raises(InputError) as caught:
        read(value)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "value",
    [
        {"model_input": INPUT, "weights": WEIGHTS},
        datum(),
        datum(weights=3),
        {"model_input": INPUT, "target_tokens": [], "weights": []},
        {"model_input": {"chunks": []}, "target_tokens": TARGETS, "weights": WEIGHTS},
        {"model_input": {"chunks": [{"data": "png"}]}, "target_tokens": TARGETS, "weights": []},
        {"model_input": "x", "target_tokens": TARGETS, "weights": WEIGHTS},
        {},
    ],
)
def test_what_is_no_datum_stays_as_it_is(value):
    assert is_datum(value) is None
    assert as_row(value) is value


def test_weights_without_targets_are_no_mask():
    row = read({"input_ids": IDS, "loss_mask": [0, 0, 1, 1, 1], "weights": [2.0] * 5})
    assert row.extra == {"weights": [2.0] * 5}


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.5, 1.0])), min_size=2))
def test_a_datum_is_the_row_it_was_made_of(tokens):
    ids, weights = [list(column) for column in zip(*tokens, strict=True)]
    weights[0] = 0.0  # the first id is no target
    loss = {"target_tokens": ids[1:], "weights": weights[1:]}
    made = read({"model_input": ids[:-1], "loss_fn_inputs": loss})
    row = read({"input_ids": ids, "loss_mask": weights})
    assert made.token_ids.tolist() == row.token_ids.tolist()
    assert made.weights.tolist() == row.weights.tolist()
    assert not len(made.wrong_labels)
