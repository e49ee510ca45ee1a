import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.score_builders import TINY, random_model
from tests.varlen_twin import TOLD_TWIN
from trajkit.scoring.forward import attention, kernels
from trajkit.scoring.forward.attention import (
    CannotShare,
    Layout,
    layout_of,
    tree_attention,
    tree_states,
)
from trajkit.scoring.forward.kernels import Scoring
from trajkit.scoring.planning.pack import Run

RUNS = (
    Run(start=0, end=4, subtree_end=14),
    Run(start=4, end=9, subtree_end=12),
    Run(start=9, end=10, subtree_end=10),
    Run(start=10, end=12, subtree_end=12),
    Run(start=12, end=14, subtree_end=14),
    Run(start=14, end=17, subtree_end=17),
)
POSITIONS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 4, 5, 0, 1, 2])
LAYOUT = layout_of(RUNS, POSITIONS, torch.device("cpu"))


def sees(layout: Layout, row: int, other: int, window: int | None) -> bool:
    """Return whether a row sees another: on its path, not ahead of it, not out of its window."""
    run = next(run for run in layout.runs if run.start <= other < run.end)
    far = int(layout.positions[row] - layout.positions[other])
    is_near = window is None or far < window
    return run.start <= row < run.subtree_end and other <= row and is_near


