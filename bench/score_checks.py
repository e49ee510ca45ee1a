"""What scoring on a GPU rests on: the device's speed, and kernels that mean what we think.

Dimension key: H heads of queries, G of keys and values, D size of a head, T rows, Q and K those of
segments. Each function returns figures by name, and raises `Wrong` where one is out of bounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import torch
from bench.score_models import heads_of
from bench.score_work import Data

from trajkit.scoring.forward import attention
from trajkit.scoring.forward.attention import layout_of, tree_attention
from trajkit.scoring.forward.judging import judge, judge_plainly, kernel_agrees
from trajkit.scoring.forward.kernels import Scoring, Segments, Varlen, varlen_of
from trajkit.scoring.planning.forecast import grouped
from trajkit.scoring.planning.pack import Run, pack_trees, pass_of
from trajkit.scoring.planning.plan import plan_tree

Figures: TypeAlias = dict[str, Any]
Sizes: TypeAlias = tuple[tuple[int, int], ...]
"""For each segment, the rows that ask and those that are seen, never fewer."""

_HALF, _FULL = 1e-2, 1e-5
"""How far attention may be off, relative to the whole, from half precision and from float32."""
_SEGMENTS: dict[str, Sizes] = {
    "blocks": ((5, 9), (64, 64), (200, 333), (1, 77)),
    "single rows": ((1, 77), (1, 1), (1, 200)),
}
_HEADS = (
    *((14, 2, 64, 64), (16, 8, 128, 128), (4, 4, 32, 32)),
    *((4, 2, 72, 72), (4, 2, 80, 80), (4, 2, 256, 256), (4, 4, 192, 128), (4, 2, 24, 64)),
)
"""Heads of queries, heads of keys and values, size of a key, size of a value."""
_NEAR = {"all": (-1, -1), "causal": (-1, 0), "window": (6, 0)}
_WINDOWS = (None, 7, 100)
_TREE = ((-1, 37), (0, 12), (1, 1), (1, 64), (3, 5), (0, 130), (-1, 20), (6, 3), (6, 3))
"""Runs in depth-first order: the run each goes on from, and its length."""


class Wrong(Exception):  # noqa: N818 - a verdict on a device, not an error of the user's
    """A figure is out of bounds."""


def seconds(run: Callable[[], object], device: torch.device, n_times: int = 3) -> float:
    """Return the median time of a call, after one that is not counted."""
    taken = []
    for _ in range(n_times + 1):
        settle(device)
        start = time.perf_counter()
        run()
        settle(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_rate(device: torch.device, n_bytes: int) -> Figures:
    """Return how fast the device copies, bytes read and bytes written both counted."""
    source = torch.randint(0, 127, (n_bytes,), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    taken = seconds(lambda: target.copy_(source), device, 10)
    return {"TB/s": 2 * n_bytes / taken / 1e12}


def gemm_rate(device: torch.device, dtype: torch.dtype, size: int) -> Figures:
    """Return how fast the device multiplies matrices of random numbers."""
    left, right = torch.randn((2, size, size), device=device).to(dtype)
    taken = seconds(lambda: left @ right, device, 10)
    return {"TFLOP/s": 2 * size**3 / taken / 1e12}


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name."""
    return str(dtype).removeprefix("torch.")


def varlen(device: torch.device, attend: Varlen | None = None) -> Figures:
    """Check attention over segments by what trajkit takes on this device; return the worst.

    From the bottom right: causal, within a window, and all; fewer heads of keys, values of another
    size, and segments of which every one asks about a single row.

    Raises:
        Wrong: against softmax in float64, sums that are not [H, Q], or nothing that is taken.
    """
    off, lse_off, n_checked = 0.0, 0.0, 0
    for rows, sizes in _SEGMENTS.items():
        segments = _segments(sizes, device)
        for n_heads, n_groups, size, value_size in _HEADS:
            query, key, value = _parts(
                segments.asking_starts[-1], segments.seen_starts[-1],
                (n_heads, n_groups, size, value_size), device, torch.bfloat16,
            )  # fmt: skip
            for reach, near in _NEAR.items():
                name = f"{n_heads}/{n_groups}/{size}/{value_size} {reach}, {rows}"
                given = query, key, value, segments
                out, lse = _taken(attend, query, value)(*given, near=near, scale=size**-0.5)
                if lse.shape != (n_heads, len(query)):
                    raise Wrong(f"{name}: sums are {list(lse.shape)}, not [heads, rows]")
                wanted, wanted_lse = _dense(query, key, value, _sees(sizes, near).to(device))
                found = _off(out.transpose(0, 1), wanted), _most_off(lse, wanted_lse)
                if not (found[0] <= _HALF and found[1] <= _HALF):
                    raise Wrong(f"{name}: out {found[0]:.1e}, lse {found[1]:.1e}")
                off, lse_off = max(off, found[0]), max(lse_off, found[1])
                n_checked += 1
    return {"checked": n_checked, "out": off, "lse": lse_off}


