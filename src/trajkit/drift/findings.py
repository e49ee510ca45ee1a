"""What drift-check finds: one value per differing region, and the report that counts them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from trajkit.records import ActionSource

if TYPE_CHECKING:
    from trajkit.drift.price import DriftPrice, LogprobPrice
    from trajkit.drift.profile import Fact


class Route(StrEnum):
    """The way recorded ids are checked."""

    IDS = "ids"
    """decode the action, encode it again: needs the tokenizer"""
    CHAIN = "chain"
    """does the next prompt start with this prompt + action: needs nothing but the record"""
    JOIN = "join"
    """decode the whole sequence, encode it again as one text: needs the tokenizer"""
    RENDER = "render"
    """messages through the chat template: needs recorded messages, tokenizer and template"""
    PAIR = "pair"
    """another recording of the same trajectories: needs that and the tokenizer"""
    SELF = "self"
    """does the record agree with itself: needs the tokenizer"""


class DriftKind(StrEnum):
    """What differs; arithmetic, never a guess."""

    IDS_ONLY = "ids-only"
    """the same bytes, spelt with other ids"""
    TEXT = "text"
    """other bytes"""
    STRUCTURE = "structure"
    """a control token appears or disappears"""
    PREFIX = "prefix"
    """the next prompt does not start with this prompt + action"""
    RECORD = "record"
    """the record contradicts itself: no drift, and counted apart from it"""


class Verdict(StrEnum):
    """What a check came to; only `CLEAN` ends with exit 0."""

    CLEAN = "clean"
    DRIFT = "drift"
    WRONG_RECORD = "wrong record"
    PARTLY_CHECKED = "partly checked"
    NOT_CHECKABLE = "not checkable"


NO_MESSAGES = "no messages recorded"
"""Why `render` has nothing to render."""
UNEXPLAINED = "UNEXPLAINED"
"""The cause of a finding nobody has explained; causes are inference, kinds are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFinding:
    """One region in which the recorded and the other ids differ.

    Attributes:
        token_start: first differing id, counted in the step's prompt + action.
        action_start: the same, counted in the action; `None` when it begins in the prompt.
        byte_start: bytes of the action before it; `None` when it begins in the prompt or no
            tokenizer was given.
        recorded_ids: what the record holds there, the first 64 ids.
        retokenized_ids: what the route gives there, the first 64 ids.
        recorded_text: what `recorded_ids` decode to; `None` without a tokenizer.
        retokenized_text: what `retokenized_ids` decode to; for a broken record, what it says.
        recorded_edges: where each of `recorded_ids` ends, in bytes from the first one's start;
            empty without a tokenizer.
        retokenized_edges: the same of `retokenized_ids`.
        evidence: facts of the route and the cause; `cut` where ids are left out, `also` the other
            routes that found the same difference.
    """

    trajectory_id: str
    step_index: int
    route: Route
    kind: DriftKind
    cause: str = UNEXPLAINED
    token_start: int
    action_start: int | None
    byte_start: int | None
    recorded_ids: tuple[int, ...]
    retokenized_ids: tuple[int, ...]
    recorded_text: str | None
    retokenized_text: str | None
    n_action_tokens: int
    """Recorded action ids inside the region."""
    recorded_edges: tuple[int, ...] = ()
    retokenized_edges: tuple[int, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON output has it."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class RouteCount:
    """How far one route got."""

    n_checked_steps: int = 0
    n_drifted_steps: int = 0
    n_findings: int = 0
    n_branched_steps: int = 0
    """Prompts that hold on an older step: a branch or an edited history, ids cannot tell which."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Steps that could not be checked, by the reason."""


@dataclass(slots=True, kw_only=True)
class DriftReport:
    """All findings, and what they are a share of."""

    tokenizer: str | None = None
    n_trajectories: int = 0
    n_drifted_trajectories: int = 0
    n_steps: int = 0
    n_checkable_steps: int = 0
    n_drifted_steps: int = 0
    n_action_tokens: int = 0
    n_checkable_action_tokens: int = 0
    n_drifted_action_tokens: int = 0
    not_walked: dict[str, str] = field(default_factory=dict)
    """Routes nobody ruled out that checked no step, with the reason."""
    template: dict[str, Any] | None = None
    """What messages were rendered with: file, sha256, kwargs, now, nulls."""
    against: dict[str, Any] | None = None
    """The other recording: data, and `n_other_trajectories`, those that only it has."""
    price: DriftPrice | None = None
    """What the drift costs; `None` where only some steps were asked for."""
    logprob_price: LogprobPrice | None = None
    """What route ids' other spellings are worth to a checkpoint; `None` where none was asked."""
    risks: tuple[Fact, ...] | None = None
    """What would drift in data that cannot be checked; `None` where nobody looked."""
    provenance: dict[str, str | None] = field(default_factory=dict)
    """Fingerprints and versions of what was checked with, and of what the data were made with."""
    by_source: Counter[str] = field(default_factory=Counter)
    by_route: dict[str, RouteCount] = field(default_factory=dict)
    by_kind: Counter[str] = field(default_factory=Counter)
    by_cause: Counter[str] = field(default_factory=Counter)
    findings: list[DriftFinding] = field(default_factory=list)

    @property
    def sampled_share(self) -> float | None:
        """Return the share of steps whose ids are the sampler's own, `None` without steps."""
        sampled = self.by_source[ActionSource.SAMPLED.value]
        return sampled / self.n_steps if self.n_steps else None

    @property
    def verdict(self) -> Verdict:
        """Return the answer in a word; `CLEAN` never stands for more than was walked."""
        if any(finding.kind is not DriftKind.RECORD for finding in self.findings):
            return Verdict.DRIFT
        if self.findings:
            return Verdict.WRONG_RECORD
        was_checked = any(count.n_checked_steps for count in self.by_route.values())
        if not self.n_checkable_steps or not was_checked:
            return Verdict.NOT_CHECKABLE
        return Verdict.PARTLY_CHECKED if self.unchecked else Verdict.CLEAN

    @property
    def unchecked(self) -> dict[str, str]:
        """Return the routes that checked less than the data allow, with the reason.

        Data without messages do not allow `render`; nobody can change that from outside.
        """
        missing = {name: why for name, why in self.not_walked.items() if why != NO_MESSAGES}
        for name, count in self.by_route.items():
            reasons = [why for why in count.left_out if why != NO_MESSAGES]
            if reasons:
                missing.setdefault(name, reasons[0])
        return missing

    @property
    def is_clean(self) -> bool:
        """Return whether all routes that were to be walked were, and found nothing."""
        return self.verdict is Verdict.CLEAN

    def to_dict(self) -> dict[str, Any]:
        """Return the report as `--format json` prints it."""
        told = {f.name: getattr(self, f.name) for f in fields(self)}
        counts = told | {
            "by_route": {name: asdict(count) for name, count in self.by_route.items()},
            "price": None if self.price is None else self.price.to_dict(),
            "logprob_price": None if self.logprob_price is None else self.logprob_price.told(),
            "risks": None if self.risks is None else [fact.to_dict() for fact in self.risks],
            "by_source": {source.value: self.by_source[source.value] for source in ActionSource},
            "by_kind": {kind.value: self.by_kind[kind.value] for kind in DriftKind},
            "by_cause": dict(self.by_cause),
        }
        findings = [finding.to_dict() for finding in counts.pop("findings")]
        return {
            "schema": "trajkit.drift-check/1",
            "verdict": self.verdict.value,
            "sampled_share": self.sampled_share,
            "checkable": self.n_checkable_steps > 0,
            **counts,
            "findings": findings,
        }
