"""From hidden states to logits: the model's own head, on the few rows that are scored.

Dimension key: T tokens of a sequence, N rows of it, H hidden size, V ids of the vocabulary.

Most architectures end in one `nn.Linear`. Others change its result (a softcap, a logit scale), or
put a transform in front. Which of the two a model is, is measured on a short probe when it is
loaded, never read off its name or its configuration:

    LINEAR   the probe's logits are, bit for bit, the states times the layer's own weight
    FORWARD  anything else: the model's own `forward`, run over hidden states it did not compute

A model that fits neither, or that looks at later tokens, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trajkit.errors import NumericError, Place
from trajkit.scoring.memory import memory_full_told

_PROBE_LEN = 12
_WIDENED_ROWS = 4096
"""Rows of a half-precision weight that are widened at a time: 16 MiB at 1,024 columns."""
_SAME_LOGITS = 1e-5
"""How far logits of two passes may differ, relative to the largest, in fp32."""
CAUSAL_FP32, CAUSAL_HALF = 1e-4, 2e-2
"""How far a state may move when a later token changes, relative to the largest state."""


class HeadKind(StrEnum):
    """How logits are made from hidden states."""

    LINEAR = "linear"
    FORWARD = "forward"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """How a model's logits are made.

    Attributes:
        body_name: the attribute of the model that holds everything below the head.
        layer: the output layer where it is a plain linear one: its product comes out in float32,
            because logits rounded to bf16 are off by up to 0.03 nats. `None` where the model's own
            product has to do.
        n_rows: V, the ids that have a logit.
    """

    kind: HeadKind
    body_name: str
    layer: nn.Linear | None
    n_rows: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hidden:
    """The body's output for one sequence.

    Attributes:
        output: what the body returned, for heads that read more than the states.
        states_TH: the states the head starts from.
    """

    output: Any
    states_TH: torch.Tensor


class _Recorded(nn.Module):
    """A body that has run already: returns the output it was given, in all else the body itself."""

    def __init__(self, body: nn.Module, output: Any) -> None:
        super().__init__()
        self.body = body
        self.output = output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("body"), name)

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.output


@torch.inference_mode()
def hidden_states(model: Any, body_name: str, ids_T: torch.Tensor) -> Hidden:
    """Return the body's states for one unpadded sequence: one forward pass, no cache, no mask."""
    output = getattr(model, body_name)(input_ids=ids_T[None], use_cache=False)
    return Hidden(output=output, states_TH=output.last_hidden_state[0])


@torch.inference_mode()
def logits_of(model: Any, head: Head, hidden: Hidden, rows_N: torch.Tensor) -> torch.Tensor:
    """Return float32 logits [N, V] of some rows of a sequence."""
    states_NH = hidden.states_TH.index_select(0, rows_N)
    if head.kind is HeadKind.LINEAR and head.layer is not None:
        return _wide_product(head.layer, states_NH)
    logits_NV = _forward_logits(model, head, hidden.output, states_NH)
    return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))


def _wide_product(layer: nn.Linear, states_NH: torch.Tensor) -> torch.Tensor:
    """Return a linear layer's result [N, V] in float32 or better, whatever dtype it is kept in.

    Half precision is multiplied into float32 where this build can. Else the weight is widened a few
    rows at a time: the same numbers, without a copy of the largest matrix of the model.
    """
    weight: torch.Tensor = layer.weight
    own: torch.Tensor | None = layer.bias
    wide = torch.promote_types(weight.dtype, torch.float32)
    bias = None if own is None else own.to(wide)
    if weight.dtype is wide:
        return functional.linear(states_NH.to(wide), weight, bias)
    if _multiplies_to_fp32(weight.device, weight.dtype):
        logits_NV = torch.mm(states_NH, weight.T, out_dtype=torch.float32)
    else:
        logits_NV = states_NH.new_empty((len(states_NH), len(weight)), dtype=wide)
        states_NH = states_NH.to(wide)
        for start in range(0, len(weight), _WIDENED_ROWS):
            some = slice(start, start + _WIDENED_ROWS)
            logits_NV[:, some] = states_NH @ weight[some].to(wide).T
    return logits_NV if bias is None else logits_NV.add_(bias)