def varlen_nothing(device: torch.device, attend: Varlen | None = None) -> Figures:
    """Check that rows which see nothing weigh nothing in a merge: their sums are -inf.

    Raises:
        Wrong: they are anything else.
    """
    query, key, value = _parts(3, 0, (4, 4, 64, 64), device, torch.bfloat16)
    given = query, key, value, _segments(((3, 0),), device)
    out, lse = _taken(attend, query, value)(*given, near=(-1, -1), scale=0.125)
    if not bool(lse.isneginf().all()):
        raise Wrong(f"the sums are {float(lse.flatten()[0])}")
    return {"largest of out": str(float(out.abs().max()))}


def _taken(attend: Varlen | None, query: torch.Tensor, value: torch.Tensor) -> Varlen:
    """Return what attends to segments: that given, else what trajkit takes for such tensors."""
    found = attend or varlen_of(query.transpose(0, 1), value.transpose(0, 1))
    if found is None:
        raise Wrong("trajkit takes nothing for many segments on this device")
    return found


def tree(device: torch.device, dtype: torch.dtype) -> Figures:
    """Check attention over a tree by the kernels trajkit takes on this device.

    Raises:
        Wrong: against softmax in float64 over each row's own path.
    """
    runs, positions, sees = _tree()
    layout = layout_of(runs, positions, device)
    far = torch.from_numpy(positions[:, None] - positions[None])
    figures: Figures = {}
    for heads in _HEADS:
        n_rows, scale = len(positions), heads[2] ** -0.5
        query, key, value = _parts(n_rows, n_rows, heads, device, dtype)
        turned = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        for window in _WINDOWS:
            name = "/".join(map(str, heads)) + (f" window {window}" if window else "")
            out = tree_attention(*turned, layout, Scoring(scale=scale, window=window))
            seen = sees if window is None else sees & (far < window)
            wanted, _ = _dense(query, key, value, seen.to(device))
            off = figures[name] = _off(out.transpose(0, 1), wanted)
            if not off <= (_FULL if dtype is torch.float32 else _HALF):
                raise Wrong(f"{name} is off by {off:.1e}")
    return figures


def wide_product(device: torch.device, size: int, n_ids: int) -> Figures:
    """Check that half-precision matrices can be multiplied into float32: log-probs against float64.

    Raises:
        Wrong: more than 1e-4 nats off.
    """
    states, weight = _head(device, size, n_ids)
    exact = (states.double() @ weight.double().T).log_softmax(-1)
    wide = torch.mm(states, weight.T, out_dtype=torch.float32)
    figures = {
        "out_dtype=float32": _most_off(wide.double().log_softmax(-1), exact),
        "rounded to bf16": _most_off((states @ weight.T).double().log_softmax(-1), exact),
    }
    if not figures["out_dtype=float32"] <= 1e-4:
        raise Wrong(str(figures))
    return figures


def judging(device: torch.device, n_rows: int, n_ids: int) -> Figures:
    """Check log-prob, entropy and rank as trajkit takes them, and time them against log-prob alone.

    Raises:
        Wrong: against softmax in float64.
    """
    states, weight = _head(device, 64, n_ids, n_rows)
    logits = states.float() @ weight.float().T
    ids = torch.arange(n_rows, device=device) * 31 % n_ids
    exact = logits.double().log_softmax(-1)
    logprobs, entropy, _ = judge(logits.clone(), ids)
    figures: Figures = {
        "log-prob": _most_off(logprobs, exact.gather(1, ids[:, None])[:, 0]),
        "entropy": _most_off(entropy, -(exact.exp() * exact).sum(1)),
    }
    del exact
    if not max(figures.values()) <= 1e-5 * max(1.0, float(logprobs.abs().max())):
        raise Wrong(str(figures))
    columns = ids[:, None]
    figures |= {
        "ms": 1e3 * seconds(lambda: judge(logits, ids), device),
        "ms in plain operations": 1e3 * seconds(lambda: judge_plainly(logits, ids), device),
        "ms of log-prob alone": 1e3
        * seconds(lambda: logits.gather(1, columns)[:, 0] - logits.logsumexp(1), device),
    }
    return figures


def judging_kernel(device: torch.device) -> Figures:
    """Check that the kernel for log-prob, entropy and rank is one that trajkit takes.

    Raises:
        Wrong: it gives other numbers than plain operations do.
    """
    if not kernel_agrees(device):
        raise Wrong("it gives other numbers than plain operations do")
    return {"agrees": True}


