"""Every error trajkit raises on purpose, and the exit code each one becomes.

    TrajkitError
    ├── UsageProblem     2   the call cannot be what was meant
    ├── InputError       3   bytes, JSON, types, ids, schema or tokenizer are wrong
    ├── FileError        4   a file cannot be read or written
    ├── RefusedError     5   unsafe, or over a limit
    └── NumericError     6   NaN, missing weights, out of range

Findings (exit 1) are results, not errors. Anything else that escapes is a bug (exit 70).
Every code has a row in `ERROR_CODES`; a code without one is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    INPUT = 3
    IO = 4
    REFUSED = 5
    NUMERIC = 6
    BUG = 70
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    TERMINATED = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the user's data something was found; every field may be unknown."""

    file: str | None = None
    line: int | None = None
    column: int | None = None
    byte_offset: int | None = None
    path: str | None = None
    trajectory_id: str | None = None
    step_index: int | None = None

    def __str__(self) -> str:
        """Return `file:line:column  $.path  (trajectory X, step N)` without what is unknown."""
        spot = self.file or ""
        for number in (self.line, self.column):
            if number is not None:
                spot += f":{number}"
        if self.byte_offset is not None:
            spot += f" (byte {self.byte_offset})"
        parts = [spot] if spot else []
        if self.path:
            parts.append(self.path)
        who = [f"trajectory {self.trajectory_id}"] if self.trajectory_id is not None else []
        if self.step_index is not None:
            who.append(f"step {self.step_index}")
        if who:
            parts.append(f"({', '.join(who)})")
        return "  ".join(parts)


class TrajkitError(Exception):
    """A problem with a code, a place, what was found, and a way out.

    Args:
        code: a key of `ERROR_CODES`.
        message: one sentence: what was expected, what was found.
        place: where; `None` when there is no place to point at.
        hint: what to do, with a command that works where there is one.
        excerpt: a short piece of the offending input, unsanitised; the printer escapes it.
    """

    exit_code = ExitCode.INPUT

    def __init__(
        self,
        code: str,
        message: str,
        *,
        place: Place | None = None,
        hint: str | None = None,
        excerpt: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.place = place
        self.hint = hint
        self.excerpt = excerpt

    def __str__(self) -> str:
        """Return one line: code, sentence, place."""
        where = f" [{self.place}]" if self.place is not None and str(self.place) else ""
        return f"{self.code}: {self.message}{where}"


class UsageProblem(TrajkitError):  # noqa: N818 - "UsageError" is typer's own, with another meaning
    """The call cannot be what was meant."""

    exit_code = ExitCode.USAGE


class InputError(TrajkitError):
    """Bytes, JSON, types, ids, schema or tokenizer are wrong."""

    exit_code = ExitCode.INPUT


class FileError(TrajkitError):
    """A file cannot be read or written."""

    exit_code = ExitCode.IO


class RefusedError(TrajkitError):
    """Unsafe, or over a limit."""

    exit_code = ExitCode.REFUSED


class NumericError(TrajkitError):
    """NaN, missing weights, or a number out of range."""

    exit_code = ExitCode.NUMERIC


ERROR_CODES: dict[str, str] = {
    "I101": "the input is not UTF-8",
    "I102": "the input is not JSON",
    "I103": "the input ends in the middle of a record",
    "I104": "a JSON object has the same key twice",
    "I105": "a number is not finite",
    "I106": "a string holds half a surrogate pair",
    "I107": "JSON is nested too deep",
    "I108": "compressed input is damaged or cut",
    "I109": "there is no record in the input",
    "I110": "an integer is too long",
    "I201": "a field has the wrong type",
    "I202": "a field is missing",
    "I203": "a message has an unknown role",
    "I301": "a token id is not an integer",
    "I302": "a token id is negative",
    "I303": "a token id does not fit 32 bits",
    "I304": "a token id is outside the vocabulary",
    "I305": "log-probs and ids differ in number",
    "I306": "a log-prob is not a number at or below zero",
    "I401": "a trajectory id occurs twice",
    "I402": "the format is not recognised",
    "I404": "the end of the prompt is unknown",
    "I405": "the writer of a piece of text is unknown",
    "I406": "a mask fits its ids in two ways",
    "I407": "a mask does not fit its ids",
    "S101": "this is not a trajkit file",
    "S102": "the schema is newer than this trajkit",
    "S103": "the file is damaged",
    "S104": "the folder is not a whole dataset",
    "T101": "the tokenizer cannot be read",
    "T102": "the tokenizer does not match the data",
    "T103": "the tokenizer is of a kind whose bytes are not known",
    "T104": "there is no chat template",
    "T105": "the chat template cannot be compiled",
    "T106": "the chat template refuses the conversation",
    "T107": "control text in a message cannot be told from the template's own",
    "U101": "the output exists already",
    "U102": "the output is one of the inputs",
    "U103": "an option has a value it cannot have",
    "U104": "no input was found",
    "U105": "an optional part is not installed",
    "U106": "the device cannot be used",
    "U107": "the selection is empty",
    "F101": "a file cannot be read",
    "F102": "a file cannot be written",
    "F103": "the disk is full",
    "F104": "another process of the run is gone",
    "R101": "a record is over the size limit",
    "R102": "compressed input grows beyond the limit",
    "R103": "the output path is a link",
    "R104": "the checkpoint would run code or unpickle",
    "R105": "the chat template leaves its sandbox or goes over a limit",
    "R106": "a link leads out of its folder",
    "N102": "the checkpoint's weights are not whole",
    "N103": "a sequence is longer than the model's positions",
    "N104": "two ways of computing the same number disagree",
    "N105": "there is nothing to score",
}
