"""What plain transformers and numpy say of the same ids: the other side of every comparison.

Dimension key: T ids of a sequence, A of an action, N rows, H hidden size, V vocabulary.

Nothing here calls the scoring room. A call is read alone, prompt and action, and its softmax is
taken over the whole vocabulary in float64; trees are laid out, masked and walked by other means.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from tests.oracles.workloads import Call
from tests.score_builders import TINY, random_model

F64: TypeAlias = NDArray[np.float64]
Context: TypeAlias = tuple[int, ...]

SMALL: dict[str, Any] = {**TINY, "max_position_embeddings": 512}


def lively_model(
    model_type: str = "llama", *, seed: int = 0, std: float = 0.15, **config: Any
) -> Any:
    """Return a model of which every parameter is random: biases, norms and sinks too."""
    model = random_model(model_type, seed=seed, std=std, **config)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Told:
    """What is said of the action ids [A] of some calls, one call after the other; float64 nats."""

    logprobs: F64
    entropy: F64


def log_softmax(logits_NV: F64) -> F64:
    """Return log-probabilities [N, V]."""
    shifted_NV = logits_NV - logits_NV.max(axis=-1, keepdims=True)
    table_NV: F64 = shifted_NV - np.log(np.exp(shifted_NV).sum(axis=-1, keepdims=True))
    return table_NV


def logits_alone(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return logits [T, V] of what follows each id, from the model's own forward pass."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits
    logits_NV: torch.Tensor = logits[0]
    return logits_NV


def logprobs_alone(model: Any, ids: Sequence[int]) -> F64:
    """Return log-probs [T, V] of what follows each id, the softmax in float64."""
    return log_softmax(logits_alone(model, ids).double().numpy())


def states_alone(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the body's states [T, H] of a sequence that is read by itself."""
    with torch.inference_mode():
        output = model.base_model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    states_TH: torch.Tensor = output.last_hidden_state[0]
    return states_TH


def told_alone(model: Any, calls: Sequence[Call]) -> Told:
    """Return what the model says of each action, each call read by itself."""
    return _told(calls, (logits_alone(model, [*prompt, *action]) for prompt, action in calls))


def told_alone_by_wide_head(model: Any, calls: Sequence[Call]) -> Told:
    """Return the same, where the body computes in the model's dtype and the head in float64."""
    weight = model.get_output_embeddings().weight.detach().double()
    states = (states_alone(model, [*prompt, *action]).double() for prompt, action in calls)
    return _told(calls, (states_TH @ weight.T for states_TH in states))


def _told(calls: Sequence[Call], logits: Iterable[torch.Tensor]) -> Told:
    """Return what logits [T, V] of each call say of its action; NaN for an id without context."""
    logprobs, entropy = list[float](), list[float]()
    for (prompt, action), logits_NV in zip(calls, logits, strict=True):
        first = len(prompt) - 1
        rows_NV = log_softmax(logits_NV[max(first, 0) : first + len(action)].double().numpy())
        if first < 0:
            rows_NV = np.vstack([np.full((1, rows_NV.shape[1]), np.nan), rows_NV])
        logprobs += rows_NV[np.arange(len(action)), action].tolist()
        entropy += (-(np.exp(rows_NV) * rows_NV).sum(axis=1)).tolist()
    return Told(logprobs=np.array(logprobs), entropy=np.array(entropy))


def contexts_of(calls: Sequence[Call]) -> list[tuple[Context, int]]:
    """Return the (context, token) of each action id, one call after the other."""
    return [
        ((*prompt, *action[:at]), token)
        for prompt, action in calls
        for at, token in enumerate(action)
    ]


def needed_contexts(calls: Sequence[Call]) -> set[Context]:
    """Return every prefix that some action id depends on: what has to be read, once each."""
    return {context[:n] for context, _ in contexts_of(calls) for n in range(1, len(context) + 1)}


# ── Every row that a body computes, and what it had seen ─────────────────────────────────────────


