"""Presets against a second implementation: padded rows, torch, and its own gradients.

The twins of `oracle/` are written from papers and from the code of trainers at the commits that the
presets name, and share no code with what they check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.unit.scoring.oracle.batch import IS_ACTION, IS_OBSERVED, Batch, Kind, flat, make_batch
from tests.unit.scoring.oracle.papers import JOINT, PAPERS
from tests.unit.scoring.oracle.pieces import Twin
from tests.unit.scoring.oracle.systems import SYSTEMS
from tests.unit.scoring.oracle.verl_kin import VERL_KIN
from trajkit.rl.losses import context_gradient, evaluate, gradient
from trajkit.rl.presets import PRESETS
from trajkit.rl.spec import Loss

TWINS: dict[str, Twin] = {**PAPERS, **JOINT, **VERL_KIN, **SYSTEMS}
"""The twin of each preset."""
BATCHES = [(0, Kind.MILD), (1, Kind.MILD), (2, Kind.WILD), (3, Kind.WILD)]
BATCHES += [(seed, Kind.EDGE) for seed in range(4, 9)]


def test_every_preset_has_its_twin_and_no_twin_is_of_nothing() -> None:
    assert set(TWINS) == set(PRESETS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Wanted:
    """What a twin says of a batch, and what rounding leaves of a sum of its terms."""

    batch: Batch
    value: float
    slopes: Any
    rounding: float

    def is_met_by(self, value: float | None) -> bool:
        return value is not None and math.isclose(
            value, self.value, rel_tol=1e-12, abs_tol=self.rounding
        )


def wanted_of(name: str, seed: int, kind: Kind) -> Wanted:
    batch = make_batch(seed, kind)
    twin = TWINS[name]
    value = twin(batch)
    value.backward()
    assert batch.logp.grad is not None
    terms = (twin.terms(batch, twin.advantages(batch)) * batch.mask).abs().sum().item()
    slopes = batch.logp.grad.numpy()
    return Wanted(batch=batch, value=value.item(), slopes=slopes, rounding=1e-13 + 4e-16 * terms)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("seed", "kind"), BATCHES)
def test_value_and_gradient_are_those_of_padded_rows_in_torch(
    name: str, seed: int, kind: Kind
) -> None:
    wanted, loss = wanted_of(name, seed, kind), PRESETS[name]
    inputs = flat(wanted.batch, loss.advantage)
    found = evaluate(loss, inputs)
    assert wanted.is_met_by(found.value), (found.value, wanted.value)
    made = (gradient(loss, inputs), context_gradient(loss, inputs))
    for slopes, where in zip(made, (IS_ACTION, IS_OBSERVED), strict=True):
        np.testing.assert_allclose(slopes, wanted.slopes[where], 1e-11, wanted.rounding)
    n_observed = 0 if loss.observed is None else found.parts[-1].n_tokens
    assert found.n_tokens - n_observed == int(wanted.batch.mask.sum().item())


def meaning(loss: Loss) -> Loss:
    return replace(loss, formula="", source="")


def test_a_twin_is_of_its_own_preset_and_of_no_other() -> None:
    """A twin that another preset's value met would say nothing of its own."""
    batches = [make_batch(seed, kind) for seed, kind in BATCHES]
    values = {
        name: [evaluate(loss, flat(batch, loss.advantage)).value for batch in batches]
        for name, loss in PRESETS.items()
    }
    for name in TWINS:
        wanted = [wanted_of(name, seed, kind) for seed, kind in BATCHES]
        assert any(one.slopes.any() for one in wanted)
        for other, found in values.items():
            same = all(one.is_met_by(value) for one, value in zip(wanted, found, strict=True))
            assert same == (meaning(PRESETS[name]) == meaning(PRESETS[other])), (name, other)
