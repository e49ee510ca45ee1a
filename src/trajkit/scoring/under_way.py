"""One scoring run under way: windows scored, counted and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trajkit.errors import NumericError, Place
from trajkit.records import ActionSource, Trajectory
from trajkit.rl.counted import counted_tokens
from trajkit.rl.report import LossTable
from trajkit.rl.run import scored_step
from trajkit.rl.tokens import ScoredStep, ScoredTokens, TokenCollector, sampled_ids
from trajkit.scoring.checks import model_facts
from trajkit.scoring.forward.logprobs import too_long
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.meter import Meter
from trajkit.scoring.mismatch import DtypeNoise, NoiseFloor, mismatch_of
from trajkit.scoring.noise import RecheckDtype, measure_dtype_noise, measure_noise
from trajkit.scoring.report import (
    Counts,
    Effort,
    Limits,
    ScoreReport,
    exceeded_limits,
    logprob_sums,
)
from trajkit.scoring.running.parts import Window
from trajkit.scoring.scored import ScoredTrajectory, Status, StepScores, scores_table
from trajkit.scoring.steps import score_trajectories
from trajkit.store.write import ParquetSink
from trajkit.tokenizer import Tokenizer
from trajkit.training import TrainPolicy

Progress: TypeAlias = Callable[[int, int, Effort], None]

_GROUP_ROWS = 4096
_GROUP_TOKENS = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Recheck:
    """How many trajectories are scored again, and in which dtype besides the run's own."""

    n_trajectories: int
    dtype: RecheckDtype


@dataclass(frozen=True, slots=True)
class Counting:
    """What losses count, and what tells thoughts and answers."""

    policy: TrainPolicy
    tokenizer: Tokenizer | None


