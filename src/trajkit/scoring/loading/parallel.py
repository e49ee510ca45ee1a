"""Each process keeps its part of every layer, as the library's own plan of the architecture says.

A plan names how modules and parameters are cut. Two linear layers in a row, the first cut by its
outputs and the second by its inputs, need one sum behind them: W2 f(W1 x) is the sum over the parts
of W2[:, p] f(W1[p] x) (Megatron-LM, arXiv 1909.08053). Embeddings, norms and the head stay whole.

Weights are cut after they were mapped from disk, so a process reads and keeps its part alone. That
the parts give what the whole gives is shown once, on the first layer of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from trajkit.errors import NumericError, Place, UsageProblem
from trajkit.scoring.running.team import Team


class Cut(StrEnum):
    """Along what a weight [..., outputs, inputs] is cut; a bias goes with the outputs."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"


class After(StrEnum):
    """What is made of a module's result when each process has its own."""

    SUM = "sum"
    JOIN = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a module, or one parameter of it, is divided.

    Attributes:
        cut: `None` keeps the weights whole.
        n_packed: matrices that one weight holds side by side, each of which is cut.
        takes_part: the module is given all of its inputs, and takes those its weights are for.
    """

    cut: Cut | None = None
    n_packed: int = 1
    takes_part: bool = False
    after: After | None = None


_OWN_OUTPUTS = Style(cut=Cut.OUTPUTS)
STYLES: dict[str, Style] = {
    "colwise": _OWN_OUTPUTS,
    "colwise_gather_output": Style(cut=Cut.OUTPUTS, after=After.JOIN),
    "rowwise": Style(cut=Cut.INPUTS, after=After.SUM),
    "rowwise_split_input": Style(cut=Cut.INPUTS, takes_part=True, after=After.SUM),
    "packed_colwise": Style(cut=Cut.OUTPUTS, n_packed=2),
    "packed_rowwise": Style(cut=Cut.INPUTS, n_packed=2),
    "moe_tp_experts": Style(after=After.SUM),
    "all_reduce": Style(after=After.SUM),
    "mla_kv_a_proj": Style(),
    "local_params": Style(),
    "replicate": Style(),
    "replicated_with_grad_allreduce": Style(),
}
"""By the names that the library's plans use."""

_MAX_NAMED = 6
_HEADS = ("num_attention_heads", "num_key_value_heads", "num_global_key_value_heads")


def plan_of(model: Any, place: Place) -> dict[str, str]:
    """Return the style of each module and parameter of the layers that the plan names.

    Raises:
        UsageProblem: U103 when there is no plan for them, or it has a style that is not known.
    """
    rules: Mapping[str, str] = getattr(model, "tp_plan", None) or {}
    names = [name for name, _ in (*model.named_modules(), *model.named_parameters())]
    plan = {
        name: rules[rule]
        for name in names
        if "*" in (rule := _without_numbers(name)) and rule in rules
    }
    unknown = sorted(set(plan.values()) - set(STYLES))
    if unknown:
        raise _refused(model, f"its plan divides layers in a way not known ({unknown[0]})", place)
    if not any(STYLES[style].cut for style in plan.values()):
        raise _refused(model, "transformers has no plan (tp_plan) for its layers", place)
    return plan


def check_divisible(model: Any, plan: Mapping[str, str], size: int, place: Place) -> None:
    """Raise U103 when the heads of attention cannot be shared out evenly."""
    if not any("att" in name and STYLES[style] == _OWN_OUTPUTS for name, style in plan.items()):
        return
    config = model.config.get_text_config()
    for name in _HEADS:
        found = getattr(config, name, None)
        counts = found if isinstance(found, list | tuple) else [found]
        for n_heads in counts:
            if isinstance(n_heads, int) and n_heads % size:
                raise _uneven(f"{n_heads} ({name})", n_heads, size, place)


def divide(model: Any, plan: Mapping[str, str], team: Team, place: Place) -> None:
    """Cut a whole model's layers to this process's parts, and let them meet where they must.

    Raises:
        UsageProblem: U103 when a weight cannot be cut evenly.
    """
    for name, module in list(model.named_modules()):
        own = plan.get(name)
        for key, weight in list(module.named_parameters(recurse=False)):
            style = plan.get(f"{name}.{key}", own)
            if style is not None and STYLES[style].cut is not None:
                part = _part(weight.detach(), STYLES[style], team, f"{name}.{key}", place)
                module.register_parameter(key, nn.Parameter(part, requires_grad=False))
        if own is not None:
            _meet(module, STYLES[own], team)


