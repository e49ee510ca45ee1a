from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.score_builders import (
    GPT2,
    HYBRID,
    TINY,
    assert_close,
    plain_logprobs,
    random_model,
    save_checkpoint,
)
from trajkit.errors import NumericError, Place
from trajkit.records import ids_array
from trajkit.scoring.forward.head import (
    HeadKind,
    _wide_product,
    find_head,
    hidden_states,
    logits_of,
)
from trajkit.scoring.forward.logprobs import token_scores
from trajkit.scoring.loading.model import load_model

IDS = [1, 17, 5, 5, 42, 60, 3, 11, 29, 0, 31, 2, 7, 8, 50, 51, 52, 1, 1, 9]

LINEAR_ATTENTION: dict[str, Any] = {**TINY, **HYBRID}
STATE_SPACE: dict[str, Any] = {
    **TINY,
    "lm_head_multiplier": 0.5,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_chunk_size": 8,
}
EXPERTS: dict[str, Any] = {
    **TINY,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], HeadKind]] = {
    "llama": ("llama", TINY, HeadKind.LINEAR),
    "llama-tied": ("llama", {**TINY, "tie_word_embeddings": True}, HeadKind.LINEAR),
    "qwen2": ("qwen2", TINY, HeadKind.LINEAR),
    "qwen3": ("qwen3", TINY, HeadKind.LINEAR),
    "qwen3-moe": ("qwen3_moe", EXPERTS, HeadKind.LINEAR),
    "qwen3-next": ("qwen3_next", LINEAR_ATTENTION, HeadKind.LINEAR),
    "mistral-window": ("mistral", {**TINY, "sliding_window": 5}, HeadKind.LINEAR),
    "gemma2-softcap": (
        "gemma2",
        {**TINY, "final_logit_softcapping": 3.0, "sliding_window": 5},
        HeadKind.FORWARD,
    ),
    "gemma3": ("gemma3_text", {**TINY, "sliding_window": 5}, HeadKind.LINEAR),
    "cohere2-scale": ("cohere2", {**TINY, "logit_scale": 0.25}, HeadKind.FORWARD),
    "granite-scaling": ("granite", {**TINY, "logits_scaling": 8.0}, HeadKind.FORWARD),
    "granite-unscaled": ("granite", TINY, HeadKind.LINEAR),
    "falcon-h1-multiplier": ("falcon_h1", STATE_SPACE, HeadKind.FORWARD),
    "gpt2": ("gpt2", GPT2, HeadKind.LINEAR),
    "opt": (
        "opt",
        {**TINY, "ffn_dim": 48, "word_embed_proj_dim": 32},
        HeadKind.LINEAR,
    ),
    "phi-bias": ("phi", TINY, HeadKind.LINEAR),
    "phi3": ("phi3", TINY, HeadKind.LINEAR),
    "olmo2": ("olmo2", TINY, HeadKind.LINEAR),
    "gpt-oss-sinks": ("gpt_oss", {**TINY, "num_local_experts": 4}, HeadKind.LINEAR),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_scores_are_those_of_the_models_own_forward_pass(tmp_path: Path, name: str) -> None:
    model_type, config, kind = ARCHITECTURES[name]
    model = random_model(model_type, **config)
    loaded = load_model(save_checkpoint(model, tmp_path / "m"), device="cpu")
    assert loaded.head.kind is kind
    targets = np.arange(len(IDS), dtype=np.int64)
    found = token_scores(loaded, ids_array(IDS), targets, chunk_rows=7).logprobs
    wanted = plain_logprobs(loaded.model, IDS)
    assert_close(found, wanted, atol=1e-5)
    assert_close(plain_logprobs(model, IDS), wanted, atol=1e-5)
    assert wanted[1:].std() > 0.1


def test_a_softcap_left_out_would_show(tmp_path: Path) -> None:
    model = random_model("gemma2", **TINY, final_logit_softcapping=3.0)
    loaded = load_model(save_checkpoint(model, tmp_path / "m"), device="cpu")
    model.config.final_logit_softcapping = None
    targets = np.arange(1, len(IDS), dtype=np.int64)
    found = token_scores(loaded, ids_array(IDS), targets).logprobs
    assert np.abs(found - plain_logprobs(model, IDS)[1:]).max() > 0.1


class ScaledLinear(torch.nn.Linear):
    """An output layer that is a Linear by type, and more than one by what it does."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return super().forward(states) * 0.5


def test_a_subclass_of_linear_is_run_and_not_read() -> None:
    model = random_model("llama", **TINY)
    layer = ScaledLinear(32, 61, bias=False)
    layer.weight = model.lm_head.weight
    model.lm_head = layer
    head = find_head(model, Place())
    assert head.kind is HeadKind.FORWARD
    ids = torch.tensor(IDS)
    found = logits_of(model, head, hidden_states(model, "model", ids), torch.tensor([3, 9]))
    wanted = model(input_ids=ids[None]).logits[0, [3, 9]]
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0.0)


def test_the_body_is_put_back_after_its_stand_in() -> None:
    model = random_model("gemma2", **TINY)
    body = model.model
    find_head(model, Place())
    assert model.model is body


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_models_that_look_ahead_are_refused(tmp_path: Path, model_type: str) -> None:
    config = {name: value for name, value in TINY.items() if name != "head_dim"}
    model = random_model(model_type, **config)
    with pytest.raises(NumericError) as caught:
        load_model(save_checkpoint(model, tmp_path / "m"), device="cpu")
    assert caught.value.code == "N104"
    assert "later tokens" in caught.value.message


def test_a_configuration_with_which_nothing_runs_is_refused(tmp_path: Path) -> None:
    model = random_model("gptj", **GPT2)  # 64 rotary dimensions in heads of 8
    with pytest.raises(NumericError) as caught:
        load_model(save_checkpoint(model, tmp_path / "m"), device="cpu")
    assert caught.value.code == "N104"


def test_a_model_without_an_output_layer_is_refused() -> None:
    model = random_model("llama", **TINY)
    model.lm_head = torch.nn.Identity()
    with pytest.raises(NumericError) as caught:
        find_head(model, Place())
    assert caught.value.code == "N104"


class OddHead(transformers.LlamaForCausalLM):
    """A model whose logits depend on how many rows the head is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * output.logits.shape[1]
        return output


def test_a_head_that_needs_all_rows_is_refused() -> None:
    model: Any = OddHead(transformers.LlamaConfig(**TINY))
    model.eval()
    with pytest.raises(NumericError) as caught:
        find_head(model, Place())
    assert caught.value.code == "N104"
    assert "other logits" in caught.value.message


def test_logits_of_half_precision_states_come_out_in_float32(tmp_path: Path) -> None:
    model = random_model("llama", **{**TINY, "hidden_size": 256, "head_dim": 64})
    folder = save_checkpoint(model, tmp_path / "m")
    loaded = load_model(folder, device="cpu", dtype="bf16")
    hidden = hidden_states(loaded.model, loaded.head.body_name, torch.tensor(IDS))
    rows = torch.arange(len(IDS))
    found = logits_of(loaded.model, loaded.head, hidden, rows).double()
    with torch.inference_mode():
        exact = hidden.states_TH.double() @ loaded.model.lm_head.weight.double().T
        rounded = loaded.model.lm_head(hidden.states_TH).double()
    assert (found - exact).abs().max() < 1e-3 * (rounded - exact).abs().max()


@pytest.mark.parametrize("name", ["gemma2-softcap", "cohere2-scale", "granite-scaling"])
def test_what_a_model_does_to_its_logits_it_does_in_float32(tmp_path: Path, name: str) -> None:
    model_type, config, kind = ARCHITECTURES[name]
    model = random_model(model_type, **{**config, "hidden_size": 256, "head_dim": 64})
    loaded = load_model(save_checkpoint(model, tmp_path / "m"), device="cpu", dtype="bf16")
    assert loaded.head.kind is kind
    hidden = hidden_states(loaded.model, loaded.head.body_name, torch.tensor(IDS))
    found = logits_of(loaded.model, loaded.head, hidden, torch.arange(len(IDS)))
    assert found.dtype is torch.float32
    given = hidden.states_TH[None]
    with torch.inference_mode():
        rounded = loaded.model.lm_head(given)[0].double()
        exact = (given.double() @ loaded.model.lm_head.weight.double().T)[0]
        if cap := getattr(loaded.model.config, "final_logit_softcapping", None):
            exact, rounded = (cap * torch.tanh(each / cap) for each in (exact, rounded))
        scale = getattr(loaded.model.config, "logit_scale", None) or 1.0
        scale /= getattr(loaded.model.config, "logits_scaling", None) or 1.0
        exact, rounded = exact * scale, rounded * scale
    assert (found - exact).abs().max() < 1e-3 * (rounded - exact).abs().max()


def test_a_widened_product_is_that_of_the_widened_weight() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 9_001).to(torch.bfloat16)
    states = torch.randn(3, 64, dtype=torch.bfloat16)
    found = _wide_product(layer, states)
    exact = states.double() @ layer.weight.double().T + layer.bias.double()
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=0.0)


