"""The oracles of scoring: what must hold of every number, each told by another way than ours.

One test or more for each number. What plain transformers and numpy say stands in `references.py`,
the data in `workloads.py`; the oracles that another file tells are named in `ELSEWHERE`.

     1  a head of zeros               9  chunks and budgets
     2  float64 throughout           10  other ways to read a tree
     3  a vocabulary of 151,936      11  entropy and exact KL
     4  noise of half precision      12  losses by hand (elsewhere)
     5  packed or alone              13  memory that ends at any moment; a kill (elsewhere)
     6  leaks, by mutation           14  several processes (elsewhere)
     7  conservation                 15  architectures that are more than a Llama
     8  boundaries                   16  memory
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from tests.builders import make_trajectory
from tests.oracles.references import (
    SMALL,
    Told,
    allocated_peak,
    contexts_of,
    lively_model,
    log_softmax,
    logprobs_alone,
    needed_contexts,
    told_alone,
    told_alone_by_wide_head,
    told_by_cache,
    told_by_dense_mask,
    witnessed,
)
from tests.oracles.workloads import (
    FIRST_FREE,
    WORKLOADS,
    Call,
    Rollouts,
    append_only,
    branching,
    calls_of,
    grpo_group,
    sliding_window,
    trajectories_of,
)
from tests.score_builders import HYBRID, N_VOCAB, save_checkpoint, write_data
from trajkit import score, score_batch
from trajkit.errors import InputError
from trajkit.records import Trajectory
from trajkit.scoring.forward import judging, logprobs
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model, loaded_from_module
from trajkit.scoring.scored import ScoredTrajectory, Status
from trajkit.scoring.steps import Batch, score_trajectories

HALF_ULP = 2.0**-24
"""How far rounding to float32 moves a number, relative to it."""
EVERYTHING = 10**9
"""A budget of one pass for all."""

ELSEWHERE = {
    12: ("tests/unit/rl/test_losses.py", "smaller_of_the_free_and_the_clipped"),
    13: ("tests/unit/scoring/running/test_parts.py", "killed_run_goes_on"),
    14: ("tests/unit/scoring/running/test_parts.py", "make_the_same_table"),
    15: ("tests/unit/scoring/forward/test_sharing.py", "each_architecture_is_exact"),
}
"""Tests of other files that tell an oracle, or a part of it: the file, and what it is called by."""

Numbers = NDArray[Any]


@pytest.fixture(scope="module")
def llama() -> Any:
    return lively_model(**SMALL)


@pytest.fixture(scope="module")
def loaded(llama: Any) -> LoadedModel:
    return loaded_from_module(llama)


def column(scored: Sequence[ScoredTrajectory], name: str = "logprobs") -> Numbers:
    """Return a column of every scored action, one call after the other; all must have numbers."""
    rows = [row for one in scored for row in one.steps]
    assert {row.status for row in rows} == {Status.OK}
    return np.concatenate([getattr(row, name) for row in rows])


def all_at_once(names: Iterable[str] = WORKLOADS) -> tuple[list[Trajectory], list[Call]]:
    """Return workloads, each a group of its own, as records and as calls."""
    records, calls = list[Trajectory](), list[Call]()
    for name in names:
        made = WORKLOADS[name]
        records += trajectories_of(made(), group=name, name=name)
        calls += calls_of(made())
    return records, calls


def assert_told(scored: Sequence[ScoredTrajectory], wanted: Told, atol: float) -> None:
    np.testing.assert_allclose(column(scored), wanted.logprobs, rtol=0.0, atol=atol)
    np.testing.assert_allclose(column(scored, "entropy"), wanted.entropy, rtol=0.0, atol=atol)


# ── 1 ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", WORKLOADS)
def test_oracle_01_a_head_of_zeros_says_one_in_v(llama: Any, name: str) -> None:
    flat = copy.deepcopy(llama)
    with torch.no_grad():
        flat.lm_head.weight.zero_()
    loaded = loaded_from_module(flat)
    records = trajectories_of(WORKLOADS[name]())
    scored = score_trajectories(loaded, records, reference=loaded).scored
    for found, wanted in (
        (column(scored), -np.log(N_VOCAB)),
        (column(scored, "ref_logprobs"), -np.log(N_VOCAB)),
        (column(scored, "entropy"), np.log(N_VOCAB)),
        (column(scored, "exact_kl"), 0.0),
        (column(scored, "rank"), 0),
    ):
        np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-6)


# ── 2 ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("budget", [EVERYTHING, 1])
@pytest.mark.parametrize("name", WORKLOADS)
def test_oracle_02_whole_pipeline_in_float64(llama: Any, name: str, budget: int) -> None:
    """States and their softmax agree to 1e-10, the float32 columns to half of their last digit."""
    model, rollouts = copy.deepcopy(llama).double(), WORKLOADS[name]()
    calls, loaded = calls_of(rollouts), loaded_from_module(model)
    with witnessed(model) as rows:
        batch = score_trajectories(loaded, trajectories_of(rollouts), tokens_per_batch=budget)
    wanted = told_alone(model, calls)
    assert set(rows.states) == needed_contexts(calls)
    assert rows.n_rows == batch.n_forwarded_tokens
    if budget == EVERYTHING:
        assert rows.n_rows == len(rows.states)  # each prefix once
    asked = contexts_of(calls)
    states_NH = torch.stack([rows.states[context] for context, _ in asked])
    assert states_NH.dtype is torch.float64
    table_NV = log_softmax((states_NH @ model.lm_head.weight.detach().T).numpy())
    said = table_NV[np.arange(len(asked)), [token for _, token in asked]]
    np.testing.assert_allclose(said, wanted.logprobs, rtol=0.0, atol=1e-10)
    for found, exact in (
        (column(batch.scored), wanted.logprobs),
        (column(batch.scored, "entropy"), wanted.entropy),
    ):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, exact, rtol=HALF_ULP, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["bias of the head", "logit scale", "logits divided", "window", "frequencies by length"]
)
def test_oracle_02_other_architectures_in_float64(name: str) -> None:
    model_type, config, _ = GUARDS[name]
    model = lively_model(model_type, **config).double()
    for made in (branching, sliding_window):
        found = column(score_batch(trajectories_of(made()), model))
        wanted = told_alone(model, calls_of(made())).logprobs
        np.testing.assert_allclose(found, wanted, rtol=HALF_ULP, atol=1e-10)


# ── 3 ────────────────────────────────────────────────────────────────────────────────────────────


def test_oracle_03_a_vocabulary_of_151_936() -> None:
    model = lively_model("qwen2", **SMALL | {"vocab_size": 151_936})
    records, calls = all_at_once()
    wanted = told_alone(model, calls)
    assert wanted.entropy.min() > 11.0  # the tail counts: ln V is 11.93
    assert_told(score_batch(records, model), wanted, atol=1e-5)


# ── 4 ────────────────────────────────────────────────────────────────────────────────────────────

DEEP = {**SMALL, "num_hidden_layers": 6}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_oracle_04_trees_add_no_noise(dtype: torch.dtype) -> None:
    """Against float32 on the same rounded weights, a tree is off as far as each call alone."""
    shared, alone = list[float](), list[float]()
    for seed in range(3):
        model = lively_model(seed=seed, **DEEP).to(dtype)
        wide = copy.deepcopy(model).float()
        for made in WORKLOADS.values():
            rollouts = made()
            exact = told_alone(wide, calls_of(rollouts)).logprobs
            found = column(score_batch(trajectories_of(rollouts), model))
            by_call = told_alone_by_wide_head(model, calls_of(rollouts)).logprobs
            shared.append(float(np.abs(found - exact).mean()))
            alone.append(float(np.abs(by_call - exact).mean()))
    assert np.mean(alone) > 1e-4  # there is noise to compare with
    assert np.mean(shared) <= 1.15 * np.mean(alone)
    assert max(a / b for a, b in zip(shared, alone, strict=True)) <= 1.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_oracle_04_a_head_of_half_precision_is_multiplied_in_float32(dtype: torch.dtype) -> None:
    model = lively_model(**SMALL | {"vocab_size": 5_000}).to(dtype)
    records, calls = all_at_once()
    with witnessed(model) as rows:
        found = column(score_batch(records, model))
    states_NH = torch.stack([rows.states[context] for context, _ in contexts_of(calls)])
    weight = model.lm_head.weight.detach()
    asked = np.arange(len(found)), [token for _, token in contexts_of(calls)]
    exact = log_softmax((states_NH.double() @ weight.double().T).numpy())[asked]
    rounded = log_softmax((states_NH @ weight.T).double().numpy())[asked]
    assert np.abs(rounded - exact).max() > 5e-4  # what logits in half precision would cost
    assert np.abs(found - exact).max() <= 1e-4


# ── 5 ────────────────────────────────────────────────────────────────────────────────────────────


MAX_ULP = 4
"""Last digits by which a product of few rows may differ from one of many: libraries choose."""


def skip_unless_products_are_steady(dtype: torch.dtype, n_rows: Sequence[int]) -> None:
    """Skip where this machine's products of matrices depend on how many rows they are given."""
    torch.manual_seed(0)
    weight, rows = torch.randn(48, 32).to(dtype), torch.randn(sum(n_rows), 32).to(dtype)
    whole = rows @ weight.T
    apart = torch.cat([some @ weight.T for some in torch.split(rows, list(n_rows))])
    if not torch.equal(whole, apart):
        pytest.skip("products of this machine depend on how many rows they have")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_oracle_05_a_tree_is_the_same_packed_or_alone(llama: Any, dtype: torch.dtype) -> None:
    """States agree bit for bit; log-probs too but for the last digits of the head's product."""
    loaded = loaded_from_module(copy.deepcopy(llama).to(dtype))
    records, _ = all_at_once()
    with witnessed(loaded.model) as together:
        packed = score_trajectories(loaded, records, tokens_per_batch=EVERYTHING).scored
    assert len(together.passes) == 1
    with witnessed(loaded.model) as apart:
        alone = [
            score_trajectories(loaded, trajectories_of(made(), name=name)).scored
            for name, made in WORKLOADS.items()
        ]
    assert len(apart.passes) == len(WORKLOADS)
    skip_unless_products_are_steady(dtype, sorted(apart.passes)[::-1])
    assert together.states.keys() == apart.states.keys()
    for context, state in together.states.items():
        assert torch.equal(apart.states[context], state)
    for name in ("logprobs", "entropy"):
        wanted = np.concatenate([column(one, name) for one in alone])
        np.testing.assert_array_max_ulp(column(packed, name), wanted, MAX_ULP)


