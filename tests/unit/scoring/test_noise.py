"""What nothing but another way of computing changes, and what half precision does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.builders import make_trajectory
from tests.score_builders import (
    TINY,
    assert_close,
    chain,
    random_model,
    save_checkpoint,
    tiny_llama,
    write_data,
)
from trajkit.errors import NumericError, UsageProblem
from trajkit.records import Trajectory
from trajkit.scoring import noise as room
from trajkit.scoring.forward import head as head_module
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.noise import (
    RecheckDtype,
    measure_dtype_noise,
    measure_noise,
    score_step_alone,
    widened,
)
from trajkit.scoring.run import score
from trajkit.scoring.scored import ScoredTrajectory, Status
from trajkit.scoring.steps import score_trajectories

CHAIN = chain(([1, 10, 11, 12], [20, 21, 2]), ([30, 31], [22, 2]), ([32], [23, 24, 25, 2]))


def score_trajectory(loaded: LoadedModel, trajectory: Trajectory) -> ScoredTrajectory:
    (scored,) = score_trajectories(loaded, [trajectory]).scored
    return scored


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

    monkeypatch.setattr("trajkit.scoring.forward.logprobs.logits_of", shifted)
    loaded = replace(llama, dtype=dtype)
    if not raises:
        assert (measure_noise(loaded, [scored]).gap.max_abs or 0.0) > 1e-3
        return
    with pytest.raises(NumericError) as caught:
        measure_noise(loaded, [scored])
    assert caught.value.code == "N104"
    assert "who" in str(caught.value)


@pytest.fixture(scope="module")
def halves(llama_dir: Path) -> dict[str, LoadedModel]:
    return {dtype: load_model(llama_dir, device="cpu", dtype=dtype) for dtype in ("bf16", "fp16")}


def long_one() -> Trajectory:
    rng = np.random.default_rng(5)
    actions = [rng.integers(3, 60, 12).tolist() for _ in range(5)]
    made: Trajectory = make_trajectory(chain(*(([40 + at], ids) for at, ids in enumerate(actions))))
    return made


def test_half_precision_is_held_against_the_same_weights_in_fp32(
    halves: dict[str, LoadedModel],
) -> None:
    made = long_one()
    found: dict[str, float] = {}
    for dtype, loaded in halves.items():
        scored = score_trajectory(loaded, made)
        noise = measure_dtype_noise(loaded, [scored], RecheckDtype.AUTO)
        assert noise.gap is not None
        assert (noise.gap.n, noise.device, noise.n_forwards, noise.why_null) == (60, "cpu", 1, None)
        # by hand: the run's own rounded weights, widened by the library
        wide = score_trajectory(widened(loaded, torch.device("cpu")), made)
        gaps = [
            np.abs(row.logprobs.astype(float) - other.logprobs)
            for row, other in zip(scored.steps, wide.steps, strict=True)
            if row.logprobs is not None and other.logprobs is not None
        ]
        assert noise.gap.mean_abs is not None
        assert noise.gap.mean_abs == pytest.approx(float(np.concatenate(gaps).mean()))
        found[dtype] = noise.gap.mean_abs
    assert found["bf16"] > 3 * found["fp16"] > 0


@pytest.mark.parametrize("tied", [True, False])
def test_widening_keeps_every_weight_and_leaves_the_model_as_it_was(
    tmp_path: Path, *, tied: bool
) -> None:
    folder = tiny_llama(tmp_path / "m", tie_word_embeddings=tied)
    loaded = load_model(folder, device="cpu", dtype="bf16")
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    wide = widened(loaded, torch.device("cpu"))
    assert (wide.dtype, loaded.dtype) == ("fp32", "bf16")
    assert (wide.n_vocab, wide.max_positions) == (loaded.n_vocab, loaded.max_positions)
    assert (wide.model.lm_head.weight is wide.model.model.embed_tokens.weight) is tied
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype is before[name].dtype is torch.bfloat16
        assert torch.equal(wide.model.state_dict()[name], value.float())
    assert {value.dtype for value in wide.model.parameters()} == {torch.float32}
    narrow = {value.data_ptr() for value in loaded.model.parameters()}
    assert narrow.isdisjoint(value.data_ptr() for value in wide.model.parameters())


def reasons(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    yield "in fp32 itself", (replace(loaded, dtype="fp32"), RecheckDtype.FP32)
    yield "--recheck-dtype none", (loaded, RecheckDtype.NONE)
    monkeypatch.setattr(room, "free_bytes", lambda device: 1000)
    yield "the weights take 0 MB, which do not fit beside the run", (loaded, RecheckDtype.AUTO)
    monkeypatch.undo()

    def full(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(room, "widened", full)
    yield "does not fit in the GPU's memory", (loaded, RecheckDtype.AUTO)
    monkeypatch.setattr(
        room, "widened", lambda *args: (_ for _ in ()).throw(UsageProblem("U103", "why"))
    )
    yield "why", (loaded, RecheckDtype.AUTO)


def test_what_is_not_measured_says_why(
    halves: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = [score_trajectory(halves["bf16"], make_trajectory(CHAIN))]
    for why, (loaded, choice) in reasons(halves["bf16"], monkeypatch):
        found = measure_dtype_noise(loaded, scored, choice)
        assert found.gap is None
        assert why in (found.why_null or "")
        assert {**found.to_dict(), "why_null": None} == dict.fromkeys(
            ("device", "n", "mean_abs", "p99_abs", "max_abs", "k3", "why_null")
        ) | {"against": "fp32"}


def test_what_does_not_fit_beside_the_run_is_read_on_the_cpu_when_asked(
    halves: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 1000)
    scored = [score_trajectory(halves["bf16"], make_trajectory(CHAIN))]
    found = measure_dtype_noise(halves["bf16"], scored, RecheckDtype.FP32)
    assert (found.device, found.why_null) == ("cpu", None)


def test_a_run_says_both_floors(halves: dict[str, LoadedModel], tmp_path: Path) -> None:
    data = write_data(tmp_path / "d.parquet", [long_one()])
    loaded = halves["bf16"]
    facts = score(data, loaded).to_dict()
    assert facts["noise_floor"]["n"] == facts["dtype_noise"]["n"] == 60
    assert facts["dtype_noise"]["mean_abs"] > 1e-3
    assert facts["dtype_noise"]["why_null"] is None
    assert facts["n_recheck_forwards"] == 5 + 1
    without = score(data, loaded, recheck_dtype="none").to_dict()
    assert without["dtype_noise"]["why_null"] == "--recheck-dtype none"
    assert without["n_recheck_forwards"] == 5
    assert score(data, loaded, recheck=0).to_dict()["dtype_noise"]["why_null"] == "--recheck 0"
    with pytest.raises(UsageProblem, match="--recheck-dtype is one of auto, fp32, none") as caught:
        score(data, loaded, recheck_dtype="bf16")
    assert caught.value.code == "U103"


@pytest.fixture(scope="module")
def loud_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint whose activations leave fp16 where id 50 is read."""
    model = random_model("llama", **TINY)
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = 65_504.0  # the most that fp16 holds
        model.model.layers[0].mlp.down_proj.weight *= 100.0  # and some more
    return save_checkpoint(model, tmp_path_factory.mktemp("loud") / "m")


@pytest.mark.parametrize(("dtype", "n_bad"), [("fp16", 1), ("bf16", 0), ("fp32", 0)])
def test_activations_that_leave_fp16_are_told_to_take_another_dtype(
    loud_dir: Path, tmp_path: Path, dtype: str, n_bad: int
) -> None:
    made = [make_trajectory([([3, 50], [7, 8])], "loud"), make_trajectory([([3, 4], [5])], "quiet")]
    loaded = load_model(loud_dir, device="cpu", dtype=dtype)
    scored = score_trajectories(loaded, made).scored
    assert scored[0].steps[0].status is (Status.NONFINITE if n_bad else Status.OK)
    report = score(write_data(tmp_path / "d.parquet", made), loaded, recheck=0)
    assert report.counts.n_nonfinite == n_bad
    assert (report.to_dict()["hint"] is None) == (n_bad == 0)
    assert n_bad == 0 or "try --dtype bf16 or fp32" in (report.hint or "")
