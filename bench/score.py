"""Scoring by tree against other ways of it, on the CPU: `make bench-score`.

Random Qwen3-shaped models are made on the spot, so nothing is downloaded. `SHAPE=qwen3-0.6b` is the
larger of two: minutes where the CPU multiplies bf16, hours where it does not (then `bench/score.py
--shape qwen3-0.6b --dtype fp32`). Each cell runs in a process of its own on one thread: CPU is user
+ system seconds of the scoring alone, memory what its peak resident set lies above what a process
holds that only loads the model in plain transformers. Tokens are exact; ratios are what is kept in
RESULTS.md. Nothing here needs or uses a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs by its path, too

import numpy as np
import torch
import transformers
from bench import score_work as work
from bench.score_work import Calls, Data, Draw, Found, Turns

from trajkit.scoring.loading.loader import quiet_transformers
from trajkit.scoring.loading.model import DTYPES, load_model

CaseOf: TypeAlias = Callable[[Draw], Calls]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model, and the data it is given.

    Attributes:
        dtype: of the weights.
        cases: by name; `ways`: those that are run unless others are asked for.
    """

    config: Mapping[str, Any]
    dtype: str
    cases: Mapping[str, CaseOf]
    ways: tuple[str, ...]


SMALL = Shape(
    config={
        "vocab_size": 16_000,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    dtype="fp32",
    cases={
        "append-only, 20 steps": partial(
            work.append_only, turns=Turns(prompt=200, action=30, observation=60, steps=20)
        ),
        "window of 3 turns, 600 ids in front, 16 steps": partial(
            work.sliding_window, turns=Turns(prompt=600, action=30, observation=60, steps=16)
        ),
        "GRPO group, 8 × 4 steps": partial(
            work.group_of, turns=Turns(prompt=400, action=30, observation=50, steps=4), n_rollouts=8
        ),
        "branching, 30 steps": partial(
            work.branching, turns=Turns(prompt=300, action=30, observation=40, steps=30)
        ),
    },
    ways=("naive", "padded", "packed", "rows", "tree"),
)
QWEN3 = Shape(
    config={
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    },
    dtype="bf16",
    cases={
        "append-only, 8 steps": partial(
            work.append_only, turns=Turns(prompt=300, action=20, observation=80, steps=8)
        ),
        "window of 3 turns, 600 ids in front, 8 steps": partial(
            work.sliding_window, turns=Turns(prompt=600, action=20, observation=80, steps=8)
        ),
        "GRPO group, 4 × 4 steps": partial(
            work.group_of, turns=Turns(prompt=400, action=20, observation=80, steps=4), n_rollouts=4
        ),
    },
    ways=("naive", "packed", "rows", "tree"),
)
SHAPES = {"small": SMALL, "qwen3-0.6b": QWEN3}

PLAIN: dict[str, Callable[[Any, Data], Found]] = {
    "naive": partial(work.full_logits, n_at_once=2),
    "single": partial(work.full_logits, n_at_once=1),
    "padded": partial(work.padded_batches, n_at_once=8),
}
"""Plain transformers, step by step: padded pairs, one at a time, and eight with a careful head."""
OURS: dict[str, Callable[[Any, Data], Found]] = {
    "packed": work.packed_steps,
    "rows": work.rows,
    "tree": work.tree,
    "fp32": work.tree,  # what half precision is held against
}
NOTHING, EXACT = "nothing", "fp32"


def data_of(shape: Shape, case: str) -> Data:
    """Return a case's data, the same each time."""
    rng = np.random.default_rng(0)
    n_ids = int(shape.config["vocab_size"])
    return work.data_of(shape.cases[case](lambda n: rng.integers(0, n_ids, n, dtype=np.int32)))


def make_model(shape: Shape, folder: Path) -> None:
    """Write a random model."""
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    with quiet_transformers():
        model = auto.from_config(transformers.CONFIG_MAPPING["qwen3"](**shape.config))
        work.random_weights(model).to(DTYPES[shape.dtype]).save_pretrained(folder)


def child(folder: Path, shape: Shape, case: str, way: str) -> None:
    """Print one cell as JSON: log-probs, ids read, CPU seconds, MiB held and at most held."""
    torch.set_num_threads(1)
    dtype = "fp32" if way == EXACT else shape.dtype
    model: Any
    if way in OURS:
        model, run = load_model(folder, device="cpu", dtype=dtype), OURS[way]
    else:
        auto: Any = transformers.AutoModelForCausalLM
        model = auto.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True).eval()
        run = PLAIN["naive" if way == NOTHING else way]
    data = data_of(shape, case)
    run(model, work.data_of([[(data.samples[0][0][:2], data.samples[0][1][:2])]]))
    work.forget_peak()
    held, before = work.resident_mib("VmRSS"), os.times()
    found = (
        Found(logprobs=np.empty(0, np.float32), n_read=0) if way == NOTHING else run(model, data)
    )
    after = os.times()
    told = {
        "logprobs": found.logprobs.tolist(),
        "n_read": found.n_read,
        "cpu_s": after.user + after.system - before.user - before.system,
        "held_mib": held,
        "peak_mib": work.resident_mib("VmHWM"),
    }
    print(json.dumps(told))


