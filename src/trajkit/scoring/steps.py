"""Trajectories into scores per step: one forward pass over each token sequence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from trajkit.errors import NumericError, Place
from trajkit.records import Floats, Ids, Step, Trajectory, read_only
from trajkit.scoring.logprobs import Positions, TokenScores, check_ids, fits, token_scores
from trajkit.scoring.mismatch import NoiseFloor, measure_gap
from trajkit.scoring.model import LoadedModel
from trajkit.scoring.scored import ScoredTrajectory, Status, StepScores
from trajkit.sequence import SequenceStep, TokenSequence, build_sequences

_Pass: TypeAlias = tuple[TokenSequence, list[SequenceStep]]
"""A sequence and the steps one forward pass over it scores, ascending."""

_NO_FLOATS: Floats = np.empty(0, dtype=np.float32)
_NO_IDS: Ids = read_only(np.empty(0, dtype=np.int32))


def score_trajectory(loaded: LoadedModel, trajectory: Trajectory) -> ScoredTrajectory:
    """Return the scores of every step, in the trajectory's order.

    A trajectory with NaN or +inf among the logits of a scored row loses all its numbers
    (`NONFINITE`): the rest of the same pass cannot be trusted either. One that needs a pass longer
    than the model's positions gets none (`TOO_LONG`), and the model is not asked.

    Raises:
        InputError, UsageProblem: see `token_scores`.
    """
    statuses = _statuses(trajectory)
    passes = list(_passes(loaded, trajectory, statuses))
    _check_ids(loaded, passes)
    n_longest = max((group[-1].action_end for _, group in passes), default=0)
    if not fits(loaded, n_longest):
        rows, passes = _without_numbers(trajectory, statuses, Status.TOO_LONG), []
    else:
        rows = _rows(loaded, trajectory, statuses, passes)
    places = [place for _, group in passes for place in group]
    return ScoredTrajectory(
        trajectory=trajectory,
        steps=rows,
        n_forwards=len(passes),
        n_forwarded_tokens=sum(group[-1].action_end for _, group in passes),
        n_raw_tokens=sum(place.step.sequence_len or 0 for place in places),
        n_longest=n_longest,
    )


def _rows(
    loaded: LoadedModel, trajectory: Trajectory, statuses: Sequence[Status], passes: Sequence[_Pass]
) -> tuple[StepScores, ...]:
    """Return a row for each step, after all passes."""
    done: dict[int, StepScores] = {}
    is_finite = True
    for sequence, places in passes:
        scores = _run_pass(loaded, sequence, places)
        is_finite &= not scores.n_nonfinite
        for place, part in zip(places, _split(scores, places), strict=True):
            done[place.step.step_index] = part
    if not is_finite:
        return _without_numbers(trajectory, statuses, Status.NONFINITE)
    return tuple(
        done.get(step.step_index) or _row_without_pass(step, status)
        for step, status in zip(trajectory.steps, statuses, strict=True)
    )


def _row_without_pass(step: Step, status: Status) -> StepScores:
    """Return the row of a step no pass was made for: null, but `[]` for an action without ids."""
    if status is not Status.OK:
        return StepScores(step=step, status=status)
    return StepScores(
        step=step, status=status, logprobs=_NO_FLOATS, entropy=_NO_FLOATS, rank=_NO_IDS
    )


def _without_numbers(
    trajectory: Trajectory, statuses: Sequence[Status], why: Status
) -> tuple[StepScores, ...]:
    """Return rows of nulls; steps that had been scored otherwise say why they are not."""
    return tuple(
        StepScores(step=step, status=why if status is Status.OK else status)
        for step, status in zip(trajectory.steps, statuses, strict=True)
    )


def score_step_alone(loaded: LoadedModel, step: Step) -> TokenScores:
    """Return the scores of a step's action from a pass over its own prompt + action alone."""
    prompt, action = step.prompt_ids, step.action_tokens
    if prompt is None or action is None:
        raise ValueError("the step has no ids to score")
    ids = np.concatenate([prompt, action])
    return token_scores(
        loaded, ids, np.arange(len(prompt), len(ids), dtype=np.int64), place=step.place
    )


def _statuses(trajectory: Trajectory) -> list[Status]:
    if any(step.media for step in trajectory.steps):
        return [Status.MEDIA] * len(trajectory.steps)
    return [_status(step) for step in trajectory.steps]


def _status(step: Step) -> Status:
    if step.exclude_reason is not None:
        return Status.EXCLUDED
    if step.action_tokens is None:
        return Status.NO_ACTION
    return Status.NO_PROMPT if step.prompt_delta is None else Status.OK


def _passes(
    loaded: LoadedModel, trajectory: Trajectory, statuses: Sequence[Status]
) -> Iterator[_Pass]:
    """Yield each forward pass: a sequence and the steps it scores, ascending.

    One per sequence, unless the model reads long sequences with other rotary frequencies: then the
    steps that end before that point need a pass that ends there too.
    """
    wanted = {
        step.step_index
        for step, status in zip(trajectory.steps, statuses, strict=True)
        if status is Status.OK and step.n_action_tokens
    }
    for sequence in build_sequences(trajectory):
        places = [place for place in sequence.steps if place.step.step_index in wanted]
        switch = loaded.rope_switch
        if switch is None:
            groups = [places]
        else:
            groups = [
                [place for place in places if place.action_end <= switch],
                [place for place in places if place.action_end > switch],
            ]
        yield from ((sequence, group) for group in groups if group)


def _check_ids(loaded: LoadedModel, passes: Sequence[_Pass]) -> None:
    for sequence, places in passes:
        for place in places:
            check_ids(loaded, sequence.token_ids[place.start : place.action_end], place.step.place)


def _run_pass(
    loaded: LoadedModel, sequence: TokenSequence, places: Sequence[SequenceStep]
) -> TokenScores:
    targets: list[Positions] = [
        np.arange(place.action_start, place.action_end, dtype=np.int64) for place in places
    ]
    return token_scores(
        loaded,
        sequence.token_ids[: places[-1].action_end],
        np.concatenate(targets),
        place=Place(file=places[-1].step.source_file, trajectory_id=sequence.trajectory_id),
    )


def _split(scores: TokenScores, places: Sequence[SequenceStep]) -> Iterator[StepScores]:
    at = 0
    for place in places:
        part = slice(at, at := at + place.step.n_action_tokens)
        yield StepScores(
            step=place.step,
            status=Status.OK,
            logprobs=scores.logprobs[part],
            entropy=scores.entropy[part],
            rank=scores.rank[part],
        )


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
            hint="the model's numbers depend on what follows an action; --recheck 0 shows them",
        )
    return NoiseFloor(gap=gap, n_forwards=len(rows))


def _joined(parts: Iterable[Floats]) -> Floats:
    return np.concatenate([_NO_FLOATS, *parts])
