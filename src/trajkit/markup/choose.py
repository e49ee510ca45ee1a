"""Which profile a text was written with, and what tells that it was another."""

from __future__ import annotations

import re
from bisect import bisect_right

from trajkit.errors import InputError
from trajkit.markup.flat import FlatTrajectory, prompt_end
from trajkit.markup.marks import Marks
from trajkit.markup.profiles import MARKUPS, Markup, Side, Tag
from trajkit.records import SegmentKind

_REPLY_TAGS = re.compile(
    rb"<(information|result|results|documents|observation|output|interpreter|execution_result"
    rb"|tool_response|tool_result|tool_output|function_result|function_results)>"
)
_REPLY_LABEL = re.compile(rb"^Observation(?: ?\d{1,9})?:", re.MULTILINE)


def choose(text: str, *, prompt: str | None = None) -> tuple[Markup, str] | None:
    """Return the profile that a pair of tags outside the prompt confirms, and the reason.

    Where the end of the prompt cannot be found nothing can be outside of it: the first profile
    with a pair of tags is returned all the same, for its error to be told.
    """
    data = text.encode("utf-8")
    undecided = None
    for markup in MARKUPS:
        start = 0
        if prompt is None:
            try:
                start = prompt_end(data, markup, 0)
            except InputError:
                if undecided is None and (pair := _pair(data, markup, 0)) is not None:
                    undecided = markup, f"{pair}, but no end of the prompt"
                continue
        pair = _pair(data, markup, start)
        if pair is not None:
            return markup, f"{pair} outside the prompt"
    return undecided


def foreign_reply(flat: FlatTrajectory) -> int | None:
    """Return where the policy's text holds a pair of tags that environments reply with.

    A profile that does not know them would take the reply for the policy's own words.
    """
    pieces = list(flat.pieces)
    starts = [piece.start for piece in pieces]

    def is_own(at: int) -> bool:
        spot = bisect_right(starts, at) - 1
        return spot >= 0 and pieces[spot].writer is Side.POLICY

    hopeless: set[bytes] = set()
    for match in _REPLY_TAGS.finditer(flat.data, flat.n_prompt):
        if match[1] in hopeless or not is_own(match.start()):
            continue
        if flat.data.find(b"</" + match[1] + b">", match.end()) >= 0:
            return match.start()
        hopeless.add(match[1])
    labels = _REPLY_LABEL.finditer(flat.data, flat.n_prompt)
    return next((match.start() for match in labels if is_own(match.start())), None)


def _pair(data: bytes, markup: Markup, start: int) -> str | None:
    """Return the pair of tags that confirms a markup, `None` without one.

    Thinking tags confirm nothing: too many profiles have them. Labels need an action and an
    observation; a profile without tags needs a turn of the policy that ends.
    """
    turns = markup.turns
    if turns is not None:
        first = rb"SYSTEM:" if turns.labels else re.escape(turns.open.encode()) + rb"system\r?\n"
        other = re.compile(rb"\r?\n\r?\n" + first).search(data, start)
        data = data[: other.start()] if other else data
    labels = [tag for tag in markup.tags if tag.close is None and tag.kind is not SegmentKind.THINK]
    if labels:
        return _label_pair(data, labels, markup, start)
    for tag in markup.tags:
        if tag.kind is SegmentKind.THINK or tag.close is None:
            continue
        at = data.find(tag.open.encode(), start)
        if at >= 0 and data.find(tag.close.encode(), at) >= 0:
            return f"{tag.open} … {tag.close}"
    if not markup.tags and turns is not None and data.find(turns.close.encode(), start) >= 0:
        return f"{turns.open}{turns.policy_roles[0]} … {turns.close}"
    return None


def _label_pair(data: bytes, labels: list[Tag], markup: Markup, start: int) -> str | None:
    marks, at = Marks(data, markup, start), start
    action: str | None = None
    while (mark := marks.next(at)) is not None:
        at = mark.end
        found = data[mark.start : mark.end].decode().strip()
        if mark.tag in labels and mark.opens(Side.POLICY):
            action = found
        elif mark.is_observation and action is not None:
            return f"{action} … {found}"
    return None
