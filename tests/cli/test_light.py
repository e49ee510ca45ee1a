"""Asking for help costs no library that help does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trajkit.cli.app import app

COMMANDS = [command.name for command in app.registered_commands]
HEAVY = ("torch", "transformers", "numpy", "pyarrow", "tokenizers")
SCRIPT = f"""
import sys
from trajkit.__main__ import main
try:
    main()
finally:
    sys.stderr.write(" ".join(name for name in {HEAVY} if name in sys.modules))
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)],
    ids=" ".join,
)
def test_help_loads_no_heavy_library(words):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout
    assert done.stderr == ""


def test_the_commands_are_those_that_are_tested_here():
    assert {"ingest", "drift-check", "mask-view", "score", "info", "schema"} <= set(COMMANDS)