@pytest.mark.parametrize("seed", range(3))
def test_oracle_05_another_order_permutes_results(loaded: LoadedModel, seed: int) -> None:
    records, _ = all_at_once()
    order = np.random.default_rng(seed).permutation(len(records))
    wanted, found = (
        score_trajectories(loaded, some, tokens_per_batch=EVERYTHING).scored
        for some in (records, [records[at] for at in order])
    )
    for one, at in zip(found, order, strict=True):
        assert one.trajectory is records[at]
        for name in ("logprobs", "entropy"):
            expected = column([wanted[at]], name)
            np.testing.assert_array_max_ulp(column([one], name), expected, MAX_ULP)
        np.testing.assert_array_equal(column([one], "rank"), column([wanted[at]], "rank"))


# ── 6 ────────────────────────────────────────────────────────────────────────────────────────────


def with_other_id(rollouts: Rollouts, prefix: tuple[int, ...]) -> Rollouts:
    """Return rollouts in which the last id of a prefix is one that no workload has."""
    at = len(prefix)

    def changed(ids: list[int]) -> list[int]:
        return [*prefix[:-1], FIRST_FREE, *ids[at:]] if tuple(ids[:at]) == prefix else ids

    return [
        [(changed(prompt), changed([*prompt, *action])[len(prompt) :]) for prompt, action in calls]
        for calls in rollouts
    ]


