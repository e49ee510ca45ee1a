"""Where the text around a policy message begins and ends: neighbours, headers, end-of-turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trajkit.template.load import ChatTemplate
from trajkit.template.rendering import Rendered
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
    found: dict[int, Edges] = {}
    seen: set[int | None] = set()
    for number, span in enumerate(spans):
        before = spans[number - 1].end if number else 0
        after = spans[number + 1].start if number + 1 < len(spans) else len(rendered.text)
        for message in span.messages if span.leaf not in seen else ():
            known = found.get(message)
            found[message] = Edges(
                before=known.before if known else before,
                first=known.first if known else span.start,
                last=span.end,
                after=after,
            )
        seen.add(span.leaf)
    return {message: edges for message, edges in found.items() if message not in doubtful}


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
