"""Log-probs of context beside those of actions: what the environment said, under the checkpoint.

A step is scored as if all that it brings, delta + action + tail, were its action: the planner then
asks about each of these ids, and reads every prefix once as before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajkit.records import Ids, Step, Trajectory, read_only
from trajkit.scoring.scored import ScoredTrajectory, StepScores

_NO_IDS: Ids = read_only(np.empty(0, dtype=np.int32))


def with_context_asked(trajectory: Trajectory) -> Trajectory:
    """Return the same ids with the border of each recorded action moved to all its step brings."""
    made: dict[int, Step] = {}
    for step in trajectory.steps:
        parent = None if step.parent is None else made[step.parent.step_index]
        made[step.step_index] = _widened(replace(step, parent=parent))
    return replace(trajectory, steps=tuple(made.values()))


def without_context_asked(trajectory: Trajectory, scored: ScoredTrajectory) -> ScoredTrajectory:
    """Return the scores of the trajectory that was widened, action and context apart."""
    steps = tuple(
        _parted(step, row) for step, row in zip(trajectory.steps, scored.steps, strict=True)
    )
    return replace(scored, trajectory=trajectory, steps=steps)


def _widened(step: Step) -> Step:
    if step.prompt_delta is None or step.action_tokens is None:
        return step
    tail = _NO_IDS if step.tail_tokens is None else step.tail_tokens
    return replace(
        step,
        prompt_delta=_NO_IDS,
        prompt_len=step.prompt_keep or 0,
        action_tokens=read_only(np.concatenate([step.prompt_delta, step.action_tokens, tail])),
        tail_tokens=None,
        segments=None,
    )


def _parted(step: Step, row: StepScores) -> StepScores:
    if row.logprobs is None or step.prompt_delta is None:
        return replace(row, step=step)
    start = len(step.prompt_delta)
    end = start + step.n_action_tokens

    def action(column: NDArray[Any] | None) -> Any:
        return None if column is None else column[start:end]

    return replace(
        row,
        step=step,
        logprobs=action(row.logprobs),
        entropy=action(row.entropy),
        rank=action(row.rank),
        ref_logprobs=action(row.ref_logprobs),
        exact_kl=action(row.exact_kl),
        context_logprobs=np.concatenate([row.logprobs[:start], row.logprobs[end:]]),
    )
