"""The strings of a conversation, and private marks put in their place.

A mark is a short word that occurs nowhere else. A template rendered with marks shows where it
writes each string, without being asked how. Templates look at strings, though (`'</think>' in
content`), so a leaf can also be marked in parts, with what the template itself names left standing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

POLICY_ROLE = "assistant"

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which a message's reasoning is passed."""
_ARGUMENTS = ("arguments", "parameters", "input")
_NAMES = ("name", "id", "call_id", "tool_call_id")
_FREE = ("content", "text", *REASONING)
"""Keys whose strings are somebody's words, whatever they say."""
_FIXED = ("role", "type")
"""Keys whose strings a template decides by."""
_IS_PLAIN = re.compile(r"[\w./:+-]*").fullmatch
"""Whether a string may be part of a record's form (`tool_result`, `text/plain`); any that holds
other characters is somebody's word, wherever it stands."""
_PROPERTIES = ("properties", "patternProperties", "$defs", "definitions")
"""Keys of a schema whose own keys are names that the tool's author chose."""
_AUTHORS = ("name", "title", "default", "const", "enum", "example", "examples", "required")
"""Keys of a schema whose strings the tool's author chose."""


class Part(StrEnum):
    """What a leaf is to its message."""

    TEXT = "text"
    ARGUMENT = "argument"
    KEY = "key"
    NAME = "name"
    TOOLS = "tools"
    SCHEMA = "schema"
    """A name or a value in a tool's schema."""


class Cut(StrEnum):
    """How much of a leaf a mark takes the place of."""

    WHOLE = "whole"
    TAGS = "tags"
    """All but the tags that the template names; a leaf of nothing but tags as a whole."""
    LONE_TAGS = "lone tags"
    """The same, but a leaf of nothing but tags as with `WORDS`: the template may look at it."""
    WORDS = "words"
    """All but white space and every string that the template names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A string somewhere in the conversation; `message` is `None` for the tools'.

    `path` leads to it; where it is a key (`is_key`), the path ends with it.
    """

    message: int | None
    role: str | None
    path: Path
    part: Part
    text: str
    is_key: bool = False

    @property
    def place(self) -> str:
        """Return the path as it is written: `$.content[0].text`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "$" + "".join(steps)

    @property
    def is_policy_text(self) -> bool:
        """Return whether this is the policy's own wording, tags included."""
        return self.role == POLICY_ROLE and self.part is Part.TEXT


@dataclass(frozen=True, slots=True)
class Mark:
    """What a mark stands for: `[start, end)` of these leaves (several when they are equal)."""

    leaves: tuple[int, ...]
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Which leaves are marked, and how."""

    cut: Cut
    parts: frozenset[Part]
    equal_names: bool
    """Whether names that are equal have equal marks: templates may look results up by them."""


PLANS = (
    Plan(Cut.WHOLE, frozenset(Part), equal_names=False),
    Plan(Cut.WHOLE, frozenset(Part), equal_names=True),
    Plan(Cut.TAGS, frozenset(Part), equal_names=True),
    Plan(Cut.TAGS, frozenset(Part) - {Part.SCHEMA}, equal_names=True),
    Plan(Cut.TAGS, frozenset({Part.TEXT, Part.ARGUMENT}), equal_names=True),
    Plan(Cut.LONE_TAGS, frozenset(Part), equal_names=True),
    Plan(Cut.WORDS, frozenset({Part.TEXT, Part.ARGUMENT}), equal_names=True),
)
"""From the most telling to the most careful; the first that explains a render is believed.

`WORDS` does not tell white space at the edges of a leaf from the template's: a single message must
not bring it about for all the others while there is a plan that is careful with that one alone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A conversation with marks in it."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    marks: tuple[Mark, ...]
    pattern: re.Pattern[str]
    """Finds marks, in whatever case a template leaves them; group 1 is the index."""


class Nulls(StrEnum):
    """What becomes of a message's keys whose value is null (`"content": null` beside calls)."""

    DROPPED = "dropped"
    """The template does not see them, as with `transformers` 5."""
    KEPT = "kept"
    """It sees null, as with `transformers` 4; templates of that time ask `content is none`."""


