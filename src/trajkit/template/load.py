"""A file or a tokenizer folder into a chat template, with the special tokens it may name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import jinja2.nodes

from trajkit.errors import FileError, InputError, Place, RefusedError
from trajkit.template.sandbox import compile_template

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
SPECIAL_NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
"""Special tokens that a template can name."""
_MAX_FILE = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A chat template, ready to run.

    Attributes:
        source: its text.
        special_tokens: what `bos_token` and the like stand for.
        origin: the file it was read from.
        tools_source: the template for conversations with tools, where there is one of its own.
    """

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    origin: str | None = None
    tools_source: str | None = None

    @cached_property
    def sha256(self) -> str:
        """Return a digest of the source (both of them, where there are two)."""
        text = self.source if self.tools_source is None else self.source + "\0" + self.tools_source
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def tells_time(self) -> bool:
        """Return whether the text can depend on the clock."""
        return "strftime_now" in self.source or "strftime_now" in (self.tools_source or "")

    def program(self, *, with_tools: bool) -> jinja2.Template:
        """Return the compiled template; with tools it may be another one."""
        if with_tools and self.tools_source is not None:
            return self._tools_program
        return self._program

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Return the strings the template's expressions name, special tokens included."""
        found = set(self.special_tokens.values())
        for source in (self.source, self.tools_source or ""):
            tree = self._program.environment.parse(source)
            values = (node.value for node in tree.find_all(jinja2.nodes.Const))
            found.update(value for value in values if isinstance(value, str))
        return tuple(sorted(found - {""}))

    @property
    def place(self) -> Place:
        """Return where the template stands."""
        return Place(file=self.origin)

    @cached_property
    def _program(self) -> jinja2.Template:
        return compile_template(self.source, self.place)

    @cached_property
    def _tools_program(self) -> jinja2.Template:
        return compile_template(self.tools_source or "", self.place)


def load_template(path: Path | str, tokenizer_folder: Path | str | None = None) -> ChatTemplate:
    """Return the chat template of a tokenizer folder, or of a template file.

    A folder's `chat_template.jinja` goes before the one in its `tokenizer_config.json`.

    Args:
        path: the folder or the file.
        tokenizer_folder: where a file's special tokens are looked up; a folder has its own.

    Raises:
        FileError: F101 when it is not there or cannot be read.
        InputError: T104 when there is no chat template, T105 when it cannot be compiled.
        RefusedError: R106 when a file of the folder is a link that leads out of it.
    """
    path = Path(path)
    if path.is_dir():
        template = _from_folder(path)
    else:
        folder = None if tokenizer_folder is None else Path(tokenizer_folder)
        special = {} if folder is None else _special_tokens(folder, _config(folder))
        template = ChatTemplate(source=_read(path), special_tokens=special, origin=str(path))
    template.program(with_tools=False)
    template.program(with_tools=True)
    return template


def _from_folder(folder: Path) -> ChatTemplate:
    config = _config(folder)
    special = _special_tokens(folder, config)
    file = folder / TEMPLATE_FILE
    if file.is_symlink() or file.exists():
        source = _read(_inside(folder, file))
        return ChatTemplate(source=source, special_tokens=special, origin=str(file))
    named = config.get("chat_template")
    if isinstance(named, str):
        named = [{"name": "default", "template": named}]
    sources = {
        entry["name"]: entry["template"]
        for entry in (named if isinstance(named, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("template"), str) and "name" in entry
    }
    default = sources.get("default")
    if default is None:
        raise InputError(
            "T104",
            "there is no chat template here"
            + (f" by the name of default, only {', '.join(map(str, sources))}" if sources else ""),
            place=Place(file=str(folder)),
            hint=f"a template lies in {TEMPLATE_FILE} or in {CONFIG_FILE}; give its file",
        )
    return ChatTemplate(
        source=default,
        special_tokens=special,
        origin=str(folder / CONFIG_FILE),
        tools_source=sources.get("tool_use"),
    )


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the special tokens of a folder; the configuration goes before the older map."""
    found = {}
    for source in (_json(folder, SPECIAL_FILE), config):
        for name in SPECIAL_NAMES:
            value = source.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                found[name] = value
    return MappingProxyType(found)


def _config(folder: Path) -> Mapping[str, Any]:
    return _json(folder, CONFIG_FILE)


def _json(folder: Path, name: str) -> Mapping[str, Any]:
    """Return the object in a JSON file of a folder, an empty one when there is no such file."""
    file = folder / name
    if not (file.is_symlink() or file.exists()):
        return {}
    place = Place(file=str(file))
    try:
        value = json.loads(_read(_inside(folder, file)))
    except (ValueError, RecursionError):
        raise InputError("I102", "expected JSON", place=place) from None
    if not isinstance(value, dict):
        raise InputError("I201", "expected an object", place=place)
    return value


def _inside(folder: Path, file: Path) -> Path:
    """Return the file a folder's entry stands for, when it lies inside the folder.

    A download cache keeps its files beside the folders that name them; those count as inside.
    """
    root = folder.resolve()
    if root.parent.name == "snapshots":
        root = root.parent.parent
    target = file.resolve()
    if not target.is_relative_to(root):
        raise RefusedError(
            "R106",
            f"{file.name} is a link that leads out of its folder",
            place=Place(file=str(file)),
            hint="put the file itself there",
        )
    return target


def _read(file: Path) -> str:
    """Return the text of a regular file."""
    place = Place(file=str(file))
    try:
        if not file.is_file():
            raise FileError("F101", "there is no such file", place=place)
        with file.open("rb") as stream:
            raw = stream.read(_MAX_FILE + 1)
    except OSError as problem:
        raise FileError("F101", f"cannot be read: {problem.strerror}", place=place) from problem
    if len(raw) > _MAX_FILE:
        raise RefusedError("R101", f"the file is over {_MAX_FILE:,} bytes", place=place)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        where = Place(file=str(file), byte_offset=problem.start)
        raise InputError("I101", "expected UTF-8", place=where) from None
