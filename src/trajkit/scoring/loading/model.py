"""The checkpoint door: a local folder into a model that is whole, causal and ready to score."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trajkit.errors import NumericError, Place, TrajkitError, UsageProblem
from trajkit.scoring.forward.exact import whole_products
from trajkit.scoring.forward.head import Head, find_head
from trajkit.scoring.forward.sharing import rope_parameters, why_unshared
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.adapter import Adapter, merge, open_adapter
from trajkit.scoring.loading.checkpoint import Checkpoint, open_checkpoint, weights_digest
from trajkit.scoring.loading.loader import architecture_of, build_model, quiet_transformers
from trajkit.scoring.loading.parallel import (
    check_divisible,
    check_same,
    divide,
    first_layers,
    plan_of,
)
from trajkit.scoring.running.team import Load, Team

DEVICES = ("auto", "cpu", "cuda")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_NAMED = 3


@whole_products()
def load_model(
    path: Path | str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    adapter: Path | str | None = None,
    team: Team | None = None,
) -> LoadedModel:
    """Return the checkpoint in a local folder, in memory and checked.

    Args:
        path: a folder with `config.json` and safetensors files; nothing else in it is opened.
        device: `auto` takes a GPU when there is one.
        dtype: `auto` is the checkpoint's own on a GPU and `fp32` on the CPU.
        adapter: the folder of a LoRA adapter to merge in.
        team: processes that hold the model together; all of them load it in the same call, each
            keeps its part. Weights in another dtype than stored, those that the library puts
            together from several tensors, and merged ones are whole in main memory until cut.

    Raises:
        UsageProblem: U103 unknown, weights are not floats, or the layers cannot be divided; U106 no
            such device, or it is full.
        FileError, InputError, RefusedError: see `open_checkpoint` and `open_adapter`.
        NumericError: N102 weights missing, of another shape, not finite, or of other layers; N104
            an architecture whose logits cannot be had exactly.
    """
    target = choose_device(device) if team is None else team.device
    if dtype != "auto" and dtype not in DTYPES:
        raise UsageProblem("U103", f"--dtype is auto, fp32, bf16 or fp16, not {dtype!r}")
    if team is not None:
        team.say(Load(path=path, dtype=dtype, adapter=adapter))
    place = Place(file=str(Path(path)))
    with quiet_transformers():
        if team is None:
            found = _read(path, adapter, target, dtype, place)
            _check_finite(found.model, found.tensors, place)
            _merge(found)
            _move(found.model, target, place)
            head, unshared = _examined(found.model, place)
        else:
            found = _read_part(path, adapter, team, dtype, place)
            with team.in_step(NumericError):
                head, unshared = _examined(found.model, place)
    model, added = found.model, found.adapter
    text = model.config.get_text_config()
    loaded = LoadedModel(
        model=model,
        head=head,
        device=target,
        dtype=_DTYPE_NAMES[found.dtype],
        name=found.checkpoint.name,
        path=found.checkpoint.path,
        n_vocab=min(int(model.get_input_embeddings().weight.shape[0]), head.n_rows),
        max_positions=getattr(text, "max_position_embeddings", None),
        rope_switch=_rope_switch(text),
        why_unshared=unshared,
        weights_digest=weights_digest(found.checkpoint.shards)
        if team is None or team.is_first
        else "",
        unused_tensors=found.unused,
        adapter=None if added is None else added.name,
        adapter_digest=None if added is None else added.digest,
        team=team,
    )
    if team is not None:
        team.take(loaded)
    return loaded


@whole_products()
def loaded_from_module(module: Any, *, name: str = "module") -> LoadedModel:
    """Return a causal language model of transformers that is in memory, checked like a loaded one.

    It must be in evaluation mode. Its weights are not hashed, so its digest is empty; the result
    speaks of the weights as they are now.

    Raises:
        UsageProblem: U103 when it is no such model, or its weights are not whole on one device.
        NumericError: N104 when its logits cannot be had exactly.
    """

    def refused(why: str) -> UsageProblem:
        return UsageProblem("U103", f"the module cannot be scored: {why}")

    if not isinstance(module, torch.nn.Module):
        raise refused(f"it is a {type(module).__name__}, no torch module")
    if not hasattr(module, "config") or not hasattr(module, "get_output_embeddings"):
        kind = type(module).__name__
        raise refused(f"{kind} is no model of transformers; give the model inside its wrapper")
    parameters = list(module.parameters())
    devices = {parameter.device for parameter in parameters}
    if len(devices) != 1 or next(iter(devices)).type == "meta":
        raise refused("its weights are not on one device")
    if not all(map(_is_whole, parameters)):
        raise refused("its weights are in parts (sharded); gather them first")
    model: Any = module
    place, device = Place(file=name), next(iter(devices))
    head = find_head(model, place)
    table = model.get_input_embeddings().weight
    text = model.config.get_text_config()
    return LoadedModel(
        model=model,
        head=head,
        device=device,
        dtype=_DTYPE_NAMES.get(table.dtype, str(table.dtype).removeprefix("torch.")),
        name=name,
        path=Path(),
        n_vocab=min(int(table.shape[0]), head.n_rows),
        max_positions=getattr(text, "max_position_embeddings", None),
        rope_switch=_rope_switch(text),
        why_unshared=why_unshared(model, head.body_name),
        weights_digest="",
        unused_tensors=(),
    )


def _is_whole(parameter: torch.nn.Parameter) -> bool:
    """Return whether a parameter is all of its weight: no DTensor, flat shard or empty stand-in."""
    kinds = type(parameter), type(parameter.data)
    return kinds == (torch.nn.Parameter, torch.Tensor) and parameter.numel() > 0


def choose_device(device: str) -> torch.device:
    """Return the device a word stands for.

    Raises:
        UsageProblem: U103 for an unknown word, U106 when there is no usable GPU.
    """
    if device not in DEVICES:
        raise UsageProblem("U103", f"--device is auto, cpu or cuda, not {device!r}")
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = "finds no GPU" if torch.version.cuda else "is built for the CPU only"
        raise UsageProblem(
            "U106",
            f"--device cuda: this PyTorch ({torch.__version__}) {built}",
            hint="use --device cpu, or install a PyTorch build for your driver",
        )
    return torch.device("cuda", torch.cuda.current_device())


def _chosen_dtype(
    tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: str, place: Place
) -> torch.dtype:
    """Return the dtype to load in: the one asked for, else the one most weights are stored in."""
    stored: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        if tensor.is_floating_point() or tensor.is_complex():
            stored[tensor.dtype] += tensor.numel()
    odd = [
        str(kind).removeprefix("torch.") for kind in stored if kind.itemsize < 2 or kind.is_complex
    ]
    if odd:
        raise UsageProblem(
            "U103",
            f"--model holds {odd[0]} weights; only fp32, bf16 and fp16 are scored",
            place=place,
        )
    if dtype != "auto":
        return DTYPES[dtype]
    own = max(stored, key=lambda kind: stored[kind], default=torch.float32)
    return own if device.type == "cuda" and own in _DTYPE_NAMES else torch.float32


def _tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return every tensor of the weight files, mapped from disk and not yet read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for shard in checkpoint.shards:
        try:
            tensors.update(load_file(shard))
        except SafetensorError as problem:
            raise NumericError(
                "N102", f"the weight file is damaged: {problem}", place=Place(file=str(shard))
            ) from problem
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    """A checkpoint that was read: its tensors as they are stored, and the model made of them."""

    checkpoint: Checkpoint
    adapter: Adapter | None
    tensors: dict[str, torch.Tensor]
    dtype: torch.dtype
    model: Any
    unused: tuple[str, ...]


def _read(
    path: Path | str, adapter: Path | str | None, device: torch.device, dtype: str, place: Place
) -> _Found:
    """Return a checkpoint in main memory, as far as possible mapped from disk, not yet merged."""
    checkpoint = open_checkpoint(path)
    added = None if adapter is None else open_adapter(adapter)
    tensors = _tensors(checkpoint)
    kind = _chosen_dtype(tensors, device, dtype, place)
    model, unused = _load(checkpoint, tensors, kind, place)
    return _Found(
        checkpoint=checkpoint,
        adapter=added,
        tensors=tensors,
        dtype=kind,
        model=model,
        unused=unused,
    )


def _read_part(
    path: Path | str, adapter: Path | str | None, team: Team, dtype: str, place: Place
) -> _Found:
    """Return a checkpoint of which this process keeps its part, on its device, shown to be right.

    The first process lets the first layers read a few ids before it cuts them.
    """
    with team.in_step(TrajkitError):
        found = _read(path, adapter, team.device, dtype, place)
        _merge(found)
        plan = plan_of(found.model, place)
        check_divisible(found.model, plan, team.size, place)
        wanted = first_layers(found.model, plan, place) if team.is_first else []
        divide(found.model, plan, team, place)
        _check_finite(found.model, found.tensors, place)
        _move(found.model, team.device, place)
    with team.in_step(TrajkitError):
        parts = first_layers(found.model, plan, place)
        if team.is_first:
            check_same(parts, wanted, found.dtype, place)
    return found


def _merge(found: _Found) -> None:
    if found.adapter is not None:
        merge(found.model, found.adapter)


def _load(
    checkpoint: Checkpoint, tensors: dict[str, torch.Tensor], dtype: torch.dtype, place: Place
) -> tuple[Any, tuple[str, ...]]:
    """Return the model and the names of tensors it did not use.

    The library is handed tensors and a configuration object, never the folder, so that nothing in
    the folder can make it look elsewhere.
    """
    kind, config = architecture_of(checkpoint, place)
    model, report = build_model(kind, config, tensors, dtype, place)
    _check_floating(model, tensors, frozenset(report["unexpected_keys"]), place)
    missing, mismatched = sorted(report["missing_keys"]), sorted(report["mismatched_keys"])
    if missing:
        raise NumericError("N102", f"the checkpoint lacks {_named(missing)}", place=place)
    if mismatched:
        name, found, wanted = mismatched[0]
        raise NumericError(
            "N102", f"{name} has shape {list(found)}, the model wants {list(wanted)}", place=place
        )
    unused = tuple(sorted(report["unexpected_keys"]))
    _check_layers(model, unused, place)
    return model.eval(), unused


def _check_floating(
    model: Any, stored: Mapping[str, torch.Tensor], unused: Collection[str], place: Place
) -> None:
    """Raise when a tensor that is not of floats was cast into a weight: quantised, or packed.

    Integers that the model keeps as integers (positions, masks) and those it leaves out are fine.
    """
    whole = tuple(n for n, buffer in model.named_buffers() if not buffer.is_floating_point())
    left_out = tuple(model._keys_to_ignore_on_load_unexpected or ())  # noqa: SLF001
    for name, tensor in stored.items():
        if tensor.is_floating_point() or name in unused:
            continue
        is_buffer = any(f".{own}".endswith(f".{name}") or name.endswith(f".{own}") for own in whole)
        if not is_buffer and not any(re.search(pattern, name) for pattern in left_out):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise UsageProblem(
                "U103",
                f"--model holds {dtype} where a weight is wanted: {name}; only fp32, bf16 and fp16 "
                "are scored",
                place=place,
                hint="dequantise it first, and save the result with save_pretrained",
            )


def _check_layers(model: Any, unused: tuple[str, ...], place: Place) -> None:
    """Raise when unused tensors look like the model's own: layers it would leave out."""
    shapes = {_without_numbers(name) for name, _ in model.named_parameters()}
    extra = [name for name in unused if _without_numbers(name) in shapes]
    if extra:
        raise NumericError(
            "N102",
            f"config.json describes a smaller model than the weights: {_named(extra)} would be "
            "left out",
            place=place,
        )


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _check_finite(model: Any, stored: Mapping[str, torch.Tensor], place: Place) -> None:
    named = dict(model.named_parameters())
    named |= {name: tensor for name, tensor in model.named_buffers() if name in stored}
    for name, tensor in named.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            overflows = name in stored and bool(torch.isfinite(stored[name]).all())
            hint = "they overflow in this dtype: use --dtype bf16 or fp32" if overflows else None
            raise NumericError(
                "N102", f"{name} holds NaN or infinite values", place=place, hint=hint
            )


def _move(model: Any, device: torch.device, place: Place) -> None:
    """Bring a model to its device."""
    try:
        model.to(device)
    except torch.OutOfMemoryError as problem:
        raise _full(place) from problem


def _examined(model: Any, place: Place) -> tuple[Head, str | None]:
    """Return how the model's logits are made, and why it may not read trees."""
    try:
        head = find_head(model, place)
        return head, why_unshared(model, head.body_name)
    except torch.OutOfMemoryError as problem:
        raise _full(place) from problem


def _full(place: Place) -> UsageProblem:
    return UsageProblem(
        "U106",
        "the weights do not fit in the GPU's memory",
        place=place,
        hint="use --dtype bf16, or --device cpu, or divide them: --tensor-parallel",
    )


def _rope_switch(config: Any) -> int | None:
    """Return the length beyond which a `longrope` model changes its rotary frequencies."""
    for part in rope_parameters(config):
        if part.get("rope_type", part.get("type")) == "longrope":
            original = part.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            return None if original is None else int(original)
    return None


def _named(names: list[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
