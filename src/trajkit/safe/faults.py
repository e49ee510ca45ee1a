"""What is wrong with a JSON record, and where: the slow second look at a record that failed.

The reader only finds *that* a record is bad, at C speed. This module walks such a record token by
token and names its first fault in text order, with offset and path.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace

from trajkit.safe.text import shorten

MAX_DEPTH = 64
QUARANTINE_HINT = "--on-error quarantine sets the bad record aside"

_TOKEN = re.compile(r'"(?:[^"\\]++|\\.?)*+(?P<close>"?)|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)
# The longest start of a text in which each \uD8xx is followed at once by its \uDCxx.
_PAIRED = re.compile(
    r"(?:[^\\]++"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\(?!u[dD][89a-fA-F]).)*+",
    re.DOTALL,
)
_OPENERS = b"[{"
_CLOSERS = b"]}"
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NEITHER = bytes(set(range(256)) - set(_OPENERS + _CLOSERS + b'"'))
_SYNTAX = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: its error code, one sentence, a way out, and the byte of the record it is at."""

    code: str
    message: str
    hint: str
    at: int
    path: str | None = None


@dataclass(slots=True)
class _Level:
    """One open object or array: what is being read in it, and the keys seen."""

    is_object: bool
    key: str | None = None
    index: int = 0
    seen: set[str] = field(default_factory=set)


def brackets(raw: bytes) -> bytes | None:
    """Return the brackets of `raw` outside strings, all square; None if it ends inside a string."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = raw.translate(_TO_SQUARE, _NEITHER).split(b'"')
    return b"".join(pieces[::2]) if len(pieces) % 2 else None


def is_shallow(raw: bytes, limit: int = MAX_DEPTH) -> bool:
    """Return whether nesting is surely within a limit; False also where brackets do not match.

    No recursion and no loop over bytes: each pass removes the innermost level.
    """
    if raw.count(b"[") + raw.count(b"{") <= limit:
        return True
    left = brackets(raw)
    for _ in range(limit):
        if not left:
            break
        left = left.replace(b"[]", b"")
    return left == b""


def find_lone_surrogate(text: str) -> int | None:
    r"""Return where the first `\uD800`-like escape without its other half stands, or None."""
    if "\\ud" not in text and "\\uD" not in text:
        return None
    match = _PAIRED.match(text)
    end = match.end() if match else 0
    return end if text.startswith("\\u", end) else None


def find_fault(raw: bytes, *, is_last: bool) -> Fault:
    """Return the first fault of a record that could not be read.

    Args:
        raw: the exact bytes of the record.
        is_last: the input ends with this record, without a line end; only then can it be cut.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if is_last and error.reason == "unexpected end of data":
            return _cut(error.start, None)
        return Fault(
            code="I101",
            message=f"expected UTF-8, found the byte 0x{raw[error.start]:02X}: {error.reason}",
            hint=f"save the file as UTF-8 (iconv -f LATIN1 -t UTF-8), or {QUARANTINE_HINT}",
            at=error.start,
        )
    fault = _find_text_fault(text, is_last=is_last)
    return replace(fault, at=len(text[: fault.at].encode()))


def _find_text_fault(text: str, *, is_last: bool) -> Fault:
    """Return the first fault of a record that is UTF-8; here and below `at` counts characters."""
    stop, complaint = _find_syntax_error(text)
    levels: list[_Level] = []
    fault = _find_value_fault(text, stop, levels)
    if fault is not None:
        return fault
    if is_last and _is_cut(text, stop, levels):
        return _cut(len(text), _path(levels))
    if text.startswith("\ufeff", stop):
        complaint = "a byte order mark stands inside the file"
    return Fault(
        code="I102",
        message=f"expected JSON, found a fault: {complaint}",
        hint=f"check the record with python -m json.tool, or {QUARANTINE_HINT}",
        at=stop,
        path=_path(levels),
    )


def _cut(at: int, path: str | None) -> Fault:
    return Fault(
        code="I103",
        message="expected a whole record, found the end of the input in the middle of one",
        hint=f"the file was truncated; {QUARANTINE_HINT}",
        at=at,
        path=path,
    )


