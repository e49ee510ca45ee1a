"""Calls that a logger parsed and wrote back are found, each at its step, and no other is."""

from __future__ import annotations

import pytest
from bench.calls import FAMILIES, check


@pytest.mark.model
@pytest.mark.parametrize("family", FAMILIES)
def test_every_call_that_is_written_otherwise_is_found_with_its_cause(family):
    outcome = check(family, 12)
    assert outcome.n_changed.total() > 15
    assert outcome.n_found == outcome.n_changed
    assert not outcome.false_alarms
    assert not outcome.wrong
