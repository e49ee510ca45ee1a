"""One place where two id lists part, with all that is needed to say what it is and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trajkit.align import differing_regions
from trajkit.drift.findings import DriftKind, Route
from trajkit.records import Ids
from trajkit.spelling import Spelling
from trajkit.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One of the two id lists, and the part of it that differs.

    Attributes:
        ids: [n] the whole list that was compared.
        pieces: the bytes of each id.
        start, end: the differing ids.
    """

    ids: Ids
    pieces: Spelling
    start: int
    end: int

    @property
    def region(self) -> Ids:
        """Return the differing ids."""
        return self.ids[self.start : self.end]

    @property
    def data(self) -> bytes:
        """Return the bytes of the differing ids."""
        return self.pieces[self.start : self.end].data

    def before(self, n: int) -> bytes:
        """Return the bytes of the `n` ids in front of the region."""
        return self.pieces[max(0, self.start - n) : self.start].data

    def behind(self, n: int) -> bytes:
        """Return the bytes of the `n` ids behind the region."""
        return self.pieces[self.end : self.end + n].data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Difference:
    """A differing region of a recorded id list and another one.

    Attributes:
        route: how the other list was made.
        kind: what differs.
        recorded, other: both sides.
        byte_start: bytes of the recorded list before the region.
        action: the `[start, end)` of recorded ids that the policy sampled; several when the
            list holds several steps.
        tokenizer: the one both lists are ids of.
        facts: what the route knows besides the ids (`finish_reason`, logged `text`, `message`...).
    """

    route: Route
    kind: DriftKind
    recorded: Side
    other: Side
    byte_start: int
    action: tuple[tuple[int, int], ...]
    tokenizer: Tokenizer
    facts: dict[str, Any] = field(default_factory=dict)


def differences(
    recorded: Ids,
    other: Ids,
    tokenizer: Tokenizer,
    *,
    route: Route,
    action: tuple[tuple[int, int], ...],
    facts: dict[str, Any] | None = None,
    spelt: tuple[Spelling, Spelling] | None = None,
) -> Iterator[Difference]:
    """Yield the regions in which two id lists differ, ascending; nothing when they are equal.

    `spelt` is what the tokenizer says both spell, where the caller knows it already.
    """
    left, right = spelt or (tokenizer.spell(recorded), tokenizer.spell(other))
    for region in differing_regions(recorded, other, left, right):
        mine = Side(ids=recorded, pieces=left, start=region.left_start, end=region.left_end)
        theirs = Side(ids=other, pieces=right, start=region.right_start, end=region.right_end)
        yield Difference(
            route=route,
            kind=_kind(mine, theirs, tokenizer),
            recorded=mine,
            other=theirs,
            byte_start=region.byte_start,
            action=action,
            tokenizer=tokenizer,
            facts=facts or {},
        )


def in_context(
    parts: Sequence[Difference], lead: Ids, trail: Ids, action: tuple[tuple[int, int], ...]
) -> Iterator[Difference]:
    """Yield the differences of two stretches with the ids around them, the same on both sides.

    Args:
        parts: all of one pair of lists.
        lead: recorded ids before the stretch.
        trail: recorded ids behind it.
        action: the spans of actions, counted from the lead's first id.
    """
    if not parts:
        return
    tokenizer = parts[0].tokenizer
    before, behind = tokenizer.spell(lead), tokenizer.spell(trail)
    mine, theirs = (
        (np.concatenate([lead, side.ids, trail]), before + side.pieces + behind)
        for side in (parts[0].recorded, parts[0].other)
    )
    for part in parts:
        yield replace(
            part,
            recorded=_moved(part.recorded, mine, len(lead)),
            other=_moved(part.other, theirs, len(lead)),
            byte_start=part.byte_start + len(before.data),
            action=action,
        )


def _moved(side: Side, whole: tuple[Ids, Spelling], n: int) -> Side:
    ids, pieces = whole
    return Side(ids=ids, pieces=pieces, start=side.start + n, end=side.end + n)


def _kind(mine: Side, theirs: Side, tokenizer: Tokenizer) -> DriftKind:
    if _control(mine.region, tokenizer) != _control(theirs.region, tokenizer):
        return DriftKind.STRUCTURE
    return DriftKind.IDS_ONLY if mine.data == theirs.data else DriftKind.TEXT


def _control(ids: Ids, tokenizer: Tokenizer) -> list[int]:
    return [token_id for token_id in ids.tolist() if token_id in tokenizer.control]
