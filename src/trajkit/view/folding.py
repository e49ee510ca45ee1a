"""Long text in rows of so many cells; a sign is never cut where it fits a row."""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells

from trajkit.view.glyphs import SIGNS

_UNITS = re.compile(rf"{SIGNS.pattern}|[^ ⟦⟪]+ *| +|.")
"""What folding keeps together where it can: a sign, or a word with the spaces behind it."""
NARROW = re.compile("[ -~\u2400-\u2426\u2592]*")
"""Text whose characters take one cell each: ASCII and the signs of one byte or id."""


def width_of(text: str) -> int:
    """Return how many cells a text takes."""
    return len(text) if NARROW.fullmatch(text) else cell_len(text)


def folded(text: str, room: int) -> list[str]:
    """Return a text cut to rows of at most `room` cells, between words where that wastes little."""
    if width_of(text) <= room:
        return [text]
    rows = [""]
    width = 0
    for unit in _UNITS.findall(text):
        n = width_of(unit)
        if width + n > room:
            moves = n <= room and (4 * width >= 3 * room or SIGNS.fullmatch(unit))
            if moves or room - width < 2:
                rows.append("")
                width = 0
        first, *others = _chopped(unit, room - width, room)
        rows[-1] += first
        rows += others
        width = width_of(others[-1]) if others else width + n
    return rows


def _chopped(text: str, first: int, room: int) -> list[str]:
    """Return a text in parts of at most `first`, then at most `room` cells."""
    if width_of(text) <= first:
        return [text]
    if NARROW.fullmatch(text):
        return [text[:first], *(text[i : i + room] for i in range(first, len(text), room))]
    head = chop_cells(text[: 2 * first], first)[0]
    return [head, *chop_cells(text[len(head) :], room)]
