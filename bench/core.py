"""Ratios of the core, each against a named floor in one run: `make bench`.

Every case runs in processes of its own; CPU is user + system seconds, memory is the peak resident
set. Absolute figures belong to the machine; the ratios are what is kept in RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
TINY = ROOT / "src" / "trajkit" / "demo" / "tiny"
ROLLOUTS = ROOT / "fixtures" / "rollouts" / "smollm2.jsonl"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process cost."""

    cpu_s: float
    peak_mib: float
    n_bytes: int = 0


def cost_of(*command: str | Path, out: Path | None = None, times: int = 3) -> Cost:
    """Return the median cost of a command over some runs."""
    runs = [_run([str(word) for word in command]) for _ in range(times)]
    n_bytes = 0 if out is None else out.stat().st_size
    return Cost(
        statistics.median(cpu for cpu, _ in runs), statistics.median(m for _, m in runs), n_bytes
    )


def _run(command: list[str]) -> tuple[float, float]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        sys.exit(f"exit {child.returncode}: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def trajkit(*words: str | Path) -> list[str | Path]:
    """Return the command line of trajkit in this Python."""
    return [sys.executable, "-m", "trajkit", *words]


def messages_log(n_steps: int) -> str:
    """Return a message list of that many steps, one JSON line."""
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are an agent. " * 20}]
    for i in range(n_steps):
        messages.append({"role": "user", "content": f"observation {i}: " + f"value {i * 7} " * 40})
        messages.append({"role": "assistant", "content": f"step {i}: " + f"look at {i} " * 20})
    return json.dumps({"messages": messages, "reward": 1.0}) + "\n"


def window_log(n_steps: int) -> str:
    """Return per-call records whose prompts hold the instructions and the last three steps."""
    rng = np.random.default_rng(0)
    system = rng.integers(3, 512, 200).tolist()
    turns: list[dict[str, Any]] = []
    recent: list[list[int]] = []
    for _ in range(n_steps):
        action = rng.integers(3, 512, 60).tolist()
        prompt = system + [i for part in recent[-3:] for i in part]
        logprobs = (-rng.exponential(size=60)).tolist()
        turns.append(
            {"prompt_token_ids": prompt, "response_token_ids": action, "logprobs": logprobs}
        )
        recent.append(action + rng.integers(3, 512, 100).tolist())
    return json.dumps({"trajectory_id": "w", "turns": turns}) + "\n"


def grown_log(n_steps: int) -> str:
    """Return a per-call record in which every prompt is the one before and what came of it."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 150_000, 2000).tolist()
    turns: list[dict[str, Any]] = []
    for _ in range(n_steps):
        action = rng.integers(0, 150_000, 300).tolist()
        logprobs = (-rng.exponential(size=300)).tolist()
        turns.append(
            {"prompt_token_ids": prompt, "response_token_ids": action, "logprobs": logprobs}
        )
        prompt = prompt + action + rng.integers(0, 150_000, 850).tolist()
    return json.dumps({"trajectory_id": "g", "turns": turns}) + "\n"


def growth(folder: Path, name: str, make: Any, *options: str | Path) -> list[str]:
    """Return a row: what twice the steps cost against once."""
    costs = []
    for n_steps in (1000, 2000):
        log, out = folder / f"{name}{n_steps}.jsonl", folder / f"{name}{n_steps}.parquet"
        log.write_text(make(n_steps))
        cost = cost_of(*trajkit("ingest", log, "-o", out, "--force", *options), out=out)
        costs.append(cost)
    once, twice = costs
    return [
        f"ingest {name}: 2,000 steps / 1,000",
        f"CPU {twice.cpu_s / once.cpu_s:.2f}x",
        f"memory {twice.peak_mib / once.peak_mib:.2f}x",
        f"disk {twice.n_bytes / once.n_bytes:.2f}x",
    ]


def grown_against_json(folder: Path) -> list[str]:
    """Return a row: ingest of one append-only trajectory against json.loads of its line."""
    log, out, one = folder / "grown.jsonl", folder / "grown.parquet", folder / "one.jsonl"
    log.write_text(grown_log(100))
    one.write_text(grown_log(1))
    load = "import json, sys; json.loads(open(sys.argv[1], 'rb').read())"
    floor = cost_of(sys.executable, "-c", load, log)
    ours = cost_of(*trajkit("ingest", log, "-o", out, "--force"))
    start = cost_of(*trajkit("ingest", one, "-o", out, "--force"))
    mib = log.stat().st_size / 2**20
    return [
        f"ingest of an append-only trajectory ({mib:.0f} MiB, 100 calls)",
        f"CPU {(ours.cpu_s - start.cpu_s) / floor.cpu_s:.2f}x json.loads of it",
        f"memory {(ours.peak_mib - start.peak_mib) / mib:.1f}x its bytes",
    ]


def drift_against_encode(folder: Path, model: Path) -> list[str]:
    """Return a row: drift-check's tokens per CPU second against the same encoder alone."""
    lines = ROLLOUTS.read_text().splitlines()
    log, steps = folder / "many.jsonl", folder / "many.parquet"
    with log.open("w") as lines_out:
        for copy in range(40):
            for line in lines:
                record = json.loads(line)
                record["trajectory_id"] += f"-{copy}"
                for turn in record["turns"]:  # other texts each time: equal ones are encoded once
                    turn["response_token_ids"] = turn["response_token_ids"][copy % 7 :]
                    turn["logprobs"] = turn["logprobs"][copy % 7 :]
                lines_out.write(json.dumps(record) + "\n")
    cost_of(*trajkit("ingest", log, "-o", steps, "--force"), times=1)
    raw = (
        "import sys, pyarrow.parquet as pq, tokenizers\n"
        "t = tokenizers.Tokenizer.from_file(sys.argv[2])\n"
        "a = pq.read_table(sys.argv[1], columns=['action_tokens']).column(0).to_pylist()\n"
        "texts = t.decode_batch(a, skip_special_tokens=False)\n"
        "for _ in range(int(sys.argv[3])): t.encode_batch_fast(texts, add_special_tokens=False)\n"
    )
    file = model / "tokenizer.json"
    floor = cost_of(sys.executable, "-c", raw, steps, file, "1")
    ours = cost_of(
        *trajkit("drift-check", steps, "-t", model, "--route", "ids", "--format", "json")
    )
    return [
        "drift-check --route ids / read + decode + encode",
        f"CPU {ours.cpu_s / floor.cpu_s:.2f}x",
    ]


def start_up(folder: Path, model: Path) -> list[list[str]]:
    """Return rows: CPU of what a user waits for, and of the tokenizer alone beside it."""
    steps = folder / "small.parquet"
    cost_of(*trajkit("ingest", ROLLOUTS, "-o", steps, "-t", model, "--force"), times=1)
    load = "import sys, tokenizers; tokenizers.Tokenizer.from_file(sys.argv[1])"
    alone = cost_of(sys.executable, "-c", load, model / "tokenizer.json", times=7).cpu_s
    rows = []
    for words in (["--version"], ["--help"], ["score", "--help"]):
        cpu = cost_of(*trajkit(*words), times=7).cpu_s
        rows.append([f"trajkit {' '.join(words)}", f"{cpu * 1000:.0f} ms CPU"])
    for verb in ("drift-check", "mask-view"):
        cpu = cost_of(*trajkit(verb, steps, "-t", model), times=7).cpu_s
        rows.append(
            [
                f"trajkit {verb} (all of it)",
                f"{(cpu - alone) * 1000:.0f} ms CPU beside the tokenizer",
            ]
        )
    return rows


def score_against_naive(folder: Path, model: Path) -> list[str]:
    """Return a row: score against full logits, one forward a step, in plain transformers."""
    steps = folder / "small.parquet"
    naive = (
        "import json, sys, torch\n"
        "from transformers import AutoModelForCausalLM\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32).eval()\n"
        "with torch.inference_mode():\n"
        "    for line in open(sys.argv[1]):\n"
        "        for t in json.loads(line)['turns']:\n"
        "            ids = torch.tensor([t['prompt_token_ids'] + t['response_token_ids']])\n"
        "            logp = m(ids).logits.float().log_softmax(-1)\n"
    )
    bare = cost_of(sys.executable, "-c", naive, os.devnull, model, times=1)
    floor = cost_of(sys.executable, "-c", naive, ROLLOUTS, model, times=1)
    ours = cost_of(
        *trajkit("score", steps, "--model", model, "--device", "cpu", "--recheck", "0"), times=1
    )
    return [
        "naive full logits a step / score (SmolLM2-135M, 12 x 3 steps)",
        f"CPU over loading {(floor.cpu_s - bare.cpu_s) / (ours.cpu_s - bare.cpu_s):.1f}x",
        (
            "memory over the model "
            f"{(floor.peak_mib - bare.peak_mib) / (ours.peak_mib - bare.peak_mib):.1f}x"
        ),
    ]


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / ".cache" / "smollm2")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            growth(folder, "messages", messages_log),
            growth(folder, "window", window_log),
            growth(folder, "rendered", messages_log, "--retokenize", "-t", TINY),
            grown_against_json(folder),
            drift_against_encode(folder, model),
            *start_up(folder, model),
            score_against_naive(folder, model),
        ]
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
