import math
from dataclasses import replace

import numpy as np
import pytest

from tests.builders import make_step
from trajkit.records import ids_array
from trajkit.scoring.scored import Status, StepScores, scores_table
from trajkit.store.schema import SCORES_SCHEMA


def row(logprobs: list[float] | None, status: Status = Status.OK) -> StepScores:
    step = make_step(prompt_delta=[1], action_tokens=[2] * len(logprobs or []))
    if logprobs is None:
        return StepScores(step=step, status=status)
    values = np.array(logprobs, dtype=np.float32)
    return StepScores(
        step=step,
        status=status,
        logprobs=values,
        entropy=values * -2,
        rank=ids_array(list(range(len(logprobs)))),
    )


def test_missing_is_null_and_empty_is_empty() -> None:
    table = scores_table(
        [row([-1.0, math.nan]), row(None, Status.MEDIA), row([]), row([-math.inf, 0.0])]
    )
    assert table.schema == SCORES_SCHEMA
    assert table["logprobs"].to_pylist() == [[-1.0, None], None, [], [-math.inf, 0.0]]
    assert table["entropy"].to_pylist() == [[2.0, None], None, [], [math.inf, 0.0]]
    assert table["rank"].to_pylist() == [[0, None], None, [], [0, 1]]
    assert table["status"].to_pylist() == ["ok", "media", "ok", "ok"]
    assert table["context_logprobs"].null_count == table["ref_logprobs"].null_count == 4
    table.validate(full=True)


@pytest.mark.parametrize("rows", [[], [row(None, Status.NO_ACTION)], [row([])]])
def test_tables_without_numbers(rows: list[StepScores]) -> None:
    table = scores_table(rows)
    assert table.schema == SCORES_SCHEMA
    assert table.num_rows == len(rows)
    table.validate(full=True)


def test_a_reference_model_has_its_own_nulls() -> None:
    known = replace(row([-1.0, -2.0]), ref_logprobs=np.array([math.nan, -3.0], dtype=np.float32))
    table = scores_table([known, row([-1.0])])
    assert table["ref_logprobs"].to_pylist() == [[None, -3.0], None]
    assert table["logprobs"].to_pylist() == [[-1.0, -2.0], [-1.0]]
