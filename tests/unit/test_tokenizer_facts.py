"""What a tokenizer says of itself: which ids text gives, and what others make of it."""

from __future__ import annotations

import pytest

from tests.builders import tiny_tokenizer
from tests.cause_builders import tokenizer_of
from tests.tokenizer_builders import metaspace
from trajkit.tokenizer import Rebuilt, Tokenizer


@pytest.fixture(scope="module")
def spaced():
    return Tokenizer(metaspace(prefix=True), "spaced")


@pytest.fixture(scope="module")
def bare():
    return Tokenizer(metaspace(prefix=False), "bare")


def test_a_space_in_front_is_seen_by_encoding(spaced, bare):
    assert spaced.prepends_space
    assert not bare.prepends_space
    assert not tiny_tokenizer().prepends_space


def test_normalising_leaves_spaces_spaces(spaced, bare):
    assert spaced.normalizes_to("a b") == bare.normalizes_to("a b") == "a b"
    assert tiny_tokenizer().normalizes_to("e\u0301") == "e\u0301"
    assert tokenizer_of("qwen3").normalizes_to("e\u0301") == "é"


def test_an_id_is_reachable_when_its_text_gives_it(spaced):
    qwen = tokenizer_of("qwen3")
    hello = next(qwen.encode_batch(["Hello"])).tolist()
    assert [qwen.is_reachable(i) for i in hello] == [True]
    assert qwen.is_reachable(77150) is False
    half = next(i for i in range(300) if qwen.token_bytes(i) == b"\xf0")
    assert qwen.is_reachable(half) is None
    word = next(i for i in range(spaced.n_vocab) if spaced.token_bytes(i) == b"ab")
    assert spaced.is_reachable(word) is True


def test_a_loader_may_lose_the_space_in_front(spaced, bare):
    twin = spaced.rebuilt(Rebuilt.NO_PREFIX)
    assert twin is not None
    assert twin is spaced.rebuilt(Rebuilt.NO_PREFIX)
    assert next(twin.encode_batch(["ab"])).tolist() == next(bare.encode_batch(["ab"])).tolist()
    assert spaced.prepends_space
    assert bare.rebuilt(Rebuilt.NO_PREFIX) is None


def test_a_loader_may_cut_words_by_another_rule_or_merge_whole_ones():
    llama = tokenizer_of("llama3_1")
    text = "Done.\n\nNext"
    own = next(llama.encode_batch([text])).tolist()
    cut = llama.rebuilt(Rebuilt.GPT2_WORDS)
    assert cut is not None
    assert next(cut.encode_batch([text])).tolist() != own
    merged = llama.rebuilt(Rebuilt.NO_IGNORE_MERGES)
    assert merged is not None
    assert merged.fingerprint != llama.fingerprint
    assert tokenizer_of("qwen3").rebuilt(Rebuilt.NO_IGNORE_MERGES) is None
