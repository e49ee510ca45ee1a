"""What control ids mean: turns by their headers and stops, the environment by its tags."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tests.builders import tiny_tokenizer
from tests.mask_builders import encode, glm
from trajkit.masks.marks import (
    environment_spans,
    marks_of,
    padding_from,
    turns_of,
    unclosed_tag,
)
from trajkit.records import ids_array
from trajkit.tokenizer import Tokenizer


def vocabulary(*control: str) -> Tokenizer:
    """Return a vocabulary of bytes with the control ids of a template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    return Tokenizer(backend, "made")


def turns(text: str, tokenizer: Tokenizer):
    """Return each turn as role, header, white space that may be either, and content."""
    ids = ids_array(encode(text, tokenizer))
    return [
        (
            turn.role,
            tokenizer.text(ids[turn.start : turn.low]),
            tokenizer.text(ids[turn.low : turn.high]),
            tokenizer.text(ids[turn.high : turn.end]),
        )
        for turn in turns_of(ids, marks_of(tokenizer))
    ]


LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")


@pytest.mark.parametrize(
    ("control", "text", "found"),
    [
        (
            ("<start_of_turn>", "<end_of_turn>"),
            "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n",
            [
                ("user", "<start_of_turn>user\n", "", "a<end_of_turn>"),
                ("model", "<start_of_turn>model\n", "", "b<end_of_turn>"),
            ],
        ),
        (
            HARMONY,
            "<|start|>user<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
            [
                ("user", "<|start|>user", "", "<|message|>a<|end|>"),
                ("assistant", "<|start|>assistant", "", "<|channel|>final<|message|>b<|return|>"),
            ],
        ),
        (
            ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
            "<｜User｜>a<｜Assistant｜>b<｜end▁of▁sentence｜>c",
            [
                ("user", "<｜User｜>", "", "a"),
                ("assistant", "<｜Assistant｜>", "", "b<｜end▁of▁sentence｜>"),
            ],
        ),
        (
            ("[INST]", "[/INST]", "</s>"),
            "[INST] a [/INST] b</s>",
            [("user", "[INST]", "", " a "), ("assistant", "[/INST]", "", " b</s>")],
        ),
        (
            ("<|im_start|>", "<|im_end|>"),
            "<|im_start|>assistant",
            [("assistant", "<|im_start|>assistant", "", "")],
        ),
        (("<|im_start|>", "<|im_end|>"), "no turns", []),
    ],
)
def test_turns_of_each_kind_of_template(control, text, found):
    assert turns(text, vocabulary(*control)) == found


def test_a_line_break_behind_a_header_may_be_either_side():
    ids = ids_array(encode("<|assistant|>\na", glm()))
    (turn,) = turns_of(ids, marks_of(glm()))
    assert (turn.low, turn.high) == (1, 2)


def test_a_header_with_a_token_of_line_breaks():
    text = "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>"
    ((role, header, _, content),) = turns(text, vocabulary(*LLAMA))
    assert role == "assistant"
    assert header.startswith("<|start_header_id|>assistant<|end_header_id|>")
    assert content.endswith("b<|eot_id|>")


def test_stops_pads_and_shared_ids_of_vocabularies():
    tiny = marks_of(tiny_tokenizer())
    assert tiny.stops.tolist() == [0, 2]
    assert (tiny.pads.tolist(), tiny.shared.tolist()) == ([], [])
    assert tiny.text_ends.tolist() == [0]
    made = marks_of(glm())
    names = {glm().control[token_id] for token_id in made.shared.tolist()}
    assert names == {"<|user|>", "<|observation|>"}
    assert marks_of(vocabulary("<|user|>", "<|assistant|>", "<|end|>")).shared.tolist() == []
    padded = vocabulary("<pad>", "</s>")
    assert [padded.control[i] for i in marks_of(padded).pads.tolist()] == ["<pad>"]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("a<information>b</information>c", ["<information>b</information>"]),
        ("only <information> is named", []),
        ("<information> twice <information>b</information>", ["<information>b</information>"]),
        ("</information> first", []),
        ("<tool_response>x</tool_response>", ["<tool_response>x</tool_response>"]),
        ("</search><result>r</result>", ["<result>r</result>"]),
        ("<p><result>r</result>", []),
        ("Action: x\nObservation: y\nThought: z", ["Observation: y\n"]),
        ("Action 1: x\nObservation 1: y", ["Observation 1: y"]),
        ("Thought: x\nObservation: y", []),
        ("an Action: x\nan Observation: y", []),
        ("", []),
    ],
)
def test_what_tags_and_labels_give_to_the_environment(text, spans):
    pieces = [character.encode() for character in text]
    assert [text[a:b] for a, b in environment_spans(pieces)] == spans


