"""What rows of logits say of one id each: log-prob, entropy, rank, and distance to other rows.

Dimension key: N rows, V ids of the vocabulary.

The logits are read once. On a GPU one Triton kernel does that, where it has shown on a few rows
that it gives the numbers of the plain form; everywhere else the plain form does, a few rows at a
time, so that nothing as large as the logits is held beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import torch

from trajkit.scoring.memory import memory_full_told

Judged: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Log-prob and entropy [N] in the dtype of the logits, nats; rank [N] int32."""

_VALUES_AT_ONCE = {"cpu": 2**21, "cuda": 2**26}
"""Logits that the plain forms take at a time: 8 MiB on a CPU, 256 MiB on a GPU."""


def judge(logits_NV: torch.Tensor, ids_N: torch.Tensor) -> Judged:
    """Return log-prob, entropy and rank of one id per row; may overwrite the logits.

    The rank counts ids that are strictly likelier. NaN or +inf anywhere in a row makes both of its
    numbers NaN; -inf is a probability of 0.
    """
    kernel = _kernel(logits_NV.device) if _is_for_kernel(logits_NV) else None
    return (kernel or judge_plainly)(logits_NV, ids_N)


def judge_plainly(logits_NV: torch.Tensor, ids_N: torch.Tensor) -> Judged:
    """Return what `judge` does, in plain operations; overwrites the logits.

    The normaliser is the logarithm of a pairwise sum: `torch.log_softmax` adds up one after the
    other on the CPU, which costs 3e-5 nats at 150,000 ids where this costs 2e-6.
    """
    few = _rows_at_once(logits_NV)
    parts = zip(torch.split(logits_NV, few), torch.split(ids_N, few), strict=True)
    logprobs, entropies, ranks = zip(*(_judge_some(*part) for part in parts), strict=True)
    return torch.cat(logprobs), torch.cat(entropies), torch.cat(ranks)


def exact_kl(logits_NV: torch.Tensor, ref_logits_NV: torch.Tensor) -> torch.Tensor:
    """Return KL(p || q) [N] of two rows of logits, nats: the sum of p (log p - log q).

    Summed in float64, with both normalisers apart: no digits are lost where logits are large. An id
    that p rules out adds nothing, one that q alone rules out makes it infinite; NaN or +inf among
    the logits make it NaN.
    """
    few = _rows_at_once(logits_NV)
    parts = zip(torch.split(logits_NV, few), torch.split(ref_logits_NV, few), strict=True)
    return torch.cat([_kl_of_some(*part) for part in parts])


def _rows_at_once(logits_NV: torch.Tensor) -> int:
    return max(1, _VALUES_AT_ONCE[logits_NV.device.type] // logits_NV.shape[1])


def _judge_some(logits_NV: torch.Tensor, ids_N: torch.Tensor) -> Judged:
    column = ids_N[:, None]
    rank_N = (logits_NV > logits_NV.gather(1, column)).sum(1, dtype=torch.int32)
    logits_NV -= logits_NV.amax(1, keepdim=True)
    chosen_N = logits_NV.gather(1, column)[:, 0].double()
    weights_NV = logits_NV.exp()
    total_N = weights_NV.sum(1).double()
    weights_NV *= logits_NV.clamp_(min=torch.finfo(logits_NV.dtype).min)
    weighted_N = weights_NV.sum(1).double()
    return *_numbers(chosen_N, total_N, weighted_N, logits_NV.dtype), rank_N


def _numbers(
    chosen_N: torch.Tensor, total_N: torch.Tensor, weighted_N: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-prob and entropy from sums over a row, all relative to its largest logit.

    With x the logits less the largest: `chosen` is x of the id, `total` the sum of exp(x),
    `weighted` that of x exp(x); all in float64.
    """
    log_total_N = total_N.log()
    entropy_N = log_total_N - weighted_N / total_N
    return (chosen_N - log_total_N).to(dtype), entropy_N.to(dtype)


def _kl_of_some(logits_NV: torch.Tensor, ref_logits_NV: torch.Tensor) -> torch.Tensor:
    p_NV = logits_NV - logits_NV.amax(1, keepdim=True)
    q_NV = ref_logits_NV - ref_logits_NV.amax(1, keepdim=True)
    weights_NV = p_NV.exp()
    total_N = weights_NV.sum(1, dtype=torch.float64)
    ref_total_N = q_NV.exp().sum(1, dtype=torch.float64)
    is_out_NV = p_NV.isneginf()
    only_ref_N = (q_NV.isneginf() & ~is_out_NV).any(1)
    terms_NV = torch.where(is_out_NV, weights_NV, weights_NV * (p_NV - q_NV))
    mean_N = terms_NV.sum(1, dtype=torch.float64) / total_N
    kl_N = mean_N - (total_N.log() - ref_total_N.log())
    kl_N = torch.where(only_ref_N, torch.inf, kl_N)
    return torch.where((total_N + ref_total_N).isnan(), torch.nan, kl_N).to(logits_NV.dtype)


def judge_by_kernel(logits_NV: torch.Tensor, ids_N: torch.Tensor) -> Judged:
    """Return what `judge` does by the Triton kernel; leaves the logits as they are."""
    from trajkit.scoring.forward.judging_kernel import row_sums

    top_N, total_N, weighted_N, rank_N = row_sums(logits_NV, ids_N)
    chosen_N = logits_NV.gather(1, ids_N[:, None])[:, 0].double() - top_N.double()
    numbers = _numbers(chosen_N, total_N.double(), weighted_N.double(), logits_NV.dtype)
    return *numbers, rank_N


def _is_for_kernel(logits_NV: torch.Tensor) -> bool:
    is_rows = logits_NV.dtype is torch.float32 and logits_NV.stride(1) == 1
    return logits_NV.is_cuda and is_rows and len(logits_NV) > 0


@lru_cache(maxsize=8)
def _kernel(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], Judged] | None:
    """Return the kernel where this machine can build it and it gives the plain form's numbers."""
    try:
        with memory_full_told():
            return judge_by_kernel if kernel_agrees(device) else None
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - no Triton, no compiler, no driver: the plain form needs none
        return None


def kernel_agrees(device: torch.device) -> bool:
    """Return whether the kernel gives the plain form's numbers on a few rows, odd ones too."""
    n_ids = 5_000
    values = torch.sin(torch.arange(6 * n_ids, device=device, dtype=torch.float32) ** 1.5) * 8
    logits_NV = values.reshape(6, n_ids)
    logits_NV[1, 4_500] = torch.inf
    logits_NV[2, 7] = torch.nan
    logits_NV[3, :4_200] = -torch.inf
    logits_NV[4] += 200.0
    logits_NV[5] = -torch.inf
    ids_N = torch.tensor([3, 0, 9, 5, 4_999, 1], device=device)
    found, wanted = judge_by_kernel(logits_NV, ids_N), judge_plainly(logits_NV.clone(), ids_N)
    is_same = [
        torch.allclose(one, other, rtol=0.0, atol=1e-5, equal_nan=True)
        for one, other in zip(found[:2], wanted[:2], strict=True)
    ]
    has_rank = ~wanted[0].isnan()
    return all(is_same) and torch.equal(found[2][has_rank], wanted[2][has_rank])
