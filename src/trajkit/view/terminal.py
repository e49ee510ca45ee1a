"""A view as terminal lines: a gutter says which side a line is on, colour only repeats it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.cells import cell_len

from trajkit.records import ActionSource, Trajectory
from trajkit.safe.text import shorten
from trajkit.tokenizer import Tokenizer, load_tokenizer
from trajkit.view.against import LEGEND, Comparison
from trajkit.view.beneath import Beneath
from trajkit.view.folding import folded, width_of
from trajkit.view.glyphs import BLOCK, CONTROL_SIGN, HIDDEN
from trajkit.view.lanes import Lane
from trajkit.view.model import LABEL, Line, Row, Rule, View, rows, view_of

_INDEX_WIDTH = 7
_MIN_TEXT = 10
_ASCII = (
    {0x2400 + code: f"\\x{code:02x}" for code in range(0x20)}
    | {ord("␡"): "\\x7f", ord("␊"): "\\n", ord("␉"): "\\t", ord("␣"): "\\s", ord("\\"): "\\\\"}
    | {ord(BLOCK): "\\#", ord("⟪"): "\\[", ord("⟫"): "\\]", ord("⟦"): "\\<", ord("⟧"): "\\>"}
)
"""The signs spelt with a backslash; all else beyond ASCII becomes `\\uNNNN`."""
_STRIP_ASCII = str.maketrans("└─≠≈", "|-!~")


class Sgr(StrEnum):
    """The colour codes this face writes; nothing else in its output is a control character."""

    ACTION = "\x1b[1;36m"
    CONTEXT = "\x1b[2m"
    RULE = "\x1b[1m"
    INVERSE = "\x1b[7m"
    UPRIGHT = "\x1b[27m"
    RESET = "\x1b[0m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """How to draw.

    Attributes:
        width: cells a line may take.
        colour: whether SGR codes are written.
        ascii: whether everything keeps to ASCII, signs spelt with a backslash.
    """

    width: int = 100
    colour: bool = False
    ascii: bool = False

    @property
    def action_mark(self) -> str:
        """Return the gutter of an action line."""
        return "A|" if self.ascii else "▌ "

    @property
    def context_mark(self) -> str:
        """Return the gutter of a context line."""
        return " |" if self.ascii else "· "

    @property
    def between(self) -> str:
        """Return what stands between facts on a line."""
        return " - " if self.ascii else " · "

    @property
    def glyphs(self) -> tuple[str, str]:
        """Return how the eight levels of positive and of negative numbers are drawn."""
        return ("12345678", "abcdefgh") if self.ascii else ("▁▂▃▄▅▆▇█", "░░░▒▒▒▓▓")

    def draw(self, signs: str) -> str:
        """Return signs of a strip in characters the terminal can show, one for one."""
        return signs.translate(_STRIP_ASCII) if self.ascii else signs

    def paint(self, text: str, code: Sgr) -> str:
        """Return the text in a colour, or as it is when colours are off."""
        if not self.colour or not text:
            return text
        signed = CONTROL_SIGN.sub(lambda sign: f"{Sgr.INVERSE}{sign[0]}{Sgr.UPRIGHT}", text)
        return f"{code}{signed}{Sgr.RESET}"

    @property
    def room(self) -> int:
        """Return how many cells are left for the text of a line with tokens."""
        return max(self.width - _INDEX_WIDTH - 3, _MIN_TEXT)

    def spell(self, text: str) -> str:
        """Return the text in characters the terminal can show."""
        if not self.ascii:
            return text
        return text.translate(_ASCII).encode("ascii", errors="backslashreplace").decode("ascii")


def mask_view(
    trajectory: Trajectory,
    tokenizer: Tokenizer | Path | str | None = None,
    *,
    width: int = 100,
    colour: bool = False,
    steps: Callable[[int], bool] = lambda _: True,
) -> str:
    """Return a trajectory's view as text.

    Args:
        trajectory: what to show.
        tokenizer: gives each id its text; without it the ids themselves are shown.
        width: cells a line may take.
        colour: whether SGR codes are written.
        steps: which step indices to show.
    """
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    return "\n".join(lines(trajectory, loaded, Face(width=width, colour=colour), steps))


def lines(
    trajectory: Trajectory,
    tokenizer: Tokenizer | None,
    face: Face,
    wanted: Callable[[int], bool] = lambda _: True,
) -> Iterator[str]:
    """Yield the view of a trajectory line by line: header, rules and text, totals."""
    view = view_of(trajectory)
    yield from header(view, None if tokenizer is None else tokenizer.name, face)
    yield from body(rows(view, tokenizer, wanted), face)
    yield footer(view, face)


def header(view: View, tokenizer_name: str | None, face: Face) -> Iterator[str]:
    """Yield the lines above a trajectory: its name, where its ids come from, the legend."""
    trajectory = view.trajectory
    facts = [_plural(len(trajectory.steps), "step")]
    if view.has_ids:
        facts.append(_plural(view.n_tokens, "token"))
        facts.append(f"action {view.n_action_tokens:,} ({_share(view)})")
    if trajectory.reward is not None:
        facts.append(f"reward {trajectory.reward:g}")
    if trajectory.group_id is not None:
        facts.append(f"group {shorten(trajectory.group_id, 40)}")
    name = shorten(trajectory.trajectory_id, 60)
    for line in _flow(map(face.spell, (name, *facts)), face.between, face.width):
        yield face.paint(line, Sgr.RULE)
    yield from _flow(map(face.spell, provenance(view, tokenizer_name)), face.between, face.width)
    yield from legend(view, face)


def legend(view: View, face: Face) -> Iterator[str]:
    """Yield the lines that say what the marks mean."""
    sides = {
        f"{face.action_mark}action (trained)": Sgr.ACTION,
        f"{face.context_mark}context (not trained)": Sgr.CONTEXT,
    }
    signs = ["␊ newline", "␉ tab", "␣ space", "⟦⟧ no glyph"]
    if view.has_ids:
        signs.insert(0, "⟪⟫ one control id")
    if not view.redaction.is_nothing:
        signs.append(f"{BLOCK} not shown")
    for line in _flow([*sides, *map(face.spell, signs)], "   ", face.width):
        painted = line
        for side, code in sides.items():
            painted = painted.replace(side, face.paint(side, code))
        yield painted


def body(shown: Iterable[Row], face: Face) -> Iterator[str]:
    """Yield one terminal line per row, longer rows folded at the width."""
    for row in shown:
        yield from _rule(row, face) if isinstance(row, Rule) else _line(row, face)


def annotated(
    shown: Iterable[tuple[Row, Beneath]], face: Face, *, has_ids: bool = False
) -> Iterator[str]:
    """Yield the same with what belongs under each line, its ids only if asked."""
    for row, beneath in shown:
        if isinstance(row, Rule):
            yield from _rule(row, face)
            continue
        strips = [
            (strip.label, face.draw(strip.signs(lambda text: width_of(face.spell(text)))))
            for strip in beneath.strips
        ]
        yield from _line(row, face, [("", "".join(_lane(beneath, face))), *strips])
        for note in beneath.notes:
            yield from _under(f"drift {note}", face)
        if has_ids and beneath.ids:
            yield from _under(" ".join(BLOCK if i == HIDDEN else str(i) for i in beneath.ids), face)


def _under(text: str, face: Face) -> Iterator[str]:
    for part in folded(face.spell(text), face.room):
        yield face.paint(" " * (_INDEX_WIDTH + 3) + part.rstrip(), Sgr.CONTEXT)


def drift_head(view: View, face: Face) -> Iterator[str]:
    """Yield the line that says how many findings are marked, and how."""
    n = sum(map(len, view.marks.values()))
    facts = [f"drift: {_plural(n, 'finding')}", "^ other ids here", "< ids are missing here"]
    yield from _flow(
        (face.spell(fact) for fact in facts[: 3 if n else 1]), face.between, face.width
    )


def comparison_head(comparison: Comparison, face: Face) -> Iterator[str]:
    """Yield the lines that say how another tokenizer cuts what is shown."""
    whole = comparison.n_borders
    share = f"{comparison.n_common / whole:.1%}" if whole else "0%"
    name = shorten(comparison.name, 40)
    facts = [
        f"against {name}: {comparison.n_other:,} for {_plural(comparison.n_recorded, 'token')}",
        f"borders in common {comparison.n_common:,} of {whole:,} ({share})",
        f"the same tokens {comparison.n_same_borders:,}",
        f"with the same id {comparison.n_same_ids:,}",
        *(f"left out {n:,}: {shorten(why, 50)}" for why, n in comparison.n_left_out.items()),
    ]
    yield from _flow(map(face.spell, facts), face.between, face.width)
    yield from _flow((face.draw(text) for text in LEGEND), "   ", face.width)


def scale(lane: Lane, face: Face) -> Iterator[str]:
    """Yield the lines that say what a lane's glyphs mean."""
    up, down = face.glyphs
    facts = [lane.title, "blank 0", f"{up[0]} to {up[-1]} {lane.full:g} or beyond"]
    if lane.is_signed:
        facts.append(f"{down[0]} to {down[-1]} {-lane.full:g} or beyond")
    yield from _flow(map(face.spell, [*facts, "? missing"]), face.between, face.width)


