"""The text between two messages of the user, as it was before the second was written.

Templates drop thoughts once the user writes again. What a step of a tool loop saw is then no part
of the whole conversation's text, but it is the whole text up to the user's message and, from there
on, that of a short conversation which ends before the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from trajkit.template.edges import common_prefix
from trajkit.template.measure import Turn, TurnFit
from trajkit.template.rendering import Rendered


def splice(whole: Rendered, short: Rendered, message: int) -> tuple[Rendered, int] | None:
    """Return the whole text up to a message and the short one from there on, and how far it moved.

    `None` where a text does not show all its strings, or the message's header differs. The leaves
    are those of the whole.

    Args:
        whole: a conversation.
        short: some of its messages, by their numbers there.
        message: the one where the short text takes over.
    """
    if whole.unlocated or short.unlocated:
        return None
    here, there = _header_of(whole, message), _header_of(short, message)
    if here is None or there is None:
        return None
    (cut, first), (from_, first_short) = here, there
    if whole.text[cut:first] != short.text[from_:first_short]:
        return None
    numbers = {
        (leaf.message, leaf.path, leaf.is_key): number for number, leaf in enumerate(whole.leaves)
    }
    moved = cut - from_
    spans = [*whole.spans[: bisect_left(whole.spans, first, key=lambda span: span.start)]]
    for span in short.spans_from(from_):
        leaf = None if span.leaf is None else short.leaves[span.leaf]
        spans.append(
            replace(
                span,
                start=span.start + moved,
                end=span.end + moved,
                leaf=None if leaf is None else numbers[leaf.message, leaf.path, leaf.is_key],
            )
        )
    shown = {span.leaf for span in spans}
    return (
        Rendered(
            text=whole.text[:cut] + short.text[from_:],
            leaves=whole.leaves,
            spans=tuple(spans),
            dropped=tuple(number for number in range(len(whole.leaves)) if number not in shown),
            unlocated=(),
        ),
        moved,
    )


def moved_turn(
    turn: Turn, spliced: Rendered, moved: int, kept: Sequence[int], whole: Rendered
) -> Turn:
    """Return a turn of a short conversation in the spliced text.

    Args:
        turn: where its prompt stands, that text was spliced.
        spliced: the text that holds the prompt now, and the action if it is written as it was.
        moved: how far they were moved.
        kept: the numbers of the short conversation's messages.
        whole: the whole conversation's text.
    """
    turn = replace(
        turn,
        message=kept[turn.message],
        prompt=spliced,
        prompt_end=turn.prompt_end + moved,
        parts_at=None if turn.parts_at is None else turn.parts_at + moved,
    )
    if turn.fit is not TurnFit.SAME:
        return replace(turn, rendered=turn.rendered.renumbered(kept))
    end = turn.end + moved
    n_shared = _n_shared(spliced, whole)
    is_same = end <= n_shared
    return replace(
        turn,
        fit=TurnFit.SAME if is_same else TurnFit.REWRITTEN,
        rendered=spliced,
        start=turn.start + moved,
        text_start=turn.text_start + moved,
        end=end,
        stop=None if turn.stop is None else (turn.stop[0] + moved, turn.stop[1] + moved),
        parts_at=None if is_same else n_shared,
    )


@lru_cache(maxsize=2)
def _n_shared(a: Rendered, b: Rendered) -> int:
    """Return how many characters two texts begin with alike."""
    return common_prefix(a.text, b.text)


def _header_of(rendered: Rendered, message: int) -> tuple[int, int] | None:
    """Return the scaffold right before a message's first string; `None` where it has none."""
    before = 0
    for span in rendered.spans:
        if message in span.messages:
            return (before, span.start) if span.leaf is not None else None
        before = span.end
    return None