def every_prefix(rollouts: Rollouts) -> list[tuple[int, ...]]:
    """Return all that a model reads or is asked about, as what came up to it."""
    asked = contexts_of(calls_of(rollouts))
    pairs = {(*context, token) for context, token in asked}
    return sorted(needed_contexts(calls_of(rollouts)) | pairs)


@pytest.mark.parametrize("made", [branching, grpo_group, sliding_window])
def test_oracle_06_nothing_leaks(loaded: LoadedModel, made: Any) -> None:
    """An id moves what stands behind it on its own path, and not a bit of anything else."""
    others = trajectories_of(append_only(), group="other", name="other")
    rollouts: Rollouts = made()

    def told(changed: Rollouts) -> tuple[list[tuple[Any, int]], Numbers, Numbers]:
        scored = score_batch([*trajectories_of(changed), *others], loaded)
        asked = [*contexts_of(calls_of(changed)), *contexts_of(calls_of(append_only()))]
        return asked, column(scored), column(scored, "entropy")

    before, logprobs_before, entropy_before = told(rollouts)
    n_moved = 0
    for prefix in every_prefix(rollouts):
        after, logprobs_after, entropy_after = told(with_other_id(rollouts, prefix))
        is_moved = np.array([b[0] != a[0] for b, a in zip(before, after, strict=True)])
        is_other = np.array([b[1] != a[1] for b, a in zip(before, after, strict=True)])
        np.testing.assert_array_equal(entropy_after != entropy_before, is_moved)
        np.testing.assert_array_equal(logprobs_after != logprobs_before, is_moved | is_other)
        n_moved += int(is_moved.sum())
    assert n_moved > 100


