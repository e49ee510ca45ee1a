"""An interrupted run goes on, several processes share one: the table is the same to the byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.builders import make_trajectory
from tests.score_builders import chain, tiny_llama, write_data
from trajkit.errors import TrajkitError, UsageProblem
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.run import score
from trajkit.scoring.running.job import Job
from trajkit.scoring.running.parts import Parts
from trajkit.scoring.running.walk import Chosen
from trajkit.scoring.under_way import Run
from trajkit.store.read import open_dataset

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


def comparable(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a report without what differs between two runs of one thing."""
    return {name: value for name, value in facts.items() if name not in ("out", "effort")}


def same(report: Any, wanted: dict[str, Any]) -> bool:
    return comparable(report.to_dict()) == comparable(wanted)


def interrupted(made: Any, out: Path, monkeypatch: Any, after: int, **options: Any) -> None:
    """Run until so many windows are finished, and then fail."""
    done: list[Any] = []
    scored = Run.scored

    def failing(self: Any, *args: Any) -> Any:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(args)
        return scored(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "scored", failing)
        with pytest.raises(KeyboardInterrupt):
            score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=out, **options)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_interrupted_run_goes_on_and_makes_the_same_file(made, tmp_path, monkeypatch, after):
    out = tmp_path / "scores.parquet"
    interrupted(made, out, monkeypatch, after)
    assert len(list(tmp_path.iterdir())) == (after > 0)  # its parts, where there are any
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


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
"""As many threads as here: the numbers depend on it in their last bits."""


def command(made: Any, out: Path, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "trajkit", "score", str(made[0]), "--model", str(made[1])),
        *("--device", "cpu", "--window", str(WINDOW), "-o", str(out), "--format", "json", *words),
    ]


