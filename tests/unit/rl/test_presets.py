"""The table of losses: named apart, sourced, and different wherever they should be."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from trajkit.rl.advantages import token_advantages
from trajkit.rl.losses import evaluate
from trajkit.rl.presets import LOSSES, PRESETS, SYSTEMS
from trajkit.rl.report import loss_inputs
from trajkit.rl.spec import Advantage, Loss, Term
from trajkit.rl.tokens import ScoredTokens

RNG = np.random.default_rng(7)
LENGTHS = (4, 3, 5, 2, 6, 3, 1)
OWNERS = (0, 0, 1, 2, 3, 3, 4)
"""Seven rows of five trajectories, whose two groups are a, a, a, b, b."""


def tokens(*, wild: bool) -> ScoredTokens:
    """Return a batch on which any two losses part; a wild one has ratios beyond all bounds."""
    n = sum(LENGTHS)
    logprobs = RNG.uniform(-4.0, -0.1, n)
    old = logprobs + RNG.normal(0.0, 0.6, n)
    if wild:
        old[[2, 9]] -= 23.0
        old[[3, 13]] += 23.0
        old[7:12] -= 15.0
    floats = {
        "logprobs": logprobs,
        "old_logprobs": old,
        "rollout_logprobs": old + RNG.normal(0.0, 1.2, n),
        "ref_logprobs": logprobs - RNG.uniform(-2.0, 6.0, n),
    }
    return ScoredTokens(
        logprobs=floats["logprobs"].astype(np.float32),
        old_logprobs=floats["old_logprobs"].astype(np.float32),
        rollout_logprobs=floats["rollout_logprobs"].astype(np.float32),
        ref_logprobs=floats["ref_logprobs"].astype(np.float32),
        context_logprobs=np.empty(0, dtype=np.float32),
        context_step=np.empty(0, dtype=np.int32),
        recorded_advantages=None,
        loss_mask=np.ones(n, dtype=np.bool_),
        position=np.zeros(n, dtype=np.int32),
        step=np.repeat(np.arange(len(LENGTHS)), LENGTHS).astype(np.int32),
        step_trajectory=np.array(OWNERS, dtype=np.int64),
        step_index=np.zeros(len(LENGTHS), dtype=np.int64),
        step_row=np.arange(len(LENGTHS), dtype=np.int64),
        step_comparable=np.ones(len(LENGTHS), dtype=np.bool_),
        step_gae=RNG.normal(0.0, 1.0, len(LENGTHS)),
        trajectory_ids=tuple("vwxyz"),
        returns=np.array([1.0, 0.0, 0.4, -0.3, 0.9]),
        groups=(("group_id", "a"),) * 3 + (("group_id", "b"),) * 2,
        n_recorded_advantages=0,
    )


def meaning(loss: Loss) -> Loss:
    """Return a loss without its words: what it computes."""
    return replace(loss, formula="", source="")


def values(batch: ScoredTokens) -> dict[str, float]:
    inputs = loss_inputs(batch, length=9)
    found = {}
    for name, loss in PRESETS.items():
        made = None
        if loss.advantage not in (Advantage.ONE, Advantage.RETURN):
            made = token_advantages(batch, loss.advantage)
        value = evaluate(loss, replace(inputs, advantages=made)).value
        assert value is not None, name
        found[name] = value
    return found


def test_two_presets_agree_exactly_where_they_say_the_same() -> None:
    """The whole matrix: equal meaning and equal value, other meaning and another value."""
    tame, wild = values(tokens(wild=False)), values(tokens(wild=True))
    told_apart = 0
    for one, other in combinations(PRESETS, 2):
        same = all(
            found[one] == pytest.approx(found[other], rel=1e-13, abs=0.0) for found in (tame, wild)
        )
        assert same == (meaning(PRESETS[one]) == meaning(PRESETS[other])), (one, other)
        told_apart += not same
    n = len(PRESETS)
    assert told_apart == n * (n - 1) // 2 - 3


def test_which_presets_are_one_loss_under_several_names() -> None:
    by_meaning: dict[str, list[str]] = {}
    for name, loss in PRESETS.items():
        by_meaning.setdefault(repr(meaning(loss)), []).append(name)
    assert [names for names in by_meaning.values() if len(names) > 1] == [
        ["ppo_clip", "slime@2026-08/per-token"],
        ["grpo", "slime@2026-08/per-rollout"],
        ["verl@2026-08/token-mean", "skyrl@2026-08/dual_clip"],
    ]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_systems_preset_is_named_by_system_version_and_mode(name: str) -> None:
    assert re.fullmatch(r"[a-z-]+@\d{4}-\d\d/[a-z_+-]+", name)


@pytest.mark.parametrize("name", LOSSES)
def test_a_papers_loss_is_a_word(name: str) -> None:
    assert re.fullmatch(r"[a-z_]+", name)


@pytest.mark.parametrize("name", PRESETS)
def test_every_loss_says_what_it_is_and_where_it_is_from(name: str) -> None:
    loss = PRESETS[name]
    source = r"arXiv \d{4}\.\d{5}|[0-9a-f]{7}|\b(?:19|20)\d\d\b|maximum likelihood"
    assert re.search(source, loss.source)
    assert len(loss.formula) > 10
    assert (loss.ratio is None) == (loss.term is Term.LOGPROB)
    if name in LOSSES:
        assert "mean over" in loss.formula
