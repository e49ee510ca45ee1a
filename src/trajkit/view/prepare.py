"""Views of trajectories with all that is known of them, and without what is not to be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trajkit.records import Trajectory
from trajkit.tokenizer import Tokenizer
from trajkit.view.drift import with_drift
from trajkit.view.model import View, view_of
from trajkit.view.redact import NOTHING, Redaction, redacted

if TYPE_CHECKING:
    from trajkit.store.findings import Findings
    from trajkit.store.scores import Scores


def prepared(
    trajectories: Iterable[Trajectory],
    tokenizer: Tokenizer | None,
    *,
    scores: Scores | None = None,
    findings: Findings | None = None,
    redaction: Redaction = NOTHING,
) -> Iterator[View]:
    """Yield the view of each trajectory: every face draws one of these and nothing else.

    Raises:
        UsageProblem: U103 when findings are of other data, or ids cannot be searched.
        InputError: S103 when scores or findings are damaged, I304 when an id is unknown.
    """
    for trajectory in trajectories:
        view = view_of(trajectory, {} if scores is None else scores.of(trajectory))
        if findings is not None:
            view = with_drift(view, findings.of(trajectory))
        yield redacted(view, tokenizer, redaction)
