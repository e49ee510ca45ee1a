"""A long view on a terminal: through the pager, and what happens without one."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.builders import make_trajectory
from tests.tokenizer_builders import TINY
from tests.view_builders import encoded
from trajkit.store.write import DatasetWriter


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "steps.parquet"
    text = "".join(f"line {number}\n" for number in range(200))
    with DatasetWriter(file) as writer:
        writer.write(make_trajectory([(encoded(text), encoded(text))], "long"))
        writer.write(make_trajectory([([5], [6])], "short"))
    return file


def on_terminal(*words, keys=b"", **variables):
    """Return (exit code, what a terminal of 80 x 24 got); `keys` are pressed after a while."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    names = ("PAGER", "LESS", "COLUMNS", "LINES", "NO_COLOR")
    environment = {k: v for k, v in os.environ.items() if k not in names}
    process = subprocess.Popen(
        [sys.executable, "-m", "trajkit", "mask-view", *map(str, words)],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env=environment | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | variables,
        start_new_session=True,
    )
    os.close(secondary)
    found, end = b"", time.monotonic() + 30
    while time.monotonic() < end:
        ready, _, _ = select.select([primary], [], [], 0.1)
        try:
            part = os.read(primary, 65536) if ready else b""
        except OSError:  # the last writer closed the terminal
            break
        found += part
        if keys and not ready and found:
            os.write(primary, keys)
            keys = b""
        if not part and process.poll() is not None:
            break
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    os.close(primary)
    return process.wait(), found.decode()


def pager(folder, script):
    file = folder / "pager"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_what_is_longer_than_the_screen_goes_through_the_pager(data, tmp_path):
    program = pager(tmp_path, f"echo PAGED; cat > {tmp_path}/seen")
    code, shown = on_terminal(data, "-t", TINY, "--limit", "2", PAGER=program)
    assert code == 0
    assert "PAGED" in shown
    assert "line 1" not in shown
    seen = (tmp_path / "seen").read_text()
    assert "lines, " in seen
    assert "tokens folded" in seen
    assert seen.count("line ") == 200 + 20  # the action whole, and 20 lines of the prompt
    assert "\x1b[1;36m" in seen


def test_a_short_view_is_shown_at_once(data, tmp_path):
    program = pager(tmp_path, "echo PAGED; cat")
    code, shown = on_terminal(data, "-t", TINY, "--trajectory", "short", PAGER=program)
    assert code == 0
    assert "PAGED" not in shown
    assert "total 2 tokens" in shown


@pytest.mark.parametrize(
    "variables", [{"PAGER": "no-such-program"}, {"PAGER": ""}, {"PAGER": "'"}, {"TERM": "dumb"}]
)
def test_without_a_pager_everything_is_shown(data, variables):
    code, shown = on_terminal(data, "-t", TINY, "--limit", "2", "--unfold", **variables)
    assert code == 0
    assert shown.count("line ") >= 400


def test_a_pager_that_is_left_early_ends_the_command_quietly(data, tmp_path):
    program = pager(tmp_path, "head -2")
    code, shown = on_terminal(data, "-t", TINY, "--unfold", "--limit", "2", PAGER=program)
    assert code == 0
    assert "Traceback" not in shown
    assert "error" not in shown


def test_no_pager_and_unfold_show_all(data, tmp_path):
    program = pager(tmp_path, "echo PAGED; cat > /dev/null")
    words = [data, "-t", TINY, "--limit", "2", "--no-pager"]
    code, shown = on_terminal(*words, "--unfold", PAGER=program)
    assert code == 0
    assert "PAGED" not in shown
    assert "folded" not in shown
    _, shown = on_terminal(*words, "--fold", "6", PAGER=program)
    assert "194 lines" in shown


def test_an_error_after_the_pager_began_is_told_when_it_is_left(data, tmp_path):
    program = pager(tmp_path, "cat > /dev/null; echo LEFT")
    words = [data, "-t", TINY, "--trajectory", "long", "--trajectory", "nobody"]
    code, shown = on_terminal(*words, PAGER=program)
    assert code == 2
    assert shown.index("LEFT") < shown.index("error[U107]")


def test_less_is_left_with_q(data):
    code, shown = on_terminal(data, "-t", TINY, keys=b"q")
    assert code == 0
    assert "long" in shown
