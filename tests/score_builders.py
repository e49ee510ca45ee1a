"""Tiny random checkpoints, what plain transformers says of ids, and data on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from trajkit.records import Trajectory
from trajkit.store.write import DatasetWriter, Provenance

torch.set_num_threads(1)  # threads cost more than they bring to models this small

N_VOCAB = 61
TINY: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HYBRID: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
"""What qwen3_next has beside that: layers of linear attention, and experts."""
GPT2: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def random_model(model_type: str, *, seed: int = 0, std: float = 0.3, **config: Any) -> Any:
    """Return a model of an architecture with random weights large enough to tell ids apart."""
    made = transformers.CONFIG_MAPPING[model_type](**config)
    torch.manual_seed(seed)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
    return model


def save_checkpoint(model: Any, folder: Path) -> Path:
    """Return the folder a model was saved to."""
    model.save_pretrained(folder)
    return folder


def tiny_llama(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """Return a folder with a two-layer random Llama."""
    return save_checkpoint(random_model("llama", seed=seed, **{**TINY, **config}), folder)


def edit_config(folder: Path, **changes: Any) -> None:
    """Write other values into a checkpoint's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_weights(
    folder: Path, edit: Callable[[dict[str, torch.Tensor]], object], file: str = "model.safetensors"
) -> None:
    """Write changed tensors into a checkpoint."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / file).items()}
    edit(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})


def plain_logprobs(model: Any, ids: Sequence[int]) -> NDArray[np.float32]:
    """Return [T] log p(ids[t] | ids[:t]) as plain transformers gives it; NaN at t = 0."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([list(ids)])).logits[0].float()
    table = logits.log_softmax(-1)
    found = [table[t - 1, ids[t]].item() for t in range(1, len(ids))]
    return np.array([np.nan, *found], dtype=np.float32)


def assert_close(found: Any, wanted: Any, atol: float) -> None:
    """Check that two arrays agree, NaN with NaN."""
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=atol)


def chain(*parts: tuple[Sequence[int], Sequence[int]]) -> list[tuple[list[int], list[int]]]:
    """Return append-only turns from what each adds to the prompt, and its action."""
    turns = []
    context: list[int] = []
    for added, action in parts:
        context = [*context, *added]
        turns.append((context, list(action)))
        context = [*context, *action]
    return turns


def write_data(
    path: Path, trajectories: Sequence[Trajectory], *, fingerprint: str | None = None
) -> Path:
    """Return the dataset the trajectories were written to."""
    with DatasetWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
        writer.provenance = Provenance(tokenizer_name="test", tokenizer_fingerprint=fingerprint)
    return path
