"""From hidden states to logits: the model's own head, on the few rows that are scored.

Dimension key: T tokens of a sequence, N rows of it, H hidden size, V ids of the vocabulary.

Most architectures end in one `nn.Linear`. Others change its result (a softcap, a logit scale), or
put a transform in front. Which of the two a model is, is measured on a short probe when it is
loaded, never read off its name or its configuration:

    LINEAR   the probe's logits are, bit for bit, what the plain linear layer gives
    FORWARD  anything else: the model's own `forward`, run over hidden states it did not compute

A model that fits neither, or that looks at later tokens, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trajkit.errors import NumericError, Place

_PROBE_LEN = 12
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
        weight: [V, H] float32, or half precision where the product itself comes out in float32;
            `None` for `FORWARD`.
        bias: [V] float32; `None` when there is none.
        n_rows: V, the ids that have a logit.
    """

    kind: HeadKind
    body_name: str
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
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
    weight = head.weight
    if weight is None:
        return _forward_logits(model, head.body_name, hidden.output, states_NH).float()
    if weight.dtype is torch.float32:
        return functional.linear(states_NH.float(), weight, head.bias)
    logits_NV = torch.mm(states_NH, weight.T, out_dtype=torch.float32)
    return logits_NV if head.bias is None else logits_NV + head.bias


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
        hidden = hidden_states(model, name, ids_T)
        _check_causal(model, name, ids_T, hidden.states_TH, place)
        wanted_NV = model(input_ids=ids_T[None], use_cache=False).logits[0]
        if type(output_layer) is nn.Linear and torch.equal(
            output_layer(hidden.states_TH[None])[0], wanted_NV
        ):
            return _linear(output_layer, name)
        rows = slice(1, -1)
        found_NV = _forward_logits(model, name, hidden.output, hidden.states_TH[rows])
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        reason = str(problem).strip().splitlines()[:1] or [type(problem).__name__]
        raise _refused(f"it cannot be run in parts ({reason[0]})", place) from problem
    limit = _SAME_LOGITS if is_fp32(found_NV) else CAUSAL_HALF
    if not is_close(found_NV, wanted_NV[rows], limit):
        raise _refused("its head gives other logits for chosen rows", place)
    return Head(kind=HeadKind.FORWARD, body_name=name, n_rows=int(wanted_NV.shape[1]))


def _probe_ids(model: Any, n_rows: int) -> torch.Tensor:
    """Return a few ids [T] that every model of this size can read."""
    table = model.get_input_embeddings().weight
    n_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = min(_PROBE_LEN, n_positions or _PROBE_LEN)
    return torch.arange(length, device=table.device) % min(n_rows, int(table.shape[0]))


def _linear(layer: nn.Linear, body_name: str) -> Head:
    """Return a head whose product comes out in float32: bf16 logits are off by up to 0.03 nats."""
    weight, bias = layer.weight.detach(), getattr(layer, "bias", None)
    if not _multiplies_to_fp32(weight):
        weight = weight.float()
    return Head(
        kind=HeadKind.LINEAR,
        body_name=body_name,
        weight=weight,
        bias=None if bias is None else bias.detach().float(),
        n_rows=layer.weight.shape[0],
    )


def _multiplies_to_fp32(weight: torch.Tensor) -> bool:
    """Return whether this build multiplies half-precision matrices into float32 on this device."""
    if not weight.is_cuda or weight.dtype is torch.float32:
        return False
    try:
        torch.mm(weight[:16], weight[:16].T, out_dtype=torch.float32)
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return True


def _body_name(model: Any) -> str | None:
    """Return the attribute that holds the body: the library's own prefix, else `model`."""
    for name in (model.base_model_prefix, "model"):
        if name and isinstance(getattr(model, name, None), nn.Module):
            return str(name)
    return None


@contextmanager
def _body_replaced(model: Any, name: str, output: Any) -> Iterator[None]:
    body = getattr(model, name)
    setattr(model, name, _Recorded(body, output))
    try:
        yield
    finally:
        setattr(model, name, body)


def _forward_logits(
    model: Any, body_name: str, output: Any, states_NH: torch.Tensor
) -> torch.Tensor:
    """Return the logits [N, V] the model's own forward makes of given states."""
    given = type(output)(**{**output, "last_hidden_state": states_NH[None]})
    ids_N = torch.zeros(len(states_NH), dtype=torch.int64, device=states_NH.device)
    with _body_replaced(model, body_name, given):
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
