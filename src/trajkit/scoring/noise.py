"""How far log-probs move when nothing but the way of computing them changes.

Some trajectories of a run are scored again: each step in a pass of its own, in the same dtype, and
where that is half precision, in the same passes in float32. A distance to the sampler that is not
larger than these says nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from trajkit.errors import NumericError, Place, TrajkitError, UsageProblem
from trajkit.records import Floats, Step
from trajkit.safe.text import shown_bytes
from trajkit.scoring.forward.logprobs import TokenScores, token_scores
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import loaded_from_module
from trajkit.scoring.memory import free_bytes
from trajkit.scoring.mismatch import DtypeNoise, NoiseFloor, measure_gap
from trajkit.scoring.scored import ScoredTrajectory
from trajkit.scoring.steps import score_trajectories

MAX_NOISE_FP32 = 1e-3
"""Nats by which the two ways may differ in fp32; deep models measure below a tenth of this."""
_HALF = ("bf16", "fp16")
_ROOM = 1.2
"""What a second copy of the weights needs to be read with, in multiples of the copy."""
_NO_FLOATS: Floats = np.empty(0, dtype=np.float32)


class RecheckDtype(StrEnum):
    """Whether a run in half precision is held against float32.

    `AUTO` does where the wider weights fit beside those of the run, on its device; `FP32` else goes
    to the CPU, which may take long.
    """

    AUTO = "auto"
    FP32 = "fp32"
    NONE = "none"


def recheck_dtype_named(name: str) -> RecheckDtype:
    """Return the choice of a name; U103 for an unknown one."""
    try:
        return RecheckDtype(name)
    except ValueError:
        known = ", ".join(RecheckDtype)
        raise UsageProblem("U103", f"--recheck-dtype is one of {known}, not {name!r}") from None


def measure_noise(loaded: LoadedModel, scored: Sequence[ScoredTrajectory]) -> NoiseFloor:
    """Return the noise floor over some scored trajectories: each step is passed again, alone.

    Raises:
        NumericError: N104 when they differ by more than `MAX_NOISE_FP32` in fp32.
    """
    rows = [
        row
        for trajectory in scored
        for row in trajectory.steps
        if row.logprobs is not None and len(row.logprobs)
    ]
    alone = _joined(score_step_alone(loaded, row.step).logprobs for row in rows)
    shared = _joined(row.logprobs for row in rows if row.logprobs is not None)
    gap = measure_gap(alone, shared)
    same_nulls = np.array_equal(np.isnan(alone), np.isnan(shared))
    worst = (gap.max_abs or 0.0) if same_nulls and not gap.n_infinite else math.inf
    if loaded.dtype == "fp32" and worst > MAX_NOISE_FP32:
        ids = ", ".join(one.trajectory.trajectory_id for one in scored)
        raise NumericError(
            "N104",
            f"log-probs of a step differ by {worst:.2g} nats between its own pass and a shared one",
            place=Place(trajectory_id=ids),
            hint="the model's numbers depend on what else a pass reads; --recheck 0 shows them",
        )
    return NoiseFloor(gap=gap, n_forwards=len(rows))


def score_step_alone(loaded: LoadedModel, step: Step) -> TokenScores:
    """Return the scores of a step's action from a pass over its own prompt + action alone."""
    prompt, action = step.prompt_ids, step.action_tokens
    if prompt is None or action is None:
        raise ValueError("the step has no ids to score")
    ids = np.concatenate([prompt, action])
    return token_scores(
        loaded, ids, np.arange(len(prompt), len(ids), dtype=np.int64), place=step.place
    )


def measure_dtype_noise(
    loaded: LoadedModel, scored: Sequence[ScoredTrajectory], choice: RecheckDtype
) -> DtypeNoise:
    """Return how far the run's log-probs are from those of the same weights widened to float32.

    The copy is made from the weights in memory, as the run has rounded them, and is gone when this
    returns. Where it cannot be made the result says why.
    """
    if loaded.dtype not in _HALF:
        return DtypeNoise.not_measured(f"the run is in {loaded.dtype} itself")
    if choice is RecheckDtype.NONE:
        return DtypeNoise.not_measured("--recheck-dtype none")
    if loaded.team is not None:
        return DtypeNoise.not_measured("the model is divided among processes")
    device = _device_with_room(loaded)
    if device is None and choice is RecheckDtype.FP32:
        device = torch.device("cpu")
    if device is None:
        return DtypeNoise.not_measured(
            f"in fp32 the weights take {shown_bytes(_fp32_bytes(loaded.model))}, which do not fit "
            f"beside the run; --recheck-dtype fp32 reads them on the CPU"
        )
    try:
        return _held_against(loaded, scored, device)
    except torch.OutOfMemoryError:
        return DtypeNoise.not_measured("in fp32 a pass does not fit in the GPU's memory")
    except TrajkitError as problem:  # a pass that does not fit, or an architecture that cannot
        return DtypeNoise.not_measured(problem.message)
    finally:
        torch.cuda.empty_cache()


def _held_against(
    loaded: LoadedModel, scored: Sequence[ScoredTrajectory], device: torch.device
) -> DtypeNoise:
    wide = widened(loaded, device)
    batch = score_trajectories(wide, [one.trajectory for one in scored])
    pairs = [
        (row.logprobs, other.logprobs)
        for one, again in zip(scored, batch.scored, strict=True)
        for row, other in zip(one.steps, again.steps, strict=True)
        if row.logprobs is not None and other.logprobs is not None
    ]
    half, full = (_joined(pair[side] for pair in pairs) for side in (0, 1))
    return DtypeNoise(
        gap=measure_gap(half, full),
        device=wide.device_name,
        n_forwards=batch.n_forwards,
    )


def widened(loaded: LoadedModel, device: torch.device) -> LoadedModel:
    """Return a model of the same weights in float32 on a device, checked like any other.

    Raises:
        UsageProblem: U103 when the weights are not whole on one device.
        NumericError: N104 when its logits cannot be had exactly.
        torch.OutOfMemoryError: the weights do not fit.
    """
    model = loaded.model
    seen: dict[int, Any] = {}
    with torch.no_grad():
        for parameter in model.parameters():
            wide = parameter.detach().to(device, torch.float32, copy=True)
            seen[id(parameter)] = torch.nn.Parameter(wide, requires_grad=False)
        for buffer in model.buffers():
            dtype = torch.float32 if buffer.is_floating_point() else buffer.dtype
            seen[id(buffer)] = buffer.to(device, dtype, copy=True)
        module = copy.deepcopy(model, seen)
    found = loaded_from_module(module, name=loaded.name)
    return replace(found, max_positions=loaded.max_positions, n_vocab=loaded.n_vocab)


def _device_with_room(loaded: LoadedModel) -> torch.device | None:
    """Return the run's device when the weights in float32 fit beside it, as far as is known."""
    torch.cuda.empty_cache()  # what passes left there is free too
    free = free_bytes(loaded.device)
    fits = free is None or _ROOM * _fp32_bytes(loaded.model) <= free
    return loaded.device if fits else None


def _fp32_bytes(model: Any) -> int:
    return 4 * sum(int(parameter.numel()) for parameter in model.parameters())


def _joined(parts: Iterable[Floats]) -> Floats:
    return np.concatenate([_NO_FLOATS, *parts])
