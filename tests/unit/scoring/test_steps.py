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
from trajkit.errors import InputError, UsageProblem
from trajkit.records import MediaSpan, Trajectory
from trajkit.scoring.forward.logprobs import TokenScores, pass_scores
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.planning.pack import Pass
from trajkit.scoring.scored import ScoredTrajectory, Status
from trajkit.scoring.steps import (
    Batch,
    default_budget,
    score_trajectories,
)

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


def batch_of(loaded: LoadedModel, *trajectories: Trajectory, **options: Any) -> Batch:
    return score_trajectories(loaded, trajectories, **options)


def score_trajectory(loaded: LoadedModel, trajectory: Trajectory) -> ScoredTrajectory:
    (scored,) = batch_of(loaded, trajectory).scored
    return scored


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


def unshared(loaded: LoadedModel) -> LoadedModel:
    return replace(loaded, why_unshared="for the sake of a test")


def test_an_append_only_trajectory_is_one_pass(llama: LoadedModel) -> None:
    with passes_of(llama) as lengths:
        batch = batch_of(llama, make_trajectory(CHAIN))
    assert lengths == [15]  # no token stands behind the last one: it is asked about and not read
    assert (batch.n_forwards, batch.n_forwarded_tokens, batch.n_row_tokens) == (1, 15, 16)
    assert batch.n_raw_tokens == 7 + 11 + 16
    assert_scored(llama, batch.scored[0])


def test_a_window_reads_what_it_keeps_once(llama: LoadedModel) -> None:
    with passes_of(llama) as lengths:
        batch = batch_of(llama, make_trajectory(WINDOW))
    assert lengths == [2 + 4 + 6]
    assert (batch.n_forwards, batch.n_row_tokens) == (1, 7 + 9)
    assert batch.n_raw_tokens == 5 + 7 + 7 + 9
    assert_scored(llama, batch.scored[0])


def test_a_model_that_cannot_share_makes_a_pass_for_each_time_a_window_moves(
    llama: LoadedModel,
) -> None:
    with passes_of(llama) as lengths:
        batch = batch_of(unshared(llama), make_trajectory(WINDOW))
    assert lengths == [9, 7]
    assert (batch.n_forwards, batch.n_forwarded_tokens, batch.n_row_tokens) == (2, 16, 16)
    assert_scored(llama, batch.scored[0])


GROUP = (
    chain(([1, 10, 11, 12], [20, 21, 2]), ([30, 31], [22, 2])),
    chain(([1, 10, 11, 12], [20, 40, 2]), ([30], [41, 2])),
    chain(([1, 10, 11, 12], [20, 21, 2]), ([50], [51])),
)


def test_a_group_reads_its_prompt_once_and_what_its_actions_share(llama: LoadedModel) -> None:
    group = [make_trajectory(calls, f"t{at}") for at, calls in enumerate(GROUP)]
    with passes_of(llama) as lengths:
        batch = batch_of(llama, *group)
    assert lengths == [5 + 2 + 3 + 4 + 1]  # 1 10 11 12 20 | 21 2 | 30 31 22 | 40 2 30 41 | 50
    assert batch.n_row_tokens == 11 + 10 + 9
    for scored in batch.scored:
        assert_scored(llama, scored)
    assert [scored.trajectory for scored in batch.scored] == group


@pytest.mark.parametrize("budget", [1, 6, 9, 12, 100])
def test_a_budget_cuts_passes_and_changes_no_number(llama: LoadedModel, budget: int) -> None:
    group = [make_trajectory(calls, f"t{at}") for at, calls in enumerate((*GROUP, WINDOW))]
    with passes_of(llama) as lengths:
        batch = batch_of(llama, *group, tokens_per_batch=budget)
    assert batch.n_forwards == len(lengths)
    assert batch.n_forwarded_tokens == sum(lengths)
    assert lengths == sorted(lengths, reverse=True)
    for scored in batch.scored:
        assert_scored(llama, scored)


@pytest.mark.parametrize("n_fit", [14, 11, 10])
def test_a_pass_that_does_not_fit_is_made_in_parts(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, n_fit: int
) -> None:
    group = [make_trajectory(calls, f"t{at}") for at, calls in enumerate(GROUP)]
    whole = batch_of(llama, *group)

    def full(loaded: LoadedModel, reading: Pass, *args: Any, **more: Any) -> TokenScores:
        if len(reading.token_ids) > n_fit:
            raise torch.OutOfMemoryError
        return pass_scores(loaded, reading, *args, **more)

    monkeypatch.setattr("trajkit.scoring.steps.pass_scores", full)
    told: list[tuple[int, int]] = []
    parts = batch_of(llama, *group, told=lambda n_read, n_all: told.append((n_read, n_all)))
    assert parts.n_forwards > whole.n_forwards
    assert told[-1] == (parts.n_forwarded_tokens, parts.n_forwarded_tokens)
    for one, other in zip(whole.scored, parts.scored, strict=True):
        for row, same in zip(one.steps, other.steps, strict=True):
            assert_close(same.logprobs, row.logprobs, atol=1e-5)


