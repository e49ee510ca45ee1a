"""Scoring on a GPU, in one go: `python bench/score_gpu.py --out DIR`.

Random models of usual shapes are made on the device, so nothing is downloaded. First what the
device can do and whether its kernels mean what trajkit thinks, then three models by several ways of
scoring, then noise. What no longer fits into the time is skipped, what fails is recorded, and both
are told; exit 1 when a part failed or there was no time for it, and a way that gives other numbers
than naive scoring has failed. `--device cpu --tiny` runs all of it that needs no GPU in a few
seconds, to try the script.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs by its path, too

import numpy as np
import torch
import transformers
from bench import score_checks as checks
from bench import score_work as work
from bench.score_checks import Figures, Wrong, settle
from bench.score_models import CASES, GROUP, MODELS, PACK, TINY, data_of, flops, make_model
from bench.score_work import Data, Found

from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import loaded_from_module

NAIVE, TREE = "naive", "tree"
PLAIN: dict[str, Callable[[Any, Data, int], Found]] = {
    NAIVE: work.full_logits,
    "padded": lambda model, data, _: work.padded_batches(model, data, 8),
}
OURS: dict[str, Callable[[LoadedModel, Data], Found]] = {
    "packed": work.packed_steps,
    "rows": work.rows,
    TREE: work.tree,
}
_LIKELY_SHARE = 0.2
"""Of the rate of matrix products: what a way is taken to reach where its time is guessed."""
_LONG_S = 4.0
"""A cell that takes longer is not repeated."""
_MOST_APART = {"fp32": 1e-4, "bf16": 0.2, "fp16": 0.03}
"""Nats by which two ways may differ in the mean: several times what rounding does here."""
_NO_TIME = "no time"
_HEAD_ROWS = {"cuda": 880, "cpu": 64}
"""Rows of logits that are judged at a time: as many as trajkit holds of this vocabulary."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """A run under way: where, until when, and what each part gave.

    Attributes:
        out: where JSON and Markdown are written, again after each part.
        ends: on the monotonic clock.
        rate: floating-point operations a second of a matrix product, a guess unless
            `is_rate_measured`.
        judged_s: seconds that judging one row of logits takes: all of it, and the log-prob alone.
    """

    device: torch.device
    is_tiny: bool
    out: Path
    ends: float
    rate: float
    is_rate_measured: bool = False
    judged_s: tuple[float, float] | None = None
    parts: list[dict[str, Any]] = field(default_factory=list)

    def part(self, name: str, run: Callable[[], Figures], *, guess_s: float = 5.0) -> Figures:
        """Return a part's figures, none where it failed or would not fit in what time is left."""
        start = time.monotonic()
        told: dict[str, Any] = {"part": name, "state": "done", "figures": {}}
        if start + guess_s > self.ends:
            left = max(0.0, self.ends - start)
            told |= {
                "state": _NO_TIME,
                "why": f"takes {guess_s:.0f} s or so, {left:.0f} s are left",
            }
        else:
            try:
                told["figures"] = run()
                settle(self.device)  # what failed on the device shows here, if not before
            except Exception as problem:  # noqa: BLE001 - a part that fails must not end the others
                why = " ".join(str(problem).split())
                told |= {"state": "failed", "why": f"{type(problem).__name__}: {why}"}
        self._add(told, start)
        if self.device.type == "cuda":
            with suppress(RuntimeError):  # of a device that is lost: each part that follows says so
                free_memory(self.device)
        figures: Figures = told["figures"]
        return figures

    def cuda_part(self, name: str, run: Callable[[], Figures]) -> None:
        """Do a part that there is no CPU kernel for."""
        if self.device.type == "cuda":
            self.part(name, run)
        else:
            told = {"part": name, "state": "skipped", "why": "only on CUDA", "figures": {}}
            self._add(told, time.monotonic())

    def _add(self, told: dict[str, Any], start: float) -> None:
        told["seconds"] = round(time.monotonic() - start, 2)
        self.parts.append(told)
        print(f"{told['seconds']:7.2f} s  {told['state']:8}{told['part']}", file=sys.stderr)
        on_cuda = self.device.type == "cuda"
        where = torch.cuda.get_device_name(self.device) if on_cuda else "a CPU"
        title = f"{where}, torch {torch.__version__}, transformers {transformers.__version__}"
        if self.is_tiny:
            title += ": TINY shapes in float32, whose speeds mean nothing"
        all_of_it = {"title": title, "is_tiny": self.is_tiny, "parts": self.parts}
        (self.out / "score_gpu.json").write_text(
            json.dumps(all_of_it, indent=1, allow_nan=False) + "\n"
        )
        (self.out / "score_gpu.md").write_text(report(title, self.parts))


def free_memory(device: torch.device) -> None:
    """Give back what the last part held: trajkit sizes its passes by what is free."""
    gc.collect()
    torch.cuda.empty_cache()
    settle(device)