def test_a_killed_run_goes_on(made, tmp_path):
    out = tmp_path / "scores.parquet"
    slow = (
        "import sys, time, trajkit.scoring.running.parts as p\n"
        "save = p.Parts.save\n"
        "p.Parts.save = lambda *a: (save(*a), time.sleep(60))\n"
        "from trajkit.__main__ import main; main()"
    )
    words = [sys.executable, "-c", slow, *command(made, out)[3:]]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, env=ENVIRONMENT, **quiet) as run:
        end = time.monotonic() + 60
        while not list(tmp_path.glob("scores.parquet.parts/*/00000.parquet")):
            assert time.monotonic() < end
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
    assert not out.exists()
    assert list(tmp_path.glob(".scores.parquet.*.tmp"))
    done = subprocess.run(
        command(made, out), env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert "went on: 1 windows were finished before" in done.stderr
    assert out.read_bytes() == made[2]
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_processes_of_a_launcher_make_the_same_table_and_report(made, tmp_path):
    out = tmp_path / "scores.parquet"
    runs = [
        subprocess.Popen(
            command(made, out),
            env=ENVIRONMENT | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert out.read_bytes() == made[2]
    assert comparable(json.loads(told[0][0])) == comparable(made[3])
    assert told[1][0] == ""
    assert not list(tmp_path.glob("*.parts"))


def together(
    made: Any, out: Path, size: int, models: dict[int, Any] | None = None, **options: Any
) -> list[Any]:
    """Return what each of several processes, here threads, reported or raised."""

    asked = {"window_tokens": WINDOW, **options}

    def one(rank: int) -> Any:
        model = (models or {}).get(rank, made[1])
        job = Job(rank=rank, size=size, name="n")
        try:
            return score(made[0], model, device="cpu", out=out, job=job, **asked)
        except TrajkitError as problem:
            return problem

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@pytest.mark.parametrize("size", [2, 4])
def test_however_many_share_a_run_table_and_report_are_the_same(made, tmp_path, size):
    out = tmp_path / "scores.parquet"
    reports = together(made, out, size)
    assert out.read_bytes() == made[2]
    assert same(reports[0], made[3])
    assert sum(report.counts.n_trajectories for report in reports[1:]) <= 5
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


def test_a_process_may_find_nothing_left_to_do(made, tmp_path):
    reports = together(made, tmp_path / "scores.parquet", 3, window_tokens=10**6)
    assert sorted(report.counts.n_trajectories for report in reports[1:])[0] == 0
    assert reports[0].counts.n_trajectories == 5


@pytest.mark.parametrize("options", [{"limit": 3}, {"only": ("t4", "t1")}, {"train": "all"}])
def test_processes_choose_the_same_as_one(made, tmp_path, options):
    one, several = tmp_path / "one.parquet", tmp_path / "several.parquet"
    wanted = score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=one, **options)
    assert same(together(made, several, 2, **options)[0], wanted.to_dict())
    assert several.read_bytes() == one.read_bytes()


def test_each_window_is_scored_once(made, tmp_path, monkeypatch):
    scored: list[str] = []
    of_run = Run.scored

    def noted(self: Any, trajectories: Any, told: Any) -> Any:
        scored.extend(one.trajectory_id for one in trajectories)
        return of_run(self, trajectories, told)

    monkeypatch.setattr(Run, "scored", noted)
    out = tmp_path / "scores.parquet"
    together(made, out, 3)
    assert sorted(scored) == [f"t{n}" for n in range(5)]
    assert out.read_bytes() == made[2]


def test_processes_go_on_from_one_and_score_a_damaged_part_once(made, tmp_path, monkeypatch):
    out = tmp_path / "scores.parquet"
    interrupted(made, out, monkeypatch, 4)
    scored: list[str] = []
    of_run = Run.scored

    def slowly(self: Any, trajectories: Any, told: Any) -> Any:
        scored.extend(one.trajectory_id for one in trajectories)
        time.sleep(0.3)  # the others find what is there before it is made anew
        return of_run(self, trajectories, told)

    monkeypatch.setattr(Run, "scored", slowly)
    first, second, *_ = sorted(tmp_path.glob("scores.parquet.parts/*/*.parquet"))
    first.write_bytes(first.read_bytes()[:-9])
    second.write_bytes(first.read_bytes())
    reports = together(made, out, 2)
    assert sorted(scored) == ["t0", "t1", "t4"]
    assert sum(report.n_kept_windows for report in reports) == 2
    assert out.read_bytes() == made[2]


def test_one_goes_on_from_several(made, tmp_path, monkeypatch):
    out = tmp_path / "scores.parquet"
    interrupted(made, out, monkeypatch, 2, job=Job(rank=1, size=2, name="n"))
    report = score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=out)
    assert report.n_kept_windows == 2
    assert out.read_bytes() == made[2]
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


@pytest.mark.parametrize("left", ["n-0.dead", "n-1.dead", "another-1.dead"])
def test_what_killed_processes_had_taken_is_taken_again(made, tmp_path, monkeypatch, left):
    out = tmp_path / "scores.parquet"
    interrupted(made, out, monkeypatch, 1)
    (folder,) = tmp_path.glob("scores.parquet.parts/*")
    for number in range(5):
        (folder / f"{number:05}.0.claim").symlink_to(left)
    name, _, own = left.rpartition(".")
    (tmp_path / "scores.parquet.parts" / f"{name}.alive").write_text(own)
    together(made, out, 2)
    assert out.read_bytes() == made[2]
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_without_its_model_ends_the_run_at_once(made, tmp_path, failing):
    out = tmp_path / "scores.parquet"
    start = time.monotonic()
    problems = together(made, out, 2, {failing: tmp_path / "no model"})
    assert time.monotonic() - start < 20
    assert problems[failing].code != "F104"
    assert problems[1 - failing].code == "F104"
    assert str(problems[failing]).splitlines()[0][:40] in str(problems[1 - failing])
    assert not out.exists()


def test_an_output_that_is_there_ends_the_run_at_once(made, tmp_path):
    out = tmp_path / "scores.parquet"
    out.touch()
    problems = together(made, out, 2)
    assert [problem.code for problem in problems] == ["U101", "F104"]
    assert problems[0].hint == problems[1].hint == "--force replaces it"
    assert not out.stat().st_size
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("other", ["data", "window_tokens"])
def test_processes_that_are_asked_for_different_things_end(made, tmp_path, other):
    out, data = tmp_path / "scores.parquet", write_data(tmp_path / "d.parquet", [trajectory(0)])

    def one(rank: int) -> TrajkitError | None:
        asked = data if rank and other == "data" else made[0]
        window = 10 * WINDOW if rank and other == "window_tokens" else WINDOW
        job = Job(rank=rank, size=2, name="n")
        try:
            score(asked, made[1], device="cpu", out=out, job=job, window_tokens=window)
        except TrajkitError as problem:
            return problem
        return None  # it was through before the first one began

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(one, range(2))
    assert first is not None
    assert {problem.code for problem in (first, second) if problem is not None} == {"F104"}
    assert "reads other data" in f"{first} {second}"
    assert not out.exists()


def test_what_is_not_a_run_s_own_stays(made, tmp_path):
    out = tmp_path / "scores.parquet"
    root = tmp_path / "scores.parquet.parts"
    kept = [root / "notes.txt", root / "0123456789abcdef" / "my.parquet", root / "more" / "0.done"]
    gone = [root / "n-1.failed", root / "0123456789abcdef" / "00000.0.claim"]
    for file in (*kept, *gone):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    away = tmp_path / "away" / "00000.parquet"
    away.parent.mkdir()
    away.touch()
    (root / "fedcba9876543210").symlink_to(away.parent, target_is_directory=True)
    score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=out)
    assert sorted(file for file in root.rglob("*") if file.is_file()) == sorted(kept)
    assert away.exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_parts_without_a_folder_are_an_error(made, tmp_path, kind):
    out, root = tmp_path / "scores.parquet", tmp_path / "scores.parquet.parts"
    if kind == "file":
        root.touch()
    else:
        (tmp_path / "elsewhere").mkdir()
        root.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(TrajkitError) as caught:
        score(made[0], made[1], device="cpu", window_tokens=WINDOW, out=out)
    assert caught.value.code == {"file": "F102", "link": "R103"}[kind]
    assert not out.exists()


