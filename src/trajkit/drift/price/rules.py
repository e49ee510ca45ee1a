"""What each trainer's rule makes of a trajectory whose prompts do not go on as they should.

The rules are judged on the ids that the record holds: a prompt either starts with what a training
row holds already, or it parts from it somewhere. What a row holds is always the prompt and action
of its last step, whether that was appended or overwritten, so the table of parents answers
everything and no prompt is ever rebuilt. Limits on the length of a row are no part of a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.drift.price.counts import Counts
from trajkit.records import SegmentKind, Step

_FORK_THRESHOLD = 1024
"""The default of TRL's `fork_threshold_tokens` and of slime's."""

_Join: TypeAlias = Callable[[Step, Step], int | None]
"""How many ids of a row's prompt + action are left when a step joins it; `None`: a new row."""
_Held: TypeAlias = Callable[[Step, Step | None], Step | None]
"""The step whose row a step may join, of the step and the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCost(Counts):
    """What a trainer's rule makes of trajectories; steps without recorded prompts are left out.

    Attributes:
        n_rows: training rows.
        n_trained_tokens: sampled tokens that are trained, each once.
        n_lost_tokens: sampled tokens that are not. Tokens of steps with an `exclude_reason` and
            inserted ids are in neither.
        n_repeated_tokens: ids at the head of a row that the step it grows from brought already:
            `prompt_keep` of the step that opens the row.
        n_emptied_trajectories: trajectories of which nothing is left to train.
    """

    n_rows: int = 0
    n_trained_tokens: int = 0
    n_lost_tokens: int = 0
    n_repeated_tokens: int = 0
    n_emptied_trajectories: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRule:
    """A rule, who has it, and what it does.

    Attributes:
        name: the key in reports.
        source: system and version the rule was read in.
        formula: the rule in words.
        rows_of: rows and lost tokens, of the steps with recorded prompts and how many findings.
    """

    name: str
    source: str
    formula: str
    rows_of: Callable[[Sequence[Step], int], _Rows]

    def cost(self, steps: Sequence[Step], n_findings: int) -> RuleCost:
        """Return what the rule makes of a trajectory.

        Args:
            steps: those with recorded prompts, ascending.
            n_findings: how often any route found drift in the trajectory.
        """
        rows = self.rows_of(steps, n_findings)
        n_all = sum(n_sampled(step) for step in steps)
        n_trained = n_all - rows.n_lost
        return RuleCost(
            n_rows=rows.n_rows,
            n_trained_tokens=n_trained,
            n_lost_tokens=rows.n_lost,
            n_repeated_tokens=rows.n_repeated,
            n_emptied_trajectories=int(n_all > 0 and n_trained == 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    n_rows: int
    n_lost: int = 0
    n_repeated: int = 0


def sampled(step: Step) -> NDArray[np.bool_]:
    """Return [A] True where an action id was sampled and may be trained."""
    mask = step.action_mask
    if mask is None or step.exclude_reason is not None:
        return np.zeros(step.n_action_tokens, dtype=np.bool_)
    start = 0 if step.prompt_delta is None else len(step.prompt_delta)
    return mask[start : start + step.n_action_tokens]


def n_sampled(step: Step, start: int = 0) -> int:
    """Return how many ids of a step's action, from the place `start` on, `sampled` is true of."""
    if step.exclude_reason is not None:
        return 0
    if any(segment.kind is SegmentKind.INSERTED for segment in step.segments or ()):
        return int(sampled(step)[start:].sum())
    return max(0, step.n_action_tokens - start)


# --- which row, and what is left of it ---


def _parent(step: Step, _previous: Step | None) -> Step | None:
    return step.parent


def _previous(_step: Step, previous: Step | None) -> Step | None:
    return previous


def _matched(step: Step, held: Step) -> int:
    """Return how many ids of a step's prompt + action the other step's prompt starts with.

    The table of parents names the step a prompt shares most with. Held against any other step a
    prompt counts as sharing nothing: it has left that step's line.
    """
    return (step.prompt_keep or 0) if step.parent is held else 0


