"""Context asked beside actions: the same numbers of actions, and those of what stands around."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import make_step, make_trajectory
from tests.score_builders import assert_close, plain_logprobs, tiny_llama
from trajkit.records import Trajectory
from trajkit.scoring.context import with_context_asked
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.scored import Status
from trajkit.scoring.steps import score_trajectories

# a window that keeps two ids of step 0, a step that goes on from it, a retry, a tail behind two
CALLS = [
    ([1, 2, 3], [10, 11]),
    ([1, 2, 20, 21], [12]),
    ([1, 2, 20, 21, 12, 22], [13, 14]),
    ([1, 2, 20, 21], [15]),
]
MADE = make_trajectory(CALLS, tail_tokens=[[30, 31], None, [32], None])


def scored(model: LoadedModel, trajectory: Trajectory):
    (found,) = score_trajectories(model, [trajectory], with_context=True).scored
    assert found.trajectory is trajectory
    return found


@pytest.mark.parametrize("why", [None, "because a test says so"])
def test_every_id_that_a_step_brings_is_scored_in_its_own_context(
    llama: LoadedModel, why: str | None
) -> None:
    found = scored(replace(llama, why_unshared=why), MADE)
    for row, step in zip(found.steps, MADE.steps, strict=True):
        assert row.step is step
        tail = [] if step.tail_tokens is None else step.tail_tokens.tolist()
        prompt, action = step.prompt_ids.tolist(), step.action_tokens.tolist()
        wanted = plain_logprobs(llama.model, [*prompt, *action, *tail])
        start, end = len(prompt), len(prompt) + len(action)
        assert_close(row.logprobs, wanted[start:end], atol=1e-5)
        around = np.concatenate([wanted[start - len(step.prompt_delta) : start], wanted[end:]])
        assert_close(row.context_logprobs, around, atol=1e-5)
        assert len(row.entropy) == len(row.rank) == len(action)


@pytest.mark.parametrize("why", [None, "because a test says so"])
def test_a_reference_reads_context_in_the_same_passes_and_speaks_of_actions(
    llama: LoadedModel, why: str | None, tmp_path: Path
) -> None:
    model = replace(llama, why_unshared=why)
    other = replace(load_model(tiny_llama(tmp_path / "m", seed=5), device="cpu"), why_unshared=why)
    plain = score_trajectories(model, [MADE], reference=other)
    wide = score_trajectories(model, [MADE], reference=other, with_context=True)
    assert wide.n_ref_forwarded_tokens == wide.n_forwarded_tokens > plain.n_forwarded_tokens
    for row, before in zip(wide.scored[0].steps, plain.scored[0].steps, strict=True):
        for name in ("logprobs", "ref_logprobs", "exact_kl", "entropy"):
            assert_close(getattr(row, name), getattr(before, name), atol=1e-5)
        assert row.exact_kl is not None
        assert len(row.exact_kl) == row.step.n_action_tokens
        assert before.context_logprobs is None
        assert row.context_logprobs is not None
    first = wide.scored[0].steps[0].exact_kl
    assert first is not None
    assert float(first.min()) > 0.1


def test_the_widened_trajectory_has_the_same_ids() -> None:
    wide: Any = with_context_asked(MADE)
    for step, other in zip(MADE.steps, wide.steps, strict=True):
        tail = [] if step.tail_tokens is None else step.tail_tokens.tolist()
        whole = [*step.prompt_ids.tolist(), *step.action_tokens.tolist(), *tail]
        assert [*other.prompt_ids.tolist(), *other.action_tokens.tolist()] == whole
        assert other.prompt_keep == step.prompt_keep


def test_steps_without_numbers_have_no_context_either(llama: LoadedModel) -> None:
    steps = (
        make_step(0, action_text="x", is_terminal=False),
        make_step(1, prompt_delta=[1, 2], action_tokens=[3], exclude_reason="abandoned"),
        make_step(2, action_tokens=[3]),
        make_step(3, prompt_delta=[1, 2], action_tokens=[]),
    )
    found = scored(llama, Trajectory(trajectory_id="t", steps=steps))
    assert [row.status for row in found.steps] == [
        Status.NO_ACTION,
        Status.EXCLUDED,
        Status.NO_PROMPT,
        Status.OK,
    ]
    assert [row.context_logprobs is None for row in found.steps] == [True, True, True, False]
    last = found.steps[3]
    assert last.logprobs is not None
    assert last.context_logprobs is not None
    assert len(last.logprobs) == 0
    assert np.isnan(last.context_logprobs).tolist() == [True, False]
