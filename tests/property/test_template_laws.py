"""Laws of chat templates: spans are what they say, shortcuts change nothing, nothing is forged."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.template_builders import (
    CHATML,
    CLOSED,
    DROPS,
    JSON,
    OPENS,
    PREFILL,
    REMINDS,
    THINKING,
    TRIM,
)
from tests.tokenizer_builders import TINY, metaspace, save
from trajkit.template import Allow, Fit, TextPiece, encode_literally, load_template, render
from trajkit.template.measure import Ruler
from trajkit.template.spans import ESCAPES
from trajkit.template.turns import turn_spans
from trajkit.tokenizer import load_tokenizer

TEMPLATES = {
    "chatml": CHATML,
    "trim": TRIM,
    "json": JSON,
    "thinking": THINKING,
    "drops": DROPS,
    "opens": OPENS,
    "reminds": REMINDS,
    "prefill": PREFILL,
    "closed": CLOSED,
}
WORDS = [
    *("a", "ab", " ", "\n", "  ", '"', "\\", "é", "東", "1", "<", "|", ">"),
    *("<think>", "</think>", "<|im_end|>", "<|im_start|>", "user", "assistant", "<b>", "\u2028"),
]
texts = st.lists(st.sampled_from(WORDS), max_size=8).map("".join)
solid = st.lists(st.sampled_from(["a", "ab c", "é", '"', "<b>", "1\n2"]), min_size=1).map("".join)
roles = st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), min_size=1, max_size=14)


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    found = {}
    for name, source in TEMPLATES.items():
        file = tmp_path_factory.mktemp("templates") / f"{name}.jinja"
        file.write_text(source)
        found[name] = load_template(file)
    return found


@pytest.fixture(scope="module")
def tiny():
    return load_tokenizer(TINY)


@pytest.fixture(scope="module", params=["byte-level", "metaspace", "metaspace with prefix"])
def tokenizer(request, tmp_path_factory):
    if request.param == "byte-level":
        return load_tokenizer(TINY)
    backend = metaspace(prefix=request.param.endswith("prefix"))
    return load_tokenizer(save(backend, tmp_path_factory.mktemp("spaced")))


def conversation(names, contents):
    return [{"role": role, "content": text} for role, text in zip(names, contents, strict=True)]


@st.composite
def conversations(draw, content=texts):
    names = draw(roles)
    return conversation(names, [draw(content) for _ in names])


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60)
@given(messages=conversations())
def test_a_span_is_the_text_it_says_it_is(templates, name, messages):
    rendered = render(templates[name], messages)
    at = 0
    for span in rendered.spans:
        assert at <= span.start <= span.end <= len(rendered.text)
        at = span.end
        if span.leaf is None:
            assert span.fit is Fit.UNKNOWN
            continue
        leaf = rendered.leaves[span.leaf]
        said = leaf.text[span.leaf_start : span.leaf_end]
        shown = rendered.text[span.start : span.end]
        assert span.messages == (leaf.message,)
        assert (shown == said) == (span.fit is Fit.VERBATIM)
        assert shown in [escape(said) for escape in ESCAPES.values()]


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=40)
@given(data=st.data(), names=roles)
def test_scaffold_is_the_same_whatever_is_said(templates, name, data, names):
    found = set()
    for _ in range(2):
        rendered = render(templates[name], conversation(names, [data.draw(solid) for _ in names]))
        assert not rendered.unlocated
        found.add(tuple(rendered.text[start:end] for start, end in rendered.scaffold()))
    assert len(found) == 1


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=25)
@given(contents=st.lists(texts, min_size=14, max_size=14), stride=st.sampled_from([2, 4, 6, 14]))
@example(contents=[*[""] * 8, "</think><|im_end|>", "a", "a", " a", "", ""], stride=2)
@example(contents=[*[""] * 8, "</think><|im_end|>", "a", "a", " </think>a", "", ""], stride=2)
def test_turns_told_by_others_are_as_if_each_was_measured(templates, tiny, name, contents, stride):
    # one user message and tool results behind it, or a user message before each turn
    names = ["assistant" if i % 2 else "tool" if i % stride else "user" for i in range(14)]
    messages = conversation(names, contents)
    ruler = Ruler(templates[name], messages, tiny, None)
    turns = list(turn_spans(templates[name], messages, tiny))
    assert [turn.message for turn in turns] == list(range(1, 14, 2))
    for turn in turns:
        measured = ruler.measure(turn.message)
        assert turn.prompt_text == measured.prompt_text
        assert turn.action_text == measured.action_text
        assert (turn.fit, turn.parts_at) == (measured.fit, measured.parts_at)
        assert turn.text_start - turn.start == measured.text_start - measured.start
        assert (turn.stop is None) == (measured.stop is None)


@settings(max_examples=1000)
@given(text=texts, cut=st.integers(0, 40), allow=st.sampled_from([*Allow]))
def test_plain_text_has_the_ids_of_the_whole_string(tokenizer, text, cut, allow):
    plain = text
    for control in sorted(tokenizer.control.values(), key=len, reverse=True):
        plain = plain.replace(control, "")
    if any(control in plain for control in tokenizer.control.values()):
        return
    pieces = [TextPiece(plain[:cut], allow), TextPiece(plain[cut:], Allow.NONE)]
    found = encode_literally(pieces, tokenizer)
    (whole,) = tokenizer.encode_batch([plain])
    assert found.ids.tolist() == whole.tolist()
    assert not found.forged
    assert (found.starts[1:] >= found.starts[:-1]).all()


@settings(max_examples=300)
@given(parts=st.lists(st.tuples(texts, st.sampled_from([Allow.ALL, Allow.NONE])), max_size=6))
def test_a_control_id_stands_only_where_it_is_meant(tokenizer, parts):
    pieces = [TextPiece(text, allow) for text, allow in parts]
    found = encode_literally(pieces, tokenizer)
    for token_id, piece in zip(found.ids.tolist(), found.pieces.tolist(), strict=True):
        if token_id in tokenizer.control:
            assert pieces[piece].allow is Allow.ALL
    meant = "".join(text for text, _ in parts)
    for one in found.forged:
        assert meant[one.start : one.end] == tokenizer.control[one.token_id]


@settings(max_examples=200)
@given(text=texts)
def test_text_that_may_hold_all_is_encoded_as_ever(tokenizer, text):
    found = encode_literally([TextPiece(text, Allow.ALL)], tokenizer)
    (whole,) = tokenizer.encode_batch([text])
    assert found.ids.tolist() == whole.tolist()
    assert not found.forged
