"""Steps of a trajectory into token sequences: what a model is fed, and which tokens are actions.

Steps whose prompt holds the whole of an earlier step's prompt + action continue its sequence, so an
append-only trajectory is one sequence whatever its number of steps. Where a prompt keeps less (a
window, a summary, a retry) a new sequence begins with the kept ids in front, as context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajkit.errors import InputError
from trajkit.records import Ids, Mask, Segment, SegmentKind, Step, Trajectory, read_only


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open token span of a sequence: its kind, the step it belongs to, who wrote it."""

    start: int
    end: int
    kind: SegmentKind
    step_index: int | None
    """`None` for a prefix that another sequence owns."""
    is_action: bool
    """Whether the policy sampled it (inserted ids are not actions)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceStep:
    """Where a step's own tokens lie in a sequence: delta `[start, action_start)`, then action."""

    step: Step
    start: int
    action_start: int
    action_end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSequence:
    """One stream of tokens, each of them in exactly one span.

    Attributes:
        token_ids: [T] int32.
        steps: the steps whose actions this sequence owns, ascending.
        spans: cover `[0, T)` without gap or overlap, ascending.
    """

    trajectory_id: str
    token_ids: Ids
    steps: tuple[SequenceStep, ...]
    spans: tuple[Span, ...]

    @property
    def action_mask(self) -> Mask:
        """Return [T] True where the policy sampled the token."""
        mask = np.zeros(len(self.token_ids), dtype=np.bool_)
        for span in self.spans:
            mask[span.start : span.end] = span.is_action
        mask.setflags(write=False)
        return mask


def build_sequences(trajectory: Trajectory) -> tuple[TokenSequence, ...]:
    """Return the token sequences of a trajectory; each step's action stands in exactly one.

    Steps without recorded prompt ids have no tokens to show and are left out.
    """
    chains: list[list[Step]] = []
    open_at: dict[int, list[Step]] = {}
    for step in trajectory.steps:
        if step.prompt_delta is None:
            continue
        parent = step.parent
        chain = None
        if parent is not None and step.prompt_keep == parent.sequence_len:
            chain = open_at.pop(parent.step_index, None)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(step)
        open_at[step.step_index] = chain
    return tuple(_sequence(trajectory.trajectory_id, chain) for chain in chains)


def step_spans(step: Step) -> Iterator[Segment]:
    """Yield segments that cover delta + action + tail: the step's own, gaps filled.

    What no segment names is `context` around the action and `text` inside it. No segment that is
    yielded crosses the action's borders.

    Raises:
        InputError: S103 when the step's segments overlap or leave its tokens.
    """
    n_delta = 0 if step.prompt_delta is None else len(step.prompt_delta)
    n_tail = 0 if step.tail_tokens is None else len(step.tail_tokens)
    action = n_delta, n_delta + step.n_action_tokens
    end = action[1] + n_tail
    at = 0
    for segment in sorted(step.segments or (), key=lambda s: (s.start, s.end)):
        if not at <= segment.start <= segment.end <= end:
            raise InputError(
                "S103",
                f"its segment {segment.kind} [{segment.start}, {segment.end}) overlaps another or "
                f"leaves the step's {end} tokens",
                place=step.place,
            )
        yield from _cut(at, segment.start, None, action)
        yield from _cut(segment.start, segment.end, segment.kind, action)
        at = segment.end
    yield from _cut(at, end, None, action)


def _cut(
    start: int, end: int, kind: SegmentKind | None, action: tuple[int, int]
) -> Iterator[Segment]:
    """Yield `[start, end)` in parts that lie inside or outside the action."""
    bounds = sorted({start, end, *(border for border in action if start < border < end)})
    for left, right in pairwise(bounds):
        unnamed = SegmentKind.TEXT if action[0] <= left < action[1] else SegmentKind.CONTEXT
        yield Segment(kind or unnamed, left, right)


def _sequence(trajectory_id: str, chain: list[Step]) -> TokenSequence:
    first = chain[0]
    prefix = first.prompt_keep or 0
    ids: list[NDArray[Any]] = []
    spans: list[Span] = []
    steps: list[SequenceStep] = []
    if prefix and first.prompt_ids is not None:
        ids.append(first.prompt_ids[:prefix])
        spans.append(Span(0, prefix, SegmentKind.CONTEXT, None, is_action=False))
    at = prefix
    for step in chain:
        is_last = step is chain[-1]
        parts = [step.prompt_delta, step.action_tokens, step.tail_tokens if is_last else None]
        ids.extend(part for part in parts if part is not None)
        n_delta = 0 if step.prompt_delta is None else len(step.prompt_delta)
        action = at + n_delta, at + n_delta + step.n_action_tokens
        n_tail = 0 if step.tail_tokens is None or not is_last else len(step.tail_tokens)
        steps.append(
            SequenceStep(step=step, start=at, action_start=action[0], action_end=action[1])
        )
        spans.extend(_placed(step, at, action, action[1] + n_tail))
        at = action[1] + n_tail
    token_ids = np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)
    return TokenSequence(
        trajectory_id=trajectory_id,
        token_ids=read_only(token_ids),
        steps=tuple(steps),
        spans=tuple(spans),
    )


def _placed(step: Step, at: int, action: tuple[int, int], end: int) -> Iterator[Span]:
    for segment in step_spans(step):
        start, stop = at + segment.start, min(at + segment.end, end)
        if stop > start:
            inside = action[0] <= start < action[1]
            is_action = inside and segment.kind is not SegmentKind.INSERTED
            yield Span(start, stop, segment.kind, step.step_index, is_action)
