"""Trajectories into scores per step: every prefix is read once where the model allows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from trajkit.errors import NumericError, Place
from trajkit.records import Floats, Ids, Step, Trajectory, read_only
from trajkit.scoring.logprobs import (
    TokenScores,
    check_ids,
    fits,
    has_ids,
    memory_full,
    pass_scores,
    token_scores,
)
from trajkit.scoring.mismatch import NoiseFloor, measure_gap
from trajkit.scoring.model import LoadedModel
from trajkit.scoring.planning.forecast import grouped
from trajkit.scoring.planning.pack import Pack, Pass, halve, pack_rows, pack_trees, pass_of
from trajkit.scoring.planning.plan import (
    Plan,
    Rows,
    Wanted,
    plan_rows,
    plan_tree,
    row_tokens,
    step_length,
)
from trajkit.scoring.scored import (
    ScoredTrajectory,
    Status,
    StepScores,
    statuses_of,
    steps_to_score,
)

_Asked: TypeAlias = tuple[Trajectory, Sequence[Step]]
_Told: TypeAlias = Callable[[int, int], None]

_NO_FLOATS: Floats = np.empty(0, dtype=np.float32)
_NO_EDGES: Rows = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Trajectories that were scored together, in the order given, and what that cost.

    Attributes:
        n_forwarded_tokens: ids the model read, in `n_forwards` passes.
        n_row_tokens: ids it would have read with one pass a sequence, `n_raw_tokens` with one a
            step.
    """

    scored: tuple[ScoredTrajectory, ...]
    n_forwards: int
    n_forwarded_tokens: int
    n_row_tokens: int
    n_raw_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """What the model says of each edge of a plan [E]."""

    logprobs: Floats
    entropy: Floats
    rank: Ids
    ref_logprobs: Floats | None
    exact_kl: Floats | None
    n_forwards: int
    n_forwarded_tokens: int


def score_trajectories(
    loaded: LoadedModel,
    trajectories: Sequence[Trajectory],
    *,
    tokens_per_batch: int | None = None,
    reference: LoadedModel | None = None,
    told: _Told | None = None,
) -> Batch:
    """Return the scores of every step of some trajectories.

    A trajectory with NaN or +inf among the logits of a scored row loses all its numbers
    (`NONFINITE`). One with a step longer than the model's positions gets none (`TOO_LONG`), and the
    model is not asked.

    Args:
        loaded: the model.
        trajectories: those of one group share the prefixes that they have in common.
        tokens_per_batch: the most ids of one pass; `None` for what the device holds.
        reference: a model that reads the same passes, for `ref_logprobs` and `exact_kl`; see
            `read_alike`.
        told: called after each pass with the ids read, and those to read.

    Raises:
        InputError: I304 for an id outside the vocabulary, S103 for a prompt that cannot be rebuilt.
        UsageProblem: U106 when a single sequence does not fit in the GPU's memory.
    """
    asked = [(one, steps_to_score(one)) for one in trajectories]
    _check_own_ids(loaded, asked)
    longest = [max(map(step_length, steps), default=0) for _, steps in asked]
    fitting = [one for one, n in zip(asked, longest, strict=True) if fits(loaded, n)]
    plan = _plan(loaded, fitting)
    _check_context(loaded, plan)
    budget = tokens_per_batch or default_budget(loaded)
    packs = pack_rows(plan) if loaded.why_unshared else pack_trees(plan, budget)
    table = _score(loaded, plan, packs, told, reference)
    wanted = {one.step: one for one in plan.wanted}
    return Batch(
        scored=tuple(
            ScoredTrajectory(
                trajectory=one,
                steps=_rows(one, wanted, table, is_short=fits(loaded, n)),
                n_longest=n,
            )
            for (one, _), n in zip(asked, longest, strict=True)
        ),
        n_forwards=table.n_forwards,
        n_forwarded_tokens=table.n_forwarded_tokens,
        n_row_tokens=sum(row_tokens(one, steps) for one, steps in fitting),
        n_raw_tokens=sum(step_length(step) for _, steps in fitting for step in steps),
    )


_CPU_TOKENS = 4096
_CUDA_TOKENS = 2**11, 2**17
_CUDA_SHARE = 0.8


