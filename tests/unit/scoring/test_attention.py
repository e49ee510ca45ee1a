import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.score_builders import TINY, random_model
from trajkit.scoring import attention
from trajkit.scoring.attention import (
    CannotShare,
    Layout,
    Scoring,
    layout_of,
    tree_attention,
    tree_states,
)
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
    monkeypatch.setattr(attention, "_SCORES_AT_ONCE", at_once)
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


@pytest.mark.parametrize(("size", "padded"), [(8, 8), (7, 8), (64, 64), (65, 72)])
def test_kernels_of_a_gpu_get_every_head_and_a_size_they_take(size: int, padded: int) -> None:
    _, key, value = tensors(2, size, value_size=5)
    for part in (key, value):
        found = attention._padded(part, 4, size)
        assert found.shape == (1, 4, 17, padded)
        assert found.is_contiguous()
        for head in range(4):
            assert torch.equal(found[0, head, :, : part.shape[2]], part[head // 2])
        assert not found[..., part.shape[2] :].any()


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
