"""Flat text into prompt, actions and observations, as spans that cover every byte once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trajkit.errors import InputError, Place
from trajkit.markup.marks import Mark, Marks, Sort
from trajkit.markup.numbers import numbered_start
from trajkit.markup.observe import SPACE
from trajkit.markup.profiles import Markup, Side
from trajkit.markup.scan import Piece, Scan
from trajkit.records import SegmentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatStep:
    """One action in flat text; spans are in bytes.

    Attributes:
        context: what stands between the previous action and this one; the prompt at the first.
        action: what the policy wrote.
        results: what the environment returned for it.
        is_cut: whether the text ends inside the action.
    """

    context: tuple[Piece, ...]
    action: tuple[Piece, ...]
    results: tuple[tuple[int, int], ...]
    is_cut: bool = False

    @property
    def start(self) -> int:
        """Return where the action begins."""
        return self.action[0].start

    @property
    def end(self) -> int:
        """Return where the action ends."""
        return self.action[-1].end


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatTrajectory:
    """A conversation as one text.

    Attributes:
        data: the whole text as UTF-8, prompt included.
        markup: the name of the profile it was read with.
        n_prompt: bytes of the prompt.
        steps: its actions in order.
        tail: what stands after the last action; the whole text where there is none.
        n_unclosed: observations without their closing tag.
    """

    data: bytes
    markup: str
    n_prompt: int
    steps: tuple[FlatStep, ...]
    tail: tuple[Piece, ...]
    n_unclosed: int

    @property
    def pieces(self) -> Iterator[Piece]:
        """Yield all pieces in order; they cover the text without gap or overlap."""
        for step in self.steps:
            yield from step.context
            yield from step.action
        yield from self.tail

    def text(self, start: int, end: int) -> str:
        """Return a span's text."""
        return self.data[start:end].decode("utf-8")


def parse(text: str, markup: Markup, *, prompt: str | None = None) -> FlatTrajectory:
    """Return the prompt, actions and observations of a flat text.

    Args:
        text: the whole text; what follows the prompt where that is given.
        markup: which tags it is read with.
        prompt: the prompt, where the source keeps it apart.

    Raises:
        InputError: I404 when the end of the prompt cannot be found, I405 when it cannot be known
            who wrote a piece of text; with the byte and line in prompt + text.
    """
    data = ((prompt or "") + text).encode("utf-8")
    start = prompt_end(data, markup, 0) if prompt is None else len(prompt.encode("utf-8"))
    in_turn = prompt is None or not _starts_turn(data, markup, start)
    scan = Scan(data, markup, start, in_turn=in_turn).run(stops_at_next=False)
    return _flat(data, markup, start, scan)


def split(data: bytes, markup: Markup) -> Iterator[tuple[int, int]]:
    """Yield the byte spans of the conversations in one text, line breaks around them left out.

    A conversation begins at the first turn, or at a system turn behind a blank line, unless that
    stands inside an observation.

    Raises:
        InputError: as `parse` does; the conversations before it were yielded.
    """
    at = len(data) - len(data.lstrip(SPACE))
    while at < len(data):
        scan_from = prompt_end(data, markup, at)
        scan = Scan(data, markup, scan_from, in_turn=True).run(stops_at_next=True)
        yield at, at + len(data[at : scan.end].rstrip(b"\r\n"))
        at = scan.end


def prompt_end(data: bytes, markup: Markup, start: int) -> int:
    """Return where the prompt ends: behind the head of the policy's first turn, or as told.

    Raises:
        InputError: I404 when that cannot be found.
    """
    if markup.prompt_end is not None:
        wanted = markup.prompt_end.encode()
        if data.count(wanted) == 1:
            return data.index(wanted) + len(wanted)
        what = f"expected {markup.prompt_end!r} once, found it {data.count(wanted)} times"
    elif (first := numbered_start(data, markup, start)) is not None:
        return first
    elif markup.turns is None:
        what = f"the profile {markup.name} marks no turns, and the record has no prompt of its own"
    else:
        heads = _turn_heads(data, markup, start) if _is_told(data, markup, start) else iter(())
        head = next(heads, None)
        if head is not None:
            return head.end
        roles = " or ".join(markup.turns.policy_roles)
        what = f"there is no {markup.turns.open}{roles}"
        if markup.turns.labels:
            what = f"the text does not begin with a role, or no {roles} speaks"
    raise InputError(
        "I404",
        f"where the prompt ends is unknown: {what}",
        place=Place(byte_offset=start, line=data.count(b"\n", 0, start) + 1),
        hint='give the prompt apart, {"prompt": ..., "response": ...}, or prompt_end in a TOML '
        "file with --markup",
    )


