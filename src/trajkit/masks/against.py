"""Two masks of the same tokens: who trains what, and where they part first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trajkit.errors import InputError, Place
from trajkit.masks.marks import Marks, marks_of
from trajkit.masks.rows import MaskedRow
from trajkit.masks.sources import Judged, Wanted, is_dataset, judged_rows, judged_steps, open_steps
from trajkit.tokenizer import Tokenizer

_SHOWN_IDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskDifference:
    """One sequence that two sources train otherwise; positions count in its own tokens.

    Attributes:
        n_both, n_here, n_there: tokens trained by both, by the first alone, by the second alone.
        token_start: the first that one of them trains alone; `None` where the ids differ.
        ids, text, here, there: the tokens from there on, and who trains them.
        detail: a sentence.
    """

    trajectory_id: str
    sequence: int
    n_both: int
    n_here: int
    n_there: int
    token_start: int | None
    detail: str
    ids: tuple[int, ...] = ()
    text: str | None = None
    here: tuple[bool, ...] = ()
    there: tuple[bool, ...] = ()


@dataclass(slots=True, kw_only=True)
class MaskComparison:
    """How two sets of masks compare, token by token."""

    n_trajectories: int = 0
    n_sequences: int = 0
    n_tokens: int = 0
    n_both: int = 0
    n_here: int = 0
    n_there: int = 0
    only_here: list[str] = field(default_factory=list)
    only_there: list[str] = field(default_factory=list)
    differences: list[MaskDifference] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Return whether both hold the same trajectories and train the same tokens."""
        return bool(self.n_sequences) and not (
            self.differences or self.only_here or self.only_there
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as `trajkit.mask-diff/1`."""
        return {"schema": "trajkit.mask-diff/1", **asdict(self)}


def compare_masks(
    data: Path,
    other: Path,
    tokenizer: Tokenizer | None,
    wanted: Wanted,
) -> MaskComparison:
    """Return how the masks of two sources compare. The second one's masks stay in memory as bits.

    Trajectories are matched by their ids, sequences by their number in the trajectory. A loss mask
    that was chosen is the first source's; the second one's own mask stands against it.

    Raises:
        InputError: I401 when an id occurs twice in the second source; as the readers of both.
    """
    marks = None if tokenizer is None else marks_of(tokenizer)
    theirs = _masks(_read(other, replace(wanted, policy=None), tokenizer, marks), other)
    result = MaskComparison()
    seen: set[str] = set()
    for judged in _read(data, wanted, tokenizer, marks):
        seen.add(judged.trajectory_id)
        if judged.trajectory_id not in theirs:
            result.only_here.append(judged.trajectory_id)
            continue
        result.n_trajectories += 1
        _compare(result, judged, theirs[judged.trajectory_id], marks)
    result.only_there = [name for name in theirs if name not in seen]
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Packed:
    """The digest of the ids and the mask of one sequence."""

    ids: bytes
    bits: bytes
    n: int


def _read(
    data: Path, wanted: Wanted, tokenizer: Tokenizer | None, marks: Marks | None
) -> Iterator[Judged]:
    if is_dataset(data):
        return judged_steps(open_steps(data, tokenizer), wanted, tokenizer, marks)
    return judged_rows(data, wanted, tokenizer, marks)


def _masks(found: Iterable[Judged], data: Path) -> dict[str, list[_Packed]]:
    masks: dict[str, list[_Packed]] = {}
    for judged in found:
        if judged.trajectory_id in masks:
            raise InputError(
                "I401",
                f"the trajectory id {judged.trajectory_id[:60]} occurs twice",
                place=Place(file=str(data)),
                hint="two masks can only be compared where ids are unique",
            )
        masks[judged.trajectory_id] = [
            _Packed(
                ids=_digest(row),
                bits=np.packbits(row.trained).tobytes(),
                n=len(row.token_ids),
            )
            for row in judged.rows
        ]
    return masks


def _digest(row: MaskedRow) -> bytes:
    return hashlib.blake2b(row.token_ids.astype("<i4").tobytes(), digest_size=16).digest()


def _compare(
    result: MaskComparison, judged: Judged, theirs: list[_Packed], marks: Marks | None
) -> None:
    for number in range(max(len(judged.rows), len(theirs))):
        row = judged.rows[number] if number < len(judged.rows) else None
        packed = theirs[number] if number < len(theirs) else None
        result.n_sequences += 1
        if row is None or packed is None or _digest(row) != packed.ids:
            result.differences.append(_other_ids(judged.trajectory_id, number, row, packed))
            continue
        there = np.unpackbits(np.frombuffer(packed.bits, dtype=np.uint8), count=packed.n) != 0
        here = row.trained
        counts = [int(part.sum()) for part in (here & there, here & ~there, there & ~here)]
        result.n_tokens += packed.n
        result.n_both += counts[0]
        result.n_here += counts[1]
        result.n_there += counts[2]
        if counts[1] or counts[2]:
            at = int(np.argmax(here != there))
            end = min(at + _SHOWN_IDS, packed.n)
            ids = row.token_ids[at:end]
            result.differences.append(
                MaskDifference(
                    trajectory_id=judged.trajectory_id,
                    sequence=number,
                    n_both=counts[0],
                    n_here=counts[1],
                    n_there=counts[2],
                    token_start=at,
                    detail=f"{counts[1]} tokens are trained here alone, {counts[2]} there alone",
                    ids=tuple(ids.tolist()),
                    text=None if marks is None else marks.text(ids),
                    here=tuple(here[at:end].tolist()),
                    there=tuple(there[at:end].tolist()),
                )
            )


def _other_ids(
    trajectory_id: str, number: int, row: MaskedRow | None, packed: _Packed | None
) -> MaskDifference:
    n_here = 0 if row is None else len(row.token_ids)
    n_there = 0 if packed is None else packed.n
    return MaskDifference(
        trajectory_id=trajectory_id,
        sequence=number,
        n_both=0,
        n_here=0,
        n_there=0,
        token_start=None,
        detail=f"the ids differ ({n_here:,} here, {n_there:,} there): masks cannot be compared",
    )
