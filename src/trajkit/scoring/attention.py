"""Attention of a pass that is a tree: each row sees the ids on its own path and no others.

Dimension key: T rows of the pass, Q of them that ask, K that are seen, H heads, D size of a head.

In depth-first order the rows below a run are one contiguous range, so no mask is needed:

    a row's attention = a causal block over its own run
                      + one full block over each run above it,  merged by log-sum-exp

Softmax over a union of keys is the mean of the softmaxes over its parts, weighted by the parts'
sums: exact, and as fast as the blocks are (the identity behind FlashAttention, arXiv 2205.14135).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from trajkit.scoring.head import Hidden
from trajkit.scoring.planning.pack import Run
from trajkit.scoring.planning.plan import Rows

_NAME = "trajkit_tree"
_MAX_FLASH_HEAD = 256
_SCORES_AT_ONCE = 2**24
"""Scores of a block that is computed in the open; more rows are taken in turn."""
_UNDERSTOOD = frozenset(
    {
        *("scaling", "sliding_window", "softcap", "s_aux"),
        *("dropout", "position_ids", "use_cache", "cache_position", "output_attentions"),
    }
)
"""What layers may tell their attention: what is computed, and what changes nothing in one pass."""

Block: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Attention over some keys [H, Q, D], and the log of the sum of its weights [H, Q]."""


class CannotShare(Exception):  # noqa: N818 - a verdict on an architecture, not an error of the user's
    """A layer asks its attention for something that is not computed over trees."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The runs of a pass, and the position of each row in its own sequence.

    Attributes:
        positions: [T] int64, consecutive within a run; `depth`: the same on the model's device.
    """

    runs: tuple[Run, ...]
    positions: Rows
    depth: torch.Tensor


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
class _Walk:
    """A pass under way: its layout, and the window that each attention layer asked for."""

    layout: Layout
    windows: list[int | None] = field(default_factory=list)


_WALK: ContextVar[_Walk | None] = ContextVar("trajkit_tree_pass", default=None)


def layout_of(runs: tuple[Run, ...], positions: Rows, device: torch.device) -> Layout:
    """Return the layout of a pass from its runs and the positions [T] of its rows."""
    return Layout(runs=runs, positions=positions, depth=torch.from_numpy(positions).to(device))


@torch.inference_mode()
def tree_states(
    model: Any, body_name: str, ids_T: torch.Tensor, layout: Layout
) -> tuple[Hidden, list[int | None]]:
    """Return the body's states of a pass over trees, and the window of each layer's attention.

    Raises:
        CannotShare: a layer wants more than attention over its path.
    """
    walk = _Walk(layout=layout)
    with _attention_replaced(model, walk):
        output = getattr(model, body_name)(
            input_ids=ids_T[None], position_ids=layout.depth[None], use_cache=False
        )
    return Hidden(output=output, states_TH=output.last_hidden_state[0]), walk.windows


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    scoring: Scoring,
) -> torch.Tensor:
    """Return what each row attends to [H, T, D], in the query's dtype.

    Keys and values may have fewer heads than queries, a divisor of H, and values another size.
    """
    block = _block_of(query, value, layout, scoring)
    wide = torch.promote_types(query.dtype, torch.float32)
    shape = *query.shape[:2], value.shape[2]
    out = query.new_empty(shape, dtype=wide)
    lse = query.new_empty(shape[:2], dtype=wide)
    for run in layout.runs:
        own = slice(run.start, run.end)
        seen = key[:, own], value[:, own]
        out[:, own], lse[:, own] = block(query[:, own], *seen, own, own)
    for run in layout.runs:
        if run.subtree_end > run.end:
            own, below = slice(run.start, run.end), slice(run.end, run.subtree_end)
            seen = key[:, own], value[:, own]
            more = block(query[:, below], *seen, below, own)
            _merge(out[:, below], lse[:, below], more)
    if scoring.sinks is not None:
        sinks = scoring.sinks.to(wide)[:, None]
        out *= torch.exp(lse - torch.logaddexp(lse, sinks))[:, :, None]
    return out.to(query.dtype)


def _merge(out: torch.Tensor, lse: torch.Tensor, more: Block) -> None:
    """Change attention over some keys into attention over those and more."""
    added, added_lse = more
    total = torch.logaddexp(lse, added_lse)
    out *= torch.exp(lse - total)[:, :, None]
    out += added * torch.exp(added_lse - total)[:, :, None]
    lse.copy_(total)


def _block_of(
    query: torch.Tensor, value: torch.Tensor, layout: Layout, scoring: Scoring
) -> Callable[..., Block]:
    """Return what computes a block from queries, keys, values and the rows they stand in.

    Causal within a run; rows below a run see all of it. A kernel does it where there is one and no
    score of the block needs to be changed or left out.
    """
    leaf = None if scoring.softcap is not None else _leaf_of(query, value)

    def block(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: slice, seen: slice
    ) -> Block:
        farthest = int(layout.positions[rows].max() - layout.positions[seen.start])
        is_cut = scoring.window is not None and farthest >= scoring.window
        if leaf is None or is_cut:
            return _open_block(layout, scoring, query, key, value, rows, seen)
        return leaf(query, key, value, is_causal=rows == seen, scale=scoring.scale)

    return block


