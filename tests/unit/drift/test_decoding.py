"""What decoders make of text: each rewriting is told where a log is just that, and else none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import tiny_tokenizer
from tests.cause_builders import ids_of, tokenizer_of
from tests.drift_builders import ids_of as tiny_ids
from trajkit.drift.causes import DRIFT_CAUSES
from trajkit.drift.decoding import REWRITES, cleaned_up, one_by_one, rewritten_by
from trajkit.drift.findings import DriftKind, Route
from trajkit.records import ids_array

EMOJI = "\N{FACE PALM}"


def test_each_rewriting_is_a_cause_that_a_broken_record_can_have():
    causes = {cause.name: cause for cause in DRIFT_CAUSES}
    assert {
        name
        for name, _ in REWRITES
        if Route.SELF in causes[name].routes and DriftKind.RECORD in causes[name].kinds
    } == {name for name, _ in REWRITES}


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [("so ) . y ?", "so ). y?"), ("he 's here , is n't he", "he's here, isn't he"), ("a.b", "a.b")],
)
def test_spaces_in_front_of_punctuation_are_cleaned_up(text, cleaned):
    assert cleaned_up(text) == cleaned


@pytest.mark.parametrize(
    ("name", "text", "log", "cause"),
    [
        ("qwen3", "dir\r\nfile", "dir\nfile", "newline-translation"),
        ("qwen3", "dir\nfile", "dir\r\nfile", "newline-translation"),
        ("llama3_1", "f ( 'x' ) . y ?", "f ( 'x' ). y?", "clean-up-tokenization-spaces"),
        ("gemma3", "cafe\u0301", "caf\u00e9", "normalizer-nfc"),
        ("gemma3", "caf\u00e9", "cafe\u0301", "normalizer-nfc"),
        ("llama2", "so it is now", "soitisnow", "per-token-decode"),
        ("qwen3", "dir\r\nfile", "dir file", None),
        ("llama2", "so it", "soit", None),
        ("qwen3", "dir", "dir", None),
    ],
)
def test_a_log_that_was_rewritten_tells_its_cause(name, text, log, cause):
    found = rewritten_by(ids_of(name, text), tokenizer_of(name), log.__eq__)
    assert found == cause


def test_characters_of_several_ids_are_lost_when_each_is_decoded_by_itself():
    tokenizer = tokenizer_of("qwen3")
    ids = ids_of("qwen3", f"Done {EMOJI} ok")
    joined = one_by_one(tokenizer, ids)
    assert joined == "Done \ufffd\ufffd\ufffd ok"
    assert rewritten_by(ids, tokenizer, joined.__eq__) == "per-token-decode"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_text_that_was_left_alone_has_no_cause(text):
    tokenizer = tiny_tokenizer()
    ids = ids_array(tiny_ids(text, tokenizer))
    assert rewritten_by(ids, tokenizer, tokenizer.text(ids).__eq__) is None