def by_hand(query: Any, key: Any, value: Any, layout: Layout, scoring: Scoring) -> torch.Tensor:
    """Return the attention of each row from its definition, in float64, one row at a time."""
    n_heads, n_rows, _ = query.shape
    group = n_heads // key.shape[0]
    out = torch.zeros(n_heads, n_rows, value.shape[2], dtype=torch.float64)
    for row in range(n_rows):
        seen = [at for at in range(n_rows) if sees(layout, row, at, scoring.window)]
        for head in range(n_heads):
            scores = key[head // group, seen].double() @ query[head, row].double() * scoring.scale
            if scoring.softcap is not None:
                scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
            if scoring.sinks is not None:
                scores = torch.cat([scores, scoring.sinks[head : head + 1].double()])
            weights = scores.softmax(0)[: len(seen)]
            out[head, row] = weights @ value[head // group, seen].double()
    return out


def tensors(
    n_keys: int = 2, size: int = 8, value_size: int | None = None, dtype: Any = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    query = torch.randn((4, 17, size), dtype=dtype)
    key = torch.randn((n_keys, 17, size), dtype=dtype)
    return query, key, torch.randn((n_keys, 17, value_size or size), dtype=dtype)


@pytest.mark.parametrize("n_keys", [1, 2, 4])
@pytest.mark.parametrize("size", [7, 8, 64])
def test_a_row_attends_to_its_path_and_nothing_else(n_keys: int, size: int) -> None:
    parts = tensors(n_keys, size)
    scoring = Scoring(scale=0.7)
    found = tree_attention(*parts, LAYOUT, scoring)
    torch.testing.assert_close(
        found.double(), by_hand(*parts, LAYOUT, scoring), atol=1e-5, rtol=0.0
    )


@pytest.mark.parametrize(
    "more",
    [
        {"softcap": 2.0},
        {"window": 1},
        {"window": 3},
        {"window": 10},
        {"window": 11},
        {"window": 100},
        {"window": 3, "softcap": 2.0},
        {"sinks": torch.tensor([-1.0, 0.0, 1.0, 5.0])},
        {"sinks": torch.tensor([-1.0, 0.0, 1.0, 5.0]), "window": 4},
    ],
)
@pytest.mark.parametrize("at_once", [1, 64, 2**24])
def test_windows_caps_and_sinks(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], at_once: int
) -> None:
    monkeypatch.setattr(kernels, "_SCORES_AT_ONCE", at_once)
    parts = tensors()
    scoring = Scoring(scale=0.35, **more)
    found = tree_attention(*parts, LAYOUT, scoring)
    torch.testing.assert_close(
        found.double(), by_hand(*parts, LAYOUT, scoring), atol=1e-5, rtol=0.0
    )


def test_values_may_have_another_size_than_keys() -> None:
    parts = tensors(value_size=5)
    found = tree_attention(*parts, LAYOUT, Scoring(scale=0.5))
    torch.testing.assert_close(
        found.double(), by_hand(*parts, LAYOUT, Scoring(scale=0.5)), atol=1e-5, rtol=0.0
    )


def test_float64_is_computed_in_float64() -> None:
    parts = tensors(dtype=torch.float64)
    for scoring in (Scoring(scale=0.5), Scoring(scale=0.5, window=3)):
        found = tree_attention(*parts, LAYOUT, scoring)
        torch.testing.assert_close(found, by_hand(*parts, LAYOUT, scoring), atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_merged_in_float32(dtype: Any) -> None:
    parts = tensors(dtype=dtype)
    scoring = Scoring(scale=0.5)
    found = tree_attention(*parts, LAYOUT, scoring)
    assert found.dtype is dtype
    exact = by_hand(*parts, LAYOUT, scoring)
    assert (found.double() - exact).abs().max() < 2 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n_heads", "n_keys", "size"), [(8, 4, 32), (9, 3, 64), (4, 4, 128)])
def test_a_sequence_among_others_is_as_alone_bit_for_bit(
    dtype: Any, n_heads: int, n_keys: int, size: int
) -> None:
    """On the CPU; what a model's products do to few rows is another matter."""
    lengths = [1, 2, 70, 300, 600]
    ends = np.cumsum(lengths).tolist()
    runs = [
        Run(start=end - n, end=end, subtree_end=end) for n, end in zip(lengths, ends, strict=True)
    ]
    positions = np.concatenate([np.arange(n) for n in lengths])
    layout = layout_of(tuple(runs), positions, torch.device("cpu"))
    torch.manual_seed(0)
    parts = [
        torch.randn((len(positions), n, size), dtype=dtype).transpose(0, 1)
        for n in (n_heads, n_keys, n_keys)
    ]
    found = tree_attention(parts[0], parts[1], parts[2], layout, Scoring(scale=size**-0.5))
    for run in runs:
        query, key, value = (part[None, :, run.start : run.end].clone() for part in parts)
        alone = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        assert torch.equal(found[:, run.start : run.end], alone[0])


def test_scores_that_are_large_do_not_overflow() -> None:
    query, key, value = tensors()
    found = tree_attention(100 * query, 100 * key, value, LAYOUT, Scoring(scale=1.0))
    exact = by_hand(100 * query, 100 * key, value, LAYOUT, Scoring(scale=1.0))
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=0.0)


def test_a_value_that_is_not_a_number_stays_in_its_run_and_below() -> None:
    query, key, value = tensors()
    value[:, 5] = math.nan
    for scoring in (Scoring(scale=0.5), Scoring(scale=0.5, window=20, softcap=3.0)):
        found = tree_attention(query, key, value, LAYOUT, scoring)
        bad = found.isnan().any(dim=2).any(dim=0).nonzero()[:, 0].tolist()
        assert set(range(5, 12)) <= set(bad) <= set(range(4, 12))  # a kernel's 0 x NaN is NaN


def random_layout(seed: int) -> Layout:
    """Return a pass of one to three trees of up to five levels, with runs of 1 to 9 rows."""
    rng = np.random.default_rng(seed)
    runs: list[Run] = []
    positions: list[int] = []

    def grow(depth: int, level: int) -> None:
        start, at = len(positions), len(runs)
        n_rows = int(rng.choice([1, 1, 2, 5, 9]))
        positions.extend(range(depth, depth + n_rows))
        runs.append(Run(start=start, end=start + n_rows, subtree_end=0))
        if level < 4 and rng.random() < 0.6:
            for _ in range(int(rng.integers(1, 4))):
                grow(depth + n_rows, level + 1)
        runs[at] = Run(start=start, end=start + n_rows, subtree_end=len(positions))

    for _ in range(int(rng.integers(1, 4))):
        grow(0, 0)
    return layout_of(tuple(runs), np.array(positions), torch.device("cpu"))


def seen_by(layout: Layout, window: int | None) -> torch.Tensor:
    """Return [T, T] whether a row sees another, from their runs and positions."""
    n_rows = len(layout.positions)
    table = torch.zeros((n_rows, n_rows), dtype=torch.bool)
    for run in layout.runs:
        table[run.start : run.subtree_end, run.start : run.end] = True
    far = layout.depth[:, None] - layout.depth[None]
    return table & (far >= 0) & (far < (n_rows if window is None else window))


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scoring: Scoring
) -> torch.Tensor:
    """Return attention as one masked softmax in float64."""
    group = len(query) // len(key)
    key, value = (part.double().repeat_interleave(group, 0) for part in (key, value))
    scores = query.double() @ key.mT * scoring.scale
    scores = scores.masked_fill(~seen_by(layout, scoring.window), -torch.inf)
    if scoring.sinks is not None:
        sinks = scoring.sinks.double()[:, None, None].expand(-1, len(layout.positions), 1)
        scores = torch.cat([scores, sinks], 2)
    return scores.softmax(2)[:, :, : value.shape[1]] @ value


@pytest.fixture
def by_levels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[int, int]]]:
    """Let passes go level by level, and list how many rows asked in each call, and how they see."""
    calls: list[tuple[int, tuple[int, int]]] = []

    def varlen(query: torch.Tensor, *rest: Any, near: tuple[int, int], scale: float) -> Any:
        calls.append((len(query), near))
        return kernels._cuda_varlen(query, *rest, near=near, scale=scale)

    monkeypatch.setattr(kernels, "_library_varlen", lambda: TOLD_TWIN)
    monkeypatch.setattr(attention, "varlen_of", lambda query, value: varlen)
    return calls


