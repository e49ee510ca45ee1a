"""How far the checkpoint's log-probs lie from those the sampler recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from trajkit.records import Floats
from trajkit.rl.table import F64

_FIGURES = ("n", "mean_abs", "p99_abs", "max_abs", "k3")
LOW, HIGH = 0.8, 1.2
"""Ratios outside of these are what a clip of 0.2 would act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Statistics of d = log p_checkpoint - log p_rollout over tokens where both are known, in nats.

    Attributes:
        n: tokens compared; `n_infinite` of them have probability 0 on one side, and are in
            `share_outside` and `worst` alone.
        k3: mean of r - 1 - log r with r = p_checkpoint / p_rollout, Schulman's estimator of
            KL(rollout || checkpoint).
        share_outside: share of tokens whose ratio is outside [0.8, 1.2].
        worst: which token has the largest |d|, counted in the arrays given.
    """

    n: int
    n_infinite: int
    mean: float | None
    mean_abs: float | None
    p99_abs: float | None
    max_abs: float | None
    k3: float | None
    share_outside: float | None
    worst: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """How far two exact ways of computing the same log-probs lie apart: sharing a pass, or not.

    Attributes:
        gap: log-probs of a step's own pass against those of the shared one.
        n_forwards: passes that were made to measure it.
    """

    gap: Gap
    n_forwards: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the figures that stand beside a mismatch."""
        return {name: getattr(self.gap, name) for name in _FIGURES}


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeNoise:
    """How far a run in half precision is from the same weights in float32.

    Attributes:
        gap: log-probs of the run against those in float32; `None` where not measured.
        device: where these were computed.
        n_forwards: passes that were made to measure it.
        why_null: why it was not measured.
    """

    gap: Gap | None
    device: str | None = None
    n_forwards: int = 0
    why_null: str | None = None

    @classmethod
    def not_measured(cls, why: str) -> Self:
        """Return one without figures."""
        return cls(gap=None, why_null=why)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: null figures say why they are."""
        return {
            "against": "fp32",
            "device": self.device,
            **{name: getattr(self.gap, name, None) for name in _FIGURES},
            "why_null": self.why_null,
        }


def measure_gap(logprobs: F64 | Floats, rollout_logprobs: F64 | Floats) -> Gap:
    """Return the gap between two arrays [N] of nats, NaN where one is unknown."""
    (known,) = np.nonzero(~(np.isnan(logprobs) | np.isnan(rollout_logprobs)))
    ours = logprobs[known].astype(np.float64)
    theirs = rollout_logprobs[known].astype(np.float64)
    same = ours == theirs  # two infinities agree; their difference is NaN
    gap = np.zeros(len(known), dtype=np.float64)
    np.subtract(ours, theirs, out=gap, where=~same)
    size = np.abs(gap)
    finite = np.isfinite(gap)
    some, sizes = gap[finite], size[finite]
    with np.errstate(over="ignore"):
        ratio_less_1 = np.expm1(gap)
        k3 = float((ratio_less_1[finite] - some).mean()) if len(some) else None
    outside = (ratio_less_1 < LOW - 1.0) | (ratio_less_1 > HIGH - 1.0)
    return Gap(
        n=len(known),
        n_infinite=len(known) - len(some),
        mean=float(some.mean()) if len(some) else None,
        mean_abs=float(sizes.mean()) if len(some) else None,
        p99_abs=float(np.quantile(sizes, 0.99)) if len(some) else None,
        max_abs=float(sizes.max()) if len(some) else None,
        k3=k3,
        share_outside=float(outside.mean()) if len(known) else None,
        worst=int(known[size.argmax()]) if len(known) else None,
    )
