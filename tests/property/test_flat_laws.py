"""Laws of flat text: every byte once, nothing the environment wrote is an action."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from tests.builders import tiny_tokenizer
from tests.markup_builders import flat_of
from trajkit.errors import InputError
from trajkit.ingestion.flat import encode_flat
from trajkit.markup import MARKUPS, FlatTrajectory, Side

PARTS = [
    *("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>"),
    *("<information>", "</information>", "<tool_call>", "</tool_call>", "<tool_response>"),
    *("</tool_response>", "<|im_start|>", "<|im_end|>", "<|im_start|>assistant\n", "Action 2:"),
    *("<|im_start|>user\n", "Thought 1:", "Action 1:", "Observation 1:", "\n", "\n\n", " ", "é"),
    *("a word", ">", "Ġ", "Finish[", MARKUPS[0].phrases[0]),
]
texts = st.lists(st.sampled_from(PARTS), max_size=25).map("".join)
names = st.sampled_from([markup.name for markup in MARKUPS])
WORDS = st.text("ab .>\n→é", max_size=12)


def read(text: str, name: str) -> FlatTrajectory:
    try:
        return flat_of(text, name, prompt="p\n")
    except InputError:
        reject()


@given(texts, names)
def test_what_is_refused_has_a_code_a_place_and_a_hint(text, name):
    try:
        flat_of(text, name, prompt="p\n")
    except InputError as problem:
        refused: Any = problem
    else:
        return
    assert refused.code == "I405"
    assert 0 <= refused.place.byte_offset <= len(text.encode()) + 2
    assert refused.hint


@given(texts, names)
def test_pieces_cover_the_text_once_whatever_it_is(text, name):
    flat = read(text, name)
    spans = [span for step in flat.steps for span in step.results]
    assert spans == sorted(spans)
    for start, end in spans:
        flat.text(start, end)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4), WORDS)
def test_in_a_text_made_as_the_system_makes_it_each_side_gets_its_own(turns, last):
    text, wanted, replies = "", [], []
    for query, document in turns:
        action = f"<think>{query}</think><search>{query}</search>"
        text += f"{action}\n\n<information>{document}</information>\n\n"
        wanted.append(action)
        replies.append(document)
    wanted.append(f"<answer>{last}</answer>")
    flat = read(text + wanted[-1], "search-r1")
    assert [flat.text(step.start, step.end) for step in flat.steps] == wanted
    inner = [flat.text(*step.results[0]) for step in flat.steps[:-1]]
    assert [text.strip("\n") for text in inner] == [text.strip("\n") for text in replies]


@given(texts, names)
def test_a_token_is_an_action_if_and_only_if_the_policy_wrote_its_first_byte(text, name):
    flat = read(text, name)
    assume(flat.steps)
    tokenizer = tiny_tokenizer()
    made: Any = encode_flat(flat, tokenizer)
    writers = [p.writer is Side.POLICY for p in flat.pieces for _ in range(p.start, p.end)]
    at = 0
    joined: list[int] = []
    for step in made.steps:
        n_delta, n_action = len(step["prompt_delta"]), len(step["action_tokens"])
        tail = step["tail_tokens"]
        ids = np.concatenate(
            [step["prompt_delta"], step["action_tokens"], [] if tail is None else tail]
        ).astype(np.int32)
        assert step["prompt_keep"] == len(joined)
        covered = [t for s in step["segments"] for t in range(s.start, s.end)]
        assert covered == list(range(len(ids)))
        for number, piece in enumerate(tokenizer.pieces(ids)):
            assert writers[at] is (n_delta <= number < n_delta + n_action)
            at += len(piece)
        joined += ids.tolist()
    assert at == len(flat.data)
    if not made.count("control_text"):
        [whole] = tokenizer.encode_batch([flat.data.decode()])
        assert joined == whole.tolist()
