import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from trajkit.errors import (
    FileError,
    InputError,
    NumericError,
    RefusedError,
    TrajkitError,
    UsageProblem,
)
from trajkit.scoring.loading.checkpoint import open_checkpoint, weights_digest


def folder_with(path: Path, config: Any = None, files: dict[str, bytes] | None = None) -> Path:
    path.mkdir()
    if config is not None:
        (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in (files or {"model.safetensors": b"w"}).items():
        (path / name).write_bytes(content)
    return path


def refusal(folder: Path | str) -> TrajkitError:
    with pytest.raises(TrajkitError) as caught:
        open_checkpoint(folder)
    return caught.value


@pytest.mark.parametrize("name", ["org/model", "nowhere"])
def test_a_name_that_is_no_folder_is_not_looked_up(name: str) -> None:
    problem = refusal(name)
    assert isinstance(problem, FileError)
    assert problem.code == "F101"
    assert "local folder" in (problem.hint or "")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    assert refusal(file).code == "F101"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "evil.Model"}},
        {"model_type": "llama", "auto_map": {"AutoConfig": "org/repo--evil.Config"}},
        {"model_type": "x", "text_config": {"auto_map": {"AutoConfig": "evil.C"}}},
        {"model_type": "x", "parts": [{"deep": {"auto_map": {"AutoConfig": "evil.C"}}}]},
    ],
)
def test_code_in_the_checkpoint_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    problem = refusal(folder_with(tmp_path / "m", config))
    assert isinstance(problem, RefusedError)
    assert problem.code == "R104"
    assert "auto_map" in problem.message


@pytest.mark.parametrize(
    "key",
    [
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "attnImplementation",
        "_experts_implementation",
        "transformers_weights",
        "fusion_config",
        "kernel_config",
        "use_kernels",
        "distributed_config",
    ],
)
def test_keys_that_steer_the_loader_are_dropped_at_any_depth(tmp_path: Path, key: str) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 7,
        key: "evil/kernel",
        "text_config": {key: {"": "evil/kernel"}, "hidden_size": 8},
        "layers": [{key: 1, "kind": "full"}],
    }
    found = open_checkpoint(folder_with(tmp_path / "m", config)).config
    assert found == {
        "model_type": "llama",
        "vocab_size": 7,
        "text_config": {"hidden_size": 8},
        "layers": [{"kind": "full"}],
    }


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl", "arrays.npz"]
)
def test_pickles_are_refused_unopened(tmp_path: Path, name: str) -> None:
    problem = refusal(folder_with(tmp_path / "m", {"model_type": "llama"}, {name: b"\x80\x04."}))
    assert isinstance(problem, RefusedError)
    assert problem.code == "R104"
    assert name in problem.message


def test_a_pickle_beside_safetensors_is_ignored(tmp_path: Path) -> None:
    files = {"model.safetensors": b"w", "pytorch_model.bin": b"\x80\x04."}
    checkpoint = open_checkpoint(folder_with(tmp_path / "m", {"model_type": "llama"}, files))
    assert [shard.name for shard in checkpoint.shards] == ["model.safetensors"]


def test_an_adapter_names_another_checkpoint_and_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m", {"model_type": "llama"})
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    assert refusal(folder).code == "R104"


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/x.safetensors", "a/b.safetensors", "shard.bin"]
)
def test_an_index_stays_inside_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.safetensors").write_bytes(b"w")
    index = json.dumps({"weight_map": {"model.norm.weight": name}}).encode()
    files = {"model.safetensors.index.json": index}
    problem = refusal(folder_with(tmp_path / "m", {"model_type": "llama"}, files))
    assert isinstance(problem, RefusedError)
    assert problem.code == "R104"


def test_a_missing_shard_is_named_with_a_tensor_it_held(tmp_path: Path) -> None:
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    files = {
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "one.safetensors": b"w",
    }
    problem = refusal(folder_with(tmp_path / "m", {"model_type": "llama"}, files))
    assert isinstance(problem, NumericError)
    assert problem.code == "N102"
    assert "two.safetensors" in problem.message
    assert "holds b" in problem.message


@pytest.mark.parametrize("index", [b"[]", b"{}", b'{"weight_map": {"a": 1}}'])
def test_an_index_that_maps_nothing_is_bad_input(tmp_path: Path, index: bytes) -> None:
    files = {"model.safetensors.index.json": index}
    assert refusal(folder_with(tmp_path / "m", {"model_type": "llama"}, files)).code == "I201"


def test_shards_come_by_name(tmp_path: Path) -> None:
    weight_map = {"a": "b.safetensors", "b": "a.safetensors", "c": "b.safetensors"}
    files = {
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "a.safetensors": b"1",
        "b.safetensors": b"2",
    }
    checkpoint = open_checkpoint(folder_with(tmp_path / "m", {"model_type": "llama"}, files))
    assert [shard.name for shard in checkpoint.shards] == ["a.safetensors", "b.safetensors"]
    assert weights_digest(checkpoint.shards) == hashlib.sha256(b"12").hexdigest()


@pytest.mark.parametrize(
    ("config", "code", "kind"),
    [
        ("{", "I102", InputError),
        ("[" * 100_000, "I102", InputError),
        ("[]", "I201", InputError),
        ({"vocab_size": 3}, "I202", InputError),
        ({"model_type": 5}, "I202", InputError),
        ({"model_type": "llama", "quantization_config": {"bits": 4}}, "U103", UsageProblem),
        ({"model_type": "x", "t": {"quantization_config": {"bits": 4}}}, "U103", UsageProblem),
        ({"model_type": "x", "configuration_files": ["config.4.0.0.json"]}, "U103", UsageProblem),
    ],
)
def test_a_configuration_that_cannot_be_used(
    tmp_path: Path, config: Any, code: str, kind: type[TrajkitError]
) -> None:
    problem = refusal(folder_with(tmp_path / "m", config))
    assert isinstance(problem, kind)
    assert problem.code == code


def test_a_quantization_that_is_null_is_none(tmp_path: Path) -> None:
    config = {"model_type": "llama", "quantization_config": None}
    assert open_checkpoint(folder_with(tmp_path / "m", config)).name == "m"


def test_no_configuration_and_no_weights(tmp_path: Path) -> None:
    assert refusal(folder_with(tmp_path / "a")).code == "F101"
    assert refusal(folder_with(tmp_path / "b", {"model_type": "llama"}, {"x": b""})).code == "F101"
