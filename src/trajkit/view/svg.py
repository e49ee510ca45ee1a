"""A view as SVG, for papers: text stays text, no font and no picture is loaded.

Every run of text says how long it is, so that columns hold whatever monospaced font is found.
Pictures of controls are drawn, because few fonts have them; their text is there unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trajkit.safe.html import as_text
from trajkit.view.beneath import Beneath
from trajkit.view.folding import folded, width_of
from trajkit.view.glyphs import CONTROL_NAMES, CONTROL_SIGN
from trajkit.view.model import Line, Row, Rule

_CELL = 7.8
_LINE = 19
_BASE = 13.5
_MARGIN = 10
_TEXT = 76
"""Where the text of a line begins; bar and token index stand left of it."""
_RUNS = re.compile("[\u2400-\u2421]|[ -~\u00a1-\u024f\u2423\u2592\u27e6-\u27eb]+|.")
"""The picture of a control, text whose characters take one cell each, or any other character."""
_ARROWS = {
    "␊": "M6.2 -8v4.5h-4.7m2 -2l-2 2l2 2",
    "␉": "M1 -4.5h4.3m-2 -2l2 2l-2 2m3 -4.5v5",
}
FONTS = '"DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace'
_STYLE = (
    f"text {{ font: 13px {FONTS} }}\n"
    + """
