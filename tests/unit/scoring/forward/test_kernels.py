import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import varlen

from tests.varlen_twin import TOLD_TWIN, varlen_twin
from trajkit.scoring.forward import kernels
from trajkit.scoring.forward.kernels import Scoring, Segments, leaf_of, open_block, varlen_of

HALF = (torch.bfloat16, torch.float16)


def tensors(
    n_asking: int, n_seen: int, size: int = 8, value_size: int | None = None, dtype: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    query = torch.randn((4, n_asking, size), dtype=dtype)
    key = torch.randn((2, n_seen, size), dtype=dtype)
    return query, key, torch.randn((2, n_seen, value_size or size), dtype=dtype)


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_hidden: Any, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and its log-sums from the whole table of scores, in float64."""
    key, value = (part.double().repeat_interleave(2, 0) for part in (key, value))
    scores = (query.double() @ key.mT * scale).masked_fill(is_hidden, -torch.inf)
    lse = scores.logsumexp(2)
    return (scores - lse[:, :, None]).exp() @ value, lse


def ahead(n_asking: int, n_seen: int) -> torch.Tensor:
    return torch.arange(n_seen)[None] > torch.arange(n_asking)[:, None]


def close(found: Any, wanted: Any, atol: float = 1e-5) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, atol=atol, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF])
@pytest.mark.parametrize("n_rows", [1, 5, 70, 600])
def test_the_leaf_of_a_cpu_gives_blocks_and_their_sums(dtype: Any, n_rows: int) -> None:
    atol = {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, 2e-2)
    own, below = tensors(n_rows, n_rows, dtype=dtype), tensors(n_rows, 9, dtype=dtype)
    leaf = leaf_of(own[0], own[2])
    assert leaf is not None
    nothing = torch.tensor(False)
    close(leaf(*own, is_causal=True, scale=0.6), dense(*own, ahead(n_rows, n_rows), 0.6), atol)
    close(leaf(*below, is_causal=False, scale=0.6), dense(*below, nothing, 0.6), atol)


def on_gpu(dtype: Any, size: int, monkeypatch: pytest.MonkeyPatch, sm: int = 90) -> Any:
    """Return what looks like a tensor of a GPU, as far as a choice of kernel looks."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: divmod(sm, 10))
    device = torch.device("cuda", 0)
    return SimpleNamespace(is_cuda=True, device=device, dtype=dtype, shape=(4, 9, size))


@pytest.mark.parametrize(
    ("dtype", "size", "value_size", "sm", "segments", "block"),
    [
        (torch.bfloat16, 64, 64, 90, "_cuda_varlen", "_cuda_memory_efficient"),
        (torch.float16, 192, 128, 80, "_cuda_varlen", "_cuda_memory_efficient"),
        (torch.float16, 64, 64, 75, None, "_cuda_memory_efficient"),
        (torch.bfloat16, 64, 64, 75, None, None),
        (torch.float32, 64, 64, 75, None, "_cuda_memory_efficient"),
        (torch.bfloat16, 257, 64, 90, None, None),
        (torch.bfloat16, 64, 512, 90, None, None),
        (torch.float32, 64, 64, 90, None, "_cuda_memory_efficient"),
        (torch.float64, 64, 64, 90, None, None),
    ],
)
def test_the_kernel_of_a_gpu_is_chosen_by_what_it_takes(
    monkeypatch: pytest.MonkeyPatch,
    dtype: Any,
    size: int,
    value_size: int,
    sm: int,
    segments: str | None,
    block: str | None,
) -> None:
    query, value = (on_gpu(dtype, one, monkeypatch, sm) for one in (size, value_size))
    assert getattr(varlen_of(query, value), "__name__", None) == segments
    assert getattr(leaf_of(query, value), "__name__", None) == block


def test_no_kernel_is_taken_where_there_is_none() -> None:
    query, _, value = tensors(3, 3, value_size=5)
    assert leaf_of(query, value) is None
    assert varlen_of(query.half(), query.half()) is None
    elsewhere = torch.empty((4, 3, 8), device="meta", dtype=torch.float16)
    assert leaf_of(elsewhere, elsewhere) is None
    assert varlen_of(elsewhere, elsewhere) is None


@pytest.mark.parametrize(("size", "padded"), [(8, 8), (7, 8), (64, 64), (65, 72)])
def test_kernels_of_a_gpu_get_every_head_and_a_size_they_take(size: int, padded: int) -> None:
    _, key, value = tensors(17, 17, size, value_size=5)
    for part in (key, value):
        found = kernels._padded(part, 4, size)
        assert found.shape == (1, 4, 17, padded)
        assert found.is_contiguous()
        for head in range(4):
            assert torch.equal(found[0, head, :, : part.shape[2]], part[head // 2])
        assert not found[..., part.shape[2] :].any()


def as_in_2_11(
    query: Any,
    key: Any,
    value: Any,
    cu_seq_q: Any,
    cu_seq_k: Any,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float = 1.0,
    window_size: tuple[int, int] = (-1, -1),
) -> Any:
    rows = cu_seq_q, cu_seq_k, max_q, max_k
    asked: dict[str, Any] = {"return_aux": return_aux, "scale": scale, "window_size": window_size}
    return varlen_twin(query, key, value, *rows, enable_gqa=True, **asked)


def segments_of(asking: list[int], seen: list[int]) -> Segments:
    starts = [torch.tensor([0, *np.cumsum(n)], dtype=torch.int32) for n in (asking, seen)]
    return Segments(
        asking=slice(0, sum(asking)),
        seen=slice(0, sum(seen)),
        asking_starts=starts[0],
        seen_starts=starts[1],
        most_asking=max(asking),
        most_seen=max(seen),
    )


@pytest.mark.parametrize("library", [as_in_2_11, varlen_twin])
@pytest.mark.parametrize(("size", "value_size"), [(8, 8), (7, 7), (24, 16), (5, 12)])
def test_the_library_is_called_as_each_of_its_versions_wants(
    monkeypatch: pytest.MonkeyPatch, library: Any, size: int, value_size: int
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", library)
    kernels._library_varlen.cache_clear()
    parts = tensors(9, 7, size, value_size)
    query, key, value = (part.transpose(0, 1) for part in parts)
    try:
        out, lse = kernels._cuda_varlen(
            query, key, value, segments_of([2, 6, 1], [4, 1, 2]), near=(-1, -1), scale=0.6
        )
    finally:
        kernels._library_varlen.cache_clear()
    assert (out.shape, lse.shape) == ((4, 9, value_size), (4, 9))
    for rows, keys in [((0, 2), (0, 4)), ((2, 8), (4, 5)), ((8, 9), (5, 7))]:
        at, of = slice(*rows), slice(*keys)
        block = parts[0][:, at], parts[1][:, of], parts[2][:, of]
        close((out[:, at], lse[:, at]), dense(*block, torch.tensor(False), 0.6))


def test_the_library_still_takes_what_it_is_given() -> None:
    """The installed one, as far as a machine without a GPU can ask it."""
    call: Any = kernels._library_varlen()
    rows = torch.empty((9, 4, 8), device="meta", dtype=torch.bfloat16)
    keys = torch.empty((7, 2, 8), device="meta", dtype=torch.bfloat16)
    starts = torch.empty(4, device="meta", dtype=torch.int32)
    out, lse = call(rows, keys, keys, starts, starts, 6, 4, scale=0.6, window_size=(-1, 0))
    assert (out.shape, lse.shape) == (rows.shape, (4, 9))


def test_rows_that_see_nothing_weigh_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_library_varlen", lambda: TOLD_TWIN)
    query, key, value = (part.transpose(0, 1) for part in tensors(5, 4))
    _, lse = kernels._cuda_varlen(
        query, key, value, segments_of([2, 3], [4, 0]), near=(-1, -1), scale=0.6
    )
    assert lse[:, :2].isfinite().all()
    assert lse[:, 2:].isneginf().all()


@pytest.mark.parametrize("window", [None, 1, 3, 6, 7, 40])
@pytest.mark.parametrize("at_once", [1, 64, 2**24])
@pytest.mark.parametrize(
    "positions",
    [[5, 6, 7, 8, 9, 10], [12, 13, 14, 12, 13, 30], [7, 7, 5]],
)
def test_an_open_block_hides_by_position(
    monkeypatch: pytest.MonkeyPatch, window: int | None, at_once: int, positions: list[int]
) -> None:
    monkeypatch.setattr(kernels, "_SCORES_AT_ONCE", at_once)
    parts = tensors(len(positions), 6, value_size=5)
    far = torch.tensor(positions)[:, None] - torch.arange(5, 11)[None]
    is_hidden = far < 0 if window is None else (far < 0) | (far >= window)
    out, lse = open_block(
        *parts, positions=np.array(positions), first=5, scoring=Scoring(scale=0.6, window=window)
    )
    blind = is_hidden.all(1)
    wanted, sums = dense(*parts, is_hidden, 0.6)
    close((out[:, ~blind], lse[:, ~blind]), (wanted[:, ~blind], sums[:, ~blind]))
    assert not out[:, blind].any()
    assert bool((lse[:, blind] == -math.inf).all())
