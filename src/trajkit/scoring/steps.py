"""Trajectories into scores per step: one forward pass over each token sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from trajkit.errors import NumericError, Place
from trajkit.records import Floats, Ids, Step, Trajectory
from trajkit.scoring.logprobs import Positions, TokenScores, check_ids, token_scores
from trajkit.scoring.mismatch import measure_gap
from trajkit.scoring.model import LoadedModel
from trajkit.sequence import SequenceStep, TokenSequence, build_sequences


class Status(StrEnum):
    """What became of a step; only `OK` has numbers."""

    OK = "ok"
    NO_ACTION = "no_action"
    NO_PROMPT = "no_prompt"
    EXCLUDED = "excluded"
    MEDIA = "media"
    NONFINITE = "nonfinite"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepScores:
    """What the model says about a step's action.

    Attributes:
        logprobs: [A] float32 nats, NaN for a token at position 0; `None` unless `OK`.
        entropy: [A] float32 nats; NaN and `None` as above.
        rank: [A] int32; meaningless where log-prob is NaN, `None` as above.
    """

    step: Step
    status: Status
    logprobs: Floats | None = None
    entropy: Floats | None = None
    rank: Ids | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredTrajectory:
    """A trajectory's steps with their scores, and what they cost.

    Attributes:
        n_forwarded_tokens: ids the model read.
        n_raw_tokens: ids it would have read with one pass per step.
    """

    trajectory: Trajectory
    steps: tuple[StepScores, ...]
    n_forwards: int
    n_forwarded_tokens: int
    n_raw_tokens: int


def score_trajectory(loaded: LoadedModel, trajectory: Trajectory) -> ScoredTrajectory:
    """Return the scores of every step, in the trajectory's order.

    A trajectory with NaN or +inf among the logits of a scored row loses all its numbers
    (`NONFINITE`): the rest of the same pass cannot be trusted either.

    Raises:
        InputError, NumericError, UsageProblem: see `token_scores`.
    """
    statuses = _statuses(trajectory)
    passes = list(_passes(loaded, trajectory, statuses))
    done: dict[int, StepScores] = {}
    is_finite = True
    for sequence, places in passes:
        scores = _run_pass(loaded, sequence, places)
        is_finite &= not scores.n_nonfinite
        for place, part in zip(places, _split(scores, places), strict=True):
            done[place.step.step_index] = part
    rows = [
        done.get(step.step_index, StepScores(step=step, status=status))
        for step, status in zip(trajectory.steps, statuses, strict=True)
    ]
    if not is_finite:
        rows = [
            replace(row, status=Status.NONFINITE, logprobs=None, entropy=None, rank=None)
            if row.status is Status.OK
            else row
            for row in rows
        ]
    places = [place for _, group in passes for place in group]
    return ScoredTrajectory(
        trajectory=trajectory,
        steps=tuple(rows),
        n_forwards=len(passes),
        n_forwarded_tokens=sum(group[-1].action_end for _, group in passes),
        n_raw_tokens=sum(place.step.sequence_len or 0 for place in places),
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
) -> Iterator[tuple[TokenSequence, list[SequenceStep]]]:
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


def _run_pass(
    loaded: LoadedModel, sequence: TokenSequence, places: Sequence[SequenceStep]
) -> TokenScores:
    for place in places:
        check_ids(loaded, sequence.token_ids[place.start : place.action_end], place.step.place)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """How far two exact ways of computing the same log-probs lie apart: sharing a pass, or not.

    Attributes:
        n: tokens compared.
        mean_abs, max_abs: nats; `None` when nothing was compared.
    """

    n: int = 0
    mean_abs: float | None = None
    max_abs: float | None = None


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
    if not rows:
        return NoiseFloor()
    alone = np.concatenate([score_step_alone(loaded, row.step).logprobs for row in rows])
    shared = np.concatenate([row.logprobs for row in rows if row.logprobs is not None])
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
    return NoiseFloor(n=gap.n, mean_abs=gap.mean_abs, max_abs=gap.max_abs)
