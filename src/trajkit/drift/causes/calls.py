"""Causes inside a tool call or its result: what was parsed and printed again."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from trajkit.drift.causes.turns import turns_around
from trajkit.drift.causes.window import (
    AROUND,
    ROLE,
    TURN_ENDS,
    Evidence,
    as_text,
    inside_action,
    trimmed,
)
from trajkit.drift.difference import Difference, Side

_OPENERS = (
    *("<tool_call>", "<|tool_call>", "<function_call>", "<|python_tag|>", "[TOOL_CALLS]"),
    *("<｜tool▁sep｜>", "```json\n", "json<|message|>", "<|action_start|>"),
)
_CLOSERS = (
    *("</tool_call>", "<tool_call|>", "</function_call>", "<｜tool▁call▁end｜>", "<|action_end|>"),
    *("<|call|>", "<|eot_id|>", "<|im_end|>", "<|end|>"),
)
_VALUES = (
    (re.compile(rb"<parameter=[^<>\n]*>"), b"</parameter>"),
    (b"<arg_value>", b"</arg_value>"),
)
_ASSISTANT = re.compile(rb"(?:assistant|model|Assistant|commentary to=[^<\n]*)[^\n]{0,60}\s*$")
_POLICY = re.compile(rb"assistant|Assistant|_turn>model|<tool_call>|commentary to=|\[/INST\]")
_PYTHON = re.compile(
    r"'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z)|\b(?:True|False|None)\b", re.DOTALL
)
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_JSON_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|[^\s\"{}\[\],:]+|[{}\[\],:]", re.DOTALL)
_NEARBY = 200
"""Bytes in front of a bare call in which the head of its turn is looked for."""
_DECODER = json.JSONDecoder()


def tool_call_reserialisation(difference: Difference) -> Evidence | None:
    """Tell a tool call whose values are equal and whose text is not."""
    for found in (_json_calls, _parameters):
        left, right = found(difference.recorded, difference), found(difference.other, difference)
        if left is None or right is None:
            continue
        (text, at, tail), (other, other_at, other_tail) = left, right
        if text == other or at != other_at:
            continue
        value, other_value = _parsed(text), _parsed(other)
        if value is None or other_value is None or not _equal(value[0], other_value[0]):
            continue
        is_last = difference.recorded.end == len(difference.recorded.ids)
        if other_tail != tail and not (is_last and other_tail.startswith(tail)):
            continue
        return {"styles": _styles(text, other, value[1] or other_value[1])}
    return None


def _json_calls(side: Side, difference: Difference) -> tuple[str, bytes, bytes] | None:
    """Return the JSON of the call around a region, what of the region is in front, and behind."""
    before, data = side.before(AROUND), side.data
    left = before + data
    opened = _last(left, _OPENERS)
    start = 0 if opened is None else opened
    if _last(before[start:], _CLOSERS) is not None or opened is None:
        start = _bare(before + data, len(before))
        if start < 0:
            return None
    brace = re.compile(rb"[{\[]").search(left, start)
    if brace is None:
        return None
    at = brace.start()
    whole = left + side.behind(AROUND)
    text = whole[at:].decode("utf-8", errors="replace")
    end = _end_of_value(text)
    if end is None:
        return None
    if opened is None and not _is_call(text[:end]):
        return None
    stop = at + len(text[:end].encode("utf-8"))
    region = len(before), len(before) + len(data)
    if stop < region[0]:
        return None
    head = whole[region[0] : at] if at > region[0] else b""
    tail = whole[stop : region[1]] if region[1] > stop else b""
    return text[:end], head.strip(), tail.strip()


def _bare(left: bytes, n_before: int) -> int:
    """Return where a turn of the policy begins that holds the region, -1 when none is seen."""
    for match in reversed(list(re.finditer(rb"(?:<\|?[\w|]+\|?>|assistant\n)\s*(?=[{\[])", left))):
        near = left[max(0, match.end() - _NEARBY) : match.end()]
        if _ASSISTANT.search(re.sub(rb"<\|?[\w|]+\|?>\s*$", b"", near)):
            return match.end()
    return -1


def _is_call(text: str) -> bool:
    parsed = _parsed(text)
    value = parsed[0] if parsed else None
    return (
        isinstance(value, dict)
        and "name" in value
        and bool({"arguments", "parameters"} & set(value))
    )


def _last(data: bytes, signs: tuple[str, ...]) -> int | None:
    """Return the end of the last of some signs."""
    ends = [
        (at, at + len(sign.encode())) for sign in signs if (at := data.rfind(sign.encode())) >= 0
    ]
    return max(ends)[1] if ends else None


def _end_of_value(text: str) -> int | None:
    """Return where the bracketed value ends that a text begins with, quotes minded."""
    depth, quote, skip = 0, "", False
    for at, character in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character if character == '"' or depth else ""
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return at + 1
    return None


def _parameters(side: Side, difference: Difference) -> tuple[str, bytes, bytes] | None:
    """Return the parameter value around a region."""
    before, whole = side.before(AROUND), side.before(AROUND) + side.data + side.behind(AROUND)
    start, end = len(before), len(before) + len(side.data)
    for opener, closer in _VALUES:
        pattern = opener if isinstance(opener, re.Pattern) else re.compile(re.escape(opener))
        opened = [m.end() for m in pattern.finditer(whole, 0, start)]
        stop = whole.find(closer, opened[-1]) if opened else -1
        if opened and stop >= end:
            text = as_text(whole[opened[-1] : stop])
            return None if text is None else (text.strip(), b"", b"")
    return None


def _parsed(text: str) -> tuple[Any, bool] | None:
    """Return the value of a JSON text or Python literal, and whether it is the latter."""
    for read, is_python in ((str, False), (_as_json, True)):
        try:
            return _DECODER.decode(read(text)), is_python
        except (ValueError, RecursionError):
            continue
    return None


def _as_json(text: str) -> str:
    """Return a Python literal as JSON spells it."""

    def spell(match: re.Match[str]) -> str:
        token = match[0]
        if token in _LITERALS:
            return _LITERALS[token]
        if token[0] == '"':
            return token
        body = re.sub(r"\\(.)|\"", lambda m: '\\"' if m[0] == '"' else _unescaped(m), token[1:-1])
        return f'"{body}"'

    return _PYTHON.sub(spell, text)


def _unescaped(match: re.Match[str]) -> str:
    return "'" if match[1] == "'" else match[0]


def _equal(left: Any, right: Any) -> bool:
    """Return whether two values say the same; JSON in a string is what it spells."""
    try:
        return bool(_plain(left) == _plain(right))
    except RecursionError:
        return False


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bool):
        return ("bool", value)  # 1 is not true
    if isinstance(value, str) and value[:1] == "{":
        try:
            return _plain(_DECODER.decode(value))
        except (ValueError, RecursionError):
            return value
    return value


def _styles(left: str, right: str, is_python: bool) -> list[str]:  # noqa: FBT001
    """Return in what ways two spellings of a value differ."""
    if is_python:
        return ["python-literals"]
    mine, theirs = _JSON_TOKEN.findall(left), _JSON_TOKEN.findall(right)
    if mine == theirs:
        return ["spacing"]
    found = []
    read, read_other = list(map(_read, mine)), list(map(_read, theirs))
    if read == read_other:
        pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
        found = ["escaping"] if any(a[0] == '"' for a, _ in pairs) else []
        found += ["numbers"] if any(a[0] != '"' for a, _ in pairs) else []
    elif sorted(map(str, read)) == sorted(map(str, read_other)):
        found = ["key-order"]
    else:
        found = ["nesting"]
    return found + (
        ["spacing"] if re.findall(r"[:,]\s*", left) != re.findall(r"[:,]\s*", right) else []
    )


def _read(token: str) -> Any:
    try:
        return _DECODER.decode(token)
    except (ValueError, RecursionError):
        return token


def observation_escaped(difference: Difference) -> Evidence | None:
    """Tell a result that stands as text on one side and escaped on the other."""
    if inside_action(difference) or _policy_speaks(difference.recorded):
        return None
    for left, right in _results(difference):
        for plain, escaped, side in ((left, right, "other"), (right, left, "recorded")):
            for name, undo in _ESCAPES:
                if plain != escaped and undo(escaped) == plain and len(plain) > 1:
                    return {"escape": name, "escaped_by": side, "text": plain[:80]}
    return None


def _policy_speaks(side: Side) -> bool:
    """Return whether the turn that a region lies in is one of the policy."""
    before = side.before(AROUND)
    end = _last(before, tuple(TURN_ENDS))
    head = before[end or 0 :][:_NEARBY] if end is not None else before[:_NEARBY]
    return _POLICY.search(head) is not None and b"to=assistant" not in head


def _results(difference: Difference) -> Iterator[tuple[str, str]]:
    """Yield what may be a result on both sides: the turn around the difference, or itself."""
    around = turns_around(difference)
    pairs = [pair for pair in around if pair[0] != pair[1]] if around else []
    if len(pairs) == 1:
        left, right = pairs[0]
        yield _bare_text(left), _bare_text(right)
    yield _bare_text(difference.recorded.data), _bare_text(difference.other.data)
    yield tuple(map(show_all, trimmed(difference)))  # type: ignore[misc]


def show_all(data: bytes) -> str:
    """Return bytes as text."""
    return data.decode("utf-8", errors="replace")


def _bare_text(data: bytes) -> str:
    return show_all(ROLE.sub(b"", data)).strip()


def _unjson(text: str) -> str | None:
    """Return the string that a JSON text is, alone or under the only key of an object."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    return value.strip() if isinstance(value, str) else None


def _unquoted(text: str) -> str | None:
    return _unjson(f'"{text}"') if "\\" in text else None


_ESCAPES: tuple[tuple[str, Callable[[str], str | None]], ...] = (
    ("json", _unjson),
    ("json", _unquoted),
    ("html", html.unescape),
)
