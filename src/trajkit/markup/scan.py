"""One pass over what follows a prompt: pieces of text, each with a kind and a writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from trajkit.errors import InputError, Place
from trajkit.markup.marks import Mark, Marks, Sort
from trajkit.markup.observe import SPACE, Extent, observation_extent, turn_extent
from trajkit.markup.profiles import Markup, Side, Tag
from trajkit.records import SegmentKind

_FIRST_ROLE = "system"
"""The role whose turn begins a conversation."""
_INSTRUCTIONS = ("system", "developer")
_HINT = (
    "name the profile that fits with --markup, or describe the tags in a TOML file; "
    "--on-error quarantine sets the record aside"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A half-open byte span `[start, end)` of the text, of one kind, by one writer."""

    start: int
    end: int
    kind: SegmentKind
    writer: Side


class Scan:
    """The pieces of `data[start:]`, found from left to right.

    Attributes:
        pieces: cover `[start, end)` without gap or overlap, ascending.
        results: the byte spans of what the environment returned, ascending.
        end: where the scan stopped: at the end, or where another conversation begins.
        is_cut: whether the text ends inside a tag of the policy.
        n_unclosed: observations without their closing tag.
    """

    def __init__(self, data: bytes, markup: Markup, start: int, *, in_turn: bool) -> None:
        self.pieces: list[Piece] = []
        self.results: list[tuple[int, int]] = []
        self.end = len(data)
        self.is_cut = False
        self.n_unclosed = 0
        self._data = data
        self._markup = markup
        self._marks = Marks(data, markup, start)
        self._in_turn = in_turn
        self._at = start
        self._labels: dict[str, SegmentKind] = {}  # since the environment last spoke
        self._replied_at = -1
        self._cut_at: int | None = None
        self._has_answer = False
        self._without_close: dict[Tag, int] = {}
        self._stops_at_next = False

    def run(self, *, stops_at_next: bool) -> Scan:
        """Return the scan itself, done.

        Args:
            stops_at_next: whether a first turn behind a blank line begins another conversation.

        Raises:
            InputError: I405 where it cannot be known who wrote a piece of text.
        """
        self._stops_at_next = stops_at_next
        while self._at < self.end:
            if self._in_turn:
                self._policy()
            else:
                self._between()
        return self

    def _policy(self) -> None:
        """Place what the policy wrote up to the end of its turn, and what it was answered."""
        start = at = self._at
        while True:
            mark = self._marks.next(at)
            if mark is None or self._begins_another(mark):
                self.end = self.end if mark is None else mark.start
                self._say_last(start)
                return
            at = mark.end
            match mark.sort:
                case Sort.PHRASE:
                    self._say(start, mark.start)
                    self._place(mark.start, mark.end, SegmentKind.WARNING, Side.ENVIRONMENT)
                    self.results.append((mark.start, mark.end))
                    self._labels.clear()
                    start = self._replied_at = mark.end
                case Sort.TURN_OPEN | Sort.TURN_CLOSE:
                    self._end_turn(start, mark)
                    return
                case Sort.CLOSE:
                    self._check_stray(mark)
                case Sort.OPEN:
                    if mark.is_observation:
                        start = at = self._observe(start, mark)
                    else:
                        self._say(start, mark.start)
                        start = at = self._speak(mark)

    def _end_turn(self, start: int, mark: Mark) -> None:
        """Leave a policy turn at its end, or where the next one begins without one."""
        self._in_turn = False
        n_said = len(self._data[start : mark.start].rstrip(SPACE))
        if mark.sort is Sort.TURN_CLOSE:
            self._at = mark.end
            if n_said == 0 and start == self._replied_at:  # closed by whoever cut it there
                self._place(start, mark.end, SegmentKind.SCAFFOLD, Side.ENVIRONMENT)
            else:
                self._say(start, mark.start)
                self._place(mark.start, mark.end, SegmentKind.STOP, Side.POLICY)
            return
        self._say(start, start + n_said)
        self._at = start + n_said

    def _between(self) -> None:
        """Place the line break between turns, the next turn's head, and its text if not ours.

        Raises:
            InputError: I405 where something stands between turns.
        """
        at = self._at
        mark = self._marks.next(at)
        upto = self.end if mark is None else mark.start
        blank = len(self._data[at:upto]) - len(self._data[at:upto].lstrip(SPACE))
        if at + blank < upto or (mark is not None and mark.sort is not Sort.TURN_OPEN):
            self._unknown(at + blank, "text stands between two turns")
        if mark is None or self._begins_another(mark):
            self.end = upto
            self._place(at, upto, SegmentKind.SCAFFOLD, Side.ENVIRONMENT)
            self._at = upto
            return
        self._place(at, mark.end, SegmentKind.SCAFFOLD, Side.ENVIRONMENT)
        turns = self._markup.turns
        self._at = mark.end
        self._labels.clear()
        if turns is not None and mark.role in turns.policy_roles:
            self._in_turn = True
            return
        self._has_answer = False
        extent = turn_extent(self._data, self._marks, self._markup, mark)
        if isinstance(extent, int):
            self._unknown(extent, "where the turn before this ends is unknown")
        is_told = mark.role not in _INSTRUCTIONS
        kind = SegmentKind.OBSERVATION if is_told else SegmentKind.PROMPT
        self._answer(mark.end, extent, kind)

    def _begins_another(self, mark: Mark) -> bool:
        if not self._stops_at_next or mark.sort is not Sort.TURN_OPEN or mark.role != _FIRST_ROLE:
            return False
        before = self._data[max(0, mark.start - 4) : mark.start].replace(b"\r", b"")
        return before.endswith(b"\n\n") and any(p.writer is Side.POLICY for p in self.pieces[-9:])

    def _observe(self, start: int, mark: Mark) -> int:
        """Place text of the policy up to an observation, and that; return where it ends."""
        tag = mark.tag
        if tag is None:
            raise ValueError("an observation has a tag")
        said = self._data[start : mark.start].rstrip(SPACE)
        gap = self._data[start + len(said) : mark.start]
        border = mark.start - _shared_end(gap, tag.before) if said else start
        self._say(start, border)
        self._place(border, mark.end, SegmentKind.SCAFFOLD, Side.ENVIRONMENT)
        extent = observation_extent(self._data, self._marks, mark)
        if isinstance(extent, int):
            self._unknown(
                extent,
                f"{tag.open} has more than one end, with tags between: who wrote those is unknown",
            )
        if extent.has_inner_close and self._cut_at is not None:
            self._unknown(self._cut_at, f"{tag.open} may end here, or at a later {tag.close}")
        if not extent.is_closed:
            self.n_unclosed += 1
            self._cut_at = extent.end
        self._labels.clear()
        self._replied_at = self._answer(mark.end, extent, SegmentKind.OBSERVATION)
        return self._replied_at

    def _answer(self, start: int, extent: Extent, kind: SegmentKind) -> int:
        """Place what the environment returned; return where it ends."""
        at = start
        for first, last in extent.contents:
            self._place(at, first, SegmentKind.SCAFFOLD, Side.ENVIRONMENT)
            self._place(first, last, kind, Side.ENVIRONMENT)
            at = last
        self._place(at, extent.end, SegmentKind.SCAFFOLD, Side.ENVIRONMENT)
        if kind is SegmentKind.OBSERVATION:
            self.results.extend(extent.results)
        self._at = extent.end
        return extent.end

    def _speak(self, mark: Mark) -> int:
        """Place a tag of the policy with what it holds; return where it ends."""
        tag = mark.tag
        if tag is None:
            raise ValueError("an opening mark has a tag")
        self._check_order(mark, tag)
        close, end = (None, 0) if tag.close is None else self._close_of(mark, tag)
        if close is not None:
            is_own = tag.closer is Side.POLICY
            border = close.end if is_own else close.start
            self._place(mark.start, border, tag.kind, Side.POLICY)
            self._place(border, close.end, SegmentKind.SCAFFOLD, Side.ENVIRONMENT)
            return close.end
        if tag.close is None:
            following = self._marks.next(mark.end)
            end = self.end if following is None else following.start
        elif end >= self.end:
            self.is_cut = True
        border = mark.start + len(self._data[mark.start : end].rstrip(SPACE))
        border = max(border, min(mark.end, end))
        self._place(mark.start, border, tag.kind, Side.POLICY)
        return border

    def _close_of(self, mark: Mark, tag: Tag) -> tuple[Mark | None, int]:
        """Return the closing tag, or without one where the text inside ends.

        A tag of the policy ends with its own closing tag, whatever other tags of the policy stand
        inside; where the environment speaks first, it ends at the next tag.
        """
        at, first = mark.end, None
        while (found := self._marks.next(at)) is not None:
            at = found.end
            if found.closes(tag):
                return found, found.end
            if found.sort is Sort.CLOSE:
                self._check_stray(found)
                continue
            first = found.start if first is None else first
            if not found.opens(Side.POLICY):
                self._without_close[tag] = found.start
                break
            if at <= self._without_close.get(tag, -1):
                break
        else:
            self._without_close[tag] = self.end
        return None, self.end if first is None else first

    def _check_order(self, mark: Mark, tag: Tag) -> None:
        """Raise I405 at a second answer, and at a label that needs a reply before it."""
        if tag.kind is SegmentKind.ANSWER:
            if self._has_answer:
                self._unknown(mark.start, "an answer stands after the answer")
            self._has_answer = True
        if tag.close is None:
            label = tag.open.partition("{n}")[0]
            has_acted = any(kind is not SegmentKind.THINK for kind in self._labels.values())
            if label in self._labels or (has_acted and tag.kind is SegmentKind.THINK):
                self._unknown(mark.start, f"{label} stands here without an observation before it")
            self._labels[label] = tag.kind

    def _check_stray(self, mark: Mark) -> None:
        """Raise I405 at a closing tag of the environment that ends nothing."""
        if mark.tag is not None and mark.tag.closer is Side.ENVIRONMENT:
            self._unknown(mark.start, f"{mark.tag.close} ends nothing that was opened")

    def _say(self, start: int, end: int) -> None:
        self._place(start, end, SegmentKind.TEXT, Side.POLICY)

    def _say_last(self, start: int) -> None:
        """Place the last text; white space alone, behind a tag, is nobody's."""
        if self._data[start : self.end].strip(SPACE):
            self._say(start, self.end)
        else:
            self._place(start, self.end, SegmentKind.CONTEXT, Side.ENVIRONMENT)
        self._at = self.end

    def _place(self, start: int, end: int, kind: SegmentKind, writer: Side) -> None:
        if end > start:
            self.pieces.append(Piece(start, end, kind, writer))

    def _unknown(self, at: int, what: str) -> NoReturn:
        excerpt = self._data[max(0, at - 20) : at + 60].decode("utf-8", "ignore")
        raise InputError(
            "I405",
            what,
            place=Place(byte_offset=at, line=self._data.count(b"\n", 0, at) + 1),
            excerpt=excerpt,
            hint=_HINT,
        )


def _shared_end(gap: bytes, wanted: str) -> int:
    """Return how many bytes at the end of a gap are an end of what is wanted."""
    text = wanted.encode()
    longest = min(len(gap), len(text))
    return next(n for n in range(longest, -1, -1) if gap.endswith(text[len(text) - n :]))