def _part(weight: torch.Tensor, style: Style, team: Team, name: str, place: Place) -> torch.Tensor:
    """Return a copy of this process's part; a bias behind a sum belongs to the first process."""
    is_bias = weight.dim() == 1
    if style.cut is Cut.INPUTS and is_bias:
        return weight.clone() if team.is_first else torch.zeros_like(weight)
    dim = weight.dim() - (2 if style.cut is Cut.OUTPUTS and not is_bias else 1)
    length = weight.shape[dim] // style.n_packed
    if weight.shape[dim] % style.n_packed or length % team.size:
        raise _uneven(f"{length} ({name})", length, team.size, place)
    shape = weight.shape
    parts = weight.view(*shape[:dim], style.n_packed, team.size, -1, *shape[dim + 1 :])
    return parts.select(dim + 1, team.rank).flatten(dim, dim + 1).clone()


def _meet(module: nn.Module, style: Style, team: Team) -> None:
    """Let a module take its part of the inputs, and meet the others behind its forward."""
    if style.takes_part:

        def take(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return inputs[0].chunk(team.size, dim=-1)[team.rank], *inputs[1:]

        module.register_forward_pre_hook(take)
    if style.after is not None:
        meet = team.sum if style.after is After.SUM else team.join

        def after(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
            return meet(output)

        module.register_forward_hook(after)


_N_IDS = 12
_LIMITS = {True: 1e-4, False: 0.1}
"""How far what a layer adds may differ, relatively, for the middle token: in fp32, and in half."""


class _Enough(Exception):  # noqa: N818 - the way out of a forward pass, no error
    """What was wanted of a pass is known."""


@torch.inference_mode()
def first_layers(model: Any, plan: Mapping[str, str], place: Place) -> list[torch.Tensor]:
    """Return what the first layers add to the states of a few ids, up to one of each kind.

    Kinds are told by the names and shapes of parameters, and by `layer_types`. On a model that is
    divided all processes call this together.

    Raises:
        UsageProblem: U103 when the layers cannot be run so.
    """
    name = next(name.split(".*")[0] for name in map(_without_numbers, plan))
    layers: Any = model.get_submodule(name)
    added: list[torch.Tensor] = []
    last = _first_of_each_kind(layers, model.config.get_text_config())

    def keep(layer: Any, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        before = inputs[0] if inputs else named["hidden_states"]
        after = output if isinstance(output, torch.Tensor) else output[0]
        added.append((after.float() - before.float()).cpu())
        if len(added) > last:
            raise _Enough

    hooks = [layer.register_forward_hook(keep, with_kwargs=True) for layer in layers]
    table = model.get_input_embeddings().weight
    ids_T = torch.arange(5, 5 + _N_IDS, device=table.device) % table.shape[0]
    try:
        model(input_ids=ids_T[None], use_cache=False)
    except _Enough:
        pass
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        if isinstance(problem, torch.OutOfMemoryError):
            raise
        reason = str(problem).strip().splitlines()[:1] or [type(problem).__name__]
        raise _refused(model, f"its layers cannot be run ({reason[0]})", place) from problem
    finally:
        for hook in hooks:
            hook.remove()
    return added


def _first_of_each_kind(layers: Any, config: Any) -> int:
    """Return the number of the layer at which one of each kind has been seen."""
    words = getattr(config, "layer_types", None) or [None] * len(layers)
    kinds = [
        (word, *((name, tuple(one.shape)) for name, one in layer.named_parameters()))
        for word, layer in zip(words, layers, strict=True)
    ]
    return max(kinds.index(kind) for kind in kinds)


def check_same(
    found: list[torch.Tensor], wanted: list[torch.Tensor], dtype: torch.dtype, place: Place
) -> None:
    """Raise N104 when the divided layers do not add what the whole ones added.

    The token of middling distance decides: experts that rounding chooses otherwise change a few.
    """
    limit = _LIMITS[dtype.itemsize >= torch.float32.itemsize]
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        distance = (one - other).flatten(2).norm(dim=-1) / other.flatten(2).norm(dim=-1)
        middle = float(distance.flatten().median())
        if not middle <= limit:
            raise NumericError(
                "N104",
                f"layer {number} divided among processes differs from the whole one by "
                f"{middle:.2g} of what it adds",
                place=place,
                hint="score it without --tensor-parallel",
            )


def _without_numbers(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _refused(model: Any, why: str, place: Place) -> UsageProblem:
    return UsageProblem(
        "U103",
        f"--tensor-parallel: {type(model).__name__} cannot be divided: {why}",
        place=place,
        hint="score it without --tensor-parallel: each process then holds the whole model",
    )


def _uneven(what: str, n: int, size: int, place: Place) -> UsageProblem:
    fitting = ", ".join([str(k) for k in range(2, n + 1) if n % k == 0][:_MAX_NAMED])
    return UsageProblem(
        "U103",
        f"--tensor-parallel: {what} cannot be shared out evenly among {size} processes",
        place=place,
        hint=f"take a number of processes that divides it: {fitting}" if fitting else None,
    )
