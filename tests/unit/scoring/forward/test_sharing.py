"""Which architectures may read trees: each is exact, or reads its sequences one by one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.builders import make_trajectory
from tests.score_builders import (
    GPT2,
    HYBRID,
    N_VOCAB,
    TINY,
    assert_close,
    plain_logprobs,
    random_model,
    save_checkpoint,
    tiny_llama,
)
from trajkit.scoring.forward import sharing
from trajkit.scoring.forward.sharing import why_unshared
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.steps import score_trajectories

HEADS: dict[str, Any] = {name: value for name, value in TINY.items() if name != "head_dim"}
SMALL: dict[str, Any] = {"vocab_size": N_VOCAB, "hidden_size": 32}
WIDE: dict[str, Any] = {**SMALL, "num_hidden_layers": 2, "num_attention_heads": 4}
CUT: dict[str, Any] = {**TINY, "sliding_window": 5}
LATENT: dict[str, Any] = {
    **HEADS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
    "first_k_dense_replace": 1,
}
DELTA: dict[str, Any] = {**TINY, **HYBRID}
STATE: dict[str, Any] = {
    **TINY,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_chunk_size": 8,
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {**TINY, "rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


LONG = {
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 48,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "llama": ("llama", TINY, None),
    "llama-odd-head": ("llama", {**TINY, "head_dim": 6, "num_key_value_heads": 1}, None),
    "llama-yarn": ("llama", rope("yarn", factor=2.0, original_max_position_embeddings=48), None),
    "llama-dynamic-rope": ("llama", rope("dynamic", factor=2.0), "dynamic"),
    "qwen2": ("qwen2", TINY, None),
    "qwen2-half-window": (
        "qwen2",
        {**CUT, "use_sliding_window": True, "max_window_layers": 1},
        None,
    ),
    "qwen3": ("qwen3", TINY, None),
    "mistral": ("mistral", {**TINY, "sliding_window": None}, None),
    "mistral-window": ("mistral", CUT, None),
    "mixtral-experts": ("mixtral", {**TINY, "num_local_experts": 4}, None),
    "gemma2-softcap": ("gemma2", CUT, None),
    "gemma3-window": ("gemma3_text", CUT, None),
    "phi": ("phi", TINY, None),
    "phi3": ("phi3", TINY, None),
    "phi3-longrope": (
        "phi3",
        {**rope("longrope", **LONG), "original_max_position_embeddings": 48},
        "longrope",
    ),
    "gpt2": ("gpt2", GPT2, None),
    "gpt_neox": ("gpt_neox", HEADS, None),
    "gpt_neo-local": (
        "gpt_neo",
        {**SMALL, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
        "more between tokens",
    ),
    "opt": ("opt", {**TINY, "ffn_dim": 48, "word_embed_proj_dim": 32}, None),
    "olmo2": ("olmo2", TINY, None),
    "granite": ("granite", {**TINY, "logits_scaling": 2.0}, None),
    "cohere": ("cohere", {**HEADS, "logit_scale": 0.5}, None),
    "cohere2-window": ("cohere2", {**CUT, "logit_scale": 0.5}, None),
    "stablelm": ("stablelm", HEADS, None),
    "starcoder2-window": ("starcoder2", {**HEADS, "sliding_window": 5}, None),
    "gpt_oss-sinks": ("gpt_oss", {**TINY, "num_local_experts": 4, "sliding_window": 5}, None),
    "deepseek_v3-latent": ("deepseek_v3", LATENT, None),
    "falcon": ("falcon", WIDE, "cannot be given trees"),
    "falcon-alibi": ("falcon", {**WIDE, "alibi": True}, "ALiBi"),
    "bloom-alibi": ("bloom", {**SMALL, "n_layer": 2, "n_head": 4}, "ALiBi"),
    "mpt-alibi": (
        "mpt",
        {"vocab_size": N_VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 96},
        "ALiBi",
    ),
    "mamba": ("mamba", {**SMALL, "num_hidden_layers": 2}, "linear_attention"),
    "qwen3_next-hybrid": ("qwen3_next", DELTA, "linear_attention"),
    "falcon_h1-hybrid": ("falcon_h1", STATE, "hybrid"),
}
"""Model type, configuration, and a word of the reason why it does not share (`None`: it does)."""

CALLS = [
    ([1, 10, 11, 12, 13], [20, 21, 2]),
    ([1, 10, 11, 12, 13, 20, 21, 2, 30, 31, 32], [22, 23, 24, 2]),
    ([1, 10, 11, 12, 13], [25, 26, 2]),
    ([1, 10, 11, 30, 31, 32, 22, 23], [40, 41, 42]),
    ([1, 10, 11, 12, 13, 20, 21, 2, 30, 31, 50], [5, 6, 7]),
]
"""Appends, a retry, a window that slides, and a branch inside an observation."""


def worst_gap(loaded: LoadedModel, **options: Any) -> tuple[float, Any]:
    batch = score_trajectories(loaded, [make_trajectory(CALLS)], **options)
    worst = 0.0
    for (prompt, action), row in zip(CALLS, batch.scored[0].steps, strict=True):
        wanted = plain_logprobs(loaded.model, [*prompt, *action])[len(prompt) :]
        assert row.logprobs is not None
        assert wanted.std() > 0.02
        worst = max(worst, float(np.abs(row.logprobs - wanted).max()))
    return worst, batch


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_is_exact_whether_it_shares_or_not(tmp_path: Path, name: str) -> None:
    model_type, config, reason = ARCHITECTURES[name]
    folder = save_checkpoint(random_model(model_type, std=0.15, **config), tmp_path / "m")
    loaded = load_model(folder, device="cpu")
    if reason is None:
        assert loaded.why_unshared is None
    else:
        assert reason in (loaded.why_unshared or "")
    worst, batch = worst_gap(loaded)
    assert worst <= 1e-5
    assert batch.n_forwarded_tokens == (batch.n_row_tokens if reason else 14 + 3 + 7 + 2)
    if reason is None:
        assert worst_gap(loaded, tokens_per_batch=12)[0] <= 1e-5


@pytest.mark.parametrize("name", ["qwen3_next-hybrid", "falcon_h1-hybrid", "mamba"])
def test_a_trial_finds_what_the_configuration_says(name: str) -> None:
    model_type, config, _ = ARCHITECTURES[name]
    model = random_model(model_type, std=0.15, **config)
    found = sharing._by_trial(model, model.base_model_prefix, model.config)
    assert "more between tokens" in (found or "")


def test_a_model_that_should_not_have_shared_would_have_been_wrong(tmp_path: Path) -> None:
    model_type, config, _ = ARCHITECTURES["qwen3_next-hybrid"]
    folder = save_checkpoint(random_model(model_type, std=0.15, **config), tmp_path / "m")
    loaded = replace(load_model(folder, device="cpu"), why_unshared=None)
    assert worst_gap(loaded)[0] > 1e-3


HALVES = ["llama", "mixtral-experts", "gemma2-softcap", "bloom-alibi", "qwen3_next-hybrid"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALVES)
def test_a_trial_in_half_precision_tells_rounding_from_leaks(name: str, dtype: Any) -> None:
    model_type, config, reason = ARCHITECTURES[name]
    model = random_model(model_type, std=0.15, num_hidden_layers=4, **_without_depth(config))
    found = sharing._by_trial(model.to(dtype), model.base_model_prefix, model.config)
    assert (found is None) == (reason is None)


def _without_depth(config: dict[str, Any]) -> dict[str, Any]:
    return {k: value for k, value in config.items() if k not in ("num_hidden_layers", "n_layer")}


def test_layers_that_do_not_tell_their_window_do_not_share() -> None:
    model = random_model("llama", **TINY)
    model.config.sliding_window = 5
    assert "sliding window" in (why_unshared(model, "model") or "")


def test_attention_in_chunks_does_not_share() -> None:
    model = random_model("llama", **TINY)
    model.config.attention_chunk_size = 4
    assert "chunks" in (why_unshared(model, "model") or "")


class SmoothedAttention(torch.nn.Module):
    """A layer that mixes each state with the one before it, whatever the tree says."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: torch.Tensor, *args: Any, **given: Any) -> Any:
        mixed = states + 1e-2 * torch.nn.functional.pad(states, (0, 0, 1, -1))
        return self.layer(mixed, *args, **given)


