"""What a route brings back from one trajectory, and how a difference becomes a finding."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, TypeAlias

import numpy as np

from trajkit.drift.difference import Difference
from trajkit.drift.findings import UNEXPLAINED, DriftFinding
from trajkit.records import Ids, Step
from trajkit.sequence import SequenceStep
from trajkit.tokenizer import Tokenizer

SHOWN = 64
"""A region is cut here; `evidence.cut` says so."""

CauseOf: TypeAlias = Callable[[Difference], tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Covered:
    """The `[start, end)` of a step's action ids that a region covers."""

    step_index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A finding, and what is needed to count it once.

    Attributes:
        finding: as it is reported.
        covers: the action ids inside its region, step by step.
        other: number and digest of the ids in the region's place; the finding may show fewer.
        n_recorded: the recorded ids of the region.
    """

    finding: DriftFinding
    covers: tuple[Covered, ...]
    other: tuple[int, int]
    n_recorded: int

    @property
    def key(self) -> tuple[object, ...]:
        """Return what two routes share that found the same difference."""
        spot = self.finding.step_index, self.finding.token_start, self.n_recorded
        return *spot, self.finding.kind, self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What a route found in one trajectory.

    Attributes:
        checked: indices of the steps that were checked.
        found: what was found, in any order.
        n_branched_steps: as in `RouteCount`.
        left_out: why steps could not be checked, with how many.
    """

    checked: tuple[int, ...] = ()
    found: tuple[Found, ...] = ()
    n_branched_steps: int = 0
    left_out: tuple[tuple[str, int], ...] = ()


def found_in(
    differences: Iterable[Difference],
    steps: Sequence[SequenceStep],
    offset: int,
    cause_of: CauseOf,
    stop: int | None = None,
) -> Iterator[Found]:
    """Yield the findings of differences between a recorded list and another one.

    A finding belongs to the step whose own ids hold the first one that differs.

    Args:
        differences: of one recorded list.
        steps: the steps around it, ascending, with their places in prompt + action.
        offset: the place of the list's first id there.
        cause_of: names a difference's cause, with its evidence.
        stop: the place where what was compared ends; the list's own end when `None`. What is
            inserted there belongs to the step that ends there, not to the next.
    """
    for difference in differences:
        end = offset + len(difference.recorded.ids) if stop is None else stop
        yield _found(difference, _Around(steps, offset, end), cause_of)


@dataclass(frozen=True, slots=True)
class _Around:
    """The steps around a recorded list, its place among them, and where comparing ended."""

    steps: Sequence[SequenceStep]
    offset: int
    stop: int


def told_apart(ids: Ids) -> tuple[int, int]:
    """Return what tells ids from others without keeping them: their number and a hash."""
    return len(ids), hash(ids.tobytes())


def edges(pieces: Iterable[bytes]) -> tuple[int, ...]:
    """Return where each of the first ids of a region ends, in bytes, of the bytes of each."""
    return tuple(islice(accumulate(map(len, pieces)), SHOWN))


def merged(found: Iterable[Found]) -> list[DriftFinding]:
    """Return findings in the order of their tokens, each difference once.

    The first route that found it speaks; `evidence.also` names the others.
    """
    first: dict[tuple[object, ...], Found] = {}
    also: dict[tuple[object, ...], list[str]] = {}
    for one in found:
        if first.setdefault(one.key, one) is not one:
            also.setdefault(one.key, []).append(one.finding.route.value)
    findings = [
        replace(one.finding, evidence=one.finding.evidence | {"also": also[key]})
        if key in also
        else one.finding
        for key, one in first.items()
    ]
    return sorted(findings, key=lambda finding: (finding.step_index, finding.token_start))


def action_spans(
    steps: Sequence[SequenceStep], start: int, end: int
) -> tuple[tuple[int, int], ...]:
    """Return the spans of a stretch `[start, end)` that are actions, counted from its start."""
    spans = ((max(s.action_start, start), min(s.action_end, end)) for s in steps)
    return tuple((a - start, b - start) for a, b in spans if b > a)


def alone(step: Step) -> SequenceStep:
    """Return the places of a step by itself: prompt from 0, then action."""
    n_prompt = step.prompt_len or 0
    return SequenceStep(
        step=step, start=0, action_start=n_prompt, action_end=n_prompt + step.n_action_tokens
    )


