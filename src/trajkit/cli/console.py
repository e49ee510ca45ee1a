"""Where output goes: results to stdout, the rest to stderr, nothing from data unsanitised."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from trajkit.errors import ExitCode, FileError, Place, TrajkitError, UsageProblem
from trajkit.safe.text import visible

_PIPE_WIDTH = 100
_EXCERPT = 100
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


class Printer:
    """One command's output: a context manager that flushes, and publishes `-o FILE` atomically.

    Args:
        colour: auto, always or never.
        quiet: drop notes.
        out: a file for the result instead of stdout.
        overwrite: whether that file may exist.
        source: what is read: it cannot be the output too.
        width: cells a line may take; the terminal's own when `None`.
    """

    def __init__(
        self,
        *,
        colour: str = "auto",
        quiet: bool = False,
        out: Path | None = None,
        overwrite: bool = False,
        source: Path | None = None,
        width: int | None = None,
    ) -> None:
        if out is not None and source is not None:
            _refuse_own_input(out, source)
        self.colour = out is None and use_colour(colour, sys.stdout)
        self.width = width or terminal_width(sys.stdout)
        self.ascii = out is None and not _speaks_unicode(sys.stdout)
        self._quiet = quiet
        self._out = out
        self._overwrite = overwrite
        self._lines: list[str] = []
        self._has_progress = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_progress()
        if kind is None and self._out is not None:
            from trajkit.safe.files import publish_bytes

            publish_bytes(self._out, "".join(self._lines).encode(), overwrite=self._overwrite)
        elif kind is None:
            self._to_stdout("")
            self._flush()

    def strong(self, text: str) -> None:
        """Write a line that stands out where colours are on."""
        self.line(f"{_BOLD}{text}{_RESET}" if self.colour else text)

    def line(self, text: str = "") -> None:
        """Write one line of the result; the caller made sure that it is safe to show."""
        self._end_progress()
        if self._out is not None:
            self._lines.append(text + "\n")
        else:
            self._to_stdout(text + "\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Write several lines."""
        for text in texts:
            self.line(text)

    def json(self, document: dict[str, Any]) -> None:
        """Write one JSON document, in ASCII: no character of the data acts on a terminal."""
        self.line(json.dumps(document, ensure_ascii=True, allow_nan=False))

    def note(self, text: str) -> None:
        """Write to stderr what is not the result, unless quiet."""
        if not self._quiet:
            self._end_progress()
            sys.stderr.write(visible(text, keep_newlines=True) + "\n")

    def progress_note(self, text: str) -> None:
        """Say what is being waited for, on a terminal and nowhere else."""
        if sys.stderr.isatty():
            self.note(text)

    def progress(self, text: str) -> None:
        """Show how far a long job is, on a terminal and nowhere else; the next line replaces it."""
        if self._quiet or not sys.stderr.isatty():
            return
        sys.stderr.write(f"\r\x1b[K{visible(text)[: terminal_width(sys.stderr) - 1]}")
        sys.stderr.flush()
        self._has_progress = True

    def _end_progress(self) -> None:
        if self._has_progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_progress = False

    def table(self, rows: Sequence[Sequence[str]], *, right: str = "", head: bool = False) -> None:
        """Write rows as columns.

        Args:
            rows: cells as they are in the data; they are made safe here.
            right: the digits of the columns that align right.
            head: whether the first row names the columns.
        """
        shown = [[visible(cell) for cell in row] for row in rows]
        widths = [max(_cells(row[i]) for row in shown) for i in range(len(shown[0]))]
        for row in shown:
            cells = [
                " " * (widths[i] - _cells(cell)) + cell
                if str(i) in right
                else cell + " " * (widths[i] - _cells(cell))
                for i, cell in enumerate(row)
            ]
            write = self.strong if head and row is shown[0] else self.line
            write(("  " + "  ".join(cells)).rstrip())

    def _to_stdout(self, text: str) -> None:
        try:
            sys.stdout.write(text)
        except OSError as problem:
            _stdout_failed(problem)

    def _flush(self) -> None:
        try:
            sys.stdout.flush()
        except OSError as problem:
            _stdout_failed(problem)


def _refuse_own_input(out: Path, source: Path) -> None:
    from trajkit.safe.files import same_file

    inside = source.is_dir() and out.resolve().is_relative_to(source.resolve())
    if inside or same_file(out, source):
        raise UsageProblem("U102", f"{out} is the input too", hint="give another path with -o")


def _stdout_failed(problem: OSError) -> None:
    """Leave quietly when the reader closed the pipe; otherwise say that the result is not whole."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    if isinstance(problem, BrokenPipeError):
        raise SystemExit(ExitCode.CLOSED_PIPE)
    code = "F103" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else "F102"
    raise FileError(
        code, f"the output cannot be written: {problem.strerror}", place=Place(file="stdout")
    )


def sampled_line(by_source: Mapping[str, int], n_steps: int) -> str:
    """Return the first line of every report: how many steps hold what the sampler emitted."""
    n_sampled, n_made = (by_source.get(name, 0) for name in ("sampled", "retokenized"))
    share = n_sampled / n_steps if n_steps else 0.0
    line = f"sampled ids: {n_sampled:,} of {n_steps:,} steps ({share:.1%})"
    return line + (f", {n_made:,} retokenized" if n_made else "")


def print_error(problem: TrajkitError) -> None:
    """Write an error to stderr: code and sentence, place, excerpt, hint; all of it sanitised."""
    lines = [f"error[{problem.code}]: {visible(problem.message)}"]
    if problem.place is not None and str(problem.place):
        lines.append(f"  --> {visible(str(problem.place))}")
    if problem.excerpt:
        lines.append(f"      {visible(problem.excerpt[:_EXCERPT])}")
    if problem.hint:
        lines.append(f"  hint: {visible(problem.hint)}")
    sys.stderr.write("\n".join(lines) + "\n")


def use_colour(choice: str, stream: TextIO) -> bool:
    """Return whether to colour: `--color`, then NO_COLOR, FORCE_COLOR, TERM, then the terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR", os.environ.get("CLICOLOR_FORCE"))
    if forced is not None:
        return forced.lower() not in ("", "0", "false", "no")
    return os.environ.get("TERM") != "dumb" and stream.isatty()


def terminal_width(stream: TextIO) -> int:
    """Return the terminal's width, `COLUMNS` where it is set, else 100."""
    if not stream.isatty() and "COLUMNS" not in os.environ:
        return _PIPE_WIDTH
    return shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns


def _speaks_unicode(stream: TextIO) -> bool:
    try:
        "▌·─␊…".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
