"""Whose words a rendered text holds: the kind of each stretch of a prompt and of an action."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from trajkit.records import SegmentKind
from trajkit.template import REASONING, Leaf, LeafSpan, Part, Rendered, Turn

Run: TypeAlias = tuple[int, SegmentKind]
"""The character from which on text is of a kind."""

_INSTRUCTIONS = ("system", "developer")
_POLICY = "assistant"
_BLOCKS = re.compile(
    r"(?P<think><think>.*?(?:</think>|\Z))"
    r"|(?P<tool_call><tool_call>.*?(?:</tool_call>|\Z))"
    r"|(?P<opened>\A(?:(?!<think>).)*?</think>)",
    re.DOTALL,
)
"""Thoughts and calls as tags; `opened` are thoughts that the generation prompt began."""
_OPEN = re.compile(r"<think>\s*\Z")
_LONGEST_OPENING = 32
_EMPTY_THOUGHTS = re.compile(r"\s*<think>\s*</think>\s*")


def context_runs(
    turn: Turn, start: int, first_action: int, *, rendered: Rendered | None = None
) -> Iterator[Run]:
    """Yield the kinds of a prompt from a character on, or of what stands behind an action.

    Args:
        turn: whose prompt it is.
        start: the character.
        first_action: the index of the policy's first message; those before it are the prompt.
        rendered: the text behind an action; `None` for the prompt.
    """
    text = turn.prompt if rendered is None else rendered
    end = turn.prompt_end if rendered is None else len(text.text)
    at = start
    for span in text.spans_from(start):
        if span.start >= end:
            break
        if span.start > at:
            yield at, SegmentKind.SCAFFOLD
        yield max(span.start, start), _context_kind(text, span, first_action)
        at = span.end
    yield min(at, end), SegmentKind.SCAFFOLD


def own_start(turn: Turn) -> int:
    """Return where a policy's own words begin: behind an empty block of thoughts not its own."""
    empty = _EMPTY_THOUGHTS.match(turn.rendered.text, turn.start)
    return turn.start if empty is None or empty.end() > turn.text_start else empty.end()


def action_runs(turn: Turn, end: int) -> list[Run]:
    """Return the kinds of an action that ends at a character of its text."""
    text_end = end if turn.stop is None else min(turn.stop[0], end)
    spans = [
        (max(span.start, turn.start), min(span.end, text_end), _action_kind(turn.rendered, span))
        for span in turn.rendered.spans_from(turn.start)
        if span.start < text_end
    ]
    runs = _with_gaps(spans, turn.start, text_end)
    is_open = _OPEN.search(_end_of_prompt(turn)) is not None
    for block in _BLOCKS.finditer(_without_arguments(turn, spans, text_end)):
        start, stop = (turn.start + spot for spot in block.span())
        if block.lastgroup == "tool_call":
            runs = _overlaid(runs, start, stop, SegmentKind.TOOL_CALL)
        elif is_open or block.lastgroup == "think":
            runs = _overlaid(runs, start, stop, SegmentKind.THINK)
    return [*((start, kind) for start, _, kind in runs), (text_end, SegmentKind.STOP)]


_Span: TypeAlias = tuple[int, int, SegmentKind]


def _context_kind(rendered: Rendered, span: LeafSpan, first_action: int) -> SegmentKind:
    if span.leaf is None:
        return SegmentKind.CONTEXT
    leaf = rendered.leaves[span.leaf]
    if leaf.role == _POLICY:
        return SegmentKind.HISTORY
    if leaf.message is None or leaf.message < first_action or leaf.role in _INSTRUCTIONS:
        return SegmentKind.PROMPT
    return SegmentKind.SCAFFOLD if leaf.part is Part.NAME else SegmentKind.OBSERVATION


def _action_kind(rendered: Rendered, span: LeafSpan) -> SegmentKind:
    if span.leaf is None:
        return SegmentKind.TEXT
    leaf: Leaf = rendered.leaves[span.leaf]
    if leaf.path[0] in REASONING:
        return SegmentKind.THINK
    return SegmentKind.TEXT if leaf.part is Part.TEXT else SegmentKind.TOOL_CALL


def _with_gaps(spans: list[_Span], start: int, end: int) -> list[_Span]:
    """Return spans and what lies between them: a call's beside calls, else a thought's."""
    found: list[_Span] = []
    at, last = start, SegmentKind.TEXT
    for left, right, kind in [*spans, (end, end, SegmentKind.TEXT)]:
        if left > at:
            beside = (last, kind)
            told = (k for k in (SegmentKind.TOOL_CALL, SegmentKind.THINK) if k in beside)
            found.append((at, left, next(told, SegmentKind.TEXT)))
        if right > left:
            found.append((left, right, kind))
        at, last = max(at, right), kind
    return found


def _overlaid(runs: list[_Span], start: int, end: int, kind: SegmentKind) -> list[_Span]:
    """Return runs with one kind put over `[start, end)`."""
    found: list[_Span] = []
    for left, right, known in runs:
        if left < start:
            found.append((left, min(right, start), known))
        if right > end:
            found.append((max(left, end), right, known))
    return sorted([*found, (start, end, kind)])


def _end_of_prompt(turn: Turn) -> str:
    """Return the last characters the policy saw."""
    shown = turn.prompt.text[max(0, turn.prompt_end - _LONGEST_OPENING) : turn.prompt_end]
    return shown + turn.prompt_more[-_LONGEST_OPENING:]


def _without_arguments(turn: Turn, spans: list[_Span], end: int) -> str:
    """Return the text of an action, the arguments of calls blotted out: tags there are no tags."""
    text, at = [], turn.start
    for left, right, kind in spans:
        if kind is SegmentKind.TOOL_CALL and right > left >= at:
            text += [turn.rendered.text[at:left], "\0" * (right - left)]
            at = right
    return "".join([*text, turn.rendered.text[at:end]])
