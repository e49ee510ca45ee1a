"""Trajectories into scores per step: every prefix is read once where the model allows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
import torch

from trajkit.records import Floats, Ids, Step, Trajectory, read_only
from trajkit.scoring.context import with_context_asked, without_context_asked
from trajkit.scoring.forward.logprobs import (
    TokenScores,
    check_ids,
    fits,
    has_ids,
    memory_full,
    pass_scores,
    rows_at_once,
)
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.memory import free_bytes
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
from trajkit.scoring.running.team import no_room
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
        n_ref_forwarded_tokens: ids the reference model read.
    """

    scored: tuple[ScoredTrajectory, ...]
    n_forwards: int
    n_forwarded_tokens: int
    n_row_tokens: int
    n_raw_tokens: int
    n_ref_forwarded_tokens: int = 0


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
    with_context: bool = False,
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
        reference: a second model, for `ref_logprobs`. It reads the same passes where it can
            (`read_alike`), which gives `exact_kl` too; passes of its own where not.
        with_context: whether the ids around actions are scored too, for `context_logprobs`.
        told: called after each pass with the ids read by all models, and those to read, about.

    Raises:
        InputError: I304 for an id outside the vocabulary, S103 for a prompt that cannot be rebuilt.
        UsageProblem: U106 when a single sequence does not fit in the GPU's memory, or a pass of
            several processes.
    """
    is_alike = reference is not None and read_alike(loaded, reference)
    together = reference if is_alike else None
    n_reads = 1 if reference is None else 2

    def tell(n_read: int, n_to_read: int) -> None:
        if told is not None:
            told(n_read * (n_reads if is_alike else 1), n_to_read * n_reads)

    batch = _score_alike(
        loaded,
        trajectories,
        tokens_per_batch=tokens_per_batch,
        reference=together,
        with_context=with_context,
        told=tell,
    )
    if reference is None:
        return batch
    if is_alike:
        return replace(batch, n_ref_forwarded_tokens=batch.n_forwarded_tokens)
    n_before = batch.n_forwarded_tokens

    def tell_more(n_read: int, n_to_read: int) -> None:
        if told is not None:
            told(n_before + n_read, n_before + n_to_read)

    other = _score_alike(reference, trajectories, tokens_per_batch=tokens_per_batch, told=tell_more)
    return replace(
        batch,
        scored=tuple(map(_with_reference, batch.scored, other.scored)),
        n_ref_forwarded_tokens=other.n_forwarded_tokens,
    )


def _score_alike(
    loaded: LoadedModel,
    trajectories: Sequence[Trajectory],
    *,
    tokens_per_batch: int | None,
    told: _Told,
    reference: LoadedModel | None = None,
    with_context: bool = False,
) -> Batch:
    """Return the scores of trajectories by one model, or by two that read the same passes."""
    wide = [with_context_asked(one) for one in trajectories] if with_context else trajectories
    asked = [(one, steps_to_score(one)) for one in wide]
    _check_own_ids(loaded, asked)
    longest = [max(map(step_length, steps), default=0) for _, steps in asked]
    is_short = [fits(loaded, n) for n in longest]
    fitting = list(compress(asked, is_short))
    plan = _plan(loaded, fitting, list(compress(trajectories, is_short)))
    _check_context(loaded, plan)
    budget = tokens_per_batch or default_budget(loaded, reference)
    packs = pack_rows(plan) if loaded.why_unshared else pack_trees(plan, budget)
    table = _score(loaded, plan, packs, told, reference)
    wanted = {one.step: one for one in plan.wanted}
    scored = [
        ScoredTrajectory(
            trajectory=one, steps=_rows(one, wanted, table, is_short=short), n_longest=n
        )
        for one, short, n in zip(wide, is_short, longest, strict=True)
    ]
    return Batch(
        scored=tuple(map(without_context_asked, trajectories, scored) if with_context else scored),
        n_forwards=table.n_forwards,
        n_forwarded_tokens=table.n_forwarded_tokens,
        n_row_tokens=sum(row_tokens(one, steps) for one, steps in fitting),
        n_raw_tokens=sum(step_length(step) for _, steps in fitting for step in steps),
    )


def _with_reference(scored: ScoredTrajectory, asked: ScoredTrajectory) -> ScoredTrajectory:
    """Return a trajectory's scores with the log-probs that the reference model gave."""
    steps = tuple(
        replace(row, ref_logprobs=other.logprobs) if row.status is Status.OK else row
        for row, other in zip(scored.steps, asked.steps, strict=True)
    )
    return replace(scored, steps=steps)


_CPU_TOKENS = 8192
_CUDA_TOKENS = 2**11, 2**17
_CUDA_SHARE = 0.8


def default_budget(loaded: LoadedModel, reference: LoadedModel | None = None) -> int:
    """Return how many ids one pass may read: a constant on the CPU, what free memory holds on CUDA.

    Where a reference reads the same passes, the wider of the two models counts.
    """
    if loaded.device.type != "cuda":
        return _CPU_TOKENS
    n_bytes = max(_token_bytes(one.model) for one in (loaded, reference) if one is not None)
    team = loaded.team
    free = free_bytes(loaded.device) if team is None else team.free_memory()
    return int(min(max(_CUDA_SHARE * (free or 0) / n_bytes, _CUDA_TOKENS[0]), _CUDA_TOKENS[1]))


def _token_bytes(model: Any) -> int:
    """Return what a token takes in a layer's widest moment, about.

    That is 6 hidden, 3 intermediate and 2 (query + 2 key) values, keys with as many heads as
    queries; twice that leaves room for what the allocator keeps.
    """
    config = model.config.get_text_config()
    hidden = int(config.hidden_size)
    wide = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    heads, size = (getattr(config, name, None) for name in ("num_attention_heads", "head_dim"))
    query = heads * size if isinstance(heads, int) and isinstance(size, int) else hidden
    return 2 * int(model.dtype.itemsize) * (6 * hidden + 3 * wide + 6 * max(hidden, query))


def _plan(loaded: LoadedModel, asked: Sequence[_Asked], recorded: Sequence[Trajectory]) -> Plan:
    if loaded.why_unshared is not None:
        return plan_rows(asked, switch=loaded.rope_switch)
    return plan_tree(grouped(asked, recorded))[0]


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
    told: _Told,
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
    """Return the scores of a pass, `None` when it does not fit in memory.

    Before a pass is given up its logits are made a quarter as many at a time, where they are many.
    """
    n_rows = rows_at_once(loaded, reference)
    few = max(1, n_rows // 4)
    for n_at_once in (n_rows, few) if len(targets) > few else (n_rows,):
        try:
            return pass_scores(loaded, reading, targets, reference=reference, chunk_rows=n_at_once)
        except torch.OutOfMemoryError as problem:
            if loaded.team is not None:
                raise no_room(len(reading.token_ids)) from problem
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
