"""What mask-check finds: one value a place, and the report that counts them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from trajkit.records import ActionSource


class Severity(StrEnum):
    """How bad a finding is; a note alone ends with exit 0."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


SEVERITIES = tuple(Severity)
"""Worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a row breaks a rule: a half-open span of its tokens, and a sentence with the figures.

    Attributes:
        n_tokens: how many tokens of the span; all of them when `None`.
        anchor: a token of the step that it is about; `start` when `None`.
        severity: where the evidence is weaker than the rule's own; `None` takes the rule's.
    """

    start: int | None
    end: int | None
    detail: str
    n_tokens: int | None = None
    anchor: int | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Neighbouring tokens that are all trained or all not; positions as in the finding."""

    token_start: int
    trained: bool
    ids: tuple[int, ...]
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskFinding:
    """One place at which a mask breaks a rule.

    Attributes:
        rule: a code of `MASK_RULES`.
        step_index: `None` in a pre-tokenised row, and where the finding is about the whole.
        token_start, token_end: a half-open span. In step records it counts from the first id of
            the step's `prompt_delta`, over delta + action + tail, and goes on into the next step's
            delta where a rule is about what follows the action; in a row it counts all ids.
            `None` where no place can be named.
        n_tokens: how many tokens of the span the rule is broken at.
        detail: one sentence with the figures.
        ids, text: the first ids of the span, and what they spell; `None` without a tokenizer.
        window: the same tokens and some around them, cut where the mask changes.
        file, record: where it was read; record counts from 0.
    """

    rule: str
    severity: Severity
    trajectory_id: str
    step_index: int | None
    token_start: int | None
    token_end: int | None
    n_tokens: int
    detail: str
    ids: tuple[int, ...] = ()
    text: str | None = None
    window: tuple[Stretch, ...] = ()
    file: str
    record: int
    line: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON output has it."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class MaskReport:
    """All findings, and what was judged."""

    tokenizer: str | None = None
    source: str
    """`steps` or `rows`."""
    policy: str | None = None
    """The loss mask that was chosen; `None` where the source's own masks are judged."""
    n_trajectories: int = 0
    n_steps: int = 0
    n_sequences: int = 0
    n_tokens: int = 0
    n_trained_tokens: int = 0
    n_claimed: int = 0
    """Sequences whose source says what is trained; the others are judged by their actions."""
    n_without_ids: int = 0
    """Steps that hold no ids, and so no mask."""
    by_source: Counter[str] = field(default_factory=Counter)
    by_align: Counter[str] = field(default_factory=Counter)
    """How the masks of rows were taken to stand."""
    not_run: list[str] = field(default_factory=list)
    """Rules that were asked for and could not be asked of every sequence: they need a tokenizer,
    or turns."""
    n_without_turns: int = 0
    """Sequences with a mask of their own in which no turn of the policy is known by control ids:
    nothing tells whose text is trained."""
    by_rule: dict[str, int] = field(default_factory=dict)
    findings: list[MaskFinding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Return whether something was judged by every rule, and no finding is more than a note."""
        is_broken = any(finding.severity is not Severity.NOTE for finding in self.findings)
        return bool(self.n_sequences) and not is_broken and not self.not_run

    @property
    def sampled_share(self) -> float | None:
        """Return the share of steps whose ids are the sampler's own, `None` without steps."""
        sampled = self.by_source[ActionSource.SAMPLED.value]
        return sampled / self.n_steps if self.n_steps else None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as `trajkit.mask-check/1`."""
        return {
            "schema": "trajkit.mask-check/1",
            "tokenizer": self.tokenizer,
            "source": self.source,
            "train": self.policy,
            "n_trajectories": self.n_trajectories,
            "n_steps": self.n_steps,
            "n_sequences": self.n_sequences,
            "n_tokens": self.n_tokens,
            "n_trained_tokens": self.n_trained_tokens,
            "n_claimed": self.n_claimed,
            "n_without_ids": self.n_without_ids,
            "n_without_turns": self.n_without_turns,
            "sampled_share": self.sampled_share,
            "by_source": dict(self.by_source),
            "by_align": dict(self.by_align),
            "not_run": self.not_run,
            "by_rule": self.by_rule,
            "findings": [finding.to_dict() for finding in self.findings],
        }
