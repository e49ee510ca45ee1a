"""Causes in spelling and decoding: each from a difference that only it explains."""

from __future__ import annotations

import pytest

from tests.cause_builders import compared, first, ids_of, tokenizer_of, told
from trajkit.drift.causes import UNEXPLAINED, cause_of
from trajkit.drift.findings import Route
from trajkit.records import ids_array
from trajkit.tokenizer import Rebuilt

HEAD = "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"


def spelt(name, *pieces):
    """Return one id for each piece."""
    ids = [ids_of(name, piece).tolist() for piece in pieces]
    assert all(len(one) == 1 for one in ids)
    return [one[0] for one in ids]


def split_word():
    recorded = ids_of("qwen3", HEAD, spelt("qwen3", "H", "AVING"), END)
    other = ids_of("qwen3", HEAD, "HAVING", END)
    n_head = len(ids_of("qwen3", HEAD))
    return recorded, other, ((n_head, len(recorded)),)


def test_a_spelling_the_tokenizer_would_not_choose_is_the_policys():
    recorded, other, action = split_word()
    cause, evidence = first("qwen3", recorded, other, action=action)
    assert cause == "non-canonical-sampling"
    assert evidence == {"canonical_ids": ids_of("qwen3", "HAVING").tolist()}


def test_outside_of_an_action_or_the_other_way_round_it_is_nobodys():
    recorded, other, action = split_word()
    assert told("qwen3", recorded, other) == [UNEXPLAINED]
    assert told("qwen3", other, recorded, action=action) == [UNEXPLAINED]


def test_an_id_that_encoding_never_gives_is_unreachable_whoever_sampled_it():
    fullwidth = 77150
    assert tokenizer_of("qwen3").is_reachable(fullwidth) is False
    recorded, other = ids_of("qwen3", "no. ", [fullwidth]), ids_of("qwen3", "no. １０")
    cause, evidence = first("qwen3", recorded, other)
    assert (cause, evidence) == ("unreachable-token", {"unreachable_ids": [fullwidth]})


@pytest.mark.parametrize("route", [Route.PAIR, Route.JOIN])
def test_a_token_across_the_edge_of_an_action_is_a_merge(route):
    action, behind = ids_of("llama3_1", "</search>"), ids_of("llama3_1", "\n\n<information>")
    recorded = ids_of("llama3_1", "Go. ", action.tolist(), behind.tolist())
    other = ids_of("llama3_1", "Go. ", "</search>\n\n<information>")
    n_head = len(ids_of("llama3_1", "Go. "))
    span = ((n_head, n_head + len(action)),)
    cause, evidence = first("llama3_1", recorded, other, action=span, route=route)
    assert cause == "boundary-merge"
    assert evidence["edge"] == span[0][1]
    assert evidence["straddling_text"] == ">\n\n"


@pytest.mark.parametrize(
    ("name", "text", "change"),
    [
        ("llama3_1", "InMainThread", Rebuilt.NO_IGNORE_MERGES),
        ("gptoss", "Done.\n\nNext one", Rebuilt.GPT2_WORDS),
        ("llama2", "  lead", Rebuilt.NO_PREFIX),
    ],
)
def test_what_a_careless_loader_gives_is_told_by_doing_the_same(name, text, change):
    twin = tokenizer_of(name).rebuilt(change)
    assert twin is not None
    recorded, other = ids_of(name, text), next(twin.encode_batch([text]))
    if change is Rebuilt.NO_IGNORE_MERGES and recorded.tolist() == other.tolist():
        words = _words_of_one_id(name)
        text = next(w for w in words if len(next(twin.encode_batch([w]))) > 1)
        recorded, other = ids_of(name, text), next(twin.encode_batch([text]))
    cause, evidence = first(name, recorded, other)
    assert (cause, evidence) == ("loader-rebuilds-pipeline", {"rebuilt": change.value})


