"""What the losses of tokens are divided by: a weight per token, and one denominator."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import numpy as np

from trajkit.rl.spec import Mean
from trajkit.rl.table import F64, Index, LossInputs

NEEDS_LENGTH = frozenset({Mean.LENGTH, Mean.ROW_LENGTH})
"""Means that divide by a constant which is in no record."""


def mean_weights(mean: Mean, inputs: LossInputs) -> tuple[F64, int]:
    """Return [N] the weight of each counted token, and the denominator.

    Rows, trajectories and groups without a counted token are not in the denominator.
    """
    n = len(inputs.logprobs)
    ones = np.ones(n, dtype=np.float64)
    match mean:
        case Mean.TOKEN:
            return ones, n
        case Mean.SUM:
            return ones, 1
        case Mean.ROW_SUM:
            return ones, _n_of(inputs.rows)
        case Mean.TRAJECTORY_SUM:
            return ones, _n_of(inputs.trajectory)
        case Mean.LENGTH:
            return ones, _length(inputs)
        case Mean.ROW_LENGTH:
            return ones, _n_of(inputs.rows) * _length(inputs)
        case Mean.ROW_MEAN | Mean.TRAJECTORY_MEAN | Mean.GROUP_MEAN | Mean.STEP_MEAN:
            return _by_size(_OWNERS[mean](inputs))
        case _:
            assert_never(mean)


_OWNERS: dict[Mean, Callable[[LossInputs], Index]] = {
    Mean.ROW_MEAN: lambda inputs: inputs.rows,
    Mean.TRAJECTORY_MEAN: lambda inputs: inputs.trajectory,
    Mean.GROUP_MEAN: lambda inputs: inputs.groups,
    Mean.STEP_MEAN: lambda inputs: inputs.steps,
}
"""What a mean of means is over."""


def _by_size(owner: Index) -> tuple[F64, int]:
    """Return 1 / the tokens of each token's owner, and the number of owners."""
    _, which, sizes = np.unique(owner, return_inverse=True, return_counts=True)
    return 1.0 / sizes[which], len(sizes)


def _n_of(owner: Index) -> int:
    return len(np.unique(owner))


def _length(inputs: LossInputs) -> int:
    if inputs.length is None:
        raise ValueError("a loss that divides by a length was given none")
    return inputs.length
