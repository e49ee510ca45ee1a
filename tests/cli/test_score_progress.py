"""The line that tells how far a run is: on a terminal alone, and gone before anything else."""

from __future__ import annotations

import io
from functools import partial
from types import SimpleNamespace

import pytest

from trajkit.cli import console
from trajkit.cli.console import Printer
from trajkit.cli.score import _progress
from trajkit.scoring.report import Effort

EFFORT = Effort(
    seconds=2.0, n_tokens=2469, peak_memory_bytes=1_240_000_000, peak_memory_of="process"
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Return what stands in for both streams of a terminal, in the order of writing."""
    made = Terminal()
    monkeypatch.setattr(console, "sys", SimpleNamespace(stderr=made, stdout=made))
    monkeypatch.setenv("COLUMNS", "80")
    return made


@pytest.mark.parametrize(
    ("is_part", "steps"), [(False, "1,000 of 9,000 steps"), (True, "1,000 steps")]
)
def test_a_line_tells_steps_speed_and_memory_and_is_gone_before_the_result(
    terminal, is_part, steps
):
    with Printer() as printer:
        _progress(printer, is_part, 1000, 9000, EFFORT)
        _progress(printer, is_part, 1000, 9000, EFFORT)
        printer.line("the result")
        printer.line("more")
    shown = f"{steps}, 1,234 tokens/s, 1.2 GB of memory at most"
    assert terminal.getvalue() == f"\r\x1b[K{shown}" * 2 + "\r\x1b[Kthe result\nmore\n"


def test_it_is_gone_before_a_note_and_before_an_error(terminal):
    tell = partial(_progress, is_part=True, n_done=1, n_all=9, effort=EFFORT)

    def fail(printer: Printer) -> None:
        tell(printer)
        printer.note("a note")
        tell(printer)
        raise KeyError

    with pytest.raises(KeyError), Printer() as printer:
        fail(printer)
    first, second, end = terminal.getvalue().split("at most")
    assert second.startswith("\r\x1b[Ka note\n\r\x1b[K1 steps")
    assert end == "\r\x1b[K"
    assert first.count("\n") == 0


def test_it_never_wraps(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    with Printer() as printer:
        _progress(printer, False, 1000, 9000, EFFORT)
    assert terminal.getvalue() == "\r\x1b[K1,000 of 9,000 steps, 1,234 t\r\x1b[K"


def test_nothing_is_shown_where_nobody_looks(terminal, monkeypatch):
    with Printer(quiet=True) as printer:
        _progress(printer, False, 1, 9, EFFORT)
    file = io.StringIO()
    monkeypatch.setattr(console, "sys", SimpleNamespace(stderr=file, stdout=file))
    with Printer() as printer:
        _progress(printer, False, 1, 9, EFFORT)
    assert terminal.getvalue() == file.getvalue() == ""


def test_what_is_not_known_is_left_out_and_a_gpu_is_named(terminal):
    nothing = Effort(seconds=0.0, n_tokens=0, peak_memory_bytes=None, peak_memory_of="process")
    gpu = Effort(seconds=4.0, n_tokens=10, peak_memory_bytes=5_000_000, peak_memory_of="gpu")
    with Printer() as printer:
        _progress(printer, False, 0, 9, nothing)
        _progress(printer, False, 2, 9, gpu)
    lines = [part for part in terminal.getvalue().split("\r\x1b[K") if part]
    assert lines == ["0 of 9 steps", "2 of 9 steps, 2.5 tokens/s, 5 MB of the GPU's memory at most"]
