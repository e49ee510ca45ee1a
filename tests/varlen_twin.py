"""What a GPU's kernel over segments computes, in plain products: one segment after the other."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.attention.varlen import AuxRequest


def varlen_twin(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float = 1.0,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention [T, H, D] and its log-sums [H, T], refusing what the kernel refuses.

    As in the library the last query of a segment stands where its last key does, and a query
    without keys has a sum of +inf.
    """
    n_heads, size = query.shape[1:]
    group = n_heads // key.shape[1]
    assert enable_gqa or group == 1
    assert return_aux.lse
    assert size % 8 == 0
    assert size <= 256
    assert key.shape == value.shape
    assert key.shape[2] == size
    assert all(part.stride(2) == 1 for part in (query, key, value))
    assert cu_seq_q.dtype is cu_seq_k.dtype is torch.int32
    asked, seen = cu_seq_q.tolist(), cu_seq_k.tolist()
    assert (asked[-1], seen[-1]) == (len(query), len(key))
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max()))
    wide = torch.promote_types(query.dtype, torch.float32)
    out = torch.zeros_like(query)
    lse = query.new_full((n_heads, len(query)), torch.inf, dtype=wide)
    for segment in range(len(asked) - 1):
        rows = slice(asked[segment], asked[segment + 1])
        keys = slice(seen[segment], seen[segment + 1])
        n_asked, n_seen = rows.stop - rows.start, keys.stop - keys.start
        if n_asked == 0 or n_seen == 0:
            continue
        part, values = (some[keys].to(wide).repeat_interleave(group, 1) for some in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[rows].to(wide), part) * scale
        place = torch.arange(n_asked)[:, None] + n_seen - n_asked
        ahead = torch.arange(n_seen)[None] - place
        left, right = window_size
        hidden = torch.zeros_like(ahead, dtype=torch.bool)
        if left >= 0:
            hidden |= ahead < -left
        if right >= 0:
            hidden |= ahead > right
        scores.masked_fill_(hidden, -torch.inf)
        lse[:, rows] = scores.logsumexp(2)
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(2), values).to(query.dtype)
    return out, lse


TOLD_TWIN = partial(varlen_twin, return_aux=AuxRequest(lse=True), enable_gqa=True)
"""The twin, told what the library is told at every call."""
