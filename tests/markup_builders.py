"""Flat texts as their pieces say: who wrote what, in characters a test can read."""

from __future__ import annotations

from trajkit.markup import FlatTrajectory, Side, load_markup, parse

ASK = "Search with <search> query </search>, read <information> results </information>.\n"


def flat_of(text: str, markup: str = "search-r1", *, prompt: str | None = ASK) -> FlatTrajectory:
    """Return what is read in a text, after checking that its pieces cover every byte once."""
    flat = parse(text, load_markup(markup), prompt=prompt)
    assert b"".join(flat.data[p.start : p.end] for p in flat.pieces) == flat.data
    ends = [0, *(piece.end for piece in flat.pieces)]
    assert [piece.start for piece in flat.pieces] == ends[:-1]
    assert all(piece.end > piece.start for piece in flat.pieces)
    for step in flat.steps:
        assert {piece.writer for piece in step.action} == {Side.POLICY}
        assert {piece.writer for piece in step.context} <= {Side.ENVIRONMENT}
    return flat


def actions(flat: FlatTrajectory) -> list[str]:
    """Return what the policy wrote, one text a step."""
    return [flat.text(step.start, step.end) for step in flat.steps]


def replies(flat: FlatTrajectory) -> list[list[str]]:
    """Return what came back, the texts of each step."""
    return [[flat.text(*span) for span in step.results] for step in flat.steps]


def kinds(flat: FlatTrajectory, number: int) -> list[tuple[str, str]]:
    """Return kind and text of each piece of an action."""
    pieces = flat.steps[number].action
    return [(piece.kind.value, flat.text(piece.start, piece.end)) for piece in pieces]
