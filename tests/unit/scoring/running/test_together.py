"""`score` in two processes: one table, and one end for both whatever happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.score_builders import assert_close, write_data
from tests.team_builders import Follower, job, three
from trajkit.errors import ExitCode, FileError, InputError, UsageProblem
from trajkit.scoring.forward import logprobs
from trajkit.scoring.run import score
from trajkit.scoring.running.job import ALONE, Job
from trajkit.scoring.running.team import _own_gpu
from trajkit.scoring.running.together import score_together


@pytest.fixture(scope="module")
def follower() -> Iterator[Follower]:
    with Follower() as made:
        yield made


def test_a_run_that_failed_goes_on_and_gives_one_table(
    follower: Follower, llama_dir: Path, tmp_path: Path
) -> None:
    data = write_data(tmp_path / "data.parquet", three())
    out = tmp_path / "scores.parquet"
    options: dict[str, Any] = {"device": "cpu", "window_tokens": 1}

    def stop(n_done: int, *_: Any) -> None:
        if n_done > 2:
            raise InputError("I304", "enough")

    follower.joins()
    with pytest.raises(InputError, match="enough"):
        score_together(data, llama_dir, job=job(), out=out, progress=stop, **options)
    assert follower.ended() == [ExitCode.INPUT, "", ""]
    follower.joins()
    report = score_together(data, llama_dir, job=job(), out=out, **options)
    assert follower.ended() == [ExitCode.CLEAN, "", ""]
    assert report.n_kept_windows == 1
    alone = score(data, llama_dir, out=tmp_path / "alone.parquet", **options)
    found, wanted = (pq.read_table(file).to_pylist() for file in (out, tmp_path / "alone.parquet"))
    for row, other in zip(found, wanted, strict=True):
        assert_close(row["logprobs"], other["logprobs"], atol=1e-5)
        assert (row["trajectory_id"], row["rank"]) == (other["trajectory_id"], other["rank"])
    assert report.counts == alone.counts
    assert report.model == replace(alone.model, device="2 x cpu")


def test_a_process_out_of_memory_ends_the_others(
    follower: Follower, llama_dir: Path, tmp_path: Path
) -> None:
    data = write_data(tmp_path / "data.parquet", three())
    follower.joins(is_full=True)
    with pytest.raises(FileError) as caught:
        score_together(data, llama_dir, job=job(), device="cpu")
    assert caught.value.code == "F104"
    code, _, err = follower.ended()
    assert code == ExitCode.USAGE
    assert "U106" in err
    assert "--tokens-per-batch" in err


def test_the_first_process_out_of_memory_ends_the_others(
    follower: Follower, llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_data(tmp_path / "data.parquet", three())

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(logprobs, "logits_of", full)
    follower.joins()
    with pytest.raises(UsageProblem) as caught:
        score_together(data, llama_dir, job=job(), device="cpu")
    assert caught.value.code == "U106"
    assert "--tokens-per-batch" in (caught.value.hint or "")
    code, _, err = follower.ended()
    assert code == ExitCode.IO
    assert "F104" in err


def test_alone_there_is_nothing_to_divide_among(llama_dir: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data.parquet", three())
    with pytest.raises(UsageProblem) as caught:
        score_together(data, llama_dir, job=ALONE, device="cpu")
    assert caught.value.code == "U103"
    assert "torchrun" in (caught.value.hint or "")


def test_a_plan_needs_no_processes() -> None:
    command = [sys.executable, "-m", "trajkit", "score", "data", "--plan", "--tensor-parallel"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert "--tensor-parallel cannot be answered" in done.stderr


def test_each_process_wants_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert _own_gpu(Job(rank=5, size=8, local_rank=1, name="x")) == torch.device("cuda", 1)
    assert taken == [1]
    with pytest.raises(UsageProblem) as caught:
        _own_gpu(Job(rank=2, size=3, local_rank=2, name="x"))
    assert caught.value.code == "U106"
