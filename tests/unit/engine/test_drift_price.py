"""Drift priced by a checkpoint: the same numbers as plain transformers on each spelling alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import TINY
from trajkit.align import common_prefix
from trajkit.demo.write import write_demo
from trajkit.drift.check import drift_check
from trajkit.drift.findings import Route
from trajkit.engine.drift_price import price_drift_with_model
from trajkit.ingestion.run import ingest
from trajkit.store.read import read_trajectories
from trajkit.tokenizer import load_tokenizer

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("priced")
    write_demo(folder / "demo")
    ingest([str(folder / "demo" / "logs")], folder / "steps.parquet", tokenizer=TINY)
    return folder / "steps.parquet"


def alone(model, prompt, action):
    """Return [A] log-probs of an action by one forward of prompt + action."""
    import torch

    ids = torch.tensor([[*prompt.tolist(), *action.tolist()]])
    with torch.inference_mode():
        logp = model(ids).logits[0].double().log_softmax(-1)
    rows = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
    return logp[rows, ids[0, len(prompt) :]].numpy()


def test_the_price_is_that_of_plain_forwards_of_both_spellings(steps):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    price = price_drift_with_model(steps, TINY, TINY, device="cpu")
    whole = []
    checkable = [s for t in read_trajectories(steps) for s in t.steps if s.is_checkable]
    for step in checkable:
        action = step.action_tokens
        assert action is not None
        [other] = tokenizer.encode_batch(tokenizer.decode_batch([action]))
        if other.tolist() != action.tolist():
            n_same = common_prefix(action, other)
            mine, theirs = (alone(model, step.prompt_ids, ids) for ids in (action, other))
            whole.append(theirs[n_same:].sum() - mine[n_same:].sum())
    assert len(whole) == 2
    np.testing.assert_allclose(price.step_differences, whole, atol=1e-4)
    report = drift_check(steps, TINY, routes=[Route.IDS])
    assert len(price.region_differences) == len(report.findings)
    assert price.n_unknown_steps == price.n_unknown_regions == price.n_unknown_tokens == 0
    assert price.n_later_tokens > 0


def test_data_without_drift_costs_nothing(steps):
    without_ids = next(t for t in read_trajectories(steps) if not t.n_action_tokens)
    clean = without_ids.trajectory_id
    price = price_drift_with_model(steps, TINY, TINY, device="cpu", only=[clean])
    assert price.step_differences == ()
    assert price.share_outside is None
