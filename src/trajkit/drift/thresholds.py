"""How much drift is too much: `action-tokens>0.5%`, `kind:structure`, as `--fail-on` has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trajkit.drift.causes import DRIFT_CAUSES, UNEXPLAINED
from trajkit.drift.findings import DriftFinding, DriftKind, DriftReport
from trajkit.errors import UsageProblem

_GRAMMAR = re.compile(
    r"(?P<what>trajectories|steps|action-tokens|regions|kind:[^>=\s]+|cause:[^>=\s]+)"
    r"(?:\s*(?P<sign>>=?)\s*(?P<number>\d{1,15}(?:\.\d{1,15})?)\s*(?P<percent>%?))?"
)
_HINT = "write action-tokens>0.5%, steps>10%, trajectories>0, regions>100, kind:text or cause:NAME"
_NAMES: Mapping[str, tuple[str, ...]] = {
    "kind": tuple(DriftKind),
    "cause": (*(cause.name for cause in DRIFT_CAUSES), UNEXPLAINED),
}
_COUNTS: Mapping[str, Callable[[DriftReport], tuple[int, int | None]]] = {
    "trajectories": lambda report: (report.n_drifted_trajectories, report.n_trajectories),
    "steps": lambda report: (
        report.n_drifted_steps,
        report.n_checkable_steps or report.n_steps,
    ),
    "action-tokens": lambda report: (
        report.n_drifted_action_tokens,
        report.n_checkable_action_tokens or report.n_action_tokens,
    ),
    "regions": lambda report: (len(report.findings), None),
}
"""What can be counted: how many drifted, and of how many; regions are a share of nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A limit for one count of a report.

    Attributes:
        text: as it was written.
        what: the count: one of `_COUNTS`, or `kind:NAME` or `cause:NAME`.
        limit: the number, or the share of the whole.
        is_share: whether the limit is a share.
        is_reached: whether the limit itself is too much, as with `>=`.
    """

    text: str
    what: str
    limit: Fraction
    is_share: bool
    is_reached: bool

    def measured(self, report: DriftReport) -> Measured:
        """Return what a report holds against the limit."""
        n, whole = _count(self.what, report, is_share=self.is_share)
        value = Fraction(n, (whole or 1) if self.is_share else 1)
        holds = value >= self.limit if self.is_reached else value > self.limit
        return Measured(threshold=self, n=n, whole=whole, holds=holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A threshold against a report: `n` of `whole`, and whether that is too much."""

    threshold: Threshold
    n: int
    whole: int | None
    holds: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON output has it."""
        return {
            "threshold": self.threshold.text,
            "n": self.n,
            "of": self.whole,
            "holds": self.holds,
        }


def parse_threshold(text: str) -> Threshold:
    """Return the threshold that a text describes; without a number, one is too much already.

    A share of a kind or a cause is that of the checkable steps in which it was found.

    Raises:
        UsageProblem: U103 when the text describes none.
    """
    match = _GRAMMAR.fullmatch(text.strip())
    if match is None:
        raise UsageProblem("U103", f"--fail-on expects a threshold, got {text}", hint=_HINT)
    what, is_share = match["what"], match["percent"] == "%"
    group, _, name = what.partition(":")
    if name and name not in _NAMES[group]:
        told = ", ".join(_NAMES[group])
        raise UsageProblem("U103", f"--fail-on knows no {group} {name}", hint=f"one of {told}")
    if is_share and what == "regions":
        raise UsageProblem("U103", f"--fail-on: regions are a share of nothing: {text}", hint=_HINT)
    limit = Fraction(match["number"] or 0)
    return Threshold(
        text=text,
        what=what,
        limit=limit / 100 if is_share else limit,
        is_share=is_share,
        is_reached=match["sign"] == ">=",
    )


def _count(what: str, report: DriftReport, *, is_share: bool) -> tuple[int, int | None]:
    if what in _COUNTS:
        return _COUNTS[what](report)
    group, _, name = what.partition(":")
    found = [one for one in report.findings if _name(one, group) == name]
    if not is_share:
        return len(found), None
    steps = {(one.trajectory_id, one.step_index) for one in found}
    return len(steps), report.n_checkable_steps or report.n_steps


def _name(found: DriftFinding, group: str) -> str:
    return found.kind.value if group == "kind" else found.cause
