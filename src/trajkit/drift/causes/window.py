"""What a cause looks at: the bytes of a difference on both sides, and some ids around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from trajkit.drift.difference import Difference, Side
from trajkit.records import Ids
from trajkit.tokenizer import Tokenizer

Evidence: TypeAlias = dict[str, Any]
Blocks: TypeAlias = Callable[[bytes], Iterable[tuple[int, int]]]
"""Finds the spans of blocks in bytes, ascending."""

AROUND = 1024
"""Ids on either side of a difference in which a block or a tool call is looked for."""
NEAR = 64
"""Ids on either side in which control tokens are looked for."""
_LAST = 3
"""Ids that the end of a turn takes, white space included."""
_CONTEXT = 16
"""Ids on either side with which a piece of text is encoded again."""

TURN_ENDS = frozenset(
    {
        *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"),
        *("<｜end▁of▁sentence｜>", "<|return|>", "<|end|>", "<|call|>", "<end_of_turn>", "<eos>"),
        *("<|eot|>", "<|eom|>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>", "<|eos|>"),
    }
)
"""Control tokens that end a turn or a text."""
TEXT_STARTS = frozenset(
    {
        "<|begin_of_text|>",
        "<s>",
        "<bos>",
        "<｜begin▁of▁sentence｜>",
        "<|startoftext|>",
        "<BOS_TOKEN>",
    }
)
"""Control tokens that begin a text."""
PLACEHOLDER = re.compile(r"reserved|place.?holder|unused|extra_?id|dummy", re.IGNORECASE)
"""In the names of control tokens that mean nothing yet."""
ROLE = re.compile(
    rb"^\s*(?:(?:system|developer|user|assistant|tool|ipython|model|environment)[ \t]*\n+)?"
)
"""White space and the name of a role at the head of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Bytes of and around a difference.

    Attributes:
        before: what both sides have in front of it.
        mine, theirs: what differs, recorded and other.
        mine_behind, their_behind: what follows on each side.
        ends: whether the recorded list ends behind the difference, so that the other may go on.
    """

    before: bytes
    mine: bytes
    theirs: bytes
    mine_behind: bytes
    their_behind: bytes
    ends: bool

    def flipped(self) -> Window:
        """Return the window with its sides exchanged; neither list may go on."""
        return Window(
            before=self.before,
            mine=self.theirs,
            theirs=self.mine,
            mine_behind=self.their_behind,
            their_behind=self.mine_behind,
            ends=False,
        )


@lru_cache(maxsize=1)  # several causes ask it of the same difference
def window_of(difference: Difference, n: int = AROUND) -> Window:
    """Return the bytes of a difference with those of `n` ids on either side."""
    mine, theirs = difference.recorded, difference.other
    left, right = mine.before(n), theirs.before(n)
    n_same = common_tail(left, right)
    return Window(
        before=left[len(left) - n_same :],
        mine=mine.data,
        theirs=theirs.data,
        mine_behind=mine.behind(n),
        their_behind=theirs.behind(n),
        ends=is_last(difference),
    )


def is_last(difference: Difference) -> bool:
    """Return whether nothing but the end of a turn follows the region on the recorded side.

    The other side may go on there: its next turn then ends as the recorded list does.
    """
    mine = difference.recorded
    if len(mine.ids) - mine.end > _LAST:
        return False
    rest = zip(mine.ids[mine.end :].tolist(), mine.pieces[mine.end :], strict=True)
    return all(is_turn_end(difference, i) or not piece.strip() for i, piece in rest)


def common_head(left: bytes, right: bytes) -> int:
    """Return how many bytes both begin with."""
    n = min(len(left), len(right))
    if left[:n] == right[:n]:
        return n
    low, high = 0, n  # the first difference lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_tail(left: bytes, right: bytes) -> int:
    """Return how many bytes both end with."""
    return common_head(left[::-1], right[::-1])


def trimmed(difference: Difference) -> tuple[bytes, bytes]:
    """Return the differing bytes of both sides without what both begin and end with."""
    mine, theirs = difference.recorded.data, difference.other.data
    head = common_head(mine, theirs)
    mine, theirs = mine[head:], theirs[head:]
    tail = common_tail(mine, theirs)
    return mine[: len(mine) - tail], theirs[: len(theirs) - tail]


def same_bytes(difference: Difference) -> bool:
    """Return whether both sides spell the same bytes."""
    return difference.recorded.data == difference.other.data


def as_text(data: bytes) -> str | None:
    """Return what bytes spell, `None` when they are no UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def show(data: bytes, limit: int = 80) -> str:
    """Return the head of some bytes as text for evidence."""
    return data[:limit].decode("utf-8", errors="replace")


def control_of(difference: Difference, ids: Iterable[int]) -> list[int]:
    """Return the control ids among some ids."""
    control = difference.tokenizer.control
    return [i for i in ids if i in control]


def is_turn_end(difference: Difference, token_id: int) -> bool:
    """Return whether an id ends a turn: by its spelling, or because the facts say so."""
    known = difference.facts.get("stop_ids")
    stops = known if isinstance(known, list | tuple) else ()
    return difference.tokenizer.control.get(token_id) in TURN_ENDS or token_id in stops


