"""DATA and a checkpoint in, log-probs of every recorded action out, with losses and mismatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trajkit.errors import NumericError, Place, UsageProblem
from trajkit.records import ActionSource, Trajectory
from trajkit.safe.files import publish
from trajkit.scoring.advantages import token_advantages
from trajkit.scoring.guards import (
    check_name,
    check_target,
    check_tokenizer,
    demand_sampled,
    loss_names,
)
from trajkit.scoring.loader import quiet_transformers
from trajkit.scoring.logprobs import too_long
from trajkit.scoring.mismatch import NoiseFloor
from trajkit.scoring.model import LoadedModel, load_model
from trajkit.scoring.report import Counts, ModelFacts, ScoreReport
from trajkit.scoring.scored import ScoredTrajectory, Status, StepScores, scores_table
from trajkit.scoring.steps import measure_noise, score_trajectory
from trajkit.scoring.summary import logprob_sums, loss_values, mismatch_of
from trajkit.scoring.tokens import TokenCollector, sampled_ids
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.store.schema import SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.write import ParquetSink

_GROUP_ROWS = 4096
_GROUP_TOKENS = 4 * 2**20


def score(  # noqa: PLR0913 - one argument an option of the command
    data: Dataset | Path | str,
    model: LoadedModel | Path | str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    losses: Sequence[str] | None = None,
    limit: int | None = None,
    only: Collection[str] = (),
    out: Path | str | None = None,
    overwrite: bool = False,
    recheck: int = 1,
    require_sampled: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ScoreReport:
    """Return what a checkpoint says about the recorded actions: one forward pass per sequence.

    A trajectory longer than the model's positions, or whose logits are not finite, has no numbers;
    the run goes on, and the report's `exit_code` says so.

    Args:
        data: step records.
        model: a checkpoint folder, or one that `load_model` returned (`device` and `dtype` are
            then its own).
        device: auto, cpu or cuda.
        dtype: auto, fp32, bf16 or fp16.
        losses: names of `LOSSES`; `None` takes all of them.
        limit: how many trajectories at most.
        only: trajectory ids; empty takes all.
        out: a Parquet file for `trajkit.scores/1`, one row per step, published when all is done.
        overwrite: replace `out`.
        recheck: how many trajectories to pass again step by step, for the noise floor.
        require_sampled: stop at a step whose ids are not the sampler's own.
        progress: called after each trajectory with the steps done and the steps in DATA.

    Raises:
        UsageProblem: U101 to U103, U105 to U107.
        InputError: I202 a step is not sampled, I304 an id outside the vocabulary, T102 another
            tokenizer's data; what `open_dataset` and `load_model` raise.
        NumericError: N104 two passes disagree; when there is nothing to score, N103 if a sequence
            is too long, else N105.
    """
    names = loss_names(losses)
    target = None if out is None else Path(out)
    check_name(target)
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    check_target(target, dataset)
    with ExitStack() as stack:
        sink = None
        if target is not None:
            stream = stack.enter_context(publish(target, overwrite=overwrite))
            sink = ParquetSink(stream, SCORES_SCHEMA, SCORES_SCHEMA_NAME)
        folder = model.path if isinstance(model, LoadedModel) else Path(model)
        is_checked = check_tokenizer(dataset, folder)
        if isinstance(model, LoadedModel):
            loaded = model
        else:
            loaded = load_model(model, device=device, dtype=dtype)
        run = _Run(loaded, sink, recheck=recheck)
        stack.enter_context(quiet_transformers())
        for trajectory in read_trajectories(dataset, only=only, limit=limit):
            if require_sampled:
                demand_sampled(trajectory)
            run.add(trajectory)
            if progress is not None:
                progress(run.n_steps, dataset.n_steps)
        run.check_not_empty(only)
        facts = _facts(loaded)
        report = run.report(names, facts, target, tokenizer_checked=is_checked)
        if sink is not None:
            options = {"limit": limit, "only": sorted(only)}
            run.close({**_provenance(dataset, facts), "options": options})
        return report


class _Run:
    """One scoring run under way: counts, rows to write, tokens to sum."""

    def __init__(self, loaded: LoadedModel, sink: ParquetSink | None, *, recheck: int) -> None:
        self._loaded = loaded
        self._sink = sink
        self._recheck = recheck
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

    def add(self, trajectory: Trajectory) -> None:
        """Score one trajectory."""
        scored = score_trajectory(self._loaded, trajectory)
        statuses = {row.status for row in scored.steps}
        self.n_steps += len(scored.steps)
        self._by_source.update(str(step.action_source) for step in trajectory.steps)
        self._by_status.update(str(row.status) for row in scored.steps)
        self._totals.update(
            n_trajectories=1,
            n_scored_trajectories=Status.OK in statuses,
            n_nonfinite=Status.NONFINITE in statuses,
            n_too_long=Status.TOO_LONG in statuses,
            n_action_tokens=sum(int(sampled_ids(step).sum()) for step in trajectory.steps),
            n_forwards=scored.n_forwards,
            n_forwarded_tokens=scored.n_forwarded_tokens,
            n_raw_tokens=scored.n_raw_tokens,
        )
        if Status.TOO_LONG in statuses and self._too_long is None:
            self._too_long = scored
        self._tokens.add(scored)
        self._remember_for_recheck(scored)
        if self._sink is not None:
            self._rows.extend(scored.steps)
            self._n_pending += trajectory.n_action_tokens
            if len(self._rows) >= _GROUP_ROWS or self._n_pending >= _GROUP_TOKENS:
                self._flush()

    def check_not_empty(self, only: Collection[str]) -> None:
        """Raise when no trajectory was selected, or none has a token that could be scored."""
        if only and not self._totals["n_trajectories"]:
            raise UsageProblem("U107", f"no trajectory is named {', '.join(sorted(only)[:3])}")
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
        names: Sequence[str],
        facts: ModelFacts,
        target: Path | None,
        *,
        tokenizer_checked: bool,
    ) -> ScoreReport:
        """Return the report over everything that was added."""
        if self._recheck and self._noise is None:
            self._noise = measure_noise(self._loaded, self._to_recheck)
        tokens = self._tokens.finish()
        advantages = token_advantages(tokens)
        sizes = advantages.group_sizes
        n_sampled = self._by_source[ActionSource.SAMPLED]
        return ScoreReport(
            counts=Counts(
                **{name: self._totals[name] for name in _TOTALS},
                n_steps=self.n_steps,
                n_scored_steps=self._by_status[Status.OK],
                n_scored_tokens=len(tokens.logprobs),
                n_first_token=self._tokens.n_first_token,
                n_neg_inf=self._tokens.n_neg_inf,
                n_without_baseline=advantages.n_without_baseline,
                n_without_reward=advantages.n_without_reward,
                n_groups=len(sizes),
                n_recorded_advantages_ignored=advantages.n_recorded_ignored,
                n_recheck_forwards=0 if self._noise is None else self._noise.n_forwards,
            ),
            sampled_share=n_sampled / self.n_steps if self.n_steps else None,
            by_source=dict(self._by_source),
            by_status=dict(self._by_status),
            model=facts,
            tokenizer_checked=tokenizer_checked,
            logprob=logprob_sums(tokens),
            losses=loss_values(tokens, advantages, names),
            advantage_source=advantages.source,
            group_sizes=(min(sizes), max(sizes)) if sizes else None,
            mismatch=mismatch_of(tokens, self._tokens.not_comparable),
            noise_floor=self._noise,
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
    "n_forwards", "n_forwarded_tokens", "n_raw_tokens",
)  # fmt: skip


def _facts(loaded: LoadedModel) -> ModelFacts:
    with quiet_transformers() as transformers:
        version = str(transformers.__version__)
    return ModelFacts(
        name=loaded.name,
        weights_digest=loaded.weights_digest,
        dtype=loaded.dtype,
        device=loaded.device_name,
        head=str(loaded.head.kind),
        n_vocab=loaded.n_vocab,
        max_positions=loaded.max_positions,
        n_unused_tensors=len(loaded.unused_tensors),
        torch=str(torch.__version__),
        transformers=version,
    )


def _provenance(dataset: Dataset, facts: ModelFacts) -> Mapping[str, Any]:
    """Return what identifies the weights and DATA: their digests, and the software between."""
    return {
        "model": asdict(facts),
        "data": {"row_groups": list(_data_digests(dataset)), "n_steps": dataset.n_steps},
    }


def _data_digests(dataset: Dataset) -> Iterator[str]:
    for part in dataset.parts:
        yield from open_dataset(part).metadata.get("row_groups", [])
