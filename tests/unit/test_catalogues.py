"""Every list that users meet is whole: each entry is used, has its fixture and its row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trajkit.drift.causes import DRIFT_CAUSES
from trajkit.drift.findings import DriftKind, Route
from trajkit.errors import ERROR_CODES
from trajkit.formats import FORMATS
from trajkit.markup import MARKUPS
from trajkit.masks.rules import MASK_RULES
from trajkit.masks.texts import RULE_TEXTS

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "trajkit"
FORMAT_FIXTURES = ROOT / "fixtures" / "formats"
GUIDES = [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]


def codes_in_use() -> set[str]:
    """Return every error code that stands in the source outside the table of codes."""
    found = set()
    for path in SRC.rglob("*.py"):
        if path.name != "errors.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return {text for text in found if re.fullmatch("[A-Z][0-9]{3}", text)}


def has_row(name: str) -> bool:
    """Return whether a table of the guides has a row that begins with a name."""
    row = re.compile(rf"^\|[^|]*`{re.escape(name)}`", re.MULTILINE)
    return any(row.search(guide) for guide in GUIDES)


def test_every_error_code_is_used_and_every_code_used_is_in_the_table():
    assert codes_in_use() == set(ERROR_CODES)


def test_the_first_letter_of_a_code_decides_the_kind_of_error():
    kinds = {
        "InputError": "IST",
        "UsageProblem": "U",
        "FileError": "F",
        "RefusedError": "R",
        "NumericError": "N",
    }
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                code = node.args[0] if node.args else None
                if node.func.id in kinds and isinstance(code, ast.Constant):
                    assert str(code.value)[0] in kinds[node.func.id], f"{path}:{node.lineno}"


@pytest.mark.parametrize("name", [entry.name for entry in FORMATS])
def test_every_format_has_fixtures_and_a_row_in_a_guide(name):
    assert any((FORMAT_FIXTURES / name).iterdir())
    assert has_row(name), f"no guide has a table row for the format {name}"


def test_no_folder_of_fixtures_is_without_a_format():
    folders = {path.name for path in FORMAT_FIXTURES.iterdir()}
    assert folders == {entry.name for entry in FORMATS}


@pytest.mark.parametrize("name", [entry.name for entry in MARKUPS])
def test_every_tag_profile_has_a_fixture_and_a_row_in_a_guide(name):
    assert (FORMAT_FIXTURES / "flat" / f"{name}.jsonl").exists()
    assert has_row(name), f"no guide has a table row for the tag profile {name}"


@pytest.mark.parametrize("code", [rule.code for rule in MASK_RULES])
def test_every_mask_rule_has_a_fixture_that_breaks_it_one_that_does_not_and_a_page(code):
    for side in ("bad", "good"):
        assert len(list((ROOT / "fixtures" / "masks" / code).glob(f"{side}.*"))) == 1
    text = RULE_TEXTS[code]
    assert text.title
    assert text.why.endswith(".")
    assert text.fix.endswith(".")


def test_no_folder_of_mask_fixtures_and_no_page_is_without_a_rule():
    codes = {rule.code for rule in MASK_RULES}
    assert {path.name for path in (ROOT / "fixtures" / "masks").iterdir()} == codes
    assert set(RULE_TEXTS) == codes


@pytest.mark.parametrize("name", [*DriftKind, *Route])
def test_every_drift_kind_and_route_has_a_row_in_a_guide(name):
    assert has_row(name), f"no guide has a table row for {name}"


@pytest.mark.parametrize("name", [cause.name for cause in DRIFT_CAUSES])
def test_every_drift_cause_is_planted_in_the_bench(name):
    planted = "".join(
        (ROOT / "bench" / f"{half}_plants.py").read_text() for half in ("text", "turn")
    )
    assert f'"{name}"' in planted


def test_every_cause_that_the_guide_names_is_one():
    section = (ROOT / "docs/drift.md").read_text()
    told = section.split("the **cause** is inference")[1].split("docs/codes.md")[0]
    assert set(re.findall(r"`([a-z0-9-]+)`", told)) <= {cause.name for cause in DRIFT_CAUSES}
