"""What may stand under a line of text: a lane of numbers, or the ids themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trajkit.tokenizer import Tokenizer
from trajkit.view.cells import Cell, cells_of, with_ids
from trajkit.view.lanes import Lane, rounded
from trajkit.view.model import Line, Row, Rule, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Beneath:
    """What belongs under one line.

    Attributes:
        levels: of an action, each cell's text and how much of a lane is drawn there (`Lane.level`);
            a step without numbers misses them all.
        ids: of the line's tokens; empty where it has none.
    """

    levels: tuple[tuple[str, int | None], ...] = ()
    ids: tuple[int, ...] = ()


def with_beneath(
    view: View, rows: Iterable[Row], tokenizer: Tokenizer | None, lane: Lane | None
) -> Iterator[tuple[Row, Beneath]]:
    """Yield rows of a view, each with what belongs under it."""
    starts = {
        place.step.step_index: place.action_start
        for sequence in view.sequences
        for place in sequence.steps
    }
    start, values = 0, None
    for row, ids in with_ids(view, rows):
        if isinstance(row, Rule):
            if row.step is not None and lane is not None:
                index = row.step.step_index
                start = starts.get(index, 0)
                values = rounded(lane.of(row.step, view.scores.get(index)))
            yield row, Beneath()
        elif row.token_start is None:
            yield row, Beneath()
        else:
            cells = cells_of(row, ids, tokenizer)
            shown = ids[cells[0].start : cells[-1].end].tolist()
            levels = () if lane is None else _levels(row, cells, lane, values, start)
            yield row, Beneath(levels=levels, ids=tuple(shown))


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
