"""Seconds, ids a second and memory: what a run took, beside its numbers and in none of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from tests.builders import make_trajectory
from tests.score_builders import chain, write_data
from trajkit.scoring import memory
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.memory import free_bytes, peak_bytes
from trajkit.scoring.meter import Meter
from trajkit.scoring.report import Effort
from trajkit.scoring.run import score

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MADE = [
    make_trajectory(chain(([3, at, 5], [6, 7]), ([8], [9, 10, 11])), str(at)) for at in range(3)
]


def test_time_counts_inside_and_ids_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    meter = Meter(CPU)
    found = meter.effort()
    assert found.tokens_per_second is None
    for seconds, reads in ((2.0, (3, 10)), (3.0, (15,))):
        clock[0] += 50.0  # what is outside takes nothing
        with meter.running():
            clock[0] += seconds
            for n in reads:
                meter.read(n)
            found = meter.effort()
    assert (found.seconds, found.n_tokens, found.tokens_per_second) == (5.0, 25, 5.0)
    assert meter.effort() == found


def test_a_window_that_fails_still_took_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    meter = Meter(CPU)

    def fail() -> None:
        meter.read(4)
        clock[0] = 2.0
        raise KeyError

    with pytest.raises(KeyError), meter.running():
        fail()
    assert (meter.effort().seconds, meter.effort().n_tokens) == (2.0, 4)


def test_a_run_tells_its_effort_as_it_goes_and_at_the_end(
    llama: LoadedModel, tmp_path: Path
) -> None:
    data = write_data(tmp_path / "d.parquet", MADE)
    told: list[tuple[int, int, Effort]] = []
    report = score(
        data, llama, ref_model=llama, window_tokens=1, progress=lambda *all_: told.append(all_)
    )
    assert [done for done, _, _ in told] == [2, 4, 6]
    n_read = report.counts.n_forwarded_tokens + report.counts.n_ref_forwarded_tokens
    assert [effort.n_tokens for _, _, effort in told] == [n_read // 3, 2 * n_read // 3, n_read]
    seconds = [effort.seconds for _, _, effort in told]
    assert 0.0 < seconds[0] < seconds[1] < seconds[2] <= report.effort.seconds
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))["effort"]
    assert found["tokens_per_second"] == pytest.approx(n_read / found["seconds"])
    assert found["peak_memory_of"] == "process"
    assert found["peak_memory_bytes"] > 10_000_000


def test_what_was_kept_took_nothing(llama: LoadedModel, tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "d.parquet", MADE), tmp_path / "s.parquet"

    def stop(n_done: int, n_all: int, effort: Effort) -> None:
        if n_done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(data, llama, out=out, window_tokens=1, progress=stop)
    report = score(data, llama, out=out, window_tokens=1)
    assert report.n_kept_windows == 1
    assert report.counts.n_forwarded_tokens == 3 * report.effort.n_tokens // 2


def test_memory_is_of_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [3]
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: used[0])
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda device: used.__setitem__(0, 3))
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (5, 9))
    assert (peak_bytes(CUDA), free_bytes(CUDA)) == (3, 5)
    meter = Meter(CUDA)
    assert meter.effort().peak_memory_bytes is None
    for most in (9, 7):
        used[0] = 100  # a second copy of the weights between two windows is no part of scoring
        with meter.running():
            used[0] = most
            assert meter.effort().peak_memory_bytes == 9
    used[0] = 100
    assert (meter.effort().peak_memory_bytes, meter.effort().peak_memory_of) == (9, "gpu")


def test_the_least_of_machine_and_control_group_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_MEMINFO", "_STATUS"):
        monkeypatch.setattr(memory, name, tmp_path / name)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert free_bytes(CPU) is None
    assert (peak_bytes(CPU) or 0) > 10_000_000  # the system's own count where there is no file
    (tmp_path / "_MEMINFO").write_text("MemTotal:  90 kB\nMemAvailable:   60 kB\n")
    assert free_bytes(CPU) == 60 * 1024
    for most, wanted in (("max", 60 * 1024), ("5000", 4000), ("999999999", 60 * 1024)):
        (tmp_path / "memory.max").write_text(most)
        (tmp_path / "memory.current").write_text("1000")
        assert free_bytes(CPU) == wanted
    (tmp_path / "_STATUS").write_text("VmPeak:\t  9 kB\nVmHWM:\t  3 kB\n")
    assert peak_bytes(CPU) == 3 * 1024
    (tmp_path / "_STATUS").write_text("VmHWM:")
    assert (peak_bytes(CPU) or 0) > 10_000_000
