"""Every console block in the documentation is run, and prints what it says it prints.

A line `...` stands for any lines, `<...>` inside a line for any text.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[tuple[str, str]]:
    """Return (command, expected output) for each `$ ` line of a page's console blocks."""
    found = []
    for block in _BLOCK.findall(page.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def matches(expected: str, actual: str) -> bool:
    """Return whether an output is what a block shows."""
    pattern = re.escape(expected.strip("\n"))
    pattern = pattern.replace(re.escape("<...>"), r"[^\n]*?")
    pattern = re.sub(r"(?<=\n)\\\.\\\.\\\.(?=\\?(?:\n|$))", lambda _: r"[\s\S]*?", pattern)
    return re.fullmatch(pattern, actual.strip("\n")) is not None


@pytest.mark.torch
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_console_blocks_print_what_they_show(page, tmp_path):
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    env = os.environ | {"NO_COLOR": "1", "COLUMNS": "100"}
    ran = 0
    for command, expected in commands(page):
        words = shlex.split(command)
        assert words[0] == "trajkit", f"{page.name} shows a command the test cannot run: {command}"
        done = subprocess.run(
            [sys.executable, "-m", "trajkit", *words[1:]],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        shown = done.stdout + (done.stderr if done.returncode > 1 else "")
        assert matches(expected, shown), f"$ {command}\n{shown}\n--- expected ---\n{expected}"
        ran += 1
    assert ran > 0 or page.name != "README.md"


def test_a_wildcard_line_stands_for_any_lines_and_no_more():
    assert matches("a\n...\nd", "a\nb\nc\nd")
    assert matches("a <...> c", "a b c")
    assert not matches("a\nb", "a\nc")
    assert not matches("a\n...\nd", "a\nb\nc")
