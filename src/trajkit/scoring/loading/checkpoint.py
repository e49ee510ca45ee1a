"""A checkpoint folder as it lies on disk: what it asks for, and whether that is safe to open.

Everything is decided from the names of the files and from `config.json` as plain JSON, before a
line of the model library runs. A folder can ask that library for far more than weights: to import
code (`auto_map`), to fetch kernels from a hub (`_attn_implementation`), to open another base model
(`adapter_config.json`), to read other files (`transformers_weights`). None of that is granted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajkit.errors import (
    FileError,
    InputError,
    NumericError,
    Place,
    RefusedError,
    UsageProblem,
)
from trajkit.scoring.loading.layouts import refuse_foreign

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".npy", ".npz"})
_POSITIONS = ("max_position_embeddings", "n_positions")
_LOADER_KEYS = ("attnimplementation", "expertsimplementation")
_LOADER_NAMES = frozenset(
    {
        "distributed_config",
        "fusion_config",
        "kernel_config",
        "transformers_weights",
        "trust_remote_code",
        "use_kernels",
    }
)
"""Keys that tell the library how to load or which code to use; never facts about the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder that was found safe: its configuration, without loader keys, and its weight files.

    Attributes:
        shards: the safetensors files, by name.
    """

    path: Path
    config: dict[str, Any]
    shards: tuple[Path, ...]

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.path.resolve().name

    @property
    def max_positions(self) -> int | None:
        """Return the longest sequence the configuration speaks of, `None` where it names none."""
        for config in (self.config, self.config.get("text_config") or {}):
            for name in _POSITIONS:
                if isinstance(config.get(name), int):
                    return int(config[name])
        return None


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Return the checkpoint in a local folder; reads `config.json` and file names only.

    Raises:
        FileError: F101 when there is no folder, no configuration or no weights.
        InputError: I102, I201 or I202 when the configuration cannot be understood.
        RefusedError: R104 when it would run code, unpickle, or reach outside its folder.
        UsageProblem: U103 when its weights are quantised.
        NumericError: N102 when a weight file is missing.
    """
    path = Path(path)
    place = Place(file=str(path))
    if not path.is_dir():
        raise FileError(
            "F101",
            "there is no checkpoint folder here",
            place=place,
            hint="--model takes a local folder with config.json and *.safetensors; "
            "names of a model hub are not looked up",
        )
    if (path / "adapter_config.json").exists():
        raise RefusedError(
            "R104",
            "the folder holds an adapter, which names another checkpoint to load",
            place=place,
            hint="--model takes the checkpoint it was trained on, --adapter this folder",
        )
    refuse_foreign(path, (_WEIGHTS, _INDEX))
    config = _config(path / "config.json")
    return Checkpoint(path=path, config=config, shards=_shards(path))


def weights_digest(shards: tuple[Path, ...]) -> str:
    """Return the sha256 hex digest of the files' bytes one after the other, streamed.

    For a checkpoint of one file this is what `sha256sum` prints.
    """
    digest = hashlib.sha256()
    buffer = bytearray(2**20)
    for shard in shards:
        with shard.open("rb", buffering=0) as file:
            while n_read := file.readinto(buffer):
                digest.update(memoryview(buffer)[:n_read])
    return digest.hexdigest()


def _config(file: Path) -> dict[str, Any]:
    place = Place(file=str(file))
    if not file.is_file():
        raise FileError("F101", "the checkpoint has no config.json", place=place)
    config = read_json(file)
    if not isinstance(config.get("model_type"), str):
        raise InputError("I202", "the architecture (model_type) is missing", place=place)
    for key, value in _walk(config):
        if key == "auto_map" and value:
            raise RefusedError(
                "R104",
                "config.json asks to import Python code from the checkpoint (auto_map)",
                place=place,
                hint="trajkit never runs code of a checkpoint: use one whose architecture is part "
                "of transformers, and remove auto_map from its config.json",
            )
        if key == "configuration_files" and value:
            raise UsageProblem(
                "U103",
                "--model: config.json leaves its content to other files (configuration_files)",
                place=place,
                hint="copy the file meant for your version of transformers over config.json",
            )
        if key == "quantization_config" and value:
            raise UsageProblem(
                "U103",
                "--model names a checkpoint with quantised weights; only fp32, bf16 and fp16 are "
                "scored",
                place=place,
                hint="dequantise it first, and save the result with save_pretrained",
            )
    return {key: _without_loader_keys(value) for key, value in config.items() if _is_fact(key)}


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        FileError: F101 when it cannot be read.
        InputError: I102 when it is no JSON, I201 when it is no object.
    """
    place = Place(file=str(file))
    try:
        value = json.loads(file.read_bytes())
    except OSError as problem:
        raise FileError("F101", f"cannot be read: {problem.strerror}", place=place) from problem
    except (ValueError, RecursionError) as problem:
        raise InputError("I102", "the file is not JSON", place=place) from problem
    if not isinstance(value, dict):
        raise InputError("I201", "the file does not hold a JSON object", place=place)
    return value


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)


def _without_loader_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_loader_keys(inner) for key, inner in value.items() if _is_fact(key)}
    if isinstance(value, list):
        return [_without_loader_keys(inner) for inner in value]
    return value


def _is_fact(key: str) -> bool:
    """Return whether a key describes the model, and not how or with whose code to load it."""
    flat = key.replace("_", "").lower()
    return key not in _LOADER_NAMES and not any(name in flat for name in _LOADER_KEYS)


def _shards(path: Path) -> tuple[Path, ...]:
    if (path / _WEIGHTS).is_file():
        return (path / _WEIGHTS,)
    if (path / _INDEX).is_file():
        return _indexed(path)
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
    place = Place(file=str(path))
    if pickles:
        raise RefusedError(
            "R104",
            f"the weights are pickled ({pickles[0]}); opening a pickle can run code",
            place=place,
            hint="open it where you trust it, and save it as safetensors with save_pretrained",
        )
    raise FileError(
        "F101", f"the folder has neither {_WEIGHTS} nor {_INDEX}: there are no weights", place=place
    )


def _indexed(path: Path) -> tuple[Path, ...]:
    index = path / _INDEX
    place = Place(file=str(index), path="$.weight_map")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError("I201", "the index does not map tensors to files", place=place)
    files = sorted(set(names.values()))
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise RefusedError(
                "R104",
                f"the index names {name!r}, which is not a safetensors file of this folder",
                place=place,
            )
        if not (path / name).is_file():
            tensor = next(tensor for tensor, file in names.items() if file == name)
            raise NumericError(
                "N102", f"the weight file {name} is missing; it holds {tensor}", place=place
            )
    if not files:
        raise NumericError("N102", "the index names no weights", place=place)
    return tuple(path / name for name in files)