def _found(difference: Difference, around: _Around, cause_of: CauseOf) -> Found:
    steps, offset = around.steps, around.offset
    mine, theirs = difference.recorded, difference.other
    start, end = offset + mine.start, offset + mine.end
    owner = _owner(steps, start, around.stop)
    covers = tuple(_covers(steps, start, end))
    action_start = _action_start(owner, start, end)
    difference = replace(difference, facts=difference.facts | facts_of(owner.step))
    cause, evidence = cause_of(difference)
    left, right = mine.region[:SHOWN], theirs.region[:SHOWN]
    sizes = len(mine.region), len(theirs.region)
    if max(sizes) > SHOWN:
        evidence = evidence | {"cut": True, "n_recorded": sizes[0], "n_other": sizes[1]}
    finding = DriftFinding(
        trajectory_id=owner.step.trajectory_id,
        step_index=owner.step.step_index,
        route=difference.route,
        kind=difference.kind,
        cause=cause,
        token_start=start,
        action_start=action_start,
        byte_start=_byte_start(difference, owner, action_start, offset),
        recorded_ids=tuple(left.tolist()),
        retokenized_ids=tuple(right.tolist()),
        recorded_text=difference.tokenizer.text(left),
        retokenized_text=difference.tokenizer.text(right),
        n_action_tokens=sum(one.end - one.start for one in covers),
        recorded_edges=edges(mine.pieces[mine.start : mine.end]),
        retokenized_edges=edges(theirs.pieces[theirs.start : theirs.end]),
        evidence=evidence,
    )
    return Found(
        finding=finding, covers=covers, other=told_apart(theirs.region), n_recorded=sizes[0]
    )


def _owner(steps: Sequence[SequenceStep], position: int, stop: int) -> SequenceStep:
    """Return the last step that begins at or before a position, and before `stop`.

    What is inserted at the very end of a stretch belongs to the step that ends there.
    """
    at = bisect_right(steps, min(position, max(stop - 1, 0)), key=lambda step: step.start)
    return steps[max(at - 1, 0)]


def _action_start(owner: SequenceStep, start: int, end: int) -> int | None:
    """Return a region's start in the action, `None` when it begins in the prompt or the tail."""
    inside = owner.action_start <= start < owner.action_end
    at_end = start == end == owner.action_end
    return start - owner.action_start if inside or at_end else None


def _covers(steps: Sequence[SequenceStep], start: int, end: int) -> Iterator[Covered]:
    for step in steps:
        left, right = max(step.action_start, start), min(step.action_end, end)
        if right > left:
            origin = step.action_start
            yield Covered(step.step.step_index, left - origin, right - origin)


def _byte_start(
    difference: Difference, owner: SequenceStep, action_start: int | None, offset: int
) -> int | None:
    """Return the bytes of the action before the region, `None` when it begins outside of it."""
    if action_start is None:
        return None
    mine = difference.recorded
    if offset <= owner.action_start:
        return mine.pieces.n_bytes(mine.start) - mine.pieces.n_bytes(owner.action_start - offset)
    action = owner.step.action_tokens
    before = [] if action is None else difference.tokenizer.pieces(action[:action_start])
    return sum(map(len, before))


def facts_of(step: Step) -> dict[str, Any]:
    """Return what the record says of a step besides its ids."""
    known: dict[str, Any] = {
        "finish_reason": step.finish_reason,
        "is_truncated": step.is_truncated,
        "text": step.action_text,
    }
    if step.action_message_json is not None:
        try:
            known["message"] = json.loads(step.action_message_json)
        except (ValueError, RecursionError):
            known["message"] = None
    return {name: value for name, value in known.items() if value is not None}


def require_actions_known(steps: Sequence[Step], tokenizer: Tokenizer) -> None:
    """Raise I304, with its place, when an action holds an id outside the vocabulary.

    The ids of all steps are looked at together: the vocabulary is asked once for each.
    """
    actions = [step.action_tokens for step in steps if step.action_tokens is not None]
    if not actions or tokenizer.first_unknown(np.concatenate(actions)) is None:
        return
    for step in steps:
        if step.action_tokens is not None:
            tokenizer.require_known(step.action_tokens, "action", step.place)


def unexplained(_difference: Difference) -> tuple[str, dict[str, Any]]:
    """Return that nobody has explained a difference."""
    return UNEXPLAINED, {}
