"""What ingestion tells: what was read, what became of it, what is odd about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from trajkit.ingestion.made import MadeIds
from trajkit.records import ActionSource, Trajectory

_ODDITIES = {
    "straddles": "tokens straddle the border of an action: they belong to whoever wrote their "
    "first byte, and extra_json lists them under straddles",
    "control_text": "control tokens spelt in messages became text: extra_json lists them under "
    "control_text",
    "parted": "the template does not write an action behind its own generation prompt: extra_json "
    "lists where under parted",
    "added": "the template puts an empty block of thoughts in front of an action without any: it "
    "is left out of the action, and extra_json lists it under added",
    "left_out": "the template leaves out part of a message: extra_json lists it under left_out",
}
"""What can be odd about ids made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """The format chosen for a file, and why."""

    file: str
    format: str
    reason: str


@dataclass(slots=True, kw_only=True)
class IngestReport:
    """What was read and what became of it; `n_read = n_written + n_quarantined` always holds."""

    n_read: int = 0
    n_written: int = 0
    n_quarantined: int = 0
    n_trajectories: int = 0
    n_steps: int = 0
    n_action_tokens: int = 0
    n_states_left_out: int = 0
    n_straddling_tokens: int = 0
    """Of ids made here: tokens whose text the policy and the environment wrote together."""
    n_control_text: int = 0
    """Control tokens spelt in messages, which became text and no control ids."""
    by_source: Counter[str] = field(default_factory=Counter)
    by_format: Counter[str] = field(default_factory=Counter)
    by_warning: Counter[str] = field(default_factory=Counter)
    detected: list[Detected] = field(default_factory=list)
    quarantine: str | None = None
    out: str | None = None

    @property
    def format(self) -> str:
        """Return the format's name, all names joined where files differ."""
        return "+".join(sorted(self.by_format))

    @property
    def warnings(self) -> list[str]:
        """Return what is odd but no error, with the number of records it was found in."""
        return [
            f"{sentence} ({n:,} {'record' if n == 1 else 'records'})"
            for sentence, n in self.by_warning.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as `--format json` prints it."""
        sources = {source.value: self.by_source[source.value] for source in ActionSource}
        return {
            "schema": "trajkit.ingest/1",
            "format": self.format,
            "n_read": self.n_read,
            "n_written": self.n_written,
            "n_quarantined": self.n_quarantined,
            "n_trajectories": self.n_trajectories,
            "n_steps": self.n_steps,
            "n_action_tokens": self.n_action_tokens,
            "n_states_left_out": self.n_states_left_out,
            "n_straddling_tokens": self.n_straddling_tokens,
            "n_control_text": self.n_control_text,
            "by_source": sources,
            "by_format": dict(self.by_format),
            "detected": [asdict(entry) for entry in self.detected],
            "warnings": self.warnings,
            "quarantine": self.quarantine,
            "out": self.out,
        }

    def count(self, trajectory: Trajectory) -> None:
        """Add one written trajectory."""
        self.n_written += 1
        self.n_trajectories += 1
        self.n_steps += len(trajectory.steps)
        self.n_action_tokens += trajectory.n_action_tokens
        self.by_source.update(step.action_source.value for step in trajectory.steps)

    def count_made(self, made: MadeIds) -> None:
        """Add what is odd about the ids made of one record."""
        for name, sentence in _ODDITIES.items():
            self.by_warning.update([sentence] * bool(made.count(name)))
        self.n_straddling_tokens += made.count("straddles")
        self.n_control_text += made.count("control_text")
