"""The public names: pinned, typed, lazy, and the same functions the commands call."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import trajkit

SOURCE = Path(trajkit.__file__).read_text()


@pytest.mark.torch
def test_every_public_name_has_one_home_and_is_found_there():
    homes = trajkit._HOMES
    assert sorted([*homes, "__version__"]) == sorted(trajkit.__all__)
    for name, home in homes.items():
        assert getattr(trajkit, name) is getattr(import_module(home), name)


def test_what_type_checkers_see_is_what_is_loaded():
    seen: dict[str, str | None] = {}
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.If):  # what stands under TYPE_CHECKING
            imports = [part for part in node.body if isinstance(part, ast.ImportFrom)]
            seen |= {alias.name: part.module for part in imports for alias in part.names}
    seen.pop("require_torch", None)
    assert seen == trajkit._HOMES


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(trajkit, "ingests")


def test_importing_trajkit_loads_nothing_heavy():
    code = (
        "import sys, trajkit\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pyarrow', 'tokenizers', 'typer', 'rich'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_functions_do_what_the_commands_do(tmp_path):
    root = Path(__file__).parents[2]
    out = tmp_path / "steps.parquet"
    report = trajkit.ingest([str(root / "fixtures/rollouts/smollm2.jsonl")], out)
    assert (report.n_trajectories, report.n_steps) == (12, 36)
    assert trajkit.drift_check(out).by_route["chain"].n_checked_steps == 24
    first = next(iter(trajkit.read_trajectories(out)))
    assert trajkit.mask_view(first).splitlines()[0].startswith(first.trajectory_id)