def measure_device(bench: Bench) -> None:
    """Add the ceilings, and the checks of kernels against float64."""
    device, tiny = bench.device, bench.is_tiny
    bench.part("ceiling: copy", partial(checks.copy_rate, device, 2**20 if tiny else 2**32))
    own, wide = (torch.float32, 256) if tiny else (torch.bfloat16, 8192)
    name = f"ceiling: product of {checks.name_of(own)} matrices"
    product = bench.part(name, partial(checks.gemm_rate, device, own, wide))
    if product:
        bench.rate, bench.is_rate_measured = 1e12 * product["TFLOP/s"], True
    bench.cuda_part("check: varlen attention", partial(checks.varlen, device))
    bench.cuda_part("check: varlen attention to nothing", partial(checks.varlen_nothing, device))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = f"check: attention over a tree, {checks.name_of(dtype)}"
        bench.part(name, partial(checks.tree, device, dtype))
    n_ids = TINY["vocab_size"] if tiny else 151_936
    for size in (896, 2048, 3584):
        name = f"check: float32 product of a bf16 head, {size} wide"
        bench.cuda_part(name, partial(checks.wide_product, device, size, n_ids))
    bench.cuda_part("check: kernel that judges logits", partial(checks.judging_kernel, device))
    n_rows = _HEAD_ROWS[device.type]
    found = bench.part(
        "check: log-prob, entropy, rank", partial(checks.judging, device, n_rows, n_ids)
    )
    if found:
        bench.judged_s = found["ms"] / n_rows / 1e3, found["ms of log-prob alone"] / n_rows / 1e3


def measure_model(bench: Bench, name: str) -> None:
    """Add a model's cells, each case by each way, and what judging takes of its time."""
    kept: list[Any] = []

    def made() -> Figures:
        start = time.perf_counter()
        model = make_model(name, bench.device, is_tiny=bench.is_tiny)
        loaded = loaded_from_module(model, name=name)
        kept[:] = model, loaded
        n_parameters = sum(p.numel() for p in model.parameters())
        why = loaded.why_unshared or "none"
        spent = time.perf_counter() - start
        return {"parameters": n_parameters, "s": spent, "reason not to share": why}

    bench.part(f"{name}: made", made, guess_s=15.0)
    if kept:
        for case in CASES:
            measure_case(bench, kept[0], kept[1], case)


def measure_case(bench: Bench, model: Any, loaded: LoadedModel, case: str) -> None:
    """Add one case's cells."""
    data = data_of(CASES[case], loaded.n_vocab, is_tiny=bench.is_tiny)
    n_flops = flops(model, data)
    n_raw = sum(len(prompt) + len(action) for prompt, action in data.samples)
    found: dict[str, Found] = {}
    taken_s: dict[str, float] = {}
    most = _MOST_APART[loaded.dtype]

    def cell(way: str, run: Callable[[], Found]) -> Figures:
        found[way], taken_s[way], peak_mib = taken(bench, run)
        return {
            "ids read": found[way].n_read,
            "ids to read": data.n_asked,
            "s": taken_s[way],
            "tree tokens/s": data.n_asked / taken_s[way],
            "share of the floor": n_flops / bench.rate / taken_s[way]
            if bench.is_rate_measured
            else None,
            "MiB over weights": peak_mib,
            **(gap(found[way], found[NAIVE], most) if way != NAIVE and NAIVE in found else {}),
        }

    ways: dict[str, Callable[[], Found]] = {}
    for way, plain in PLAIN.items():
        ways[way] = partial(plain, model, data, CASES[case].n_padded)
    for way, own in OURS.items():
        ways[way] = partial(own, loaded, data)
    for way, run in ways.items():
        n_read = data.n_asked if way == TREE else n_raw
        likely_s = n_flops * n_read / data.n_asked / (_LIKELY_SHARE * bench.rate)
        name = f"{loaded.name} / {case} / {way}"
        bench.part(name, partial(cell, way, run), guess_s=4 * likely_s + 1.0)
    if case == PACK and TREE in taken_s and bench.judged_s is not None:
        shares = [data.n_rows * one / taken_s[TREE] for one in bench.judged_s]
        bench.part(
            f"{loaded.name}: judging's share of a pass, 20 % scored",
            lambda: {"log-prob, entropy, rank": shares[0], "log-prob alone": shares[1]},
        )
    if case == GROUP:
        bench.part(
            f"{loaded.name}: attention of one layer over a group",
            partial(checks.tree_rate, model, data),
        )


def taken(bench: Bench, run: Callable[[], Found]) -> tuple[Found, float, float | None]:
    """Return what a way found, its median time in seconds, and its peak memory in MiB.

    Memory is that of the first run on CUDA, over what is held without it; time that of those behind
    it.
    """
    found, first, peak = _run(bench.device, run)
    if bench.is_tiny or first > _LONG_S:
        return found, first, peak
    return found, statistics.median(_run(bench.device, run)[1] for _ in range(3)), peak


