"""Which process of a run this is, as its launcher says."""

from __future__ import annotations

import pytest

from trajkit.errors import UsageProblem
from trajkit.scoring.checks import check_job
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
            {
                "SLURM_PROCID": "5",
                "SLURM_NTASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_JOB_ID": "7/a",
                "SLURM_STEP_ID": "0",
            },
            Job(rank=5, size=8, local_rank=1, name="7_a-0"),
        ),
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "2",
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "3",
                "SLURM_RESTART_COUNT": "1",
            },
            Job(rank=0, size=2, name="7-3-1"),
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


@pytest.mark.parametrize("step", [None, "", "batch", "4294967290", "4294967291", "4294967294"])
def test_a_shell_of_slurm_is_one_process(step):
    """It has the variables of all tasks of the job, and srun started none of them."""
    environment = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    assert job_of(environment | ({} if step is None else {"SLURM_STEP_ID": step})) == ALONE


def test_whoever_lacks_a_place_to_meet_is_told_which_variables_say_so():
    job = job_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"})
    with pytest.raises(UsageProblem, match="SLURM_PROCID=0 SLURM_NTASKS=4") as caught:
        check_job(job, None)
    assert caught.value.code == "U103"
