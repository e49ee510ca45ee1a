"""DATA and a checkpoint in, log-probs of every recorded action out, with losses and mismatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from trajkit.errors import NumericError, Place
from trajkit.records import ActionSource, Trajectory
from trajkit.rl.counted import counted_tokens
from trajkit.rl.losses import loss_names
from trajkit.rl.report import LossTable, loss_table
from trajkit.rl.run import scored_step
from trajkit.rl.tokens import ScoredStep, ScoredTokens, TokenCollector, sampled_ids
from trajkit.safe.files import publish
from trajkit.scoring.checks import (
    check_name,
    check_target,
    check_tokenizer,
    model_facts,
    provenance,
)
from trajkit.scoring.context import with_context_asked, without_context_asked
from trajkit.scoring.loader import quiet_transformers
from trajkit.scoring.logprobs import too_long
from trajkit.scoring.mismatch import NoiseFloor
from trajkit.scoring.model import LoadedModel, load_model
from trajkit.scoring.planning.forecast import windows
from trajkit.scoring.report import (
    Counts,
    Limits,
    ScoreReport,
    exceeded_limits,
    logprob_sums,
    mismatch_of,
)
from trajkit.scoring.scored import ScoredTrajectory, Status, StepScores, scores_table
from trajkit.scoring.steps import measure_noise, score_trajectories
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.store.schema import SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.write import ParquetSink
from trajkit.tokenizer import Tokenizer, load_tokenizer
from trajkit.training import TrainPolicy, policy_named

Progress: TypeAlias = Callable[[int, int], None]

_GROUP_ROWS = 4096
_GROUP_TOKENS = 4 * 2**20


def score(  # noqa: PLR0913 - one argument an option of the command
    data: Dataset | Path | str,
    model: LoadedModel | Path | str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    losses: Sequence[str] | None = None,
    train: str = "action",
    tokenizer: Tokenizer | None = None,
    length: int | None = None,
    ref_model: LoadedModel | Path | str | None = None,
    limit: int | None = None,
    only: Collection[str] = (),
    out: Path | str | None = None,
    overwrite: bool = False,
    recheck: int = 1,
    require_sampled: bool = False,
    max_delta: float | None = None,
    tokens_per_batch: int | None = None,
    adapter: Path | str | None = None,
    progress: Progress | None = None,
) -> ScoreReport:
    """Return what a checkpoint says about the recorded actions, reading every prefix once.

    A trajectory longer than the model's positions, or whose logits are not finite, has no numbers;
    the run goes on, and the report's `exit_code` says so.

    Args:
        data: step records.
        model: a checkpoint folder, or one that `load_model` returned (`device` and `dtype` are
            then its own).
        device: auto, cpu or cuda.
        dtype: auto, fp32, bf16 or fp16.
        losses: see `loss_names`; `None` takes the papers' losses.
        train: the name of a training policy: what the losses are over. One that trains context asks
            for the log-probs of context too.
        tokenizer: tells such a policy thoughts and answers where no segment does; `None` for the
            checkpoint's own.
        length: the constant that some presets divide by: a trainer's longest response.
        ref_model: a second checkpoint, for the losses with a KL term; reads all of it too.
        limit: how many trajectories at most.
        only: trajectory ids; empty takes all.
        out: a Parquet file for `trajkit.scores/1`, one row per step, published when all is done.
        overwrite: replace `out`.
        recheck: how many trajectories to pass again step by step, for the noise floor.
        require_sampled: a scored step whose ids are not the sampler's own is a finding.
        max_delta: a log-prob that differs more from the sampler's is a finding; so is having none.
        tokens_per_batch: the most ids of one pass; `None` for what the device holds.
        adapter: the folder of a LoRA adapter to merge into `model`.
        progress: called after each pass with the steps done, about, and the steps in DATA.

    Raises:
        UsageProblem: U101 to U103, U105 to U107.
        InputError: I304 an id outside the vocabulary, T102 another tokenizer's data; what
            `open_dataset` and `load_model` raise.
        NumericError: N104 two passes disagree; when there is nothing to score, N103 if a sequence
            is too long, else N105.
    """
    names, policy = loss_names(losses), policy_named(train)
    target = None if out is None else Path(out)
    check_name(target)
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    check_target(target, dataset)
    with ExitStack() as stack:
        sink = None
        if target is not None:
            stream = stack.enter_context(publish(target, overwrite=overwrite))
            sink = ParquetSink(stream, SCORES_SCHEMA, SCORES_SCHEMA_NAME)
        is_checked = check_tokenizer(dataset, _folder(model))
        if ref_model is not None:
            check_tokenizer(dataset, _folder(ref_model))
        if tokenizer is None and policy.needs_kinds:
            tokenizer = _own_tokenizer(_folder(model))
        loaded = _loaded(model, device, dtype, adapter)
        reference = None if ref_model is None else _loaded(ref_model, device, dtype, None)
        run = _Run(
            loaded,
            sink,
            reference=reference,
            counting=_Counting(policy, tokenizer),
            recheck=recheck,
            tokens_per_batch=tokens_per_batch,
            n_all_steps=dataset.n_steps,
        )
        stack.enter_context(quiet_transformers())
        for window in windows(read_trajectories(dataset, only=only, limit=limit)):
            run.add(window, progress)
        run.check_not_empty()
        limits = Limits(require_sampled=require_sampled, max_delta=max_delta)
        report = run.report(
            target,
            limits,
            losses=lambda tokens: loss_table(tokens, names, train=policy.name, length=length),
            tokenizer_checked=is_checked,
        )
        if sink is not None:
            options = {"limit": limit, "only": sorted(only)}
            told = provenance(dataset, report.model, report.reference)
            run.close({**told, "options": options})
        return report


def _folder(model: LoadedModel | Path | str) -> Path:
    return model.path if isinstance(model, LoadedModel) else Path(model)


def _loaded(
    model: LoadedModel | Path | str, device: str, dtype: str, adapter: Path | str | None
) -> LoadedModel:
    if isinstance(model, LoadedModel):
        return model
    return load_model(model, device=device, dtype=dtype, adapter=adapter)


def _own_tokenizer(folder: Path) -> Tokenizer | None:
    return load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None


@dataclass(frozen=True, slots=True)
class _Counting:
    """What losses count, and what tells thoughts and answers."""

    policy: TrainPolicy
    tokenizer: Tokenizer | None


class _Run:
    """One scoring run under way: counts, rows to write, tokens to sum."""

    def __init__(
        self,
        loaded: LoadedModel,
        sink: ParquetSink | None,
        *,
        reference: LoadedModel | None,
        counting: _Counting,
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
        self.n_steps = 0

    def add(self, trajectories: Sequence[Trajectory], told: Progress | None) -> None:
        """Score some trajectories together."""
        n_before, n_steps = self.n_steps, sum(len(one.steps) for one in trajectories)

        def tell(n_read: int, n_to_read: int) -> None:
            if told is not None:
                told(n_before + n_steps * n_read // n_to_read, self._n_all_steps)

        asked = trajectories
        if self._counting.policy.trains_context:
            asked = [with_context_asked(one) for one in trajectories]
        batch = score_trajectories(
            self._loaded, asked, tokens_per_batch=self._tokens_per_batch, told=tell
        )
        self._totals.update(
            n_forwards=batch.n_forwards,
            n_forwarded_tokens=batch.n_forwarded_tokens,
            n_row_tokens=batch.n_row_tokens,
            n_raw_tokens=batch.n_raw_tokens,
        )
        scored = batch.scored
        if self._counting.policy.trains_context:
            scored = tuple(map(without_context_asked, trajectories, scored))
        if self._reference is not None:
            other = score_trajectories(
                self._reference, trajectories, tokens_per_batch=self._tokens_per_batch
            )
            self._totals["n_ref_forwarded_tokens"] += other.n_forwarded_tokens
            scored = tuple(map(_with_reference, scored, other.scored))
        for one in scored:
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
