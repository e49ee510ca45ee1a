"""Numbers that stand beside action tokens: what they are called, and on which scale they are drawn.

A scale is fixed by the lane and never by what is in view: one extreme token changes no other's
colour, and two files can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trajkit.records import Floats, Step

if TYPE_CHECKING:
    from trajkit.store.scores import StepNumbers

LEVELS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One number per action token.

    Attributes:
        name: what `--overlay` calls it.
        title: what a reader sees.
        full: the value from which on everything is drawn; nothing is drawn at 0.
        is_signed: whether values of both signs are drawn, each in its own way.
        is_scored: whether it needs what a checkpoint said, beside the record.
        of: gives a step's [A] values, NaN where one is missing, from its record and what a
            checkpoint said of it; `None` where there are none.
    """

    name: str
    title: str
    full: float
    is_signed: bool = False
    is_scored: bool = False
    of: Callable[[Step, StepNumbers | None], Floats | None]

    def level(self, values: Sequence[float | None]) -> int | None:
        """Return how much is drawn, -8 to 8, at the most extreme of some values.

        `None` where one of them is missing, 0 where there are none.
        """
        most = 0
        for value in values:
            if value is None:
                return None
            share = value / abs(self.full) if self.is_signed else max(0.0, value / self.full)
            level = int(min(abs(share), 1.0) * LEVELS + 0.5)
            if level > abs(most):
                most = level if share > 0 else -level
        return most


def _ratio(step: Step, scores: StepNumbers | None) -> Floats | None:
    recorded = step.rollout_logprobs
    if recorded is None or scores is None or scores.logprobs is None:
        return None
    return scores.logprobs - recorded


LANES: tuple[Lane, ...] = (
    Lane(
        name="logprob",
        title="log-prob (sampler)",
        full=-5.0,
        of=lambda step, _: step.rollout_logprobs,
    ),
    Lane(
        name="scored",
        title="log-prob (checkpoint)",
        is_scored=True,
        full=-5.0,
        of=lambda _, scores: None if scores is None else scores.logprobs,
    ),
    Lane(
        name="ratio",
        title="log-prob checkpoint − sampler",
        full=0.5,
        is_signed=True,
        is_scored=True,
        of=_ratio,
    ),
    Lane(
        name="entropy",
        title="entropy (checkpoint)",
        is_scored=True,
        full=4.0,
        of=lambda _, scores: None if scores is None else scores.entropy,
    ),
    Lane(
        name="rank",
        title="rank (checkpoint)",
        is_scored=True,
        full=8.0,
        of=lambda _, scores: None if scores is None else scores.rank,
    ),
    Lane(
        name="old-logprob",
        title="log-prob (old policy)",
        full=-5.0,
        of=lambda step, _: step.old_logprobs,
    ),
    Lane(
        name="ref-logprob",
        title="log-prob (reference)",
        full=-5.0,
        of=lambda step, _: step.ref_logprobs,
    ),
    Lane(
        name="advantage",
        title="advantage",
        full=2.0,
        is_signed=True,
        of=lambda step, _: step.advantages,
    ),
    Lane(
        name="token-reward",
        title="token reward",
        full=1.0,
        is_signed=True,
        of=lambda step, _: step.token_rewards,
    ),
    Lane(name="value", title="value", full=1.0, is_signed=True, of=lambda step, _: step.values),
)


def rounded(values: Floats | None) -> list[float | None] | None:
    """Return values to four digits behind the point, `None` where one is missing."""
    if values is None:
        return None
    exact = np.round(values.astype(np.float64), 4) + 0.0  # and no negative zero
    return [None if math.isnan(value) else value for value in exact.tolist()]


def json_number(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it; infinite ones are words."""
    return value if value is None or math.isfinite(value) else f"{value:g}"
