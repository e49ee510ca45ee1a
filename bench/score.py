"""Scoring by tree against one pass a sequence and against plain transformers: `make bench-score`.

A random Qwen3-shaped model is made on the spot, so nothing is downloaded. Each cell runs in a
process of its own on one thread: CPU is user + system seconds of the scoring alone, memory what its
peak resident set lies above that of a process that only loads the model. Tokens are exact; ratios
are what is kept in RESULTS.md. Nothing here needs or uses a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from trajkit.records import ActionSource, PromptSource, Step, Trajectory, ids_array
from trajkit.scoring.model import LoadedModel, load_model
from trajkit.scoring.steps import score_trajectories

SHAPE: dict[str, Any] = {
    "vocab_size": 16_000,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
WAYS = ("nothing", "naive", "rows", "tree")
Call = tuple[list[int], list[int]]


def some_ids(rng: np.random.Generator, n: int) -> list[int]:
    """Return random ids."""
    return [int(one) for one in rng.integers(0, SHAPE["vocab_size"], n)]


def append_only(rng: np.random.Generator) -> list[list[Call]]:
    """Return 20 steps that each add an observation of 60 ids and an action of 30."""
    context, calls = some_ids(rng, 200), []
    for _ in range(20):
        calls.append((context, action := some_ids(rng, 30)))
        context = [*context, *action, *some_ids(rng, 60)]
    return [calls]


def sliding_window(rng: np.random.Generator) -> list[list[Call]]:
    """Return 16 steps that see 600 ids of instructions and the last three turns."""
    system, turns, calls = some_ids(rng, 600), [some_ids(rng, 60)], []
    for _ in range(16):
        recent = [one for turn in turns[-3:] for one in turn]
        calls.append(([*system, *recent], action := some_ids(rng, 30)))
        turns.append([*action, *some_ids(rng, 60)])
    return [calls]


def grpo_group(rng: np.random.Generator) -> list[list[Call]]:
    """Return 8 trajectories of 4 steps on one prompt of 400 ids."""
    prompt, group = some_ids(rng, 400), []
    for _ in range(8):
        context, calls = prompt, []
        for _ in range(4):
            calls.append((context, action := some_ids(rng, 30)))
            context = [*context, *action, *some_ids(rng, 50)]
        group.append(calls)
    return group


def branching(rng: np.random.Generator) -> list[list[Call]]:
    """Return a search: 30 steps, each from a random earlier one, retried or gone on from."""
    calls = [(some_ids(rng, 300), some_ids(rng, 30))]
    while len(calls) < 30:
        prompt, action = calls[int(rng.integers(len(calls)))]
        grown = [*prompt, *action, *some_ids(rng, 40)] if rng.random() < 0.7 else prompt
        calls.append((grown, some_ids(rng, 30)))
    return [calls]


CASES: dict[str, Callable[[np.random.Generator], list[list[Call]]]] = {
    "append-only, 20 steps": append_only,
    "window of 3 turns, 600 ids in front, 16 steps": sliding_window,
    "GRPO group, 8 x 4 steps": grpo_group,
    "branching, 30 steps": branching,
}


def trajectory(calls: Sequence[Call], name: str) -> Trajectory:
    """Return a trajectory whose prompts grow from where they share the most."""
    steps: list[Step] = []
    for index, (prompt, action) in enumerate(calls):
        shared = [_shared(prompt, [*before, *done]) for before, done in calls[:index]]
        keep = max(shared, default=0)
        parent = steps[max(at for at, n in enumerate(shared) if n == keep)] if keep else None
        steps.append(
            Step(
                trajectory_id=name,
                step_index=index,
                is_terminal=index == len(calls) - 1,
                action_source=ActionSource.SAMPLED,
                prompt_source=PromptSource.RECORDED,
                source_format="bench",
                source_file="bench",
                source_record=0,
                group_id="group",
                parent=parent,
                prompt_keep=keep,
                prompt_delta=ids_array(prompt[keep:]),
                prompt_len=len(prompt),
                action_tokens=ids_array(action),
            )
        )
    return Trajectory(trajectory_id=name, steps=tuple(steps))


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    n = min(len(left), len(right))
    differ = np.flatnonzero(np.array(left[:n]) != np.array(right[:n]))
    return int(differ[0]) if len(differ) else n


def make_model(folder: Path) -> None:
    """Write a random model: weights of a usual size, so that log-probs differ between ids."""
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(transformers.CONFIG_MAPPING["qwen3"](**SHAPE))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.05)
    model.save_pretrained(folder)


def naive(loaded: LoadedModel, trajectories: Sequence[Trajectory]) -> tuple[list[float], int]:
    """Return log-probs and ids read: plain transformers, full logits, one forward a step."""
    found, n_read = [], 0
    with torch.inference_mode():
        for step in (step for one in trajectories for step in one.steps):
            prompt, action = step.prompt_ids, step.action_tokens
            if prompt is None or action is None:
                continue
            ids = torch.from_numpy(np.concatenate([prompt, action]).astype(np.int64))[None]
            table = loaded.model(ids).logits[0].float().log_softmax(-1)
            rows = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
            found += table[rows, ids[0, len(prompt) :]].tolist()
            n_read += ids.shape[1]
    return found, n_read


def ours(loaded: LoadedModel, trajectories: Sequence[Trajectory]) -> tuple[list[float], int]:
    """Return log-probs and ids read by trajkit."""
    batch = score_trajectories(loaded, trajectories)
    rows = [row for one in batch.scored for row in one.steps]
    found = [float(p) for row in rows if row.logprobs is not None for p in row.logprobs]
    return found, batch.n_forwarded_tokens


def child(folder: Path, case: str, way: str) -> None:
    """Print one cell as JSON: log-probs, ids read, CPU seconds, peak memory."""
    torch.set_num_threads(1)
    loaded = load_model(folder, device="cpu")
    calls = CASES[case](np.random.default_rng(0))
    trajectories = [trajectory(one, f"t{at}") for at, one in enumerate(calls)]
    warm = [trajectory([([1, 2], [3, 4]), ([1, 2], [5, 6])], "warm")]
    for run in (naive, ours):
        run(loaded, warm)
    before = os.times()
    if way == "naive":
        logprobs, n_read = naive(loaded, trajectories)
    elif way == "rows":
        logprobs, n_read = ours(replace(loaded, why_unshared="bench"), trajectories)
    elif way == "tree":
        logprobs, n_read = ours(loaded, trajectories)
    else:
        logprobs, n_read = [], 0
    after = os.times()
    cpu = after.user + after.system - before.user - before.system
    print(json.dumps({"logprobs": logprobs, "n_read": n_read, "cpu_s": cpu}))


def cell(folder: Path, case: str, way: str) -> dict[str, Any]:
    """Return what one process says, with its peak resident set in MiB."""
    command = [sys.executable, __file__, "--model", str(folder), "--case", case, "--way", way]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as process:
        text = process.stdout.read() if process.stdout is not None else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"exit {process.returncode}: {' '.join(command)}")
    found: dict[str, Any] = json.loads(text)
    return found | {"peak_mib": usage.ru_maxrss / 1024}


def row(folder: Path, case: str) -> list[str]:
    """Return a line of the table: tokens, times and memory of naive and rows over the tree's."""
    found = {way: cell(folder, case, way) for way in WAYS}
    tree, bare = found["tree"], found["nothing"]["peak_mib"]
    gaps = [
        float(np.abs(np.array(tree["logprobs"]) - np.array(found[way]["logprobs"])).max())
        for way in ("naive", "rows")
    ]
    tokens = " → ".join(f"{found[way]['n_read']:,}" for way in WAYS[1:])
    times = [f"{found[way]['cpu_s'] / tree['cpu_s']:.1f}x" for way in ("naive", "rows")]
    peaks = [
        f"{(found[way]['peak_mib'] - bare) / (tree['peak_mib'] - bare):.1f}x"
        for way in ("naive", "rows")
    ]
    return [case, tokens, *times, *peaks, f"{max(gaps):.0e}"]


def main() -> None:
    """Print all rows, or one cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--case")
    parser.add_argument("--way")
    given = parser.parse_args()
    if given.case:
        child(given.model, given.case, given.way)
        return
    head = ["data", "tokens read: naive → rows → tree", "time: naive", "rows", "memory: naive"]
    print("| " + " | ".join([*head, "rows", "max abs Δ"]) + " |")
    with tempfile.TemporaryDirectory() as name:
        make_model(Path(name))
        for case in CASES:
            print("| " + " | ".join(row(Path(name), case)) + " |", flush=True)


if __name__ == "__main__":
    main()