@pytest.mark.parametrize(("free_bytes", "budget"), [(0, 2**11), (2**28, 50_840), (2**60, 2**17)])
def test_a_budget_on_a_gpu_follows_its_free_memory(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, free_bytes: int, budget: int
) -> None:
    assert default_budget(llama) == 8192
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free_bytes, free_bytes))
    assert default_budget(replace(llama, device=torch.device("cuda"))) == budget


def test_the_wider_of_two_models_and_its_heads_set_the_budget(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**28, 2**28))
    on_gpu = replace(llama, device=torch.device("cuda"))
    sizes = {**TINY, "num_attention_heads": 16, "head_dim": 16}  # queries of 256, states of 32
    wider = replace(on_gpu, model=random_model("llama", **sizes))
    few = default_budget(wider)
    per_token = 8 * (6 * 32 + 3 * 48 + 6 * 256)
    assert few == int(0.8 * 2**28 / per_token) < default_budget(on_gpu)
    assert default_budget(on_gpu, wider) == default_budget(wider, on_gpu) == few


def test_fewer_logits_at_a_time_are_tried_before_a_pass_is_cut(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = [make_trajectory(calls, f"t{at}") for at, calls in enumerate(GROUP)]
    whole, asked = batch_of(llama, *group), []

    def full(*args: Any, chunk_rows: int, **more: Any) -> TokenScores:
        asked.append(chunk_rows)
        if chunk_rows > 1:
            raise torch.OutOfMemoryError
        return pass_scores(*args, chunk_rows=chunk_rows, **more)

    monkeypatch.setattr("trajkit.scoring.steps.rows_at_once", lambda *_: 4)
    monkeypatch.setattr("trajkit.scoring.steps.pass_scores", full)
    parts = batch_of(llama, *group)
    assert asked == [4, 1] * whole.n_forwards
    assert parts.n_forwards == whole.n_forwards
    for one, other in zip(whole.scored, parts.scored, strict=True):
        for row, same in zip(one.steps, other.steps, strict=True):
            assert_close(same.logprobs, row.logprobs, atol=1e-5)


@pytest.mark.parametrize("words", ["CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory"])
def test_a_library_that_finds_no_room_is_no_other_error(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr("trajkit.scoring.forward.logprobs.logits_of", full)
    with pytest.raises(UsageProblem) as caught:
        batch_of(llama, make_trajectory(CHAIN))
    assert caught.value.code == "U106"


def test_a_single_sequence_that_does_not_fit_stops_the_run(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> TokenScores:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("trajkit.scoring.steps.pass_scores", full)
    with pytest.raises(UsageProblem) as caught:
        batch_of(llama, make_trajectory(CHAIN))
    assert caught.value.code == "U106"


@pytest.mark.parametrize("change", ["sibling", "future", "ancestor"])
def test_what_a_row_does_not_see_does_not_move_it_by_a_bit(llama: LoadedModel, change: str) -> None:
    first: Any = ([1, 10, 11], [20, 21, 22])
    second: Any = ([1, 10, 11], [30, 31, 32])
    changed: dict[str, Any] = {
        "sibling": [([1, 10, 11], [20, 55, 22]), second],
        "future": [first, ([1, 10, 11], [30, 31, 33])],
        "ancestor": [([1, 10, 12], [20, 21, 22]), ([1, 10, 12], [30, 31, 32])],
    }
    before, after = (
        batch_of(llama, *(make_trajectory([call], str(at)) for at, call in enumerate(group)))
        for group in ([first, second], changed[change])
    )
    watched = slice(0, 2) if change == "future" else slice(0, 3)
    found, wanted = (one.scored[1].steps[0].logprobs for one in (after, before))
    assert found is not None
    assert wanted is not None
    same = found[watched].tobytes() == wanted[watched].tobytes()
    assert same is (change != "ancestor")


def test_what_is_not_a_number_stays_on_its_own_branch(tmp_path: Path) -> None:
    loaded = load_model(
        save_checkpoint(random_model("llama", **TINY), tmp_path / "m"), device="cpu"
    )
    with torch.no_grad():
        loaded.model.model.embed_tokens.weight[40] = float("nan")
    group = [make_trajectory(calls, f"t{at}") for at, calls in enumerate(GROUP)]
    batch = batch_of(loaded, *group)
    assert [one.steps[0].status for one in batch.scored] == [
        Status.OK, Status.NONFINITE, Status.OK,
    ]  # fmt: skip
    assert_scored(loaded, batch.scored[0])


def test_an_id_outside_the_vocabulary_in_a_context_that_is_not_scored_is_told(
    llama: LoadedModel,
) -> None:
    calls = chain(([1, 99], [3]), ([5], [6]))
    with pytest.raises(InputError) as caught:
        batch_of(llama, make_trajectory(calls, "who", exclude_reason=["x", None]))
    assert caught.value.code == "I304"
    assert caught.value.place is not None
    assert caught.value.place.step_index == 1


def test_a_retry_shares_its_parents_prompt_as_context(llama: LoadedModel) -> None:
    calls = [([1, 5, 6], [20, 21]), ([1, 5, 6], [22]), ([1, 5, 6, 22, 30], [23])]
    scored = score_trajectory(llama, make_trajectory(calls))
    assert_scored(llama, scored)


def test_tokens_after_the_last_action_are_not_read(llama: LoadedModel) -> None:
    trajectory = make_trajectory(CHAIN, tail_tokens=[None, None, np.array([7] * 50, np.int32)])
    batch = batch_of(llama, trajectory)
    assert batch.n_forwarded_tokens == 15
    assert_scored(llama, batch.scored[0])


def test_excluded_steps_are_context_and_not_scored(llama: LoadedModel) -> None:
    trajectory = make_trajectory(CHAIN, exclude_reason=[None, "abandoned", None])
    batch = batch_of(llama, trajectory)
    (scored,) = batch.scored
    assert [row.status for row in scored.steps] == [Status.OK, Status.EXCLUDED, Status.OK]
    assert scored.steps[1].logprobs is None
    assert batch.n_raw_tokens == 7 + 16
    assert_close(scored.steps[2].logprobs, one_by_one(llama, trajectory)[2], atol=1e-5)


def test_steps_that_are_all_excluded_cost_nothing(llama: LoadedModel) -> None:
    with passes_of(llama) as lengths:
        batch = batch_of(llama, make_trajectory(CHAIN, exclude_reason=["x"] * 3))
    assert lengths == []
    assert batch.n_forwarded_tokens == batch.n_row_tokens == batch.n_raw_tokens == 0


def test_steps_without_ids_have_a_status_and_no_numbers(llama: LoadedModel) -> None:
    steps = (
        make_step(0, prompt_delta=[1, 2, 3]),
        make_step(1, action_tokens=[4, 5]),
        make_step(2),
        make_step(3, prompt_delta=[1, 2], action_tokens=[]),
    )
    batch = batch_of(llama, Trajectory(trajectory_id="t", steps=steps))
    (scored,) = batch.scored
    assert [str(row.status) for row in scored.steps] == [
        "no_action", "no_prompt", "no_action", "ok",
    ]  # fmt: skip
    assert [row.logprobs is None for row in scored.steps] == [True, True, True, False]
    empty = scored.steps[3]
    for column in (empty.logprobs, empty.entropy, empty.rank):
        assert column is not None
        assert column.tolist() == []
    assert batch.n_forwards == 0


def test_media_leave_the_whole_trajectory_out(llama: LoadedModel) -> None:
    media = (MediaSpan(start=0, end=1, type="image"),)
    batch = batch_of(llama, make_trajectory(CHAIN, media=[None, media, None]))
    assert {row.status for row in batch.scored[0].steps} == {Status.MEDIA}
    assert batch.n_forwards == 0


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
        batch = batch_of(llama, make_trajectory(calls, exclude_reason=[None, None, "x"]))
    assert lengths == []
    (scored,) = batch.scored
    assert [str(row.status) for row in scored.steps] == ["too_long", "too_long", "excluded"]
    assert all(row.logprobs is None and row.rank is None for row in scored.steps)
    assert (batch.n_forwards, batch.n_forwarded_tokens, batch.n_raw_tokens) == (0, 0, 0)
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


@pytest.mark.parametrize(("switch", "passes"), [(6, [16]), (10, [16, 7]), (11, [16, 11])])
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
    assert "longrope" in (loaded.why_unshared or "")
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


def test_what_is_told_ends_at_what_was_read_by_all_models(llama: LoadedModel) -> None:
    def told_of(**options: Any) -> tuple[Batch, list[tuple[int, int]]]:
        told: list[tuple[int, int]] = []
        batch = batch_of(
            llama, made, tokens_per_batch=5, told=lambda n, of: told.append((n, of)), **options
        )
        return batch, told

    made = make_trajectory(WINDOW)
    for reference, n_models in (
        (None, 1),
        (llama, 2),
        (replace(llama, max_positions=95), 2),
        (unshared(llama), 2),
    ):
        batch, told = told_of(reference=reference)
        n_all = batch.n_forwarded_tokens + batch.n_ref_forwarded_tokens
        assert told[-1] == (n_all, n_all)
        assert [n for n, _ in told] == sorted(n for n, _ in told)
        assert (batch.n_ref_forwarded_tokens > 0) is (n_models == 2)


def test_context_of_trajectories_without_a_group_ties_no_trees_together(
    llama: LoadedModel,
) -> None:
    made = [make_trajectory([([1, 10 + at], [20])], str(at)) for at in range(3)]
    with passes_of(llama) as lengths:
        batch = batch_of(llama, *made, with_context=True)
    assert lengths == [3 * 2]  # the 1 in front of all is no reason to read them as one tree
    assert batch.n_forwarded_tokens == batch_of(llama, *made).n_forwarded_tokens
    for one in batch.scored:
        context = one.steps[0].context_logprobs
        assert context is not None
        assert np.isnan(context).tolist() == [True, False]
