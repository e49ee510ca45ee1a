"""Tokens that straddle the end of an action, for the ways in which tag profiles join texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trajkit.drift.profile.traits import Example, Fact, Trait
from trajkit.markup import Markup, Side, Tag
from trajkit.tokenizer import Tokenizer

_WORDS = "the capital of France"
_LABEL_ENDS = ("[Paris]", "(Paris)", "Paris.", "Paris", "```")
"""How actions end that no tag closes."""
_STARTS = ("\n", "\n\n", " ")
"""What environments often begin with; plain words follow."""
_RESULT = "Doc 1: Paris"


def join_facts(tokenizer: Tokenizer, markups: Iterable[Markup]) -> Iterator[Fact]:
    """Yield, for each tag profile, at which joins of action and observation a token straddles.

    An action that ends with a control token has no such join: those cut text before merging.
    """
    for markup in markups:
        found = [_straddling(tokenizer, *join) for join in _joins(markup)]
        examples = tuple(example for example in found if example is not None)
        yield Fact(
            trait=Trait.STRADDLES,
            subject=markup.name,
            n=len(examples),
            n_probed=len(found),
            examples=examples,
        )


def _joins(markup: Markup) -> Iterator[tuple[str, str]]:
    """Yield the ways in which an action's end meets what follows it."""
    ends = list(dict.fromkeys(_ends(markup)))
    starts = list(dict.fromkeys(_starts(markup)))
    yield from ((end, start) for end in ends for start in starts)


def _ends(markup: Markup) -> Iterator[str]:
    for tag in markup.tags:
        if tag.writer is Side.POLICY and tag.close is not None:
            yield _WORDS + tag.close
        elif tag.writer is Side.POLICY:
            yield from _LABEL_ENDS
    if markup.turns is not None:
        yield _WORDS + "." + markup.turns.close


def _starts(markup: Markup) -> Iterator[str]:
    for tag in markup.tags:
        if tag.writer is Side.ENVIRONMENT:
            opening = _opening(tag)
            yield from dict.fromkeys((tag.before + opening, "\n" + opening, opening))
    if markup.turns is not None:
        yield f"\n{markup.turns.open}user\n"
    yield from (start + _RESULT for start in _STARTS)
    yield from (phrase for phrase in markup.phrases)


def _opening(tag: Tag) -> str:
    return tag.open.replace("{n}", " 1") + ("" if tag.close is not None else " ") + _RESULT


def _straddling(tokenizer: Tokenizer, action: str, observation: str) -> Example | None:
    """Return the token that holds bytes of both, `None` when the end of the action is kept."""
    ids = next(tokenizer.encode_batch([action + observation]))
    pieces = tokenizer.pieces(ids)
    n_more = sum(map(len, pieces)) - len((action + observation).encode())
    border, end = len(action.encode()) + n_more, 0  # what is added stands in front
    for token_id, piece in zip(ids.tolist(), pieces, strict=True):
        start, end = end, end + len(piece)
        if start < border < end:
            return {
                "action_end": action[-16:],
                "observation_start": observation[:24],
                "id": token_id,
                "text": piece.decode("utf-8", errors="replace"),
                "n_action_bytes": border - start,
            }
        if end >= border:
            break
    return None