def test_a_token_belongs_to_the_span_of_its_first_byte():
    pieces = [b"a<infor", b"mation>b</information", b">c", b"d"]
    assert environment_spans(pieces) == [(1, 3)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"<think>a", ("<think>", 0)),
        (b"a<think>b</think>", None),
        (b"a</think>b", None),
        (b"<think>a</think><search>q", ("<search>", 16)),
        (b"<think><search>a</think>", None),
        (b"<answer>a</think>", ("<answer>", 0)),
        (b"or the <answer> tag", None),
        (b"`<answer>` is a tag", None),
        (b"so:\n \t<answer>4", ("<answer>", 6)),
        (b"<think>a</think> <answer>4", ("<answer>", 17)),
        (b"", None),
    ],
)
def test_the_tag_that_is_left_open(text, found):
    assert unclosed_tag(text) == found


@pytest.mark.parametrize(
    ("text", "n_trained", "n_padding"),
    [
        ("<|im_start|>a<|im_end|>", 0, 0),
        ("<|im_start|>a<|im_end|><|im_end|>", 0, 1),
        ("<|im_start|>a<|im_end|><|im_end|>", 4, 0),
        ("<|im_start|>a<|endoftext|><|endoftext|>", 0, 2),
        ("a<|endoftext|><|endoftext|>", 0, 1),
        ("<|im_start|>a<|im_end|><|endoftext|><|endoftext|>", 0, 2),
        ("<|im_start|>aaa", 0, 0),
        ("", 0, 0),
    ],
)
def test_padding_that_nothing_but_the_end_of_a_row_tells(text, n_trained, n_padding):
    ids = ids_array(encode(text))
    trained = np.arange(len(ids)) < n_trained
    assert len(ids) - padding_from(ids, trained, marks_of(tiny_tokenizer())) == n_padding


def test_ids_that_only_pad_are_padding():
    tokenizer = vocabulary("<pad>", "</s>")
    ids = ids_array(encode("a</s><pad><pad>", tokenizer))
    nothing = np.zeros(len(ids), dtype=np.bool_)
    assert padding_from(ids, nothing, marks_of(tokenizer)) == 2


def test_no_turn_goes_on_into_padding():
    ids = ids_array(encode("<|im_start|>user\nab<|im_end|><|im_start|>user\n"))
    real = np.arange(len(ids)) < len(encode("<|im_start|>user\na"))
    (turn,) = turns_of(ids, marks_of(tiny_tokenizer()), real)
    assert turn.end == int(real.sum())


@pytest.mark.parametrize(
    ("header", "is_tool"),
    [
        ("functions.search to=assistant<|channel|>commentary", True),
        ("assistant to=functions.search<|channel|>commentary", False),
        ("tool", True),
        ("user", False),
    ],
)
def test_who_speaks_to_a_harmony_policy_is_a_tool(header, is_tool):
    tokenizer = vocabulary(*HARMONY)
    ids = ids_array(encode(f"<|start|>{header}<|message|>a<|end|>", tokenizer))
    (turn,) = turns_of(ids, marks_of(tokenizer))
    assert turn.is_tool is is_tool