# ── 7 ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def saved(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_checkpoint(llama, tmp_path_factory.mktemp("oracles") / "model")
    return load_model(folder, device="cpu")


@pytest.mark.parametrize("budget", [None, 60, 1])
def test_oracle_07_every_scored_id_has_one_number(
    saved: LoadedModel, tmp_path: Path, budget: int | None
) -> None:
    records, calls = all_at_once()
    odd: list[Call] = [([], [5, 6, 7]), ([9, 8], []), ([9, 8, 7], [6, 5]), ([4], [4])]
    reasons = [None, None, "left out", None]
    records.append(make_trajectory(odd, "odd", exclude_reason=reasons))
    out = tmp_path / "scores.parquet"
    counts = score(
        write_data(tmp_path / "data.parquet", records), saved, out=out, tokens_per_batch=budget
    ).counts
    rows = pq.read_table(out).to_pylist()
    steps = [(one.trajectory_id, step.step_index) for one in records for step in one.steps]
    assert [(row["trajectory_id"], row["step_index"]) for row in rows] == steps
    assert rows[-2]["logprobs"] is None
    scored = [
        call
        for call, why in zip([*calls, *odd], [None] * len(calls) + reasons, strict=True)
        if why is None
    ]
    kept = [row["logprobs"] for row in rows if row["logprobs"] is not None]
    assert [len(each) for each in kept] == [len(action) for _, action in scored]
    flat = [value for each in kept for value in each]
    is_first = [not context for context, _ in contexts_of(scored)]
    assert [value is None for value in flat] == is_first
    assert is_first.count(True) == counts.n_first_token == 1
    assert counts.n_scored_tokens == is_first.count(False)
    wanted = told_alone(saved.model, scored).logprobs
    found = np.array([np.nan if value is None else value for value in flat])
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-5)


# ── 8 ────────────────────────────────────────────────────────────────────────────────────────────

BOUNDARIES: dict[str, Rollouts] = {
    "an action behind an observation": [[([3, 4], [5]), ([3, 4, 5, 6, 7], [8, 9])]],
    "a split inside an action": [[([3, 4], [5, 6, 7])], [([3, 4], [5, 6, 8])], [([3, 4], [5, 9])]],
    "a split behind an action": [
        [([3], [4, 5]), ([3, 4, 5, 6], [7])],
        [([3], [4, 5]), ([3, 4, 5, 8], [7])],
    ],
    "siblings that are the same": [[([3, 4], [5, 6])]] * 3,
    "a retry that says the same": [[([3, 4], [5, 6]), ([3, 4], [5, 6]), ([3, 4], [5])]],
    "runs of one id": [[([3], [4]), ([3, 4], [5]), ([3, 4, 5], [6]), ([3, 6], [7]), ([3, 7], [6])]],
    "an observation of nothing": [[([3, 4], [5, 6]), ([3, 4, 5, 6], [7]), ([3, 4, 5, 6, 7], [8])]],
    "an action of nothing": [[([3, 4], []), ([3, 4, 5], [6])]],
    "a row that is the beginning of another": [
        [([3, 4, 5, 6], [7])],
        [([3, 4], [5])],
        [([3], [4])],
    ],
    "an action that another prompt holds": [[([3, 4, 5, 6, 7], [8])], [([3, 4], [5, 6, 7, 8])]],
    "a first id without a context": [[([], [5, 6])], [([5], [6, 7])], [([], [5])]],
    "one id again and again": [[([3], [3, 3]), ([3, 3, 3, 3], [3])], [([3, 3], [3, 3, 3])]],
    "trees of one id": [[([3], [4])], [([4], [3])]],
}


