"""Where the marks of a markup stand in a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache

from trajkit.markup.profiles import Markup, Side, Tag, Turns

Make = Callable[[re.Match[bytes], int], "Mark"]
"""A match and the number of its group into the mark that it is."""
_ROLE = rb"([A-Za-z][A-Za-z0-9_ -]{0,40}?)\r?\n"
_HEAD = 4096
"""More than a mark takes."""
_NUMBER = rb"(?: ?(\d{1,9}))?"


class Sort(Enum):
    """What a mark is."""

    PHRASE = auto()
    TURN_OPEN = auto()
    TURN_CLOSE = auto()
    OPEN = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One mark in a text, in bytes."""

    sort: Sort
    start: int
    end: int
    tag: Tag | None = None
    role: str = ""
    number: int | None = None

    @property
    def is_observation(self) -> bool:
        """Return whether the environment begins an observation here."""
        return self.opens(Side.ENVIRONMENT)

    def opens(self, writer: Side) -> bool:
        """Return whether a tag of that writer begins here."""
        return self.sort is Sort.OPEN and self.tag is not None and self.tag.writer is writer

    def closes(self, tag: Tag) -> bool:
        """Return whether the tag ends here."""
        return self.sort is Sort.CLOSE and self.tag is tag


class Marks:
    """The marks of one text, asked for from left to right.

    Args:
        data: the text as UTF-8.
        markup: which marks there are.
        start: where the text begins that is asked about; a line begins there.
    """

    def __init__(self, data: bytes, markup: Markup, start: int) -> None:
        self._data = data
        self._pattern, self._makers = _grammar(markup)
        self._start = start
        self._first = self._made(self._pattern.match(data[start : start + _HEAD]))
        if self._first is not None and _is_inside_line(data, start, markup, self._first):
            self._first = None

    def next(self, at: int) -> Mark | None:
        """Return the first mark at or after a byte; `None` when there is none."""
        if at == self._start and self._first is not None:
            first = self._first
            return replace(first, start=at + first.start, end=at + first.end)
        return self._made(self._pattern.search(self._data, at))

    def _made(self, match: re.Match[bytes] | None) -> Mark | None:
        if match is None or match.lastindex is None:
            return None
        return self._makers[match.lastindex](match, match.lastindex)


@lru_cache(maxsize=64)
def _grammar(markup: Markup) -> tuple[re.Pattern[bytes], dict[int, Make]]:
    """Return one pattern for all marks, and what to make of each of its outer groups."""
    parts: list[tuple[bytes, int, Make]] = [
        (re.escape(phrase.encode()), 0, _plain(Sort.PHRASE, None)) for phrase in markup.phrases
    ]
    if markup.turns is not None:
        parts.append((_turn_open(markup.turns), 1, _turn(markup.turns)))
        if not markup.turns.labels:
            close = re.escape(markup.turns.close.encode())
            parts.append((close, 0, _plain(Sort.TURN_CLOSE, None)))
    for tag in sorted(markup.tags, key=lambda tag: -len(tag.open)):
        head, label, rest = tag.open.partition("{n}")
        if label:
            body = rb"^" + re.escape(head.encode()) + _NUMBER + re.escape(rest.encode())
            parts.append((body, 1, _label(tag)))
        else:
            parts.append((re.escape(tag.open.encode()), 0, _plain(Sort.OPEN, tag)))
        if tag.close is not None:
            parts.append((re.escape(tag.close.encode()), 0, _plain(Sort.CLOSE, tag)))
    makers, group = {}, 1
    for _, n_inner, make in parts:
        makers[group] = make
        group += 1 + n_inner
    pattern = b"|".join(b"(" + body + b")" for body, _, _ in parts) or rb"(?!)"
    return re.compile(pattern, re.MULTILINE), makers


def turn_head(turns: Turns) -> bytes:
    """Return a pattern, for multi-line matching, of a turn's head up to its content."""
    if turns.labels:
        return rb"^(?:" + _any_of(turns.labels) + rb"):"
    return re.escape(turns.open.encode()) + rb"[^\n]{1,40}\n"


def turn_end(turns: Turns) -> bytes:
    """Return a pattern, for multi-line matching, of what ends a turn."""
    if turns.labels:
        return rb"(?=" + turn_head(turns) + rb"|\Z)"
    return re.escape(turns.close.encode())


def _turn_open(turns: Turns) -> bytes:
    if turns.labels:
        return rb"^(" + _any_of(turns.labels) + rb"):[ \t]?(?:\r?\n)?"
    return re.escape(turns.open.encode()) + _ROLE


def _any_of(labels: tuple[str, ...]) -> bytes:
    return b"|".join(re.escape(label.encode()) for label in labels)


def _is_inside_line(data: bytes, start: int, markup: Markup, first: Mark) -> bool:
    """Return whether a turn's label would stand right behind another one, in its line."""
    has_labels = markup.turns is not None and bool(markup.turns.labels)
    return has_labels and first.sort is Sort.TURN_OPEN and data[start - 1 : start] not in b"\n"


def _plain(sort: Sort, tag: Tag | None) -> Make:
    return lambda match, _: Mark(sort=sort, start=match.start(), end=match.end(), tag=tag)


def _turn(turns: Turns) -> Make:
    def make(match: re.Match[bytes], group: int) -> Mark:
        role = match[group + 1].decode()
        role = role.lower() if turns.labels else role
        return Mark(sort=Sort.TURN_OPEN, start=match.start(), end=match.end(), role=role)

    return make


def _label(tag: Tag) -> Make:
    def make(match: re.Match[bytes], group: int) -> Mark:
        digits = match[group + 1]
        number = None if digits is None else int(digits)
        return Mark(sort=Sort.OPEN, start=match.start(), end=match.end(), tag=tag, number=number)

    return make