def _run(device: torch.device, run: Callable[[], Found]) -> tuple[Found, float, float | None]:
    on_cuda, held = device.type == "cuda", 0
    if on_cuda:
        free_memory(device)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
    start = time.perf_counter()
    found = run()
    settle(device)
    seconds = time.perf_counter() - start
    peak_mib = (torch.cuda.max_memory_allocated(device) - held) / 2**20 if on_cuda else None
    return found, seconds, peak_mib


def gap(found: Found, other: Found, most: float) -> Figures:
    """Return by how many nats two ways differ; `Wrong` where that is more than rounding does."""
    apart = np.abs(found.logprobs.astype(np.float64) - other.logprobs)
    mean = float(apart.mean())
    if not mean <= most:
        raise Wrong(f"log-probs are {mean:.2g} nats apart in the mean, more than {most:g}")
    return {"mean abs Δ": mean, "max abs Δ": float(apart.max())}


def noise(bench: Bench, name: str) -> Figures:
    """Return what half precision costs: each way against the same rounded weights in float32."""
    model = make_model(name, bench.device, is_tiny=bench.is_tiny).to(torch.bfloat16)
    data = data_of(CASES[GROUP], int(model.config.vocab_size), is_tiny=bench.is_tiny)
    exact = work.tree(loaded_from_module(copy.deepcopy(model).float()), data)
    figures: Figures = {}
    for dtype, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        other = copy.deepcopy(model).to(kind)
        most = _MOST_APART[dtype]
        figures[f"{dtype}, {NAIVE}"] = gap(work.full_logits(other, data, 2), exact, most)
        figures[f"{dtype}, {TREE}"] = gap(work.tree(loaded_from_module(other), data), exact, most)
    return figures


_CELL = (
    *("model", "case", "way", "ids read", "s", "tree tokens/s", "of the floor"),
    *("time: naive / this", "memory: naive / this", "MiB over weights", "mean abs Δ", "max abs Δ"),
)


def report(title: str, parts: Sequence[Mapping[str, Any]]) -> str:
    """Return all of it in Markdown."""
    done = [one for one in parts if one["state"] == "done"]
    cells = {tuple(one["part"].split(" / ")): one["figures"] for one in done if _is_cell(one)}
    lines = [f"# Scoring on {title}", ""]
    lines += [f"- {one['part']}: {_shown(one['figures'])}" for one in done if not _is_cell(one)]
    lines += ["", "| " + " | ".join(_CELL) + " |", "|---" * len(_CELL) + "|"]
    for (model, case, way), figures in cells.items():
        naive = cells.get((model, case, NAIVE), {})
        row = (model, case, way, *_row(figures, {} if way == NAIVE else naive))
        lines.append("| " + " | ".join(row) + " |")
    left = [f"- {one['state']}: {one['part']}: {one['why']}" for one in parts if one not in done]
    return "\n".join([*lines, "", *left]) + "\n"


def _is_cell(part: Mapping[str, Any]) -> bool:
    return bool(part["part"].count(" / ") == 2)


def _row(figures: Figures, naive: Figures) -> tuple[str, ...]:
    """Return the figures of a cell, and how many times less than naive scoring it takes."""
    peak, most = figures["MiB over weights"], naive.get("MiB over weights")
    floor = figures["share of the floor"]
    return (
        f"{figures['ids read']:,}",
        f"{figures['s']:.3g}",
        f"{figures['tree tokens/s']:,.0f}",
        "" if floor is None else f"{floor:.0%}",
        f"{naive['s'] / figures['s']:.1f}x" if naive else "",
        f"{most / peak:.1f}x" if most and peak else "",
        "" if peak is None else f"{peak:,.0f}",
        *(f"{figures[name]:.1e}" if name in figures else "" for name in _CELL[-2:]),
    )


def _shown(figures: Mapping[str, Any]) -> str:
    def one(value: Any) -> str:
        if isinstance(value, dict):
            return f"({_shown(value)})"
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {one(value)}" for name, value in figures.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts, write JSON and Markdown, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and data, in float32")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here: --device cpu --tiny tries the script")
    given.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(
        device=device,
        is_tiny=given.tiny,
        out=given.out,
        ends=time.monotonic() + 60 * given.minutes,
        rate=2e14 if device.type == "cuda" else 2e10,
    )
    measure_device(bench)
    for name in MODELS:
        measure_model(bench, name)
    first = next(iter(MODELS))
    bench.part(f"{first}: noise against fp32", partial(noise, bench, first), guess_s=20.0)
    print((given.out / "score_gpu.md").read_text(), end="")
    return int(any(one["state"] in {"failed", _NO_TIME} for one in bench.parts))


if __name__ == "__main__":
    sys.exit(main())
