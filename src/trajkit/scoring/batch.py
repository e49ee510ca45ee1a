"""Scoring in memory: trajectories and a model that is there already, no files in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from trajkit.records import Trajectory
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.loader import quiet_transformers
from trajkit.scoring.loading.model import loaded_from_module
from trajkit.scoring.scored import ScoredTrajectory
from trajkit.scoring.steps import score_trajectories


def score_batch(
    trajectories: Sequence[Trajectory],
    model: LoadedModel | Any,
    *,
    reference: LoadedModel | Any | None = None,
    tokens_per_batch: int | None = None,
) -> tuple[ScoredTrajectory, ...]:
    """Return what a model says of every recorded action: the numbers of `score`, as arrays.

    A trainer's own module is read as it is at this moment and left as it was: evaluation mode,
    attention and log level are set inside this call alone, no gradient is kept, no random number is
    drawn. Trajectories of one group share the prefixes that they have in common.

    Args:
        trajectories: whole, with ids.
        model: what `load_model` returned, or a causal language model of transformers that is whole
            on one device.
        reference: a second one of either kind, for `ref_logprobs`; where it is on the same device
            and has the same ids and positions, it reads the same passes, and `exact_kl` is there.
        tokens_per_batch: the most ids of one pass; `None` for what the device holds.

    Raises:
        UsageProblem: U103 when a module is none that can be read; U106 when a sequence does not
            fit in the GPU's memory.
        InputError: I304 for an id outside the vocabulary, S103 for a prompt that cannot be rebuilt.
        NumericError: N104 an architecture whose logits cannot be had exactly.
    """
    with quiet_transformers(), ExitStack() as stack:
        loaded = _loaded(model, stack)
        other = None if reference is None else _loaded(reference, stack)
        return score_trajectories(
            loaded, trajectories, tokens_per_batch=tokens_per_batch, reference=other
        ).scored


def _loaded(model: LoadedModel | Any, stack: ExitStack) -> LoadedModel:
    """Return a model ready to score, a module in evaluation mode until the stack ends."""
    if isinstance(model, LoadedModel):
        return model
    stack.enter_context(_evaluating(model))
    return loaded_from_module(model)


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Put every part of a module in evaluation mode, and each back as it was."""
    parts = list(module.modules()) if hasattr(module, "modules") else []
    training = [part for part in parts if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True
