"""Drift priced by a checkpoint: the recorded spelling of each drifted action, and the other one.

Both spellings of an action are siblings behind one prompt, which is read once for both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trajkit.align import Region, differing_regions, same_ids
from trajkit.drift.price import LogprobPrice, StepLogprobs, price_logprobs
from trajkit.records import ActionSource, Floats, Ids, PromptSource, Step, Trajectory
from trajkit.store.read import read_trajectories
from trajkit.tokenizer import Tokenizer, load_tokenizer

_AT_ONCE = 32
"""Drifted steps whose spellings are scored together."""


def price_drift_with_model(
    data: Path | str,
    tokenizer: Tokenizer | Path | str,
    model: Path | str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    only: Collection[str] = (),
    limit: int | None = None,
) -> LogprobPrice:
    """Return what the drift that route `ids` finds is worth to a checkpoint, in nats.

    Args:
        data: step records.
        tokenizer: the sampler's.
        model: a checkpoint folder.
        device: as `trajkit.score` takes it.
        dtype: as `trajkit.score` takes it.
        only: trajectory ids to price; empty prices all.
        limit: how many trajectories to read at most.

    Raises:
        UsageProblem: U105 without torch, U106 without the device.
        InputError: I304 for an id outside the vocabulary of tokenizer or checkpoint.
        NumericError: what loading a checkpoint raises.
    """
    from trajkit.scoring import require_torch

    require_torch()
    from trajkit.scoring.loading.model import load_model
    from trajkit.scoring.steps import score_trajectories

    loaded = load_model(model, device=device, dtype=dtype)
    known = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    trajectories = read_trajectories(data, only=only, limit=limit)
    prices: list[StepLogprobs] = []
    found = _pairs(trajectories, known)
    while pairs := list(islice(found, _AT_ONCE)):
        batch = score_trajectories(loaded, [pair for pair, _ in pairs])
        for scored, (_, regions) in zip(batch.scored, pairs, strict=True):
            logprobs = [row.logprobs for row in scored.steps]
            if logprobs[0] is not None and logprobs[1] is not None:
                prices.append(_told(regions, logprobs[0], logprobs[1]))
    return price_logprobs(prices)


def _pairs(
    trajectories: Iterable[Trajectory], tokenizer: Tokenizer
) -> Iterator[tuple[Trajectory, tuple[Region, ...]]]:
    """Yield each drifted step's two spellings as a trajectory, and where they differ."""
    for trajectory in trajectories:
        steps = [s for s in trajectory.steps if s.is_checkable and s.prompt_delta is not None]
        actions = [step.action_tokens for step in steps if step.action_tokens is not None]
        for step, action in zip(steps, actions, strict=True):
            tokenizer.require_known(action, "action", step.place)
        others = tokenizer.encode_batch(tokenizer.decode_batch(actions))
        for step, action, other in zip(steps, actions, others, strict=True):
            if not same_ids(action, other):
                left, right = tokenizer.spell(action), tokenizer.spell(other)
                yield _siblings(step, other), differing_regions(action, other, left, right)


def _siblings(step: Step, other: Ids) -> Trajectory:
    """Return the step and its other spelling behind the same prompt."""
    prompt = step.prompt_ids
    common: dict[str, Any] = {
        "trajectory_id": step.trajectory_id,
        "group_id": step.trajectory_id,  # all drifted steps of a trajectory share its prompts
        "is_terminal": False,
        "action_source": ActionSource.SAMPLED,
        "prompt_source": PromptSource.RECORDED,
        "source_format": step.source_format,
        "source_file": step.source_file,
        "source_record": step.source_record,
        "prompt_len": step.prompt_len,
    }
    recorded = Step(
        **common,
        step_index=0,
        prompt_keep=0,
        prompt_delta=prompt,
        action_tokens=step.action_tokens,
    )
    retokenized = Step(
        **common,
        step_index=1,
        parent=recorded,
        prompt_keep=step.prompt_len,
        prompt_delta=np.empty(0, dtype=np.int32),
        action_tokens=other,
    )
    return Trajectory(trajectory_id=step.trajectory_id, steps=(recorded, retokenized))


def _told(regions: tuple[Region, ...], recorded: Floats, other: Floats) -> StepLogprobs:
    """Return the log-probs of both spellings, region by region, and of what is the same behind."""
    ends = [(region.left_end, region.right_end) for region in regions]
    starts = [(region.left_start, region.right_start) for region in regions[1:]]
    stops = [*starts, (len(recorded), len(other))]
    later = [(recorded[a:c], other[b:d]) for (a, b), (c, d) in zip(ends, stops, strict=True)]
    return StepLogprobs(
        regions=tuple(
            (recorded[r.left_start : r.left_end], other[r.right_start : r.right_end])
            for r in regions
        ),
        later_recorded=np.concatenate([mine for mine, _ in later]),
        later_retokenized=np.concatenate([theirs for _, theirs in later]),
    )
