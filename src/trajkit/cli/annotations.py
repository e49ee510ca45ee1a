"""Findings for other programs to show: GitHub workflow commands, and SARIF 2.1.0.

Pure functions. No character of the data acts on a terminal or ends a command: GitHub's lines are
made visible and escaped, SARIF is printed as ASCII JSON by whoever prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from trajkit import __version__
from trajkit.safe.text import visible

Level: TypeAlias = Literal["error", "warning", "note"]
_GITHUB: dict[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One finding: its code, how bad it is, a sentence, and where.

    Attributes:
        line: counts from 1; `None` where the file has no lines.
        properties: facts by name, values as JSON has them.
    """

    code: str
    severity: Level
    message: str
    file: str
    line: int | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInfo:
    """What a code means: SARIF carries it beside the findings."""

    code: str
    severity: Level
    title: str
    why: str
    fix: str


def github_line(note: Annotation) -> str:
    """Return a finding as a GitHub workflow command."""
    spot = [f"file={_property(note.file)}"]
    if note.line is not None:
        spot.append(f"line={note.line}")
    spot.append(f"title={_property(f'trajkit {note.code}')}")
    message = visible(note.message).replace("%", "%25")
    return f"::{_GITHUB[note.severity]} {','.join(spot)}::{message}"


def sarif(notes: Iterable[Annotation], rules: Sequence[RuleInfo]) -> dict[str, Any]:
    """Return findings as one SARIF 2.1.0 log; every code must be among the rules."""
    index = {rule.code: number for number, rule in enumerate(rules)}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "trajkit",
                        "version": __version__,
                        "rules": [_rule(rule) for rule in rules],
                    }
                },
                "results": [_result(note, index[note.code]) for note in notes],
            }
        ],
    }


def _rule(rule: RuleInfo) -> dict[str, Any]:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(note: Annotation, rule_index: int) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(note.file)}}
    if note.line is not None:
        physical["region"] = {"startLine": note.line}
    return {
        "ruleId": note.code,
        "ruleIndex": rule_index,
        "level": note.severity,
        "message": {"text": visible(note.message)},
        "locations": [{"physicalLocation": physical}],
        "properties": dict(note.properties),
    }


def _uri(file: str) -> str:
    """Return a path as the URI reference that SARIF asks for."""
    path = PurePath(file)
    if path.is_absolute():
        return path.as_uri()
    return quote(path.as_posix(), safe="/")


def _property(text: str) -> str:
    """Return text as the value of a workflow command's property."""
    shown = visible(text).replace("%", "%25")
    return shown.replace(":", "%3A").replace(",", "%2C")
