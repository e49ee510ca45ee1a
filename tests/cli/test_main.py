"""Every way out of the process ends in its documented exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROLLOUTS = ROOT / "fixtures" / "rollouts" / "smollm2.jsonl"


def trajkit(*words, **options):
    """Return the finished process of a trajkit command."""
    command = [sys.executable, "-m", "trajkit", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, **options)


def started(command) -> Any:
    """Return a running process with pipes on all three ends."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "steps.parquet"
    done = trajkit("ingest", ROLLOUTS, "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def test_version_is_printed_and_clean():
    done = trajkit("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(b"trajkit ")


def test_an_unknown_command_is_a_usage_error_with_a_suggestion():
    done = trajkit("drift-chek")
    assert done.returncode == 2
    assert b"drift-check" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ingest", "x.jsonl"], "U103"),
        (["drift-check", "x.parquet", "--route", "nowhere"], "U103"),
        (["ingest", "nowhere.jsonl", "-o", "x.parquet"], "U104"),
    ],
)
def test_a_call_that_cannot_be_meant_exits_2(words, code, tmp_path):
    done = trajkit(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert f"error[{code}]".encode() in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_exits_4(tmp_path):
    done = trajkit("info", tmp_path / "nowhere.parquet")
    assert done.returncode == 4
    assert b"error[F101]" in done.stderr
    assert done.stdout == b""


def test_an_output_that_is_a_link_exits_5(tmp_path):
    target = tmp_path / "target.parquet"
    target.write_bytes(b"mine")
    (tmp_path / "link.parquet").symlink_to(target)
    done = trajkit("ingest", ROLLOUTS, "-o", tmp_path / "link.parquet", "--force")
    assert done.returncode == 5
    assert b"error[R103]" in done.stderr
    assert target.read_bytes() == b"mine"


def test_a_bug_exits_70_and_says_nothing_of_the_data(steps, tmp_path):
    code = (
        "import sys, trajkit.store.read as read, trajkit.__main__ as entry\n"
        "def broken(*_, **__): raise RuntimeError('secret text of a record')\n"
        "read.read_trajectories = broken\n"
        "sys.argv = ['trajkit', 'info', sys.argv[1]]\n"
        "entry.main()\n"
    )
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(steps)], capture_output=True, check=False, env=env
    )
    assert done.returncode == 70
    assert done.stderr.count(b"\n") == 1
    assert b"RuntimeError" in done.stderr
    logs = list(tmp_path.glob("trajkit-crash-*.log"))
    assert len(logs) == 1
    assert b"secret" not in done.stderr + logs[0].read_bytes()
    assert b"broken" in logs[0].read_bytes()


def test_a_closed_pipe_exits_141_without_a_word(steps):
    command = [sys.executable, "-m", "trajkit", "mask-view", str(steps), "--limit", "12"]
    with started(command) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait() == 141


def test_a_full_disk_behind_stdout_exits_4_with_one_line(steps):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trajkit", "info", str(steps)],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 4
    assert b"error[F103]" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_no_output_and_no_temporary_file(number, code, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "trajkit", "ingest", "-", "-o", str(out)]
    with started(command) as child:
        child.stdin.write(ROLLOUTS.read_bytes())
        child.stdin.flush()
        until = time.monotonic() + 20
        while not out.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert out.exists(), "the writer never started"
        child.send_signal(number)
        assert child.wait(timeout=10) == code
    assert list(tmp_path.iterdir()) == []


def test_no_color_and_a_pipe_keep_the_bar_and_write_no_escape(steps):
    done = trajkit("mask-view", steps, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    text = done.stdout.decode()
    assert "▌ " in text
    assert "· " in text


def test_an_ascii_locale_still_shows_everything(steps):
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = trajkit("mask-view", steps, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"A|" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("ingest", ROLLOUTS, "--dry-run"),
        ("drift-check", "STEPS"),
        ("mask-view", "STEPS"),
        ("info", "STEPS"),
        ("schema",),
        ("explain", "I301"),
    ],
    ids=lambda words: words[0],
)
def test_color_paints_and_changes_nothing_else(words, steps):
    command = [steps if word == "STEPS" else word for word in words]
    plain = trajkit(*command, "--color", "never").stdout
    painted = trajkit(*command, "--color", "always").stdout
    assert painted != plain
    assert re.sub(rb"\x1b\[[0-9;]*m", b"", painted) == plain
