"""Long context, folded: the first and the last lines of it, and how much is between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from trajkit.records import Ids
from trajkit.tokenizer import Tokenizer
from trajkit.view.cells import Cell, cells_of, with_ids
from trajkit.view.folding import folded, width_of
from trajkit.view.model import Line, Row, Rule, View


def folded_rows(
    view: View, rows: Iterable[Row], tokenizer: Tokenizer | None, n_kept: int, width: int
) -> Iterator[Row]:
    """Yield rows with a rule in the middle of each longer run of context of one kind.

    A line that is wider than the screen counts as several, and is cut at its tokens. Actions are
    never folded, nor is the place where a message begins.

    Args:
        view: what the rows are of.
        rows: in order.
        tokenizer: what they were made with.
        n_kept: lines of a run that stay, half of them at its end.
        width: cells of text that a line may take.
    """
    run: list[tuple[Line, Ids]] = []
    for row, ids in with_ids(view, rows):
        if run and not _continues(run[-1][0], row):
            yield from _folded(run, tokenizer, n_kept, width)
            run = []
        if isinstance(row, Line) and not row.is_action:
            run.append((row, ids))
        else:
            yield row
    yield from _folded(run, tokenizer, n_kept, width)


def _continues(before: Line, row: Row) -> bool:
    return (
        isinstance(row, Line)
        and not row.is_action
        and not row.label
        and row.kind is before.kind
        and (row.token_start is None) is (before.token_start is None)
    )


def _folded(
    run: list[tuple[Line, Ids]], tokenizer: Tokenizer | None, n_kept: int, width: int
) -> Iterator[Row]:
    lines = [part for line, ids in run for part in _parts(line, ids, tokenizer, width)]
    n_head = (n_kept + 1) // 2
    tail = lines[len(lines) - n_kept // 2 :]
    middle = lines[n_head : len(lines) - len(tail)]
    if len(middle) < 2:  # a rule takes a line too
        yield from (line for line, _ in run)
        return
    yield from (line for line, _ in lines[:n_head])
    facts = [f"… {len(middle):,} lines"]
    tokens = {token for _, cell in middle for token in range(cell.start, cell.end)}
    if tokens:
        facts.append(f"{len(tokens):,} token{'' if len(tokens) == 1 else 's'}")
    yield Rule(facts=(f"{', '.join(facts)} folded",))
    yield from (line for line, _ in tail)


def _parts(
    line: Line, ids: Ids, tokenizer: Tokenizer | None, width: int
) -> Iterator[tuple[Line, Cell]]:
    """Yield a line in parts that fit the screen, each with all of its tokens as one cell."""
    cells = cells_of(line, ids, tokenizer)
    if width_of(line.text) <= width:
        yield line, Cell(line.text, cells[0].start, cells[-1].end)
        return
    if line.token_start is None:
        cells = [Cell(text, 0, 0) for text in folded(line.text, width)]
    part: list[Cell] = []
    shown, room = line, 0
    for cell in cells:
        n = width_of(cell.text)
        if part and n > room:
            yield _part(shown, part)
            part, shown = [], replace(line, label="", skip=0)
        room = (room if part else width) - n
        part.append(cell)
    yield _part(shown, part)


def _part(line: Line, cells: list[Cell]) -> tuple[Line, Cell]:
    text = "".join(cell.text for cell in cells)
    first = cells[0].start
    start = None if line.token_start is None else first
    return replace(line, text=text, token_start=start), Cell(text, first, cells[-1].end)
