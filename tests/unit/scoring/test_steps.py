from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.builders import make_step, make_trajectory
from tests.score_builders import (
    TINY,
    assert_close,
    chain,
    plain_logprobs,
    random_model,
    save_checkpoint,
)
from trajkit.errors import InputError, NumericError
from trajkit.records import MediaSpan, Trajectory
from trajkit.scoring import head as head_module
from trajkit.scoring.model import LoadedModel, load_model
from trajkit.scoring.scored import ScoredTrajectory, Status
from trajkit.scoring.steps import measure_noise, score_step_alone, score_trajectory

CHAIN = chain(([1, 10, 11, 12], [20, 21, 2]), ([30, 31], [22, 2]), ([32], [23, 24, 25, 2]))
WINDOW = [
    ([1, 10, 11], [20, 21]),
    ([1, 10, 11, 20, 21, 30], [22]),
    ([1, 10, 30, 22, 31], [23, 24]),
    ([1, 10, 30, 22, 31, 23, 24, 32], [25]),
]


@contextmanager
def passes_of(loaded: LoadedModel) -> Iterator[list[int]]:
    lengths: list[int] = []
    hook = loaded.model.model.register_forward_hook(
        lambda module, args, kwargs, output: lengths.append(kwargs["input_ids"].shape[1]),
        with_kwargs=True,
    )
    try:
        yield lengths
    finally:
        hook.remove()


def one_by_one(loaded: LoadedModel, trajectory: Trajectory) -> list[Any]:
    found = []
    for step in trajectory.steps:
        prompt, action = step.prompt_ids, step.action_tokens
        assert prompt is not None
        assert action is not None
        ids = [*prompt.tolist(), *action.tolist()]
        found.append(plain_logprobs(loaded.model, ids)[len(prompt) :])
    return found


def assert_scored(loaded: LoadedModel, scored: ScoredTrajectory) -> None:
    wanted = one_by_one(loaded, scored.trajectory)
    for row, logprobs in zip(scored.steps, wanted, strict=True):
        assert row.status is Status.OK
        assert_close(row.logprobs, logprobs, atol=1e-5)


def test_an_append_only_trajectory_is_one_pass(llama: LoadedModel) -> None:
    with passes_of(llama) as lengths:
        scored = score_trajectory(llama, make_trajectory(CHAIN))
    assert lengths == [16]
    assert (scored.n_forwards, scored.n_forwarded_tokens) == (1, 16)
    assert scored.n_raw_tokens == 7 + 11 + 16
    assert_scored(llama, scored)


def test_a_window_is_a_pass_for_each_time_it_moves(llama: LoadedModel) -> None:
    with passes_of(llama) as lengths:
        scored = score_trajectory(llama, make_trajectory(WINDOW))
    assert lengths == [7, 9]
    assert (scored.n_forwards, scored.n_forwarded_tokens) == (2, 16)
    assert scored.n_raw_tokens == 5 + 7 + 7 + 9
    assert_scored(llama, scored)


def test_a_retry_shares_its_parents_prompt_as_context(llama: LoadedModel) -> None:
    calls = [([1, 5, 6], [20, 21]), ([1, 5, 6], [22]), ([1, 5, 6, 22, 30], [23])]
    scored = score_trajectory(llama, make_trajectory(calls))
    assert_scored(llama, scored)


def test_tokens_after_the_last_action_are_not_read(llama: LoadedModel) -> None:
    trajectory = make_trajectory(CHAIN, tail_tokens=[None, None, np.array([7] * 50, np.int32)])
    scored = score_trajectory(llama, trajectory)
    assert scored.n_forwarded_tokens == 16
    assert_scored(llama, scored)


def test_excluded_steps_are_context_and_not_scored(llama: LoadedModel) -> None:
    trajectory = make_trajectory(CHAIN, exclude_reason=[None, "abandoned", None])
    scored = score_trajectory(llama, trajectory)
    assert [row.status for row in scored.steps] == [Status.OK, Status.EXCLUDED, Status.OK]
    assert scored.steps[1].logprobs is None
    assert scored.n_raw_tokens == 7 + 16
    assert_close(scored.steps[2].logprobs, one_by_one(llama, trajectory)[2], atol=1e-5)