def _is_told(data: bytes, markup: Markup, start: int) -> bool:
    """Return whether all of a text is somebody's: labels count only where one stands first."""
    has_labels = markup.turns is not None and bool(markup.turns.labels)
    return not has_labels or _starts_turn(data, markup, start)


def _turn_heads(data: bytes, markup: Markup, start: int) -> Iterator[Mark]:
    """Yield the heads of the policy's turns."""
    bare = replace(markup, tags=(), phrases=())
    marks, at = Marks(data, bare, start), start
    while markup.turns is not None and (mark := marks.next(at)) is not None:
        at = mark.end
        if mark.sort is Sort.TURN_OPEN and mark.role in markup.turns.policy_roles:
            yield mark


def _starts_turn(data: bytes, markup: Markup, start: int) -> bool:
    """Return whether a new turn begins right there, so that the prompt ended with the last one."""
    mark = Marks(data, markup, start).next(start)
    return (
        mark is not None
        and mark.sort is Sort.TURN_OPEN
        and not data[start : mark.start].strip(SPACE)
    )


def _flat(data: bytes, markup: Markup, n_prompt: int, scan: Scan) -> FlatTrajectory:
    """Return the pieces as steps: an action is a run of the policy's pieces."""
    steps: list[FlatStep] = []
    context: list[Piece] = list(_prompt_pieces(data, markup, n_prompt))
    for is_policy, run in _runs(scan.pieces):
        if not is_policy:
            context += run
        elif all(not data[piece.start : piece.end].strip(SPACE) for piece in run):
            context.append(Piece(run[0].start, run[-1].end, SegmentKind.CONTEXT, Side.ENVIRONMENT))
        else:
            steps.append(FlatStep(context=tuple(context), action=tuple(run), results=()))
            context = []
    ends = [step.start for step in steps[1:]] + [len(data)]
    results = iter(scan.results)
    result = next(results, None)
    while result is not None and steps and result[0] < steps[0].start:
        result = next(results, None)
    for number, end in enumerate(ends if steps else []):
        mine = []
        while result is not None and result[0] < end:
            mine.append(result)
            result = next(results, None)
        steps[number] = replace(steps[number], results=tuple(mine))
    if steps and scan.is_cut and not context:
        steps[-1] = replace(steps[-1], is_cut=True)
    return FlatTrajectory(
        data=data,
        markup=markup.name,
        n_prompt=n_prompt,
        steps=tuple(steps),
        tail=tuple(context),
        n_unclosed=scan.n_unclosed,
    )


def _runs(pieces: list[Piece]) -> Iterator[tuple[bool, list[Piece]]]:
    """Yield the runs of pieces by one writer, with whether that is the policy."""
    run: list[Piece] = []
    for piece in pieces:
        if run and run[-1].writer is not piece.writer:
            yield run[-1].writer is Side.POLICY, run
            run = []
        run.append(piece)
    if run:
        yield run[-1].writer is Side.POLICY, run


def _prompt_pieces(data: bytes, markup: Markup, end: int) -> Iterator[Piece]:
    """Yield the pieces of the prompt: turn marks are scaffold, all the rest is prompt."""
    at = 0
    if markup.turns is not None:
        bare = replace(markup, tags=(), phrases=())
        marks = Marks(data[:end], bare, 0)
        seek = 0
        while (mark := marks.next(seek)) is not None:
            seek = mark.end + data.startswith(b"\n", mark.end) * (mark.sort is Sort.TURN_CLOSE)
            seek = min(seek, end)
            if mark.start > at:
                yield Piece(at, mark.start, SegmentKind.PROMPT, Side.ENVIRONMENT)
            yield Piece(mark.start, seek, SegmentKind.SCAFFOLD, Side.ENVIRONMENT)
            at = seek
    if end > at:
        yield Piece(at, end, SegmentKind.PROMPT, Side.ENVIRONMENT)
