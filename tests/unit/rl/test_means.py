"""Denominators: every mean on one table, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trajkit.rl.means import NEEDS_LENGTH, mean_weights
from trajkit.rl.spec import Mean
from trajkit.rl.table import LossInputs

# Rows of 1, 2, 3 and 2 tokens; rows 0 and 1 are one trajectory, and 2, 3 are one each; 5 and
# 9 are of group 4. Losses of the tokens: 8 | 2 4 | 3 3 6 | 5 1
TABLE = LossInputs(
    logprobs=np.zeros(8),
    loss_mask=np.ones(8, dtype=np.bool_),
    trajectory=np.array([5, 5, 5, 9, 9, 9, 7, 7]),
    row=np.array([0, 1, 1, 2, 2, 2, 3, 3]),
    group=np.array([4, 4, 4, 4, 4, 4, 2, 2]),
    step=np.array([0, 1, 1, 2, 2, 3, 4, 4]),
    length=10,
)
LOSSES = np.array([8.0, 2.0, 4.0, 3.0, 3.0, 6.0, 5.0, 1.0])


@pytest.mark.parametrize(
    ("mean", "numerator", "denominator"),
    [
        (Mean.TOKEN, 32.0, 8),
        (Mean.SUM, 32.0, 1),
        (Mean.ROW_SUM, 32.0, 4),
        (Mean.ROW_MEAN, 8.0 + 3.0 + 4.0 + 3.0, 4),
        (Mean.LENGTH, 32.0, 10),
        (Mean.ROW_LENGTH, 32.0, 40),
        (Mean.TRAJECTORY_SUM, 32.0, 3),
        (Mean.TRAJECTORY_MEAN, 14.0 / 3 + 4.0 + 3.0, 3),
        (Mean.GROUP_MEAN, 26.0 / 6 + 3.0, 2),
        (Mean.STEP_MEAN, 8.0 + 3.0 + 3.0 + 6.0 + 3.0, 5),
    ],
)
def test_each_mean_by_hand(mean: Mean, numerator: float, denominator: int) -> None:
    weights, found = mean_weights(mean, TABLE)
    assert found == denominator
    assert float((weights * LOSSES).sum()) == pytest.approx(numerator, abs=1e-12)


def test_every_mean_has_its_numbers_here() -> None:
    marks: list[pytest.MarkDecorator] = test_each_mean_by_hand.pytestmark  # type: ignore[attr-defined]
    assert [case[0] for case in marks[0].args[1]] == list(Mean)


@pytest.mark.parametrize("mean", sorted(NEEDS_LENGTH))
def test_a_length_that_nobody_gave_is_a_mistake_of_the_caller(mean: Mean) -> None:
    table = LossInputs(
        logprobs=np.zeros(1),
        loss_mask=np.ones(1, dtype=np.bool_),
        trajectory=np.zeros(1, dtype=np.int64),
    )
    with pytest.raises(ValueError, match="length"):
        mean_weights(mean, table)


def test_without_rows_steps_and_groups_a_trajectory_is_all_three() -> None:
    table = LossInputs(
        logprobs=np.zeros(3),
        loss_mask=np.ones(3, dtype=np.bool_),
        trajectory=np.array([4, 4, 1]),
    )
    for mean in (Mean.ROW_MEAN, Mean.GROUP_MEAN, Mean.TRAJECTORY_MEAN, Mean.STEP_MEAN):
        weights, denominator = mean_weights(mean, table)
        assert (weights.tolist(), denominator) == ([0.5, 0.5, 1.0], 2)
