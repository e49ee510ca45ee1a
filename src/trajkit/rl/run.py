"""DATA and a table of scores in, losses out: no model is asked, and none is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trajkit.errors import InputError, NumericError, Place, UsageProblem
from trajkit.records import Floats, Step, Trajectory
from trajkit.rl.counted import Counted, counted_tokens
from trajkit.rl.losses import loss_names
from trajkit.rl.report import LossTable, finite, loss_table
from trajkit.rl.tokens import ScoredStep, TokenCollector, sampled_ids
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.store.scores import Scores, open_scores
from trajkit.tokenizer import Tokenizer
from trajkit.training import TrainPolicy, policy_named

SCHEMA = "trajkit.losses/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossesReport:
    """Losses out of a table of scores.

    Attributes:
        n_trajectories: those with a row in the table; `n_unscored`: those without.
        n_action_tokens: action tokens of the former; `n_scored_tokens`: those with a log-prob.
        by_source: steps by where their ids are from.
        model: which checkpoint gave the log-probs, as the table says it.
    """

    n_trajectories: int
    n_unscored: int
    n_steps: int
    n_action_tokens: int
    n_scored_tokens: int
    by_source: Mapping[str, int]
    model: Mapping[str, Any]
    reference: Mapping[str, Any] | None
    table: LossTable

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; a number that is infinite is null there, with its reason."""
        n_sampled = self.by_source.get("sampled", 0)
        full = {
            "schema": SCHEMA,
            "sampled_share": n_sampled / self.n_steps if self.n_steps else None,
            "n_trajectories": self.n_trajectories,
            "n_unscored": self.n_unscored,
            "n_steps": self.n_steps,
            "n_action_tokens": self.n_action_tokens,
            "n_scored_tokens": self.n_scored_tokens,
            "by_source": dict(self.by_source),
            "model": dict(self.model),
            "reference": None if self.reference is None else dict(self.reference),
            **self.table.to_dict(),
        }
        found: dict[str, Any] = finite(full)
        return found


def losses(  # noqa: PLR0913 - one argument an option of the command
    data: Dataset | Path | str,
    scores: Path | str,
    *,
    losses: Sequence[str] | None = None,
    train: str = "action",
    tokenizer: Tokenizer | None = None,
    length: int | None = None,
    limit: int | None = None,
    only: Collection[str] = (),
) -> LossesReport:
    """Return what `score` would say of the same log-probs, and other losses of them.

    Args:
        data: step records.
        scores: what `score` wrote about them.
        losses: see `loss_names`.
        train: the name of a training policy.
        tokenizer: tells thoughts and answers where no segment does.
        length: the constant that some presets divide by: a trainer's longest response.
        limit: how many trajectories at most.
        only: trajectory ids; empty takes all.

    Raises:
        UsageProblem: U103 for an unknown loss or policy, for scores of other data, and for a policy
            that counts context where the scores have none; U107.
        InputError: T102 another tokenizer; what `open_dataset` and `open_scores` raise.
        NumericError: N105 when no action token has a log-prob.
    """
    names, policy = loss_names(losses), policy_named(train)
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    check_told_by(dataset, tokenizer)
    table = open_scores(Path(scores), dataset)
    collector, counts, by_source = TokenCollector(), Counter[str](), Counter[str]()
    for trajectory in read_trajectories(dataset, only=only, limit=limit):
        scored = scored_steps(trajectory, table, policy, tokenizer)
        if scored is None:
            counts["n_unscored"] += 1
            continue
        collector.add(trajectory, scored)
        by_source.update(str(step.action_source) for step in trajectory.steps)
        counts["n_trajectories"] += 1
        counts["n_steps"] += len(trajectory.steps)
        counts["n_action_tokens"] += sum(int(sampled_ids(one).sum()) for one in trajectory.steps)
    if not collector.n_tokens:
        raise NumericError(
            "N105", "no action token has a log-prob in the scores", place=Place(file=str(scores))
        )
    return LossesReport(
        n_trajectories=counts["n_trajectories"],
        n_unscored=counts["n_unscored"],
        n_steps=counts["n_steps"],
        n_action_tokens=counts["n_action_tokens"],
        n_scored_tokens=collector.n_tokens,
        by_source=dict(by_source),
        model=table.metadata.get("model", {}),
        reference=table.metadata.get("reference"),
        table=loss_table(collector.finish(), names, train=policy.name, length=length),
    )


def check_told_by(dataset: Dataset, tokenizer: Tokenizer | None) -> None:
    """Raise T102 when DATA name another tokenizer than the one that is to read their ids."""
    if tokenizer is None or dataset.tokenizer_fingerprint in {None, tokenizer.fingerprint}:
        return
    name = dataset.metadata.get("tokenizer_name") or "another tokenizer"
    raise InputError(
        "T102",
        f"the data were made with {name}, and --tokenizer is not that",
        hint="with another tokenizer the ids spell other words: thoughts would count as answers",
    )


def scored_steps(
    trajectory: Trajectory, scores: Scores, policy: TrainPolicy, tokenizer: Tokenizer | None
) -> list[ScoredStep] | None:
    """Return the steps of a trajectory that have log-probs; `None` when the table has no row of it.

    Raises:
        InputError: S103 when the table is damaged.
    """
    rows = scores.of(trajectory)
    if not rows:
        return None
    known = {index: row for index, row in rows.items() if row.logprobs is not None}
    counted = counted_tokens(trajectory, policy, tokenizer) if known else {}
    scored = []
    for step in trajectory.steps:
        row = known.get(step.step_index)
        if row is None or row.logprobs is None:
            continue
        if policy.trains_context and row.context_logprobs is None:
            raise UsageProblem(
                "U103",
                f"--train {policy.name} counts context, of which these scores have no log-probs",
                place=step.place,
                hint=f"trajkit score DATA --model DIR --train {policy.name} -o SCORES.parquet",
            )
        scored.append(scored_step(step, row, counted.get(step.step_index)))
    return scored


def scored_step(step: Step, row: Numbers, counted: Counted | None) -> ScoredStep:
    """Return what losses need of a step: its log-probs, and which of them count."""
    if row.logprobs is None:
        raise ValueError("a step without log-probs has no losses")
    around, n_before = None, 0
    if counted is not None and row.context_logprobs is not None:
        n_delta = 0 if step.prompt_delta is None else len(step.prompt_delta)
        around = row.context_logprobs[counted.context]
        n_before = int(counted.context[:n_delta].sum())
    return ScoredStep(
        step=step,
        logprobs=row.logprobs,
        ref_logprobs=row.ref_logprobs,
        exact_kl=row.exact_kl,
        entropy=row.entropy,
        loss_mask=None if counted is None else counted.action,
        context_logprobs=around,
        n_before=n_before,
    )


class Numbers(Protocol):
    """What a model said of a step: a row of scores, on disk or just computed."""

    @property
    def logprobs(self) -> Floats | None:
        """Return [A] nats."""

    @property
    def ref_logprobs(self) -> Floats | None:
        """Return [A] nats."""

    @property
    def exact_kl(self) -> Floats | None:
        """Return [A] nats."""

    @property
    def entropy(self) -> Floats | None:
        """Return [A] nats."""

    @property
    def context_logprobs(self) -> Floats | None:
        """Return [D + L] nats."""
