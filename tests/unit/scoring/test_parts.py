"""An interrupted run goes on, several processes share one: the table is the same to the byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders import make_trajectory
from tests.score_builders import chain, tiny_llama, write_data
from trajkit.errors import FileError, UsageProblem
from trajkit.scoring import job as job_room
from trajkit.scoring.job import ALONE, Company, Job, job_of
from trajkit.scoring.model import load_model
from trajkit.scoring.parts import Parts
from trajkit.scoring.run import score
from trajkit.scoring.under_way import Run

WINDOW = 12
"""Ids of a window: each trajectory below is one."""


def trajectory(number: int) -> Any:
    first = [3 + number, 4, 5]
    return make_trajectory(
        chain((first, [6, 7, 8]), ([9, 10], [11, 12, 13, 14])),
        f"t{number}",
        group_id=[f"g{number // 2}"] * 2,
        reward=[None, float(number % 3)],
        rollout_logprobs=[[-4.0, None, -3.0], [-4.0] * 4],
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return data of five windows, a checkpoint, and what one uninterrupted run makes of them."""
    folder = tmp_path_factory.mktemp("made")
    data = write_data(folder / "steps.parquet", [trajectory(n) for n in range(5)])
    model = tiny_llama(folder / "model")
    report = score(data, model, device="cpu", window_tokens=WINDOW, out=folder / "whole.parquet")
    assert not list(folder.glob("*.parts"))
    return data, model, (folder / "whole.parquet").read_bytes(), report.to_dict()


def same(report: Any, wanted: dict[str, Any]) -> bool:
    return bool({**report.to_dict(), "out": None} == {**wanted, "out": None})


def interrupted(made: Any, out: Path, monkeypatch: Any, after: int, **options: Any) -> None:
    """Run until so many windows are finished, and then fail."""
    done: list[Any] = []
    scored = Run._scored

    def failing(self: Any, *args: Any) -> Any:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(args)
        return scored(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_scored", failing)
        with pytest.raises(KeyboardInterrupt):
            score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=out, **options)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_interrupted_run_goes_on_and_makes_the_same_file(made, tmp_path, monkeypatch, after):
    out = tmp_path / "scores.parquet"
    interrupted(made, out, monkeypatch, after)
    assert not out.exists()
    report = score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=out)
    assert report.n_kept_windows == after
    assert out.read_bytes() == made[2]
    assert same(report, made[3])
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


@pytest.mark.parametrize(
    "options", [{"limit": 4}, {"tokens_per_batch": 9}, {"train": "all"}, {"dtype": "bf16"}]
)
def test_parts_of_another_run_are_not_taken(made, tmp_path, monkeypatch, options):
    out = tmp_path / "scores.parquet"
    interrupted(made, out, monkeypatch, 2, **options)
    report = score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=out)
    assert report.n_kept_windows == 0
    assert out.read_bytes() == made[2]
    assert not list(tmp_path.glob("*.parts"))


def test_a_damaged_part_is_scored_again(made, tmp_path, monkeypatch):
    out = tmp_path / "scores.parquet"
    interrupted(made, out, monkeypatch, 3)
    first, second, third = sorted(tmp_path.glob("scores.parquet.parts/*/*.parquet"))
    first.write_bytes(first.read_bytes()[:-9])
    second.write_bytes(third.read_bytes())  # whole, but of other steps
    report = score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=out)
    assert report.n_kept_windows == 1
    assert out.read_bytes() == made[2]


def command(made: Any, out: Path, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "trajkit", "score", str(made[0]), "--model", str(made[1])),
        *("--device", "cpu", "--window", str(WINDOW), "-o", str(out), "--format", "json", *words),
    ]


def test_a_killed_run_goes_on(made, tmp_path):
    out = tmp_path / "scores.parquet"
    slow = (
        "import sys, time, trajkit.scoring.parts as p\n"
        "save = p.Parts.save\n"
        "p.Parts.save = lambda *a: (save(*a), time.sleep(60))\n"
        "from trajkit.__main__ import main; main()"
    )
    words = [sys.executable, "-c", slow, *command(made, out)[3:]]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        end = time.monotonic() + 60
        while not list(tmp_path.glob("scores.parquet.parts/*/00000.parquet")):
            assert time.monotonic() < end
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
    assert not out.exists()
    done = subprocess.run(command(made, out), capture_output=True, text=True, check=False)
    assert "went on: 1 windows were finished before" in done.stderr
    assert out.read_bytes() == made[2]
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [out.name]


