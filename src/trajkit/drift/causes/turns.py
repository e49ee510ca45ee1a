"""Causes in the frame of turns: their ends and starts, the space around them, what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from trajkit.drift.causes.window import (
    NEAR,
    ROLE,
    Evidence,
    control_of,
    ends_action,
    is_last,
    is_text_start,
    is_turn_end,
    show,
)
from trajkit.drift.difference import Difference, Side

WALK = 512
"""Ids in which the border of a turn is looked for."""


def framed(side: Side, difference: Difference) -> tuple[list[int], list[bytes]]:
    """Return the control ids of and around a region, and the bytes between them.

    The walk goes from the region to the next control id on both sides; a list that ends first has
    no control there. There is one more piece of bytes than there are control ids.
    """
    control = difference.tokenizer.control
    low, high = max(0, side.start - WALK), min(len(side.ids), side.end + WALK)
    ahead = range(side.start - 1, low - 1, -1)
    start = next((at for at in ahead if int(side.ids[at]) in control), low)
    behind = range(side.end, high)
    end = next((at + 1 for at in behind if int(side.ids[at]) in control), high)
    held: list[int] = []
    texts: list[list[bytes]] = [[]]
    for token_id, piece in zip(side.ids[start:end].tolist(), side.pieces[start:end], strict=True):
        if token_id in control:
            held.append(token_id)
            texts.append([])
        else:
            texts[-1].append(piece)
    return held, [b"".join(parts) for parts in texts]


@lru_cache(maxsize=1)  # several causes ask it of the same difference
def _aligned(difference: Difference) -> list[tuple[bytes, bytes, int, int]] | None:
    """Return the bytes between the same control ids on both sides, with the ids around them.

    `None` when the control ids differ. Where the recorded list ends, the other may go on.
    """
    mine, texts = framed(difference.recorded, difference)
    theirs, their_texts = framed(difference.other, difference)
    goes_on = is_last(difference)
    if mine != theirs[: len(mine)] or (len(mine) != len(theirs) and not goes_on):
        return None
    n = len(texts)
    if goes_on and mine and not texts[-1].strip():
        n -= 1  # what the other side has behind the recorded one's last sign
    around = [-1, *mine, -1]
    pairs = zip(texts[:n], their_texts[:n], strict=True)
    return [(a, b, around[i], around[i + 1]) for i, (a, b) in enumerate(pairs)]


def turns_around(difference: Difference) -> list[tuple[bytes, bytes]] | None:
    """Return the texts of the turns around a difference on both sides, `None` if turns differ."""
    aligned = _aligned(difference)
    return None if aligned is None else [(a, b) for a, b, _, _ in aligned]


def turn_separator(difference: Difference) -> Evidence | None:
    """Tell white space behind the end of a turn that one side lacks."""
    changed = [row for row in _aligned(difference) or () if row[0] != row[1]]
    if not changed:
        changed = list(_last_separator(difference))
    for mine, theirs, before, _ in changed:
        if mine.strip() or theirs.strip() or not is_turn_end(difference, before):
            return None
        if mine and theirs:
            return None
    if not changed:
        return None
    mine, theirs = changed[0][:2]
    lost = bool(mine)
    return {"missing_on": "other" if lost else "recorded", "separator": show(mine or theirs)}


def _last_separator(difference: Difference) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Yield what differs behind the last sign of both lists."""
    mine, theirs = difference.recorded, difference.other
    at_end = mine.end == len(mine.ids) and theirs.end == len(theirs.ids)
    if at_end and mine.start:
        yield mine.data, theirs.data, int(mine.ids[mine.start - 1]), -1


def template_whitespace_trim(difference: Difference) -> Evidence | None:
    """Tell white space at the edges of a message that the other side lacks."""
    changed = [row for row in _aligned(difference) or () if row[0] != row[1]]
    if not changed or not control_of(difference, [row[2] for row in changed]):
        return None
    trimmed = []
    for mine, theirs, before, behind in changed:
        left, right = body(mine), body(theirs)
        is_framed = before >= 0 and behind >= 0 and _role(mine) == _role(theirs)
        if not is_framed or not left.strip() or left.strip() != right.strip():
            return None
        named = b"\n\n" if _is_header_end(difference, before) else b""
        if len(right) >= len(left) or not right.startswith(named):
            return None
        trimmed.append(len(left) - len(right))
    return {"n_bytes": sum(trimmed), "message": show(body(changed[0][0]))}


def _role(turn: bytes) -> bytes:
    head = ROLE.match(turn)
    return b"" if head is None else head[0].strip()


def _is_header_end(difference: Difference, token_id: int) -> bool:
    return "end_header" in difference.tokenizer.control.get(token_id, "")


def body(turn: bytes) -> bytes:
    """Return a turn without the name of its role."""
    head = ROLE.match(turn)
    named = head is not None and head[0].strip()
    return turn[head.end() :] if head is not None and named else turn


