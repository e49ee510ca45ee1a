import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.score_builders import (
    N_VOCAB,
    TINY,
    assert_close,
    edit_weights,
    plain_logprobs,
    random_model,
    save_checkpoint,
    tiny_llama,
)
from trajkit.errors import InputError, NumericError, Place
from trajkit.records import ids_array
from trajkit.scoring.forward.logprobs import token_scores
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model

IDS = [1, 17, 5, 5, 42, 60, 3, 11, 29, 30, 31, 2, 7, 8]


def scores(model: LoadedModel, ids: list[int], targets: list[int], **options: Any):
    return token_scores(model, ids_array(ids), np.array(targets, dtype=np.int64), **options)


def test_a_zero_head_gives_minus_log_v_and_entropy_log_v(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_weights(folder, lambda w: w["lm_head.weight"].zero_())
    found = scores(load_model(folder, device="cpu"), IDS, list(range(1, len(IDS))))
    assert_close(found.logprobs, -math.log(N_VOCAB), atol=1e-6)
    assert_close(found.entropy, math.log(N_VOCAB), atol=1e-6)
    assert not found.rank.any()


def test_a_llama_without_mixing_is_the_bigram_its_embeddings_spell(tmp_path: Path) -> None:
    model = random_model("llama", **TINY)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.norm.weight.uniform_(0.5, 1.5)
    folder = save_checkpoint(model, tmp_path / "m")
    found = scores(load_model(folder, device="cpu"), IDS, list(range(1, len(IDS))))

    def of(tensor: torch.Tensor) -> Any:
        return tensor.detach().numpy().astype(np.float64)

    embed = of(model.model.embed_tokens.weight)
    scale = np.sqrt((embed**2).mean(1, keepdims=True) + model.config.rms_norm_eps)
    logits = (embed / scale * of(model.model.norm.weight)) @ of(model.lm_head.weight).T
    table = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    before, after = np.array(IDS[:-1]), np.array(IDS[1:])
    assert_close(found.logprobs, table[before, after], atol=2e-6)
    assert_close(found.entropy, -(np.exp(table) * table).sum(1)[before], atol=2e-6)
    likelier = (table[before] > table[before, after][:, None]).sum(1)
    assert found.rank.tolist() == likelier.tolist()


def test_the_plain_forward_pass_agrees(llama: LoadedModel) -> None:
    wanted = plain_logprobs(llama.model, IDS)
    found = scores(llama, IDS, list(range(len(IDS))))
    assert_close(found.logprobs, wanted, atol=1e-6)
    assert found.logprobs.dtype == np.float32
    assert found.rank.dtype == np.int32
    assert found.n_nonfinite == 0


def test_targets_come_back_in_the_order_asked_for(llama: LoadedModel) -> None:
    forward = scores(llama, IDS, [3, 7, 9]).logprobs
    assert scores(llama, IDS, [9, 3, 7]).logprobs.tolist() == forward[[2, 0, 1]].tolist()


def test_the_first_token_has_no_logprob(llama: LoadedModel) -> None:
    found = scores(llama, IDS, [0, 1])
    assert np.isnan(found.logprobs).tolist() == [True, False]
    assert np.isnan(found.entropy).tolist() == [True, False]
    assert found.n_nonfinite == 0


def test_only_first_tokens_need_no_pass(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trajkit.scoring.forward.logprobs.hidden_states", pytest.fail)
    assert np.isnan(scores(llama, IDS, [0]).logprobs).all()
    assert len(scores(llama, IDS, []).logprobs) == 0


def test_one_prompt_id_moves_what_follows_and_nothing_before(llama: LoadedModel) -> None:
    targets = list(range(1, len(IDS)))
    changed = [*IDS]
    changed[5] = 9
    before, after = scores(llama, IDS, targets).logprobs, scores(llama, changed, targets).logprobs
    assert before[:4].tobytes() == after[:4].tobytes()  # targets 1..4 see ids 0..3
    assert (np.abs(before - after)[5:] > 1e-3).all()


def test_a_later_id_changes_nothing_bitwise(llama: LoadedModel) -> None:
    changed = [*IDS[:-1], 33]
    targets = list(range(1, len(IDS) - 1))
    found = scores(llama, changed, targets)
    assert found.logprobs.tobytes() == scores(llama, IDS, targets).logprobs.tobytes()


@pytest.mark.parametrize("chunk_rows", [1, 7, 256])
def test_chunks_change_memory_and_not_numbers(llama: LoadedModel, chunk_rows: int) -> None:
    targets = list(range(1, len(IDS)))
    whole = scores(llama, IDS, targets)
    parts = scores(llama, IDS, targets, chunk_rows=chunk_rows)
    assert_close(parts.logprobs, whole.logprobs, atol=1e-6)
    assert_close(parts.entropy, whole.entropy, atol=1e-6)
    assert parts.rank.tolist() == whole.rank.tolist()


@pytest.mark.parametrize("bad", [-1, N_VOCAB, 2**31 - 1])
def test_an_id_outside_the_vocabulary_never_reaches_the_device(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    monkeypatch.setattr("trajkit.scoring.forward.logprobs.torch.from_numpy", pytest.fail)
    with pytest.raises(InputError) as caught:
        scores(llama, [1, 2, bad, 4], [3], place=Place(trajectory_id="t"))
    assert caught.value.code == "I304"
    assert f"id {bad} at token 2" in caught.value.message
    assert caught.value.place == Place(trajectory_id="t")


def test_a_sequence_beyond_the_positions_is_refused(llama: LoadedModel) -> None:
    ids = [i % N_VOCAB for i in range(97)]
    assert len(scores(llama, ids[:96], [95]).logprobs) == 1
    with pytest.raises(NumericError) as caught:
        scores(llama, ids, [96], place=Place(trajectory_id="long"))
    assert caught.value.code == "N103"
    assert "trajectory long" in str(caught.value)
