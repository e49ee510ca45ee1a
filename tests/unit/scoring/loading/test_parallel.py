"""Layers divided among two processes give the numbers of one, or are refused in step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.score_builders import (
    GPT2,
    TINY,
    assert_close,
    random_model,
    save_checkpoint,
    tiny_llama,
)
from tests.team_builders import Follower, job, three
from trajkit.errors import NumericError, Place, UsageProblem
from trajkit.scoring.forward import logprobs
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading import parallel
from trajkit.scoring.loading.loader import quiet_transformers
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.loading.parallel import STYLES, Style, check_divisible, first_layers, plan_of
from trajkit.scoring.noise import RecheckDtype, measure_dtype_noise
from trajkit.scoring.running.team import Team, together
from trajkit.scoring.steps import Batch, default_budget, score_trajectories

PLACE = Place(file="m")
CPU = torch.device("cpu")
MIXTURE: dict[str, Any] = {
    **TINY,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "mlp_only_layers": [1],
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {**TINY, "attention_bias": True, "mlp_bias": True},
    "qwen3": TINY,
    "qwen3_moe": MIXTURE,
    "gemma2": {**TINY, "sliding_window": 8},
    "phi3": TINY,
}
"""Biases behind a sum; norms of heads; experts beside plain layers; a head of its own; packed."""


def checkpoint(name: str, folder: Path, **config: Any) -> Path:
    model = random_model(name, **{**ARCHITECTURES.get(name, TINY), **config})
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(".bias"):
                parameter.normal_(std=0.3)
    return save_checkpoint(model, folder / name)


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """Two processes, of which this is the first."""
    with Follower() as follower:
        follower.joins()
        with together(job(), CPU) as made:
            yield made


def scored(model: LoadedModel, **given: Any) -> Batch:
    with quiet_transformers():
        return score_trajectories(model, three(), **given)


def assert_same_scores(found: Batch, wanted: Batch) -> None:
    for one, other in zip(found.scored, wanted.scored, strict=True):
        for step, as_step in zip(one.steps, other.steps, strict=True):
            assert step.status is as_step.status
            for name in ("logprobs", "entropy", "ref_logprobs", "exact_kl"):
                values = getattr(step, name)
                if values is None:
                    assert getattr(as_step, name) is None
                else:
                    assert_close(values, getattr(as_step, name), atol=1e-5)
            assert step.rank is not None
            assert step.rank.tolist() == (as_step.rank.tolist() if as_step.rank is not None else 0)


def bytes_of_layers(model: LoadedModel) -> int:
    return sum(
        one.numel() * one.element_size()
        for name, one in model.model.named_parameters()
        if ".layers." in name
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_processes_give_the_numbers_of_one(name: str, team: Team, tmp_path: Path) -> None:
    folder = checkpoint(name, tmp_path)
    whole = load_model(folder, device="cpu")
    divided = load_model(folder, device="cpu", team=team)
    assert_same_scores(scored(divided), scored(whole))
    assert bytes_of_layers(divided) < 0.56 * bytes_of_layers(whole)
    assert divided.why_unshared is None
    assert divided.head.kind is whole.head.kind
    assert divided.device_name == "2 x cpu"
    assert divided.weights_digest == whole.weights_digest


def test_a_reference_model_is_divided_too(team: Team, tmp_path: Path) -> None:
    folders = [tiny_llama(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    wholes = [load_model(folder, device="cpu") for folder in folders]
    parts = [load_model(folder, device="cpu", team=team) for folder in folders]
    found = scored(parts[0], reference=parts[1])
    assert found.scored[0].steps[0].exact_kl is not None
    assert_same_scores(found, scored(wholes[0], reference=wholes[1]))


def test_an_adapter_is_merged_before_layers_are_divided(
    team: Team, llama: LoadedModel, llama_dir: Path, tmp_path: Path
) -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    module = "base_model.model.model.layers.1.mlp.down_proj"
    factors = {"lora_A": torch.randn(4, 48), "lora_B": torch.randn(32, 4)}
    tensors = {f"{module}.{name}.weight": one for name, one in factors.items()}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    found = scored(load_model(llama_dir, device="cpu", adapter=tmp_path, team=team))
    wanted = scored(load_model(llama_dir, device="cpu", adapter=tmp_path))
    assert_same_scores(found, wanted)
    with pytest.raises(AssertionError):
        assert_same_scores(found, scored(llama))


def test_fewer_edges_than_processes(team: Team, llama: LoadedModel, llama_dir: Path) -> None:
    divided = load_model(llama_dir, device="cpu", team=team)
    ids, at = np.arange(5, 11, dtype=np.int32), np.array([3])
    for targets in (at, at[:0]):
        found, wanted = (logprobs.token_scores(one, ids, targets) for one in (divided, llama))
        assert_close(found.logprobs, wanted.logprobs, atol=1e-5)
        assert len(found.logprobs) == len(targets)


def test_the_budget_is_what_the_fullest_device_holds(
    team: Team, llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < team.free_memory() < 2**60
    monkeypatch.setattr("trajkit.scoring.running.team.free_bytes", lambda _: 123)
    assert team.free_memory() == 123
    divided = load_model(llama_dir, device="cpu", team=team)
    seen = replace(divided, device=torch.device("cuda"))
    few = default_budget(seen)
    monkeypatch.setattr("trajkit.scoring.running.team.free_bytes", lambda _: 2**60)
    assert few < default_budget(seen)


def test_no_process_widens_its_part_alone(team: Team, llama_dir: Path) -> None:
    divided = load_model(llama_dir, device="cpu", dtype="bf16", team=team)
    found = measure_dtype_noise(divided, [], RecheckDtype.FP32)
    assert found.why_null == "the model is divided among processes"


@pytest.mark.parametrize(
    ("name", "config", "code", "words"),
    [
        ("gpt2", GPT2, "U103", "no plan (tp_plan)"),
        ("llama", {**TINY, "num_key_value_heads": 1}, "U103", "1 (num_key_value_heads)"),
        ("llama", {**TINY, "intermediate_size": 47}, "U103", "47 (model.layers.0.mlp.gate_proj"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_step(
    name: str, config: dict[str, Any], code: str, words: str, team: Team, tmp_path: Path
) -> None:
    folder = save_checkpoint(random_model(name, **config), tmp_path / "m")
    with pytest.raises(UsageProblem) as caught:
        load_model(folder, device="cpu", team=team)
    assert caught.value.code == code
    assert words in caught.value.message
    assert not team.is_busy
    assert team.free_memory() > 0  # the other process still listens


def test_parts_that_do_not_make_the_whole_are_noticed(
    team: Team, llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = parallel._part

    def other(weight: Any, style: Any, _: Team, *rest: Any) -> Any:
        second: Any = SimpleNamespace(rank=1, size=2, is_first=False)
        return right(weight, style, second, *rest)

    monkeypatch.setattr(parallel, "_part", other)  # both processes keep the second half
    with pytest.raises(NumericError) as caught:
        load_model(llama_dir, device="cpu", team=team)
    assert caught.value.code == "N104"
    assert "layer 0 divided" in caught.value.message


def parts_of(weight: torch.Tensor, style: Style, size: int = 2) -> list[torch.Tensor]:
    teams: list[Any] = [SimpleNamespace(rank=at, size=size, is_first=at == 0) for at in range(size)]
    return [parallel._part(weight, style, one, "w", PLACE) for one in teams]


def test_how_weights_are_cut() -> None:
    weight = torch.arange(32.0).reshape(8, 4)
    assert torch.equal(torch.cat(parts_of(weight, STYLES["colwise"])), weight)
    assert torch.equal(torch.cat(parts_of(weight, STYLES["rowwise"]), dim=1), weight)
    first, second = parts_of(weight, STYLES["packed_colwise"])
    assert first[:, 0].tolist() == [0, 4, 16, 20]
    assert second[:, 0].tolist() == [8, 12, 24, 28]
    experts = torch.arange(64.0).reshape(2, 8, 4)
    first, second = parts_of(experts, STYLES["packed_rowwise"])
    assert first[0, 0].tolist() == [0, 2]
    assert torch.equal(torch.cat(parts_of(experts, STYLES["colwise"]), dim=1), experts)
    bias = torch.arange(8.0)
    assert torch.equal(torch.cat(parts_of(bias, STYLES["colwise"])), bias)
    assert torch.equal(sum(parts_of(bias, STYLES["rowwise"]), torch.zeros(8)), bias)
    with pytest.raises(UsageProblem) as caught:
        parts_of(weight, STYLES["colwise"], size=3)
    assert caught.value.hint == "take a number of processes that divides it: 2, 4, 8"


def test_a_plan_in_unknown_words_is_refused() -> None:
    model = random_model("llama", **TINY)
    plan = plan_of(model, PLACE)
    assert plan["model.layers.1.self_attn.q_proj"] == "colwise"
    assert not any("lm_head" in name or "embed" in name for name in plan)
    model.tp_plan = {"model.layers.*.mlp.up_proj": "sequence_parallel"}
    with pytest.raises(UsageProblem) as caught:
        plan_of(model, PLACE)
    assert "sequence_parallel" in caught.value.message


def test_heads_need_not_divide_where_attention_is_gathered() -> None:
    config = {**TINY, "num_key_value_heads": 1}
    model = random_model("phi3", **config)
    check_divisible(model, plan_of(model, PLACE), 2, PLACE)
    model = random_model("llama", **config)
    with pytest.raises(UsageProblem):
        check_divisible(model, plan_of(model, PLACE), 2, PLACE)


def test_one_layer_of_each_kind_is_looked_at() -> None:
    config = {**TINY, "num_hidden_layers": 4}
    model = random_model("llama", **config)
    assert len(first_layers(model, plan_of(model, PLACE), PLACE)) == 1
    assert not any(layer._forward_hooks for layer in model.model.layers)
    model = random_model("qwen3_moe", **{**MIXTURE, "num_hidden_layers": 4, "mlp_only_layers": [2]})
    found = first_layers(model, plan_of(model, PLACE), PLACE)
    assert len(found) == 3
    ids = torch.arange(5, 17)[None]
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert torch.equal(found[1], (states[2] - states[1]).detach())


def test_layers_that_cannot_be_run_are_refused() -> None:
    model = random_model("llama", **TINY)
    plan = plan_of(model, PLACE)
    model.model.layers[0].mlp.up_proj = nn.Linear(7, 48)
    with pytest.raises(UsageProblem) as caught:
        first_layers(model, plan, PLACE)
    assert "cannot be run" in caught.value.message