def test_steps_that_are_all_excluded_cost_nothing(llama: LoadedModel) -> None:
    with passes_of(llama) as lengths:
        scored = score_trajectory(llama, make_trajectory(CHAIN, exclude_reason=["x"] * 3))
    assert lengths == []
    assert scored.n_forwarded_tokens == scored.n_raw_tokens == 0


def test_steps_without_ids_have_a_status_and_no_numbers(llama: LoadedModel) -> None:
    steps = (
        make_step(0, prompt_delta=[1, 2, 3]),
        make_step(1, action_tokens=[4, 5]),
        make_step(2),
        make_step(3, prompt_delta=[1, 2], action_tokens=[]),
    )
    scored = score_trajectory(llama, Trajectory(trajectory_id="t", steps=steps))
    assert [str(row.status) for row in scored.steps] == [
        "no_action", "no_prompt", "no_action", "ok",
    ]  # fmt: skip
    assert [row.logprobs is None for row in scored.steps] == [True, True, True, False]
    empty = scored.steps[3]
    for column in (empty.logprobs, empty.entropy, empty.rank):
        assert column is not None
        assert column.tolist() == []
    assert scored.n_forwards == 0


def test_media_leave_the_whole_trajectory_out(llama: LoadedModel) -> None:
    media = (MediaSpan(start=0, end=1, type="image"),)
    scored = score_trajectory(llama, make_trajectory(CHAIN, media=[None, media, None]))
    assert {row.status for row in scored.steps} == {Status.MEDIA}
    assert scored.n_forwards == 0


def test_an_action_at_position_0_has_a_null_first_logprob(llama: LoadedModel) -> None:
    scored = score_trajectory(llama, make_trajectory([([], [9, 8, 7])]))
    logprobs = scored.steps[0].logprobs
    assert logprobs is not None
    assert np.isnan(logprobs).tolist() == [True, False, False]
    assert_close(logprobs, plain_logprobs(llama.model, [9, 8, 7]), atol=1e-5)


def test_logits_that_are_not_finite_take_their_trajectory_only(tmp_path: Path) -> None:
    loaded = load_model(
        save_checkpoint(random_model("llama", **TINY), tmp_path / "m"), device="cpu"
    )
    with torch.no_grad():
        loaded.model.model.embed_tokens.weight[30] = float("nan")
    bad = score_trajectory(loaded, make_trajectory(CHAIN, exclude_reason=[None, None, "x"]))
    assert [str(row.status) for row in bad.steps] == ["nonfinite", "nonfinite", "excluded"]
    assert all(row.logprobs is None and row.rank is None for row in bad.steps)
    good = score_trajectory(loaded, make_trajectory([([1, 2], [3, 4])]))
    assert good.steps[0].status is Status.OK


def test_an_id_outside_the_vocabulary_names_its_step(llama: LoadedModel) -> None:
    trajectory = make_trajectory(chain(([1, 2], [3]), ([99], [4])), "who")
    with pytest.raises(InputError) as caught:
        score_trajectory(llama, trajectory)
    assert caught.value.code == "I304"
    assert caught.value.place is not None
    assert (caught.value.place.trajectory_id, caught.value.place.step_index) == ("who", 1)


def test_longer_than_the_model_has_a_status_and_no_numbers(llama: LoadedModel) -> None:
    calls = chain(([1] * 60, [3]), ([2] * 60, [4]), ([5], [6]))
    with passes_of(llama) as lengths:
        scored = score_trajectory(llama, make_trajectory(calls, exclude_reason=[None, None, "x"]))
    assert lengths == []
    assert [str(row.status) for row in scored.steps] == ["too_long", "too_long", "excluded"]
    assert all(row.logprobs is None and row.rank is None for row in scored.steps)
    assert (scored.n_forwards, scored.n_forwarded_tokens, scored.n_raw_tokens) == (0, 0, 0)
    assert scored.n_longest == 122


