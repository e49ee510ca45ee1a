"""Findings grouped by cause and kind, the worst first: what a reader is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trajkit.drift.causes import DRIFT_CAUSES, UNEXPLAINED, Severity
from trajkit.drift.findings import DriftFinding, DriftKind

_CAUSES = {cause.name: cause for cause in DRIFT_CAUSES}
_UNEXPLAINED: Mapping[DriftKind, Severity] = {
    DriftKind.IDS_ONLY: Severity.ACTION_IDS,
    DriftKind.TEXT: Severity.ACTION_BYTES,
    DriftKind.STRUCTURE: Severity.STRUCTURE,
    DriftKind.PREFIX: Severity.STRUCTURE,
    DriftKind.RECORD: Severity.STRUCTURE,
}
"""What a difference damages at worst whose cause is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Findings of one cause and kind; a broken record's, of one check.

    Attributes:
        cause: the cause's name, or `UNEXPLAINED`.
        kind: what differs.
        check: of a broken record, which check it failed.
        severity: what it damages.
        n_regions: findings.
        n_action_tokens: recorded action ids in their regions.
        worst: the finding with most of them, the first of several.
    """

    cause: str
    kind: DriftKind
    check: str | None
    severity: Severity
    n_regions: int
    n_action_tokens: int
    worst: DriftFinding

    @property
    def code(self) -> str:
        """Return the name of the page that explains it: the cause's, else the kind's."""
        return self.kind.value if self.cause == UNEXPLAINED else self.cause

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON output has it, without its findings."""
        return {
            "cause": self.cause,
            "kind": self.kind.value,
            "check": self.check,
            "severity": severity_name(self.severity),
            "n_regions": self.n_regions,
            "n_action_tokens": self.n_action_tokens,
        }


def ranked(findings: Iterable[DriftFinding]) -> list[Group]:
    """Return findings by cause and kind: the gravest first, then by action tokens and regions."""
    by_group: dict[tuple[str, DriftKind, str | None], list[DriftFinding]] = {}
    for found in findings:
        by_group.setdefault((found.cause, found.kind, check_of(found)), []).append(found)
    groups = [
        Group(
            cause=cause,
            kind=kind,
            check=check,
            severity=severity_of(cause, kind),
            n_regions=len(members),
            n_action_tokens=sum(found.n_action_tokens for found in members),
            worst=max(members, key=lambda found: found.n_action_tokens),
        )
        for (cause, kind, check), members in by_group.items()
    ]
    return sorted(groups, key=lambda g: (-g.severity, -g.n_action_tokens, -g.n_regions))


def check_of(found: DriftFinding) -> str | None:
    """Return which check a record failed, `None` for drift."""
    return str(found.evidence["check"]) if found.kind is DriftKind.RECORD else None


def severity_of(cause: str, kind: DriftKind) -> Severity:
    """Return what a cause damages; where none is known, what the kind can damage at worst."""
    return _CAUSES[cause].severity if cause in _CAUSES else _UNEXPLAINED[kind]


def severity_name(severity: Severity) -> str:
    """Return a severity in words."""
    return severity.name.lower().replace("_", " ")
