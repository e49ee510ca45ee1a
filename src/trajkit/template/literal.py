"""Text into ids, control tokens only where they are meant.

A tokenizer cuts text at its added tokens wherever they are spelt, so that a tool result that spells
`<|im_end|>` would end a turn. Here a twin of the tokenizer does the work: its control tokens go by
private names, and the text is given to it with those names in the places where control tokens are
allowed. Anywhere else their spelling is ordinary text to it. All the rest of the pipeline is the
tokenizer's own, so text without control tokens gets the same ids.
"""

from __future__ import annotations

import json
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trajkit.errors import InputError
from trajkit.records import Ids, ids_array
from trajkit.tokenizer import Tokenizer

POLICY_TAGS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})
"""Added tokens that a policy writes in its own text; any other in a message is only text."""


class Allow(StrEnum):
    """Which control tokens a piece of text may hold; the others it spells are only text."""

    ALL = "all"
    TAGS = "tags"
    """The tags of the policy's own text."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of text and what it may hold."""

    text: str
    allow: Allow


@dataclass(frozen=True, slots=True)
class Forged:
    """A place where a piece spells a control token that it may not hold.

    Attributes:
        start, end: characters of the joined text.
        piece: the piece where it begins.
        token_id: the control token that was spelt, and is not among the ids.
    """

    start: int
    end: int
    piece: int
    token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralText:
    """The ids of some pieces of text.

    Attributes:
        ids: [T] int32.
        starts: [T] int64, the character of the joined text where each token's first byte lies.
        ends: [T] int64, past the character where its last byte lies.
        pieces: [T] int64, the piece each token belongs to: the one of its first byte.
        forged: control text that is not control, ascending.
    """

    ids: Ids
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    pieces: NDArray[np.int64]
    forged: tuple[Forged, ...]


def encode_literally(
    pieces: Sequence[TextPiece], tokenizer: Tokenizer, tags: Iterable[str] = POLICY_TAGS
) -> LiteralText:
    """Return the ids of joined pieces of text; a control token only where a piece may hold it.

    Args:
        pieces: joined, they are the text; tokens may straddle them.
        tokenizer: the one whose ids are wanted.
        tags: what pieces that allow `TAGS` may hold.

    Raises:
        InputError: T102 when the tokenizer does not keep a control token whole.
    """
    return _twin_of(tokenizer).encode(pieces, frozenset(tags))


@lru_cache(maxsize=4)
def _twin_of(tokenizer: Tokenizer) -> _Twin:
    return _Twin(tokenizer)


class _Twin:
    """A tokenizer whose control tokens go by names that nobody else knows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spelt = _Speller(tokenizer.control)
        self._renew()

    def encode(self, pieces: Sequence[TextPiece], tags: frozenset[str]) -> LiteralText:
        """Return the ids of the pieces."""
        text = "".join(piece.text for piece in pieces)
        while self._nonce in text:
            self._renew()
        meant = list(self._meant(pieces, tags))
        aliased, bounds = self._aliased(text, meant)
        encoding = self._backend.encode(aliased, add_special_tokens=False)
        ids = [self._original.get(token_id, token_id) for token_id in encoding.ids]
        n_found = sum(token_id in self._original for token_id in encoding.ids)
        if n_found != len(meant):
            raise InputError(
                "T102",
                f"{self._tokenizer.name} does not keep {len(meant)} control tokens whole, only "
                f"{n_found}",
                hint="the tokenizer changes its own added tokens; its ids cannot be trusted",
            )
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        starts, ends = bounds.back(offsets[:, 0], offsets[:, 1])
        lengths = np.array([0, *(len(piece.text) for piece in pieces)], dtype=np.int64)
        begins = np.cumsum(lengths)[:-1]
        return LiteralText(
            ids=ids_array(ids),
            starts=starts,
            ends=ends,
            pieces=np.searchsorted(begins, starts, side="right") - 1,
            forged=tuple(self._forged(text, meant, begins.tolist())),
        )

    def _meant(
        self, pieces: Sequence[TextPiece], tags: frozenset[str]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield `(start, end, id)` of each control token in the places where it is meant."""
        at, run, allow = 0, "", Allow.ALL
        for piece in (*pieces, TextPiece("", Allow.NONE)):
            if piece.allow is not allow and run:
                for start, end, token_id in self._spelt.find(run) if allow != Allow.NONE else ():
                    if allow is Allow.ALL or run[start:end] in tags:
                        yield at + start, at + end, token_id
                at, run = at + len(run), ""
            allow = piece.allow
            run += piece.text

    def _forged(
        self, text: str, meant: list[tuple[int, int, int]], begins: list[int]
    ) -> Iterator[Forged]:
        """Yield each place of the text that spells a control token and is none."""
        taken = set(meant)
        for found in self._spelt.find(text):
            if found not in taken:
                start, end, token_id = found
                yield Forged(start, end, bisect_right(begins, start) - 1, token_id)

    def _aliased(self, text: str, meant: list[tuple[int, int, int]]) -> tuple[str, _Bounds]:
        """Return the text as the twin reads it, and the way back."""
        parts, spans, at = [], [], 0
        for start, end, token_id in (*meant, (len(text), len(text), None)):
            if start > at:
                parts.append(text[at:start])
                spans.append((at, start))
            if token_id is not None:
                parts.append(self._alias[token_id])
                spans.append((start, end))
            at = end
        return "".join(parts), _Bounds([len(part) for part in parts], spans)

    def _renew(self) -> None:
        """Build the twin with fresh names."""
        self._nonce = secrets.token_hex(8)
        control = self._tokenizer.control
        self._alias = {
            token_id: f"\U0010fffd{self._nonce}{token_id}\U0010fffd" for token_id in control
        }
        names = {control[token_id]: alias for token_id, alias in self._alias.items()}
        pipeline = json.loads(self._tokenizer._backend.to_str())  # noqa: SLF001
        _rename(pipeline, names)
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(pipeline))
        self._original: dict[int, int] = {}
        for token_id, alias in self._alias.items():
            mine = self._backend.token_to_id(alias)
            if mine is not None:
                self._original[mine] = token_id