def _words_of_one_id(name):
    tokenizer = tokenizer_of(name)
    for token_id in range(20_000, 120_000):
        piece = tokenizer.token_bytes(token_id)
        if piece.isalpha() and piece.isascii() and tokenizer.is_reachable(token_id):
            yield piece.decode()


def test_text_that_spells_a_control_token_is_control_on_one_side():
    letters = [i for letter in END for i in ids_of("qwen3", letter).tolist()]
    plain = ids_of("qwen3", HEAD, "The log says", letters, ".")
    naive = ids_of("qwen3", HEAD, "The log says", END, ".")
    expected = {"control": [END], "control_on": "other"}
    assert first("qwen3", plain, naive) == ("control-token-in-content", expected)
    expected = {"control": [END], "control_on": "recorded"}
    assert first("qwen3", naive, plain) == ("control-token-in-content", expected)


def test_control_tokens_that_are_all_spelt_out_are_another_vocabularys():
    recorded = ids_of("qwen3", HEAD, "Hi", END)
    control = tokenizer_of("qwen3").control
    other: list[int] = []
    for token_id in recorded.tolist():
        letters = [i for one in control.get(token_id, "") for i in ids_of("qwen3", one).tolist()]
        other += letters or [token_id]
    assert set(told("qwen3", recorded, ids_array(other))) == {"vocabulary-mismatch"}


def test_a_placeholder_where_the_other_side_spells_a_tag_is_another_revision():
    think = 128798
    assert "place" in tokenizer_of("deepseek_v3").control[think]
    plain = ids_of("deepseek_v3", "<think>", "ok")
    newer = ids_of("deepseek_v3", [think], "ok")
    assert told("deepseek_v3", plain, newer) == ["tokenizer-revision"]
    assert told("deepseek_v3", newer, plain) == ["tokenizer-revision"]


def test_fingerprints_that_differ_tell_a_revision_where_bytes_are_equal():
    recorded, other, _ = split_word()
    cause, evidence = first("qwen3", recorded, other, tokenizers=("a1", "b2"))
    assert (cause, evidence) == ("tokenizer-revision", {"tokenizers": ["a1", "b2"]})


@pytest.mark.parametrize("name", ["qwen3", "llama2"])
def test_bytes_that_are_no_character_are_told_with_them(name):
    emoji = "🤌".encode()[:3]
    by_byte = {tokenizer_of(name).token_bytes(i): i for i in range(300)}
    cut = [by_byte[bytes([byte])] for byte in emoji]
    recorded = ids_of(name, "ok ", cut)
    other = ids_of(name, "ok \ufffd")
    cause, evidence = first(name, recorded, other, action=((0, len(recorded)),))
    assert cause == "invalid-utf8"
    assert evidence == {"how": "replaced", "bytes": emoji.hex(" ")}


def test_u_fffd_for_a_whole_character_is_a_client_that_decodes_id_by_id():
    recorded = ids_of("qwen3", "Done 🤦🏽 ok")
    pieces = tokenizer_of("qwen3").pieces(recorded)
    joined = "".join(piece.decode("utf-8", errors="replace") for piece in pieces)
    assert "\ufffd" in joined
    assert told("qwen3", recorded, ids_of("qwen3", joined)) == ["per-token-decode"]


def test_all_spaces_lost_is_a_client_that_decodes_id_by_id():
    recorded, other = ids_of("llama2", "so it is, he said"), ids_of("llama2", "soitis,hesaid")
    assert first("llama2", recorded, other) == ("per-token-decode", {"lost_spaces": 4})
    one_lost = ids_of("llama2", "so it is,he said")
    assert told("llama2", recorded, one_lost) == [UNEXPLAINED]


