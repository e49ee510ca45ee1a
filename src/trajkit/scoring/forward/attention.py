"""Attention of a pass that is a tree: each row sees the ids on its own path and no others.

Dimension key: T rows of the pass, Q of them that ask, K that are seen, H heads, D size of a head.

In depth-first order the rows below a run are one contiguous range, so no mask is needed:

    a row's attention = a causal block over its own run
                      + one full block over each run above it,  merged by log-sum-exp

Softmax over a union of keys is the mean of the softmaxes over its parts, weighted by the parts'
sums: exact, and as fast as the blocks are (the identity behind FlashAttention, arXiv 2205.14135).
Blocks are computed run by run, or, where a kernel takes many at once, level by level: a pass of
hundreds of runs is then as many calls a layer as its tree is deep, and one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from trajkit.scoring.forward.head import Hidden
from trajkit.scoring.forward.kernels import (
    Block,
    Scoring,
    Segments,
    Varlen,
    leaf_of,
    open_block,
    varlen_of,
)
from trajkit.scoring.planning.pack import Run
from trajkit.scoring.planning.plan import Rows

_NAME = "trajkit_tree"
_UNDERSTOOD = frozenset(
    {
        *("scaling", "sliding_window", "softcap", "s_aux"),
        *("dropout", "position_ids", "use_cache", "cache_position", "output_attentions"),
    }
)
"""What layers may tell their attention: what is computed, and what changes nothing in one pass."""


class CannotShare(Exception):  # noqa: N818 - a verdict on an architecture, not an error of the user's
    """A layer asks its attention for something that is not computed over trees."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouped:
    """The blocks of a pass by the call that computes them, where one call takes many.

    Attributes:
        own: of every run over itself.
        levels: of the rows below runs, over those runs: one item for each depth of the tree.
        cut: the runs that some rows below them no longer see in full; they are in no level.
    """

    own: Segments
    levels: tuple[Segments, ...]
    cut: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The runs of a pass, and the position of each row in its own sequence.

    Attributes:
        positions: [T] int64, consecutive within a run; `depth`: the same on the model's device.
    """

    runs: tuple[Run, ...]
    positions: Rows
    depth: torch.Tensor
    _grouped: dict[int | None, Grouped] = field(default_factory=dict, init=False)

    def grouped(self, window: int | None) -> Grouped:
        """Return the blocks as calls for layers of one window; made for the first of them."""
        if window not in self._grouped:
            self._grouped[window] = _grouped(self, window)
        return self._grouped[window]

    def is_cut(self, rows: slice, run: Run, window: int | None) -> bool:
        """Return whether a window hides some of a run from some of the rows in or below it."""
        first = self.positions[run.start]
        return window is not None and int(self.positions[rows].max() - first) >= window


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


def _grouped(layout: Layout, window: int | None) -> Grouped:
    whole, cut = [], []
    for level in _levels(layout.runs):
        blocks = []
        for run in level:
            below = slice(run.end, run.subtree_end)
            if layout.is_cut(below, run, window):
                cut.append(run)
            else:
                blocks.append((below, slice(run.start, run.end)))
        if blocks:
            whole.append(_segments(blocks, layout.depth.device))
    own = [slice(run.start, run.end) for run in layout.runs]
    return Grouped(
        own=_segments([(rows, rows) for rows in own], layout.depth.device),
        levels=tuple(whole),
        cut=tuple(cut),
    )


def _levels(runs: tuple[Run, ...]) -> list[list[Run]]:
    """Return the runs that have others below them, by how many such runs are above each.

    What is below two runs of a level is disjoint, so no row stands in a level twice.
    """
    levels: list[list[Run]] = []
    above: list[Run] = []
    for run in runs:
        while above and above[-1].subtree_end <= run.start:
            above.pop()
        if run.subtree_end > run.end:
            if len(above) == len(levels):
                levels.append([])
            levels[len(above)].append(run)
            above.append(run)
    return levels


def _segments(blocks: list[tuple[slice, slice]], device: torch.device) -> Segments:
    """Return blocks, given by the rows that ask and are seen, as one call takes them."""
    asking, seen = zip(*blocks, strict=True)
    asking_starts, seen_starts = (
        np.cumsum([0, *(one.stop - one.start for one in rows)]) for rows in (asking, seen)
    )
    return Segments(
        asking=_joined(asking, device),
        seen=_joined(seen, device),
        asking_starts=torch.from_numpy(asking_starts.astype(np.int32)).to(device),
        seen_starts=torch.from_numpy(seen_starts.astype(np.int32)).to(device),
        most_asking=int(np.diff(asking_starts).max()),
        most_seen=int(np.diff(seen_starts).max()),
    )


def _joined(ranges: tuple[slice, ...], device: torch.device) -> slice | torch.Tensor:
    """Return rows of ascending ranges: one range where they are, so that nothing is copied."""
    if all(one.stop == other.start for one, other in pairwise(ranges)):
        return slice(ranges[0].start, ranges[-1].stop)
    rows = np.concatenate([np.arange(one.start, one.stop) for one in ranges])
    return torch.from_numpy(rows).to(device)


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
    varlen = None if scoring.softcap is not None else varlen_of(query, value)
    if varlen is None:
        out, lse = _by_runs(query, key, value, layout, scoring)
    else:
        out, lse = _by_levels(varlen, query, key, value, layout, scoring)
    if scoring.sinks is not None:
        out *= torch.sigmoid(lse - scoring.sinks.to(lse.dtype)[:, None])[:, :, None]
    return out.to(query.dtype)


def _by_runs(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scoring: Scoring
) -> Block:
    """Return attention from two calls a run: its own block, and one for the rows below it."""
    leaf = None if scoring.softcap is not None else leaf_of(query, value)

    def block(rows: slice, run: Run) -> Block:
        own = slice(run.start, run.end)
        parts = query[:, rows], key[:, own], value[:, own]
        if leaf is None or layout.is_cut(rows, run, scoring.window):
            return _in_the_open(*parts, layout, rows, run, scoring)
        return leaf(*parts, is_causal=rows == own, scale=scoring.scale)

    wide = torch.promote_types(query.dtype, torch.float32)
    out = query.new_empty((*query.shape[:2], value.shape[2]), dtype=wide)
    lse = query.new_empty(query.shape[:2], dtype=wide)
    for run in layout.runs:
        own = slice(run.start, run.end)
        out[:, own], lse[:, own] = block(own, run)
    for run in layout.runs:
        if run.subtree_end > run.end:
            below = slice(run.end, run.subtree_end)
            _merge(out, lse, below, block(below, run))
    return out, lse


def _by_levels(
    varlen: Varlen,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    scoring: Scoring,
) -> Block:
    """Return attention from one call for every run's own block, and one for each level above."""
    grouped = layout.grouped(scoring.window)
    asking, seen, values = (part.transpose(0, 1) for part in (query, key, value))

    def blocks(some: Segments, near: tuple[int, int]) -> Block:
        parts = asking[some.asking], seen[some.seen], values[some.seen]
        return varlen(*parts, some, near=near, scale=scoring.scale)

    found, lse = blocks(grouped.own, (-1 if scoring.window is None else scoring.window - 1, 0))
    out = found.to(lse.dtype)
    for level in grouped.levels:
        _merge(out, lse, level.asking, blocks(level, (-1, -1)))
    for run in grouped.cut:
        own, below = slice(run.start, run.end), slice(run.end, run.subtree_end)
        parts = query[:, below], key[:, own], value[:, own]
        _merge(out, lse, below, _in_the_open(*parts, layout, below, run, scoring))
    return out, lse


def _in_the_open(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    rows: slice,
    run: Run,
    scoring: Scoring,
) -> Block:
    """Return the block of some rows in or below a run over that run, whatever no kernel does."""
    positions, first = layout.positions[rows], int(layout.positions[run.start])
    return open_block(query, key, value, positions=positions, first=first, scoring=scoring)


def _merge(out: torch.Tensor, lse: torch.Tensor, rows: slice | torch.Tensor, more: Block) -> None:
    """Change attention of some rows over some keys into attention over those and more."""
    part, part_lse = out[:, rows], lse[:, rows]
    added, added_lse = more
    share = torch.sigmoid(added_lse - part_lse)
    part.lerp_(added.to(part.dtype), share[:, :, None])
    part_lse.copy_(torch.logaddexp(part_lse, added_lse))
    if isinstance(rows, torch.Tensor):  # those of a range are changed where they stand
        out[:, rows], lse[:, rows] = part, part_lse


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
