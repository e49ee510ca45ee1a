"""How far the environment's text goes: tags inside it are text, so structure decides."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from trajkit.markup.marks import Mark, Marks, Sort, turn_end, turn_head
from trajkit.markup.profiles import Markup, Side

SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What the environment returned, in bytes.

    Attributes:
        contents: the spans that hold text; what lies around them is scaffold.
        results: the same spans as a reader wants them, without the white space at the tags.
        end: where its text ends, closing tag and white space included.
        is_closed: whether the closing tag is there.
        has_inner_close: whether the same closing tag stands inside, too.
    """

    contents: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, int], ...]
    end: int
    is_closed: bool
    has_inner_close: bool = False


def observation_extent(data: bytes, marks: Marks, mark: Mark) -> Extent | int:
    """Return how far an observation goes that opens with a mark.

    It ends with the last closing tag before something that only the policy can have written.
    Without any, it was cut, and ends where the policy goes on.

    Returns:
        the extent, or the place of a second closing tag behind tags of the policy: then it cannot
        be known whether the policy or the observation wrote these.
    """
    tag = mark.tag
    if tag is None:
        raise ValueError("an observation has a tag")
    if tag.close is None:
        return _label_extent(data, marks, mark)
    last: Mark | None = None
    policy: Mark | None = None  # since the last closing tag
    n_closes = 0
    at = mark.end
    while (found := marks.next(at)) is not None:
        at = found.end
        if found.closes(tag):
            if last is not None and policy is not None:
                return found.start
            last, policy = found, None
            n_closes += 1
            continue
        is_turn = found.sort in (Sort.TURN_OPEN, Sort.TURN_CLOSE)
        if last is not None and (found.is_observation or is_turn):
            break
        if found.is_observation and policy is not None:
            break
        is_own = not found.is_observation and (found.sort is not Sort.CLOSE or last is not None)
        policy = found if is_own and policy is None else policy
    if last is None:
        end = len(data) if policy is None else policy.start
        return _extent(data, mark.end, end, end, is_closed=False)
    after = _shared_start(data, last.end, tag.after)
    extent = _extent(data, mark.end, last.start, last.end + after, is_closed=True)
    return replace(extent, has_inner_close=n_closes > 1)


def turn_extent(data: bytes, marks: Marks, markup: Markup, mark: Mark) -> Extent | int:
    """Return how far a turn goes that is not the policy's.

    A turn that begins with a tag of the environment ends behind that tag's end, so that a turn
    forged inside the tag is text. Otherwise it ends with the last turn mark before the next turn.

    Returns:
        the extent, or a place from which on it cannot be told where the turn ends.
    """
    wrapped = _wrapped_extent(data, markup, mark.end)
    if wrapped is not None:
        return wrapped
    last: Mark | None = None
    at = mark.end
    while (found := marks.next(at)) is not None and found.sort is not Sort.TURN_OPEN:
        at = found.end
        if found.sort is Sort.TURN_CLOSE:
            last = found
    upto = len(data) if found is None else found.start
    if last is None:
        return _extent(data, mark.end, upto, upto, is_closed=False)
    if data[last.end : upto].strip(SPACE):
        return last.end
    return _extent(data, mark.end, last.start, last.end, is_closed=True)


def _wrapped_extent(data: bytes, markup: Markup, start: int) -> Extent | int | None:
    """Return the extent of a turn whose content stands in tags of the environment, if it does.

    Where another such turn begins before the tag is closed, one of both was cut or forged.
    """
    if markup.turns is None:
        return None
    first = start
    while data[first : first + 1].strip(SPACE) == b"" and first < len(data):
        first += 1
    for tag in markup.tags:
        opened, closed = tag.open.encode(), (tag.close or "").encode()
        if tag.writer is not Side.ENVIRONMENT or not closed or not data.startswith(opened, first):
            continue
        another = turn_head(markup.turns) + rb"\s*" + re.escape(opened)
        end = re.escape(closed) + rb"\s*" + turn_end(markup.turns)
        pattern = re.compile(end + rb"|(" + another + rb")", re.MULTILINE)
        whole = pattern.search(data, first)
        if whole is None:
            return None
        if whole[1] is not None:
            return whole.start()
        content = first + len(opened), whole.start()
        contents = []
        at = content[0]
        for seam in re.finditer(
            re.escape(closed) + rb"\s*" + re.escape(opened), data[at : content[1]]
        ):
            contents.append((at, content[0] + seam.start()))
            at = content[0] + seam.end()
        contents.append((at, content[1]))
        return Extent(
            contents=tuple(contents),
            results=tuple(_inner(data, *span) for span in contents),
            end=whole.end(),
            is_closed=True,
        )
    return None


def _label_extent(data: bytes, marks: Marks, mark: Mark) -> Extent:
    """Return how far a labelled observation goes: to the next label of the policy.

    Observation n is followed by a label that is numbered n + 1 or not at all; any other is text.
    """
    at = mark.end
    while (found := marks.next(at)) is not None:
        at = found.end
        if found.sort in (Sort.TURN_OPEN, Sort.TURN_CLOSE, Sort.PHRASE):
            break
        is_next = None in (mark.number, found.number) or found.number == (mark.number or 0) + 1
        if found.opens(Side.POLICY) and is_next:
            break
    end = len(data) if found is None else found.start
    n_said = len(data[mark.end : end].rstrip(SPACE))
    n_gap = len(data[mark.end : end]) - len(data[mark.end : end].lstrip(SPACE))
    first, last = mark.end + min(n_gap, n_said), mark.end + n_said
    return Extent(contents=((first, last),), results=((first, last),), end=end, is_closed=True)


def _extent(data: bytes, start: int, stop: int, end: int, *, is_closed: bool) -> Extent:
    return Extent(
        contents=((start, stop),),
        results=(_inner(data, start, stop),),
        end=end,
        is_closed=is_closed,
    )


def _inner(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return a span without the one line break that may stand inside each tag."""
    if data.startswith(b"\n", start) and start < end:
        start += 1
    if start < end and data[end - 1 : end] == b"\n":
        end -= 1
    return start, end


def _shared_start(data: bytes, at: int, wanted: str) -> int:
    """Return how many bytes at a place are a beginning of what is wanted."""
    text = wanted.encode()
    return next(n for n in range(len(text), -1, -1) if data.startswith(text[:n], at))
