"""The models and data of the GPU bench of scoring, and what scoring them must compute at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from bench import score_work as work
from bench.score_work import Calls, Data, Turns

CaseOf: TypeAlias = Callable[..., Calls]

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2.5-0.5B": (
        "qwen2",
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151_936,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3-1.7B": (
        "qwen3",
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151_936,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen2.5-7B": (
        "qwen2",
        {
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152_064,
            "tie_word_embeddings": False,
        },
    ),
}
TINY: dict[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 211,
}
TINY_DIVISOR = 80
"""How many times fewer ids the turns of a tiny run have."""
MAX_POSITIONS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Data of a bench: how they are made, their turns, and how many steps naive scoring pads."""

    calls: CaseOf
    turns: Turns
    n_padded: int = 2


APPEND = "append-only, 20 steps to 8k"
GROUP = "GRPO group, 8 × 5 steps to 7k"
PACK = "4 sequences of 8k, 20 % scored"
CASES = {
    APPEND: Case(
        calls=work.append_only, turns=Turns(prompt=512, action=80, observation=320, steps=20)
    ),
    GROUP: Case(
        calls=partial(work.group_of, n_rollouts=8),
        turns=Turns(prompt=4096, action=160, observation=640, steps=5),
    ),
    PACK: Case(
        calls=partial(work.unrelated, n_rollouts=4),
        turns=Turns(prompt=6554, action=1638, observation=1, steps=1),
        n_padded=4,
    ),
}
"""The last shares nothing: its ratios are those of equal tokens, its memory that of a 32k pack."""


def make_model(name: str, device: torch.device, *, is_tiny: bool) -> Any:
    """Return a model with random weights, made where it runs: bf16, a tiny one float32."""
    kind, sizes = MODELS[name]
    config_of: Any = transformers.CONFIG_MAPPING[kind]
    auto: Any = transformers.AutoModelForCausalLM
    sizes = sizes | (TINY if is_tiny else {}) | {"max_position_embeddings": MAX_POSITIONS}
    torch.manual_seed(0)
    with torch.device(device):
        model = auto.from_config(
            config_of(**sizes), dtype=torch.float32 if is_tiny else torch.bfloat16
        )
    return work.random_weights(model)


def data_of(case: Case, n_ids: int, *, is_tiny: bool) -> Data:
    """Return a case's data, the same each time."""
    rng = np.random.default_rng(0)
    turns = case.turns.over(TINY_DIVISOR) if is_tiny else case.turns
    return work.data_of(case.calls(lambda n: rng.integers(0, n_ids, n, dtype=np.int32), turns))


def flops(model: Any, data: Data) -> float:
    """Return what scoring must compute: the body, attention over paths, the head where asked."""
    config = model.config
    body = sum(p.numel() for p in model.model.layers.parameters())
    n_heads, size = heads_of(model)
    attention = 4 * n_heads * size * config.num_hidden_layers * data.n_seen
    head = 2 * config.hidden_size * config.vocab_size * data.n_rows
    return float(2 * body * data.n_asked + attention + head)


def heads_of(model: Any) -> tuple[int, int]:
    """Return how many heads of queries a model has, and their size."""
    n_heads = int(model.config.num_attention_heads)
    size = getattr(model.config, "head_dim", None) or model.config.hidden_size // n_heads
    return n_heads, int(size)
