"""What a plan reads, walked one row at a time: the slow way, to hold the fast one against."""

from __future__ import annotations

from collections.abc import Iterable

from trajkit.records import Trajectory
from trajkit.scoring.planning.plan import Plan
from trajkit.scoring.scored import steps_to_score


def read_by(plan: Plan, row: int) -> tuple[int, ...]:
    """Return the ids that a row has seen: all of each run above it, its own up to itself."""
    (run,) = (
        at
        for at, (start, end) in enumerate(zip(plan.run_start, plan.run_end, strict=True))
        if start <= row < end
    )
    seen = plan.token_ids[plan.run_start[run] : row + 1].tolist()
    while (run := int(plan.run_parent[run])) >= 0:
        seen = plan.token_ids[plan.run_start[run] : plan.run_end[run]].tolist() + seen
    return tuple(seen)


def contexts(plan: Plan) -> list[tuple[int, ...]]:
    """Return what each row has seen."""
    return [read_by(plan, row) for row in range(len(plan.token_ids))]


def wanted_pairs(trajectories: Iterable[Trajectory]) -> set[tuple[tuple[int, ...], int]]:
    """Return every (context, token) that a step asks for, from whole prompts."""
    pairs = set()
    for trajectory in trajectories:
        for step in steps_to_score(trajectory):
            assert step.prompt_ids is not None
            assert step.action_tokens is not None
            context = tuple(step.prompt_ids.tolist())
            for token in step.action_tokens.tolist():
                if context:
                    pairs.add((context, token))
                context = (*context, token)
    return pairs