def test_fewer_processes_go_on_from_more_that_were_killed(made, tmp_path, monkeypatch):
    out = tmp_path / "scores.parquet"
    interrupted(made, out, monkeypatch, 1)
    (folder,) = tmp_path.glob("scores.parquet.parts/*")
    for number in range(1, 5):
        (folder / f"{number:05}.0.claim").symlink_to("n-3.dead")
    (folder.parent / "n-3.alive").write_text("dead")
    together(made, out, 2)
    assert out.read_bytes() == made[2]
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


def test_much_longer_windows_are_taken_first(tmp_path):
    long = make_trajectory(chain(([1] * 30, [2] * 30)), "long")
    data = write_data(tmp_path / "steps.parquet", [*map(trajectory, range(3)), long, trajectory(3)])
    chosen = Chosen(dataset=open_dataset(data), only=(), limit=None, window_tokens=WINDOW)
    spans = chosen.spans()
    windows = [[one.trajectory_id for one in window] for window in chosen.windows()]
    assert [[one.trajectory_id for one in window] for window in spans] == windows
    assert chosen.longest_first(spans) == [3, 0, 1, 2, 4]


def test_processes_without_an_output_have_nowhere_to_meet(made):
    with pytest.raises(UsageProblem, match="beside the output") as caught:
        score(made[0], load_model(made[1], device="cpu"), job=Job(rank=0, size=2))
    assert caught.value.code == "U103"


def test_a_part_is_whole_or_not_there(tmp_path):
    parts = Parts(tmp_path / "s.parquet", {"a": 1})
    assert parts.load(0, []) is None
    parts.drop_if_empty()
    assert not list(tmp_path.iterdir())