def _own(difference: Difference) -> tuple[list[int], list[int]]:
    return difference.recorded.region.tolist(), difference.other.region.tolist()


def _is_blank(side: Side, start: int, end: int) -> bool:
    return not side.pieces[start:end].data.strip()


def skip_special_tokens(difference: Difference) -> Evidence | None:
    """Tell special tokens that decoding left out, all of them."""
    special = set(difference.tokenizer.special_ids.tolist())
    mine, theirs = difference.recorded, difference.other
    lost = [i for i in mine.region.tolist() if i in special]
    near = mine.ids[max(0, mine.start - NEAR) : mine.end + NEAR].tolist()
    there = [i for i in near if i in special]
    other = theirs.ids[max(0, theirs.start - NEAR) : theirs.end + NEAR]
    if not lost or len(there) < 2 or special & set(other.tolist()) or not len(other):
        return None
    if all(is_turn_end(difference, i) for i in there):
        return None
    pairs = zip(mine.region.tolist(), mine.pieces[mine.start : mine.end], strict=True)
    kept = b"".join(piece for token_id, piece in pairs if token_id not in special)
    if kept.strip() != theirs.data.strip():
        return None
    return {"skipped": [difference.tokenizer.control.get(i, "") for i in lost[:8]]}


def bos_duplicated(difference: Difference) -> Evidence | None:
    """Tell a begin-of-text id that stands twice in a row on one side."""
    mine, theirs = _own(difference)
    sides = ((difference.recorded, mine, theirs), (difference.other, theirs, mine))
    for (side, own, others), name in zip(sides, ("recorded", "other"), strict=True):
        if others or len(own) != 1 or not is_text_start(difference, own[0]):
            continue
        around = side.ids[max(0, side.start - 1) : side.end + 1].tolist()
        if around.count(own[0]) >= 2:
            return {"bos": difference.tokenizer.control[own[0]], "doubled_on": name}
    return None


def bos_dropped(difference: Difference) -> Evidence | None:
    """Tell a begin-of-text id that only the recorded side has."""
    return _bos(difference, *_own(difference))


def bos_added(difference: Difference) -> Evidence | None:
    """Tell a begin-of-text id that only the other side has."""
    return _bos(difference, *_own(difference)[::-1])


def _bos(difference: Difference, has: list[int], lacks: list[int]) -> Evidence | None:
    if difference.recorded.start or difference.other.start or len(has) != 1 or lacks:
        return None
    is_start = is_text_start(difference, has[0])
    return {"bos": difference.tokenizer.control[has[0]]} if is_start else None


def eos_swapped(difference: Difference) -> Evidence | None:
    """Tell one end-of-turn id in the place of another."""
    mine, theirs = _own(difference)
    if len(mine) != 1 or not theirs or mine[0] == theirs[0]:
        return None
    if not is_turn_end(difference, mine[0]) or not is_turn_end(difference, theirs[0]):
        return None
    side = difference.other
    at_end = difference.recorded.end == len(difference.recorded.ids)
    if not at_end and not _is_blank(side, side.start + 1, side.end):
        return None
    control = difference.tokenizer.control
    return {"recorded": control.get(mine[0], ""), "other": control.get(theirs[0], "")}


def eos_dropped(difference: Difference) -> Evidence | None:
    """Tell a sampled end-of-turn id that the other side lacks."""
    mine, theirs = _own(difference)
    if not mine or not is_turn_end(difference, mine[0]) or not ends_action(difference):
        return None
    side = difference.recorded
    if theirs and (difference.other.data.strip() or not _is_blank(side, side.start + 1, side.end)):
        return None
    if not all(is_turn_end(difference, i) for i in control_of(difference, mine)):
        return None
    rest = b"".join(
        piece
        for token_id, piece in zip(mine, side.pieces[side.start : side.end], strict=True)
        if not is_turn_end(difference, token_id)
    )
    if rest.strip():
        return None
    return {"eos": difference.tokenizer.control.get(mine[0], "")}


def eos_added(difference: Difference) -> Evidence | None:
    """Tell an end-of-turn id behind an action that did not sample one."""
    mine, theirs = _own(difference)
    side = difference.recorded
    if not theirs or not is_turn_end(difference, theirs[0]) or side.data.strip():
        return None
    last = int(side.ids[side.start - 1]) if side.start else -1
    if not ends_action(difference) or control_of(difference, mine) or last < 0:
        return None
    if is_turn_end(difference, last) or (
        not difference.action and last in difference.tokenizer.control
    ):
        return None
    at_end = side.end == len(side.ids)
    if not at_end and not _is_blank(
        difference.other, difference.other.start + 1, difference.other.end
    ):
        return None
    found: Evidence = {"eos": difference.tokenizer.control.get(theirs[0], "")}
    reason = difference.facts.get("finish_reason")
    return found | ({"finish_reason": reason} if isinstance(reason, str) else {})
