"""A render and its marked twin: where each string of the conversation stands in the text.

The twin is cut at its marks. What lies between two marks is scaffold and must stand in the text as
it is; in a mark's place must stand its string, in one of the few spellings that templates give
strings (edges stripped, JSON escapes, ...). The text is explained when that works from the first
character to the last in exactly one way. An explanation that is not the only one is none.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from trajkit.template.leaves import Leaf, Mark, Marked


class Fit(StrEnum):
    """How a piece of the text relates to a leaf."""

    VERBATIM = "verbatim"
    """The text's characters are the leaf's own."""
    TRANSFORMED = "transformed"
    """They are the leaf's, escaped."""
    UNKNOWN = "unknown"
    """Leaves and scaffold of some messages, not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSpan:
    """A half-open span of the text's characters.

    Attributes:
        start, end: in the text.
        fit: how it relates to the leaf.
        leaf: the leaf's index; `None` when unknown.
        leaf_start, leaf_end: which of the leaf's characters these are; 0 when unknown.
        messages: the messages it belongs to: one, or all that an unknown span may touch.
    """

    start: int
    end: int
    fit: Fit
    leaf: int | None
    leaf_start: int
    leaf_end: int
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A mark's string in the text: `[start, end)` there, `[leaf_start, leaf_end)` of its leaf."""

    mark: Mark
    start: int
    end: int
    leaf_start: int
    leaf_end: int
    escape: str


_Escape: TypeAlias = Callable[[str], str]
_Spelling: TypeAlias = tuple[str, int, int, str]
"""What may stand in the text, which part of the mark's string it is, and its escape."""

ESCAPES: Mapping[str, _Escape] = {
    "": lambda text: text,
    "json": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json-ascii": lambda text: json.dumps(text)[1:-1],
    "python": lambda text: repr(text)[1:-1],
    "quoted": lambda text: (
        text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    ),
    "html": lambda text: html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
}
"""How templates write strings: as they are, by `tojson`, as part of a Python literal, by `|e`."""
_PLAIN = (("", ESCAPES[""]),)
_NEEDS_ESCAPE = re.compile(r"""[^ !#-%(-;=?-\[\]-~]""").search
_STRIPS: tuple[tuple[str | None, str | None], ...] = tuple(
    (left, right) for left in ("", None, "\n") for right in ("", None, "\n")
)
"""What is stripped on either side: nothing, white space, newlines."""


def explain(text: str, twin: str, marked: Marked) -> list[Placement] | None:
    """Return where each mark's string stands, `None` when the twin does not explain the text."""
    gaps, marks = _cut(twin, marked)
    if marks is None:
        return None
    walk = _Walk(text, gaps, marks, is_backward=False)
    return walk.firm()[0] if walk.is_whole() else None


def explain_edges(
    text: str, twin: str, marked: Marked
) -> tuple[list[Placement], int, int, list[Mark]]:
    """Return what is explained from either end, the `[start, end)` between, and its marks."""
    gaps, marks = _cut(twin, marked)
    if marks is None:
        return [], 0, len(text), list(marked.marks)
    head, start = _Walk(text, gaps, marks, is_backward=False).firm()
    tail, end = _Walk(text, gaps, marks, is_backward=True).firm()
    if start > end or len(head) + len(tail) > len(marks):
        tail, end = [], len(text)
    return [*head, *tail], start, end, marks[len(head) : len(marks) - len(tail)]


def spans_of(text: str, leaves: Sequence[Leaf], placements: Sequence[Placement]) -> list[LeafSpan]:
    """Return the spans of the placements, neighbours of one leaf joined."""
    runs: list[list[Placement]] = []
    for placed in placements:
        if placed.start == placed.end:
            continue  # nothing but white space, and that was stripped
        if runs and _goes_on(text, leaves, runs[-1][-1], placed):
            runs[-1].append(placed)
        else:
            runs.append([placed])
    spans, owner = [], _Owner(leaves)
    floor = 0
    for number, run in enumerate(runs):
        ceiling = runs[number + 1][0].start if number + 1 < len(runs) else len(text)
        span = _span(text, leaves, run, owner.of(run[0].mark), (floor, ceiling))
        floor = span.end
        spans.append(span)
    return spans


def _span(
    text: str, leaves: Sequence[Leaf], run: list[Placement], leaf: int, room: tuple[int, int]
) -> LeafSpan:
    """Return the span of a run, with the tags left standing at its edges where they stand."""
    first, last = run[0], run[-1]
    start, end, leaf_start, leaf_end = first.start, last.end, first.leaf_start, last.leaf_end
    if not first.escape:
        whole = leaves[leaf].text
        lead = whole[: first.mark.start].lstrip() if leaf_start == first.mark.start else ""
        if lead and start - len(lead) >= room[0] and text.endswith(lead, 0, start):
            start, leaf_start = start - len(lead), leaf_start - len(lead)
        trail = whole[last.mark.end :].rstrip() if leaf_end == last.mark.end else ""
        if trail and end + len(trail) <= room[1] and text.startswith(trail, end):
            end, leaf_end = end + len(trail), leaf_end + len(trail)
    message = leaves[leaf].message
    return LeafSpan(
        start=start,
        end=end,
        fit=Fit.TRANSFORMED if first.escape else Fit.VERBATIM,
        leaf=leaf,
        leaf_start=leaf_start,
        leaf_end=leaf_end,
        messages=() if message is None else (message,),
    )


