"""Laws of causes: planted ones are told or not told, never mistaken; nothing makes them fail."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from bench.causes import PLANTERS, confusion
from bench.world import world_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import tiny_tokenizer
from tests.cause_builders import tokenizer_of
from trajkit.drift.causes import DRIFT_CAUSES, UNEXPLAINED, cause_of
from trajkit.drift.difference import differences
from trajkit.drift.findings import DriftKind, Route
from trajkit.records import ids_array

NAMES = ("qwen3", "llama3_1", "gptoss", "llama2")
KNOWN = {cause.name for cause in DRIFT_CAUSES} | {UNEXPLAINED}
FACTS = ("finish_reason", "stop", "stop_ids", "message", "messages", "template", "templates")
MORE_FACTS = ("tokenizers", "versions", "max_length", "text", "is_truncated")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "reasoning"]) | st.text(max_size=4), inner
        )
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def matrices() -> dict[str, Counter[tuple[str, str]]]:
    found = {}
    for name in NAMES:
        counts, wrong = confusion(world_of(tokenizer_of(name), name))
        assert [(planted, told) for planted, told, _ in wrong] == []
        found[name] = counts
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_cause_is_never_told_as_another(matrices, name):
    for planted, told in matrices[name]:
        assert told in (planted, UNEXPLAINED)


@pytest.mark.parametrize("name", NAMES)
def test_most_of_what_is_planted_is_told(matrices, name):
    counts = matrices[name]
    n_told = sum(n for (planted, told), n in counts.items() if planted == told)
    assert n_told / counts.total() > 0.95


def test_each_cause_is_planted_and_told_somewhere(matrices):
    total: Counter[tuple[str, str]] = sum(matrices.values(), Counter())
    told = {told for planted, told in total if planted == told}
    rare = {"template-version"}  # its marks are those of a family that is not tried here
    assert told >= KNOWN - rare
    assert len(PLANTERS) > 20


ids_lists = st.lists(st.integers(0, 511), min_size=1, max_size=24)


@given(ids_lists, ids_lists, ids_lists, st.sampled_from(Route), st.booleans(), st.data())
@settings(max_examples=150)
def test_no_ids_and_no_facts_make_a_cause_fail(shared, mine, theirs, route, is_prefix, data):
    tokenizer = tiny_tokenizer()
    recorded, other = ids_array(shared + mine), ids_array(shared + theirs)
    start = data.draw(st.integers(0, len(recorded) - 1))
    facts: dict[str, Any] = data.draw(
        st.dictionaries(st.sampled_from([*FACTS, *MORE_FACTS]), values, max_size=4)
    )
    spans = ((start, len(recorded)),) if data.draw(st.booleans()) else ()
    for found in differences(recorded, other, tokenizer, route=route, action=spans, facts=facts):
        difference = found
        if is_prefix:
            difference = replace(found, kind=DriftKind.PREFIX)
        cause, evidence = cause_of(difference)
        assert cause in KNOWN
        assert (cause == UNEXPLAINED) == (evidence == {})
        json.dumps(evidence)
        told = next((one for one in DRIFT_CAUSES if one.name == cause), None)
        if told is not None:
            assert difference.kind in told.kinds
            assert difference.route in told.routes


@given(ids_lists)
@settings(max_examples=30)
def test_equal_lists_have_no_cause(ids):
    same = ids_array(ids)
    assert list(differences(same, same, tiny_tokenizer(), route=Route.PAIR, action=())) == []


texts = st.text(st.sampled_from("<>think/{}[]\"':,\\n\ttool_call|&;Trueu0"), max_size=80)


@given(texts, texts)
@settings(max_examples=150)
def test_no_text_makes_a_cause_fail(mine, theirs):
    tokenizer = tiny_tokenizer()
    for wrapped in ("{}", "<|im_start|>assistant\n<tool_call>{}</tool_call><|im_end|>"):
        recorded, other = (
            next(tokenizer.encode_batch([wrapped.replace("{}", text)])) for text in (mine, theirs)
        )
        for found in differences(recorded, other, tokenizer, route=Route.PAIR, action=()):
            assert cause_of(found)[0] in KNOWN
