"""What a scoring run found: counts first, then numbers, each beside what it was made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trajkit.errors import ExitCode
from trajkit.rl.losses import LossValue
from trajkit.rl.report import LossTable, finite
from trajkit.rl.tokens import ScoredTokens
from trajkit.scoring.mismatch import DtypeNoise, Mismatch, NoiseFloor

SCHEMA = "trajkit.score/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Which checkpoint gave the numbers, and on what."""

    name: str
    weights_digest: str
    dtype: str
    device: str
    head: str
    n_vocab: int
    max_positions: int | None
    n_unused_tensors: int
    adapter: str | None
    adapter_digest: str | None
    torch: str
    transformers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobSums:
    """Log-probs of the scored action tokens: nats, float64 sums, `None` when there are none.

    Attributes:
        token_mean: sum / tokens.
        sequence_mean: mean over trajectories of each trajectory's token mean.
        trajectory_mean: sum / trajectories, the mean log-probability of a whole trajectory.
    """

    sum: float | None
    token_mean: float | None
    sequence_mean: float | None
    trajectory_mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was read and what became of it.

    Attributes:
        n_action_tokens: tokens the policy sampled, over all steps; each is scored, or is counted in
            `n_first_token` or by the status of its step.
        n_scored_tokens: those with a log-prob; the sums are over these.
        n_not_sampled: scored steps whose ids are not the sampler's own.
        n_neg_inf: scored tokens to which the checkpoint gives probability 0.
        n_nonfinite: trajectories whose logits are NaN or +inf.
        n_too_long: trajectories longer than the model's positions; neither is scored.
        n_without_reference: scored ones for which the reference model has no numbers: too long for
            it, or its logits are NaN or +inf.
        n_forwards: passes that scored; those at loading, which find the head, are in no count.
        n_recheck_forwards: passes that measured the noise floor.
        n_forwarded_tokens: ids the model read to score; `n_row_tokens` with one pass a sequence,
            `n_raw_tokens` with one a step.
        n_ref_forwarded_tokens: ids the reference model read.
    """

    n_trajectories: int
    n_scored_trajectories: int
    n_steps: int
    n_scored_steps: int
    n_not_sampled: int
    n_action_tokens: int
    n_scored_tokens: int
    n_forwarded_tokens: int
    n_row_tokens: int
    n_raw_tokens: int
    n_forwards: int
    n_recheck_forwards: int
    n_first_token: int
    n_neg_inf: int
    n_nonfinite: int
    n_too_long: int
    n_without_reference: int
    n_ref_forwarded_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What this process took to score; windows that were kept or scored elsewhere took nothing.

    Attributes:
        seconds: of wall time, from the plan to the numbers; loading, rechecks and losses are apart.
        n_tokens: ids that models read in them, a reference model's too.
        peak_memory_bytes: the most in use, weights too: of the GPU's tensors while scoring, or on
            the CPU of the whole process since it began; `None` where the system does not say, and
            where nothing was scored.
        peak_memory_of: which of the two, `gpu` or `process`.
    """

    seconds: float
    n_tokens: int
    peak_memory_bytes: int | None
    peak_memory_of: str

    @property
    def tokens_per_second(self) -> float | None:
        """Return ids read a second; `None` where none was."""
        return self.n_tokens / self.seconds if self.n_tokens and self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run must keep to be clean.

    Attributes:
        require_sampled: every scored step's ids are the sampler's own.
        max_delta: nats by which a log-prob may differ from the sampler's; `None` for no limit.
    """

    require_sampled: bool = False
    max_delta: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """A limit of the call that the data do not keep.

    Attributes:
        rule: the option.
        found: `None` when nothing was there to be held against it.
    """

    rule: str
    limit: float
    found: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReport:
    """The whole result of `score`; `to_dict` is its JSON form.

    Attributes:
        sampled_share: steps whose ids are the sampler's own / all steps.
        by_source: steps by `action_source`; `by_status`: steps by what became of them.
        why_unshared: why the model read each sequence by itself; `None` when prefixes were shared.
        tokenizer_checked: whether DATA's tokenizer was compared with the checkpoint's.
        reference: the reference model, `None` when none was asked.
        table: the losses, and what they were made of.
        mismatch: `None` when DATA records no log-probs.
        noise_floor: `None` when it was not asked for.
        dtype_noise: how far half precision is from fp32, or why that is not known.
        effort: what it took this process; the only part that differs from run to run.
        exceeded: limits that were given and not kept.
        out: the scores file, `None` when none was asked for.
    """

    counts: Counts
    sampled_share: float | None
    by_source: Mapping[str, int]
    by_status: Mapping[str, int]
    model: ModelFacts
    reference: ModelFacts | None
    why_unshared: str | None
    tokenizer_checked: bool
    logprob: LogprobSums
    table: LossTable
    mismatch: Mismatch | None
    noise_floor: NoiseFloor | None
    dtype_noise: DtypeNoise
    effort: Effort
    exceeded: tuple[Exceeded, ...]
    out: str | None
    n_kept_windows: int = 0
    """Windows that an earlier start had finished; not in the JSON form: all else is the same."""

    @property
    def exit_code(self) -> ExitCode:
        """Return 6 where a model has no numbers, 1 when a limit is exceeded, else 0."""
        counts = self.counts
        if counts.n_nonfinite or counts.n_too_long or counts.n_without_reference:
            return ExitCode.NUMERIC
        return ExitCode.FINDINGS if self.exceeded else ExitCode.CLEAN

    @property
    def hint(self) -> str | None:
        """Return what to do about trajectories without numbers, `None` where nothing is known."""
        overflows = self.counts.n_nonfinite and self.model.dtype == "fp16"
        return "fp16 ends at 65,504: try --dtype bf16 or fp32" if overflows else None

    @property
    def losses(self) -> Mapping[str, LossValue]:
        """Return the losses by name."""
        return self.table.values

    @property
    def nll(self) -> float | None:
        """Return the negative log-likelihood per token."""
        mean = self.logprob.token_mean
        return None if mean is None else 0.0 - mean

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; a number that is infinite is null there, counted in `n_neg_inf`."""
        full = {
            "schema": SCHEMA,
            "sampled_share": self.sampled_share,
            **asdict(self.counts),
            "by_source": dict(self.by_source),
            "by_status": dict(self.by_status),
            "model": asdict(self.model),
            "reference": None if self.reference is None else asdict(self.reference),
            "sharing": {"is_shared": self.why_unshared is None, "why_not": self.why_unshared},
            "tokenizer_checked": self.tokenizer_checked,
            "logprob": asdict(self.logprob),
            "nll": self.nll,
            **self.table.to_dict(),
            "mismatch": None if self.mismatch is None else self.mismatch.to_dict(),
            "noise_floor": None if self.noise_floor is None else self.noise_floor.to_dict(),
            "dtype_noise": self.dtype_noise.to_dict(),
            "hint": self.hint,
            "effort": self.effort.to_dict(),
            "exceeded": [asdict(one) for one in self.exceeded],
            "out": self.out,
        }
        found: dict[str, Any] = finite(full)
        return found


