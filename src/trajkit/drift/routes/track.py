"""Recorded ids beside rendered text: the places where both are at the same border of a turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

import numpy as np

from trajkit.records import Ids
from trajkit.sequence import SequenceStep, TokenSequence
from trajkit.template import (
    Allow,
    LiteralText,
    Rendered,
    TextPiece,
    Turn,
    TurnFit,
    encode_literally,
    shared_text,
)
from trajkit.tokenizer import Tokenizer


class RenderedText(StrEnum):
    """Which text recorded ids are held against."""

    CONVERSATION = "conversation"
    """the finished conversation, rendered once"""
    STEP = "step"
    """what the template writes at that step, while the conversation is going on"""
    NAIVE = "conversation, naively encoded"
    """the finished conversation, with control text in messages taken for control tokens"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Recorded ids `[start, end)` of a sequence, and the ids of the text in their place.

    Attributes:
        forged: of a naive encoding the tokens of `other` that messages made control.
    """

    start: int
    end: int
    other: Ids
    text: RenderedText
    forged: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Anchor:
    """A border of a turn: a place in the recorded ids, and in the conversation's text."""

    recorded: int
    character: int


class Whole:
    """A conversation's text with its ids."""

    def __init__(self, rendered: Rendered, tokenizer: Tokenizer) -> None:
        self.rendered = rendered
        self.tokenizer = tokenizer
        self._same: Rendered | None = None
        self._literal = encode_literally(rendered.pieces(tokenizer), tokenizer)
        self._forged = np.array([one.start for one in self._literal.forged], dtype=np.int64)

    def is_text_of(self, rendered: Rendered) -> bool:
        """Return whether a render is the whole conversation's."""
        if rendered is self._same:
            return True
        if rendered.text != self.rendered.text:
            return False
        self._same = rendered
        return True

    def holds(self, turn: Turn) -> bool:
        """Return whether a turn's action stands in the text at the turn's own places."""
        return turn.fit is TurnFit.SAME or self.is_text_of(turn.rendered)

    def ids(self, start: int, end: int) -> Ids | None:
        """Return the ids of a stretch of the text, `None` where a token lies across its ends."""
        return _ids_of(self._literal, start, end)

    def naive_ids(self, start: int, end: int) -> tuple[Ids, tuple[int, ...]] | None:
        """Return the naive ids of a stretch, and which of them messages made control.

        `None` where no message does, or where a token lies across the ends.
        """
        forged = self._forged[(self._forged >= start) & (self._forged < end)]
        ids = _ids_of(self._naive, start, end) if len(forged) else None
        if ids is None:
            return None
        starts = self._naive.starts
        first = int(np.searchsorted(starts, start, side="left"))
        spots = np.flatnonzero(np.isin(starts[first : first + len(ids)], forged))
        return ids, tuple(spots.tolist())

    def id_before(self, character: int) -> int | None:
        """Return the id that ends at a place of the text, `None` where none does."""
        at = _border(self._literal, character)
        return int(self._literal.ids[at - 1]) if at else None

    def end_of(self, turn: Turn) -> int | None:
        """Return where a policy message ends in the text: behind its end-of-turn token.

        `None` when the text does not show where the message stands.
        """
        if self.holds(turn):
            return turn.end
        at = self._last_span.get(turn.message)
        if at is None:
            return None
        text, spans = self.rendered.text, self.rendered.spans
        start = spans[at].end
        stop = spans[at + 1].start if at + 1 < len(spans) else len(text)
        known = "" if turn.stop is None else turn.rendered.text[slice(*turn.stop)]
        at = text.find(known, start, stop) if known else -1
        if at >= 0:
            return at + len(known)
        ends = [
            (at, at + len(token))
            for token in self.tokenizer.control.values()
            if (at := text.find(token, start, stop)) >= 0
        ]
        return min(ends)[1] if ends else start

    def border_from(self, character: int) -> int:
        """Return the first place at or behind a character that no token lies across."""
        at = int(np.searchsorted(self._literal.starts, character, side="left"))
        return max(character, int(self._literal.ends[at - 1])) if at else character

    @cached_property
    def _last_span(self) -> dict[int, int]:
        """Return the last span of each message whose place is known, by its number."""
        found, doubtful = {}, set()
        for number, span in enumerate(self.rendered.spans):
            for message in span.messages:
                found[message] = number
                doubtful |= {message} if span.leaf is None else set()
        return {message: number for message, number in found.items() if message not in doubtful}

    @cached_property
    def _naive(self) -> LiteralText:
        return encode_literally([TextPiece(self.rendered.text, Allow.ALL)], self.tokenizer)


