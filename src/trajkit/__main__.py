"""`python -m trajkit` and the `trajkit` command: every way out ends in a documented exit code."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

from trajkit import __version__
from trajkit.errors import ExitCode, TrajkitError


class _TerminatedError(BaseException):
    """SIGTERM arrived: unwind, so that temporary files go."""


def main() -> NoReturn:
    """Run the command line and exit."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"trajkit {__version__}\n")
        sys.exit(ExitCode.CLEAN)
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        from trajkit.cli.app import app

        app(prog_name="trajkit")
    except TrajkitError as problem:
        from trajkit.cli.console import print_error

        print_error(problem)
        sys.exit(problem.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except _TerminatedError:
        sys.exit(ExitCode.TERMINATED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.CLOSED_PIPE)
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as problem:  # noqa: BLE001 - the one place where a bug becomes exit 70
        sys.stderr.write(_bug_report(problem))
        sys.exit(ExitCode.BUG)
    sys.exit(ExitCode.CLEAN)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise _TerminatedError


def _bug_report(problem: BaseException) -> str:
    """Return one line about a bug, and write the stack to a log: no locals, no message, no data."""
    frames = traceback.extract_tb(problem.__traceback__)
    stack = "".join(f"{Path(f.filename).name}:{f.lineno} {f.name}\n" for f in frames)
    kind = type(problem).__name__
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown"
    try:
        handle, name = tempfile.mkstemp(prefix="trajkit-crash-", suffix=".log")
        with os.fdopen(handle, "w") as log:
            log.write(f"trajkit {__version__}, Python {sys.version.split()[0]}\n{kind}\n{stack}")
    except OSError:
        name = "nowhere: the temporary folder cannot be written"
    return f"internal error: {kind} in {last}: a bug in trajkit (stack without data: {name})\n"


if __name__ == "__main__":
    main()