def test_what_no_scored_action_needs_does_not_make_it_too_long(llama: LoadedModel) -> None:
    calls = chain(([1] * 60, [3]), ([2] * 60, [4]))
    scored = score_trajectory(llama, make_trajectory(calls, exclude_reason=[None, "x"]))
    assert [row.status for row in scored.steps] == [Status.OK, Status.EXCLUDED]
    assert scored.n_longest == 61


def test_an_id_outside_the_vocabulary_is_told_of_a_long_trajectory_too(llama: LoadedModel) -> None:
    with pytest.raises(InputError) as caught:
        score_trajectory(llama, make_trajectory([([1] * 120 + [99], [2])]))
    assert caught.value.code == "I304"


@pytest.mark.parametrize(("switch", "passes"), [(6, [16]), (10, [7, 16]), (11, [11, 16])])
def test_rotary_frequencies_that_depend_on_length_get_a_pass_of_their_own(
    tmp_path: Path, switch: int, passes: list[int]
) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": switch,
    }
    config = {**TINY, "rope_parameters": rope, "original_max_position_embeddings": switch}
    model = random_model("phi3", **config)
    loaded = load_model(save_checkpoint(model, tmp_path / "m"), device="cpu")
    assert loaded.rope_switch == switch
    with passes_of(loaded) as lengths:
        scored = score_trajectory(loaded, make_trajectory(CHAIN))
    assert lengths == passes
    assert_scored(loaded, scored)
    if passes == [16]:
        return
    together = score_trajectory(replace(loaded, rope_switch=None), scored.trajectory)
    first, shared = scored.steps[0].logprobs, together.steps[0].logprobs
    assert first is not None
    assert shared is not None
    assert np.abs(first - shared).max() > 1e-2


def test_a_step_alone_gives_the_same_numbers(llama: LoadedModel) -> None:
    scored = score_trajectory(llama, make_trajectory(CHAIN))
    for row in scored.steps:
        alone = score_step_alone(llama, row.step)
        assert_close(alone.logprobs, row.logprobs, atol=1e-5)
        assert_close(alone.entropy, row.entropy, atol=1e-5)


def test_the_noise_floor_is_measured(llama: LoadedModel) -> None:
    floor = measure_noise(llama, [score_trajectory(llama, make_trajectory(CHAIN))])
    gap = floor.gap
    assert (gap.n, floor.n_forwards) == (9, 3)
    assert gap.mean_abs is not None
    assert gap.p99_abs is not None
    assert gap.max_abs is not None
    assert 0.0 <= gap.mean_abs <= gap.p99_abs <= gap.max_abs < 1e-5
    assert abs(gap.k3 or 0.0) < 1e-9
    nothing = {"n": 0, "mean_abs": None, "p99_abs": None, "max_abs": None, "k3": None}
    assert measure_noise(llama, []).to_dict() == nothing
    assert measure_noise(llama, []).n_forwards == 0


@pytest.mark.parametrize(("dtype", "raises"), [("fp32", True), ("bf16", False)])
def test_two_ways_that_disagree_stop_the_run_in_fp32(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, dtype: str, *, raises: bool
) -> None:
    scored = score_trajectory(llama, make_trajectory(CHAIN, "who"))
    true_logits = head_module.logits_of

    def shifted(*args: Any) -> torch.Tensor:
        logits: torch.Tensor = true_logits(*args)
        logits[:, 2] += 1.0
        return logits

    monkeypatch.setattr("trajkit.scoring.logprobs.logits_of", shifted)
    loaded = replace(llama, dtype=dtype)
    if not raises:
        assert (measure_noise(loaded, [scored]).gap.max_abs or 0.0) > 1e-3
        return
    with pytest.raises(NumericError) as caught:
        measure_noise(loaded, [scored])
    assert caught.value.code == "N104"
    assert "who" in str(caught.value)
