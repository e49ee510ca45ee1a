"""Laws of mask-check: no row crashes it, places lie in their row, a shift is always a shift."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mask_builders import encode, judge, rules_in
from trajkit.masks.rules import MASK_RULES

USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
words = st.text(st.sampled_from("abc de\n東"), min_size=1, max_size=8)
pieces = st.sampled_from(
    [
        *("<|im_start|>assistant\n", "<|im_start|>user\n", "<|im_end|>", "<|endoftext|>", "\n"),
        *(
            "<think>",
            "</think>",
            "<information>",
            "</information>",
            "<|im_start|>",
            "a",
            "東",
            "\ufffd",
        ),
        *("\nAction 1: x", "\nObservation 1: y", "</search>", "<result>", "</result>"),
    ]
)


def check(*rows: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return judge(Path(folder), *rows)


@st.composite
def rows(draw: Any) -> dict[str, Any]:
    """Return a row of any pieces in any order with any mask, and other columns that fit."""
    parts = draw(st.lists(st.tuples(pieces, st.booleans()), min_size=1, max_size=14))
    ids = [token_id for text, _ in parts for token_id in encode(text)]
    mask = [int(bit) for text, bit in parts for _ in encode(text)]
    row: dict[str, Any] = {"input_ids": ids, "loss_mask": mask}
    if draw(st.booleans()):
        values = st.one_of(st.none(), st.sampled_from([0.0, -0.5, -9999.0]))
        row["logprobs"] = draw(st.lists(values, min_size=len(ids), max_size=len(ids)))
    if draw(st.booleans()):
        row["attention_mask"] = draw(
            st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids))
        )
    if draw(st.booleans()):
        row["finish_reason"] = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    return row


@settings(max_examples=150)
@given(rows())
def test_any_row_is_judged_and_every_place_lies_in_it(row):
    report = check(row)
    for finding in report.findings:
        if finding.token_start is not None:
            assert 0 <= finding.token_start < finding.token_end <= len(row["input_ids"])
            at = finding.token_start
            assert list(finding.ids) == row["input_ids"][at : at + len(finding.ids)]
    assert sum(report.by_rule.values()) == len(report.findings)


@settings(max_examples=60)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_a_chat_trained_on_its_answers_is_clean_and_moved_by_one_it_is_shifted(turns):
    ids: list[int] = []
    mask: list[int] = []
    for question, answer in turns:
        for text, trained in ((USER.format(question), 0), (answer + "<|im_end|>", 1), ("\n", 0)):
            own = encode(text)
            ids += own
            mask += [trained] * len(own)
    assert rules_in(check({"input_ids": ids, "loss_mask": mask})) == {}
    for moved in ([*mask[1:], 0], [0, *mask[:-1]]):
        assert rules_in(check({"input_ids": ids, "loss_mask": moved})) == {"mask-shifted": 1}
    assert rules_in(check({"input_ids": ids, "loss_mask": [1] * len(ids)})) == {"all-trained": 1}
    labels = [token_id if bit else -100 for token_id, bit in zip(ids, mask, strict=True)]
    assert rules_in(check({"input_ids": ids, "labels": labels})) == {}


@settings(max_examples=80)
@given(rows(), st.sampled_from(["<|im_end|>", "<|endoftext|>", "a"]), st.integers(1, 5))
def test_padding_that_attention_leaves_out_changes_no_finding(row, pad, n):
    row.setdefault("attention_mask", [1] * len(row["input_ids"]))
    padding = encode(pad) * n
    padded = {
        name: [*values, *(padding if name == "input_ids" else [0] * len(padding))]
        for name, values in row.items()
        if isinstance(values, list)
    }
    left, right = (check(given) for given in (row, {**row, **padded}))
    assert [(f.rule, f.token_start, f.token_end) for f in left.findings] == [
        (f.rule, f.token_start, f.token_end) for f in right.findings
    ]


@settings(max_examples=60)
@given(rows(), st.sampled_from([rule.code for rule in MASK_RULES]))
def test_a_rule_alone_finds_at_least_what_it_finds_among_others(row, code):
    whole = check(row).by_rule[code]
    with tempfile.TemporaryDirectory() as folder:
        assert judge(Path(folder), row, rules=[code]).by_rule[code] >= whole
