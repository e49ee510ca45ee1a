"""`trajkit ingest`: what it prints, what it publishes, and the exit code it ends with."""

from __future__ import annotations

import base64
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders import FIXTURES, TINY
from trajkit.store.read import read_trajectories

BAD = FIXTURES / "bad"
EXPECTED: dict[str, dict[str, Any]] = json.loads((BAD / "EXPECTED.json").read_text())
SEARCH = FIXTURES / "formats" / "per-call" / "search.jsonl"

_ALL_AT_ONCE = """
import contextlib, io, json, sys
import trajkit.__main__ as entry
answers = {}
for name, words in json.loads(sys.stdin.read()).items():
    sys.argv = ["trajkit", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            entry.main()
        except SystemExit as end:
            answers[name] = [end.code, out.getvalue(), err.getvalue()]
print(json.dumps(answers))
"""


def trajkit(*words: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "trajkit", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, **options)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return exit code, stdout and stderr for each bad file, and the folder all wrote to."""
    folder = tmp_path_factory.mktemp("bad")
    calls = {}
    for name, expected in EXPECTED.items():
        words = ["ingest", str(BAD / name), "-o", str(folder / f"{name}.parquet")]
        calls[name] = words + (["-t", str(TINY)] if "tokenizer" in expected else [])
    done = subprocess.run(
        [sys.executable, "-c", _ALL_AT_ONCE],
        input=json.dumps(calls).encode(),
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout), folder


@pytest.mark.parametrize("name", EXPECTED)
def test_bad_input_exits_3_with_code_place_and_hint_and_publishes_nothing(answers, name):
    (code, out, err), folder = answers[0][name], answers[1]
    expected = EXPECTED[name]
    assert code == 3
    assert out == ""
    assert err.startswith(f"error[{expected['code']}]: ")
    where = name if expected["line"] is None else f"{name}:{expected['line']}"
    assert where in err.splitlines()[1]
    if expected["path"] is not None:
        assert expected["path"] in err.splitlines()[1]
    assert "\n  hint: " in err
    assert list(folder.iterdir()) == []


def test_a_log_is_written_and_told(tmp_path):
    out = tmp_path / "steps.parquet"
    done = trajkit("ingest", SEARCH, "-o", out, "-t", TINY)
    assert done.returncode == 0
    assert done.stderr == b""
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "sampled ids: 5 of 5 steps (100.0%)"
    assert lines[1].startswith(f"Wrote {out}: 2 trajectories, 5 steps, ")
    assert "2 read = 2 written + 0 quarantined" in lines[2]
    assert "search.jsonl: per-call (turns[] with response_token_ids)" in lines[3]
    found = list(read_trajectories(out))
    assert [len(trajectory.steps) for trajectory in found] == [2, 3]
    source = json.loads(SEARCH.read_text().splitlines()[0])
    ids = [step.action_tokens.tolist() for step in found[0].steps if step.action_tokens is not None]
    assert ids == [turn["response_token_ids"] for turn in source["turns"]]


def test_the_json_report_counts_every_record(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(SEARCH.read_text() + "{}\n")
    done = trajkit(
        "ingest", log, "-o", tmp_path / "out", "--on-error", "quarantine", "--format", "json"
    )
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["schema"] == "trajkit.ingest/1"
    assert report["n_read"] == 3 == report["n_written"] + report["n_quarantined"]
    assert report["by_source"] == {"sampled": 5, "retokenized": 0, "unknown": 0, "none": 0}
    (row,) = (tmp_path / "out" / "_quarantine.jsonl").read_text().splitlines()
    assert base64.b64decode(json.loads(row)["raw_b64"]) == b"{}"


def test_a_pipe_is_a_source(tmp_path):
    done = trajkit("ingest", "-", "-o", tmp_path / "a.parquet", input=SEARCH.read_bytes())
    assert done.returncode == 0, done.stderr
    assert [t.trajectory_id for t in read_trajectories(tmp_path / "a.parquet")] == [
        "tokyo-0",
        "tokyo-1",
    ]


def test_an_empty_pipe_exits_3_and_publishes_nothing(tmp_path):
    done = trajkit("ingest", "-", "-o", tmp_path / "out", input=b"")
    assert done.returncode == 3
    assert b"error[I109]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_needs_no_output_and_writes_none(tmp_path):
    done = trajkit("ingest", SEARCH, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert b"Nothing written: 2 trajectories" in done.stdout
    done = trajkit("ingest", SEARCH, "--dry-run", "-o", "a.parquet", cwd=tmp_path)
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_needs_force(tmp_path):
    out = tmp_path / "a.parquet"
    assert trajkit("ingest", SEARCH, "-o", out).returncode == 0
    before = out.read_bytes()
    done = trajkit("ingest", SEARCH, "-o", out)
    assert done.returncode == 2
    assert b"error[U101]" in done.stderr
    assert b"--force" in done.stderr
    assert trajkit("ingest", SEARCH, "-o", out, "--force").returncode == 0
    assert out.read_bytes() == before


def test_a_disk_that_is_full_exits_4_and_leaves_nothing(tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    log = tmp_path / "log.jsonl"
    log.write_text("{}\n" + SEARCH.read_text())
    for out in ("out", "a.parquet"):
        words = ("ingest", log, "-o", tmp_path / out, "--on-error", "quarantine")
        done = trajkit(*words, preexec_fn=limit)
        assert done.returncode == 4
        assert b"error[F102]" in done.stderr
        assert done.stderr.count(b"\n") <= 3, done.stderr
    assert list(tmp_path.iterdir()) == [log]


def test_text_of_a_log_cannot_act_on_the_terminal(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": [{"role": "\x1b[2J\u202e", "content": "x"}]}) + "\n")
    done = trajkit("ingest", log, "-o", tmp_path / "a.parquet", env=os.environ | {"LC_ALL": "C"})
    assert done.returncode == 3
    assert b"error[I203]" in done.stderr
    assert b"\x1b" not in done.stderr
    assert "\u202e".encode() not in done.stderr


def test_files_of_the_samples_are_as_the_table_says():
    assert all((BAD / name).is_file() for name in EXPECTED)
    assert Path(BAD / "cut.jsonl.gz").read_bytes().startswith(b"\x1f\x8b")


@pytest.mark.parametrize("out", ["out", "a.parquet"])
def test_a_killed_run_leaves_the_old_dataset_and_the_next_one_clears_its_traces(tmp_path, out):
    assert trajkit("ingest", SEARCH, "-o", tmp_path / out).returncode == 0
    command = [sys.executable, "-m", "trajkit", "ingest", "-", "-o", str(tmp_path / out), "--force"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        until = time.monotonic() + 20
        while not list(tmp_path.rglob("*.tmp")) and time.monotonic() < until:
            time.sleep(0.02)
        child.kill()
    assert list(tmp_path.rglob("*.tmp")), "the writer never started"
    assert len(list(read_trajectories(tmp_path / out))) == 2
    assert trajkit("ingest", SEARCH, "-o", tmp_path / out, "--force", "-n", 1).returncode == 0
    assert len(list(read_trajectories(tmp_path / out))) == 1
    assert list(tmp_path.rglob(".*")) == []


# --- flat text

FLAT = FIXTURES / "formats" / "flat"


def test_flat_text_says_first_that_nothing_was_sampled(tmp_path):
    out = tmp_path / "steps.parquet"
    done = trajkit("ingest", FLAT / "search-r1.txt", "-o", out, "-t", TINY, "--retokenize")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "sampled ids: 0 of 4 steps (0.0%), 4 retokenized"
    assert "flat (text with tags of search-r1: <search> … </search> outside the prompt)" in lines[3]
    assert lines[4].split() == ["action", "ids", "4", "retokenized"]
    assert b"control_text" in done.stderr
    shown = trajkit("mask-view", out, "-t", TINY, "--limit", "2").stdout.decode()
    assert shown.count("action ids: retokenized in 2 of 2 steps") == 2
    marked = [
        line for line in shown.splitlines() if line.startswith("▌ ") and "action (" not in line
    ]
    assert any("<search> landing </search>" in line for line in marked)
    assert not any("information" in line or "Doc 1" in line for line in marked)


def test_the_report_as_json_counts_what_is_odd_about_made_ids():
    done = trajkit(
        *("ingest", FLAT / "hermes.jsonl", "--dry-run", "-t", TINY, "--retokenize"),
        *("--format", "json"),
    )
    report = json.loads(done.stdout)
    assert report["by_source"]["retokenized"] == 2
    assert (report["n_control_text"], report["n_straddling_tokens"]) == (3, 0)


def test_a_tag_profile_is_taken_by_name_or_from_a_file():
    for source, markup in (("react.jsonl", "react"), ("code.txt", FLAT / "code.toml")):
        done = trajkit("ingest", FLAT / source, "--dry-run", "--markup", markup)
        assert done.returncode == 0, done.stderr
        assert b"0 of 2 steps" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--retokenize"], "-t"),
        (["--markup", "nobody"], "search-r1"),
        (["--markup", str(FLAT / "none.toml")], "F101"),
    ],
)
def test_options_of_flat_text_that_cannot_be_meant_are_refused(words, told):
    done = trajkit("ingest", FLAT / "react.jsonl", "--dry-run", *words)
    assert done.returncode in (2, 4)
    assert told in done.stderr.decode()


def test_a_bad_conversation_in_a_text_file_is_set_aside(tmp_path):
    text = (FLAT / "search-r1.txt").read_text()
    log = tmp_path / "log.txt"
    log.write_text(text + "<answer>again</answer>\n")
    assert trajkit("ingest", log, "--dry-run").returncode == 3
    done = trajkit("ingest", log, "-o", tmp_path / "out", "--on-error", "quarantine")
    assert done.returncode == 1
    assert b"2 read = 1 written + 1 quarantined" in done.stdout
    [line] = (tmp_path / "out" / "_quarantine.jsonl").read_text().splitlines()
    raw = base64.b64decode(json.loads(line)["raw_b64"])
    assert log.read_bytes().endswith(raw)


def test_rows_of_a_table_are_read_and_their_masks_aligned_as_asked(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"prompt_ids": [5], "response_ids": [6, 7], "loss_mask": [0, 1]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    bare = trajkit("ingest", tmp_path / "a.parquet", "--dry-run")
    assert bare.returncode == 3
    assert b"error[I406]" in bare.stderr
    assert b"a.parquet:1" in bare.stderr
    done = trajkit("ingest", tmp_path / "a.parquet", "--dry-run", "--align", "shifted")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"1 trajectories, 1 steps, 1 action tokens" in done.stdout
