"""What scoring some data would read, without a model: the price of branches, windows and drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from trajkit.records import ActionSource, Ids, Step, Trajectory
from trajkit.rl.tokens import group_of
from trajkit.scoring.context import with_context_asked
from trajkit.scoring.planning.pack import pack_trees
from trajkit.scoring.planning.plan import Break, Group, plan_tree, row_tokens, step_length
from trajkit.scoring.scored import Status, statuses_of, steps_to_score
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.training import policy_named

SCHEMA = "trajkit.score-plan/1"
WINDOW_TOKENS = 2**20
"""Ids that are planned together: trajectories further apart share nothing."""
MIN_COMMON = 256
"""Ids that the first prompts of different groups must have in common to be shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run would read.

    Attributes:
        train: the policy of training; some ask about context too.
        n_scored_steps: steps with an id to score; `n_action_tokens` and, where the policy trains
            context, `n_context_tokens` in all of them.
        n_raw_tokens: ids read with one pass a step; `n_row_tokens`: with one pass a sequence;
            `n_forwarded_tokens`: with one pass over each tree, cut to the budget if one is given.
        n_forwards: passes of the last kind.
        n_read_again: ids that are read again because a prompt left its parent's ids.
    """

    train: str
    n_trajectories: int
    n_steps: int
    n_scored_steps: int
    n_action_tokens: int
    n_context_tokens: int
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
    train: str = "action",
    limit: int | None = None,
    only: Collection[str] = (),
    tokens_per_batch: int | None = None,
    window_tokens: int = WINDOW_TOKENS,
    max_positions: int | None = None,
) -> Forecast:
    """Return what scoring the data would read, for a model that may share prefixes.

    Args:
        data: step records.
        train: the name of a training policy: one that trains context asks about it too.
        limit: how many trajectories at most.
        only: trajectory ids; empty takes all.
        tokens_per_batch: the most ids of one pass; `None` reads each window in one.
        window_tokens: ids that are planned together.
        max_positions: trajectories with a longer step are not read; `None` reads all.

    Raises:
        UsageProblem: U103 for an unknown policy, U107 when a trajectory in `only` is not there.
        InputError: what `open_dataset` raises; S103 when a prompt keeps more than its parents hold.
    """
    policy = policy_named(train)
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    totals: Counter[str] = Counter()
    by_source: Counter[str] = Counter()
    by_status: Counter[str] = Counter()
    breaks: list[Break] = []
    for window in windows(read_trajectories(dataset, only=only, limit=limit), window_tokens):
        wide = [with_context_asked(one) for one in window] if policy.trains_context else window
        asked = [(one, _steps_that_fit(one, max_positions)) for one in wide]
        for recorded, (trajectory, steps) in zip(window, asked, strict=True):
            by_source.update(str(step.action_source) for step in recorded.steps)
            by_status.update(_statuses(trajectory, steps))
            totals.update(_counts(recorded, trajectory, steps))
        plan, found = plan_tree(grouped(asked, window))
        if policy.trains_context:
            found = _breaks(window, asked)
        breaks.extend(found)
        packs = pack_trees(plan, tokens_per_batch or len(plan.token_ids))
        totals["n_forwards"] += len(packs)
        totals["n_forwarded_tokens"] += sum(pack.n_tokens for pack in packs)
    names = (
        *("n_trajectories", "n_steps", "n_scored_steps", "n_action_tokens", "n_context_tokens"),
        *("n_raw_tokens", "n_row_tokens", "n_forwarded_tokens", "n_forwards"),
    )
    n_steps = totals["n_steps"]
    return Forecast(
        train=policy.name,
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
    return cut(trajectories, most, lambda one: sum(map(_own_ids, one.steps)))


_Item = TypeVar("_Item")


def cut(items: Iterable[_Item], most: int, n_ids: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Yield items in stretches that are full once they have `most` ids, in order."""
    window: list[_Item] = []
    n_tokens = 0
    for item in items:
        window.append(item)
        n_tokens += n_ids(item)
        if n_tokens >= most:
            yield window
            window, n_tokens = [], 0
    if window:
        yield window


def grouped(
    asked: Iterable[tuple[Trajectory, Sequence[Step]]],
    recorded: Sequence[Trajectory] | None = None,
) -> list[Group]:
    """Return trajectories with a step to score, together when they are worth reading together.

    Those of one group are, and groups whose first prompts begin with the same instructions. Fewer
    ids in common, the control tokens in front of every prompt, are not worth what every row below
    them would pay.

    Args:
        asked: each with its steps to score.
        recorded: the same as they were recorded, where their context is asked for as if it were
            action: these have the prompts. `None` where nothing was moved.
    """
    groups: dict[Hashable, list[tuple[Trajectory, Sequence[Step]]]] = {}
    prompts: dict[Hashable, Ids | None] = {}
    for at, (trajectory, steps) in enumerate(asked):
        if steps:
            own = trajectory if recorded is None else recorded[at]
            group = group_of(own)
            name: Hashable = at if group is None else group
            groups.setdefault(name, []).append((trajectory, steps))
            prompts.setdefault(name, own.steps[0].prompt_delta)
    together: dict[Hashable, list[tuple[Trajectory, Sequence[Step]]]] = {}
    for name, members in groups.items():
        first = prompts[name]
        is_long = first is not None and len(first) >= MIN_COMMON
        beginning = first[:MIN_COMMON].tobytes() if is_long and first is not None else name
        together.setdefault(beginning, []).extend(members)
    return list(together.values())


def _steps_that_fit(trajectory: Trajectory, max_positions: int | None) -> list[Step]:
    """Return the steps with an id to score, none where one of them is too long."""
    steps = steps_to_score(trajectory)
    longest = max(map(step_length, steps), default=0)
    return [] if max_positions and longest > max_positions else steps


def _statuses(trajectory: Trajectory, steps: Sequence[Step]) -> list[str]:
    """Return what becomes of each step; `steps` are those that are read."""
    is_too_long = not steps and bool(steps_to_score(trajectory))
    return [
        str(Status.TOO_LONG if is_too_long and one is Status.OK else one)
        for one in statuses_of(trajectory)
    ]


def _breaks(
    recorded: Sequence[Trajectory], asked: Sequence[tuple[Trajectory, Sequence[Step]]]
) -> tuple[Break, ...]:
    """Return where prompts left their parents' ids; what is asked about does not change that."""
    read = [{step.step_index for step in steps} for _, steps in asked]
    plain = [
        (one, [step for step in steps_to_score(one) if step.step_index in some])
        for one, some in zip(recorded, read, strict=True)
    ]
    return plan_tree(grouped(plain))[1]


def _counts(recorded: Trajectory, asked: Trajectory, steps: Sequence[Step]) -> dict[str, int]:
    own = {step.step_index: step.n_action_tokens for step in recorded.steps}
    n_action = sum(own[step.step_index] for step in steps)
    return {
        "n_trajectories": 1,
        "n_steps": len(recorded.steps),
        "n_scored_steps": len(steps),
        "n_action_tokens": n_action,
        "n_context_tokens": sum(step.n_action_tokens for step in steps) - n_action,
        "n_raw_tokens": sum(map(step_length, steps)),
        "n_row_tokens": row_tokens(asked, steps),
    }


def _own_ids(step: Step) -> int:
    return step.n_action_tokens + (0 if step.prompt_delta is None else len(step.prompt_delta))
