"""One scoring run under way: windows scored or taken from where they are kept, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from trajkit.errors import NumericError, Place
from trajkit.records import ActionSource, Trajectory
from trajkit.rl.counted import counted_tokens
from trajkit.rl.report import LossTable
from trajkit.rl.run import scored_step
from trajkit.rl.tokens import ScoredStep, ScoredTokens, TokenCollector, sampled_ids
from trajkit.scoring.checks import model_facts
from trajkit.scoring.context import with_context_asked, without_context_asked
from trajkit.scoring.job import Company, Job
from trajkit.scoring.logprobs import too_long
from trajkit.scoring.mismatch import NoiseFloor
from trajkit.scoring.model import LoadedModel
from trajkit.scoring.parts import Parts, Window
from trajkit.scoring.report import (
    Counts,
    Limits,
    ScoreReport,
    exceeded_limits,
    logprob_sums,
    mismatch_of,
)
from trajkit.scoring.scored import ScoredTrajectory, Status, StepScores, scores_table
from trajkit.scoring.steps import measure_noise, read_alike, score_trajectories
from trajkit.store.write import ParquetSink
from trajkit.tokenizer import Tokenizer
from trajkit.training import TrainPolicy

Progress: TypeAlias = Callable[[int, int], None]

_GROUP_ROWS = 4096
_GROUP_TOKENS = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Counting:
    """What losses count, and what tells thoughts and answers."""

    policy: TrainPolicy
    tokenizer: Tokenizer | None


class Run:
    """One scoring run under way: counts, rows to write, tokens to sum."""

    def __init__(
        self,
        loaded: LoadedModel,
        sink: ParquetSink | None,
        *,
        reference: LoadedModel | None,
        counting: Counting,
        recheck: int,
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
        self._noise: NoiseFloor | None = None
        self._rows: list[StepScores] = []
        self._n_pending = 0
        self._tokens = TokenCollector()
        self._by_source: Counter[str] = Counter()
        self._by_status: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._too_long: ScoredTrajectory | None = None
        self._n_told = 0
        self.n_steps = 0

    def walk(
        self,
        stretches: Callable[[], Iterable[list[Trajectory]]],
        parts: Parts | None,
        job: Job,
        told: Progress | None,
    ) -> int:
        """Take every window of the run: those kept, those of other processes, and the rest anew.

        Returns:
            how many windows an earlier start had finished.
        """
        n_kept = 0
        if parts is None:
            for window in stretches():
                self._take_window(self._scored(window, told))
            return n_kept
        company = Company(parts.folder, job)
        with company.present():
            for number, window in enumerate(stretches()):
                if not job.takes(number):
                    continue
                found = parts.load(number, window)
                n_kept += found is not None
                if found is None:
                    found = self._scored(window, told)
                    parts.save(number, found)
                if job.size == 1 or not job.is_first:
                    self._take_window(found)
            if job.size > 1 and job.is_first:
                for number, window in enumerate(stretches()):
                    company.wait_for(parts.file(number), number % job.size)
                    found = parts.load(number, window)
                    self._take_window(self._scored(window, told) if found is None else found)
                company.wait_for_all()
        return n_kept

    def _scored(self, trajectories: Sequence[Trajectory], told: Progress | None) -> Window:
        """Return some trajectories scored together, and what that cost."""
        n_before, n_steps = self._n_told, sum(len(one.steps) for one in trajectories)

        def tell(n_read: int, n_to_read: int) -> None:
            if told is not None:
                told(n_before + n_steps * n_read // n_to_read, self._n_all_steps)

        asked, together = trajectories, self._reference
        if together is not None and not read_alike(self._loaded, together):
            together = None
        if self._counting.policy.trains_context:
            asked, together = [with_context_asked(one) for one in trajectories], None
        batch = score_trajectories(
            self._loaded,
            asked,
            tokens_per_batch=self._tokens_per_batch,
            reference=together,
            told=tell,
        )
        totals = {
            "n_forwards": batch.n_forwards,
            "n_forwarded_tokens": batch.n_forwarded_tokens,
            "n_row_tokens": batch.n_row_tokens,
            "n_raw_tokens": batch.n_raw_tokens,
        }
        scored = batch.scored
        if self._counting.policy.trains_context:
            scored = tuple(map(without_context_asked, trajectories, scored))
        if together is not None:
            totals["n_ref_forwarded_tokens"] = batch.n_forwarded_tokens
        elif self._reference is not None:
            other = score_trajectories(
                self._reference, trajectories, tokens_per_batch=self._tokens_per_batch
            )
            totals["n_ref_forwarded_tokens"] = other.n_forwarded_tokens
            scored = tuple(map(_with_reference, scored, other.scored))
        self._n_told += n_steps
        return Window(scored=scored, totals=totals)

    def _take_window(self, window: Window) -> None:
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
        if self._recheck and self._noise is None:
            self._noise = measure_noise(self._loaded, self._to_recheck)
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
                n_recheck_forwards=0 if self._noise is None else self._noise.n_forwards,
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
            noise_floor=self._noise,
            exceeded=exceeded_limits(mismatch, self._totals["n_not_sampled"], limits),
            out=None if target is None else str(target),
            n_kept_windows=n_kept,
        )

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
        if len(self._to_recheck) < self._recheck:
            self._to_recheck.append(scored)
        if self._to_recheck and len(self._to_recheck) == self._recheck:
            self._noise = measure_noise(self._loaded, self._to_recheck)
            self._to_recheck.clear()


_TOTALS = (
    "n_trajectories", "n_scored_trajectories", "n_nonfinite", "n_too_long", "n_action_tokens",
    "n_not_sampled", "n_forwards", "n_forwarded_tokens", "n_row_tokens", "n_raw_tokens",
    "n_ref_forwarded_tokens",
)  # fmt: skip


def _with_reference(scored: ScoredTrajectory, asked: ScoredTrajectory) -> ScoredTrajectory:
    """Return a trajectory's scores with the log-probs that the reference model gave."""
    steps = tuple(
        replace(row, ref_logprobs=other.logprobs) if row.status is Status.OK else row
        for row, other in zip(scored.steps, asked.steps, strict=True)
    )
    return replace(scored, steps=steps)


def _is_not_sampled(row: StepScores) -> bool:
    return row.status is Status.OK and row.step.action_source is not ActionSource.SAMPLED