def _leaf_of(query: torch.Tensor, value: torch.Tensor) -> Callable[..., Block] | None:
    """Return the kernel for these tensors that gives the log of its sums too, if there is one."""
    if query.device.type == "cpu":
        return _cpu_flash if query.shape[2] == value.shape[2] else None
    if query.device.type != "cuda" or query.dtype is torch.float64:
        return None
    if max(query.shape[2], value.shape[2]) > _MAX_FLASH_HEAD:
        return None
    return _cuda_memory_efficient if query.dtype is torch.float32 else _cuda_flash


def _cpu_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool, scale: float
) -> Block:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        query[None], key[None], value[None], 0.0, is_causal, scale=scale
    )
    return out[0], lse[0]


def _cuda_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool, scale: float
) -> Block:
    n_heads, size = query.shape[0], value.shape[2]
    parts = (_padded(part, n_heads, query.shape[2]) for part in (query, key, value))
    found = torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        *parts, is_causal=is_causal, scale=scale
    )
    return found[0][0, :, :, :size], found[1][0]


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
    part = _all_heads(part, n_heads)
    size = max(size, part.shape[2])
    return functional.pad(part, (0, size + -size % 8 - part.shape[2]))[None].contiguous()


def _all_heads(part: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Return keys or values with one head for each head of the queries."""
    return part.repeat_interleave(n_heads // part.shape[0], dim=0)


def _open_block(
    layout: Layout,
    scoring: Scoring,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: slice,
    seen: slice,
) -> Block:
    """Return a block computed in plain products: any dtype, size, window and softcap."""
    wide = torch.promote_types(query.dtype, torch.float32)
    key, value = (_all_heads(part, len(query)).to(wide) for part in (key, value))
    out = query.new_zeros((*query.shape[:2], value.shape[2]), dtype=wide)
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=wide)
    n_at_once = max(1, _SCORES_AT_ONCE // (len(query) * key.shape[1]))
    for start in range(rows.start, rows.stop, n_at_once):
        some = slice(start, min(start + n_at_once, rows.stop))
        near = _in_reach(layout.positions, some, seen, scoring.window)
        if near.start == near.stop:
            continue
        at = slice(some.start - rows.start, some.stop - rows.start)
        keys = slice(near.start - seen.start, near.stop - seen.start)
        scores = torch.matmul(query[:, at].to(wide) * scoring.scale, key[:, keys].mT)
        if scoring.softcap is not None:
            scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
        distance = layout.depth[some, None] - layout.depth[None, near]
        is_hidden = distance < 0
        if scoring.window is not None:
            is_hidden |= distance >= scoring.window
        scores.masked_fill_(is_hidden, -torch.inf)
        lse[:, at] = torch.logsumexp(scores, dim=-1)
        shift = lse[:, at].masked_fill(lse[:, at].isneginf(), 0.0)
        out[:, at] = torch.matmul(torch.exp(scores - shift[:, :, None]), value[:, keys])
    return out, lse


def _in_reach(positions: Rows, rows: slice, seen: slice, window: int | None) -> slice:
    """Return the rows of a run that some of the given rows may see; the rest no one does."""
    first = int(positions[seen.start])
    last = min(seen.stop, seen.start + int(positions[rows].max()) + 1 - first)
    if window is None:
        return slice(seen.start, last)
    start = seen.start + int(positions[rows].min()) - window + 1 - first
    return slice(min(max(start, seen.start), last), last)


@contextmanager
def _attention_replaced(model: Any, walk: _Walk) -> Iterator[None]:
    """Let every layer that asks the library for its attention get the one over trees."""
    import transformers

    transformers.AttentionInterface.register(_NAME, _attend)
    modules = [model.config, *(getattr(part, "config", None) for part in model.modules())]
    configs = {id(config): config for config in modules if config is not None}.values()
    before = [(config, config._attn_implementation) for config in configs]  # noqa: SLF001
    token = _WALK.set(walk)
    try:
        for config, _ in before:
            config._attn_implementation = _NAME  # noqa: SLF001 - the library's only name for it
        yield
    finally:
        _WALK.reset(token)
        for config, name in before:
            config._attn_implementation = name  # noqa: SLF001


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention [1, T, H, D] of one layer, the way the library calls it."""
    walk = _WALK.get()
    unknown = sorted(
        name for name, value in asked.items() if value is not None and name not in _UNDERSTOOD
    )
    if walk is None or attention_mask is not None or asked.get("dropout"):
        raise CannotShare(f"{type(module).__name__} gives its attention a mask or dropout")
    if unknown:
        raise CannotShare(f"{type(module).__name__} gives its attention {', '.join(unknown)}")
    if query.shape[0] != 1 or {query.shape[2], key.shape[2]} != {len(walk.layout.positions)}:
        raise CannotShare(f"{type(module).__name__} attends to other rows than its own")
    scale = asked.get("scaling")
    scoring = Scoring(
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        window=asked.get("sliding_window"),
        softcap=asked.get("softcap"),
        sinks=asked.get("s_aux"),
    )
    walk.windows.append(scoring.window)
    out = tree_attention(query[0], key[0], value[0], walk.layout, scoring)
    return out.transpose(0, 1)[None].contiguous(), None
