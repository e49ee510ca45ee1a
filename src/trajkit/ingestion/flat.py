"""Flat text into the fields of steps: as text, and as ids made from that text.

The whole text is encoded at once, as a trainer that re-tokenises it would do, so that step k + 1's
prompt is step k's prompt + action + what follows. Control tokens are cut out where the text has
them, except in what the environment returned: there they are only text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajkit.ingestion.made import MadeIds, Note
from trajkit.markup import FlatTrajectory, Piece
from trajkit.records import ActionSource, Ids, PromptSource, Segment, SegmentKind, read_only
from trajkit.template import Allow, LiteralText, TextPiece, encode_literally
from trajkit.tokenizer import Tokenizer

_UNTRUSTED = (SegmentKind.OBSERVATION, SegmentKind.WARNING)


def text_fields(flat: FlatTrajectory) -> list[dict[str, Any]]:
    """Return the text columns of each step: every byte of the text stands in exactly one."""
    fields = []
    kept = 0
    for step in flat.steps:
        fields.append(
            {
                "text_keep": kept,
                "text_delta": flat.text(kept, step.start),
                "is_truncated": True if step.is_cut else None,
            }
        )
        kept = step.end
    if fields and kept < len(flat.data):
        fields[-1]["text_tail"] = flat.text(kept, len(flat.data))
    return fields


def encode_flat(flat: FlatTrajectory, tokenizer: Tokenizer) -> MadeIds:
    """Return the ids of a flat text by step; a token belongs to the piece of its first byte.

    Raises:
        InputError: T102 when the tokenizer does not keep its control tokens whole.
    """
    pieces = list(flat.pieces)
    texts = [flat.text(piece.start, piece.end) for piece in pieces]
    allowed = [Allow.NONE if piece.kind in _UNTRUSTED else Allow.ALL for piece in pieces]
    found = encode_literally(list(map(TextPiece, texts, allowed)), tokenizer)
    owners = np.maximum.accumulate(found.pieces)
    firsts = np.searchsorted(owners, np.arange(len(pieces) + 1))
    parts = list(_parts(flat))
    starts = [part.start for part in parts]
    notes: list[dict[str, list[Note]]] = [{} for _ in parts]
    begins = np.cumsum([0, *map(len, texts)])

    def byte_of(piece: int, character: int) -> int:
        return pieces[piece].start + len(texts[piece][: character - begins[piece]].encode("utf-8"))

    for token in _straddling(pieces, begins, owners, found):
        owner = int(owners[token])
        step = bisect_right(starts, owner) - 1
        note = {
            "token": token - int(firsts[starts[step]]),
            "id": int(found.ids[token]),
            "text": tokenizer.text(found.ids[token : token + 1]),
            "byte": byte_of(owner, int(found.starts[token])),
        }
        notes[step].setdefault("straddles", []).append(note)
    for forged in found.forged:
        step = bisect_right(starts, forged.piece) - 1
        text = tokenizer.control[forged.token_id]
        note = {"text": text, "byte": byte_of(forged.piece, forged.start)}
        notes[step].setdefault("control_text", []).append(note)
    fields = (_fields(pieces, part, firsts, found.ids) for part in parts)
    return MadeIds(
        steps=tuple(entry | {"tokenizer": tokenizer.name} for entry in fields), notes=tuple(notes)
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Which pieces are a step's: context `[start, action)`, action `[action, stop)`, tail."""

    start: int
    action: int
    stop: int
    end: int


def _parts(flat: FlatTrajectory) -> Iterator[_Part]:
    at = 0
    for step in flat.steps:
        action = at + len(step.context)
        stop = action + len(step.action)
        n_tail = len(flat.tail) if step is flat.steps[-1] else 0
        yield _Part(at, action, stop, stop + n_tail)
        at = stop


def _fields(
    pieces: list[Piece], part: _Part, firsts: NDArray[np.int64], ids: Ids
) -> dict[str, Any]:
    """Return a step's columns of ids: its prompt keeps all that came before."""
    start, action, stop, end = (
        int(firsts[spot]) for spot in (part.start, part.action, part.stop, part.end)
    )
    return {
        "action_source": ActionSource.RETOKENIZED,
        "prompt_source": PromptSource.RENDERED,
        "prompt_keep": start,
        "prompt_delta": read_only(ids[start:action].copy()),
        "prompt_len": action,
        "action_tokens": read_only(ids[action:stop].copy()),
        "tail_tokens": read_only(ids[stop:end].copy()) if part.end > part.stop else None,
        "segments": tuple(_segments(pieces, part, firsts)),
    }


def _segments(pieces: list[Piece], part: _Part, firsts: NDArray[np.int64]) -> Iterator[Segment]:
    """Yield a step's segments; neighbours of one kind are one, except across the action's ends."""
    origin = int(firsts[part.start])
    last: Segment | None = None
    for spot in range(part.start, part.end):
        start, end = int(firsts[spot]) - origin, int(firsts[spot + 1]) - origin
        if start == end:
            continue
        kind = pieces[spot].kind
        crosses = last is not None and pieces[spot].writer is not pieces[spot - 1].writer
        if last is not None and last.kind is kind and not crosses:
            last = Segment(kind, last.start, end)
            continue
        if last is not None:
            yield last
        last = Segment(kind, start, end)
    if last is not None:
        yield last


def _straddling(
    pieces: list[Piece],
    begins: NDArray[np.int64],
    owners: NDArray[np.int64],
    found: LiteralText,
) -> Iterator[int]:
    """Yield the tokens whose text two writers wrote."""
    changes = [0, *(left.writer is not right.writer for left, right in pairwise(pieces))]
    writer_runs = np.cumsum(changes)
    last = np.searchsorted(begins, found.ends, side="left") - 1
    last = np.maximum(last, owners)
    yield from np.flatnonzero(writer_runs[owners] != writer_runs[last]).tolist()