@pytest.mark.parametrize("how", ["one pass", "budget 1", "row by row", "groups of one"])
@pytest.mark.parametrize("name", BOUNDARIES)
def test_oracle_08_boundaries(loaded: LoadedModel, name: str, how: str) -> None:
    rollouts = BOUNDARIES[name]
    records = trajectories_of(rollouts)
    if how == "groups of one":
        records = [
            one
            for at, calls in enumerate(rollouts)
            for one in trajectories_of([calls], group=f"g{at}", name=f"t{at}-")
        ]
    model = unshared(loaded) if how == "row by row" else loaded
    budget = 1 if how == "budget 1" else EVERYTHING
    scored = score_trajectories(model, records, tokens_per_batch=budget).scored
    assert_told(scored, told_alone(loaded.model, calls_of(rollouts)), atol=1e-5)


def unshared(loaded: LoadedModel) -> LoadedModel:
    return replace(loaded, why_unshared="for the sake of a test")


# ── 9 ────────────────────────────────────────────────────────────────────────────────────────────


class _WidestLogits(TorchDispatchMode):
    """Notes the most rows of logits that any operation made at once."""

    def __init__(self, n_vocab: int) -> None:
        super().__init__()
        self.n_vocab, self.n_rows = n_vocab, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dim() == 2 and made.shape[1] == self.n_vocab:
            self.n_rows = max(self.n_rows, made.shape[0])
        return made


SHORT = [name for name in WORKLOADS if name != "observation 95 %"]
"""Workloads without a long call: a pass is never smaller than the longest."""


@pytest.fixture(scope="module")
def in_one(loaded: LoadedModel) -> Batch:
    """Return workloads scored in one pass and, so small is the vocabulary, in one chunk."""
    return score_trajectories(loaded, all_at_once(SHORT)[0], tokens_per_batch=EVERYTHING)


def assert_as_in_one(batch: Batch, in_one: Batch, atol: float) -> None:
    """Check columns against one pass and one chunk, to which every call alone agrees."""
    for name in ("logprobs", "entropy"):
        found, wanted = column(batch.scored, name), column(in_one.scored, name)
        np.testing.assert_allclose(found, wanted, rtol=0.0, atol=atol)


@pytest.mark.parametrize("n_rows", [1, 7, 64, EVERYTHING])
def test_oracle_09_chunks_change_no_number(
    loaded: LoadedModel, in_one: Batch, monkeypatch: pytest.MonkeyPatch, n_rows: int
) -> None:
    records, calls = all_at_once(SHORT)
    monkeypatch.setitem(logprobs._LOGITS_BYTES, "cpu", 4 * N_VOCAB * n_rows)
    monkeypatch.setitem(judging._VALUES_AT_ONCE, "cpu", N_VOCAB * n_rows)
    with _WidestLogits(N_VOCAB) as widest:
        batch = score_trajectories(loaded, records, tokens_per_batch=EVERYTHING)
    assert widest.n_rows == min(n_rows, len(set(contexts_of(calls))))
    assert_as_in_one(batch, in_one, atol=1e-6)


def test_oracle_09_one_pass_is_what_each_call_alone_is(llama: Any, in_one: Batch) -> None:
    assert in_one.n_forwards == 1
    assert_told(in_one.scored, told_alone(llama, all_at_once(SHORT)[1]), atol=1e-5)


@pytest.mark.parametrize("budget", [1, 45, 70, 120, 250])
def test_oracle_09_budgets_change_no_number(
    loaded: LoadedModel, in_one: Batch, budget: int
) -> None:
    """Up to where fp32 sums are split, which moves with a cut; in float64 see oracle 2."""
    records, calls = all_at_once(SHORT)
    longest = max(len(context) for context, _ in contexts_of(calls))
    with witnessed(loaded.model) as rows:
        batch = score_trajectories(loaded, records, tokens_per_batch=budget)
    assert batch.n_forwards == len(rows.passes) > 1
    assert max(rows.passes) <= max(budget, longest)
    assert batch.n_forwarded_tokens == rows.n_rows >= len(needed_contexts(calls))
    assert_as_in_one(batch, in_one, atol=4e-6)


