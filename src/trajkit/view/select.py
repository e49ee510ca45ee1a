"""Which rows of a view are wanted: tokens, kinds, a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from trajkit.records import Ids, SegmentKind
from trajkit.tokenizer import Tokenizer
from trajkit.view.cells import Cell, cells_of, with_ids
from trajkit.view.model import Line, Row, Rule, View

SIDES = {"action": True, "context": False}
"""Words for the two sides; `context` is a kind's name too, and a context token is on that side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is wanted; each part alone narrows, `None` and empty want everything.

    Attributes:
        tokens: token indices in their sequence; lines without tokens are left out.
        kinds: names of segment kinds, or of sides (`SIDES`); any of them.
        text: what a line must hold, as it is shown.
    """

    tokens: Callable[[int], bool] | None = None
    kinds: frozenset[str] = frozenset()
    text: str | None = None

    @property
    def is_everything(self) -> bool:
        """Return whether nothing is left out."""
        return self.tokens is None and not self.kinds and self.text is None


def kind_names() -> tuple[str, ...]:
    """Return every name that `Selection.kinds` knows."""
    return (*SIDES, *(kind.value for kind in SegmentKind if kind.value not in SIDES))


def selected(
    view: View, rows: Iterable[Row], tokenizer: Tokenizer | None, wanted: Selection
) -> Iterator[Row]:
    """Yield the wanted lines, and the headings that stand above any of them.

    A line is cut to its wanted tokens; tokens that share a character stay together.
    """
    if wanted.is_everything:
        yield from rows
        return
    headings: dict[bool, Rule] = {}
    for row, ids in with_ids(view, rows):
        match row:
            case Rule():
                if row.step is None:
                    headings.clear()
                headings[row.step is None] = row
            case Line():
                kept = _line(row, ids, tokenizer, wanted)
                if kept is not None:
                    yield from (headings.pop(which) for which in (True, False) if which in headings)
                    yield kept


def _line(line: Line, ids: Ids, tokenizer: Tokenizer | None, wanted: Selection) -> Line | None:
    sides = {name for name, is_action in SIDES.items() if is_action is line.is_action}
    if wanted.kinds and not wanted.kinds & {line.kind.value, *sides}:
        return None
    if wanted.text is not None and wanted.text not in line.text:
        return None
    if wanted.tokens is None:
        return line
    cells = [
        cell
        for cell in cells_of(line, ids, tokenizer)
        if any(map(wanted.tokens, range(cell.start, cell.end)))
    ]
    return _cut(line, cells) if cells else None


def _cut(line: Line, cells: list[Cell]) -> Line:
    first = cells[0].start
    return replace(
        line,
        text="".join(cell.text for cell in cells),
        token_start=first,
        skip=line.skip if first == line.token_start else 0,
    )