def _goes_on(text: str, leaves: Sequence[Leaf], before: Placement, after: Placement) -> bool:
    """Return whether two neighbours are one run: the same text lies between them in the leaf."""
    same = before.mark.leaves == after.mark.leaves and before.escape == after.escape
    if not same or before.leaf_end > after.leaf_start:
        return False
    between = leaves[before.mark.leaves[0]].text[before.leaf_end : after.leaf_start]
    return text[before.end : after.start] == ESCAPES[before.escape](between)


class _Owner:
    """Which of several equal leaves a place belongs to: the next one in the conversation's order.

    Equal names stand in the call and in its result; it decides nothing but whose the span is.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._used: set[int] = set()
        self._message = -1

    def of(self, mark: Mark) -> int:
        """Return the leaf of a mark, walking forward."""
        choice = mark.leaves[0]
        if len(mark.leaves) > 1:
            ahead = [leaf for leaf in mark.leaves if self._at(leaf) >= self._message]
            fresh = [leaf for leaf in ahead if leaf not in self._used]
            choice = (fresh or ahead or list(mark.leaves))[0]
        self._used.add(choice)
        self._message = max(self._message, self._at(choice))
        return choice

    def _at(self, leaf: int) -> int:
        message = self._leaves[leaf].message
        return -1 if message is None else message


def _cut(twin: str, marked: Marked) -> tuple[list[str], list[Mark] | None]:
    """Return what lies between the marks of a twin, and the marks; `None` for damaged ones."""
    pieces = marked.pattern.split(twin)
    numbers = [int(number) for number in pieces[1::2]]
    nonce = marked.pattern.pattern.partition("(")[0]
    gaps = pieces[::2]
    is_torn = any(nonce in gap.lower() for gap in gaps)
    if is_torn or any(number >= len(marked.marks) for number in numbers):
        return gaps, None
    return gaps, [marked.marks[number] for number in numbers]


class _Walk:
    """All ways to read the text as gaps and strings in turn, from one end to the other.

    A level is the set of places where the walk can stand after so many marks, each with the number
    of ways to get there (two stand for many) and the last step of one of them.
    """

    def __init__(
        self, text: str, gaps: Sequence[str], marks: Sequence[Mark], *, is_backward: bool
    ) -> None:
        self._text = text
        self._backward = is_backward
        self._gaps = gaps[::-1] if is_backward else gaps
        self._marks = marks[::-1] if is_backward else marks
        self._start, self._goal = (len(text), 0) if is_backward else (0, len(text))
        self._levels: list[dict[int, tuple[int, Placement | None, int]]] = []
        self._run()

    def is_whole(self) -> bool:
        """Return whether the whole text is read, in one way only."""
        if len(self._levels) < len(self._gaps):
            return False
        n_ways, _, _ = self._levels[-1].get(self._goal, (0, None, 0))
        return n_ways == 1

    def firm(self) -> tuple[list[Placement], int]:
        """Return the strings that are placed in one way only, and where the walk stands then.

        That is the whole walk, or the way to the last place where it stood firm.
        """
        if self.is_whole():
            last, at = len(self._levels) - 1, self._goal
        else:
            only = [
                number
                for number, level in enumerate(self._levels)
                if len(level) == 1 and next(iter(level.values()))[0] == 1
            ]
            if not only:
                return [], self._start
            last = only[-1]
            at = next(iter(self._levels[last]))
        found, place = [], at
        for level in self._levels[last:0:-1]:
            _, placed, at_before = level[at]
            if placed is not None:
                found.append(placed)
            at = at_before
        return (found if self._backward else found[::-1]), place

    def _run(self) -> None:
        first = self._past(self._start, self._gaps[0])
        if first is None:
            return
        self._levels.append({first: (1, None, self._start)})
        for mark, gap in zip(self._marks, self._gaps[1:], strict=True):
            level: dict[int, tuple[int, Placement | None, int]] = {}
            for at, (n_ways, _, _) in self._levels[-1].items():
                for there, placed in self._steps(at, mark, gap):
                    ways = min(2, n_ways + level.get(there, (0,))[0])
                    level[there] = (ways, placed, at)
            if not level:
                return
            self._levels.append(level)

    def _steps(self, at: int, mark: Mark, gap: str) -> Iterator[tuple[int, Placement]]:
        for spelt, left, right, escape in spellings(mark.text):
            end = self._past(at, spelt)
            there = None if end is None else self._past(end, gap)
            if end is not None and there is not None:
                yield (
                    there,
                    Placement(
                        mark,
                        min(at, end),
                        max(at, end),
                        mark.start + left,
                        mark.start + right,
                        escape,
                    ),
                )

    def _past(self, at: int, piece: str) -> int | None:
        """Return the place on the other side of a piece that stands here."""
        if self._backward:
            return at - len(piece) if self._text.endswith(piece, 0, at) else None
        return at + len(piece) if self._text.startswith(piece, at) else None


def spellings(text: str) -> tuple[_Spelling, ...]:
    """Return the different ways a template may write a string, as it is first."""
    found: dict[str, _Spelling] = {}
    for left, right in _STRIPS if text[:1].isspace() or text[-1:].isspace() else _STRIPS[:1]:
        kept = text if left == "" else text.lstrip(left)
        start = len(text) - len(kept)
        kept = kept if right == "" else kept.rstrip(right)
        for name, escape in ESCAPES.items() if _NEEDS_ESCAPE(kept) else _PLAIN:
            found.setdefault(spelt := escape(kept), (spelt, start, start + len(kept), name))
    return tuple(found.values())
