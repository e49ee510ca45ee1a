"""Scoring in memory says what scoring files says, and leaves a trainer's module as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.builders import make_trajectory
from tests.score_builders import (
    TINY,
    assert_close,
    chain,
    plain_logprobs,
    random_model,
    tiny_llama,
    write_data,
)
from trajkit import score, score_batch
from trajkit.errors import TrajkitError, UsageProblem
from trajkit.scoring.loading.model import load_model, loaded_from_module
from trajkit.scoring.scored import Status

TRAJECTORIES = [
    make_trajectory(chain(([3, 4, 5], [6, 7]), ([8], [9, 10, 11])), "t"),
    make_trajectory(chain(([3, 4, 5], [12]), ([13, 14], [15])), "u"),
]


def numbers(scored: Any) -> Any:
    return np.concatenate([step.logprobs for one in scored for step in one.steps])


@pytest.fixture(scope="module")
def module():
    return random_model("llama", attention_dropout=0.5, **TINY)


def test_a_live_module_gives_what_plain_transformers_gives(module):
    wanted = []
    for trajectory in TRAJECTORIES:
        for step in trajectory.steps:
            assert step.prompt_ids is not None
            assert step.action_tokens is not None
            ids = [*step.prompt_ids.tolist(), *step.action_tokens.tolist()]
            wanted += plain_logprobs(module, ids)[len(step.prompt_ids) :].tolist()
    assert_close(numbers(score_batch(TRAJECTORIES, module)), wanted, 1e-5)


def test_autocast_around_the_call_changes_nothing(module, other):
    wanted = score_batch(TRAJECTORIES, module, reference=other)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = score_batch(TRAJECTORIES, module, reference=other)
        again = score_batch(TRAJECTORIES, loaded_from_module(module))
        assert torch.is_autocast_enabled("cpu")
    for name in ("logprobs", "entropy", "ref_logprobs", "exact_kl"):
        np.testing.assert_array_equal(columns(found, name), columns(wanted, name))
    np.testing.assert_array_equal(numbers(again), numbers(wanted))


def test_products_are_in_whole_float32_and_the_callers_settings_come_back(module):
    wanted = numbers(score_batch(TRAJECTORIES, module))
    seen = []
    watch = module.lm_head.register_forward_hook(
        lambda *_: seen.append(torch.get_float32_matmul_precision())
    )
    torch.set_float32_matmul_precision("medium")
    try:
        np.testing.assert_array_equal(numbers(score_batch(TRAJECTORIES, module)), wanted)
        assert set(seen) == {"highest"}
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
        watch.remove()


def test_a_loaded_checkpoint_gives_the_same(tmp_path):
    loaded = load_model(tiny_llama(tmp_path), device="cpu")
    found = score_batch(TRAJECTORIES, loaded, tokens_per_batch=8)
    assert [one.trajectory for one in found] == TRAJECTORIES
    assert {step.status for one in found for step in one.steps} == {Status.OK}
    assert_close(numbers(found), numbers(score_batch(TRAJECTORIES, loaded.model)), 1e-5)


def columns(scored: Any, name: str) -> Any:
    return np.concatenate([getattr(step, name) for one in scored for step in one.steps])


@pytest.fixture(scope="module")
def other():
    return random_model("llama", seed=5, **TINY)


def test_a_reference_gives_its_log_probs_and_the_exact_distance_to_it(module, other):
    found = score_batch(TRAJECTORIES, module, reference=other)
    assert_close(numbers(found), numbers(score_batch(TRAJECTORIES, module)), 1e-5)
    assert_close(columns(found, "ref_logprobs"), numbers(score_batch(TRAJECTORIES, other)), 1e-5)
    wanted = []
    for trajectory in TRAJECTORIES:
        for step in trajectory.steps:
            ids = torch.tensor([[*step.prompt_ids.tolist(), *step.action_tokens.tolist()]])
            rows = slice(len(step.prompt_ids) - 1, -1)
            with torch.inference_mode():
                log_p, log_q = (
                    one(input_ids=ids).logits[0, rows].double().log_softmax(-1)
                    for one in (module, other)
                )
            wanted += (log_p.exp() * (log_p - log_q)).sum(-1).tolist()
    assert min(wanted) > 0.1
    assert_close(columns(found, "exact_kl"), wanted, 1e-5)


def test_a_reference_is_left_as_it_was_and_may_be_the_model_itself(module, other):
    other.train()
    module.train()
    score_batch(TRAJECTORIES, module, reference=other)
    same = score_batch(TRAJECTORIES, module, reference=module)
    assert other.training
    assert module.training
    other.eval()
    module.eval()
    np.testing.assert_array_equal(columns(same, "ref_logprobs"), numbers(same))
    assert_close(columns(same, "exact_kl"), np.zeros_like(numbers(same)), 1e-6)


def test_a_reference_that_cannot_read_the_same_passes_has_its_own(module, tmp_path):
    short = load_model(tiny_llama(tmp_path / "m", max_position_embeddings=7), device="cpu")
    found = score_batch(TRAJECTORIES, module, reference=short)
    steps = [step for one in found for step in one.steps]
    assert all(step.exact_kl is None for step in steps)
    assert [step.ref_logprobs is None for step in steps] == [True, True, False, False]
    wanted = numbers(score_batch(TRAJECTORIES[1:], short))
    assert_close(columns(found[1:], "ref_logprobs"), wanted, 1e-5)
    assert {step.status for step in steps} == {Status.OK}


def test_a_training_module_is_left_as_it_was(module):
    module.train()
    module.model.layers[1].eval()  # a part that a trainer froze
    before = [part.training for part in module.modules()]
    attention, state = module.config._attn_implementation, torch.get_rng_state()
    grads = [parameter.requires_grad for parameter in module.parameters()]
    first, second = (numbers(score_batch(TRAJECTORIES, module)) for _ in range(2))
    np.testing.assert_array_equal(first, second)  # no dropout
    assert [part.training for part in module.modules()] == before
    assert module.config._attn_implementation == attention
    assert torch.equal(torch.get_rng_state(), state)
    assert [parameter.requires_grad for parameter in module.parameters()] == grads
    assert all(parameter.grad is None for parameter in module.parameters())
    module(input_ids=torch.tensor([[3, 4]]), labels=torch.tensor([[3, 4]])).loss.backward()
    module.zero_grad()
    module.eval()


def test_a_step_of_the_optimizer_is_seen(module):
    before = numbers(score_batch(TRAJECTORIES, module))
    with torch.no_grad():
        module.lm_head.weight.mul_(1.5)
        after = numbers(score_batch(TRAJECTORIES, module))
        module.lm_head.weight.div_(1.5)
    assert float(np.abs(after - before).max()) > 0.1


def test_the_module_comes_back_when_scoring_fails(module):
    module.train()
    outside = make_trajectory([([3], [999])])
    with pytest.raises(TrajkitError) as caught:
        score_batch([outside], module)
    assert caught.value.code == "I304"
    assert module.training
    module.eval()


class Sharded(torch.Tensor):
    """A tensor that is a part of another, as sharded training keeps them."""


def odd_modules() -> Iterator[tuple[Any, str]]:
    yield "./checkpoint", "no torch module"
    yield torch.nn.Linear(2, 2), "inside its wrapper"
    with torch.device("meta"):
        yield random_model("llama", **TINY), "one device"
    sharded = random_model("llama", **TINY)
    norm = sharded.model.norm
    norm._parameters["weight"] = torch.nn.Parameter(norm.weight.data.as_subclass(Sharded))
    yield sharded, "sharded"
    emptied = random_model("llama", **TINY)
    emptied.model.norm.weight.data = torch.empty(0)
    yield emptied, "sharded"


@pytest.mark.parametrize(
    ("model", "why"), [*odd_modules()], ids=["path", "wrapper", "meta", "shards", "stand-in"]
)
def test_what_is_no_whole_model_is_refused(model, why):
    with pytest.raises(UsageProblem, match=why) as caught:
        score_batch(TRAJECTORIES, model)
    assert caught.value.code == "U103"


def test_a_module_in_memory_names_no_checkpoint_and_makes_no_table(module, tmp_path):
    data = write_data(tmp_path / "steps.parquet", TRAJECTORIES)
    with pytest.raises(UsageProblem) as caught:
        score(data, loaded_from_module(module.eval()), out=tmp_path / "scores.parquet")
    assert (caught.value.code, [path.name for path in tmp_path.iterdir()]) == (
        "U103",
        ["steps.parquet"],
    )
