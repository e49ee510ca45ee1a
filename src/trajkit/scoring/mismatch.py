"""How far the checkpoint's log-probs lie from those the sampler recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Floats
from trajkit.rl.table import F64
from trajkit.rl.tokens import KINDS, ScoredTokens, TokenPlace

_FIGURES = ("n", "mean_abs", "p99_abs", "max_abs", "k3")
FIGURES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mean": (
        "mean of d; its negative estimates KL(sampler || checkpoint) (k1)",
        ("verl rollout_corr/kl", "slime, miles mismatch_kl", "Tinker kl_sample_train_v1"),
    ),
    "k2": ("mean of d^2 / 2", ("Tinker kl_sample_train_v2",)),
    "k3": (
        "mean of r - 1 - d",
        ("verl rollout_corr/k3_kl", "slime, miles mismatch_k3_kl", "prime-rl mismatch_kl"),
    ),
    "mean_abs": (
        "mean of |d|",
        ("slime train_rollout_logprob_abs_diff", "TRL sampling/sampling_logp_difference/mean"),
    ),
    "p99_abs": ("the 99th percentile of |d|", ()),
    "max_abs": ("the largest |d|", ("TRL sampling/sampling_logp_difference/max",)),
    "mean_ratio": (
        "mean of r",
        (
            "verl rollout_corr/rollout_is_mean",
            "slime, miles ois",
            "TRL sampling/importance_sampling_ratio/mean",
            "NeMo RL sampling_importance_ratio",
            "prime-rl importance_ratio",
        ),
    ),
    "ess": (
        "effective sample size as a share of n: (sum of r)^2 / (n * sum of r^2)",
        ("verl rollout_corr/rollout_is_eff_sample_size",),
    ),
    "chi2": (
        "mean of r^2, less 1: chi-square(checkpoint || sampler)",
        ("verl rollout_corr/chi2_token", "slime, miles chi2_token"),
    ),
    "share_outside": (
        "share of tokens with r outside [0.8, 1.2]",
        (
            "verl rollout_is_ratio_fraction_high + _low",
            "slime tis_clipfrac",
            "NeMo RL is_oob_ratio",
        ),
    ),
}
"""What each figure is, with d = log p_checkpoint - log p_sampler and r = exp(d), and what trainers
call it or its nearest kin: their bounds, masks and signs may differ."""
N_WORST = 5
_MOST_STEPS = 16
LOW, HIGH = 0.8, 1.2
"""Ratios outside of these are what a clip of 0.2 would act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Statistics of d = log p_checkpoint - log p_rollout over tokens where both are known, in nats.

    Attributes:
        n: tokens compared; `n_infinite` of them have probability 0 on one side, and are in
            `share_outside` and `worst` alone.
        k3: Schulman's estimator of KL(rollout || checkpoint); for all figures see `FIGURES`.
        worst: the tokens with the largest |d|, at most five, counted in the arrays given.
    """

    n: int
    n_infinite: int
    mean: float | None
    mean_abs: float | None
    p99_abs: float | None
    max_abs: float | None
    k2: float | None
    k3: float | None
    mean_ratio: float | None
    ess: float | None
    chi2: float | None
    share_outside: float | None
    worst: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: all figures, and how many tokens they are of."""
        names = ("n", *FIGURES, "n_infinite")
        return {name: getattr(self, name) for name in names}


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
    some = gap[finite]
    with np.errstate(over="ignore"):
        outside = (np.expm1(gap) < LOW - 1.0) | (np.expm1(gap) > HIGH - 1.0)
    return Gap(
        n=len(known),
        n_infinite=len(known) - len(some),
        **(_figures(some) if len(some) else dict.fromkeys(_OF_FINITE)),
        share_outside=float(outside.mean()) if len(known) else None,
        worst=tuple(known[np.argsort(-size, kind="stable")[:N_WORST]].tolist()),
    )


def _figures(gap: F64) -> dict[str, float | None]:
    """Return the figures of differences [N > 0] that are finite.

    Ratios are scaled by the largest before they are squared: the effective sample size is finite
    where their squares are not.
    """
    size = np.abs(gap)
    scaled = np.exp(gap - gap.max())
    with np.errstate(over="ignore"):
        less_1 = np.expm1(gap)
        return {
            "mean": float(gap.mean()),
            "mean_abs": float(size.mean()),
            "p99_abs": float(np.quantile(size, 0.99)),
            "max_abs": float(size.max()),
            "k2": float((gap**2).mean() / 2.0),
            "k3": float((less_1 - gap).mean()),
            "mean_ratio": 1.0 + float(less_1.mean()),
            "ess": float(scaled.sum() ** 2 / (len(gap) * (scaled**2).sum())),
            "chi2": float(np.expm1(2.0 * gap).mean()),
        }


