import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from tests.tokenizer_builders import SMOLLM2, TINY, metaspace, save
from trajkit.errors import FileError, InputError, Place
from trajkit.records import ids_array
from trajkit.tokenizer import load_tokenizer, require_same_tokenizer

SEARCH, SPACE, IM_END = 298, 223, 2  # ids of the tiny tokenizer


@pytest.fixture(scope="module")
def tiny():
    return load_tokenizer(TINY)


@pytest.fixture(scope="module", params=["prefix", "no prefix"])
def spaced(request, tmp_path_factory):
    """The two sides of one metaspace vocabulary: ours and the library's."""
    backend = metaspace(prefix=request.param == "prefix")
    return load_tokenizer(save(backend, tmp_path_factory.mktemp("spaced"))), backend


def test_a_byte_level_id_stands_for_the_bytes_that_its_letters_encode(tiny):
    assert tiny.token_bytes(SEARCH) == b"search"
    assert tiny.token_bytes(SPACE) == b" "
    assert tiny.token_bytes(201) == b"\n"
    assert tiny.token_bytes(414) == b"\xe6\x9d"  # the first two of the three bytes of 東
    assert tiny.token_bytes(IM_END) == b"<|im_end|>"


def test_every_byte_has_an_id_in_a_byte_level_vocabulary(tiny):
    spelt = {tiny.token_bytes(token_id) for token_id in range(tiny.n_vocab)}
    assert {bytes([byte]) for byte in range(256)} <= spelt


def test_control_tokens_are_those_that_cut_text(tiny):
    assert tiny.control == {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"}
    assert tiny.control_ids.tolist() == [0, 1, 2]
    assert tiny.name == "tiny"
    assert tiny.n_vocab == 512


def test_a_metaspace_id_keeps_its_space_and_a_byte_id_is_its_byte(spaced):
    tokenizer, _ = spaced
    first_word = 3 + 256
    assert tokenizer.pieces(ids_array(range(first_word, first_word + 8))) == [
        *(b" ", b"a", b"b", b"c", b"ab", b" a", b" ab", "東".encode())
    ]
    assert tokenizer.token_bytes(3) == b"\x00"
    assert tokenizer.token_bytes(3 + 0xE6) == b"\xe6"
    assert tokenizer.token_bytes(1) == b"<s>"


def test_added_white_space_is_spelt_as_it_is_decoded_and_is_no_control_token(spaced):
    tokenizer, backend = spaced
    run, newlines = backend.token_to_id("▁▁▁"), backend.token_to_id("\n\n")
    assert tokenizer.token_bytes(run) == b"   "
    assert tokenizer.token_bytes(newlines) == b"\n\n"
    assert sorted(tokenizer.control.values()) == ["</s>", "<b>", "<s>", "<unk>"]


def test_bytes_of_each_byte_level_id_join_to_the_librarys_decoding(tiny):
    for token_id in range(tiny.n_vocab):
        ids = ids_array([SEARCH, token_id])
        assert tiny.text(ids) == tiny.decode_batch([ids])[0]


def test_bytes_of_each_metaspace_id_join_to_the_librarys_decoding(spaced):
    tokenizer, backend = spaced
    lone_bytes = range(3 + 0x80, 3 + 0x100)  # no character by themselves
    for token_id in set(range(tokenizer.n_vocab)) - set(lone_bytes):
        ids = [3 + 0x61, token_id]
        decoded = backend.decode(ids, skip_special_tokens=False)
        assert tokenizer.text(ids_array(ids)) == decoded, token_id


@pytest.mark.model
def test_bytes_of_each_real_id_join_to_the_librarys_decoding():
    tokenizer = load_tokenizer(SMOLLM2)
    library = tokenizers.Tokenizer.from_file(str(SMOLLM2 / "tokenizer.json"))
    assert tokenizer.n_vocab == 49152
    for token_id in range(tokenizer.n_vocab):
        decoded = library.decode([token_id], skip_special_tokens=False)
        assert tokenizer.text(ids_array([token_id])) == decoded, token_id
    rng = np.random.default_rng(0)
    for ids in rng.integers(0, tokenizer.n_vocab, (200, 30)):
        decoded = library.decode(ids.tolist(), skip_special_tokens=False)
        assert tokenizer.text(ids.astype(np.int32)) == decoded


def test_encoding_adds_nothing_and_knows_control_tokens(tiny):
    first, second = tiny.encode_batch(["search<|im_end|>", ""])
    assert first.tolist() == [SEARCH, IM_END]
    assert second.tolist() == []
    assert first.dtype == np.int32
    assert not first.flags.writeable


def test_truncation_and_padding_of_the_file_are_not_obeyed(tmp_path):
    backend = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    backend.enable_truncation(1)
    backend.enable_padding(length=8)
    cut = load_tokenizer(save(backend, tmp_path / "cut"))
    assert [len(ids) for ids in cut.encode_batch(["search search"])] == [2]
    assert cut.fingerprint == load_tokenizer(TINY).fingerprint


def test_ids_outside_the_vocabulary_are_known_to_be_unknown(tiny):
    ids = ids_array([600, 5, 512, -1])
    assert tiny.first_unknown(ids) == 0
    assert tiny.first_unknown(ids[1:]) == 1
    assert tiny.first_unknown(ids[3:]) == 0
    assert tiny.first_unknown(ids[1:2]) is None
    assert tiny.first_unknown(ids[:0]) is None
    assert [tiny.knows(token_id) for token_id in (0, 511, 512, -1, 2**40)] == [True, True] + (
        [False] * 3
    )


def test_an_unknown_id_is_named_with_its_position_and_place(tiny):
    with pytest.raises(InputError) as caught:
        tiny.require_known(ids_array([5, 7, 599]), "action", Place(trajectory_id="t"))
    assert caught.value.code == "I304"
    assert "action id 599 (position 2)" in caught.value.message
    assert caught.value.place == Place(trajectory_id="t")
    with pytest.raises(InputError, match="I304: id 512 is outside"):
        tiny.token_bytes(512)


def test_the_fingerprint_speaks_of_behaviour_and_not_of_the_file(tiny, tmp_path):
    content = json.loads((TINY / "tokenizer.json").read_text())
    (tmp_path / "pretty.json").write_text(json.dumps(content, indent=4))
    pretty = load_tokenizer(tmp_path / "pretty.json")
    assert pretty.fingerprint == tiny.fingerprint
    assert pretty.name == "pretty"
    content["normalizer"] = {"type": "NFC"}
    (tmp_path / "other.json").write_text(json.dumps(content))
    assert load_tokenizer(tmp_path / "other.json").fingerprint != tiny.fingerprint


def test_the_tokenizer_of_the_data_is_required_where_one_is_recorded(tiny):
    require_same_tokenizer(tiny, fingerprint=None, name=None, file="d.parquet")
    require_same_tokenizer(tiny, fingerprint=tiny.fingerprint, name="x", file="d.parquet")
    with pytest.raises(InputError) as caught:
        require_same_tokenizer(tiny, fingerprint="ab" * 32, name="other", file="d.parquet")
    assert caught.value.code == "T102"
    assert "with other (abababababab), not with tiny" in caught.value.message
    assert caught.value.place == Place(file="d.parquet")


def test_what_is_no_tokenizer_is_refused_with_a_code(tmp_path):
    with pytest.raises(FileError) as caught:
        load_tokenizer(tmp_path)
    assert caught.value.code == "F101"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError) as bad:
        load_tokenizer(tmp_path)
    assert bad.value.code == "T101"


