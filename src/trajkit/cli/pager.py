"""Output that is longer than the screen, through the reader's pager."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any

from trajkit.cli.console import Printer
from trajkit.errors import ExitCode

_DEFAULT = "less -R"
_ROOM = 1  # the prompt's line


class PagedPrinter(Printer):
    """A printer on a terminal whose result goes through `$PAGER` once it is longer than the screen.

    Without a pager that can be started it goes straight out; nothing is lost. A pager that is left
    early ends the command: the reader has seen enough.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._pager: subprocess.Popen[str] | None = None
        self._held: list[str] | None = []
        self._room = shutil.get_terminal_size((80, 24)).lines - _ROOM

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held, self._held = self._held, None
        if kind is None:
            self._to_stdout("".join(held or ()))
        try:
            super().__exit__(kind, value, traceback)
        finally:
            self._close()

    def _to_stdout(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
            self._room -= text.count("\n")
            if self._room >= 0:
                return
            text, self._held = "".join(self._held), None
            self._pager = _started()
        if self._pager is None or self._pager.stdin is None:
            super()._to_stdout(text)
            return
        try:
            self._pager.stdin.write(text)
        except BrokenPipeError:
            raise SystemExit(ExitCode.CLEAN) from None

    def _close(self) -> None:
        """Wait until the pager is left; Ctrl-C is for it, not for us."""
        if self._pager is None:
            return
        if self._pager.stdin is not None:
            with suppress(BrokenPipeError):
                self._pager.stdin.close()
        while True:
            try:
                self._pager.wait()
            except KeyboardInterrupt:
                continue
            return


def _started() -> subprocess.Popen[str] | None:
    """Return the running pager; `None` where it cannot be started, or the terminal has no pages."""
    if os.environ.get("TERM") == "dumb":
        return None
    try:
        command = shlex.split(os.environ.get("PAGER", _DEFAULT))
        known = bool(command) and shutil.which(command[0]) is not None
        if not known:
            return None
        charset = {"LESSCHARSET": "utf-8"} if sys.stdout.encoding.lower() == "utf-8" else {}
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env=charset | os.environ,
            text=True,
            encoding=sys.stdout.encoding,
            errors="backslashreplace",
        )
    except (OSError, ValueError):
        return None