_OF_FINITE = tuple(name for name in FIGURES if name != "share_outside")


@dataclass(frozen=True, slots=True, kw_only=True)
class FarToken:
    """A token far from the sampler: where it is, and both log-probs in nats."""

    place: TokenPlace
    logprob: float
    rollout_logprob: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **asdict(self.place),
            "logprob": self.logprob,
            "rollout_logprob": self.rollout_logprob,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """How far the checkpoint is from the recorded log-probs.

    Attributes:
        by_step: the gap of step indexes `(first, last)`: one by one, or where there are more than
            16 in stretches that double.
        by_kind: the gap of parts of actions, by the kinds the record tells.
        worst: the furthest tokens first.
        n_not_comparable: recorded log-probs left out, in all; `not_comparable`: by reason.
        n_not_recorded: scored tokens without a recorded log-prob.
    """

    gap: Gap
    by_step: Mapping[tuple[int, int], Gap]
    by_kind: Mapping[str, Gap]
    worst: tuple[FarToken, ...]
    n_not_comparable: int
    not_comparable: Mapping[str, int]
    n_not_recorded: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **self.gap.to_dict(),
            "by_step": [
                {"first": first, "last": last, **gap.to_dict()}
                for (first, last), gap in self.by_step.items()
            ],
            "by_kind": {kind: gap.to_dict() for kind, gap in self.by_kind.items()},
            "worst": [one.to_dict() for one in self.worst],
            "aliases": {name: list(aliases) for name, (_, aliases) in FIGURES.items()},
            "n_not_recorded": self.n_not_recorded,
            "n_not_comparable": self.n_not_comparable,
            "not_comparable": dict(self.not_comparable),
        }


def mismatch_of(tokens: ScoredTokens, not_comparable: Mapping[str, int]) -> Mismatch | None:
    """Return how far the checkpoint is from the sampler, `None` when nothing was recorded."""
    recorded = tokens.rollout_logprobs.astype(np.float64)
    n_not_recorded = int(np.isnan(recorded).sum())
    if n_not_recorded == len(recorded):
        return None
    recorded[~tokens.step_comparable[tokens.step]] = math.nan
    gap = measure_gap(tokens.logprobs, recorded)
    kinds = tokens.kind
    return Mismatch(
        gap=gap,
        by_step={
            (first, last): found for first, last, found in _by_step(tokens, recorded) if found.n
        },
        by_kind={
            str(KINDS[kind]): found
            for kind in np.unique(kinds)
            if (found := measure_gap(tokens.logprobs[kinds == kind], recorded[kinds == kind])).n
        },
        worst=tuple(
            FarToken(
                place=tokens.place(token),
                logprob=float(tokens.logprobs[token]),
                rollout_logprob=float(recorded[token]),
            )
            for token in gap.worst
        ),
        n_not_comparable=sum(not_comparable.values()),
        not_comparable=dict(not_comparable),
        n_not_recorded=n_not_recorded,
    )


def _by_step(tokens: ScoredTokens, recorded: F64) -> Iterator[tuple[int, int, Gap]]:
    """Yield the gap of each stretch of step indexes."""
    index = tokens.step_index[tokens.step]
    order = np.argsort(index, kind="stable")
    ours, theirs, sorted_index = tokens.logprobs[order], recorded[order], index[order]
    for first, last in stretches(sorted_index):
        start, end = np.searchsorted(sorted_index, (first, last + 1))
        yield first, last, measure_gap(ours[start:end], theirs[start:end])


def stretches(index: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return ranges (first, last) that cover some step indexes: one by one, or doubling."""
    values = np.unique(index).tolist()
    if len(values) <= _MOST_STEPS:
        return [(value, value) for value in values]
    bounds = [(0, 0)]
    while bounds[-1][1] < values[-1]:
        first = bounds[-1][1] + 1
        bounds.append((first, 2 * first - 1))
    return [*bounds[:-1], (bounds[-1][0], min(bounds[-1][1], values[-1]))]