def test_a_file_that_makes_the_library_panic_is_refused_with_a_code(tmp_path):
    content = json.loads((TINY / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        load_tokenizer(tmp_path)
    assert caught.value.code == "T101"


def test_a_vocabulary_whose_bytes_are_not_known_is_refused(tmp_path):
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(InputError, match=r"T103.*none") as caught:
        load_tokenizer(save(backend, tmp_path / "none"))
    assert caught.value.code == "T103"
    backend.decoder = decoders.WordPiece()
    with pytest.raises(InputError, match=r"T103.*WordPiece"):
        load_tokenizer(save(backend, tmp_path / "pieces"))


def test_an_added_token_is_its_text_even_where_its_letters_are_byte_level_ones(tmp_path):
    backend = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    backend.add_tokens(["éé"])
    tokenizer = load_tokenizer(save(backend, tmp_path))
    assert tokenizer.token_bytes(512) == "éé".encode()


def test_a_byte_level_word_put_in_as_plain_text_is_its_own_bytes(tmp_path):
    backend = tokenizers.Tokenizer(models.WordLevel({"a b": 0, "Ġc": 1}, unk_token="a b"))
    backend.decoder = decoders.ByteLevel()
    backend.normalizer = normalizers.NFC()
    tokenizer = load_tokenizer(save(backend, tmp_path))
    assert tokenizer.token_bytes(0) == b"a b"
    assert tokenizer.token_bytes(1) == b" c"


@pytest.mark.parametrize(
    ("prefix", "kinds"), [(False, ("Replace",)), (True, ("Prepend", "Replace"))]
)
def test_the_kinds_of_the_normaliser_are_those_of_the_file(tmp_path, prefix, kinds):
    folder = save(metaspace(prefix=prefix), tmp_path)
    assert load_tokenizer(folder).normalizer_kinds == kinds


def test_a_pipeline_without_a_normaliser_has_no_kinds():
    assert load_tokenizer(TINY).normalizer_kinds == ()