def _find_syntax_error(text: str) -> tuple[int, str]:
    """Return where the grammar breaks and how; the end of `text` if the scanner gave up."""
    try:
        _SYNTAX.decode(text)
    except json.JSONDecodeError as error:
        return error.pos, error.msg[:1].lower() + error.msg[1:]
    except RecursionError:
        pass
    return len(text), "the record cannot be read"


def _is_cut(text: str, stop: int, levels: list[_Level]) -> bool:
    """Return whether the text is still open and its last token is the one that fails."""
    tail = text[stop:].strip()
    if not tail:
        return bool(levels) or stop == 0
    if tail in "]}":
        return False
    match = _TOKEN.match(tail)
    is_one_token = match is not None and match[0] == tail
    return is_one_token and (bool(levels) or tail.startswith('"'))


def _find_value_fault(text: str, stop: int, levels: list[_Level]) -> Fault | None:
    """Return the first fault that is no matter of grammar before `stop`; `levels` says where."""
    expects_key = False
    for match in _TOKEN.finditer(text, 0, stop):
        token, at = match[0], match.start()
        if token in "{[":
            if len(levels) == MAX_DEPTH:
                message = f"expected at most {MAX_DEPTH} levels of nesting, found more"
                path = _path(levels[:8])
                return Fault(code="I107", message=message, hint=QUARANTINE_HINT, at=at, path=path)
            levels.append(_Level(is_object=token == "{"))
            expects_key = token == "{"
        elif token in "]}":
            levels.pop()
        elif token == ",":
            levels[-1].index += 1
            expects_key = levels[-1].is_object
        elif token == ":":
            expects_key = False
        elif match["close"] == "":
            break  # the grammar breaks inside this string
        else:
            wrong = _find_string_fault if token[0] == '"' else _find_number_fault
            fault = wrong(token, at, levels) or (
                _enter_key(token, at, levels) if expects_key else None
            )
            if fault is not None:
                return fault
    return None


def _enter_key(token: str, at: int, levels: list[_Level]) -> Fault | None:
    key: str = json.loads(token)
    level = levels[-1]
    level.key = key
    if key not in level.seen:
        level.seen.add(key)
        return None
    return Fault(
        code="I104",
        message=f"expected each key once, found {_quoted(key)} twice in one object",
        hint=f"readers differ in which of the two they take: keep one, or {QUARANTINE_HINT}",
        at=at,
        path=_path(levels),
    )


def _find_string_fault(token: str, at: int, levels: list[_Level]) -> Fault | None:
    lone = find_lone_surrogate(token)
    if lone is None:
        return None
    half = token[lone : lone + 6]
    return Fault(
        code="I106",
        message=f"expected a whole character, found {half} without its other half",
        hint=f"the writer cut a string inside a character; {QUARANTINE_HINT}",
        at=at + lone,
        path=_path(levels),
    )


def _find_number_fault(token: str, at: int, levels: list[_Level]) -> Fault | None:
    digits = token.removeprefix("-")
    if digits in ("true", "false", "null"):
        return None
    if digits.isdecimal():
        try:
            int(digits)
        except ValueError:  # more digits than Python turns into an integer, 4,300 by default
            code, wanted, found = "I110", "shorter integers", f"one of {len(digits)} digits"
        else:
            return None
    elif math.isfinite(float(token)):
        return None
    else:
        code, wanted, found = "I105", "a finite number", shorten(token, 40)
    return Fault(
        code=code,
        message=f"expected {wanted}, found {found}",
        hint=f"write null for a number that is missing, or {QUARANTINE_HINT}",
        at=at,
        path=_path(levels),
    )


def _quoted(key: str) -> str:
    return json.dumps(shorten(key, 40), ensure_ascii=False)


def _path(levels: list[_Level]) -> str:
    """Return the way from the record's root to what is being read: `$.messages[3].content`."""
    path = "$"
    for level in levels:
        if not level.is_object:
            path += f"[{level.index}]"
        elif level.key is not None:
            plain = level.key.isascii() and level.key.isidentifier() and len(level.key) <= 40
            path += f".{level.key}" if plain else f"[{_quoted(level.key)}]"
    return path
