"""What drift costs in log-probs: arithmetic on what a checkpoint said of both spellings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.drift.price.counts import Counts

_LOW, _HIGH = math.log(0.8), math.log(1.2)
"""PPO's usual ratio band (Schulman et al. 2017, arXiv 1707.06347: epsilon 0.2)."""

_Logprobs: TypeAlias = NDArray[Any] | Sequence[float | None]
"""Log-probs in nats, of any float type; NaN or `None` where one is missing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLogprobs:
    """What one checkpoint says of a drifted step, spelt as recorded and as re-tokenised.

    Attributes:
        regions: per region the log-probs of the recorded ids and of the others; lengths may differ.
        later_recorded: [L] of the unchanged action tokens behind the first region, as recorded.
        later_retokenized: [L] of the same tokens behind the re-tokenised spelling.
    """

    regions: tuple[tuple[_Logprobs, _Logprobs], ...]
    later_recorded: _Logprobs = ()
    later_retokenized: _Logprobs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobPrice(Counts):
    """Differences in log-prob, re-tokenised minus recorded, in nats; prices add.

    Attributes:
        region_differences: one per region: the sum over its other ids minus that over its recorded.
        step_differences: one per step: its regions and the tokens behind them.
        n_later_tokens: unchanged tokens behind a region that both sides have a log-prob for.
        n_outside_tokens: those whose probability ratio leaves [0.8, 1.2].
        n_unknown_regions: regions without a difference: a log-prob is missing or both are infinite.
        n_unknown_steps: the same for steps.
        n_unknown_tokens: the same for later tokens.
    """

    region_differences: tuple[float, ...] = ()
    step_differences: tuple[float, ...] = ()
    n_later_tokens: int = 0
    n_outside_tokens: int = 0
    n_unknown_regions: int = 0
    n_unknown_steps: int = 0
    n_unknown_tokens: int = 0

    @property
    def share_outside(self) -> float | None:
        """Return the share of later tokens outside the band, `None` without such tokens."""
        return self.n_outside_tokens / self.n_later_tokens if self.n_later_tokens else None

    def summary(self) -> dict[str, float | None]:
        """Return what the differences come to, `None` where there are none.

        `region_median` and `region_p10` are differences that occur (the inverse of the
        distribution function), so that an infinite one spoils none; `region_worst` is the lowest.
        `step_median_abs` and `step_max_abs` are of the steps' absolute differences.
        """
        steps = tuple(map(abs, self.step_differences))
        return {
            "region_median": _quantile(self.region_differences, 0.5),
            "region_p10": _quantile(self.region_differences, 0.1),
            "region_worst": _quantile(self.region_differences, 0.0),
            "share_outside": self.share_outside,
            "step_median_abs": _quantile(steps, 0.5),
            "step_max_abs": _quantile(steps, 1.0),
        }

    def told(self) -> dict[str, Any]:
        """Return the price as reports have it: the summary, and what it is of."""
        return {
            "n_regions": len(self.region_differences),
            "n_steps": len(self.step_differences),
            **{name: value for name, value in self.to_dict().items() if name.startswith("n_")},
            **self.summary(),
        }


def price_logprobs(steps: Iterable[StepLogprobs]) -> LogprobPrice:
    """Return what the drift of steps costs in log-probs.

    Raises:
        ValueError: when the two sides of the later tokens differ in length.
    """
    total = LogprobPrice()
    regions: list[float] = []
    whole: list[float] = []
    for step in steps:
        differences = [_difference(recorded, other) for recorded, other in step.regions]
        later = _later(step)
        known = later[~np.isnan(later)]
        n_outside = int(((known < _LOW) | (known > _HIGH)).sum())
        regions += differences
        whole.append(_sum(np.concatenate([np.array(differences, dtype=np.float64), later])))
        total += LogprobPrice(
            n_later_tokens=len(known),
            n_outside_tokens=n_outside,
            n_unknown_tokens=len(later) - len(known),
        )
    return total + LogprobPrice(
        region_differences=_known(regions),
        step_differences=_known(whole),
        n_unknown_regions=len(regions) - len(_known(regions)),
        n_unknown_steps=len(whole) - len(_known(whole)),
    )


def _floats(logprobs: _Logprobs) -> NDArray[np.float64]:
    return np.asarray(logprobs, dtype=np.float64)  # None becomes NaN


def _difference(recorded: _Logprobs, other: _Logprobs) -> float:
    return _sum(np.array([_sum(_floats(other)), -_sum(_floats(recorded))]))


def _later(step: StepLogprobs) -> NDArray[np.float64]:
    recorded, other = _floats(step.later_recorded), _floats(step.later_retokenized)
    if len(recorded) != len(other):
        raise ValueError("later tokens are the same on both sides")
    with np.errstate(invalid="ignore"):  # -inf on both sides has no difference
        return other - recorded


def _sum(values: NDArray[np.float64]) -> float:
    with np.errstate(invalid="ignore"):
        return float(values.sum())


def _known(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(value for value in values if not math.isnan(value))


def _quantile(values: tuple[float, ...], share: float) -> float | None:
    if not values:
        return None
    return float(np.quantile(np.array(values), share, method="inverted_cdf"))