def _rule(rule: Rule, face: Face) -> Iterator[str]:
    dash = "-" if face.ascii else "─"
    for line in _flow(map(face.spell, rule.facts), face.between, face.width - 3):
        filled = f"{dash * 2} {line} {dash * (face.width - cell_len(line) - 4)}"
        yield face.paint(filled.rstrip(), Sgr.RULE)


def _lane(beneath: Beneath, face: Face) -> Iterator[str]:
    """Yield a lane's glyphs, as many cells as the text above them takes."""
    up, down = face.glyphs
    for text, level in beneath.levels:
        signs = "?" if level is None else f" {up}" if level >= 0 else f" {down}"
        yield signs[abs(level or 0)] * width_of(face.spell(text))


def _line(line: Line, face: Face, lanes: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
    code = Sgr.ACTION if line.is_action else Sgr.CONTEXT
    mark = face.paint(face.action_mark if line.is_action else face.context_mark, code)
    if line.token_start is None:
        label = folded(face.spell(line.label), LABEL)[0]
        label += " " * (LABEL - cell_len(label))
    else:
        label = f"{line.token_start:>{_INDEX_WIDTH}}"
    room = max(face.width - cell_len(label) - 3, _MIN_TEXT)
    at = 0
    for part in folded(face.spell(line.text), room):
        yield f"{mark}{label} {face.paint(part, code)}"
        n = width_of(part)
        for name, signs in lanes:
            if signs[at : at + n].strip():
                yield f"{mark}{name:>{cell_len(label)}} {signs[at : at + n].rstrip()}"
        at += n
        label = " " * cell_len(label)
    if line.note:
        yield from _under(line.note, face)


def footer(view: View, face: Face | None = None) -> str:
    """Return the totals below a trajectory, folded at the width."""
    face = face or Face()
    return "\n".join(_flow(totals(view), face.between, face.width))


def totals(view: View) -> list[str]:
    """Return how many tokens of each side there are, and how many steps without any."""
    facts = []
    if view.has_ids:
        context = view.n_tokens - view.n_action_tokens
        facts += [
            f"total {_plural(view.n_tokens, 'token')}",
            f"action (trained) {view.n_action_tokens:,} ({_share(view)})",
            f"context (not trained) {context:,}",
        ]
    if view.without_ids:
        n = _plural(len(view.without_ids), "step")
        left = "" if view.redaction.hides_text else ", only who wrote which text"
        facts.append(f"{n} without prompt ids: no mask to show{left}")
    return facts


def provenance(view: View, tokenizer_name: str | None) -> list[str]:
    """Return where a view's ids and texts come from, each fact safe to print."""
    steps = view.trajectory.steps
    counts = {s: sum(step.action_source is s for step in steps) for s in ActionSource}
    told = ", ".join(f"{source.value} in {n:,}" for source, n in counts.items() if n)
    facts = [f"action ids: {told} of {_plural(len(steps), 'step')}"]
    if view.has_ids:
        name = "none, so ids are shown" if tokenizer_name is None else shorten(tokenizer_name, 40)
        facts.append(f"tokenizer {name}")
    return facts


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _share(view: View) -> str:
    return f"{view.n_action_tokens / view.n_tokens:.1%}" if view.n_tokens else "0%"


def _flow(facts: Iterable[str], between: str, width: int) -> Iterator[str]:
    """Yield facts side by side on as few lines of at most `width` cells as they need."""
    line = ""
    for fact in facts:
        joined = f"{line}{between}{fact}" if line else fact
        if line and cell_len(joined) > width:
            yield from folded(line, width)
            joined = fact
        line = joined
    yield from folded(line, width)
