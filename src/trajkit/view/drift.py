"""Where a drift check found other ids, at the tokens of a view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trajkit.errors import UsageProblem
from trajkit.sequence import SequenceStep, TokenSequence
from trajkit.view.glyphs import BLOCK, show_text

if TYPE_CHECKING:
    from trajkit.store.findings import StepFinding
    from trajkit.view.model import View


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftMark:
    """One finding at its tokens.

    Attributes:
        start, end: tokens of the sequence that differ; at least one, the next where ids are added.
        is_added: whether the record has no token there and the other side has some.
        is_behind: whether they are added behind the last token, which is marked in their place.
        kind, cause: as the finding has them.
        other_text: what the other ids spell; `None` where that is not known.
        other_ids: ids in their place; `None` where they are not to be shown.
    """

    start: int
    end: int
    is_added: bool
    kind: str
    cause: str
    other_text: str | None
    other_ids: tuple[int, ...] | None
    is_behind: bool = False

    @property
    def told(self) -> tuple[str, ...]:
        """Return kind, cause and the other text, each safe to print."""
        text = () if self.other_text is None else (f"other text {show_text(self.other_text)}",)
        behind = ("behind the last token",) if self.is_behind else ()
        return show_text(self.kind), show_text(self.cause), *text, *behind


def with_drift(view: View, findings: Iterable[StepFinding]) -> View:
    """Return a view with marks at the tokens of findings, by the step that brought the tokens.

    Raises:
        UsageProblem: U103 when the record has other ids there: they are findings of other data.
    """
    places = {
        place.step.step_index: (sequence, place)
        for sequence in view.sequences
        for place in sequence.steps
    }
    marks: dict[int, list[DriftMark]] = {}
    for finding in findings:
        if finding.step_index not in places:
            raise _other_data(view, finding)
        sequence, place = places[finding.step_index]
        shown = sequence.token_ids[finding.token_start :][: len(finding.recorded_ids)]
        inside = 0 <= finding.token_start <= place.action_end
        if not inside or not np.array_equal(shown, finding.recorded_ids):
            raise _other_data(view, finding)
        while finding.token_start < sequence.steps[0].start:  # a kept token is its owner's
            parent = sequence.steps[0].step.prompt_parent
            if parent not in places:
                break
            sequence, place = places[parent]
        owner = _owner(sequence, finding.token_start)
        mark = _mark(finding, len(sequence.token_ids))
        marks.setdefault(owner.step.step_index, []).append(mark)
    return replace(view, marks={index: tuple(found) for index, found in marks.items()})


def _owner(sequence: TokenSequence, token: int) -> SequenceStep:
    found = [place for place in sequence.steps if place.start <= token]
    return found[-1] if found else sequence.steps[0]


def _mark(finding: StepFinding, n_tokens: int) -> DriftMark:
    start = min(finding.token_start, n_tokens - 1)
    return DriftMark(
        start=start,
        end=max(start + 1, min(finding.token_start + finding.n_tokens, n_tokens)),
        is_added=not finding.n_tokens,
        is_behind=not finding.n_tokens and finding.token_start >= n_tokens,
        kind=finding.kind,
        cause=finding.cause,
        other_text=finding.retokenized_text,
        other_ids=finding.retokenized_ids,
    )


def without_other(mark: DriftMark) -> DriftMark:
    """Return a mark that says where, of which kind and why, and nothing of the other side."""
    text = None if mark.other_text is None else BLOCK
    return replace(mark, other_text=text, other_ids=None)


def _other_data(view: View, finding: StepFinding) -> UsageProblem:
    return UsageProblem(
        "U103",
        f"the findings are of other data: step {finding.step_index} of "
        f"{view.trajectory.trajectory_id} has other ids at token {finding.token_start}",
        hint="trajkit drift-check DATA -t TOKENIZER -o FINDINGS.parquet finds those of DATA",
    )