def _parts(
    n_asking: int | torch.Tensor,
    n_seen: int | torch.Tensor,
    heads: tuple[int, int, int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random queries [Q, H, D], keys [K, G, D] and values [K, G, their size]."""
    n_heads, n_groups, size, value_size = heads
    shapes = (
        (int(n_asking), n_heads, size),
        (int(n_seen), n_groups, size),
        (int(n_seen), n_groups, value_size),
    )
    query, key, value = (torch.randn(shape, device=device).to(dtype) for shape in shapes)
    return query, key, value


def _head(
    device: torch.device, size: int, n_ids: int, n_rows: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states [N, size] and a head's weight [n_ids, size] whose logits are of usual size."""
    states = torch.randn((n_rows, size), device=device)
    weight = torch.randn((n_ids, size), device=device) * 2 * size**-0.5
    return states.bfloat16(), weight.bfloat16()


def _segments(sizes: Sizes, device: torch.device) -> Segments:
    """Return segments of rows that ask and rows that are seen, one behind the other."""
    n_q, n_k = (np.array(n) for n in zip(*sizes, strict=True))
    starts = (
        torch.tensor([0, *np.cumsum(n)], dtype=torch.int32, device=device) for n in (n_q, n_k)
    )
    asking_starts, seen_starts = starts
    return Segments(
        asking=slice(0, int(n_q.sum())),
        seen=slice(0, int(n_k.sum())),
        asking_starts=asking_starts,
        seen_starts=seen_starts,
        most_asking=int(n_q.max()),
        most_seen=int(n_k.max()),
    )


def _sees(sizes: Sizes, near: tuple[int, int]) -> torch.Tensor:
    """Return which rows of all segments see which: the last stands at its segment's last key."""
    blocks = []
    for n_q, n_k in sizes:
        ahead = torch.arange(n_k)[None] - (torch.arange(n_q)[:, None] + n_k - n_q)
        before, behind = (n_k if n < 0 else n for n in near)
        blocks.append((ahead >= -before) & (ahead <= behind))
    put: Any = torch.block_diag
    sees: torch.Tensor = put(*blocks)
    return sees.bool()


def _tree() -> tuple[tuple[Run, ...], np.ndarray[Any, np.dtype[np.int64]], torch.Tensor]:
    """Return the runs of a tree, each row's position, and which rows [T, T] each row sees."""
    starts = np.cumsum([0, *(size for _, size in _TREE)])
    positions = np.zeros(starts[-1], dtype=np.int64)
    sees = torch.zeros((starts[-1], starts[-1]), dtype=torch.bool)
    ends = starts[1:].copy()
    for at, (parent, size) in enumerate(_TREE):
        start, end = starts[at], starts[at + 1]
        depth = 0 if parent < 0 else positions[starts[parent + 1] - 1] + 1
        positions[start:end] = depth + np.arange(size)
        if parent >= 0:
            sees[start:end] = sees[starts[parent + 1] - 1]
        sees[start:end, start:end] = torch.ones((size, size)).tril().bool()
        above = parent
        while above >= 0:
            ends[above] = end
            above = _TREE[above][0]
    runs = [
        Run(start=int(start), end=int(end), subtree_end=int(below))
        for start, end, below in zip(starts, starts[1:], ends, strict=False)
    ]
    return tuple(runs), positions, sees


def _dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sees: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention [Q, H, D] and the log of its sums [H, Q], in float64."""
    n_each = query.shape[1] // key.shape[1]
    key, value = (part.double().repeat_interleave(n_each, dim=1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * query.shape[2] ** -0.5
    scores = scores.masked_fill(~sees, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value), scores.logsumexp(-1)


def _off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the size of the difference relative to that of what is wanted."""
    return float((found.double() - wanted).norm() / wanted.norm())


def _most_off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max())


def tree_rate(model: Any, data: Data) -> Figures:
    """Return the time of one layer's attention over a group's tree, and its rate on paths alone."""
    n_heads, size = heads_of(model)
    plan = plan_tree(grouped([(one, one.steps) for one in data.trajectories]))[0]
    (pack,) = pack_trees(plan, len(plan.token_ids))
    reading = pass_of(plan, pack)
    layout = layout_of(reading.runs, reading.depth, model.device)
    n_rows, n_groups = len(reading.token_ids), int(model.config.num_key_value_heads)
    heads = n_heads, n_groups, size, size
    parts = _parts(n_rows, n_rows, heads, model.device, model.dtype)
    query, key, value = (part.transpose(0, 1) for part in parts)
    scoring = Scoring(scale=size**-0.5)

    def attend() -> torch.Tensor:
        return tree_attention(query, key, value, layout, scoring)

    taken = seconds(attend, model.device)
    with patch.object(attention, "varlen_of", lambda *_: None):
        run_by_run = seconds(attend, model.device)
    return {
        "rows": n_rows,
        "runs": len(reading.runs),
        "ms": 1e3 * taken,
        "TFLOP/s": 4 * n_heads * size * data.n_seen / taken / 1e12,
        "ms run by run": 1e3 * run_by_run,
    }
