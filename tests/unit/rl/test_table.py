"""The table of tokens: parts of it, and what is unknown."""

from __future__ import annotations

import numpy as np
import pytest

from trajkit.rl.table import LossInputs, column, is_known, select

TABLE = LossInputs(
    logprobs=np.array([-1.0, np.nan, -3.0]),
    loss_mask=np.array([True, True, False]),
    trajectory=np.array([0, 0, 1]),
    row=np.array([0, 1, 2]),
    advantages=np.array([1.0, 2.0, np.nan]),
    length=9,
)


def test_a_part_has_the_same_columns_and_no_others() -> None:
    part = select(TABLE, np.array([True, False, True]))
    assert part.logprobs.tolist() == [-1.0, -3.0]
    assert part.loss_mask.tolist() == [True, False]
    assert part.rows.tolist() == [0, 2]
    assert part.groups.tolist() == part.trajectory.tolist() == [0, 1]
    assert (part.length, part.returns) == (9, None)


def test_unknown_is_nan_or_no_column_at_all() -> None:
    assert is_known(TABLE, "logprobs").tolist() == [True, False, True]
    assert is_known(TABLE, "returns").tolist() == [False] * 3
    assert column(TABLE, "advantages")[0] == 1.0
    with pytest.raises(ValueError, match="without returns"):
        column(TABLE, "returns")