SINKS = torch.tensor([-1.0, 0.0, 1.0, 5.0])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("n_keys", "size", "value_size", "more"),
    [
        (1, 8, 8, {}),
        (2, 8, 8, {"sinks": SINKS}),
        (2, 24, 16, {}),
        (4, 7, 7, {}),
        (2, 8, 8, {"window": 1}),
        (2, 8, 8, {"window": 4, "sinks": SINKS}),
        (2, 8, 5, {"window": 11}),
    ],
)
def test_level_by_level_is_run_by_run_is_one_masked_softmax(
    monkeypatch: pytest.MonkeyPatch,
    by_levels: list[Any],
    seed: int,
    n_keys: int,
    size: int,
    value_size: int,
    more: dict[str, Any],
) -> None:
    layout, scoring = random_layout(seed), Scoring(scale=0.6, **more)
    n_rows = len(layout.positions)
    torch.manual_seed(seed)
    query = torch.randn((4, n_rows, size), dtype=torch.float64)
    key = torch.randn((n_keys, n_rows, size), dtype=torch.float64)
    value = torch.randn((n_keys, n_rows, value_size), dtype=torch.float64)
    parts = query, key, value
    found = tree_attention(*parts, layout, scoring)
    assert by_levels[0] == (n_rows, (more.get("window", 0) - 1, 0))
    assert {near for _, near in by_levels[1:]} <= {(-1, -1)}
    monkeypatch.setattr(attention, "varlen_of", lambda query, value: None)
    for wanted in (dense(*parts, layout, scoring), tree_attention(*parts, layout, scoring)):
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_levels_in_half_precision_are_merged_in_float32(by_levels: list[Any], dtype: Any) -> None:
    parts = tensors(dtype=dtype)
    scoring = Scoring(scale=0.5)
    found = tree_attention(*parts, LAYOUT, scoring)
    assert by_levels
    assert found.dtype is dtype
    exact = dense(*parts, LAYOUT, scoring)
    assert (found.double() - exact).abs().max() < 2 * torch.finfo(dtype).eps * exact.abs().max()


def test_a_layer_is_as_many_calls_as_its_tree_is_deep_and_one(by_levels: list[Any]) -> None:
    tree_attention(*tensors(), LAYOUT, Scoring(scale=0.5))
    assert [n_rows for n_rows, _ in by_levels] == [17, 10, 3]
    del by_levels[:]
    tree_attention(*tensors(), LAYOUT, Scoring(scale=0.5, window=10))
    assert [n_rows for n_rows, _ in by_levels] == [17, 3]  # 11 positions under the root: cut


@pytest.mark.parametrize("seed", range(12))
def test_trees_side_by_side_share_their_levels(by_levels: list[Any], seed: int) -> None:
    layout = random_layout(seed)
    inner = [run for run in layout.runs if run.subtree_end > run.end]
    above = [
        sum(one.end <= run.start and run.end <= one.subtree_end for one in inner) for run in inner
    ]
    parts = torch.ones((4, len(layout.positions), 8))
    tree_attention(parts, parts, parts, layout, Scoring(scale=0.5))
    assert len(by_levels) == 1 + len(set(above))


