"""`trajkit explain` on its three kinds of pages."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from trajkit.cli.app import app
from trajkit.drift.causes import DRIFT_CAUSES


def lines_of(*words: str) -> list[str]:
    done = CliRunner().invoke(app, ["explain", *words])
    assert done.exit_code == 0
    return done.stdout.splitlines()


@pytest.mark.parametrize("cause", DRIFT_CAUSES, ids=lambda cause: cause.name)
def test_a_cause_has_title_reason_example_and_remedy(cause):
    lines = lines_of(cause.name)
    assert lines[0] == f"{cause.name}: {cause.what}"
    labels = [line[:6].strip() for line in lines[1:] if line[:6].strip()]
    assert labels == ["why", "e.g.", "mend"]
    text = " ".join(line[6:] for line in lines[1:])
    for part in (cause.why, cause.example, cause.fix):
        assert "".join(part.split()) in "".join(text.split())


def test_a_cause_may_be_typed_as_python_spells_names():
    assert lines_of("Tool_Call_Reserialisation") == lines_of("tool-call-reserialisation")


@pytest.mark.parametrize("name", ["i301", "ids-only", "unexplained"])
def test_codes_kinds_and_what_has_no_cause_have_no_example(name):
    labels = [line[:6].strip() for line in lines_of(name)[1:] if line[:6].strip()]
    assert labels == ["why", "mend"]
