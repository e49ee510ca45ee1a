"""Ids that text never gives, and control tokens that text forges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trajkit.drift.profile.traits import Example, Fact, Trait
from trajkit.tokenizer import Tokenizer

_SHOWN = 8
_FRONT = "\n"
"""In front of a token, where the tokenizer would else put a space of its own."""


def vocabulary_facts(tokenizer: Tokenizer) -> Iterator[Fact]:
    """Yield what the vocabulary holds; the whole of it is encoded once, or twice, in batches."""
    ids = tokenizer.ids.tolist()
    pieces = tokenizer.pieces(tokenizer.ids)
    spelt = [(i, text) for i, piece in zip(ids, pieces, strict=True) if (text := _text(piece))]
    yield _fact(Trait.UNREACHABLE, list(_unreachable(tokenizer, spelt, "")), len(spelt))
    if tokenizer.prepends_space:
        inside = list(_unreachable(tokenizer, spelt, _FRONT))
        yield _fact(Trait.UNREACHABLE_INSIDE, inside, len(spelt))
    yield _fact(Trait.SAME_BYTES, _same_bytes(ids, pieces), len(ids))
    broken: list[Example] = [
        {"id": i, "bytes": piece.hex(" ")}
        for i, piece in zip(ids, pieces, strict=True)
        if _text(piece) is None
    ]
    yield _fact(Trait.NOT_UTF8, broken, len(ids))
    special = set(tokenizer.special_ids.tolist())
    for trait, wanted in (
        (Trait.FORGED_SPECIAL, [i for i in tokenizer.control if i in special]),
        (Trait.FORGED_PLAIN, [i for i in tokenizer.control if i not in special]),
    ):
        yield _fact(trait, list(_forged(tokenizer, wanted)), len(wanted))


def _fact(trait: Trait, found: Sequence[Example], n_probed: int) -> Fact:
    return Fact(trait=trait, n=len(found), n_probed=n_probed, examples=tuple(found[:_SHOWN]))


def _text(piece: bytes) -> str | None:
    """Return what bytes spell, `None` when they are no UTF-8."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _unreachable(
    tokenizer: Tokenizer, spelt: Sequence[tuple[int, str]], front: str
) -> Iterator[Example]:
    """Yield the ids whose own text, behind `front`, is not encoded as the id."""
    before = next(tokenizer.encode_batch([front])).tolist() if front else []
    encoded = tokenizer.encode_batch([front + text for _, text in spelt])
    for (token_id, text), again in zip(spelt, encoded, strict=True):
        found = again.tolist()
        if found != [*before, token_id]:
            yield {"id": token_id, "text": text, "ids": found[len(before) :]}


def _same_bytes(ids: Sequence[int], pieces: Sequence[bytes]) -> list[Example]:
    """Return each id whose bytes an earlier one has."""
    first: dict[bytes, int] = {}
    return [
        {"id": i, "bytes": piece.hex(" "), "same_as": first[piece]}
        for i, piece in zip(ids, pieces, strict=True)
        if first.setdefault(piece, i) != i
    ]


def _forged(tokenizer: Tokenizer, wanted: Sequence[int]) -> Iterator[Example]:
    """Yield the control ids that their spelling inside a text gives."""
    texts = [f"x {tokenizer.control[token_id]} x" for token_id in wanted]
    for token_id, encoded in zip(wanted, tokenizer.encode_batch(texts), strict=True):
        if token_id in encoded.tolist():
            yield {"id": token_id, "text": tokenizer.control[token_id]}
