"""Findings for GitHub and SARIF: the forms they ask for, and nothing of the data that acts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajkit.cli.annotations import Annotation, Level, RuleInfo, github_line, sarif
from trajkit.safe.text import visible

RULE = RuleInfo(code="mask-x", severity="error", title="a", why="b.", fix="c.")


def note(severity: Level = "error", **given) -> Annotation:
    fields = {"code": "mask-x", "message": "told", "file": "a/b c.jsonl", **given}
    return Annotation(severity=severity, **fields)


@pytest.mark.parametrize(
    ("severity", "command"), [("error", "error"), ("warning", "warning"), ("note", "notice")]
)
def test_github_takes_three_commands(severity, command):
    line = github_line(note(severity, line=3))
    assert line == f"::{command} file=a/b c.jsonl,line=3,title=trajkit mask-x::told"


def test_what_would_end_a_github_command_is_escaped():
    line = github_line(note(message="50%\n::error::x\r\x1b[2J", file="a,b:c%.jsonl"))
    assert line.startswith("::error file=a%2Cb%3Ac%25.jsonl,title=trajkit mask-x::50%25")
    assert "\n" not in line
    assert "\r" not in line
    assert "\x1b" not in line


@given(st.text(), st.text())
def test_no_text_makes_a_second_line(message, file):
    line = github_line(note(message=message, file=file))
    assert len(line.splitlines()) == 1
    assert visible(line) == line


def test_sarif_has_what_the_standard_requires():
    log = sarif([note(line=2, properties={"token_start": 4}), note("note")], [RULE])
    assert json.loads(json.dumps(log)) == log
    assert (log["version"], log["$schema"].endswith("sarif-2.1.0.json")) == ("2.1.0", True)
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "trajkit"
    (rule,) = driver["rules"]
    assert {"id", "shortDescription", "fullDescription", "help", "defaultConfiguration"} == set(
        rule
    )
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "a/b%20c.jsonl"
    first, second = run["results"]
    assert first["locations"][0]["physicalLocation"]["region"] == {"startLine": 2}
    assert "region" not in second["locations"][0]["physicalLocation"]
    assert first["properties"] == {"token_start": 4}


def test_an_absolute_path_is_a_file_uri():
    (result,) = sarif([note(file="/a b/c.jsonl")], [RULE])["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "file:///a%20b/c.jsonl"


def test_a_code_without_a_rule_is_a_mistake():
    with pytest.raises(KeyError):
        sarif([note(code="mask-y")], [RULE])
