"""Who may import whom: the rows of the house, read from the import statements themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "trajkit"
ROWS = (
    {"errors"},
    {"records", "safe"},
    {"spelling"},
    {"store", "tokenizer", "demo"},
    {"template", "markup"},
    {"formats", "sequence", "align"},
    {"training"},
    {"rl"},
    {"ingestion", "drift", "masks", "view", "scoring", "doctor"},
    {"engine"},
    {"cli"},
    {"__init__", "__main__"},
)
"""From the ground up; a room imports only from rows below its own."""
SCORING = {"scoring"}
HEAVY = {"torch", "transformers"}

MODULES = sorted(SRC.rglob("*.py"))


def room_of(path: Path) -> str:
    """Return the folder or module right under the package that a file belongs to."""
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import in a file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def row_of(room: str) -> int:
    return next(number for number, rooms in enumerate(ROWS) if room in rooms)


def test_every_room_has_its_row():
    drawn = set().union(*ROWS)
    assert {room_of(path) for path in MODULES} <= drawn
    assert len(MODULES) > 30


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_room_imports_only_from_rows_below(path):
    room = room_of(path)
    for line, name in imports_of(path):
        package, _, rest = name.partition(".")
        if package != "trajkit" or rest == "__version__":
            continue
        other = rest.split(".")[0]
        assert other, f"{path.name}:{line} imports the whole package"
        if other != room:
            assert row_of(other) < row_of(room), f"{path.name}:{line}: {room} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_torch_is_a_matter_of_scoring_and_click_of_nobody(path):
    for line, name in imports_of(path):
        package = name.split(".")[0]
        assert package != "click", f"{path.name}:{line}"
        if package in HEAVY:
            assert room_of(path) in SCORING, f"{path.name}:{line} imports {name}"


def test_the_ground_needs_numpy_and_nothing_else():
    for name in ("records.py", "errors.py"):
        found = {module.split(".")[0] for _, module in imports_of(SRC / name)}
        assert found <= {
            *("__future__", "collections", "dataclasses", "datetime", "enum", "typing"),
            *("numpy", "trajkit"),
        }
