"""The Triton kernel that reads each row of logits once. Imported only where it is wanted.

One program a row. Each of its lanes sums every 4,096th id, and all lanes are scaled down together
whenever a larger logit comes: the running form of softmax (Milakov & Gimelshein, arXiv 1805.02867),
here with the sum of x exp(x) beside that of exp(x), which is what entropy needs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_LANES = 4_096
_WARPS = 8


def row_sums(logits_NV: torch.Tensor, ids_N: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return for each row its largest logit, two sums, and the rank of one id.

    Args:
        logits_NV: [N, V] float32, each row contiguous.
        ids_N: [N] int64 in `[0, V)`.

    Returns:
        `top` [N], and with x = logits - top the sums of exp(x) and of x exp(x) [N], all float32;
        [N] int32, how many ids have a larger logit. NaN or +inf in a row makes its sums NaN.
    """
    n_rows, n_ids = logits_NV.shape
    top, total, weighted = logits_NV.new_empty((3, n_rows))
    rank = torch.empty(n_rows, dtype=torch.int32, device=logits_NV.device)
    device_of: Any = torch.cuda.device_of
    with device_of(logits_NV):  # Triton launches where the process is, not the rows
        _row_sums[(n_rows,)](
            logits_NV, logits_NV.stride(0), ids_N, top, total, weighted, rank,
            n_ids=n_ids, lanes=_LANES, num_warps=_WARPS,
        )  # fmt: skip
    return top, total, weighted, rank


@triton.jit  # type: ignore[untyped-decorator]
def _row_sums(  # type: ignore[no-untyped-def] # noqa: PLR0913 - pointers, one a column
    logits,
    stride,
    ids,
    tops,
    totals,
    weighteds,
    ranks,
    n_ids: tl.constexpr,
    lanes: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    chosen = tl.load(start + tl.load(ids + row))
    columns = tl.arange(0, lanes)
    total = tl.zeros((lanes,), tl.float32)
    weighted = tl.zeros((lanes,), tl.float32)
    n_above = tl.zeros((lanes,), tl.int32)
    top = tl.full((), -float("inf"), tl.float32)
    for first in range(0, n_ids, lanes):
        at = first + columns
        values = tl.load(start + at, mask=at < n_ids, other=-float("inf"))
        n_above += (values > chosen).to(tl.int32)
        higher = tl.maximum(top, tl.max(values, 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing finite was seen yet
        shrink = tl.exp(top - base)
        moved = tl.where(shrink > 0.0, top - base, 0.0)
        weighted = (weighted + total * moved) * shrink
        total *= shrink
        apart = values - base
        weight = tl.exp(apart)
        total += weight
        weighted += tl.where(apart == -float("inf"), 0.0, weight * apart)
        top = higher
    tl.store(tops + row, top)
    tl.store(totals + row, tl.sum(total, 0))
    tl.store(weighteds + row, tl.sum(weighted, 0))
    tl.store(ranks + row, tl.sum(n_above, 0))
