"""What a trainer or another runtime wrote is refused by its name, unopened."""

from __future__ import annotations

import pytest

from trajkit.errors import RefusedError
from trajkit.scoring.loading.checkpoint import open_checkpoint
from trajkit.scoring.loading.layouts import LAYOUTS


def made(folder, name):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\x80\x04.")  # the beginning of a pickle
    return folder


@pytest.mark.parametrize(
    ("file", "told", "hint"),
    [
        ("__0_0.distcp", "torch.distributed.checkpoint", "dcp_to_torch"),
        (".metadata", "torch.distributed.checkpoint", "dcp_to_torch"),
        ("model_world_size_8_rank_3.pt", "verl", "model_merger"),
        ("pytorch_model_fsdp_0/__0_0.distcp", "accelerate", "merge-weights"),
        ("pytorch_model_fsdp.bin", "accelerate", "merge-weights"),
        ("zero_to_fp32.py", "DeepSpeed", "zero_to_fp32.py"),
        ("global_step10/mp_rank_00_model_states.pt", "DeepSpeed", "zero_to_fp32.py"),
        ("mp_rank_00/model_optim_rng.pt", "Megatron", "model_merger"),
        ("iter_0000100/mp_rank_00/model_optim_rng.pt", "Megatron", "model_merger"),
        ("consolidated.00.pth", "Meta", "model.safetensors"),
        ("model-q4_k.gguf", "GGUF", "quantised"),
        ("weights.npz", "MLX", "converted"),
        ("optimizer.pt", "optimizer", "model.safetensors"),
    ],
)
def test_a_layout_is_told_by_name_with_what_converts_it(tmp_path, file, told, hint):
    with pytest.raises(RefusedError) as caught:
        open_checkpoint(made(tmp_path, file))
    assert caught.value.code == "R104"
    assert told in caught.value.message
    assert hint in (caught.value.hint or "")


def test_every_layout_has_a_name_files_and_a_hint():
    assert all(layout.name and layout.files and layout.hint for layout in LAYOUTS)
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)


def test_whole_weights_beside_a_trainer_s_state_are_taken(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"w")
    made(tmp_path, "optimizer.pt")
    made(tmp_path, "global_step10/mp_rank_00_model_states.pt")
    assert [shard.name for shard in open_checkpoint(tmp_path).shards] == ["model.safetensors"]