text { fill: #1b1f24; white-space: pre }
.context { fill: #5a6370 } .action { fill: #005f96 } .rule { font-weight: bold }
.at { font-size: 11px; fill: #5a6370; text-anchor: end } .unseen { fill-opacity: 0 }
.bar { fill: #0072b2 } .tint { fill: #eaf4fb } .control { fill: #dfe3e8 }
.drawn { fill: none; stroke: #5a6370 } .small { font-size: 6px; font-weight: bold }
.line { stroke: #c9ced6 } .drift { fill: #b3470e } .told { font-size: 11px; fill: #8a3609 }
""".strip()
)


def svg_of(trajectories: Iterable[tuple[str, Iterable[tuple[Row, Beneath]]]], width: int) -> str:
    """Return one drawing of the rows of some trajectories, each under its name, and a legend.

    Args:
        trajectories: name and rows of each, with what is marked in them; a single one is drawn
            without its name.
        width: cells a line may take, bar and index included.
    """
    shown = [(name, list(rows)) for name, rows in trajectories]
    room = max(10, width - round(_TEXT / _CELL))
    parts: list[str] = []
    y = _MARGIN
    for name, rows in shown:
        heading = [(Rule(facts=(name,)), Beneath())] if len(shown) > 1 else []
        for row, beneath in [*heading, *rows]:
            drawn = list(_rule(row, room) if isinstance(row, Rule) else _line(row, beneath, room))
            y += _LINE // 3 if isinstance(row, Rule) else 0
            for part in drawn:
                parts.append(f'<g transform="translate(0 {y})">{part}</g>')
                y += _LINE
    has_marks = any(beneath.strips for _, rows in shown for _, beneath in rows)
    parts.append(f'<g transform="translate(0 {y + _LINE // 2})">{_legend(has_marks=has_marks)}</g>')
    height = y + 2 * _LINE + _MARGIN
    total = round(_TEXT + room * _CELL + _MARGIN)
    title = as_text(", ".join(name for name, _ in shown))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" '
        f'viewBox="0 0 {total} {height}" xml:space="preserve" role="img">'
        f"<title>{title}</title><style>{_STYLE}</style>\n"
        f'<rect width="{total}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>"
    )


def _rule(rule: Rule, room: int) -> Iterator[str]:
    end = _TEXT + room * _CELL
    line = f'<path class="line" d="M{_MARGIN} 1H{end:g}"/>'
    for text in folded(" · ".join(rule.facts), room + round((_TEXT - _MARGIN) / _CELL)):
        yield line + "".join(_runs(text, _MARGIN, "rule"))
        line = ""


def _line(line: Line, beneath: Beneath, room: int) -> Iterator[str]:
    side = "action" if line.is_action else "context"
    signs, at = "".join(strip.signs(width_of) for strip in beneath.strips), 0
    label = line.label if line.token_start is None else str(line.token_start)
    for text in folded(line.text, room):
        before = ""
        if line.is_action:
            tint = (
                f'<rect class="tint" x="5" width="{_TEXT + room * _CELL - 5:g}" height="{_LINE}"/>'
            )
            before = f'{tint}<rect class="bar" width="5" height="{_LINE}"/>'
        else:
            before = f'<circle class="context" cx="8" cy="{_LINE / 2:g}" r="1"/>'
        if label:
            x = _TEXT - _CELL
            before += f'<text class="at" x="{x:g}" y="{_BASE}">{as_text(label)}</text>'
        n = width_of(text)
        yield before + "".join(_runs(text, _TEXT, side)) + "".join(_marks(signs[at : at + n]))
        at += n
        label = ""
    for note in beneath.notes:
        for text in folded(f"drift {note}", room):
            yield f'<text class="told" x="{_TEXT}" y="{_BASE}">{as_text(text)}</text>'
    if line.note:
        yield "".join(_runs(line.note, _TEXT, "context"))


def _marks(signs: str) -> Iterator[str]:
    """Yield what stands under one row of text: a bar under other ids, a wedge where some miss."""
    for run in _MARKED.finditer(signs):
        x, n = _TEXT + run.start() * _CELL, len(run[0])
        if run[0] == "<":
            yield f'<path class="drift" d="M{x:g} {_LINE - 5}l4 4h-8z"/>'
        else:
            width = n * _CELL
            yield f'<rect class="drift" x="{x:g}" y="{_LINE - 3}" width="{width:g}" height="2"/>'


_MARKED = re.compile(r"\^+|<")


def _runs(text: str, x: float, side: str) -> Iterator[str]:
    """Yield the elements of one row: backgrounds of control signs, then text run by run."""
    for sign in CONTROL_SIGN.finditer(text):
        at, n = width_of(text[: sign.start()]), width_of(sign[0])
        yield (
            f'<rect class="control" x="{x + at * _CELL:g}" y="2" width="{n * _CELL:g}" '
            f'height="{_LINE - 4}" rx="2"/>'
        )
    for run in _RUNS.findall(text):
        n = width_of(run)
        look = f"{side} unseen" if "␀" <= run <= "␡" else side
        if look != side:
            yield _drawn(run, x, side)
        yield (
            f'<text class="{look}" x="{x:g}" y="{_BASE}" textLength="{n * _CELL:g}">'
            f"{as_text(run)}</text>"
        )
        x += n * _CELL


def _drawn(sign: str, x: float, side: str) -> str:
    """Return the drawing of a control's picture: an arrow, or its letters in one cell."""
    if sign in _ARROWS:
        return f'<path class="drawn" transform="translate({x:g} {_BASE})" d="{_ARROWS[sign]}"/>'
    letters = CONTROL_NAMES[ord(sign) - 0x2400]
    return (
        f'<text class="{side} small" x="{x:g}" y="{_BASE - 2:g}" textLength="{_CELL:g}" '
        f'lengthAdjust="spacingAndGlyphs">{as_text(letters)}</text>'
    )


def _legend(*, has_marks: bool) -> str:
    drift = (
        f'<rect class="drift" x="370" y="{_LINE - 3}" width="{2 * _CELL:g}" height="2"/>'
        + "".join(_runs("other ids when re-tokenised", 394, "context"))
    )
    return (
        f'<rect class="bar" width="5" height="{_LINE}" x="{_MARGIN}"/>'
        + "".join(_runs("action (trained)", _MARGIN + 12, "action"))
        + f'<circle class="context" cx="180" cy="{_LINE / 2:g}" r="1"/>'
        + "".join(_runs("context (not trained)", 188, "context"))
        + (drift if has_marks else "")
    )
