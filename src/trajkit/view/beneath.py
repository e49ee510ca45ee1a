"""What may stand under a line of text: lanes of numbers, strips of marks, ids, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from trajkit.records import Ids
from trajkit.tokenizer import Tokenizer
from trajkit.view.against import Comparison
from trajkit.view.cells import Cell, cells_of, with_ids
from trajkit.view.drift import DriftMark
from trajkit.view.lanes import Lane, rounded
from trajkit.view.model import Line, Row, Rule, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A row of signs under a line.

    Attributes:
        label: what stands in front of it, at most seven cells.
        marks: of each piece of the line its text, the sign under its first cell, the sign under
            the others.
    """

    label: str
    marks: tuple[tuple[str, str, str], ...]

    def signs(self, width: Callable[[str], int]) -> str:
        """Return one sign a cell of the line above, whose texts take so many cells each."""
        return "".join(
            (first + rest * (width(text) - 1))[: width(text)] for text, first, rest in self.marks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beneath:
    """What belongs under one line.

    Attributes:
        levels: of an action, each cell's text and how much of a lane is drawn there (`Lane.level`);
            a step without numbers misses them all.
        strips: rows of signs.
        notes: what is to be said of the signs, each safe to print.
        ids: of the line's tokens; empty where it has none.
    """

    levels: tuple[tuple[str, int | None], ...] = ()
    strips: tuple[Strip, ...] = ()
    notes: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()


def with_beneath(
    view: View,
    rows: Iterable[Row],
    tokenizer: Tokenizer | None,
    lane: Lane | None = None,
    comparison: Comparison | None = None,
) -> Iterator[tuple[Row, Beneath]]:
    """Yield rows of a view, each with what belongs under it."""
    starts = {
        place.step.step_index: place.action_start
        for sequence in view.sequences
        for place in sequence.steps
    }
    start, values, marks = 0, None, tuple[DriftMark, ...]()
    for row, ids in with_ids(view, rows):
        if isinstance(row, Rule):
            if row.step is not None:
                index = row.step.step_index
                start = starts.get(index, 0)
                marks = view.marks.get(index, ())
                if lane is not None:
                    values = rounded(lane.of(row.step, view.scores.get(index)))
            yield row, Beneath()
        elif row.token_start is None:
            yield row, Beneath()
        else:
            cells = cells_of(row, ids, tokenizer)
            shown = ids[cells[0].start : cells[-1].end].tolist()
            strip, notes = _drift(cells, marks)
            strips = [] if comparison is None else _compared(row, ids, comparison)
            yield (
                row,
                Beneath(
                    levels=() if lane is None else _levels(row, cells, lane, values, start),
                    strips=(*strips, *strip),
                    notes=notes,
                    ids=tuple(shown),
                ),
            )


def _levels(
    line: Line, cells: list[Cell], lane: Lane, values: list[float | None] | None, start: int
) -> tuple[tuple[str, int | None], ...]:
    if not line.is_action:
        return ()
    if values is None:
        return tuple((cell.text, None) for cell in cells)
    return tuple(
        (cell.text, lane.level(values[cell.start - start : cell.end - start])) for cell in cells
    )


def _compared(line: Line, ids: Ids, comparison: Comparison) -> list[Strip]:
    found = comparison.strips(line, ids)
    return [Strip(label=label, marks=marks) for label, marks in found]


def _drift(
    cells: Sequence[Cell], marks: Sequence[DriftMark]
) -> tuple[tuple[Strip, ...], tuple[str, ...]]:
    """Return a strip with `^` under what differs and `<` where ids are missing, and what of it."""
    first, last = cells[0].start, cells[-1].end
    here = [mark for mark in marks if mark.start < last and mark.end > first]
    if not here:
        return (), ()
    signs = []
    for cell in cells:
        over = [mark for mark in here if mark.start < cell.end and mark.end > cell.start]
        begins = any(cell.start <= mark.start < cell.end for mark in over)
        rest = "^" if any(not mark.is_added for mark in over) else " "
        signs.append((cell.text, ("<" if rest == " " else "^") if begins else rest, rest))
    notes = tuple(" · ".join(mark.told) for mark in here if mark.start >= first)
    return (Strip(label="drift", marks=tuple(signs)),), notes
