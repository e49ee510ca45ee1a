"""LoRA adapters, merged into the weights they were trained on: W + s B A (arXiv 2106.09685).

An adapter is read as its configuration and a safetensors file; the checkpoint that it names is
never looked up. s is alpha / r, or alpha / sqrt(r) with rank-stabilised scaling (arXiv 2312.03732).
Each tensor of the file must find its place: what cannot be merged exactly is refused by name.

Dimension key: R rank, I inputs and O outputs of a layer, V ids, H hidden size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trajkit.errors import FileError, NumericError, Place, RefusedError, UsageProblem
from trajkit.scoring.loading.checkpoint import read_json, weights_digest

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PAIRS = {
    ".lora_A.weight": ".lora_B.weight",
    ".lora_embedding_A": ".lora_embedding_B",
}
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the base weights too: merged into the untouched ones they are off."""
_UNKNOWN = {
    "use_dora": "DoRA scales whole columns",
    "use_qalora": "QALoRA pools its inputs",
    "layer_replication": "replicated layers make another model",
    "alora_invocation_tokens": "activated LoRA acts on some tokens only",
    "target_parameters": "it adapts parameters that are no layer",
    "trainable_token_indices": "it trains single rows of the embedding",
}
"""Keys of a configuration that ask for more than B A, and why that is not merged."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapter:
    """An adapter as it lies on disk.

    Attributes:
        config: its configuration.
        tensors: by name, without what PEFT puts around a module's own.
        digest: sha256 of the weight file's bytes.
    """

    path: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    digest: str

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.path.resolve().name

    @property
    def place(self) -> Place:
        """Return where it lies."""
        return Place(file=str(self.path))


def open_adapter(path: Path | str) -> Adapter:
    """Return the LoRA adapter in a local folder.

    Raises:
        FileError: F101 when there is none.
        InputError: I102 or I201 when its configuration is no JSON object.
        UsageProblem: U103 when it is of a kind that cannot be merged.
        RefusedError: R104 when its weights are pickled.
        NumericError: N102 when the weight file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    place = Place(file=str(path))
    if not (path / _CONFIG).is_file():
        hint = f"--adapter takes a local folder with {_CONFIG} and {_WEIGHTS}"
        raise FileError("F101", "there is no adapter here", place=place, hint=hint)
    config = read_json(path / _CONFIG)
    _check_kind(config, place)
    file = path / _WEIGHTS
    if not file.is_file():
        if (path / "adapter_model.bin").is_file():
            raise RefusedError(
                "R104",
                "the adapter's weights are pickled; opening a pickle can run code",
                place=place,
                hint="open it where you trust it, and save it as safetensors",
            )
        raise FileError("F101", f"the adapter has no {_WEIGHTS}", place=place)
    try:
        stored = load_file(file)
    except SafetensorError as problem:
        message = f"the weight file is damaged: {problem}"
        raise NumericError("N102", message, place=Place(file=str(file))) from problem
    tensors = {_own_name(name): tensor for name, tensor in stored.items()}
    if len(tensors) < len(stored) or not all(one.is_floating_point() for one in tensors.values()):
        message = "the adapter's tensors are not floats, or two of them have one place"
        raise NumericError("N102", message, place=Place(file=str(file)))
    return Adapter(path=path, config=config, tensors=tensors, digest=weights_digest((file,)))


def _own_name(name: str) -> str:
    """Return a tensor's name without what PEFT puts around a module's own."""
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def _check_kind(config: dict[str, Any], place: Place) -> None:
    def refused(why: str) -> UsageProblem:
        hint = "merge it with the library that made it, save the result, and score that"
        return UsageProblem("U103", f"--adapter cannot be merged: {why}", place=place, hint=hint)

    kind = config.get("peft_type")
    if kind != "LORA":
        raise refused(f"it is {kind}, not LORA")
    for key, why in _UNKNOWN.items():
        if config.get(key):
            raise refused(f"{why} ({key})")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise refused(f"it was started with {start}, which changes the base weights")


