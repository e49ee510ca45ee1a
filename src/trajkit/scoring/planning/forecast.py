"""What scoring some data would read, without a model: the price of branches, windows and drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trajkit.records import ActionSource, Step, Trajectory
from trajkit.rl.tokens import group_of
from trajkit.scoring.planning.pack import pack_trees
from trajkit.scoring.planning.plan import Break, Group, plan_tree, row_tokens, step_length
from trajkit.scoring.scored import Status, statuses_of, steps_to_score
from trajkit.store.read import Dataset, open_dataset, read_trajectories

SCHEMA = "trajkit.score-plan/1"
WINDOW_TOKENS = 2**20
"""Ids that are planned together: trajectories further apart share nothing."""
MIN_COMMON = 256
"""Ids that the first prompts of different groups must have in common to be shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run would read.

    Attributes:
        n_scored_steps: steps whose action would be scored; `n_action_tokens` in all of them.
        n_raw_tokens: ids read with one pass a step; `n_row_tokens`: with one pass a sequence;
            `n_forwarded_tokens`: with one pass over each tree, cut to the budget if one is given.
        n_forwards: passes of the last kind.
        n_read_again: ids that are read again because a prompt left its parent's ids.
    """

    n_trajectories: int
    n_steps: int
    n_scored_steps: int
    n_action_tokens: int
    n_raw_tokens: int
    n_row_tokens: int
    n_forwarded_tokens: int
    n_forwards: int
    n_read_again: int
    sampled_share: float | None
    by_source: Mapping[str, int]
    by_status: Mapping[str, int]
    tokens_per_batch: int | None
    breaks: tuple[Break, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}


def forecast(
    data: Dataset | Path | str,
    *,
    limit: int | None = None,
    only: Collection[str] = (),
    tokens_per_batch: int | None = None,
    max_positions: int | None = None,
) -> Forecast:
    """Return what scoring the data would read, for a model that may share prefixes.

    Args:
        data: step records.
        limit: how many trajectories at most.
        only: trajectory ids; empty takes all.
        tokens_per_batch: the most ids of one pass; `None` reads each window in one.
        max_positions: trajectories with a longer step are not read; `None` reads all.

    Raises:
        UsageProblem: U107 when a trajectory in `only` is not there.
        InputError: what `open_dataset` raises; S103 when a prompt keeps more than its parents hold.
    """
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    totals: Counter[str] = Counter()
    by_source: Counter[str] = Counter()
    by_status: Counter[str] = Counter()
    breaks: list[Break] = []
    for window in windows(read_trajectories(dataset, only=only, limit=limit)):
        asked: list[tuple[Trajectory, list[Step]]] = []
        for trajectory in window:
            steps, statuses = steps_to_score(trajectory), statuses_of(trajectory)
            if max_positions and max(map(step_length, steps), default=0) > max_positions:
                steps = []
                statuses = [Status.TOO_LONG if one is Status.OK else one for one in statuses]
            asked.append((trajectory, steps))
            by_source.update(str(step.action_source) for step in trajectory.steps)
            by_status.update(str(status) for status in statuses)
            totals.update(_counts(trajectory, steps))
        plan, found = plan_tree(grouped(asked))
        breaks.extend(found)
        packs = pack_trees(plan, tokens_per_batch or len(plan.token_ids))
        totals["n_forwards"] += len(packs)
        totals["n_forwarded_tokens"] += sum(pack.n_tokens for pack in packs)
    names = (
        *("n_trajectories", "n_steps", "n_scored_steps", "n_action_tokens", "n_raw_tokens"),
        *("n_row_tokens", "n_forwarded_tokens", "n_forwards"),
    )
    n_steps = totals["n_steps"]
    return Forecast(
        **{name: totals[name] for name in names},
        n_read_again=sum(one.n_read_again for one in breaks),
        sampled_share=by_source[ActionSource.SAMPLED] / n_steps if n_steps else None,
        by_source=dict(by_source),
        by_status={status: by_status[status] for status in Status if by_status[status]},
        tokens_per_batch=tokens_per_batch,
        breaks=tuple(breaks),
    )


def windows(
    trajectories: Iterable[Trajectory], most: int = WINDOW_TOKENS
) -> Iterator[list[Trajectory]]:
    """Yield trajectories in stretches of about `most` ids of their own, in order."""
    window: list[Trajectory] = []
    n_tokens = 0
    for trajectory in trajectories:
        window.append(trajectory)
        n_tokens += sum(_own_ids(step) for step in trajectory.steps)
        if n_tokens >= most:
            yield window
            window, n_tokens = [], 0
    if window:
        yield window


def grouped(asked: Iterable[tuple[Trajectory, Sequence[Step]]]) -> list[Group]:
    """Return trajectories with a step to score, together when they are worth reading together.

    Those of one group are, and groups whose first prompts begin with the same instructions. Fewer
    ids in common, the control tokens in front of every prompt, are not worth what every row below
    them would pay.
    """
    groups: dict[Hashable, list[tuple[Trajectory, Sequence[Step]]]] = {}
    for at, (trajectory, steps) in enumerate(asked):
        if steps:
            group = group_of(trajectory)
            groups.setdefault(at if group is None else group, []).append((trajectory, steps))
    together: dict[Hashable, list[tuple[Trajectory, Sequence[Step]]]] = {}
    for name, members in groups.items():
        first = members[0][0].steps[0].prompt_delta
        is_long = first is not None and len(first) >= MIN_COMMON
        beginning = first[:MIN_COMMON].tobytes() if is_long and first is not None else name
        together.setdefault(beginning, []).extend(members)
    return list(together.values())


def _counts(trajectory: Trajectory, steps: Sequence[Step]) -> dict[str, int]:
    return {
        "n_trajectories": 1,
        "n_steps": len(trajectory.steps),
        "n_scored_steps": len(steps),
        "n_action_tokens": sum(step.n_action_tokens for step in steps),
        "n_raw_tokens": sum(map(step_length, steps)),
        "n_row_tokens": row_tokens(trajectory, steps),
    }


def _own_ids(step: Step) -> int:
    return step.n_action_tokens + (0 if step.prompt_delta is None else len(step.prompt_delta))
