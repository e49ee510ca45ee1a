import hashlib
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.score_builders import (
    GPT2,
    TINY,
    edit_config,
    edit_weights,
    random_model,
    save_checkpoint,
    tiny_llama,
)
from trajkit.errors import Place, TrajkitError, UsageProblem
from trajkit.scoring import require_torch
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import _check_floating, choose_device, load_model


def failure(folder: Path, **options: Any) -> TrajkitError:
    with pytest.raises(TrajkitError) as caught:
        load_model(folder, **{"device": "cpu", **options})
    return caught.value


def test_what_a_loaded_model_says_about_itself(llama: LoadedModel, llama_dir: Path) -> None:
    weights = (llama_dir / "model.safetensors").read_bytes()
    assert llama.weights_digest == hashlib.sha256(weights).hexdigest()
    assert (llama.name, llama.path) == ("tiny", llama_dir)
    assert (llama.dtype, llama.device_name) == ("fp32", "cpu")
    assert (llama.n_vocab, llama.max_positions, llama.rope_switch) == (61, 96, None)
    assert llama.unused_tensors == ()
    assert not llama.model.training


@pytest.mark.parametrize(
    "changes",
    [
        {"_attn_implementation": "evil/kernel"},
        {"attn_implementation": "evil/kernel"},
        {"_attn_implementation_internal": "evil/kernel"},
        {"attn_implementation": {"": "evil/kernel", "text_config": "evil/kernel"}},
        {"transformers_weights": "../elsewhere.safetensors"},
        {"fusion_config": {"evil": True}},
    ],
)
def test_the_checkpoint_has_no_say_in_how_it_is_loaded(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_config(folder, **changes)
    loaded = load_model(folder, device="cpu")
    assert loaded.model.config._attn_implementation == "sdpa"
    assert "kernels" not in sys.modules


def test_code_of_the_checkpoint_is_neither_imported_nor_run(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    canary = tmp_path / "canary"
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass Model: ...\n")
    edit_config(folder, auto_map={"AutoModelForCausalLM": "evil.Model"})
    assert failure(folder).code == "R104"
    assert not canary.exists()


@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"]
)
def test_a_missing_weight_is_named(tmp_path: Path, name: str) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_weights(folder, lambda w: w.__delitem__(name))
    problem = failure(folder)
    assert problem.code == "N102"
    assert name in problem.message


def test_a_tied_head_is_not_missing(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", tie_word_embeddings=True)
    model = load_model(folder, device="cpu").model
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, poison: float) -> None:
    folder = tiny_llama(tmp_path / "m")
    name = "model.layers.0.self_attn.q_proj.weight"
    edit_weights(folder, lambda w: w[name].view(-1)[5:6].fill_(poison))
    problem = failure(folder)
    assert problem.code == "N102"
    assert name in problem.message
    assert problem.hint is None


def test_weights_that_overflow_in_fp16_say_so(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_weights(folder, lambda w: w["model.norm.weight"].fill_(1e5))
    problem = failure(folder, dtype="fp16")
    assert problem.code == "N102"
    assert "overflow" in (problem.hint or "")
    assert load_model(folder, device="cpu", dtype="bf16").dtype == "bf16"


def test_a_weight_of_another_shape_is_named_with_both(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_config(folder, vocab_size=500)
    problem = failure(folder)
    assert problem.code == "N102"
    assert "[61, 32]" in problem.message
    assert "[500, 32]" in problem.message


def test_layers_the_configuration_would_leave_out_are_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_config(folder, num_hidden_layers=1)
    problem = failure(folder)
    assert problem.code == "N102"
    assert "model.layers.1." in problem.message


def test_a_tensor_of_something_else_is_only_reported(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_weights(folder, lambda w: w.update({"v_head.summary.weight": torch.zeros(1, 32)}))
    assert load_model(folder, device="cpu").unused_tensors == ("v_head.summary.weight",)


def test_a_cut_weight_file_is_damaged(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert failure(folder).code == "N102"


def test_shards_are_read_together(tmp_path: Path) -> None:
    model = random_model("llama", **TINY)
    model.save_pretrained(tmp_path / "m", max_shard_size="20KB")
    loaded = load_model(tmp_path / "m", device="cpu")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_type": "not_yet_invented"}, "U103"),
        ({"model_type": "t5"}, "U103"),
        ({"hidden_size": "wide"}, "I201"),
        ({"hidden_act": "not_yet_invented"}, "I201"),
        ({"pad_token_id": 1000}, "I201"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "U103"),
    ],
)
def test_an_architecture_that_cannot_be_made(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_config(folder, **changes)
    assert failure(folder).code == code


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64])
def test_weights_of_a_kind_that_is_not_scored_are_refused(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    folder = tiny_llama(tmp_path / "m")
    name = "lm_head.weight"
    edit_weights(folder, lambda w: w.update({name: w[name].to(dtype)}))
    problem = failure(folder)
    assert problem.code == "U103"
    assert str(dtype).removeprefix("torch.") in problem.message


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
def test_weights_that_are_not_floats_are_not_cast_to_floats(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_weights(folder, lambda w: w.update({name: w[name].to(dtype)}))
    problem = failure(folder)
    assert isinstance(problem, UsageProblem)
    assert problem.code == "U103"
    assert name in problem.message
    assert str(dtype).removeprefix("torch.") in problem.message


def test_packed_weights_are_told_before_their_shape_is(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(folder, lambda w: w.update({name: torch.zeros(768, 1, dtype=torch.uint8)}))
    assert failure(folder).code == "U103"


def test_integers_that_are_no_weights_are_fine(tmp_path: Path) -> None:
    save_checkpoint(random_model("gpt2", **GPT2), tmp_path / "m")
    masks = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 96, 96, dtype=torch.bool),
        "transformer.position_ids": torch.arange(96),
    }
    edit_weights(tmp_path / "m", lambda w: w.update(masks))
    assert load_model(tmp_path / "m", device="cpu").unused_tensors == ("transformer.position_ids",)


def test_integers_the_model_keeps_are_fine_and_only_those() -> None:
    class Holds(torch.nn.Module):
        _keys_to_ignore_on_load_unexpected = None

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("position_ids", torch.arange(4))
            self.register_buffer("scale", torch.ones(1))

    place = Place(file="m")
    _check_floating(Holds(), {"position_ids": torch.arange(4)}, (), place)
    _check_floating(Holds(), {"model.position_ids": torch.arange(4)}, (), place)
    with pytest.raises(UsageProblem, match="scale"):
        _check_floating(Holds(), {"scale": torch.ones(1, dtype=torch.int8)}, (), place)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_dtype_asked_for_is_the_dtype_loaded(llama_dir: Path, dtype: str) -> None:
    loaded = load_model(llama_dir, device="cpu", dtype=dtype)
    assert loaded.dtype == dtype
    assert loaded.head.layer is not None
    assert loaded.head.layer.weight is loaded.model.lm_head.weight  # no second copy of it


def test_half_precision_checkpoints_are_scored_in_fp32_on_the_cpu(tmp_path: Path) -> None:
    save_checkpoint(random_model("llama", **TINY).to(torch.bfloat16), tmp_path / "m")
    loaded = load_model(tmp_path / "m", device="cpu")
    assert loaded.dtype == "fp32"
    assert loaded.model.dtype is torch.float32


@pytest.mark.parametrize("options", [{"device": "tpu"}, {"dtype": "fp8"}, {"dtype": "float32"}])
def test_words_that_mean_nothing(llama_dir: Path, options: dict[str, str]) -> None:
    assert failure(llama_dir, **options).code == "U103"


def test_cuda_without_a_gpu(llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    problem = failure(llama_dir, device="cuda")
    assert isinstance(problem, UsageProblem)
    assert problem.code == "U106"
    assert "--device cpu" in (problem.hint or "")
    assert choose_device("auto") == torch.device("cpu")


def test_torch_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_torch()
    monkeypatch.setattr("trajkit.scoring.find_spec", lambda name: None if name == "torch" else 1)
    with pytest.raises(UsageProblem) as caught:
        require_torch()
    assert caught.value.code == "U105"
    assert caught.value.hint == "pip install 'trajkit[score]'"


def test_loading_prints_nothing_and_leaves_the_library_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_weights(folder, lambda w: w.update({"other.weight": torch.zeros(1)}))
    before = transformers.logging.get_verbosity()
    capfd.readouterr()
    load_model(folder, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert transformers.logging.get_verbosity() == before
    assert transformers.logging.is_progress_bar_enabled()
    assert logging.getLogger("transformers").level == before


def test_loading_never_touches_the_network(
    llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(f"socket.socket.{name}", lambda *_: pytest.fail("a socket was used"))
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: pytest.fail("a name was looked up"))
    load_model(llama_dir, device="cpu")


def test_models_without_a_limit_on_positions_have_none(tmp_path: Path) -> None:
    config = {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    save_checkpoint(random_model("bloom", **config), tmp_path / "m")
    assert load_model(tmp_path / "m", device="cpu").max_positions is None


def test_gpt2_calls_its_positions_otherwise(tmp_path: Path) -> None:
    save_checkpoint(random_model("gpt2", **GPT2), tmp_path / "m")
    assert load_model(tmp_path / "m", device="cpu").max_positions == 96