def test_a_composed_character_is_the_normalisers_where_the_tokenizer_has_one():
    accent = [i for byte in "\u0301".encode() for i in _byte("qwen3", byte)]
    recorded = ids_of("qwen3", "cafe", accent)
    cause, evidence = first("qwen3", recorded, ids_of("qwen3", "café"))
    assert (cause, evidence) == ("normalizer-nfc", {"form": "NFC", "by": "tokenizer"})
    cause, evidence = first(
        "llama3_1", ids_of("llama3_1", "cafe\u0301"), ids_of("llama3_1", "café")
    )
    assert (cause, evidence) == ("normalizer-nfc", {"form": "NFC", "by": None})
    folded = ids_of("llama3_1", "no break"), ids_of("llama3_1", "no\u00a0break")
    assert told("llama3_1", folded[1], folded[0]) == [UNEXPLAINED]


def _byte(name, byte):
    return [i for i in range(300) if tokenizer_of(name).token_bytes(i) == bytes([byte])][:1]


def test_the_space_in_front_is_the_tokenizers_only_where_it_puts_one():
    newline = ids_of("llama2", "\n").tolist()
    recorded = ids_array(ids_of("llama2", "\n(foo").tolist()[len(newline) :])
    assert told("llama2", recorded, ids_of("llama2", "(foo")) == ["metaspace-prefix"]
    assert told("qwen3", ids_of("qwen3", "(foo"), ids_of("qwen3", " (foo")) == [UNEXPLAINED]


@pytest.mark.parametrize(
    ("recorded", "other", "cause"),
    [
        ("print ( 'x' ) . y ?", "print ( 'x' ). y?", "clean-up-tokenization-spaces"),
        ("print ( 'x' ) . y ?", "print ( 'x' ). y ?!", UNEXPLAINED),
        ("dir\r\nfile.txt\r\nx", "dir\nfile.txt\nx", "newline-translation"),
        ("dir\nfile.txt", "dir\r\nfile.txt", "newline-translation"),
        ("dir\rfile.txt", "dir\nfile.txt", "newline-translation"),
        ("a  b", "a b", UNEXPLAINED),
    ],
)
def test_texts_are_told_by_what_makes_one_of_the_other(recorded, other, cause):
    for name in ("llama3_1", "gemma3"):
        causes = set(told(name, ids_of(name, recorded), ids_of(name, other)))
        assert causes == {cause}


def test_a_text_cut_inside_the_last_id_ends_at_a_stop_string():
    recorded, other = (
        ids_of("qwen3", "<search>x</search>\n\n"),
        ids_of("qwen3", "<search>x</search>"),
    )
    cause, evidence = first("qwen3", recorded, other, action=((0, len(recorded)),))
    assert (cause, evidence) == ("stop-string-trim", {"cut": "\n\n", "last_token": ">\n\n"})
    assert told("qwen3", recorded, other, finish_reason="length") == [UNEXPLAINED]


def test_a_stop_string_that_is_known_explains_more_than_one_id():
    recorded = ids_of("qwen3", "I look.\nObservation: what")
    other = ids_of("qwen3", "I look.")
    assert told("qwen3", recorded, other) != ["stop-string-trim"]
    cause, evidence = first("qwen3", recorded, other, stop=["\nObservation:"])
    assert (cause, evidence["stop"]) == ("stop-string-trim", "\nObservation:")


def test_a_list_that_ends_early_was_cut_and_so_was_one_that_begins_late():
    ids = ids_of("qwen3", HEAD, "one two three four five six seven eight nine ten", END)
    assert first("qwen3", ids, ids[:12])[1] == {
        "side": "end",
        "n_lost": len(ids) - 12,
        "n_left": 12,
        "is_limit": False,
    }
    assert first("qwen3", ids, ids[9:])[1]["side"] == "head"
    assert told("qwen3", ids[:-1], ids[:-2]) == [UNEXPLAINED]
    assert told("qwen3", ids[:-1], ids[:-2], max_length=len(ids) - 2) == ["truncation"]


def test_route_ids_knows_no_cause_that_somebody_else_must_have_made():
    ids = ids_of("qwen3", "a . b")
    (difference,) = compared("qwen3", ids, ids_of("qwen3", "a. b"), route=Route.IDS)
    assert cause_of(difference) == (UNEXPLAINED, {})
