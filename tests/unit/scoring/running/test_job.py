"""Which process of a run this is, as its launcher says."""

from __future__ import annotations

import pytest

from trajkit.errors import UsageProblem
from trajkit.scoring.running.job import ALONE, Job, job_of


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
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "2",
                "SLURM_JOB_ID": "7",
                "SLURM_RESTART_COUNT": "1",
            },
            Job(rank=0, size=2, name="7-1"),
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
