"""The second process of jobs that hold a model together: a line in is a job, a line out its end."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch

from trajkit.__main__ import main
from trajkit.scoring.running import together

WORDS = ["score", "data", "--model", "model", "--device", "cpu", "--tensor-parallel"]


def full(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("full")


def follow(line: str) -> list[Any]:
    """Return the exit code, and what went to stdout and stderr."""
    job = json.loads(line)
    os.environ["MASTER_PORT"] = job["port"]
    out, err = io.StringIO(), io.StringIO()
    memory = patch.object(together, "pass_scores", full) if job["is_full"] else nullcontext()
    sys.argv[1:] = WORDS
    try:
        with memory, redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        return [end.code, out.getvalue(), err.getvalue()]


if __name__ == "__main__":
    for one in sys.stdin:
        sys.stdout.write(f"{json.dumps(follow(one))}\n")
        sys.stdout.flush()
