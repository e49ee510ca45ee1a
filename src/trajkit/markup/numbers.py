"""Where a text that counts its labels begins to: its prompt ends there, if it counts once."""

from __future__ import annotations

from trajkit.markup.marks import Mark, Marks
from trajkit.markup.observe import SPACE
from trajkit.markup.profiles import Markup, Side
from trajkit.records import SegmentKind


def numbered_start(data: bytes, markup: Markup, start: int) -> int | None:
    """Return where the first label stands, when the text before it can only be the prompt.

    That is so where all labels count up once from 1, with an observation among them and an answer
    at the end, something stands before the first, and no line follows the answer. Examples in the
    prompt would count from 1 again; a prompt that ends with an example goes on behind its answer.

    Args:
        data: the whole text.
        markup: a profile without turns, whose marks are labels.
        start: where the text begins.

    Returns:
        the byte where the first label begins; `None` where the numbers do not tell.
    """
    if markup.turns is not None or markup.phrases or not _is_labelled(markup):
        return None
    marks, at, found = Marks(data, markup, start), start, list[Mark]()
    while (mark := marks.next(at)) is not None:
        if not _follows(mark, found[-1] if found else None):
            return None
        found.append(mark)
        at = mark.end
    if not found or not data[start : found[0].start].strip(SPACE):
        return None
    if not any(mark.is_observation for mark in found):
        return None
    return found[0].start if _ends_there(data, found[-1]) else None


def _is_labelled(markup: Markup) -> bool:
    return bool(markup.tags) and all(tag.close is None for tag in markup.tags)


def _follows(mark: Mark, last: Mark | None) -> bool:
    """Return whether a label bears the number that comes next in one count from 1."""
    if mark.number is None:
        return False
    if last is None or last.number is None:
        return mark.number == 1 and mark.opens(Side.POLICY)
    if last.is_observation:
        return mark.number == last.number + 1 and mark.opens(Side.POLICY)
    return mark.number == last.number and mark.tag is not last.tag


def _ends_there(data: bytes, last: Mark) -> bool:
    """Return whether a label begins an answer, and the text ends with its line."""
    if last.tag is None or last.tag.kind is not SegmentKind.ANSWER:
        return False
    return not data[last.end :].partition(b"\n")[2].strip(SPACE)
