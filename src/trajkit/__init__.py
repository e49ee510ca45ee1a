"""trajkit: convert and audit the trajectories of LLM agents.

The functions are the commands: `ingest`, `drift_check`, `mask_check`, `mask_view`, `score`,
`losses`. Each is loaded when first asked for: `import trajkit` costs nothing, and only `score` and
`score_batch`, which scores trajectories with a model in memory, load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajkit.drift.check import drift_check
    from trajkit.drift.findings import DriftFinding, DriftReport
    from trajkit.errors import TrajkitError
    from trajkit.ingestion.report import IngestReport
    from trajkit.ingestion.run import ingest
    from trajkit.masks.check import mask_check
    from trajkit.masks.findings import MaskFinding, MaskReport
    from trajkit.records import Segment, SegmentKind, Step, Trajectory
    from trajkit.rl.run import LossesReport, losses
    from trajkit.scoring.batch import score_batch
    from trajkit.scoring.report import ScoreReport
    from trajkit.scoring.run import score
    from trajkit.sequence import TokenSequence, build_sequences
    from trajkit.store.read import open_dataset, read_trajectories
    from trajkit.tokenizer import Tokenizer, load_tokenizer
    from trajkit.view.html.whole import mask_page
    from trajkit.view.terminal import mask_view

__version__ = "0.1.0"

__all__ = [
    "DriftFinding",
    "DriftReport",
    "IngestReport",
    "LossesReport",
    "MaskFinding",
    "MaskReport",
    "ScoreReport",
    "Segment",
    "SegmentKind",
    "Step",
    "TokenSequence",
    "Tokenizer",
    "Trajectory",
    "TrajkitError",
    "__version__",
    "build_sequences",
    "drift_check",
    "ingest",
    "load_tokenizer",
    "losses",
    "mask_check",
    "mask_page",
    "mask_view",
    "open_dataset",
    "read_trajectories",
    "score",
    "score_batch",
]

_HOMES = {
    "DriftFinding": "trajkit.drift.findings",
    "DriftReport": "trajkit.drift.findings",
    "IngestReport": "trajkit.ingestion.report",
    "LossesReport": "trajkit.rl.run",
    "MaskFinding": "trajkit.masks.findings",
    "MaskReport": "trajkit.masks.findings",
    "ScoreReport": "trajkit.scoring.report",
    "Segment": "trajkit.records",
    "SegmentKind": "trajkit.records",
    "Step": "trajkit.records",
    "TokenSequence": "trajkit.sequence",
    "Tokenizer": "trajkit.tokenizer",
    "Trajectory": "trajkit.records",
    "TrajkitError": "trajkit.errors",
    "build_sequences": "trajkit.sequence",
    "drift_check": "trajkit.drift.check",
    "ingest": "trajkit.ingestion.run",
    "load_tokenizer": "trajkit.tokenizer",
    "losses": "trajkit.rl.run",
    "mask_check": "trajkit.masks.check",
    "mask_page": "trajkit.view.html.whole",
    "mask_view": "trajkit.view.terminal",
    "open_dataset": "trajkit.store.read",
    "read_trajectories": "trajkit.store.read",
    "score": "trajkit.scoring.run",
    "score_batch": "trajkit.scoring.batch",
}


def __getattr__(name: str) -> Any:
    """Return a public name, loading its module when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "score":
        from trajkit.scoring import require_torch

        require_torch()
    return getattr(import_module(_HOMES[name]), name)