# ── 10 ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("name", ["sliding window", "compaction", "GRPO group", "branching"])
def test_oracle_10_other_ways_to_read_a_tree_agree(model_type: str, name: str) -> None:
    """A dense mask, a cache copied at branches, rows and trees: one table, in fp32 to 1e-5."""
    loaded = loaded_from_module(lively_model(model_type, **SMALL))
    rollouts = WORKLOADS[name]()
    calls, records = calls_of(rollouts), trajectories_of(rollouts)
    ways = {
        "alone": told_alone(loaded.model, calls).logprobs,
        "dense mask": told_by_dense_mask(loaded.model, calls).logprobs,
        "cache": told_by_cache(loaded.model, calls).logprobs,
        "tree": column(score_trajectories(loaded, records, tokens_per_batch=EVERYTHING).scored),
        "tree in parts": column(score_trajectories(loaded, records, tokens_per_batch=1).scored),
        "rows": column(score_trajectories(unshared(loaded), records).scored),
    }
    for found in ways.values():
        np.testing.assert_allclose(found, ways["alone"], rtol=0.0, atol=1e-5)


# ── 11 ───────────────────────────────────────────────────────────────────────────────────────────


def test_oracle_11_all_ids_of_one_context_are_a_distribution(llama: Any) -> None:
    """Every id as an action of its own: probabilities, entropy and KL are sums over them."""
    other = lively_model(seed=7, **SMALL)
    prompt = [3, 9, 14, 20]
    records = trajectories_of([[(prompt, [token])] for token in range(N_VOCAB)])
    policy, reference = loaded_from_module(llama), loaded_from_module(other)
    scored = score_trajectories(policy, records, reference=reference).scored
    found, told = column(scored).astype(np.float64), column(scored, "ref_logprobs")
    p_V = np.exp(found)
    assert abs(p_V.sum() - 1.0) < 1e-5
    exact = logprobs_alone(llama, prompt)[-1], logprobs_alone(other, prompt)[-1]
    np.testing.assert_allclose(found, exact[0], rtol=0.0, atol=1e-5)
    np.testing.assert_allclose(told, exact[1], rtol=0.0, atol=1e-5)
    entropy, kl = column(scored, "entropy"), column(scored, "exact_kl")
    weights_V = np.exp(exact[0])
    np.testing.assert_allclose(entropy, -(weights_V * exact[0]).sum(), rtol=0.0, atol=1e-5)
    np.testing.assert_allclose(kl, (weights_V * (exact[0] - exact[1])).sum(), rtol=0.0, atol=1e-5)
    gap = told - found
    np.testing.assert_allclose(kl, -(p_V * gap).sum(), rtol=0.0, atol=1e-5)  # E_p[k1]
    np.testing.assert_allclose(kl, (p_V * (np.exp(gap) - 1 - gap)).sum(), rtol=0.0, atol=1e-5)
    assert (np.exp(gap) - 1 - gap >= 0).all()
    order = np.argsort(-exact[0], kind="stable")
    assert column(scored, "rank")[order].tolist() == list(range(N_VOCAB))


@pytest.mark.parametrize("name", WORKLOADS)
def test_oracle_11_entropy_and_kl_on_every_workload(llama: Any, name: str) -> None:
    other = lively_model(seed=7, **SMALL)
    rollouts = WORKLOADS[name]()
    policy, reference = loaded_from_module(llama), loaded_from_module(other)
    scored = score_trajectories(policy, trajectories_of(rollouts), reference=reference).scored
    wanted = []
    for prompt, action in calls_of(rollouts):
        p_NV, q_NV = (logprobs_alone(one, [*prompt, *action]) for one in (llama, other))
        kl_N = (np.exp(p_NV) * (p_NV - q_NV)).sum(axis=1)
        wanted += kl_N[len(prompt) - 1 : -1].tolist()
    assert min(wanted) > 0.1
    np.testing.assert_allclose(column(scored, "exact_kl"), wanted, rtol=0.0, atol=1e-5)
    itself = score_trajectories(policy, trajectories_of(rollouts), reference=policy).scored
    assert np.abs(column(itself, "exact_kl")).max() == 0.0


# ── 13 ───────────────────────────────────────────────────────────────────────────────────────────


