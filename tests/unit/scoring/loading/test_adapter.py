"""LoRA adapters are merged as the formula says, and what cannot be merged exactly is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.score_builders import GPT2, TINY, random_model, save_checkpoint
from trajkit.errors import TrajkitError
from trajkit.scoring.loading.model import load_model

UNTIED = {**TINY, "tie_word_embeddings": False}
IDS = torch.arange(3, 30)[None]
Q = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    model = random_model("llama", **UNTIED)
    return model, save_checkpoint(model, tmp_path_factory.mktemp("base"))


def factors(n_in: int, n_out: int, rank: int = 4, seed: int = 0) -> tuple[Any, Any]:
    """Return A [R, I] and B [O, R]."""
    torch.manual_seed(seed)
    return torch.randn(rank, n_in) * 0.3, torch.randn(n_out, rank) * 0.3


def save_adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    save_file(
        {name: t.contiguous() for name, t in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def said(base: Path, adapter: Path) -> Any:
    with torch.inference_mode():
        return load_model(base, device="cpu", adapter=adapter).model(input_ids=IDS).logits


def with_branch(model: Any, module: str, down: Any, up: Any, scale: float) -> Any:
    """Return the logits with the low-rank branch beside a layer, as training has it: not merged."""
    layer = model.get_submodule(module)

    def add(_: Any, given: tuple[Any, ...], output: Any) -> Any:
        return output + scale * (given[0] @ down.T @ up.T)

    handle = layer.register_forward_hook(add)
    try:
        with torch.inference_mode():
            return model(input_ids=IDS).logits
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("config", "rank", "scale"),
    [
        ({}, 4, 2.0),
        ({"use_rslora": True}, 4, 4.0),
        ({"rank_pattern": {"q_proj": 2}, "alpha_pattern": {r"layers\.0\..*q_proj": 3}}, 2, 1.5),
        ({"rank_pattern": {"proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 3}}, 4, 2.0),
    ],
)
def test_an_adapter_adds_its_scaled_product(llama, tmp_path, config, rank, scale):
    model, base = llama
    down, up = factors(32, 32, rank)
    adapter = save_adapter(
        tmp_path / "a", {f"{Q}.lora_A.weight": down, f"{Q}.lora_B.weight": up}, **config
    )
    name = Q.removeprefix("base_model.model.")
    wanted = with_branch(model, name, down, up, scale)
    with torch.inference_mode():
        plain = model(input_ids=IDS).logits
    assert (
        float((said(base, adapter) - wanted).abs().max())
        < 1e-4
        < float((plain - wanted).abs().max())
    )


def test_a_layer_that_keeps_its_weight_the_other_way_round_is_turned(tmp_path):
    model = random_model("gpt2", **GPT2)
    base = save_checkpoint(model, tmp_path / "base")
    down, up = factors(32, 96)
    name = "base_model.model.transformer.h.1.attn.c_attn"
    adapter = save_adapter(
        tmp_path / "a", {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    )
    wanted = with_branch(model, name.removeprefix("base_model.model."), down, up, 2.0)
    assert float((said(base, adapter) - wanted).abs().max()) < 1e-4


def test_embeddings_whole_modules_and_biases_are_merged_too(llama, tmp_path):
    model, base = llama
    down, up = factors(61, 32)
    head = torch.randn(61, 32)
    embed = "base_model.model.model.embed_tokens"
    own = torch.randn(61, 32)
    adapter = save_adapter(
        tmp_path / "a",
        {
            f"{embed}.lora_embedding_A": down,
            f"{embed}.lora_embedding_B": up,
            f"{embed}.base_layer.weight": own,
            "base_model.model.lm_head.weight": head,
        },
    )
    twin = random_model("llama", **UNTIED)
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        twin.model.embed_tokens.weight.copy_(own + 2.0 * (up @ down).T)
        twin.lm_head.weight.copy_(head)
        wanted = twin(input_ids=IDS).logits
    assert float((said(base, adapter) - wanted).abs().max()) < 1e-4


def test_the_model_says_which_adapter_it_holds(llama, tmp_path):
    down, up = factors(32, 32)
    adapter = save_adapter(
        tmp_path / "mine", {f"{Q}.lora_A.weight": down, f"{Q}.lora_B.weight": up}
    )
    loaded = load_model(llama[1], device="cpu", adapter=adapter)
    assert loaded.adapter == "mine"
    assert len(loaded.adapter_digest or "") == 64
    plain = load_model(llama[1], device="cpu")
    assert (plain.adapter, plain.weights_digest) == (None, loaded.weights_digest)


A, B = factors(32, 32)
GOOD = {f"{Q}.lora_A.weight": A, f"{Q}.lora_B.weight": B}


@pytest.mark.parametrize(
    ("tensors", "config", "code", "told"),
    [
        ({f"{Q}.lora_A.weight": A}, {}, "N102", "lora_B"),
        ({**GOOD, f"{Q}.lora_magnitude_vector": A[0].clone()}, {}, "N102", "lora_magnitude_vector"),
        ({k.replace("q_proj", "z_proj"): v for k, v in GOOD.items()}, {}, "N102", "z_proj"),
        ({f"{Q}.lora_A.weight": A, f"{Q}.lora_B.weight": B[:16]}, {}, "N102", "[32, 32]"),
        ({f"{Q}.lora_A.weight": A * torch.nan, f"{Q}.lora_B.weight": B}, {}, "N102", "finite"),
        (GOOD, {"r": 8}, "N102", "rank 8"),
        (GOOD, {"r": None}, "N102", "rank None"),
        (GOOD, {"rank_pattern": {"[": 3}}, "N102", "rank_pattern"),
        (GOOD, {"alpha_pattern": ["q_proj"]}, "N102", "alpha_pattern"),
        (GOOD, {"lora_alpha": 10**400}, "N102", "alpha"),
        (GOOD, {"lora_alpha": True}, "N102", "alpha True"),
        ({name: tensor.to(torch.int8) for name, tensor in GOOD.items()}, {}, "N102", "floats"),
        ({**GOOD, f"{Q}.base_layer.lora_A.weight": A.clone()}, {}, "N102", "one place"),
        (GOOD, {"use_dora": True}, "U103", "DoRA"),
        (GOOD, {"peft_type": "IA3"}, "U103", "IA3"),
        (GOOD, {"init_lora_weights": "pissa_niter_4"}, "U103", "pissa"),
        (GOOD, {"trainable_token_indices": [3]}, "U103", "rows"),
        ({"base_model.model.lm_head.weight": torch.ones(60, 32)}, {}, "N102", "[60, 32]"),
    ],
)
def test_what_cannot_be_merged_exactly_is_refused(llama, tmp_path, tensors, config, code, told):
    adapter = save_adapter(tmp_path / "a", tensors, **config)
    with pytest.raises(TrajkitError) as caught:
        load_model(llama[1], device="cpu", adapter=adapter)
    assert caught.value.code == code
    assert told in caught.value.message


def test_a_merged_weight_that_overflows_in_fp16_is_named(llama, tmp_path):
    adapter = save_adapter(tmp_path / "a", GOOD, lora_alpha=1e7)
    assert load_model(llama[1], device="cpu", adapter=adapter).adapter == "a"
    with pytest.raises(TrajkitError, match=r"q_proj\.weight is not finite"):
        load_model(llama[1], device="cpu", dtype="fp16", adapter=adapter)


def test_a_weight_that_two_layers_share_is_not_changed_for_one(tmp_path):
    model = random_model("llama", **{**TINY, "tie_word_embeddings": True})
    base = save_checkpoint(model, tmp_path / "base")
    adapter = save_adapter(tmp_path / "a", {"base_model.model.lm_head.weight": torch.ones(61, 32)})
    with pytest.raises(TrajkitError, match="shared"):
        load_model(base, device="cpu", adapter=adapter)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({}, "F101"),
        ({"adapter_config.json": "{"}, "I102"),
        ({"adapter_config.json": "[]"}, "I201"),
        ({"adapter_config.json": json.dumps(CONFIG)}, "F101"),
        ({"adapter_config.json": json.dumps(CONFIG), "adapter_model.bin": "x"}, "R104"),
        ({"adapter_config.json": json.dumps(CONFIG), "adapter_model.safetensors": "x"}, "N102"),
    ],
)
def test_a_folder_that_is_no_adapter_is_an_error(llama, tmp_path, files, code):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(TrajkitError) as caught:
        load_model(llama[1], device="cpu", adapter=tmp_path)
    assert caught.value.code == code
