"""Route `pair`: two recordings of the same trajectories, each step's ids against the other's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trajkit.align import common_prefix, same_ids
from trajkit.drift.difference import differences
from trajkit.drift.findings import Route
from trajkit.drift.routes.join import is_joinable
from trajkit.drift.walked import CauseOf, Found, Walked, action_spans, alone, found_in
from trajkit.records import Ids, Step, Trajectory
from trajkit.sequence import SequenceStep
from trajkit.tokenizer import Tokenizer

NO_PARTNER = "the other recording has no such step"


class Partners:
    """The trajectories of another recording, by id; those met too early are kept until asked for.

    In two recordings with the same order none is kept.
    """

    def __init__(
        self, trajectories: Iterator[Trajectory], facts: Mapping[str, Any] | None = None
    ) -> None:
        """`facts` is what is known of both recordings: see `trajkit.drift.causes`."""
        self.facts = dict(facts or {})
        self._coming = trajectories
        self._waiting: dict[str, Trajectory] = {}

    def take(self, trajectory_id: str) -> Trajectory | None:
        """Return the trajectory of that id, `None` when there is none."""
        while trajectory_id not in self._waiting:
            met = next(self._coming, None)
            if met is None:
                return None
            self._waiting[met.trajectory_id] = met
        return self._waiting.pop(trajectory_id)

    def n_left(self) -> int:
        """Return how many nobody asked for, reading on to the end."""
        return len(self._waiting) + sum(1 for _ in self._coming)


def walk_pair(
    batch: Sequence[Trajectory],
    tokenizer: Tokenizer,
    wanted: Callable[[int], bool],
    cause_of: CauseOf,
    partners: Partners,
) -> list[Walked]:
    """Return what the route finds in each trajectory of a batch.

    Raises:
        InputError: I304 when an id is outside the vocabulary.
    """
    return [_walk(one, partners, tokenizer, wanted, cause_of) for one in batch]


def _walk(
    trajectory: Trajectory,
    partners: Partners,
    tokenizer: Tokenizer,
    wanted: Callable[[int], bool],
    cause_of: CauseOf,
) -> Walked:
    partner = partners.take(trajectory.trajectory_id)
    others = {} if partner is None else {step.step_index: step for step in partner.steps}
    matcher = _Matcher(tokenizer, cause_of, partners.facts)
    checked: list[int] = []
    found: list[Found] = []
    n_alone = 0
    for step in trajectory.steps:
        other = others.get(step.step_index)
        if not is_joinable(step):
            continue
        is_wanted = wanted(step.step_index)
        if other is None or other.prompt_delta is None or other.action_tokens is None:
            n_alone += is_wanted
            continue
        new = matcher.compare(step, other)
        if is_wanted:
            checked.append(step.step_index)
            found += new
    return Walked(
        checked=tuple(checked),
        found=tuple(found),
        left_out=((NO_PARTNER, n_alone),) if n_alone else (),
    )


class _Matcher:
    """The walk over two trajectories: what was compared at a parent is not compared again."""

    def __init__(self, tokenizer: Tokenizer, cause_of: CauseOf, facts: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._facts = dict(facts)
        self._cause_of = cause_of
        self._n_same: dict[int, int] = {}
        """How many ids both prompt + action begin with, by step."""
        self._seen: set[tuple[object, ...]] = set()

    def compare(self, step: Step, other: Step) -> list[Found]:
        """Return where the two differ in what no earlier step has shown already."""
        start, other_start, n_same = self._starts(step, other)
        mine, theirs = _ids_from(step, start), _ids_from(other, other_start)
        if start == other_start == n_same:
            n_same += common_prefix(mine, theirs)
        self._n_same[step.step_index] = n_same
        if same_ids(mine, theirs):
            return []
        self._tokenizer.require_known(mine, "recorded", step.place)
        self._tokenizer.require_known(theirs, "other", other.place)
        return [
            one
            for one in self._differences(step, mine, theirs, start)
            if not self._is_known(one, step)
        ]

    def _starts(self, step: Step, other: Step) -> tuple[int, int, int]:
        """Return from where on each is compared, and how many ids are known to be the same."""
        parent, other_parent = step.parent, other.parent
        if parent is None or other_parent is None or parent.step_index != other_parent.step_index:
            return 0, 0, 0
        n_same = self._n_same.get(parent.step_index, 0)
        keep, other_keep = step.prompt_keep or 0, other.prompt_keep or 0
        if (keep, other_keep) == (parent.sequence_len, other_parent.sequence_len):
            return keep, other_keep, n_same
        start = min(n_same, keep, other_keep)
        return start, start, start

    def _differences(self, step: Step, mine: Ids, theirs: Ids, start: int) -> Iterator[Found]:
        steps: list[SequenceStep] = [alone(step)]
        found = differences(
            mine,
            theirs,
            self._tokenizer,
            route=Route.PAIR,
            action=action_spans(steps, start, start + len(mine)),
            facts=self._facts,
        )
        yield from found_in(found, steps, start, self._cause_of)

    def _is_known(self, found: Found, step: Step) -> bool:
        """Return whether an earlier step showed a difference that this prompt only keeps."""
        key = found.key[1:]
        is_known = key in self._seen and found.finding.token_start < (step.prompt_keep or 0)
        self._seen.add(key)
        return is_known


def _ids_from(step: Step, start: int) -> Ids:
    """Return the ids of a step's prompt + action from a position on."""
    keep = step.prompt_keep or 0
    prompt = step.prompt_delta if start == keep else step.prompt_ids
    own = [part for part in (prompt, step.action_tokens) if part is not None]
    ids = np.concatenate(own)
    return ids if start == keep else ids[start:]
