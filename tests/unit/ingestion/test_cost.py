"""Cost grows with the input and with nothing else, however many steps a trajectory has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders import tiny_tokenizer
from trajkit.ingestion.run import ingest
from trajkit.store.read import read_trajectories


def make(path: Path, record: object) -> Path:
    path.write_text(json.dumps(record) + "\n")
    return path


def messages_log(n_steps: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Answer."}]
    for number in range(n_steps):
        messages += [
            {"role": "user", "content": f"What is {number} times {number * 7919 % 1000}?"},
            {"role": "assistant", "content": f"It is {number * (number * 7919 % 1000)}."},
        ]
    return {"messages": messages}


def window_log(n_steps: int) -> dict[str, Any]:
    head = list(range(3, 40))
    recent = [[(7 * k) % 500, (11 * k) % 500, (13 * k) % 500] for k in range(n_steps + 4)]
    return {
        "turns": [
            {
                "prompt_token_ids": head + [i for part in recent[k : k + 4] for i in part],
                "response_token_ids": recent[k + 4],
                "logprobs": [-0.5, -0.25, None],
            }
            for k in range(n_steps)
        ]
    }


def branching_log(n_steps: int) -> dict[str, Any]:
    """Return calls that all go on from one of the first few, at ever other places."""
    first = list(range(3, 103))
    return {
        "turns": [
            {"prompt_token_ids": first[: 20 + k * 37 % 80], "response_token_ids": [200 + k % 300]}
            for k in range(n_steps)
        ]
    }


def n_calls_of(log: Path) -> int:
    """Return how many functions are called while a log is ingested: no clock, no noise."""
    n_calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    tokenizer = tiny_tokenizer()
    out = log.with_suffix(".parquet")
    sys.setprofile(count)
    try:
        ingest([str(log)], out, tokenizer=tokenizer, overwrite=True)
    finally:
        sys.setprofile(None)
    return n_calls


@pytest.mark.parametrize("make_log", [messages_log, window_log, branching_log])
def test_twice_the_steps_cost_twice_as_much(tmp_path, make_log):
    calls, sizes = [], []
    for n_steps in (400, 800):
        log = make(tmp_path / f"{n_steps}.jsonl", make_log(n_steps))
        n_calls_of(log)  # once for what is loaded on first use
        calls.append(n_calls_of(log))
        sizes.append(log.with_suffix(".parquet").stat().st_size)
    assert calls[1] < 2.1 * calls[0]
    assert sizes[1] < 2.2 * sizes[0]


def test_rebuilding_the_prompts_of_a_long_window_visits_each_step_once_or_twice(tmp_path):
    log = make(tmp_path / "a.jsonl", window_log(2000))
    ingest([str(log)], tmp_path / "a.parquet")
    (found,) = read_trajectories(tmp_path / "a.parquet")
    hops = 0
    for step in found.steps:
        node = step.origin
        while node is not None:
            node, hops = node.origin, hops + 1
    assert hops < 2 * 2000