@lru_cache(maxsize=8)
def _multiplies_to_fp32(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this build multiplies half-precision matrices into float32 on a device."""
    if device.type != "cuda":
        return False
    probe = torch.ones((16, 16), dtype=dtype, device=device)
    try:
        with memory_full_told():
            torch.mm(probe, probe.T, out_dtype=torch.float32)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return True


@torch.inference_mode()
def find_head(model: Any, place: Place) -> Head:
    """Return how the model makes logits, after showing on a probe that it gives the model's own.

    Raises:
        NumericError: N104 when no way gives them, or when the model is not causal.
    """
    name = _body_name(model)
    output_layer = model.get_output_embeddings()
    weight = getattr(output_layer, "weight", None)
    if name is None or not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        raise _refused("it has no separate body and output layer", place)
    ids_T = _probe_ids(model, int(weight.shape[0]))
    try:
        with memory_full_told():
            hidden = hidden_states(model, name, ids_T)
            _check_causal(model, name, ids_T, hidden.states_TH, place)
            wanted_NV = model(input_ids=ids_T[None], use_cache=False).logits[0]
            if type(output_layer) is nn.Linear and torch.equal(
                functional.linear(hidden.states_TH[None], weight, output_layer.bias)[0], wanted_NV
            ):
                return Head(
                    kind=HeadKind.LINEAR,
                    body_name=name,
                    layer=output_layer,
                    n_rows=int(weight.shape[0]),
                )
            rows = slice(1, -1)
            head = Head(
                kind=HeadKind.FORWARD,
                body_name=name,
                layer=output_layer if _is_plain(output_layer) else None,
                n_rows=int(wanted_NV.shape[1]),
            )
            found_NV = _forward_logits(model, head, hidden.output, hidden.states_TH[rows])
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        reason = str(problem).strip().splitlines()[:1] or [type(problem).__name__]
        raise _refused(f"it cannot be run in parts ({reason[0]})", place) from problem
    limit = _SAME_LOGITS if is_fp32(wanted_NV) else CAUSAL_HALF
    if not is_close(found_NV, wanted_NV[rows], limit):
        raise _refused("its head gives other logits for chosen rows", place)
    return head


def _is_plain(layer: Any) -> bool:
    """Return whether an output layer multiplies and adds its bias, and nobody changed that."""
    if type(layer) is not nn.Linear or "forward" in vars(layer):
        return False
    return not layer._forward_hooks and not layer._forward_pre_hooks  # noqa: SLF001 - no other way


def _probe_ids(model: Any, n_rows: int) -> torch.Tensor:
    """Return a few ids [T] that every model of this size can read."""
    table = model.get_input_embeddings().weight
    n_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = min(_PROBE_LEN, n_positions or _PROBE_LEN)
    return torch.arange(length, device=table.device) % min(n_rows, int(table.shape[0]))


def _body_name(model: Any) -> str | None:
    """Return the attribute that holds the body: the library's own prefix, else `model`."""
    for name in (model.base_model_prefix, "model"):
        if name and isinstance(getattr(model, name, None), nn.Module):
            return str(name)
    return None


@contextmanager
def _replaced(model: Any, head: Head, output: Any) -> Iterator[None]:
    """Let a model find its body's output made, and the product of its output layer in float32."""
    body, layer = getattr(model, head.body_name), head.layer
    setattr(model, head.body_name, _Recorded(body, output))
    if layer is not None:
        vars(layer)["forward"] = lambda states: _wide_product(layer, states[0])[None]
    try:
        yield
    finally:
        setattr(model, head.body_name, body)
        if layer is not None:
            del layer.forward


def _forward_logits(model: Any, head: Head, output: Any, states_NH: torch.Tensor) -> torch.Tensor:
    """Return the logits [N, V] the model's own forward makes of given states.

    What it does to the product of its output layer, a softcap or a scale, it does in float32.
    """
    given = type(output)(**{**output, "last_hidden_state": states_NH[None]})
    ids_N = torch.zeros(len(states_NH), dtype=torch.int64, device=states_NH.device)
    with _replaced(model, head, given):
        logits_NV: torch.Tensor = model(input_ids=ids_N[None], use_cache=False).logits[0]
    return logits_NV


def _check_causal(
    model: Any, name: str, ids_T: torch.Tensor, states_TH: torch.Tensor, place: Place
) -> None:
    other_T = ids_T.clone()
    other_T[-1] = ids_T[0] if ids_T[-1] != ids_T[0] else ids_T[1]
    moved_TH = hidden_states(model, name, other_T).states_TH
    limit = CAUSAL_FP32 if is_fp32(states_TH) else CAUSAL_HALF
    if not is_close(moved_TH[:-1], states_TH[:-1], limit):
        raise _refused("it looks at later tokens, so it gives no log-probs of a sequence", place)


def is_fp32(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has at least the digits of float32."""
    return tensor.dtype in (torch.float32, torch.float64)


def is_close(left: torch.Tensor, right: torch.Tensor, limit: float) -> bool:
    """Return whether two tensors agree relative to the largest value, NaN with NaN."""
    if left.shape != right.shape:
        return False
    left, right = left.float(), right.float()
    finite = right[right.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return torch.allclose(left, right, rtol=0.0, atol=limit * max(scale, 1e-6), equal_nan=True)


def _refused(why: str, place: Place) -> NumericError:
    return NumericError(
        "N104",
        f"this architecture cannot be scored exactly: {why}",
        place=place,
        hint="decoder-only models with a language-model head can be scored",
    )
