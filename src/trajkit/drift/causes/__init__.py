"""Why ids differ: the first entry of a literal table whose test finds evidence, or `UNEXPLAINED`.

A cause is inference: every test names what it saw, and looks no further than some ids around the
difference. A wrong cause is worse than none. A test reads these `Difference.facts`, each of which
may be absent; without it the test is weaker or finds nothing:

    finish_reason   how the sampler ended: `stop`, `length`, ...
    stop            the stop strings: one, or a list
    stop_ids        ids that end a turn, beside those known by their spelling
    message         the policy's message as logged; `messages` the whole conversation
    template        the source of the chat template that rendered the other side
    templates       hashes of the templates of both sides, `(recorded, other)`
    tokenizers      fingerprints of the tokenizers of both sides
    versions        library versions of both sides
    max_length      the limit that the other list was cut to
"""

from __future__ import annotations

from trajkit.drift.causes.cause import Cause, Severity
from trajkit.drift.causes.text_causes import TEXT_CAUSES
from trajkit.drift.causes.turn_causes import TURN_CAUSES
from trajkit.drift.causes.window import Evidence
from trajkit.drift.difference import Difference
from trajkit.drift.findings import UNEXPLAINED

DRIFT_CAUSES: tuple[Cause, ...] = (*TEXT_CAUSES, *TURN_CAUSES)
"""All causes; the first whose test returns evidence is told."""


def cause_of(difference: Difference) -> tuple[str, Evidence]:
    """Return the name of a difference's cause and its evidence; `UNEXPLAINED` when none fits."""
    if difference.recorded.region.tolist() == difference.other.region.tolist():
        return UNEXPLAINED, {}
    for cause in DRIFT_CAUSES:
        if difference.kind in cause.kinds and difference.route in cause.routes:
            evidence = cause.test(difference)
            if evidence is not None:
                return cause.name, evidence
    return UNEXPLAINED, {}


__all__ = ["DRIFT_CAUSES", "UNEXPLAINED", "Cause", "Severity", "cause_of"]