class Run:
    """One scoring run under way: counts, rows to write, tokens to sum.

    `scored` and the noise ask the model, `take` never does: they may run beside each other.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sink: ParquetSink | None,
        *,
        reference: LoadedModel | None,
        counting: Counting,
        recheck: Recheck,
        tokens_per_batch: int | None,
        n_all_steps: int,
    ) -> None:
        self._loaded = loaded
        self._sink = sink
        self._reference = reference
        self._counting = counting
        self._recheck = recheck
        self._tokens_per_batch = tokens_per_batch
        self._n_all_steps = n_all_steps
        self._to_recheck: list[ScoredTrajectory] = []
        self._noise: tuple[NoiseFloor, DtypeNoise] | None = None
        self._meter = Meter(loaded.device)
        self._rows: list[StepScores] = []
        self._n_pending = 0
        self._tokens = TokenCollector()
        self._by_source: Counter[str] = Counter()
        self._by_status: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._too_long: ScoredTrajectory | None = None
        self._n_told = 0
        self.n_steps = 0

    def scored(self, trajectories: Sequence[Trajectory], told: Progress | None) -> Window:
        """Return some trajectories scored together, and what that cost."""
        n_before, n_steps = self._n_told, sum(len(one.steps) for one in trajectories)

        def tell(n_read: int, n_to_read: int) -> None:
            self._meter.read(n_read)
            if told is not None:
                n_done = n_before + n_steps * n_read // n_to_read
                told(n_done, self._n_all_steps, self._meter.effort())

        with self._meter.running():
            batch = score_trajectories(
                self._loaded,
                trajectories,
                tokens_per_batch=self._tokens_per_batch,
                reference=self._reference,
                with_context=self._counting.policy.trains_context,
                told=tell,
            )
        totals = {
            "n_forwards": batch.n_forwards,
            "n_forwarded_tokens": batch.n_forwarded_tokens,
            "n_row_tokens": batch.n_row_tokens,
            "n_raw_tokens": batch.n_raw_tokens,
            "n_ref_forwarded_tokens": batch.n_ref_forwarded_tokens,
        }
        self._n_told += n_steps
        return Window(scored=batch.scored, totals=totals)

    def take(self, window: Window) -> None:
        """Count a window and write its rows; windows come in the order of the data."""
        self._totals.update(window.totals)
        for one in window.scored:
            self._take(one)

    def _take(self, scored: ScoredTrajectory) -> None:
        trajectory = scored.trajectory
        statuses = {row.status for row in scored.steps}
        self.n_steps += len(scored.steps)
        self._by_source.update(str(step.action_source) for step in trajectory.steps)
        self._by_status.update(str(row.status) for row in scored.steps)
        self._totals.update(
            n_trajectories=1,
            n_scored_trajectories=Status.OK in statuses,
            n_nonfinite=Status.NONFINITE in statuses,
            n_too_long=Status.TOO_LONG in statuses,
            n_without_reference=self._reference is not None and _lacks_reference(scored),
            n_not_sampled=sum(_is_not_sampled(row) for row in scored.steps),
            n_action_tokens=sum(int(sampled_ids(step).sum()) for step in trajectory.steps),
        )
        if Status.TOO_LONG in statuses and self._too_long is None:
            self._too_long = scored
        self._tokens.add(trajectory, self._counted(scored))
        self._remember_for_recheck(scored)
        if self._sink is not None:
            self._rows.extend(scored.steps)
            self._n_pending += trajectory.n_action_tokens
            if len(self._rows) >= _GROUP_ROWS or self._n_pending >= _GROUP_TOKENS:
                self._flush()

    def _counted(self, scored: ScoredTrajectory) -> list[ScoredStep]:
        """Return the scored steps of a trajectory, each with the tokens that losses count."""
        rows = [row for row in scored.steps if row.logprobs is not None]
        how = self._counting
        counted = counted_tokens(scored.trajectory, how.policy, how.tokenizer) if rows else {}
        return [scored_step(row.step, row, counted.get(row.step.step_index)) for row in rows]

    def check_not_empty(self) -> None:
        """Raise when no trajectory has a token that could be scored."""
        if self._tokens.n_tokens or self._totals["n_nonfinite"]:
            return
        if self._too_long is not None:
            first = self._too_long.trajectory
            place = Place(file=first.steps[0].source_file, trajectory_id=first.trajectory_id)
            raise too_long(self._loaded, self._too_long.n_longest, place)
        found = ", ".join(f"{n} {status}" for status, n in sorted(self._by_status.items()))
        raise NumericError(
            "N105",
            f"no action token can be scored; steps by status: {found or 'none'}",
            hint="scoring needs the ids of prompts and actions: ingest logs that recorded them",
        )

    def report(
        self,
        target: Path | None,
        limits: Limits,
        *,
        losses: Callable[[ScoredTokens], LossTable],
        tokenizer_checked: bool,
        n_kept: int,
    ) -> ScoreReport:
        """Return the report over everything that was added."""
        if self._recheck.n_trajectories and self._noise is None:
            self._measure_noise()
        floor, in_fp32 = self._noise or (None, DtypeNoise.not_measured("--recheck 0"))
        tokens = self._tokens.finish()
        mismatch = mismatch_of(tokens, self._tokens.not_comparable)
        n_sampled = self._by_source[ActionSource.SAMPLED]
        return ScoreReport(
            counts=Counts(
                **{name: self._totals[name] for name in _TOTALS},
                n_steps=self.n_steps,
                n_scored_steps=self._by_status[Status.OK],
                n_scored_tokens=len(tokens.logprobs),
                n_first_token=self._tokens.n_first_token,
                n_neg_inf=self._tokens.n_neg_inf,
                n_recheck_forwards=(floor.n_forwards if floor else 0) + in_fp32.n_forwards,
            ),
            sampled_share=n_sampled / self.n_steps if self.n_steps else None,
            by_source=dict(self._by_source),
            by_status=dict(self._by_status),
            model=model_facts(self._loaded),
            reference=None if self._reference is None else model_facts(self._reference),
            why_unshared=self._loaded.why_unshared,
            tokenizer_checked=tokenizer_checked,
            logprob=logprob_sums(tokens),
            table=losses(tokens),
            mismatch=mismatch,
            noise_floor=floor,
            dtype_noise=in_fp32,
            effort=self._meter.effort(),
            exceeded=exceeded_limits(mismatch, self._totals["n_not_sampled"], limits),
            out=None if target is None else str(target),
            n_kept_windows=n_kept,
        )

    def measure_noise_early(self) -> None:
        """Measure the noise once its trajectories are there: what it finds may end the run."""
        n_wanted = self._recheck.n_trajectories
        if self._noise is None and 0 < n_wanted == len(self._to_recheck):
            self._measure_noise()
            self._to_recheck.clear()

    def close(self, metadata: dict[str, Any]) -> None:
        """Write what is left and the footer."""
        if self._sink is not None:
            self._flush()
            self._sink.close(metadata)

    def _flush(self) -> None:
        if self._sink is not None and self._rows:
            self._sink.write_group(scores_table(self._rows))
            self._rows, self._n_pending = [], 0

    def _remember_for_recheck(self, scored: ScoredTrajectory) -> None:
        has_numbers = any(row.logprobs is not None and len(row.logprobs) for row in scored.steps)
        if self._noise is not None or not has_numbers:
            return
        if len(self._to_recheck) < self._recheck.n_trajectories:
            self._to_recheck.append(scored)

    def _measure_noise(self) -> None:
        loaded, sample = self._loaded, self._to_recheck
        self._noise = (
            measure_noise(loaded, sample),
            measure_dtype_noise(loaded, sample, self._recheck.dtype),
        )


_TOTALS = (
    "n_trajectories", "n_scored_trajectories", "n_nonfinite", "n_too_long", "n_action_tokens",
    "n_not_sampled", "n_without_reference", "n_forwards", "n_forwarded_tokens", "n_row_tokens",
    "n_raw_tokens", "n_ref_forwarded_tokens",
)  # fmt: skip


def _lacks_reference(scored: ScoredTrajectory) -> bool:
    return any(row.status is Status.OK and row.ref_logprobs is None for row in scored.steps)


def _is_not_sampled(row: StepScores) -> bool:
    return row.status is Status.OK and row.step.action_source is not ActionSource.SAMPLED