def is_text_start(difference: Difference, token_id: int) -> bool:
    """Return whether an id begins a text, by its spelling."""
    return difference.tokenizer.control.get(token_id) in TEXT_STARTS


def inside_action(difference: Difference) -> bool:
    """Return whether all recorded ids of the region were sampled in one action."""
    start, end = difference.recorded.start, difference.recorded.end
    return any(a <= start and end <= b and start < b for a, b in difference.action)


def outside_action(difference: Difference) -> bool:
    """Return whether actions are known and the region holds no id of any."""
    start, end = difference.recorded.start, difference.recorded.end
    return bool(difference.action) and all(end <= a or b <= start for a, b in difference.action)


def ends_action(difference: Difference) -> bool:
    """Return whether the region ends where an action ends, or the list when no action is known.

    White space and control tokens behind the action that belong to the region do not count.
    """
    mine = difference.recorded
    if not difference.action:
        return mine.end == len(mine.ids)
    return any(
        mine.start <= b <= mine.end and not mine.pieces[b : mine.end].data.strip()
        for _, b in difference.action
    )


def spelt(tokenizer: Tokenizer, side: Side) -> Ids | None:
    """Return the ids a tokenizer gives to the bytes of a region where they stand.

    `None` when the bytes are no text, or their edges are no borders of tokens.
    """
    control = tokenizer.control  # text is encoded afresh behind each of these
    low, high = max(0, side.start - _CONTEXT), min(len(side.ids), side.end + _CONTEXT)
    ahead = range(side.start - 1, low - 1, -1)
    low = next((at + 1 for at in ahead if int(side.ids[at]) in control), low)
    high = next((at for at in range(side.end, high) if int(side.ids[at]) in control), high)
    front = whole_head(side.pieces[low : side.start].data)
    behind = side.pieces[side.end : high].data.decode("utf-8", errors="ignore").encode()
    data = side.data
    text = as_text(front + data + behind)
    if text is None:
        return None
    ids = next(tokenizer.encode_batch([text]))
    pieces = tokenizer.pieces(ids)
    n_bytes = sum(map(len, pieces))
    extra = n_bytes - len(front + data + behind)  # a space of the tokenizer's own in front
    if extra not in (0, 1):
        return None
    start, end = len(front) + extra, len(front) + extra + len(data)
    if not front and extra:
        start = 0
        end = len(data) if data.startswith(b" ") else len(data) + 1
    at, borders = 0, {0: 0}
    for number, piece in enumerate(pieces, start=1):
        at += len(piece)
        borders.setdefault(at, number)
    if start not in borders or end not in borders:
        return None
    return ids[borders[start] : borders[end]]


def whole_head(data: bytes) -> bytes:
    """Return bytes without the rest of a character that was cut at their head."""
    n = 0
    while n < min(3, len(data)) and data[n] & 0xC0 == 0x80:
        n += 1
    return data[n:]


def agrees_without(
    window: Window,
    blocks: Blocks,
    instead: bytes = b"",
) -> list[bytes] | None:
    """Return the blocks whose removal from the recorded bytes gives the other's, else `None`.

    Only blocks that touch the difference are removed. Where the recorded list ends, its last
    sign may be another one and the other side may go on.

    Args:
        window: the bytes of both sides.
        blocks: finds the spans of blocks in bytes, ascending.
        instead: what stands in a block's place.
    """
    whole = window.before + window.mine + window.mine_behind
    start, end = len(window.before), len(window.before) + len(window.mine)
    spans = [(a, b) for a, b in blocks(whole) if a < end and b > start]
    if not spans:
        return None
    kept, at, rest_from = [], 0, end
    for a, b in spans:
        kept += [whole[at:a], instead]
        at = b
        rest_from = max(rest_from, b)
    left = b"".join(kept) + whole[at:]
    right = window.before + window.theirs + window.their_behind
    n_same = common_head(left, right)
    mine_end = len(left) - (len(whole) - rest_from)
    their_end = len(window.before) + len(window.theirs)
    told_end = max(mine_end, their_end)
    is_told = n_same >= max(told_end, min(told_end + _GOES_ON, len(left), len(right)))
    if not is_told and window.ends:
        rest = left[n_same:]
        is_told = n_same > start and len(rest) < _LONGEST_SIGN and _SIGN.fullmatch(rest) is not None
    return [whole[a:b] for a, b in spans] if is_told and left != whole else None


_SIGN = re.compile(rb"(?:<?\|?[\w\xef\xbd\x9c\xe2\x96\x81/]+\|?>|\s)*")
_GOES_ON = 8
"""Bytes that must agree behind a block and the difference."""
_LONGEST_SIGN = 64
"""The end of a turn, or what of it two signs do not have in common."""


def pair_of(facts: Mapping[str, Any], name: str) -> tuple[Any, Any] | None:
    """Return a fact that says something of both sides, `None` when it is absent or malformed."""
    value = facts.get(name)
    return tuple(value) if isinstance(value, list | tuple) and len(value) == 2 else None
