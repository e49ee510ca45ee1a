"""May a model read a tree in one pass? Decided when it is loaded, by asking it.

A short tree is read in one pass and branch by branch. The states must agree as closely as those of
a branch agree with themselves when more ids stand behind it, which is what rounding costs in this
dtype on this device; and they must not move when a branch beside them changes, but for rounding in
half precision: experts that get other rows multiply in other shapes. What a short tree cannot show
(windows longer than it, rotary frequencies that depend on length) is taken from the configuration
and from what the layers ask of their attention. A model that fails reads each sequence by itself,
and the report says why.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trajkit.scoring.forward.attention import CannotShare, layout_of, tree_states
from trajkit.scoring.forward.head import CAUSAL_FP32, CAUSAL_HALF, hidden_states, is_close, is_fp32
from trajkit.scoring.memory import memory_full_told
from trajkit.scoring.planning.pack import Run

_RUNS = (
    Run(start=0, end=3, subtree_end=15),
    Run(start=3, end=7, subtree_end=12),
    Run(start=7, end=9, subtree_end=9),
    Run(start=9, end=12, subtree_end=12),
    Run(start=12, end=15, subtree_end=15),
    Run(start=15, end=18, subtree_end=18),
)
_PATHS = ((0, 1, 2), (0, 1, 3), (0, 4), (5,))
"""A root with two branches, one of which branches again, and a second tree beside it."""
_CHANGED = slice(4, 6)
_UNTOUCHED = (0, 4, 5)
"""Rows of run 1 that are changed, and the runs that must not notice."""
_MARGIN, _MOST = 4.0, 0.25
"""How far the two ways may differ, in multiples of the model's own noise, and at most."""
_LEAST_HALF = 0.1
"""What they may always differ by in half precision, which shows that both go through other kernels:
SmolLM2's states in fp16 on a CPU are 0.03 apart, and the tree's the nearer to float32's."""
_KINDS = frozenset({"full_attention", "sliding_attention"})
_BY_LENGTH = frozenset({"dynamic", "longrope"})


def why_unshared(model: Any, body_name: str) -> str | None:
    """Return why a model must read each sequence by itself, `None` when it may read trees."""
    config = model.config.get_text_config()
    return _by_configuration(config) or _by_trial(model, body_name, config)


def _by_configuration(config: Any) -> str | None:
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _KINDS)
    if others:
        return f"it has layers of type {', '.join(others)}"
    if getattr(config, "attention_chunk_size", None):
        return "its attention is cut into chunks"
    if _is_by_distance(config):
        return "its attention has a bias by distance (ALiBi)"
    kinds = (part.get("rope_type", part.get("type")) for part in rope_parameters(config))
    by_length = sorted(_BY_LENGTH.intersection(kinds))
    if by_length:
        return f"its rotary frequencies depend on the length ({', '.join(by_length)})"
    return None


def _is_by_distance(config: Any) -> bool:
    """Return whether scores depend on how far apart rows stand; Bloom's always do."""
    own = getattr(config, "attn_config", None)
    told = (getattr(one, "alibi", False) for one in (config, own))
    return any(told) or getattr(config, "model_type", None) == "bloom"


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Return what a configuration says of rotary embeddings, and of those of kinds of layers."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [rope, *(part for part in rope.values() if isinstance(part, dict))]


def _by_trial(model: Any, body_name: str, config: Any) -> str | None:
    device = model.get_input_embeddings().weight.device
    n_vocab = int(model.get_input_embeddings().weight.shape[0])
    positions = np.zeros(_RUNS[-1].end, dtype=np.int64)
    for path in _PATHS:
        rows = _rows_of(path)
        positions[rows] = np.arange(len(rows))
    ids_T = torch.arange(5, 5 + len(positions), device=device) % n_vocab
    layout = layout_of(_RUNS, positions, device)
    other_T = ids_T.clone()
    other_T[_CHANGED] = (other_T[_CHANGED] + 7) % n_vocab

    def read(ids: torch.Tensor, n_rows: int) -> torch.Tensor:
        return hidden_states(model, body_name, ids).states_TH[:n_rows]

    paths = [ids_T[_rows_of(path)] for path in _PATHS]
    try:
        with memory_full_told():
            hidden, windows = tree_states(model, body_name, ids_T, layout)
            moved, _ = tree_states(model, body_name, other_T, layout)
            alone_TH = torch.cat([read(ids, len(ids)) for ids in paths])
            longer_TH = torch.cat([read(torch.cat([ids, other_T]), len(ids)) for ids in paths])
    except torch.OutOfMemoryError:
        raise
    except CannotShare as problem:
        return str(problem)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        reason = str(problem).strip().splitlines()[:1] or [type(problem).__name__]
        return f"it cannot be given trees ({reason[0]})"
    states_TH, rows = hidden.states_TH, _rows_of(_UNTOUCHED)
    noise = _difference(longer_TH, alone_TH)
    shared_TH = torch.cat([states_TH[_rows_of(path)] for path in _PATHS])
    least, still = (CAUSAL_FP32, CAUSAL_FP32) if is_fp32(states_TH) else (_LEAST_HALF, CAUSAL_HALF)
    limit = max(least, _MARGIN * noise)
    leaks = not is_close(moved.states_TH[rows], states_TH[rows], still)
    if leaks or not _difference(shared_TH, alone_TH) <= min(limit, _MOST):
        return "its layers carry more between tokens than attention does"
    return _by_layers(config, windows)


def _difference(found_TH: torch.Tensor, wanted_TH: torch.Tensor) -> float:
    """Return the root mean square of the difference, relative to that of what is wanted."""
    wanted_TH = wanted_TH.float()
    return float((found_TH.float() - wanted_TH).norm() / wanted_TH.norm())


def _rows_of(path: tuple[int, ...]) -> list[int]:
    return [row for run in path for row in range(_RUNS[run].start, _RUNS[run].end)]


def _by_layers(config: Any, windows: list[int | None]) -> str | None:
    """Return what is wrong with how the layers called their attention."""
    n_layers = int(config.num_hidden_layers)
    if len(windows) > n_layers:
        return f"its {n_layers} layers attend {len(windows)} times, not once each"
    if len(windows) < n_layers:
        return f"{n_layers - len(windows)} of its {n_layers} layers attend in their own way"
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not window or (kinds is None and getattr(config, "use_sliding_window", True) is False):
        n_cut = 0
    elif kinds is None:
        n_cut = n_layers
    else:
        n_cut = sum(kind == "sliding_attention" for kind in kinds)
    if [found for found in windows if found is not None] != [window] * n_cut:
        return "its layers do not tell their attention of its sliding window"
    return None
