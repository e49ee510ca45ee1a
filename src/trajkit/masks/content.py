"""Rules about what is trained: the environment's words, others', damaged text, the same twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trajkit.formats.alignment import trained_runs
from trajkit.masks.findings import Spot
from trajkit.masks.marks import unclosed_tag as find_unclosed
from trajkit.masks.rows import MaskedRow, Writer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """What the sequences of one rollout know of each other.

    Attributes:
        n_trained: trained tokens of all of them.
        versions: of the weights that sampled what is trained.
        is_first: whether this one speaks for all.
        seen: digests of the actions that were trained before, each with all ids before it.
    """

    n_trained: int
    versions: tuple[str, ...] = ()
    is_first: bool = True
    seen: set[bytes] = field(default_factory=set)


def empty_mask(row: MaskedRow, siblings: Siblings) -> Iterator[Spot]:
    """Yield one spot where nothing of a trajectory is trained."""
    if siblings.is_first and not siblings.n_trained:
        yield Spot(start=None, end=None, n_tokens=0, detail=f"0 of {len(row.token_ids)} tokens")


def mixed_versions(row: MaskedRow, siblings: Siblings) -> Iterator[Spot]:
    """Yield one spot where several versions of the policy sampled what is trained."""
    if siblings.is_first and len(siblings.versions) > 1:
        shown = ", ".join(siblings.versions[:4])
        yield Spot(
            start=None,
            end=None,
            n_tokens=int(row.trained.sum()),
            detail=f"{len(siblings.versions)} versions: {shown}",
        )


def trained_twice(row: MaskedRow, siblings: Siblings) -> Iterator[Spot]:
    """Yield the actions that were trained before in the same context, in this rollout.

    What is known to be sampled was sampled each time.
    """
    at = 0 if row.attention is None else int(np.argmax(row.attention))
    so_far = hashlib.blake2b(digest_size=16)
    for start, end in row.runs:
        so_far.update(row.token_ids[at:end].astype("<i4").tobytes())
        at = end
        digest = so_far.digest()
        if digest in siblings.seen and not row.sampled[start:end].all():
            yield Spot(start=start, end=end, detail=f"{end - start} tokens")
        siblings.seen.add(digest)


def observation_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield the environment's words that are trained and not known to be sampled."""
    mask = row.by_environment & row.trained & ~row.sampled & ~_known_action(row)
    for start, end in trained_runs(mask.astype(np.float64)):
        yield Spot(start=start, end=end, detail=f"{end - start} tokens of the environment's")


def context_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield what neither policy nor environment wrote and is trained."""
    mask = row.by_others & row.trained & ~row.sampled & ~_known_action(row) & ~row.inserted
    for start, end in trained_runs(mask.astype(np.float64)):
        turn = row.turn_at(start)
        whose = "of the prompt's" if turn is None or not turn.role else f"of a {turn.role} turn"
        yield Spot(start=start, end=end, detail=f"{end - start} tokens {whose}")


def forged_observation(row: MaskedRow) -> Iterator[Spot]:
    """Yield what the policy sampled of tags and headers that are not its own."""
    if row.marks is None:
        return
    mask = np.zeros(len(row.token_ids), dtype=np.bool_)
    for start, end in row.environment:
        mask[start:end] = True
    for turn in row.turns:
        is_stop = int(row.token_ids[turn.start]) in row.marks.shared_set
        if not (turn.can_be_sampled or is_stop):
            mask[turn.start : turn.low] = True
    for start, end in trained_runs((mask & row.trained & row.sampled).astype(np.float64)):
        yield Spot(start=start, end=end, detail=f"{end - start} sampled tokens")


def unclosed_tag(row: MaskedRow) -> Iterator[Spot]:
    """Yield the tags that a finished action opens and never closes."""
    if row.marks is None:
        return
    for run in row.runs:
        start, end = run
        is_cut = row.is_cut(run)
        is_whole = end < row.n_real or row.marks.is_stop(int(row.token_ids[end - 1]))
        if is_cut or (is_cut is None and not is_whole) or _is_part(row, end):
            continue
        pieces = row.pieces[start:end]
        found = find_unclosed(b"".join(pieces))
        if found is not None:
            tag, byte = found
            ends = np.cumsum([len(piece) for piece in pieces])
            at = start + int(np.searchsorted(ends, byte, side="right"))
            yield Spot(start=at, end=end, anchor=start, detail=f"{tag} is opened")


def _is_part(row: MaskedRow, end: int) -> bool:
    """Return whether a turn of the policy goes on behind a run, with more than its stop."""
    turn = row.turn_at(end - 1)
    if turn is None or not turn.is_policy or end >= turn.end or row.marks is None:
        return False
    return not row.marks.is_stop(int(row.token_ids[end]))


def replacement_character(row: MaskedRow) -> Iterator[Spot]:
    """Yield, for each action, where U+FFFD stands in it first."""
    if row.marks is None:
        return
    for start, end in row.runs:
        pieces = row.pieces[start:end]
        data = b"".join(pieces)
        byte = data.find(_REPLACEMENT)
        if byte >= 0:
            ends = np.cumsum([len(piece) for piece in pieces])
            first, last = np.searchsorted(ends, [byte, byte + 2], side="right").tolist()
            yield Spot(
                start=start + first,
                end=start + last + 1,
                anchor=start,
                detail=f"{data.count(_REPLACEMENT)} in this action",
            )


def _known_action(row: MaskedRow) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return [T] True where ids made from text are the policy's by the text's own structure."""
    known: np.ndarray[tuple[int], np.dtype[np.bool_]] = row.writer == Writer.POLICY
    return known
