import json
from typing import Any

import pytest
import tokenizers

from tests.builders import make_step
from tests.tokenizer_builders import ROOT, SMOLLM2, TINY, metaspace, save
from trajkit.drift.findings import DriftKind
from trajkit.drift.routes.ids import check_ids
from trajkit.errors import InputError
from trajkit.records import ids_array
from trajkit.tokenizer import Tokenizer, load_tokenizer

# ids of the tiny tokenizer
SEARCH, NEWLINE, TOKYO, IM_END = 298, 201, 462, 2
TOKYO_JAPANESE = [414, 492]  # 東京 is E6 9D | B1 E4 BA AC


@pytest.fixture(scope="module")
def tiny() -> Any:
    return load_tokenizer(TINY)


def letters(tokenizer, text) -> Any:
    """Return the ids of a text's bytes, each byte an id of its own."""
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(512)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


def check(action, tokenizer, prompt=(1, 5, 6)) -> Any:
    """Return the findings of one step."""
    step = make_step(prompt_delta=list(prompt), action_tokens=list(action))
    ((checked, found),) = check_ids([step], tokenizer)
    assert checked is step
    return [one.finding for one in found]


def test_ids_that_the_tokenizer_itself_would_choose_are_no_finding(tiny):
    assert check([SEARCH, NEWLINE, TOKYO, IM_END], tiny) == []
    assert check(TOKYO_JAPANESE, tiny) == []
    assert check([], tiny) == []


def test_another_spelling_of_a_word_is_ids_only(tiny):
    spelt = letters(tiny, "search")
    (finding,) = check([TOKYO, NEWLINE, *spelt, IM_END], tiny)
    assert finding.kind is DriftKind.IDS_ONLY
    assert (finding.token_start, finding.action_start, finding.byte_start) == (3 + 2, 2, 6)
    assert finding.recorded_ids == tuple(spelt)
    assert finding.retokenized_ids == (SEARCH,)
    assert finding.recorded_text == finding.retokenized_text == "search"
    assert finding.n_action_tokens == 6
    assert finding.cause == "UNEXPLAINED"
    assert (finding.trajectory_id, finding.step_index) == ("t", 0)


def test_two_words_are_two_findings_with_what_lies_between_left_out(tiny):
    action = [*letters(tiny, "search"), NEWLINE, TOKYO, IM_END, *letters(tiny, "Tokyo")]
    first, second = check(action, tiny, prompt=())
    assert (first.action_start, first.n_action_tokens, first.byte_start) == (0, 6, 0)
    assert (second.action_start, second.n_action_tokens) == (9, 5)
    assert second.byte_start == len("search\nTokyo<|im_end|>")


def test_an_action_cut_inside_a_character_changes_text(tiny):
    (finding,) = check([SEARCH, TOKYO_JAPANESE[0]], tiny)
    assert finding.kind is DriftKind.TEXT
    assert (finding.action_start, finding.byte_start) == (1, 6)
    assert finding.recorded_ids == (TOKYO_JAPANESE[0],)
    assert finding.recorded_text == finding.retokenized_text == "\ufffd"
    assert tiny.pieces(ids_array(finding.retokenized_ids)) == [b"\xef", b"\xbf", b"\xbd"]


def test_a_control_token_spelt_as_plain_text_becomes_a_real_one(tiny):
    typed = letters(tiny, "<|im_end|>")
    (finding,) = check([SEARCH, *typed, IM_END], tiny)
    assert finding.kind is DriftKind.STRUCTURE
    assert (finding.action_start, finding.byte_start) == (1, 6)
    assert finding.recorded_ids == tuple(typed)
    assert finding.retokenized_ids == (IM_END,)
    assert finding.recorded_text == finding.retokenized_text == "<|im_end|>"


def test_a_space_that_encoding_adds_changes_text(tmp_path):
    tokenizer = load_tokenizer(save(metaspace(prefix=True), tmp_path))
    a, end = 3 + 0x61, 2
    (finding,) = check([a, a, end], tokenizer)  # <0x61> <0x61> comes back as ▁a a
    assert finding.kind is DriftKind.TEXT
    assert finding.recorded_text == "aa"
    assert finding.retokenized_text == " aa"


def test_white_space_spelt_otherwise_is_no_change_of_structure(tmp_path):
    backend = metaspace(prefix=False)
    tokenizer = load_tokenizer(save(backend, tmp_path))
    one = backend.token_to_id("▁")
    (finding,) = check([one, one, one], tokenizer)
    assert finding.retokenized_ids == (backend.token_to_id("▁▁▁"),)
    assert finding.kind is DriftKind.IDS_ONLY


def test_added_text_spelt_with_plain_ids_is_a_change_of_structure(tmp_path):
    backend = metaspace(prefix=False)
    tokenizer = load_tokenizer(save(backend, tmp_path))
    (finding,) = check([3 + ord("<"), backend.token_to_id("b"), 3 + ord(">")], tokenizer)
    assert finding.retokenized_ids == (backend.token_to_id("<b>"),)
    assert finding.kind is DriftKind.STRUCTURE


def test_an_id_outside_the_vocabulary_stops_the_check_with_its_place(tiny):
    steps = [
        make_step(0, prompt_delta=[1], action_tokens=[SEARCH]),
        make_step(1, prompt_delta=[1], action_tokens=[SEARCH, 700, 600]),
    ]
    with pytest.raises(InputError) as caught:
        list(check_ids(steps, tiny))
    assert caught.value.code == "I304"
    assert "action id 700 (position 1)" in caught.value.message
    assert caught.value.place is not None
    assert caught.value.place.step_index == 1


class Counting(Tokenizer):
    """A tokenizer that remembers what it encoded."""

    def __init__(self) -> None:
        super().__init__(tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json")), "tiny")
        self.encoded: list[str] = []

    def encode_batch(self, texts):
        self.encoded += texts
        return super().encode_batch(texts)


def test_each_distinct_text_is_encoded_once():
    tokenizer = Counting()
    spelt = letters(tokenizer, "search")
    actions = [[SEARCH], spelt, [SEARCH], [TOKYO], spelt]
    steps = [make_step(i, prompt_delta=[1], action_tokens=a) for i, a in enumerate(actions)]
    found = list(check_ids(steps, tokenizer))
    assert tokenizer.encoded == ["search", "Tokyo"]
    assert [len(findings) for _, findings in found] == [0, 1, 0, 0, 1]


@pytest.mark.model
def test_real_rollouts_drift_where_the_library_itself_says_so():
    library = tokenizers.Tokenizer.from_file(str(SMOLLM2 / "tokenizer.json"))
    tokenizer = load_tokenizer(SMOLLM2)
    rollouts = (ROOT / "fixtures" / "rollouts" / "smollm2.jsonl").read_text().splitlines()
    n_steps = n_drifted = 0
    for line in rollouts:
        for turn in json.loads(line)["turns"]:
            ids = turn["response_token_ids"]
            text = library.decode(ids, skip_special_tokens=False)
            again = library.encode(text, add_special_tokens=False).ids
            findings = check(ids, tokenizer, turn["prompt_token_ids"])
            assert bool(findings) == (again != ids)
            if findings:
                first = next(
                    i for i, (a, b) in enumerate(zip(ids, [*again, None], strict=False)) if a != b
                )
                assert findings[0].action_start == first
                assert findings[0].token_start == len(turn["prompt_token_ids"]) + first
                assert findings[0].recorded_text == library.decode(
                    list(findings[0].recorded_ids), skip_special_tokens=False
                )
            n_steps += 1
            n_drifted += bool(findings)
    assert (n_drifted, n_steps) == (14, 36)
