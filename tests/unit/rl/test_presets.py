"""The table of losses: named apart, sourced, and different wherever they should be."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from trajkit.rl.presets import JOINT, LOSSES, PRESETS, SYSTEMS
from trajkit.rl.report import loss_table
from trajkit.rl.spec import Loss, Term
from trajkit.rl.tokens import ScoredTokens

RNG = np.random.default_rng(7)
LENGTHS = (4, 3, 5, 2, 6, 3, 1)
OWNERS = (0, 0, 1, 2, 3, 3, 4)
"""Seven steps in six rows of five trajectories, whose two groups are a, a, a, b, b."""


def tokens(*, wild: bool) -> ScoredTokens:
    """Return a batch on which any two losses part; a wild one has ratios beyond all bounds."""
    n = sum(LENGTHS)
    logprobs = RNG.uniform(-4.0, -0.1, n)
    old = logprobs + RNG.normal(0.0, 0.6, n)
    logprobs[0], old[0] = np.log(0.75), np.log(0.5)  # moved by 0.25, and by a KL of 0.14
    if wild:
        old[[2, 9]] -= 23.0
        old[[3, 13]] += 23.0
        old[7:12] -= 15.0
    floats = {
        "logprobs": logprobs,
        "old_logprobs": old,
        "rollout_logprobs": old + RNG.normal(0.0, 1.2, n),
        "ref_logprobs": logprobs - RNG.uniform(-2.0, 6.0, n),
        "exact_kl": RNG.uniform(0.0, 1.0, n),
        "entropy": RNG.uniform(0.0, 3.0, n),
    }
    return ScoredTokens(
        logprobs=floats["logprobs"].astype(np.float32),
        old_logprobs=floats["old_logprobs"].astype(np.float32),
        rollout_logprobs=floats["rollout_logprobs"].astype(np.float32),
        ref_logprobs=floats["ref_logprobs"].astype(np.float32),
        exact_kl=floats["exact_kl"].astype(np.float32),
        entropy=floats["entropy"].astype(np.float32),
        context_logprobs=RNG.uniform(-5.0, -0.1, 9).astype(np.float32),
        context_step=np.array([1, 1, 1, 3, 3, 5, 5, 5, 5], dtype=np.int32),
        context_answers=np.array([0, 0, 0, 2, 2, 4, 4, 4, 4], dtype=np.int32),
        recorded_advantages=None,
        loss_mask=np.ones(n, dtype=np.bool_),
        kind=np.zeros(n, dtype=np.int8),
        position=np.zeros(n, dtype=np.int32),
        step=np.repeat(np.arange(len(LENGTHS)), LENGTHS).astype(np.int32),
        step_trajectory=np.array(OWNERS, dtype=np.int64),
        step_index=np.zeros(len(LENGTHS), dtype=np.int64),
        step_row=np.array([0, 1, 2, 3, 4, 4, 5], dtype=np.int64),
        step_entropy=RNG.uniform(0.0, 3.0, len(LENGTHS)),
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
    table = loss_table(batch, list(PRESETS), length=9)
    found = {name: each.value for name, each in table.values.items()}
    return {name: value for name, value in found.items() if value is not None}


def test_two_presets_agree_exactly_where_they_say_the_same() -> None:
    """The whole matrix: equal meaning and equal value, other meaning and another value."""
    tame, wild = values(tokens(wild=False)), values(tokens(wild=True))
    assert list(tame) == list(wild) == list(PRESETS)
    told_apart = 0
    for one, other in combinations(PRESETS, 2):
        same = all(
            found[one] == pytest.approx(found[other], rel=1e-13, abs=0.0) for found in (tame, wild)
        )
        assert same == (meaning(PRESETS[one]) == meaning(PRESETS[other])), (one, other)
        told_apart += not same
    n = len(PRESETS)
    n_same = sum(len(names) * (len(names) - 1) // 2 for names, _ in ONE_LOSS)
    assert told_apart == n * (n - 1) // 2 - n_same


ONE_LOSS = [
    (
        ["ppo_clip", "roll@2026-08/token-mean", "slime@2026-08/per-token"],
        "all three do what the paper says, over the tokens of the batch",
    ),
    (["grpo", "slime@2026-08/per-rollout"], "a rollout is the paper's output"),
    (
        ["verl@2026-08/token-mean", "agent-r1@2026-04/token-mean", "skyrl@2026-08/dual_clip"],
        "Agent-R1's trainer is verl's; SkyRL has the same bounds and constants",
    ),
    (
        ["verl@2026-01/seq-mean-token-sum-norm", "agent-r1@2026-04/seq-mean-token-sum-norm"],
        "Agent-R1 kept the meaning that verl has left",
    ),
    (
        ["trl@2026-07/dapo", "trl@2026-07/bnpo"],
        "local and global batch are one where the table is the batch",
    ),
    (
        ["skyrl@2026-08/token_mean", "miles@2026-08/per-token"],
        "miles comes from slime, and cuts log-ratios where SkyRL does",
    ),
]
"""Presets that are meant to be one loss, and why."""


def test_which_presets_are_one_loss_under_several_names() -> None:
    by_meaning: dict[str, list[str]] = {}
    for name, loss in PRESETS.items():
        by_meaning.setdefault(repr(meaning(loss)), []).append(name)
    found = [names for names in by_meaning.values() if len(names) > 1]
    assert found == [names for names, _ in ONE_LOSS]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_systems_preset_is_named_by_system_version_and_mode(name: str) -> None:
    assert re.fullmatch(r"[a-z1-]+@\d{4}-\d\d/[a-z_+-]+", name)


@pytest.mark.parametrize("name", [*LOSSES, *JOINT])
def test_a_papers_loss_is_a_word(name: str) -> None:
    assert re.fullmatch(r"[a-z_]+", name)


@pytest.mark.parametrize("name", PRESETS)
def test_every_loss_says_what_it_is_and_where_it_is_from(name: str) -> None:
    loss = PRESETS[name]
    source = r"arXiv \d{4}\.\d{5}|[0-9a-f]{7}|\b(?:19|20)\d\d\b|maximum likelihood"
    assert re.search(source, loss.source)
    assert len(loss.formula) > 10
    assert (loss.ratio is None) == (loss.term is Term.LOGPROB)
    if name in LOSSES or name in JOINT:
        assert "mean over" in loss.formula