def test_calls_are_laid_out_once_for_all_layers_of_a_window(by_levels: list[Any]) -> None:
    layout = layout_of(RUNS, POSITIONS, torch.device("cpu"))
    for window in (None, 3, None, 3):
        parts, scoring = tensors(), Scoring(scale=0.5, window=window)
        found = tree_attention(*parts, layout, scoring)
        wanted = dense(*parts, layout, scoring)
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=0.0)
    assert layout.grouped(None) is layout.grouped(None)
    assert set(layout._grouped) == {None, 3}


def test_by_levels_a_value_that_is_not_a_number_stays_in_its_run_and_below(
    by_levels: list[Any],
) -> None:
    query, key, value = tensors()
    value[:, 5] = math.nan
    found = tree_attention(query, key, value, LAYOUT, Scoring(scale=0.5))
    assert by_levels
    bad = found.isnan().any(dim=2).any(dim=0).nonzero()[:, 0].tolist()
    assert set(range(5, 12)) <= set(bad) <= set(range(4, 12))


def test_softcaps_are_computed_run_by_run(by_levels: list[Any]) -> None:
    parts, scoring = tensors(), Scoring(scale=0.5, softcap=2.0)
    found = tree_attention(*parts, LAYOUT, scoring)
    assert not by_levels
    torch.testing.assert_close(
        found.double(), by_hand(*parts, LAYOUT, scoring), atol=1e-5, rtol=0.0
    )


@pytest.mark.parametrize("window", [None, 4])
def test_states_by_levels_are_those_by_runs(
    monkeypatch: pytest.MonkeyPatch, by_levels: list[Any], window: int | None
) -> None:
    more = {} if window is None else {"sliding_window": window}
    model = random_model("llama" if window is None else "mistral", **TINY, **more)
    ids = torch.arange(5, 22)
    found, windows = tree_states(model, "model", ids, LAYOUT)
    assert windows == [window, window]
    assert by_levels
    monkeypatch.setattr(attention, "varlen_of", lambda query, value: None)
    wanted, _ = tree_states(model, "model", ids, LAYOUT)
    torch.testing.assert_close(found.states_TH, wanted.states_TH, atol=2e-5, rtol=0.0)


def path(*rows: tuple[int, int]) -> list[int]:
    return [row for start, end in rows for row in range(start, end)]


def test_states_of_a_tree_are_those_of_its_branches() -> None:
    model = random_model("llama", **TINY)
    ids = torch.arange(5, 22)
    hidden, windows = tree_states(model, "model", ids, LAYOUT)
    assert windows == [None, None]
    for rows in (path((0, 10)), path((0, 9), (10, 12)), path((0, 4), (12, 14)), path((14, 17))):
        with torch.inference_mode():
            alone = model.model(input_ids=ids[rows][None], use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(hidden.states_TH[rows], alone, atol=2e-5, rtol=0.0)


def test_in_float64_a_tree_and_its_branches_differ_by_nothing() -> None:
    model = random_model("qwen3", **TINY).double()
    ids = torch.arange(5, 22)
    hidden, _ = tree_states(model, "model", ids, LAYOUT)
    for rows in (path((0, 10)), path((0, 9), (10, 12)), path((0, 4), (12, 14)), path((14, 17))):
        with torch.inference_mode():
            alone = model.model(input_ids=ids[rows][None], use_cache=False).last_hidden_state[0]
        gap = (hidden.states_TH[rows] - alone).abs().max()
        assert gap < 1e-6  # rotary angles and norms are float32 inside the library
        assert hidden.states_TH.dtype is torch.float64


def test_the_models_own_attention_is_back_afterwards() -> None:
    model = random_model("llama", **TINY)
    before = model.config._attn_implementation
    tree_states(model, "model", torch.arange(5, 22), LAYOUT)
    assert model.config._attn_implementation == before

    def refuse(*args: Any, **given: Any) -> None:
        raise KeyError

    model.model.layers[0].forward = refuse
    with pytest.raises(KeyError):
        tree_states(model, "model", torch.arange(5, 22), LAYOUT)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"bias": torch.zeros(1)}, "bias"),
        ({"dropout": 0.1}, "dropout"),
        ({"attention_mask": torch.zeros(1)}, "mask"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    query, key, value = (part[None] for part in tensors())
    token = attention._WALK.set(attention._Walk(layout=LAYOUT))
    asked = {"attention_mask": None, "scaling": 0.5, **given}
    try:
        with pytest.raises(CannotShare, match=named):
            attention._attend(torch.nn.Module(), query, key, value, **asked)
    finally:
        attention._WALK.reset(token)