def plain_messages(messages: Sequence[Mapping[str, Any]], nulls: Nulls) -> list[dict[str, Any]]:
    """Return messages as templates are given them: null keys dropped or not, reasoning aliased.

    Source: `transformers` 5.24, `_normalize_chat_messages` and `_alias_reasoning_fields`.
    """
    found = []
    for message in messages:
        keep = nulls is Nulls.KEPT
        plain = {key: value for key, value in message.items() if keep or value is not None}
        reasoning = next((plain[key] for key in REASONING if plain.get(key) is not None), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        found.append(plain)
    return found


def find_leaves(
    messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None, constants: Iterable[str]
) -> tuple[Leaf, ...]:
    """Return the strings of a conversation that are not empty, in order."""
    finder = _Finder(frozenset(constants))
    for index, message in enumerate(messages):
        role = message.get("role")
        finder.visit(message, index, role if isinstance(role, str) else None)
    if tools:
        finder.visit_tools(tools)
    return tuple(finder.leaves)


def mark(
    messages: list[dict[str, Any]],
    tools: Sequence[Any] | None,
    leaves: tuple[Leaf, ...],
    plan: Plan,
    *,
    constants: Iterable[str],
    nonce: str,
) -> Marked:
    """Return the conversation with marks in the place of its leaves."""
    lone = keeper(Cut.WORDS, constants) if plan.cut is Cut.LONE_TAGS else None
    marker = _Marker(leaves, plan, keeper(plan.cut, constants), lone, nonce)
    return Marked(
        messages=[marker.rebuild(message, (i,)) for i, message in enumerate(messages)],
        tools=None if tools is None else marker.rebuild(list(tools), (None,)),
        marks=tuple(marker.marks),
        pattern=re.compile(nonce + "([0-9]{7,})Z", re.IGNORECASE),
    )


def keeper(cut: Cut, constants: Iterable[str]) -> re.Pattern[str] | None:
    """Return what finds the parts of a leaf that are left standing; `None` when nothing is."""
    match cut:
        case Cut.WHOLE:
            return None
        case Cut.TAGS | Cut.LONE_TAGS:
            tags = {tag for text in constants for tag in (text, text.strip()) if _is_tag(tag)}
            return _any_of(tags, "")
        case Cut.WORDS:
            return _any_of({text for text in constants if text.strip()}, r"|\s+")


def _found(keep: re.Pattern[str] | None, text: str) -> list[tuple[int, int]]:
    return [] if keep is None else [found.span() for found in keep.finditer(text)]


def _any_of(texts: Iterable[str], more: str) -> re.Pattern[str] | None:
    longest = sorted(texts, key=lambda text: (-len(text), text))
    found = ("|".join(map(re.escape, longest)) + more).removeprefix("|")
    return re.compile(found) if found else None


def pick_nonce(*texts: str) -> str:
    """Return the beginning of marks: a word that none of the texts holds, in whatever case."""
    number = 0
    while True:
        nonce = f"qx{number}vk"
        if not any(nonce in text.lower() for text in texts):
            return nonce
        number += 1


def _is_tag(text: str) -> bool:
    return len(text.strip()) > 1 and any(not (c.isalnum() or c.isspace() or c == "_") for c in text)


class _Finder:
    """The walk that finds leaves."""

    def __init__(self, constants: frozenset[str]) -> None:
        self._constants = constants
        self.leaves: list[Leaf] = []

    def visit(self, message: dict[str, Any], index: int, role: str | None) -> None:
        """Collect the leaves of a message."""
        for path, text, is_key in _strings(message, ()):
            part = _key_part(path, text) if is_key else self._part(path, text)
            if part is not None:
                self.leaves.append(
                    Leaf(message=index, role=role, path=path, part=part, text=text, is_key=is_key)
                )

    def visit_tools(self, tools: Sequence[Any]) -> None:
        """Collect what tools say; the other words of a schema decide the layout."""
        for path, text, is_key in _strings(list(tools), ()):
            part = _schema_part(path, text, is_key=is_key)
            if part is not None:
                self.leaves.append(
                    Leaf(message=None, role=None, path=path, part=part, text=text, is_key=is_key)
                )

    def _part(self, path: Path, text: str) -> Part | None:
        """Return what a string is by where it stands; `None` for what templates decide by."""
        if any(key in _ARGUMENTS for key in path):
            return Part.ARGUMENT
        last = path[-1]
        is_plain = _IS_PLAIN(text) is not None
        if last in _FIXED and is_plain:
            return None
        if last in _NAMES and not _is_inside_content(path):
            return Part.NAME
        named = [key for key in path if isinstance(key, str)]
        is_form = is_plain and named[-1] not in _FREE and text in self._constants
        return None if is_form else Part.TEXT


def _strings(value: Any, path: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yield the strings of a value that are not empty, with their paths and whether they are keys.

    A key comes before what it stands for; its path ends with it.
    """
    if isinstance(value, str):
        if value:
            yield path, value, False
    elif isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(key, str) and key:
                yield (*path, key), key, True
            yield from _strings(entry, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(value):
            yield from _strings(entry, (*path, i))


def _key_part(path: Path, key: str) -> Part | None:
    """Return what a key of a message is; `None` for one of the record's form."""
    is_word = any(one in _ARGUMENTS for one in path[:-1]) or _is_inside_content(path)
    return Part.KEY if is_word or not _IS_PLAIN(key) else None


def _is_inside_content(path: Path) -> bool:
    """Return whether a place lies inside a content that is a mapping, or inside what a part holds.

    `content.a` does and `content[0].json.a` does, not so `content[0].text`.
    """
    is_mapping = isinstance(path[1], str) if len(path) > 1 else False
    return path[0] == "content" and (is_mapping or len(path) > 3)


def _schema_part(path: Path, text: str, *, is_key: bool) -> Part | None:
    """Return what a string or key of tools is; `None` for a word of the schema's language."""
    words = _schema_words(path)
    if is_key:
        is_chosen = words == _schema_words(path[:-1]) or any(one in _AUTHORS for one in words[:-1])
    elif words[-1:] == ["description"]:
        return Part.TOOLS
    else:
        is_chosen = any(word in _AUTHORS for word in words)
    return Part.SCHEMA if is_chosen or not _IS_PLAIN(text) else None


def _schema_words(path: Path) -> list[str]:
    """Return the keys of a path that are the schema's language, without the names in it."""
    words: list[str] = []
    is_name = False
    for step in path:
        if is_name:
            is_name = False
        elif isinstance(step, str):
            words.append(step)
            is_name = step in _PROPERTIES
    return words


class _Marker:
    """The walk that puts marks in the place of leaves."""

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        plan: Plan,
        keep: re.Pattern[str] | None,
        keep_lone: re.Pattern[str] | None,
        nonce: str,
    ) -> None:
        """Take what finds the parts that stay, and what finds them in leaves of nothing but tags.

        Without the latter such leaves are marked as a whole.
        """
        self._cut = plan.cut
        self._keep = keep
        self._keep_lone = keep_lone
        self._equal_names = plan.equal_names
        self._nonce = nonce
        self._leaves = leaves
        self._by_place = {
            (leaf.message, leaf.path, leaf.is_key): number
            for number, leaf in enumerate(leaves)
            if leaf.part in plan.parts
        }
        self._equal: dict[tuple[Any, ...], list[int]] = {}
        for number in range(len(leaves)):
            self._equal.setdefault(self._sameness(number), []).append(number)
        self._spelt: dict[tuple[Any, ...], str] = {}
        self.marks: list[Mark] = []
        schema = [leaf for leaf in leaves if leaf.part is Part.SCHEMA and leaf.part in plan.parts]
        for leaf in sorted(schema, key=lambda leaf: leaf.text.lower()):  # templates sort them
            self._marked(leaf.text, (leaf.message, *leaf.path), is_key=leaf.is_key)

    def rebuild(self, value: Any, place: tuple[Any, ...]) -> Any:
        """Return a value with marks; `place` is the message's index and the path inside it."""
        if isinstance(value, str):
            return self._marked(value, place, is_key=False)
        if isinstance(value, dict):
            keys = sorted((key for key in value if isinstance(key, str)), key=str.lower)
            named = {key: self._marked(key, (*place, key), is_key=True) for key in keys}
            return {
                named.get(key, key): self.rebuild(entry, (*place, key))
                for key, entry in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.rebuild(entry, (*place, i)) for i, entry in enumerate(value)]
        return value

    def _marked(self, text: str, place: tuple[Any, ...], *, is_key: bool) -> str:
        number = self._by_place.get((place[0], place[1:], is_key))
        if number is None:
            return text
        same = self._sameness(number)
        if same not in self._spelt:
            self._spelt[same] = self._spell(text, tuple(self._equal[same]))
        return self._spelt[same]

    def _spell(self, text: str, leaves: tuple[int, ...]) -> str:
        """Return a leaf with a mark for each part of it that is not left standing."""
        kept = _found(self._keep, text)
        is_lone = sum(end - start for start, end in kept) == len(text)
        if is_lone and self._cut is not Cut.WORDS:
            kept = _found(self._keep_lone, text)  # nothing but tags: they are its words
        pieces, at = [], 0
        for start, end in (*kept, (len(text), len(text))):
            if start > at:
                pieces.append(self._mark(leaves, at, start, text[at:start]))
            pieces.append(text[start:end])
            at = end
        return "".join(pieces)

    def _mark(self, leaves: tuple[int, ...], start: int, end: int, text: str) -> str:
        self.marks.append(Mark(leaves, start, end, text))
        return f"{self._nonce}{len(self.marks) - 1:07d}Z"

    def _sameness(self, number: int) -> tuple[Any, ...]:
        """Return what equal leaves share: names by the plan, reasoning by whatever name."""
        leaf = self._leaves[number]
        if leaf.part is Part.NAME and self._equal_names:
            return ("name", leaf.text)
        if leaf.part is Part.SCHEMA:  # what is required is looked up among the properties
            return ("schema", leaf.text)
        if leaf.path[0] in REASONING and len(leaf.path) == 1:
            return ("reasoning", leaf.message, leaf.text)
        return (number,)