def test_what_leaks_between_branches_is_noticed() -> None:
    model = random_model("llama", **TINY)
    assert why_unshared(model, "model") is None
    model.model.layers[0] = SmoothedAttention(model.model.layers[0])
    assert "more between tokens" in (why_unshared(model, "model") or "")


class Unsteady(torch.nn.Module):
    """A layer that rounds otherwise each time, as experts do that get other rows."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.n_calls = 0

    def forward(self, *args: Any, **given: Any) -> Any:
        self.n_calls += 1
        return self.layer(*args, **given) * (1 + 2**-8 * (self.n_calls % 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_leak_in_half_precision(dtype: Any) -> None:
    model = random_model("llama", **TINY).to(dtype)
    model.model.layers[0] = Unsteady(model.model.layers[0])
    found = sharing._by_trial(model, "model", model.config)
    assert (found is None) == (dtype is not torch.float32)


@pytest.mark.parametrize(
    ("n_calls", "reason"),
    [
        (2, None),
        (1, "1 of its 2 layers attend in their own way"),
        (6, "its 2 layers attend 6 times, not once each"),
    ],
)
def test_each_layer_attends_once(n_calls: int, reason: str | None) -> None:
    config = random_model("llama", **TINY).config
    assert sharing._by_layers(config, [None] * n_calls) == reason


def test_a_full_gpu_is_no_reason_not_to_share() -> None:
    model = random_model("llama", **TINY)

    def full(*_: Any) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")

    model.model.layers[1].register_forward_hook(full)
    with pytest.raises(torch.OutOfMemoryError):
        why_unshared(model, "model")


def test_the_checkpoint_does_not_choose_the_attention(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"_attn_implementation": "x/y",', 1))
    loaded = load_model(folder, device="cpu")
    assert loaded.model.config._attn_implementation == "sdpa"
    assert worst_gap(loaded)[0] <= 1e-5


def test_a_zero_head_gives_minus_log_v_on_every_branch(llama: LoadedModel) -> None:
    nothing = torch.nn.Linear(32, N_VOCAB, bias=False)
    torch.nn.init.zeros_(nothing.weight)
    flat = replace(llama, head=replace(llama.head, layer=nothing))
    batch = score_trajectories(flat, [make_trajectory(CALLS)])
    for row in batch.scored[0].steps:
        assert_close(row.logprobs, -np.log(N_VOCAB), atol=1e-6)
        assert_close(row.entropy, np.log(N_VOCAB), atol=1e-6)