class _Bounds:
    """The way from characters of the aliased text to those of the text."""

    def __init__(self, lengths: list[int], spans: list[tuple[int, int]]) -> None:
        self._from = np.cumsum(np.array([0, *lengths], dtype=np.int64))
        table = np.array([*spans, (spans[-1][1],) * 2] if spans else [(0, 0)], dtype=np.int64)
        self._start, self._end = table[:, 0], table[:, 1]

    def back(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return [T] starts and ends in the text."""
        left = np.searchsorted(self._from, starts, side="right") - 1
        right = np.maximum(np.searchsorted(self._from, ends, side="left") - 1, 0)
        return (
            np.minimum(self._start[left] + starts - self._from[left], self._end[left]),
            np.minimum(self._start[right] + ends - self._from[right], self._end[right]),
        )


class _Speller:
    """Finds control tokens in text, the first and longest first, as the tokenizers library does."""

    def __init__(self, control: dict[int, str]) -> None:
        self._ids = {text: token_id for token_id, text in control.items()}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield `(start, end, id)` of each, disjoint, ascending."""
        following = {first: text.find(first) for first in self._lengths}
        at = 0
        while True:
            ahead = {first: spot for first, spot in following.items() if spot >= 0}
            if not ahead:
                return
            first = min(ahead, key=lambda letter: ahead[letter])
            spot = following[first]
            if spot >= at:
                found = next(
                    (s for n in self._lengths[first] if (s := text[spot : spot + n]) in self._ids),
                    None,
                )
                if found is not None:
                    at = spot + len(found)
                    yield spot, at, self._ids[found]
            following[first] = text.find(first, max(spot + 1, at))


def _rename(pipeline: dict[str, Any], names: dict[str, str]) -> None:
    """Give control tokens other names, in the list of added tokens and in the vocabulary."""
    pipeline |= {"post_processor": None, "truncation": None, "padding": None}
    for token in pipeline["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = pipeline["model"]
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: pairs of piece and score
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        return
    inside = {text for text in names if text in vocab} - _merged(model, names)
    model["vocab"] = {(names[p] if p in inside else p): number for p, number in vocab.items()}
    if model.get("unk_token") in inside:
        model["unk_token"] = names[model["unk_token"]]


def _merged(model: dict[str, Any], names: dict[str, str]) -> set[str]:
    """Return the control tokens that merges make or use, which must keep their place there."""
    if not any(text in model["vocab"] for text in names):
        return set()
    found: set[str] = set()
    for merge in model.get("merges") or ():
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        found.update(text for text in (left, right, left + right) if text in names)
    return found