@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_make_the_same_table_and_report(made, tmp_path, size):
    out = tmp_path / "scores.parquet"
    runs = [
        subprocess.Popen(
            command(made, out),
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    told = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0] * size, told
    assert out.read_bytes() == made[2]
    assert {**json.loads(told[0][0]), "out": None} == {**made[3], "out": None}
    assert [text for text, _ in told[1:]] == [""] * (size - 1)
    assert not list(tmp_path.glob("*.parts"))


def test_a_late_process_finds_its_share_kept(made, tmp_path):
    out = tmp_path / "scores.parquet"
    environment = os.environ | {"WORLD_SIZE": "2"}
    subprocess.run(command(made, out), env=environment | {"RANK": "1"}, check=True)  # all its share
    for sign in tmp_path.glob("scores.parquet.parts/*/*.done"):
        sign.unlink()  # as if it was killed right then
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(made, out), env=environment | {"RANK": "0"}, **quiet) as first:
        subprocess.run(command(made, out), env=environment | {"RANK": "1"}, check=True)
        assert first.wait(60) == 0
    assert out.read_bytes() == made[2]
    assert not list(tmp_path.glob("*.parts"))


def test_a_process_that_failed_fails_the_run(tmp_path, monkeypatch):
    company = Company(tmp_path, Job(rank=0, size=2, name="n"))
    with pytest.raises(RuntimeError), Company(tmp_path, Job(rank=1, size=2, name="n")).present():
        raise RuntimeError("the disk of rank 1 is full\nand more")
    with pytest.raises(FileError, match="the disk of rank 1 is full") as caught:
        company.wait_for(tmp_path / "00001.parquet", 1)
    assert caught.value.code == "F104"
    monkeypatch.setattr(job_room, "SILENCE_S", 0.2)
    with pytest.raises(FileError, match="no sign"):  # a second start of the same name
        Company(tmp_path, Job(rank=0, size=2, name="n")).wait_for(tmp_path / "00001.parquet", 1)
    assert not list(tmp_path.glob("*.alive"))
    again = Company(tmp_path, Job(rank=0, size=2, name="another start"))
    (tmp_path / "00001.parquet").touch()
    again.wait_for(tmp_path / "00001.parquet", 1)  # what an earlier start left says nothing


def test_a_silent_process_fails_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(job_room, "SILENCE_S", 0.2)
    with pytest.raises(FileError, match="no sign") as caught:
        Company(tmp_path, Job(rank=0, size=2)).wait_for(tmp_path / "never", 1)
    assert caught.value.code == "F104"


def test_a_process_that_shows_itself_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(job_room, "SILENCE_S", 0.5)
    monkeypatch.setattr(job_room, "_SIGN_EVERY_S", 0.05)
    company = Company(tmp_path, Job(rank=0, size=2))
    with Company(tmp_path, Job(rank=1, size=2)).present():
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            assert time.monotonic() - company._last_sign(1) < 0.5 or company._last_sign(1) == 0.0
            time.sleep(0.05)
        (tmp_path / "part").touch()
        company.wait_for(tmp_path / "part", 1)


def test_processes_without_an_output_have_nowhere_to_meet(made):
    with pytest.raises(UsageProblem, match="beside the output") as caught:
        score(made[0], load_model(made[1], device="cpu"), job=Job(rank=0, size=2))
    assert caught.value.code == "U103"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ALONE),
        ({"RANK": "1"}, ALONE),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "29500"},
            Job(rank=1, size=4, local_rank=1, name="29500"),
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7/a"},
            Job(rank=5, size=8, local_rank=1, name="7_a"),
        ),
    ],
)
def test_a_launcher_says_which_process_this_is(environment, wanted):
    assert job_of(environment) == wanted


@pytest.mark.parametrize("said", [("4", "4"), ("-1", "4"), ("x", "4"), ("0", "")])
def test_a_rank_that_is_none_is_refused(said):
    with pytest.raises(UsageProblem) as caught:
        job_of(dict(zip(("RANK", "WORLD_SIZE"), said, strict=True)))
    assert caught.value.code == "U103"


def test_windows_are_dealt_out_in_turn():
    jobs = [Job(rank=rank, size=3) for rank in range(3)]
    assert [[job.takes(n) for job in jobs].index(True) for n in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_part_is_whole_or_not_there(tmp_path):
    parts = Parts(tmp_path / "s.parquet", {"a": 1})
    assert parts.load(0, []) is None
    parts.leave(is_done=False)
    assert not list(tmp_path.iterdir())