def cell(folder: Path, shape: str, dtype: str, case: str, way: str) -> dict[str, Any]:
    """Return what one process says."""
    given = ["--model", str(folder), "--shape", shape, "--dtype", dtype, "--case", case]
    done = subprocess.run(
        [sys.executable, __file__, *given, "--way", way],
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        check=False,
    )
    if done.returncode:
        sys.exit(f"{case}, {way}: exit {done.returncode}\n{done.stderr.decode()}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"logprobs": np.array(found["logprobs"])}


def reference_of(dtype: str) -> str:
    """Return the way whose log-probs the others are held against."""
    return "naive" if dtype == "fp32" else EXACT


HEAD = (
    *("data", "way", "ids read", "CPU s", "/ tree", "MiB over the model", "/ tree"),
    *("mean abs Δ", "max abs Δ"),
)


def lines(folder: Path, name: str, dtype: str, case: str, ways: Sequence[str]) -> list[list[str]]:
    """Return a case's lines of the table: what each way takes, and how many times the tree's."""
    reference = reference_of(dtype)
    wanted = dict.fromkeys((*ways, "tree", reference))
    found = {way: cell(folder, name, dtype, case, way) for way in (*wanted, NOTHING)}
    bare, tree = found[NOTHING], found["tree"]
    data = data_of(SHAPES[name], case)
    table = [[case, "trie", f"{data.n_trie:,}", *[""] * (len(HEAD) - 3)]]
    for way in wanted:
        one = found[way]
        memory, ratio = _over(one, tree, bare)
        gap = np.abs(one["logprobs"] - found[reference]["logprobs"])
        is_itself = way == reference
        table.append(
            [
                case,
                way,
                f"{one['n_read']:,}",
                f"{one['cpu_s']:.1f}",
                f"{one['cpu_s'] / tree['cpu_s']:.1f}x",
                memory,
                ratio,
                *(("", "") if is_itself else (f"{gap.mean():.1e}", f"{gap.max():.1e}")),
            ]
        )
    return table


def _over(
    one: Mapping[str, Any], tree: Mapping[str, Any], bare: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the memory a way takes beside the model, and how many times the tree's it is."""
    if one["peak_mib"] is None:
        return "", ""
    mine, least = (found["peak_mib"] - bare["held_mib"] for found in (one, tree))
    return f"{mine:,.0f}", f"{mine / least:.1f}x"


def main() -> None:
    """Print the tables, or one cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--dtype", choices=DTYPES, help="default: that of the shape's weights")
    parser.add_argument("--ways", help=f"of {', '.join(PLAIN | OURS)}, with commas between")
    parser.add_argument("--case", default="", help="the beginning of its name; default: all")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        child(given.model, replace(SHAPES[given.shape], dtype=given.dtype), given.case, given.way)
        return
    shape = SHAPES[given.shape]
    dtype = given.dtype or shape.dtype
    ways = given.ways.split(",") if given.ways else shape.ways
    cases = [case for case in shape.cases if case.startswith(given.case)]
    if not cases or not set(ways) <= set(PLAIN | OURS):
        parser.error("no such case, or no such way")
    print(f"{given.shape}, {dtype}, Δ (nats) against {reference_of(dtype)}\n")
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    with tempfile.TemporaryDirectory() as folder:
        make_model(shape, Path(folder))
        for case in cases:
            for line in lines(Path(folder), given.shape, dtype, case, ways):
                print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
