"""A model in memory, as every other part of scoring sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trajkit.scoring.forward.head import Head

if TYPE_CHECKING:
    from trajkit.scoring.running.team import Team


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel:
    """A checkpoint in memory.

    Attributes:
        model: the transformers model, in evaluation mode.
        dtype: of the weights, as `--dtype` spells it.
        n_vocab: ids that have both an embedding row and a logit.
        max_positions: the longest sequence the model was made for; `None` when it has no limit.
        rope_switch: sequences longer than this use other rotary frequencies for all their tokens
            (`longrope`); `None` for other models.
        why_unshared: why each sequence must be read by itself; `None` when a pass may be a tree.
        weights_digest: sha256 of the safetensors files' bytes, by name.
        unused_tensors: tensors of the files that the model has no place for.
        adapter, adapter_digest: name of the LoRA adapter that was merged in, and sha256 of its
            weight file's bytes; `None` without one.
        team: the processes that hold it together, this one a part; `None` for a whole model.
    """

    model: Any
    head: Head
    device: torch.device
    dtype: str
    name: str
    path: Path
    n_vocab: int
    max_positions: int | None
    rope_switch: int | None
    why_unshared: str | None
    weights_digest: str
    unused_tensors: tuple[str, ...]
    adapter: str | None = None
    adapter_digest: str | None = None
    team: Team | None = None

    @property
    def device_name(self) -> str:
        """Return the accelerator's name, or `cpu`, and how many of them hold the model."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return name if self.team is None else f"{self.team.size} x {name}"
