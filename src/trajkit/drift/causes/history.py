"""Causes in what is kept of earlier turns, and in the template that frames them."""

from __future__ import annotations

import re

import numpy as np

from trajkit.drift.causes.turns import WALK, body, framed
from trajkit.drift.causes.window import (
    PLACEHOLDER,
    ROLE,
    Evidence,
    common_head,
    common_tail,
    control_of,
    inside_action,
    is_text_start,
    is_turn_end,
    pair_of,
    show,
)
from trajkit.drift.difference import Difference

_SUMMARY = re.compile(
    rb"(?i)\b(?:summary|summari[sz]ed?|omitted|elided|compacted|truncated"
    rb"|(?:earlier|previous) (?:turns|messages))\b"
)
"""What stands where a context manager took text out."""
_HEADLINE = 80
"""Bytes at the head of a message in which it says that it is a summary."""
_LONG_TURN = 8
"""Bytes of a message that are not there twice by chance."""
_TURN_HEAD = 16
"""Ids that two turns may have in common at their heads."""


def template_version(difference: Difference) -> Evidence | None:
    """Tell marks of the frame that only one side's template writes."""
    templates = pair_of(difference.facts, "templates")
    if templates and templates[0] == templates[1]:
        return None
    mine, theirs = difference.recorded.region.tolist(), difference.other.region.tolist()
    if inside_action(difference) and not (_n_ends(mine, difference) and _is_frame(difference)):
        return None  # a template writes no more of an action than its end
    marks = control_of(difference, mine + theirs)
    if templates and marks:
        return {"templates": list(templates)}
    plain = [
        i for i in marks if not is_turn_end(difference, i) and not is_text_start(difference, i)
    ]
    side = difference.recorded
    if not plain or bool(mine) == bool(theirs) or not 0 < side.start <= side.end < len(side.ids):
        return None
    edges = [int(side.ids[side.start - 1]), int(side.ids[side.end])]
    names = [difference.tokenizer.control[i] for i in marks[:8]]
    is_frame = len(control_of(difference, edges)) == 2 and _is_frame(difference)
    if not is_frame or any(map(PLACEHOLDER.search, names)):
        return None
    return {"marks": names, "written_on": "recorded" if mine else "other"}


def _is_frame(difference: Difference) -> bool:
    """Return whether both regions are control tokens and white space."""
    control = difference.tokenizer.control
    sides = (difference.recorded, difference.other)
    parts = (
        piece
        for side in sides
        for i, piece in zip(side.region.tolist(), side.pieces[side.start : side.end], strict=True)
        if i not in control
    )
    return not b"".join(parts).strip()


def history_rewritten(difference: Difference) -> Evidence | None:
    """Tell whole turns that are gone from the other side, or stand there in other words."""
    mine, theirs = difference.recorded, difference.other
    n_lost = _n_ends(mine.region.tolist(), difference)
    n_put = _n_ends(theirs.region.tolist(), difference)
    at_end = mine.end == len(mine.ids)
    if at_end:
        n_put = min(n_put, n_lost - 1)  # the other side may go on
    if n_lost < 1 or n_put >= n_lost or mine.end - mine.start < 4:
        return _replaced_turn(difference)
    if at_end:
        starts = [a for a, _ in difference.action]
        is_known = bool(starts) and mine.start < max(starts)
        goes_on = theirs.end > theirs.start or theirs.end < len(theirs.ids)
        left, right = mine.data.strip()[:_HEADLINE], theirs.data.strip()[:_HEADLINE]
        goes_on = goes_on and 3 * common_head(left, right) < max(1, min(len(left), len(right)))
        is_told = n_lost >= 2 and goes_on and (is_known or (not starts and _at_turn(difference)))
    else:
        behind = np.array_equal(
            mine.ids[mine.end : mine.end + 4], theirs.ids[theirs.end : theirs.end + 4]
        )
        is_told = behind and _at_turn(difference) and len(mine.ids) - mine.end >= 4
    if not is_told:
        return _replaced_turn(difference)
    return {
        "turns_lost": n_lost,
        "ids_lost": mine.end - mine.start,
        "ids_instead": theirs.end - theirs.start,
    }


def _replaced_turn(difference: Difference) -> Evidence | None:
    """Tell a message that gave way to a summary, or to one that stands further down."""
    if inside_action(difference) or not difference.recorded.data.strip():
        return None
    held, texts = framed(difference.recorded, difference)
    their_held, their_texts = framed(difference.other, difference)
    at = next((i for i, (a, b) in enumerate(zip(texts, their_texts, strict=False)) if a != b), 0)
    if not 0 < at < len(held) or held[: at + 1] != their_held[: at + 1]:
        return None
    old, new = body(texts[at]).strip(), body(their_texts[at]).strip()
    n_same = common_head(old, new) + common_tail(old, new)
    if b" " not in old or 2 * n_same >= min(len(old), len(new)):
        return None  # the name of a role, or an edit inside a message
    marker = _SUMMARY.search(new[:_HEADLINE])
    if marker is not None and _SUMMARY.search(old) is None:
        return {"marker": show(marker[0]), "instead_of": show(old)}
    behind, whole = difference.recorded.behind(4 * WALK), their_texts[at].strip()
    found = behind.find(whole)
    is_there = found > 0 and behind[found - 1 : found] in (b">", b"\n")
    if len(new) > _LONG_TURN and b" " in new and is_there:
        return {"moved_up": show(new), "instead_of": show(old)}
    return None


def _n_ends(ids: list[int], difference: Difference) -> int:
    return sum(is_turn_end(difference, i) for i in ids)


def _at_turn(difference: Difference) -> bool:
    """Return whether some whole turns are gone, or some gave way to the words of one message."""
    side = difference.recorded
    if difference.other.region.size:
        before = side.pieces[max(0, side.start - 4) : side.start].data
        opens = side.start == 0 or _is_control(difference, side.start - 1) or _after_role(before)
        return opens and (side.end == len(side.ids) or _is_control(difference, side.end))
    for shift in range(_TURN_HEAD):  # what both turns begin with counts as kept
        start, end = side.start - shift, side.end - shift
        if _is_border(difference, start) and _is_border(difference, end):
            return True
        if start == 0 or side.ids[start - 1] != side.ids[end - 1]:
            return False
    return False


def _is_control(difference: Difference, at: int) -> bool:
    return int(difference.recorded.ids[at]) in difference.tokenizer.control


def _is_border(difference: Difference, at: int) -> bool:
    """Return whether a turn may begin at a place of the recorded list."""
    side = difference.recorded
    while at > 0 and not side.pieces[at - 1].strip():
        at -= 1
    if at == 0:
        return True
    last = int(side.ids[at - 1])
    return is_turn_end(difference, last) or is_text_start(difference, last)


def _after_role(data: bytes) -> bool:
    match = ROLE.match(data.rsplit(b">", 1)[-1])
    return (
        match is not None
        and bool(match[0].strip())
        and match.end() == len(data.rsplit(b">", 1)[-1])
    )
