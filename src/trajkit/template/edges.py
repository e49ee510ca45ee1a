"""Where the text around a policy message begins and ends: neighbours, headers, end-of-turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trajkit.template.leaves import Part
from trajkit.template.load import ChatTemplate
from trajkit.template.rendering import Rendered
from trajkit.template.spans import LeafSpan
from trajkit.tokenizer import Tokenizer

_LONGEST = 64
"""Characters around a place in which a control token is looked for."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The strings around a message in a text, all of them character places.

    The scaffold before it is `[before, first)`, the one behind `[last, after)`.
    """

    before: int
    first: int
    last: int
    after: int


def edges_of(rendered: Rendered) -> dict[int, Edges]:
    """Return the edges of each message that has strings of its own, none in an unknown span.

    A string that is written once more (a call's name before its result) is scaffold here.
    """
    spans = [span for span in rendered.spans if span.leaf is None or span.messages]
    doubtful = {message for span in spans if span.leaf is None for message in span.messages}
    borrowed = _borrowed(rendered, spans)
    found: dict[int, Edges] = {}
    upto: dict[int | None, int] = {}
    """How far into each string the text has got."""
    for number, span in enumerate(spans):
        if number in borrowed or span.leaf_start < upto.get(span.leaf, 0):
            continue
        upto[span.leaf] = span.leaf_end
        before = spans[number - 1].end if number else 0
        after = spans[number + 1].start if number + 1 < len(spans) else len(rendered.text)
        for message in span.messages:
            known = found.get(message)
            found[message] = Edges(
                before=known.before if known else before,
                first=known.first if known else span.start,
                last=span.end,
                after=after,
            )
    return {message: edges for message, edges in found.items() if message not in doubtful}


def _borrowed(rendered: Rendered, spans: list[LeafSpan]) -> set[int]:
    """Return which spans are names of later messages, written right before an earlier message's.

    So it is where a template looks up what to call a result, and the name is found too late.
    """
    found: set[int] = set()
    for number in range(len(spans) - 2, -1, -1):
        span, following = spans[number], spans[number + 1]
        if is_name(rendered, span):
            is_late = max(following.messages, default=-1) < span.messages[0]
            goes_on = number + 1 in found and following.messages == span.messages
            found.update({number} if is_late or goes_on else ())
    return found


def is_name(rendered: Rendered, span: LeafSpan) -> bool:
    """Return whether a span is a name, which a template may write beside others' words."""
    return span.leaf is not None and rendered.leaves[span.leaf].part is Part.NAME


def room_of(rendered: Rendered, k: int, first: int, last: int) -> tuple[int, int]:
    """Return where the words of other messages end before message k, and where they begin behind.

    Args:
        rendered: the text.
        k: the message.
        first: where its own strings begin.
        last: where they end.
    """
    earlier, later = 0, len(rendered.text)
    for span in rendered.spans:
        if k not in span.messages and not is_name(rendered, span):
            if span.end <= first:
                earlier = span.end
            elif span.start >= last:
                return earlier, span.start
    return earlier, later


def stop_tokens(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return what may end a turn: the special added tokens, and the template's own end token."""
    added = tokenizer._backend.get_added_tokens_decoder().values()  # noqa: SLF001
    found = {token.content for token in added if token.special}
    return tuple(sorted(found | {template.special_tokens.get("eos_token", "")} - {""}))


def find_stop(tail: str, going_on: str, stops: Iterable[str]) -> tuple[int, tuple[int, int] | None]:
    """Return where a turn ends in what is written behind it, and its end-of-turn token.

    It is the last token that is written both at the end of a conversation and in the middle of
    one; where the two differ from the start, the first one at the end.

    Args:
        tail: what stands behind the turn when the conversation ends with it.
        going_on: what stands there when it does not.
        stops: the tokens that may end a turn.
    """
    shared = common_prefix(tail, going_on)
    found = sorted((at, at + len(stop)) for stop in stops for at in all_starts(tail, stop))
    if not found:
        return shared or len(tail), None
    both = [span for span in found if span[1] <= shared]
    stop = both[-1] if both else found[0]
    return stop[1], stop


def cut_no_token(text: str, at: int, control: Iterable[str]) -> int:
    """Return the place at or before `at` that lies inside no control token's text."""
    start = max(at - _LONGEST, 0)
    near = text[start : at + _LONGEST]
    inside = (
        start + found
        for token in control
        for found in all_starts(near, token)
        if start + found < at < start + found + len(token)
    )
    return min(inside, default=at)


def common_prefix(a: str, b: str) -> int:
    """Return how many characters two strings begin with alike."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def all_starts(text: str, token: str) -> Iterator[int]:
    """Yield where a token's text begins, its occurrences disjoint."""
    at = text.find(token)
    while at >= 0:
        yield at
        at = text.find(token, at + len(token))
