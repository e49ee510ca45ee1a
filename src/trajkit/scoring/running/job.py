"""One run by several processes: which of them this is.

A launcher says so with `RANK` and `WORLD_SIZE` (torchrun, accelerate) or `SLURM_PROCID` and
`SLURM_NTASKS` (srun). The shell of sbatch or salloc has these too, of the whole job, and is one
process: only srun gives a step a usual number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trajkit.errors import UsageProblem

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_OWN_NAMES = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
              "SLURM_STEP_ID", "SLURM_RESTART_COUNT")  # fmt: skip
_FIRST_UNUSUAL_STEP = 0xFFFFFFF0
"""From here on SLURM numbers what srun did not start: batch scripts and salloc's shells."""
SILENCE_S = 600.0
"""A process that has not shown itself for so long is taken for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process among those of one run.

    Attributes:
        rank: its number; the first one, 0, reports.
        size: how many there are.
        local_rank: its number on its machine: the GPU it takes.
        name: what the launcher calls this start of the run; an earlier one may have had the same.
        said: the variables that say so, for messages.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    name: str = "alone"
    said: str = field(default="", compare=False)

    @property
    def is_first(self) -> bool:
        """Return whether this process puts the parts together and reports."""
        return self.rank == 0


ALONE = Job()


def job_of(environment: Mapping[str, str]) -> Job:
    """Return which process of a run this is, as its launcher says; alone where none says so.

    Raises:
        UsageProblem: U103 when what a launcher says is no rank.
    """
    for rank, size, local in _LAUNCHERS:
        if rank not in environment or size not in environment:
            continue
        if rank.startswith("SLURM") and not _is_srun(environment):
            continue
        names = [environment[name] for name in _OWN_NAMES if name in environment]
        try:
            numbers = [int(environment.get(name, "0")) for name in (rank, size, local)]
        except ValueError:
            numbers = [-1, 0, 0]
        said = f"{rank}={environment[rank]} {size}={environment[size]}"[:80]
        if not 0 <= numbers[0] < numbers[1] or numbers[2] < 0:
            raise UsageProblem("U103", f"a launcher set {said}, which is no rank of a run")
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(names))[:80] or "run"
        return Job(rank=numbers[0], size=numbers[1], local_rank=numbers[2], name=name, said=said)
    return ALONE


def _is_srun(environment: Mapping[str, str]) -> bool:
    step = environment.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_UNUSUAL_STEP