@dataclass(slots=True)
class Witness:
    """The rows that passed through a model's body, by what each had seen.

    Ids in depth-first order, with a position each, are a tree: a row's context is what stands at
    smaller positions on the way to it.

    Attributes:
        states: [H] of each row, by context; `passes`: rows of each pass; `n_rows` of all of them.
    """

    states: dict[Context, torch.Tensor] = field(default_factory=dict)
    passes: list[int] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        return sum(self.passes)

    def see(self, ids: list[int], positions: list[int], states_TH: torch.Tensor) -> None:
        path: list[int] = []
        for at, (token, position) in enumerate(zip(ids, positions, strict=True)):
            assert position <= len(path), "a row stands deeper than its path is long"
            path[position:] = [token]
            self.states[tuple(path)] = states_TH[at]
        self.passes.append(len(ids))


@contextmanager
def witnessed(model: Any) -> Iterator[Witness]:
    """Yield what the model's body computes meanwhile."""
    witness = Witness()

    def see(_body: Any, _args: Any, given: dict[str, Any], output: Any) -> None:
        ids = given["input_ids"][0].tolist()
        positions = given.get("position_ids")
        at = list(range(len(ids))) if positions is None else positions[0].tolist()
        witness.see(ids, at, output.last_hidden_state[0])

    hook = model.base_model.register_forward_hook(see, with_kwargs=True)
    try:
        yield witness
    finally:
        hook.remove()


# ── Trees by other means ─────────────────────────────────────────────────────────────────────────


Trie: TypeAlias = dict[int, Any]
"""Ids that may follow, and what may follow each of them."""


def trie_of(calls: Sequence[Call]) -> Trie:
    """Return the prefix tree of what has to be read, built one id at a time."""
    trie: Trie = {}
    for context in needed_contexts(calls):
        node = trie
        for token in context:
            node = node.setdefault(token, {})
    return trie


def told_by_dense_mask(model: Any, calls: Sequence[Call]) -> Told:
    """Return what one pass over the tree says, each row seeing its path by an explicit mask."""
    contexts = sorted(needed_contexts(calls))  # a prefix sorts before what goes on from it
    row_of = {context: row for row, context in enumerate(contexts)}
    mask = torch.full((len(contexts),) * 2, torch.finfo(model.dtype).min, dtype=model.dtype)
    for context, row in row_of.items():
        mask[row, [row_of[context[:n]] for n in range(1, len(context) + 1)]] = 0.0
    with torch.inference_mode():
        logits_NV = model(
            input_ids=torch.tensor([[context[-1] for context in contexts]]),
            position_ids=torch.tensor([[len(context) - 1 for context in contexts]]),
            attention_mask=mask[None, None],
            use_cache=False,
        ).logits[0]
    table_NV = log_softmax(logits_NV.double().numpy())
    return _told_by(calls, {context: table_NV[row] for context, row in row_of.items()})


def told_by_cache(model: Any, calls: Sequence[Call]) -> Told:
    """Return what a walk over the tree says, an id at a time, with a copy of the cache a branch."""
    rows: dict[Context, F64] = {}
    known = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in known else "past_key_values"
    stack: list[tuple[Context, Trie, Any]] = [
        ((), trie_of(calls), transformers.DynamicCache(config=model.config))
    ]
    while stack:
        context, below, cache = stack.pop()
        for at, (token, deeper) in enumerate(below.items()):
            own = cache if at == len(below) - 1 else copy.deepcopy(cache)
            with torch.inference_mode():
                given = {name: own, "use_cache": True}
                logits_V = model(input_ids=torch.tensor([[token]]), **given).logits[0, -1]
            rows[*context, token] = log_softmax(logits_V.double().numpy()[None])[0]
            stack.append(((*context, token), deeper, own))
    return _told_by(calls, rows)


def _told_by(calls: Sequence[Call], rows: dict[Context, F64]) -> Told:
    asked = [(rows[context], token) for context, token in contexts_of(calls)]
    return Told(
        logprobs=np.array([row_V[token] for row_V, token in asked]),
        entropy=np.array([-(np.exp(row_V) * row_V).sum() for row_V, _ in asked]),
    )


# ── Memory ───────────────────────────────────────────────────────────────────────────────────────


def allocated_peak(work: Callable[[], object]) -> int:
    """Return the most bytes that tensors made by some work held at once."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiled:
        work()
    assert profiled.profiler is not None
    found = profiled.profiler.kineto_results.events()
    changes = [(one.start_ns(), one.nbytes()) for one in found if one.name() == "[memory]"]
    assert changes
    held = np.cumsum([n_bytes for _, n_bytes in sorted(changes, key=lambda change: change[0])])
    return int(held.max())