def default_budget(loaded: LoadedModel) -> int:
    """Return how many ids one pass may read: a constant on the CPU, what free memory holds on CUDA.

    A layer's widest moment holds about 6 hidden, 3 intermediate and 2 (query + 2 key) values a
    token; twice that leaves room for what the allocator keeps.
    """
    if loaded.device.type != "cuda":
        return _CPU_TOKENS
    config = loaded.model.config.get_text_config()
    hidden = int(config.hidden_size)
    wide = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    n_bytes = 2 * loaded.model.dtype.itemsize * (6 * hidden + 3 * wide + 6 * hidden)
    free, _ = torch.cuda.mem_get_info(loaded.device)
    return int(min(max(_CUDA_SHARE * free / n_bytes, _CUDA_TOKENS[0]), _CUDA_TOKENS[1]))


def score_step_alone(loaded: LoadedModel, step: Step) -> TokenScores:
    """Return the scores of a step's action from a pass over its own prompt + action alone."""
    prompt, action = step.prompt_ids, step.action_tokens
    if prompt is None or action is None:
        raise ValueError("the step has no ids to score")
    ids = np.concatenate([prompt, action])
    return token_scores(
        loaded, ids, np.arange(len(prompt), len(ids), dtype=np.int64), place=step.place
    )


def _plan(loaded: LoadedModel, asked: Sequence[_Asked]) -> Plan:
    if loaded.why_unshared is not None:
        return plan_rows(asked, switch=loaded.rope_switch)
    return plan_tree(grouped(asked))[0]


def read_alike(loaded: LoadedModel, reference: LoadedModel) -> bool:
    """Return whether two models can be given the same passes and have the same ids."""

    def needs(one: LoadedModel) -> tuple[object, ...]:
        shape = one.head.n_rows, one.n_vocab, one.max_positions
        return one.device, one.why_unshared is None, one.rope_switch, *shape

    return needs(loaded) == needs(reference)


