"""The bytes of many ids are the bytes of each id, however they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.template_builders import real
from tests.tokenizer_builders import TINY, metaspace, save
from trajkit.errors import InputError
from trajkit.records import ids_array
from trajkit.spelling import Spelling, SpellingTable
from trajkit.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(TINY)
PIECES = st.lists(st.binary(max_size=6), max_size=12)
REAL = ["qwen3", "llama3_1", "deepseek_v3", "gptoss", "gemma3", "llama2"]


@given(PIECES, st.integers(0, 12), st.integers(0, 12))
def test_a_spelling_is_a_sequence_of_its_pieces(pieces, start, stop):
    spelling = Spelling.of(pieces)
    assert list(spelling) == pieces
    assert [spelling[i] for i in range(len(spelling))] == pieces
    assert [spelling[i - len(pieces)] for i in range(len(pieces))] == pieces
    part = spelling[start:stop]
    assert list(part) == pieces[start:stop]
    assert part.data == b"".join(pieces[start:stop])
    assert list(part + spelling) == pieces[start:stop] + pieces
    assert [spelling.n_bytes(n) for n in range(len(pieces) + 1)] == [
        len(b"".join(pieces[:n])) for n in range(len(pieces) + 1)
    ]


def test_a_place_outside_or_a_stride_is_an_error():
    spelling = Spelling.of([b"a", b"b"])
    with pytest.raises(IndexError):
        spelling[2]
    with pytest.raises(ValueError, match="one piece"):
        spelling[::2]


@given(st.lists(st.lists(st.integers(0, 511), max_size=20), max_size=6))
def test_many_ids_spell_what_each_of_them_spells(batches):
    table = SpellingTable(TOKENIZER.token_bytes)
    for ids in batches:
        assert list(table.of(ids_array(ids))) == [TOKENIZER.token_bytes(i) for i in ids]
        assert table.not_met(ids_array(ids)) == []


def test_the_table_asks_for_each_id_once_and_grows():
    asked = []

    def spell(token_id):
        asked.append(token_id)
        return b"x" * (token_id % 7)

    table = SpellingTable(spell)
    ids = np.arange(200_000, dtype=np.int32)[::-1]
    assert list(table.of(ids)[:3]) == [b"x" * (i % 7) for i in ids[:3].tolist()]
    table.of(ids[:100])
    assert len(asked) == len(ids)
    far = ids_array([2**30, 3, 2**30])  # beyond any table of rows
    assert list(table.of(far)) == [b"x" * (i % 7) for i in far.tolist()]


@pytest.mark.parametrize("token_id", [-1, 512, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_an_error(token_id):
    ids = ids_array([3, token_id, 4])
    for ask in (TOKENIZER.spell, lambda some: TOKENIZER.decode_batch([some])):
        with pytest.raises(InputError) as caught:
            ask(ids)
        assert caught.value.code == "I304"
    assert TOKENIZER.first_unknown(ids) == 1


def library_of(folder):
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def check_decoding(tokenizer, library, batches):
    lists = [[int(i) for i in ids] for ids in batches]
    wanted = library.decode_batch(lists, skip_special_tokens=False) if lists else []
    assert tokenizer.decode_batch(map(ids_array, lists)) == wanted


@given(st.lists(st.lists(st.integers(0, 511), max_size=12), max_size=5))
def test_decoding_is_the_library_s_own(batches):
    check_decoding(TOKENIZER, library_of(TINY), batches)


@pytest.mark.model
@pytest.mark.parametrize("name", REAL)
def test_decoding_with_a_real_tokenizer_is_the_library_s_own(name):
    tokenizer, library = load_tokenizer(real(name)), library_of(real(name))
    rng = np.random.default_rng(0)
    ids = tokenizer.ids
    check_decoding(tokenizer, library, [rng.choice(ids, n) for n in range(60)])
    check_decoding(tokenizer, library, np.array_split(ids, 5000))


@pytest.mark.parametrize("content", ["é", "Ġx", "<é>", "東"])
def test_an_added_token_is_decoded_as_the_library_decodes_it(content, tmp_path):
    backend = library_of(TINY)
    backend.add_tokens([tokenizers.AddedToken(content, normalized=False)])
    tokenizer = load_tokenizer(save(backend, tmp_path))
    added = backend.token_to_id(content)
    check_decoding(tokenizer, backend, [[added], [298, added, 298], [added, 414]])


def test_a_metaspace_vocabulary_is_decoded_by_the_library(tmp_path):
    backend = metaspace(prefix=True)
    tokenizer = load_tokenizer(save(backend, tmp_path))
    check_decoding(tokenizer, backend, [[], [260, 261], [3, 4, 200], [264, 1, 264]])