def logprob_sums(tokens: ScoredTokens) -> LogprobSums:
    """Return the sums over all scored tokens, in float64."""
    if not len(tokens.logprobs):
        return LogprobSums(sum=None, token_mean=None, sequence_mean=None, trajectory_mean=None)
    logprobs = tokens.logprobs.astype(np.float64)
    total = float(logprobs.sum())
    lengths = np.bincount(tokens.trajectory)
    sums = np.bincount(tokens.trajectory, weights=logprobs)
    means = sums[lengths > 0] / lengths[lengths > 0]
    return LogprobSums(
        sum=total,
        token_mean=total / len(logprobs),
        sequence_mean=float(means.mean()),
        trajectory_mean=total / len(means),
    )


def exceeded_limits(
    mismatch: Mismatch | None, n_not_sampled: int, limits: Limits
) -> tuple[Exceeded, ...]:
    """Return the limits that are not kept. With nothing to compare, a limit on it is not kept."""
    found: list[Exceeded] = []
    if limits.require_sampled and n_not_sampled:
        found.append(Exceeded(rule="require-sampled", limit=0.0, found=float(n_not_sampled)))
    if limits.max_delta is not None:
        worst = None if mismatch is None else mismatch.gap.max_abs
        if mismatch is not None and mismatch.gap.n_infinite:
            worst = math.inf
        if worst is None or worst > limits.max_delta:
            found.append(Exceeded(rule="max-delta", limit=limits.max_delta, found=worst))
    return tuple(found)