@torch.inference_mode()
def merge(model: Any, adapter: Adapter) -> None:
    """Add an adapter to a model's weights, in float32, rounded once to the weights' own dtype.

    Raises:
        NumericError: N102 when a tensor finds no place, has another shape, is not finite, or would
            change a weight that two layers share.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    shared = _shared(named)
    left = dict(adapter.tensors)
    deltas = list(_deltas(adapter, left))
    for name, value in left.items():  # whole parameters: modules_to_save, and trained biases
        _replace(named, shared, name, value, adapter)
    for name, delta in deltas:
        _add(model, named, shared, name, delta, adapter)


def _shared(named: dict[str, torch.Tensor]) -> frozenset[str]:
    """Return the names of parameters that are the same memory as another one."""
    owners: dict[int, list[str]] = {}
    for name, tensor in named.items():
        owners.setdefault(tensor.data_ptr(), []).append(name)
    return frozenset(name for names in owners.values() if len(names) > 1 for name in names)


def _deltas(adapter: Adapter, left: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each adapted module's name and what is added to its weight [O, I], s B A in float32."""
    for first, second in _PAIRS.items():
        for name in [name for name in left if name.endswith(first)]:
            module = name.removesuffix(first)
            down, up = left.pop(name), left.pop(module + second, None)
            if up is None:
                raise _unfit(adapter, f"{name} has no {second.lstrip('.')}")
            rank, alpha = _rank(adapter, module)
            if down.dim() != 2 or up.dim() != 2 or down.shape[0] != rank or up.shape[1] != rank:
                shapes = f"{list(down.shape)} and {list(up.shape)}"
                raise _unfit(adapter, f"{module} has factors of {shapes}, not of rank {rank}")
            by = math.sqrt(rank) if adapter.config.get("use_rslora") else rank
            delta = up.float() @ down.float() * (alpha / by)
            yield module, delta.T if "embedding" in first else delta


def _rank(adapter: Adapter, module: str) -> tuple[int, float]:
    """Return a module's rank and alpha: those of a pattern that its name fits, else the common."""
    config = adapter.config
    found = [config.get("r"), config.get("lora_alpha")]
    for index, key in enumerate(("rank_pattern", "alpha_pattern")):
        patterns = config.get(key) or {}
        if not isinstance(patterns, dict):
            raise _unfit(adapter, f"{key} is no object")
        for pattern, value in patterns.items():
            if _names(pattern, module, key, adapter):
                found[index] = value
                break
    rank, alpha = found
    is_alpha = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if type(rank) is not int or rank < 1 or alpha is None or not is_alpha:
        raise _unfit(adapter, f"{module} has rank {rank!r} and alpha {alpha!r}")
    try:
        return rank, float(alpha)
    except OverflowError as problem:
        raise _unfit(adapter, f"the alpha of {module} is not finite") from problem


def _names(pattern: str, module: str, key: str, adapter: Adapter) -> bool:
    """Return whether a pattern names a module: its whole name, or the end of it behind a dot."""
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except re.error as problem:
        raise _unfit(adapter, f"{key} has {pattern!r}, no regular expression") from problem


def _add(
    model: Any,
    named: dict[str, torch.Tensor],
    shared: frozenset[str],
    module: str,
    delta: torch.Tensor,
    adapter: Adapter,
) -> None:
    weight = _place(named, shared, f"{module}.weight", adapter)
    if type(model.get_submodule(module)).__name__ == "Conv1D":  # keeps its weight as [I, O]
        delta = delta.T
    name = f"{module}.weight"
    _check_shape(weight, delta, name, adapter)
    _write(weight, weight.float() + delta, name, adapter)


def _replace(
    named: dict[str, torch.Tensor],
    shared: frozenset[str],
    name: str,
    value: torch.Tensor,
    adapter: Adapter,
) -> None:
    weight = _place(named, shared, name, adapter)
    _check_shape(weight, value, name, adapter)
    _write(weight, value, name, adapter)


def _place(
    named: dict[str, torch.Tensor], shared: frozenset[str], name: str, adapter: Adapter
) -> torch.Tensor:
    if name not in named:
        raise _unfit(adapter, f"the model has no {name}")
    if name in shared:
        raise _unfit(adapter, f"{name} is shared with another layer, which would change too")
    return named[name]


def _check_shape(weight: torch.Tensor, value: torch.Tensor, name: str, adapter: Adapter) -> None:
    if weight.shape != value.shape:
        raise _unfit(adapter, f"{name} is {list(weight.shape)}, the adapter's {list(value.shape)}")


def _write(weight: torch.Tensor, value: torch.Tensor, name: str, adapter: Adapter) -> None:
    weight.copy_(value)  # rounds, and may overflow in fp16
    if not bool(torch.isfinite(weight).all()):
        raise _unfit(adapter, f"what it makes of {name} is not finite")


def _unfit(adapter: Adapter, why: str) -> NumericError:
    return NumericError(
        "N102",
        f"the adapter does not fit the checkpoint: {why}",
        place=adapter.place,
        hint="give the checkpoint it was trained on with --model",
    )