def _whole(step: Step, held: Step) -> int | None:
    matched = _matched(step, held)
    return matched if matched == held.sequence_len else None


def _realign_from_divergence(step: Step, held: Step) -> int | None:
    matched = _matched(step, held)
    is_near = (held.sequence_len or 0) - matched < _FORK_THRESHOLD
    return matched if is_near and matched >= (held.prompt_len or 0) else None


def _realign_whole_action(step: Step, held: Step) -> int | None:
    matched, start = _matched(step, held), held.prompt_len or 0
    if matched == held.sequence_len:
        return matched
    asks_again = matched == start and step.prompt_len == start
    is_short = step.n_action_tokens < _FORK_THRESHOLD
    return start if matched >= start and is_short and not asks_again else None


def _merged(
    steps: Sequence[Step],
    _n_findings: int,
    *,
    join: _Join,
    held_by: _Held,
    keeps_untrained: bool = False,
) -> _Rows:
    """Return the rows that steps make which join the row of another step or open their own.

    Args:
        steps: ascending.
        join: what is left of the row when the step joins it.
        held_by: whose row it may join.
        keeps_untrained: whether a row without a trained token is written.
    """
    rows: list[tuple[int, int]] = []  # trained and repeated tokens of each
    row_of: dict[int, int] = {}  # by the row's last step
    n_lost = 0
    previous = None
    for step in steps:
        held = held_by(step, previous)
        row = None if held is None else row_of.get(held.step_index)
        left = None if row is None or held is None else join(step, held)
        if row is None or held is None or left is None:
            row = len(rows)
            rows.append((0, step.prompt_keep or 0))
            lost = 0
        else:
            del row_of[held.step_index]
            lost = n_sampled(held, left - (held.prompt_len or 0))
        trained, repeated = rows[row]
        rows[row] = trained - lost + n_sampled(step), repeated
        row_of[step.step_index] = row
        n_lost += lost
        previous = step
    written = [row for row in rows if row[0] or keeps_untrained]
    n_repeated = sum(repeated for _, repeated in written)
    return _Rows(n_rows=len(written), n_lost=n_lost, n_repeated=n_repeated)


def _row_per_step(steps: Sequence[Step], _n_findings: int) -> _Rows:
    return _Rows(n_rows=len(steps), n_repeated=sum(step.prompt_keep or 0 for step in steps))


def _one_row_or_none(steps: Sequence[Step], _n_findings: int) -> _Rows:
    broken = any(_whole(step, previous) is None for previous, step in pairwise(steps))
    n_lost = sum(n_sampled(step) for step in steps) if broken else 0
    return _Rows(n_rows=int(bool(steps)), n_lost=n_lost)


_TREE = partial(_merged, join=_whole, held_by=_parent)


def _tree_or_nothing(steps: Sequence[Step], n_findings: int) -> _Rows:
    if not n_findings:
        return _TREE(steps, n_findings)
    return _Rows(n_rows=0, n_lost=sum(n_sampled(step) for step in steps))