class Track:
    """One sequence beside the conversation's text; `before` is the one it branches off from."""

    def __init__(self, sequence: TokenSequence, whole: Whole, before: Track | None) -> None:
        self.sequence = sequence
        self._whole = whole
        self._control = whole.tokenizer.control
        self._places = {own.step.step_index: own for own in sequence.steps}
        n_kept = sequence.steps[0].start
        shared = [] if before is None else before.upto(n_kept)
        self._anchors = [shared[-1] if shared else Anchor(0, 0)]
        self._own: tuple[str, int] | None = None
        """The text of the latest step's prompt and action, and where its action ends."""

    def upto(self, recorded: int) -> list[Anchor]:
        """Return the anchors at or before a recorded place."""
        n = bisect_right(self._anchors, recorded, key=lambda anchor: anchor.recorded)
        return self._anchors[:n]

    def add(self, step_index: int, turn: Turn) -> Iterator[Stretch]:
        """Place a step's turn, and yield what its own renders write otherwise than the whole."""
        place = self._places[step_index]
        in_whole = self._whole.is_text_of(turn.prompt) and not turn.prompt_more
        if not in_whole:
            yield self._own_prompt(place, turn)
        if not self._whole.holds(turn):
            other = encode_literally(
                turn.action_pieces(self._whole.tokenizer), self._whole.tokenizer
            ).ids
            yield Stretch(
                start=place.action_start,
                end=place.action_end,
                other=other,
                text=RenderedText.STEP,
            )
        if in_whole:
            self._anchor(place.action_start, turn.prompt_end)
        end = self._whole.end_of(turn)
        is_last = place is self.sequence.steps[-1]
        if end is not None and (is_last or self._ends_alike(place, end)):
            self._anchor(place.action_end, end)

    def whole_stretches(self) -> Iterator[Stretch]:
        """Yield the recorded ids between anchors with the conversation's; whole steps where equal.

        An end-of-turn token that stands in the next prompt and not in the action makes the same
        ids: stretches are joined before they are found to differ.
        """
        for left, right in pairwise(self._settled()):
            span = left.character, right.character
            start, end = left.recorded, right.recorded
            other, naive = self._whole.ids(*span), self._whole.naive_ids(*span)
            if other is not None:
                yield Stretch(start=start, end=end, other=other, text=RenderedText.CONVERSATION)
            if naive is not None:
                ids, forged = naive
                yield Stretch(
                    start=start, end=end, other=ids, text=RenderedText.NAIVE, forged=forged
                )

    def _settled(self) -> Iterator[Anchor]:
        """Yield the anchors no token of the text lies across; the last one moves to a border."""
        *anchors, last = self._anchors
        for anchor in anchors:
            if self._whole.border_from(anchor.character) == anchor.character:
                yield anchor
        yield Anchor(last.recorded, self._whole.border_from(last.character))

    def _anchor(self, recorded: int, character: int) -> None:
        last = self._anchors[-1]
        if recorded >= last.recorded and character >= last.character:
            self._anchors.append(Anchor(recorded, character))

    def _ends_alike(self, place: SequenceStep, end: int) -> bool:
        """Return whether the action and its text end with the same id."""
        ids = self.sequence.token_ids[place.action_start : place.action_end]
        return len(ids) > 0 and int(ids[-1]) == self._whole.id_before(end)

    def _own_prompt(self, place: SequenceStep, turn: Turn) -> Stretch:
        """Return a step's prompt by its own render, from where it leaves what was compared."""
        text = turn.prompt_text
        own = self._own
        if own is not None and text.startswith(own[0]):
            start, character = own[1], len(own[0])
        else:
            shared = shared_text(text, self._whole.rendered.text)
            cuts = (
                anchor
                for anchor in reversed(self.upto(place.action_start))
                if anchor.character <= shared and self._is_cut(anchor)
            )
            first = next(cuts, Anchor(0, 0))
            start, character = first.recorded, first.character
        ids = self.sequence.token_ids[place.action_start : place.action_end]
        is_whole = len(ids) > 0 and turn.stop is not None and int(ids[-1]) in self._control
        self._own = (text + turn.action_text, place.action_end) if is_whole else None
        tokenizer = self._whole.tokenizer
        other = encode_literally(turn.prompt_pieces(tokenizer, character), tokenizer).ids
        return Stretch(start=start, end=place.action_start, other=other, text=RenderedText.STEP)

    def _is_cut(self, anchor: Anchor) -> bool:
        """Return whether a control token ends at an anchor, so that encoding starts afresh."""
        return self._whole.id_before(anchor.character) in self._control


def _ids_of(found: LiteralText, start: int, end: int) -> Ids | None:
    """Return the ids of a stretch of text, `None` where a token lies across its ends."""
    left, right = _border(found, start), _border(found, end)
    return None if left is None or right is None else found.ids[left:right]


def _border(found: LiteralText, character: int) -> int | None:
    """Return the first token behind a place of the text, `None` when one lies across it."""
    at = int(np.searchsorted(found.starts, character, side="left"))
    return at if at == 0 or int(found.ends[at - 1]) <= character else None
