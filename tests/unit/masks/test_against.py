"""Two masks of the same tokens: counts, first place, who trains what."""

from __future__ import annotations

import pytest

from tests.builders import tiny_tokenizer
from tests.mask_builders import row_of, write_rows
from trajkit.errors import InputError
from trajkit.ingestion.run import ingest
from trajkit.masks.against import compare_masks
from trajkit.masks.sources import Wanted
from trajkit.training import policy_named

HEADER = "<|im_start|>assistant\n"
LEFT = row_of([(HEADER, 0), ("four<|im_end|>", 1), ("\n", 0)], id="a")
RIGHT = row_of([(HEADER, 0), ("four", 1), ("<|im_end|>", 0), ("\n", 1)], id="a")


def compare(tmp_path, left, right, **options):
    here = write_rows(tmp_path / "left.jsonl", *left)
    there = write_rows(tmp_path / "right.jsonl", *right)
    return compare_masks(here, there, tiny_tokenizer(), Wanted(**options))


def test_the_same_masks_agree(tmp_path):
    result = compare(tmp_path, [LEFT], [LEFT])
    assert result.is_clean
    assert (result.n_sequences, result.n_both) == (1, sum(LEFT["loss_mask"]))


def test_who_trains_what_and_where_first(tmp_path):
    result = compare(tmp_path, [LEFT], [RIGHT])
    assert not result.is_clean
    assert (result.n_here, result.n_there) == (1, 1)
    (difference,) = result.differences
    assert difference.token_start == LEFT["input_ids"].index(2)
    assert (difference.here, difference.there) == ((True, False), (False, True))
    assert difference.text == "<|im_end|>\n"


def test_other_ids_cannot_be_compared_and_are_told(tmp_path):
    other = {**LEFT, "input_ids": [*LEFT["input_ids"][:-1], 5]}
    result = compare(tmp_path, [LEFT], [other])
    assert not result.is_clean
    assert result.differences[0].token_start is None
    assert "ids differ" in result.differences[0].detail
    assert result.n_tokens == 0


def test_trajectories_of_one_side_alone_are_named(tmp_path):
    result = compare(tmp_path, [LEFT, {**LEFT, "id": "b"}], [LEFT, {**LEFT, "id": "c"}])
    assert (result.only_here, result.only_there) == (["b"], ["c"])
    assert not result.is_clean
    chosen = compare(tmp_path, [LEFT, {**LEFT, "id": "b"}], [LEFT], only=frozenset({"a"}))
    assert chosen.is_clean


def test_an_id_that_occurs_twice_cannot_be_matched(tmp_path):
    with pytest.raises(InputError) as caught:
        compare(tmp_path, [LEFT], [LEFT, LEFT])
    assert caught.value.code == "I401"


def test_rows_stand_against_the_steps_made_of_them_and_against_a_chosen_mask(tmp_path):
    thought = row_of([(HEADER, 0), ("<think>a</think>\nb<|im_end|>", 1)], id="a")
    path = write_rows(tmp_path / "rows.jsonl", thought)
    out = tmp_path / "steps.parquet"
    ingest([str(path)], out, tokenizer=tiny_tokenizer())
    assert compare_masks(path, out, tiny_tokenizer(), Wanted()).is_clean
    chosen = Wanted(policy=policy_named("no-think"))
    result = compare_masks(out, out, tiny_tokenizer(), chosen)
    assert (result.n_here, result.n_there > 0) == (0, True)
