"""The leaves of tree attention: what computes blocks on a device, and gives the log of their sums.

Dimension key: T rows of the pass, Q of them that ask, K that are seen, S segments, H heads, D size
of a head.

    varlen_of     half precision on a GPU: the blocks of many runs in one call
    leaf_of       a kernel for one block: CPU, or a GPU that cannot do the above
    open_block    plain products: any dtype and size of head, and what no kernel does to scores

Kernels of a GPU are small, guarded and have never run on one; what surrounds them has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from trajkit.scoring.planning.plan import Rows

_MAX_HEAD, _HEAD_STEP = 256, 8
"""Sizes of head that kernels of a GPU take: multiples up to a limit."""
_VARLEN_SINCE = _BFLOAT16_SINCE = (8, 0)
"""The compute capability from which on segments are attended to in one call, and bf16 at all."""
_SCORES_AT_ONCE = 2**24
"""Scores of a block that is computed in the open; more rows are taken in turn."""

Block: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Attention over some keys [H, Q, D], and the log of the sum of its weights [H, Q]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What a layer asks of its attention beside queries, keys and values.

    Attributes:
        scale: factor of the scores.
        window: rows see positions less than this far behind them; `None` all of their path.
        softcap: scores become `softcap * tanh(scores / softcap)`.
        sinks: [H] a score that every row has beside its keys', and that has no value.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """Blocks that one call computes, S of them, none of them empty.

    Attributes:
        asking, seen: rows of the pass, block after block: a range, or [Q] and [K] int64.
        asking_starts, seen_starts: [S + 1] int32, where in these each block begins, and their end.
        most_asking, most_seen: rows of the largest block.
    """

    asking: slice | torch.Tensor
    seen: slice | torch.Tensor
    asking_starts: torch.Tensor
    seen_starts: torch.Tensor
    most_asking: int
    most_seen: int


Leaf: TypeAlias = Callable[..., Block]
"""`leaf(query, key, value, *, is_causal, scale)`: one block, of [H, Q, D] over [H, K, D]."""
Varlen: TypeAlias = Callable[..., Block]
"""`varlen(query, key, value, segments, *, near, scale)`: the blocks of segments, of their rows
[Q, H, D] over [K, H, D]. `near` is how many keys a row sees before and behind its own place in its
block, -1 all."""


def varlen_of(query: torch.Tensor, value: torch.Tensor) -> Varlen | None:
    """Return what attends to many segments in one call for tensors like these, if anything does."""
    if not query.is_cuda or query.dtype not in (torch.float16, torch.bfloat16):
        return None
    if max(query.shape[2], value.shape[2]) > _MAX_HEAD:
        return None
    return _cuda_varlen if _capability(query) >= _VARLEN_SINCE else None


def _capability(tensor: torch.Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(tensor.device)


def leaf_of(query: torch.Tensor, value: torch.Tensor) -> Leaf | None:
    """Return the kernel that computes one block of tensors like these, if there is one."""
    if query.device.type == "cpu":
        return _cpu_flash if query.shape[2] == value.shape[2] else None
    if not query.is_cuda or query.dtype is torch.float64:
        return None
    if max(query.shape[2], value.shape[2]) > _MAX_HEAD:
        return None
    is_narrow = query.dtype is torch.bfloat16 and _capability(query) < _BFLOAT16_SINCE
    return None if is_narrow else _cuda_memory_efficient


def _cpu_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool, scale: float
) -> Block:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        query[None], key[None], value[None], 0.0, is_causal, scale=scale
    )
    return out[0], lse[0]


def _cuda_memory_efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool, scale: float
) -> Block:
    n_heads, size = query.shape[0], value.shape[2]
    parts = (_padded(part, n_heads, query.shape[2]) for part in (query, key, value))
    found = torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        *parts, None, compute_log_sumexp=True, is_causal=is_causal, scale=scale
    )
    return found[0][0, :, :, :size], found[1][0, :, : query.shape[1]]


def _padded(part: torch.Tensor, n_heads: int, size: int) -> torch.Tensor:
    """Return [1, H, T, D] with every head, and a size of head that kernels take."""
    return _widened(_all_heads(part, n_heads), size)[None].contiguous()


def _widened(part: torch.Tensor, size: int) -> torch.Tensor:
    """Return heads of a size that kernels take and that is no less than another; zeros behind."""
    size = max(size, part.shape[2])
    more = size + -size % _HEAD_STEP - part.shape[2]
    return functional.pad(part, (0, more)) if more else part


def _all_heads(part: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Return keys or values with one head for each head of the queries."""
    return part.repeat_interleave(n_heads // part.shape[0], dim=0)


@cache
def _library_varlen() -> Callable[..., Any]:
    """Return the library's call over segments: later ones must be told of fewer heads of keys."""
    from torch.nn.attention import varlen

    told: dict[str, Any] = {"return_aux": varlen.AuxRequest(lse=True)}
    if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters:
        told["enable_gqa"] = True
    return partial(varlen.varlen_attn, **told)


def _cuda_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    *,
    near: tuple[int, int],
    scale: float,
) -> Block:
    size = max(query.shape[2], value.shape[2])
    parts = (_widened(part, size) for part in (query, key, value))
    out, lse = _library_varlen()(
        *(part if part.stride(2) == 1 else part.contiguous() for part in parts),
        segments.asking_starts,
        segments.seen_starts,
        segments.most_asking,
        segments.most_seen,
        scale=scale,
        window_size=near,
    )
    # the kernel's sum over no keys is +inf
    return out[:, :, : value.shape[2]].transpose(0, 1), lse.masked_fill(lse.isposinf(), -torch.inf)


def open_block(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    positions: Rows,
    first: int,
    scoring: Scoring,
) -> Block:
    """Return a block computed in plain products: any dtype, size, window and softcap.

    Queries [H, Q, D] stand at positions [Q], keys and values [H, K, D] at `first` and right behind
    it; keys may have fewer heads. Sinks are no business of a block's.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    key, value = (_all_heads(part, len(query)).to(wide) for part in (key, value))
    out = query.new_zeros((*query.shape[:2], value.shape[2]), dtype=wide)
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=wide)
    n_keys = key.shape[1]
    depth, key_depth = (
        torch.from_numpy(part).to(query.device)
        for part in (positions, np.arange(first, first + n_keys))
    )
    n_at_once = max(1, _SCORES_AT_ONCE // (len(query) * n_keys))
    for start in range(0, len(positions), n_at_once):
        at = slice(start, start + n_at_once)
        keys = _in_reach(positions[at] - first, n_keys, scoring.window)
        if keys.start == keys.stop:
            continue
        scores = torch.matmul(query[:, at].to(wide) * scoring.scale, key[:, keys].mT)
        if scoring.softcap is not None:
            scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
        distance = depth[at, None] - key_depth[None, keys]
        is_hidden = distance < 0
        if scoring.window is not None:
            is_hidden |= distance >= scoring.window
        scores.masked_fill_(is_hidden, -torch.inf)
        lse[:, at] = torch.logsumexp(scores, dim=-1)
        shift = lse[:, at].masked_fill(lse[:, at].isneginf(), 0.0)
        out[:, at] = torch.matmul(torch.exp(scores - shift[:, :, None]), value[:, keys])
    return out, lse


def _in_reach(distance: Rows, n_keys: int, window: int | None) -> slice:
    """Return the keys that some rows may see, from how far each stands behind the first of them."""
    last = min(n_keys, int(distance.max()) + 1)
    start = 0 if window is None else max(0, int(distance.min()) - window + 1)
    return slice(min(start, last), last)