class _FullAt(TorchDispatchMode):
    """Memory that ends once, at one operation of a run."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.n_done = at, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n_done += 1
        if self.n_done - 1 == self.at:
            raise torch.OutOfMemoryError
        return func(*args, **(kwargs or {}))


N_MOMENTS = 24
"""Operations of a run that are tried, from its first to its last."""


def bits(batch: Batch) -> list[bytes]:
    return [column(batch.scored, name).tobytes() for name in ("logprobs", "entropy", "rank")]


@pytest.mark.parametrize("budget", [EVERYTHING, 40])
def test_oracle_13_memory_that_ends_at_any_moment_changes_no_bit(budget: int) -> None:
    """In float64, where cutting a pass elsewhere moves nothing that float32 columns can show."""
    loaded = loaded_from_module(lively_model(**SMALL | {"num_hidden_layers": 1}).double())
    rollouts = [*branching(), *grpo_group()]

    def run() -> Batch:
        return score_trajectories(loaded, trajectories_of(rollouts), tokens_per_batch=budget)

    whole = run()
    np.testing.assert_allclose(
        column(whole.scored),
        told_alone(loaded.model, calls_of(rollouts)).logprobs,
        rtol=HALF_ULP,
        atol=1e-10,
    )
    with _FullAt(-1) as counted:
        run()
    moments = np.linspace(0, counted.n_done - 1, N_MOMENTS).astype(int).tolist()
    for at in moments:
        with _FullAt(at) as full:
            batch = run()
        assert full.n_done > at
        assert bits(batch) == bits(whole)
        assert batch.n_forwards > whole.n_forwards


# ── 15 ───────────────────────────────────────────────────────────────────────────────────────────

LONG_AFTER = 30
"""Ids after which a model uses its long rotary frequencies: some calls are longer, some shorter."""
LONG_ROPE: dict[str, Any] = {
    **SMALL,
    "original_max_position_embeddings": LONG_AFTER,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": LONG_AFTER,
    },
}
HEADS_OWN = {name: value for name, value in SMALL.items() if name != "head_dim"}

GUARDS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "untied": ("llama", SMALL, None),
    "tied": ("llama", {**SMALL, "tie_word_embeddings": True}, None),
    "padded vocabulary": ("llama", {**SMALL, "vocab_size": 128}, None),
    "bias of the head": ("phi", SMALL, None),
    "softcaps": (
        "gemma2",
        {
            **SMALL,
            "final_logit_softcapping": 2.0,
            "attn_logit_softcapping": 2.0,
            "sliding_window": 9,
        },
        None,
    ),
    "logit scale": ("cohere", {**HEADS_OWN, "logit_scale": 0.25}, None),
    "logits divided": ("granite", {**SMALL, "logits_scaling": 4.0}, None),
    "window": ("mistral", {**SMALL, "sliding_window": 9}, None),
    "sinks": ("gpt_oss", {**SMALL, "num_local_experts": 4, "sliding_window": 9}, None),
    "states carried on": ("qwen3_next", {**SMALL, **HYBRID}, "linear_attention"),
    "frequencies by length": ("phi3", LONG_ROPE, "longrope"),
}
"""Model type, configuration, and a word of why it does not share (`None`: it does)."""


@pytest.mark.parametrize("name", GUARDS)
def test_oracle_15_an_architecture_is_exact_or_reads_row_by_row(name: str) -> None:
    model_type, config, reason = GUARDS[name]
    loaded = loaded_from_module(lively_model(model_type, **config))
    assert (reason or "") in (loaded.why_unshared or "")
    assert (loaded.why_unshared is None) == (reason is None)
    for made in (branching, sliding_window, grpo_group):
        rollouts = made()
        batch = score_trajectories(loaded, trajectories_of(rollouts))
        wanted = told_alone(loaded.model, calls_of(rollouts))
        assert wanted.logprobs.std() > 0.05
        assert_told(batch.scored, wanted, atol=1e-5)
        n_read = batch.n_row_tokens if reason else len(needed_contexts(calls_of(rollouts)))
        assert batch.n_forwarded_tokens >= n_read


def without_sinks(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.sinks.data.fill_(-1e4)


MATTERS: dict[str, Any] = {
    "bias of the head": lambda model: model.lm_head.bias.data.zero_(),
    "softcaps": lambda model: setattr(model.config, "final_logit_softcapping", None),
    "logit scale": lambda model: setattr(model, "logit_scale", 1.0),
    "logits divided": lambda model: setattr(model.config, "logits_scaling", 1.0),
    "sinks": without_sinks,
    "padded vocabulary": lambda model: model.lm_head.weight.data[N_VOCAB:].fill_(-1.0),
}
"""What takes the special part out of a model: the numbers must then be others."""


@pytest.mark.parametrize("name", MATTERS)
def test_oracle_15_what_is_special_matters(name: str) -> None:
    model_type, config, _ = GUARDS[name]
    model, plain = (lively_model(model_type, **config) for _ in range(2))
    MATTERS[name](plain)
    found = column(score_batch(trajectories_of(branching()), model))
    without = column(score_batch(trajectories_of(branching()), plain))
    assert np.abs(found - without).max() > 1e-2


def test_oracle_15_frequencies_by_length_change_within_a_trajectory() -> None:
    """A call before the threshold keeps its short frequencies, whatever comes behind it."""
    lengths = {len(prompt) + len(action) > LONG_AFTER for prompt, action in calls_of(branching())}
    assert lengths == {True, False}
    loaded = loaded_from_module(lively_model("phi3", **LONG_ROPE))
    assert loaded.rope_switch == LONG_AFTER
    blind = replace(loaded, rope_switch=None)
    found, without = (
        column(score_batch(trajectories_of(append_only()), one)) for one in (loaded, blind)
    )
    assert np.abs(found - without).max() > 1e-2


def test_oracle_15_an_id_without_a_logit_is_refused() -> None:
    model = lively_model(**SMALL)
    model.lm_head = torch.nn.Linear(SMALL["hidden_size"], FIRST_FREE, bias=False)
    rollouts = branching()
    assert_told(
        score_batch(trajectories_of(rollouts), model), told_alone(model, calls_of(rollouts)), 1e-5
    )
    with pytest.raises(InputError) as caught:
        score_batch(trajectories_of([[([3, 4], [FIRST_FREE])]]), model)
    assert caught.value.code == "I304"


# ── 16 ───────────────────────────────────────────────────────────────────────────────────────────


def peak_of(loaded: LoadedModel, rollouts: Rollouts, budget: int = EVERYTHING) -> int:
    records = trajectories_of(rollouts)
    return allocated_peak(lambda: score_trajectories(loaded, records, tokens_per_batch=budget))


def one_long_call(n_read: int, n_scored: int) -> Rollouts:
    ids = np.random.default_rng(0).integers(3, FIRST_FREE, n_read).tolist()
    return [[(ids[: n_read - n_scored], ids[n_read - n_scored :])]]


def test_oracle_16_memory_does_not_grow_with_what_is_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_vocab, n_read, n_bytes = 8_192, 2_400, 2**23
    monkeypatch.setitem(logprobs._LOGITS_BYTES, "cpu", n_bytes)
    monkeypatch.setitem(judging._VALUES_AT_ONCE, "cpu", n_bytes // 32)
    loaded = loaded_from_module(
        lively_model(**SMALL | {"vocab_size": n_vocab, "max_position_embeddings": n_read})
    )
    n_rows = n_bytes // (4 * n_vocab)
    none, few, all_ = (peak_of(loaded, one_long_call(n_read, n)) for n in (1, n_rows, n_read - 1))
    assert few >= n_bytes
    assert all_ - few <= 0.2 * n_bytes  # 0.2 and not 8.3, which is what is scored
    assert all_ - none <= 0.3 * 4 * n_vocab * n_read


def test_oracle_16_memory_grows_with_the_tokens_of_a_pass_and_no_faster() -> None:
    loaded = loaded_from_module(lively_model(**SMALL | {"max_position_embeddings": 10_000}))

    def tree(n: int) -> Rollouts:
        ((prompt, action),) = one_long_call(n, n // 8)[0]
        return [[(prompt, action)], [(prompt, action[::-1])], [(prompt[: n // 2], action)]]

    small, large = (peak_of(loaded, tree(n)) for n in (2_000, 4_000))
    assert 1.5 * small <= large <= 2.1 * small


def test_oracle_16_memory_follows_the_budget_and_not_the_data() -> None:
    loaded = loaded_from_module(lively_model(**SMALL))

    def data(n: int) -> Rollouts:
        random = np.random.default_rng(1)
        prompts = random.integers(3, FIRST_FREE, (n, 100)).tolist()
        return [[(prompt, [3, 4, 5])] for prompt in prompts]

    few, many, whole = (
        peak_of(loaded, data(n), budget) for n, budget in ((8, 400), (64, 400), (64, EVERYTHING))
    )
    assert many <= 1.2 * few
    assert whole >= 3 * many


# ── Elsewhere ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", ELSEWHERE)
def test_oracles_told_elsewhere_are_there(number: int) -> None:
    file, name = ELSEWHERE[number]
    text = (Path(__file__).parents[2] / file).read_text()
    assert re.search(rf"^def test_\w*{name}", text, re.MULTILINE)