def test_somebody_elses_forward_of_the_output_layer_is_put_back() -> None:
    model = random_model("gemma2", **TINY, final_logit_softcapping=3.0)
    own: Any = model.lm_head.forward

    def hooked(states: torch.Tensor) -> Any:
        return own(states)

    vars(model.lm_head)["forward"] = hooked
    head = find_head(model, Place())
    assert head.kind is HeadKind.FORWARD
    assert vars(model.lm_head)["forward"] is hooked
    plain = random_model("gemma2", **TINY, final_logit_softcapping=3.0)
    find_head(plain, Place())
    assert "forward" not in vars(plain.lm_head)


def hook(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 1.5


def pre_hook(_: Any, states: tuple[torch.Tensor]) -> torch.Tensor:
    return states[0] * 1.5


def patch_forward(layer: torch.nn.Module) -> None:
    own: Any = layer.forward
    vars(layer)["forward"] = lambda states: own(states) * 1.5


TOUCHES: dict[str, Any] = {
    "hook": lambda layer: layer.register_forward_hook(hook),
    "pre-hook": lambda layer: layer.register_forward_pre_hook(pre_hook),
    "patched": patch_forward,
}


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("name", ["llama", "gemma2-softcap"])
def test_what_others_do_to_an_output_layer_is_not_left_out(name: str, touch: str) -> None:
    model_type, config, _ = ARCHITECTURES[name]
    model = random_model(model_type, **config)
    ids, rows = torch.tensor(IDS), torch.tensor([3, 9, 19])
    bare = model(input_ids=ids[None]).logits[0]
    TOUCHES[touch](model.lm_head)
    before, wanted = dict(vars(model.lm_head)), model(input_ids=ids[None]).logits[0]
    assert (wanted - bare).abs().max() > 0.1
    head = find_head(model, Place())
    assert (head.kind, head.layer) == (HeadKind.FORWARD, None)
    found = logits_of(model, head, hidden_states(model, head.body_name, ids), rows)
    torch.testing.assert_close(found, wanted[rows], atol=3e-6, rtol=0.0)
    assert vars(model.lm_head) == before
    assert torch.equal(model(input_ids=ids[None]).logits[0], wanted)


def test_who_only_looks_at_an_output_layer_changes_nothing() -> None:
    model = random_model("llama", **TINY)
    seen: list[torch.Size] = []
    model.lm_head.register_forward_hook(lambda _, __, output: seen.append(output.shape))
    assert find_head(model, Place()).kind is HeadKind.LINEAR
    assert seen


@pytest.mark.parametrize("words", ["CUBLAS_STATUS_ALLOC_FAILED when calling", "out of memory"])
def test_a_full_gpu_is_no_verdict_on_an_architecture(words: str) -> None:
    model = random_model("llama", **TINY)

    def full(*_: Any) -> None:
        raise RuntimeError(f"CUDA error: {words}")

    model.lm_head.register_forward_hook(full)
    with pytest.raises(torch.OutOfMemoryError, match=words):
        find_head(model, Place())
