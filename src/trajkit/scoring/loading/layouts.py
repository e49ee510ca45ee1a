"""Folders that hold weights as a trainer or another runtime keeps them: refused by name.

Each is told by the names of its files alone; none of them is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trajkit.errors import Place, RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How some software keeps a checkpoint.

    Attributes:
        name: what it is called.
        files: patterns of names; one that is there is enough.
        hint: what makes a safetensors checkpoint of it.
    """

    name: str
    files: tuple[str, ...]
    hint: str


LAYOUTS: tuple[Layout, ...] = (
    Layout(
        name="shards of torch.distributed.checkpoint (FSDP, torchtitan, Megatron)",
        files=(".metadata", "*.distcp"),
        hint="python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE, then "
        "load that where you trust it and save_pretrained",
    ),
    Layout(
        name="FSDP shards of verl, one a rank",
        files=("model_world_size_*_rank_*.pt",),
        hint="python -m verl.model_merger merge --backend fsdp --local_dir FOLDER "
        "--target_dir MERGED",
    ),
    Layout(
        name="FSDP shards of accelerate",
        files=("pytorch_model_fsdp*", "pytorch_model_fsdp_0/*"),
        hint="accelerate merge-weights FOLDER MERGED",
    ),
    Layout(
        name="ZeRO shards of DeepSpeed",
        files=("zero_to_fp32.py", "*_optim_states.pt", "global_step*/*_states.pt"),
        hint="python zero_to_fp32.py FOLDER MERGED --safe_serialization",
    ),
    Layout(
        name="shards of Megatron-LM",
        files=(
            "latest_checkpointed_iteration.txt",
            "mp_rank_*",
            "iter_*/mp_rank_*",
            "iter_*/.metadata",
        ),
        hint="convert it with your framework's own tool (mbridge, Megatron-Bridge, verl's "
        "model_merger --backend megatron)",
    ),
    Layout(
        name="weights as Meta released them",
        files=("consolidated.*.pth", "consolidated*.safetensors"),
        hint="give the folder with model.safetensors, or convert it with transformers' "
        "convert_*_weights_to_hf.py",
    ),
    Layout(
        name="GGUF weights of llama.cpp",
        files=("*.gguf",),
        hint="score the checkpoint that it was quantised from",
    ),
    Layout(
        name="weights of MLX",
        files=("weights.npz", "weights.*.safetensors"),
        hint="score the checkpoint that it was converted from",
    ),
    Layout(
        name="a state of the optimizer, no weights",
        files=("optimizer.pt", "optimizer.bin", "optim_world_size_*_rank_*.pt"),
        hint="give the folder with model.safetensors, mostly the one above or beside",
    ),
)
"""In the order in which they are told: what names its maker comes before what many write."""


def refuse_foreign(path: Path, whole: tuple[str, ...]) -> None:
    """Raise R104 when a folder is one of these layouts and has none of the `whole` files.

    Raises:
        RefusedError: R104 with the layout's name, and what converts it.
    """
    if any((path / name).is_file() for name in whole):
        return
    for layout in LAYOUTS:
        there = next((file for each in layout.files for file in sorted(path.glob(each))), None)
        if there is not None:
            raise RefusedError(
                "R104",
                f"the folder holds {layout.name} ({there.relative_to(path)}); only whole "
                "safetensors weights are read",
                place=Place(file=str(path)),
                hint=layout.hint,
            )
