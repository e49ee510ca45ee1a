"""Ids made from text: what they add to each step, and what is odd about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Note: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeIds:
    """Ids made from the text of a trajectory, cut into steps.

    Attributes:
        steps: fields of each step.
        notes: what `extra_json` says of each step, by what is odd: `straddles`, `control_text`,
            `parted`, `added`, `left_out`.
    """

    steps: tuple[dict[str, Any], ...]
    notes: tuple[dict[str, list[Note]], ...]

    def count(self, name: str) -> int:
        """Return how many notes of a name there are."""
        return sum(len(note.get(name, ())) for note in self.notes)
