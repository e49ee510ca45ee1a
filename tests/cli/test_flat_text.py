"""Flat text from the log to the log-probs: retokenized, and called so by every command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.builders import FIXTURES, TINY

FIRST = "sampled ids: 0 of 4 steps (0.0%), 4 retokenized"


def trajkit(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trajkit", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, text=True)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    out = tmp_path_factory.mktemp("flat") / "steps.parquet"
    log = FIXTURES / "formats" / "flat" / "search-r1.txt"
    done = trajkit("ingest", log, "-o", out, "-t", TINY, "--retokenize")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(FIRST)
    return out


def test_ids_made_from_text_are_not_checkable_for_drift(steps):
    done = trajkit("drift-check", steps, "-t", TINY)
    assert done.returncode == 1
    assert done.stdout.startswith(FIRST)
    assert "not checkable" in done.stdout


@pytest.mark.torch
def test_ids_made_from_text_are_scored_and_said_to_be_so(steps):
    done = trajkit("score", steps, "--model", TINY, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(FIRST)


def test_info_says_where_the_ids_come_from(steps):
    assert trajkit("info", steps).stdout.startswith(FIRST)
