"""The spans of a view as a table: where each lies, what it is, and how it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trajkit.sequence import Span
from trajkit.view.model import Line, Row, Rule, View

HEAD = ("step", "side", "kind", "from", "to", "tokens", "begins")
PREVIEW = 50
"""Characters of a span that its row shows: a summary is no copy of the data."""


def span_rows(view: View, rows: Iterable[Row]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of one table row per span that any of the rows is part of.

    Steps without ids have no spans. `from` and `to` are half-open and count in the sequence.
    """
    spans = {
        place.step.step_index: [s for s in sequence.spans if s.step_index == place.step.step_index]
        for sequence in view.sequences
        for place in sequence.steps
    }
    own: list[Span] = []
    current: Span | None = None
    begins = ""
    for row in rows:
        match row:
            case Rule():
                own = own if row.step is None else [*spans.get(row.step.step_index, ())]
            case Line(token_start=int(start)):
                while own and own[0].end <= start:
                    own.pop(0)
                if own and own[0] is not current:
                    yield from [] if current is None else [_row(current, begins)]
                    current, begins = own[0], ""
                if len(begins) <= PREVIEW:
                    begins += row.text
            case Line():
                pass
    if current is not None:
        yield _row(current, begins)


def _row(span: Span, begins: str) -> tuple[str, ...]:
    return (
        str(span.step_index),
        "action (trained)" if span.is_action else "context (not trained)",
        span.kind.value,
        str(span.start),
        str(span.end),
        f"{span.end - span.start:,}",
        begins if len(begins) <= PREVIEW else begins[: PREVIEW - 1] + "…",
    )
