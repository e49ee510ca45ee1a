"""A second process for jobs that hold one model together; the first one is the test itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from select import select
from typing import Any, Self

import pytest

import trajkit
from tests.builders import make_trajectory
from tests.score_builders import chain
from trajkit.records import Trajectory
from trajkit.scoring.running.job import Job

SRC = str(Path(trajkit.__file__).parents[1])
COMMAND = [sys.executable, str(Path(__file__).with_name("team_follower.py"))]
TIMEOUT_S = 120
FIRST = chain(([1, 10, 11, 12], [20, 21, 2]), ([30, 31], [22, 2]))
SECOND = chain(([1, 10, 11, 12], [20, 40, 2]), ([30, 32], [41, 42, 43, 2]))
THIRD = chain(([1, 50, 51], [52, 53]))


def three() -> list[Trajectory]:
    return [
        make_trajectory(calls, name)
        for calls, name in zip((FIRST, SECOND, THIRD), "abc", strict=True)
    ]


class Follower:
    """The second process of jobs whose first one is this process, one job after the other."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        own = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
        self.process = subprocess.Popen(
            COMMAND,
            env=os.environ | own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SRC},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.patch.undo()
        self.process.kill()
        self.process.communicate()

    def joins(self, *, is_full: bool = False) -> None:
        """Let it follow a job that this process starts next; its memory may be full."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.patch.setenv("MASTER_ADDR", "127.0.0.1")
        self.patch.setenv("MASTER_PORT", port)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps({'port': port, 'is_full': is_full})}\n")
        self.process.stdin.flush()

    def ended(self) -> list[Any]:
        """Return its exit code, and what it wrote to stdout and stderr."""
        assert self.process.stdout is not None
        assert select([self.process.stdout], [], [], TIMEOUT_S)[0], "it goes on"
        found: list[Any] = json.loads(self.process.stdout.readline())
        return found


def job() -> Job:
    return Job(rank=0, size=2, name="test")
