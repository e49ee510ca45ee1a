"""What a cause is: a test that returns evidence, and what its page says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from trajkit.drift.causes.window import Evidence
from trajkit.drift.difference import Difference
from trajkit.drift.findings import DriftKind, Route


class Severity(IntEnum):
    """How much a cause damages, by what it changes."""

    CONTEXT = 1
    """only what the policy read"""
    ACTION_IDS = 2
    """ids of an action, its bytes the same"""
    ACTION_BYTES = 3
    """bytes of an action"""
    STRUCTURE = 4
    """mask, stop, control tokens or vocabulary"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A reason why ids differ.

    Attributes:
        name: as findings give it.
        severity: what it damages.
        kinds: the drift kinds it can be the cause of.
        routes: the routes that can meet it.
        test: returns the evidence that it is the cause, `None` when there is none.
        what: the title of its page.
        why: why it hurts.
        example: how it looks.
        fix: what to change, and where.
    """

    name: str
    severity: Severity
    kinds: frozenset[DriftKind]
    routes: frozenset[Route]
    test: Callable[[Difference], Evidence | None]
    what: str
    why: str
    example: str
    fix: str


_PREFIX = frozenset({DriftKind.PREFIX})
"""Route `chain` says no more than that a prefix is lost: any cause may be behind it."""
SAME_BYTES = frozenset({DriftKind.IDS_ONLY}) | _PREFIX
BYTES = frozenset({DriftKind.TEXT}) | _PREFIX
SPELT = SAME_BYTES | BYTES
STRUCTURE = frozenset({DriftKind.STRUCTURE}) | _PREFIX
LOGGED = BYTES | frozenset({DriftKind.RECORD})
"""What a log's text may show, too."""
EVERY = frozenset(DriftKind)

STORED = frozenset({Route.RENDER, Route.PAIR, Route.CHAIN})
"""Routes whose other side somebody wrote, rendered or kept."""
WRITTEN = STORED | frozenset({Route.SELF})
"""The same, and the text that was logged beside the ids."""
PAIRED = frozenset({Route.RENDER, Route.PAIR})
EVERYWHERE = frozenset(Route)
