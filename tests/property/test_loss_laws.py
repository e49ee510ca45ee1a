"""Laws of losses: context does not count, slopes are slopes, order and copies change nothing."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajkit.rl.losses import evaluate, gradient
from trajkit.rl.presets import PRESETS
from trajkit.rl.spec import Mean
from trajkit.rl.table import LossInputs

quick = settings(deadline=None, max_examples=25)


@st.composite
def tables(draw: st.DrawFn) -> LossInputs:
    n = draw(st.integers(1, 12))

    def column(low: float, high: float) -> Any:
        values = draw(st.lists(st.floats(low, high), min_size=n, max_size=n))
        return np.array(values, dtype=np.float64)

    rows = np.array(draw(st.lists(st.integers(0, 7), min_size=n, max_size=n)))
    return LossInputs(
        logprobs=column(-6, -0.01),
        loss_mask=np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        trajectory=rows // 2,
        row=rows,
        group=rows // 4,
        rollout_logprobs=column(-6, -0.01),
        old_logprobs=column(-6, -0.01),
        ref_logprobs=column(-6, -0.01),
        advantages=column(-2, 2),
        returns=column(-2, 2),
        length=draw(st.integers(1, 20)),
    )


def with_columns(table: LossInputs, change: Any) -> LossInputs:
    """Return the table with each of its columns changed by a function."""
    columns = {each.name: getattr(table, each.name) for each in fields(table)}
    made: Any = {
        name: change(name, value)
        for name, value in columns.items()
        if isinstance(value, np.ndarray)
    }
    return replace(table, **made)


@pytest.mark.parametrize("name", PRESETS)
@quick
@given(table=tables())
def test_context_tokens_have_no_gradient_and_no_influence(name: str, table: LossInputs) -> None:
    slopes = gradient(PRESETS[name], table)
    assert (slopes[~table.loss_mask] == 0.0).all()
    assert np.isfinite(slopes).all()
    noise = np.where(table.loss_mask, table.logprobs, -np.inf)
    assert evaluate(PRESETS[name], replace(table, logprobs=noise)) == evaluate(PRESETS[name], table)


@pytest.mark.parametrize("name", PRESETS)
@quick
@given(table=tables(), data=st.data())
def test_a_loss_does_not_depend_on_the_order_of_tokens(
    name: str, table: LossInputs, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(len(table.logprobs)))), dtype=np.int64)
    shuffled = with_columns(table, lambda _, values: values[order])
    one, other = evaluate(PRESETS[name], table), evaluate(PRESETS[name], shuffled)
    assert (one.denominator, one.reason) == (other.denominator, other.reason)
    assert one.value == (other.value if one.value is None else pytest.approx(other.value, abs=1e-9))


@pytest.mark.parametrize("name", PRESETS)
@quick
@given(table=tables())
def test_twice_the_same_trajectories_have_the_same_loss_or_twice_of_it(
    name: str, table: LossInputs
) -> None:
    def doubled(column: str, values: Any) -> Any:
        apart = values + 10 if column in ("trajectory", "row", "group") else values
        return np.concatenate([values, apart])

    one, other = (evaluate(PRESETS[name], one) for one in (table, with_columns(table, doubled)))
    is_sum = PRESETS[name].mean in (Mean.SUM, Mean.LENGTH)
    if one.denominator is not None:  # losses of several parts have one for each
        assert other.denominator == (1 if is_sum else 2) * one.denominator
    if one.value is None or other.value is None:
        assert one.value is other.value
    else:
        assert other.value == pytest.approx((2 if is_sum else 1) * one.value, rel=1e-9, abs=1e-9)