TRAINER_RULES: tuple[TrainerRule, ...] = (
    TrainerRule(
        name="row-per-step",
        source="SkyRL a956457, step-wise training without merging; Agent-R1",
        formula="Each step is a row: its recorded prompt and action. All actions are trained.",
        rows_of=_row_per_step,
    ),
    TrainerRule(
        name="keep-recorded",
        source="verifiers a60a606 and prime-rl 559b447, a row per branch, a shared action once; "
        "trajkit's own sequences",
        formula="Recorded ids in, recorded ids out: a prompt that starts with the whole prompt + "
        "action of any step goes on in that step's row; if it does not, or another step went on "
        "there, it opens a row with its recorded prompt. All actions are trained.",
        rows_of=_TREE,
    ),
    TrainerRule(
        name="fork",
        source="tinker-cookbook 9dfcc3a2, rl/data_processing.py, trajectory_to_data",
        formula="A prompt that starts with all that the open row holds goes on in it; any other "
        "prompt closes it for good and opens the next. All actions are trained.",
        rows_of=partial(_merged, join=_whole, held_by=_previous, keeps_untrained=True),
    ),
    TrainerRule(
        name="realign-trl",
        source="TRL f2cd577, async GRPO, rollout_protocol message (PR 6250)",
        formula="A prompt that parts from the open row inside its last action, fewer than 1024 ids "
        "before the row's end, overwrites the row from there on; the overwritten ids are not "
        "trained. Any other prompt that does not go on opens a new row.",
        rows_of=partial(_merged, join=_realign_from_divergence, held_by=_previous),
    ),
    TrainerRule(
        name="realign-slime",
        source="slime 624b824, slime/agent/trajectory.py; branches by the table of parents",
        formula="A prompt that parts from its branch's row inside the last action, and whose own "
        "action is shorter than 1024 ids, overwrites the whole last action, which is not trained. "
        "Any other prompt that does not go on opens a new row; the same prompt asked again is a "
        "branch.",
        rows_of=partial(_merged, join=_realign_whole_action, held_by=_parent),
    ),
    TrainerRule(
        name="mask",
        source="rLLM PR 272, rollout_assemble_mode hybrid with filter_token_mismatch",
        formula="One row a trajectory. When one prompt does not start with the whole prompt + "
        "action of the step before it, nothing in the row is trained.",
        rows_of=_one_row_or_none,
    ),
    TrainerRule(
        name="drop",
        source="a filter in front of training; no trainer's default",
        formula="A trajectory in which any route found drift is left out; the rest is trained as "
        "under keep-recorded.",
        rows_of=_tree_or_nothing,
    ),
)


# --- a straight line: what every rule does without being asked ---


@dataclass(frozen=True, slots=True)
class Line:
    """Sums over straight trajectories: themselves, steps, ids of all kinds, of actions, repeated.

    What is repeated is what the prompts keep.
    """

    n_trajectories: int
    n_steps: int
    n_tokens: int
    n_action: int
    n_repeated: int


def straight(steps: Sequence[Step]) -> Line | None:
    """Return the sums over steps of which each goes on from all of the one before it.

    Every rule makes one row of them, or one a step, and trains all. `None` when they are no such
    line, or when rules could tell them apart all the same: ids are missing, nothing was sampled,
    something is inserted or excluded.
    """
    n_tokens = n_action = n_repeated = 0
    previous: Step | None = None
    for step in steps:
        delta, action, keep = step.prompt_delta, step.action_tokens, step.prompt_keep or 0
        goes_on = step.parent is previous and (previous is None or keep == previous.sequence_len)
        if not goes_on or delta is None or action is None or step.exclude_reason is not None:
            return None
        if any(segment.kind is SegmentKind.INSERTED for segment in step.segments or ()):
            return None
        n_action += len(action)
        n_tokens += len(action) + len(delta)
        n_repeated += keep
        previous = step
    return Line(1, len(steps), n_tokens, n_action, n_repeated) if n_action else None


def costs_of_lines(line: Line, n_findings: int) -> dict[str, RuleCost]:
    """Return what each rule makes of straight trajectories that all drifted, or none of them."""
    one_row = RuleCost(n_rows=line.n_trajectories, n_trained_tokens=line.n_action)
    row_per_step = RuleCost(
        n_rows=line.n_steps, n_trained_tokens=line.n_action, n_repeated_tokens=line.n_repeated
    )
    dropped = RuleCost(n_lost_tokens=line.n_action, n_emptied_trajectories=line.n_trajectories)
    others = {"row-per-step": row_per_step, "drop": dropped if n_findings else one_row}
    return {rule.name: others.get(rule.name, one_row) for rule in TRAINER_RULES}


def costs(steps: Sequence[Step], n_findings: int) -> dict[str, RuleCost]:
    """Return what each rule makes of a trajectory; arguments as of `TrainerRule.cost`."""
    line = straight(steps)
    if line is not None:
        return costs_of_lines(line, n_findings)
    return {rule.name: rule.cost(steps, n_findings) for rule in TRAINER_RULES}
