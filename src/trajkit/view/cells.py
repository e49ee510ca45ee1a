"""A shown line cut at its tokens: which piece of the text is which id.

Nothing is decoded a second time. Shown text says which bytes it stands for (`trajkit.view.glyphs`),
and the tokenizer says how many bytes each id has: a line is cut where both agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trajkit.records import Ids, ids_array
from trajkit.tokenizer import Tokenizer
from trajkit.view.glyphs import BLOCK
from trajkit.view.model import Line, Row, Rule, View

_WHOLE = re.compile(rf"(⟪[^⟫]*⟫|⟦id \d+⟧|{BLOCK})")
"""A sign that is one id by itself, whatever it spells."""
_UNITS = re.compile(r"⟦U\+([0-9A-F]+)⟧|⟦([0-9A-F ]+)⟧|(.)")
"""What stands for one character, or for one run of bytes that are none."""
_ONE_BYTE = re.compile("[ -~\u2400-\u2426]*")
"""Text of which each character stands for one byte."""
_IDS = re.compile(rf"{BLOCK}| *\d+")
_NO_IDS = ids_array(())


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of a line and the tokens `[start, end)` it shows.

    Several tokens that share a character are one cell. A token with a newline inside stands in
    cells of two lines.
    """

    text: str
    start: int
    end: int

    @property
    def n_tokens(self) -> int:
        """Return how many tokens it shows; 0 where the line has none."""
        return self.end - self.start


def with_ids(view: View, rows: Iterable[Row]) -> Iterator[tuple[Row, Ids]]:
    """Yield rows of a view, each with the [T] ids of its sequence; messages have none.

    Which sequence a line stands in, the heading of its step tells.
    """
    ids_of = {
        place.step.step_index: sequence.token_ids
        for sequence in view.sequences
        for place in sequence.steps
    }
    ids = _NO_IDS
    for row in rows:
        if isinstance(row, Rule) and row.step is not None:
            ids = ids_of.get(row.step.step_index, _NO_IDS)
        yield row, ids


def cells_of(line: Line, token_ids: Ids, tokenizer: Tokenizer | None) -> list[Cell]:
    """Return the cells of a line; their texts joined are the line's text.

    Args:
        line: one that `trajkit.view.model.rows` made with the same tokenizer.
        token_ids: [T] of the line's sequence; not looked at where the line has no tokens.
        tokenizer: what the line was shown with; without it each id is a cell.
    """
    at = line.token_start
    if at is None:
        return [Cell(line.text, 0, 0)]
    if tokenizer is None:
        return [Cell(text, at + i, at + i + 1) for i, text in enumerate(_IDS.findall(line.text))]
    found: list[Cell] = []
    used = line.skip
    for number, part in enumerate(_WHOLE.split(line.text)):
        if number % 2:
            found.append(Cell(part, at, at + 1))
        elif part:
            found += _plain_cells(part, at, used, token_ids, tokenizer)
        if part:
            at, used = found[-1].end, 0
    return found


def _plain_cells(
    text: str, at: int, used: int, token_ids: Ids, tokenizer: Tokenizer
) -> Iterator[Cell]:
    """Yield the cells of text that whole signs do not interrupt."""
    ends = None if _ONE_BYTE.fullmatch(text) else _ends(text)
    n_bytes = len(text) if ends is None else max(ends)
    first, shown, read = at, 0, -used
    while read < n_bytes:
        read += len(tokenizer.token_bytes(int(token_ids[at])))
        at += 1
        end = min(read, n_bytes)  # the rest of a token stands on the next line
        cut = end if ends is None else ends.get(end)
        if cut is not None:
            yield Cell(text[shown:cut], first, at)
            first, shown = at, cut


def _ends(text: str) -> dict[int, int]:
    """Return where each unit of shown text ends, in characters, by where it ends in bytes."""
    ends, n_bytes = {}, 0
    for match in _UNITS.finditer(text):
        n_bytes += _n_bytes(match)
        ends[n_bytes] = match.end()
    return ends


def units_of(text: str) -> Iterator[tuple[str, int]]:
    """Yield each sign or character of a shown line, and how many bytes it stands for."""
    for number, part in enumerate(_WHOLE.split(text)):
        if not number % 2:
            yield from ((match[0], _n_bytes(match)) for match in _UNITS.finditer(part))
        elif part.startswith("⟪"):
            yield part, sum(_n_bytes(match) for match in _UNITS.finditer(part[1:-1]))
        else:
            yield part, 0


def _n_bytes(unit: re.Match[str]) -> int:
    code, raw, plain = unit.groups()
    if code:
        return len(chr(int(code, 16)).encode())
    if raw:
        return len(bytes.fromhex(raw))
    return 1 if _ONE_BYTE.fullmatch(plain) else len(plain.encode())
