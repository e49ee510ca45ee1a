"""A name or a TOML file into a `Markup`, strictly: what is not known is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from trajkit.errors import FileError, Place, UsageProblem
from trajkit.markup.profiles import MARKUPS, Markup, Side, Tag, Turns
from trajkit.records import SegmentKind

_MAX_BYTES = 2**20
_POLICY_KINDS = (SegmentKind.THINK, SegmentKind.TOOL_CALL, SegmentKind.ANSWER, SegmentKind.TEXT)
_ENVIRONMENT_KINDS = (SegmentKind.OBSERVATION,)


def load_markup(given: str) -> Markup:
    """Return the profile of that name, or the one a TOML file describes.

    Raises:
        UsageProblem: U103, there is no such profile, or the file does not describe one.
        FileError: F101, the file cannot be read.
    """
    for markup in MARKUPS:
        if markup.name == given:
            return markup
    path = Path(given)
    if path.suffix != ".toml":
        names = ", ".join(markup.name for markup in MARKUPS)
        raise UsageProblem(
            "U103",
            f"there is no tag profile {given}",
            hint=f"--markup takes {names}, or a file that ends in .toml",
        )
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as problem:
        raise FileError(
            "F101", f"cannot be read: {problem.strerror}", place=Place(file=given)
        ) from problem
    if len(raw) > _MAX_BYTES:
        raise _Table(given, "$", {}).wrong("", f"more than {_MAX_BYTES} bytes")
    try:
        table = tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as problem:
        raise _Table(given, "$", {}).wrong("", f"no TOML: {problem}") from problem
    return _markup(_Table(given, "$", table), path.stem)


class _Table:
    """One TOML table whose keys are taken one by one, and all of which must be."""

    def __init__(self, file: str, path: str, value: object) -> None:
        self._file = file
        self._path = path
        if not isinstance(value, dict):
            raise self.wrong("", "no table")
        self._left: dict[str, Any] = dict(value)

    def wrong(self, key: str, what: str) -> UsageProblem:
        path = f"{self._path}.{key}" if key else self._path
        return UsageProblem(
            "U103",
            f"the tag profile is not right: {what}",
            place=Place(file=self._file, path=path),
            hint="a profile has name, prompt_end, phrases, [turns] and [[tags]]",
        )

    def text(self, key: str, default: str | None = None) -> str:
        found = self.maybe_text(key)
        if found is None:
            found = default
        if found is None:
            raise self.wrong(key, "it is missing")
        return found

    def maybe_text(self, key: str) -> str | None:
        value = self._left.pop(key, None)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "no string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._left.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise self.wrong(key, "no list of strings")
        return tuple(value)

    def tables(self, key: str) -> list[_Table]:
        value = self._left.pop(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, "no list of tables")
        return [_Table(self._file, f"{self._path}.{key}[{i}]", v) for i, v in enumerate(value)]

    def table(self, key: str) -> _Table | None:
        value = self._left.pop(key, None)
        return None if value is None else _Table(self._file, f"{self._path}.{key}", value)

    def done(self) -> None:
        for key in self._left:
            raise self.wrong(key, "there is no such key")


def _markup(table: _Table, stem: str) -> Markup:
    turns = table.table("turns")
    found = Markup(
        name=table.text("name", stem),
        prompt_end=table.maybe_text("prompt_end"),
        phrases=table.texts("phrases"),
        turns=None if turns is None else _turns(turns),
        tags=tuple(_tag(entry) for entry in table.tables("tags")),
    )
    table.done()
    marks = [mark for tag in found.tags for mark in (tag.open, tag.close) if mark is not None]
    marks += list(found.phrases)
    if found.turns is not None:
        marks += found.turns.labels or (found.turns.open, found.turns.close)
    twice = next((mark for mark in marks if marks.count(mark) > 1), None)
    if not marks:
        raise table.wrong("tags", "it has neither tags nor turns")
    if twice is not None:
        raise table.wrong("tags", f"{twice!r} stands for two things")
    if found.prompt_end == "" or "" in marks:
        raise table.wrong("tags", "a mark is empty")
    return found


def _turns(table: _Table) -> Turns:
    labels = table.texts("labels")
    default = "" if labels else None
    roles = table.texts("policy_roles") or ("assistant",)
    turns = Turns(
        open=table.text("open", default),
        close=table.text("close", default),
        policy_roles=tuple(role.lower() for role in roles) if labels else roles,
        labels=labels,
    )
    table.done()
    if labels and (turns.open or turns.close):
        raise table.wrong("labels", "turns have labels, or open and close, not both")
    return turns


def _tag(table: _Table) -> Tag:
    writer = _side(table, "writer", table.text("writer"))
    kinds = _POLICY_KINDS if writer is Side.POLICY else _ENVIRONMENT_KINDS
    default = None if writer is Side.POLICY else SegmentKind.OBSERVATION.value
    kind = table.text("kind", default)
    if kind not in [known.value for known in kinds]:
        raise table.wrong("kind", f"expected {', '.join(kinds)} for the {writer}, found {kind!r}")
    tag = Tag(
        open=table.text("open"),
        close=table.maybe_text("close"),
        kind=SegmentKind(kind),
        writer=writer,
        closer=_side(table, "closer", table.text("closer", writer.value)),
        before=table.text("before", ""),
        after=table.text("after", ""),
    )
    table.done()
    if tag.close is None and "{n}" not in tag.open:
        raise table.wrong("open", "a tag without close is a label, and has {n} in it")
    if tag.close is not None and "{n}" in tag.open:
        raise table.wrong("close", "a label, with {n} in it, has no close")
    if (tag.before + tag.after).strip():
        raise table.wrong("before", "before and after are white space")
    if writer is Side.POLICY and (tag.before or tag.after):
        raise table.wrong("before", "only the environment's tags have white space of their own")
    if writer is Side.ENVIRONMENT and tag.closer is Side.POLICY:
        raise table.wrong("closer", "the environment closes its own tags")
    return tag


def _side(table: _Table, key: str, value: str) -> Side:
    if value not in ("policy", "environment"):
        raise table.wrong(key, f"expected policy or environment, found {value!r}")
    return Side(value)