def _score(
    loaded: LoadedModel,
    plan: Plan,
    packs: Sequence[Pack],
    told: _Told | None,
    reference: LoadedModel | None,
) -> _Table:
    """Return the scores of every edge; where memory ends, this pass and the next are halved."""
    n_edges = len(plan.edge_row)
    logprobs, entropy = np.full((2, n_edges), np.nan, dtype=np.float32)
    ref_logprobs, exact_kl = np.full((2, n_edges), np.nan, dtype=np.float32)
    rank = np.zeros(n_edges, dtype=np.int32)
    todo = list(packs[::-1])
    n_forwards, n_read, n_left = 0, 0, sum(pack.n_tokens for pack in packs)
    while todo:
        pack = todo.pop()
        reading = pass_of(plan, pack)
        edges = reading.edges
        if not len(edges):
            n_left -= pack.n_tokens
            continue
        scores = _tried(loaded, reading, plan.edge_target[edges], reference)
        if scores is None:
            if len(pack.own) < 2:
                raise memory_full(pack.n_tokens, None)
            todo = _smaller(plan, [*todo, pack], pack.n_tokens // 2)
            n_left = sum(part.n_tokens for part in todo)
            continue
        logprobs[edges], entropy[edges], rank[edges] = scores.logprobs, scores.entropy, scores.rank
        if scores.ref_logprobs is not None and scores.exact_kl is not None:
            ref_logprobs[edges], exact_kl[edges] = scores.ref_logprobs, scores.exact_kl
        n_forwards += 1
        n_read += pack.n_tokens
        n_left -= pack.n_tokens
        if told is not None:
            told(n_read, n_read + n_left)
    return _Table(
        logprobs=logprobs,
        entropy=entropy,
        rank=rank,
        ref_logprobs=None if reference is None else ref_logprobs,
        exact_kl=None if reference is None else exact_kl,
        n_forwards=n_forwards,
        n_forwarded_tokens=n_read,
    )


def _tried(
    loaded: LoadedModel, reading: Pass, targets: Rows, reference: LoadedModel | None
) -> TokenScores | None:
    """Return the scores of a pass, `None` when it does not fit in memory."""
    try:
        return pass_scores(loaded, reading, targets, reference=reference)
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    return None


def _smaller(plan: Plan, packs: Sequence[Pack], budget: int) -> list[Pack]:
    """Return packs that own the same runs, the larger ones cut."""
    return [
        part
        for pack in packs
        for part in (halve(plan, pack)[::-1] if pack.n_tokens > budget else [pack])
    ]


def _rows(
    trajectory: Trajectory, wanted: Mapping[Step, Wanted], table: _Table, *, is_short: bool
) -> tuple[StepScores, ...]:
    """Return a row for each step. When one row is not finite, the trajectory has no numbers."""
    statuses = statuses_of(trajectory)
    edges = [wanted[step].edges for step in trajectory.steps if step in wanted]
    if not is_short:
        return _without_numbers(trajectory, statuses, Status.TOO_LONG)
    if any(np.isnan(table.logprobs[some[some >= 0]]).any() for some in edges):
        return _without_numbers(trajectory, statuses, Status.NONFINITE)
    if table.ref_logprobs is not None:
        asked = np.concatenate([_NO_EDGES, *edges])
        if np.isnan(table.ref_logprobs[asked[asked >= 0]]).any():
            table = replace(table, ref_logprobs=None, exact_kl=None)
    return tuple(
        _row(step, status, wanted.get(step), table)
        for step, status in zip(trajectory.steps, statuses, strict=True)
    )


def _row(step: Step, status: Status, wanted: Wanted | None, table: _Table) -> StepScores:
    """Return the row of a step: null without numbers, `[]` for an action without ids."""
    if status is not Status.OK:
        return StepScores(step=step, status=status)
    edges = _NO_EDGES if wanted is None else wanted.edges
    known = edges >= 0
    logprobs, entropy = np.full((2, len(edges)), np.nan, dtype=np.float32)
    rank = np.zeros(len(edges), dtype=np.int32)
    for column, source in ((logprobs, table.logprobs), (entropy, table.entropy)):
        column[known] = source[edges[known]]
        column.setflags(write=False)
    rank[known] = table.rank[edges[known]]
    return StepScores(
        step=step,
        status=status,
        logprobs=logprobs,
        entropy=entropy,
        rank=read_only(rank),
        ref_logprobs=_column(table.ref_logprobs, edges),
        exact_kl=_column(table.exact_kl, edges),
    )


def _column(source: Floats | None, edges: Rows) -> Floats | None:
    if source is None:
        return None
    column = np.full(len(edges), np.nan, dtype=np.float32)
    column[edges >= 0] = source[edges[edges >= 0]]
    column.setflags(write=False)
    return column


def _without_numbers(
    trajectory: Trajectory, statuses: Sequence[Status], why: Status
) -> tuple[StepScores, ...]:
    """Return rows of nulls; steps that had been scored otherwise say why they are not."""
    return tuple(
        StepScores(step=step, status=why if status is Status.OK else status)
        for step, status in zip(trajectory.steps, statuses, strict=True)
    )


def _check_own_ids(loaded: LoadedModel, asked: Sequence[_Asked]) -> None:
    for _, steps in asked:
        for step in steps:
            for ids in (step.prompt_delta, step.action_tokens):
                if ids is not None:
                    check_ids(loaded, ids, step.place)


def _check_context(loaded: LoadedModel, plan: Plan) -> None:
    """Raise I304 for an id that a step which is not scored left in the context of one that is."""
    if not has_ids(loaded, plan.token_ids):
        for wanted in plan.wanted:
            ids = wanted.step.prompt_ids
            if ids is not None:
                check_ids(loaded, ids, wanted.step.place)


MAX_NOISE_FP32 = 1e-3
"""Nats by which the two ways may differ in fp32; deep models measure below a tenth of this."""


def measure_noise(loaded: LoadedModel, scored: Sequence[ScoredTrajectory]) -> NoiseFloor:
    """Return the noise floor over some scored trajectories: each step is passed again, alone.

    Raises:
        NumericError: N104 when they differ by more than `MAX_NOISE_FP32` in fp32.
    """
    rows = [
        row
        for trajectory in scored
        for row in trajectory.steps
        if row.logprobs is not None and len(row.logprobs)
    ]
    alone = _joined(score_step_alone(loaded, row.step).logprobs for row in rows)
    shared = _joined(row.logprobs for row in rows if row.logprobs is not None)
    gap = measure_gap(alone, shared)
    same_nulls = np.array_equal(np.isnan(alone), np.isnan(shared))
    worst = (gap.max_abs or 0.0) if same_nulls and not gap.n_infinite else math.inf
    if loaded.dtype == "fp32" and worst > MAX_NOISE_FP32:
        ids = ", ".join(one.trajectory.trajectory_id for one in scored)
        raise NumericError(
            "N104",
            f"log-probs of a step differ by {worst:.2g} nats between its own pass and a shared one",
            place=Place(trajectory_id=ids),
            hint="the model's numbers depend on what else a pass reads; --recheck 0 shows them",
        )
    return NoiseFloor(gap=gap, n_forwards=len(rows))


def _joined(parts: Iterable[Floats]) -> Floats:
    return np.concatenate([_NO_FLOATS, *parts])
