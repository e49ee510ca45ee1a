"""Every rule finds the fault that was planted for it and is silent where there is none."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest

from tests.builders import FIXTURES, tiny_tokenizer
from tests.mask_builders import MASKS, encode, glm, judge, judge_fixture, row_of, rules_in
from trajkit.errors import UsageProblem
from trajkit.masks.check import mask_check
from trajkit.masks.findings import SEVERITIES, Severity
from trajkit.masks.rules import MASK_RULES, rule_named
from trajkit.masks.texts import RULE_TEXTS

CODES = [rule.code for rule in MASK_RULES]
USER = "<|im_start|>user\nhow many?<|im_end|>\n"
HEADER = "<|im_start|>assistant\n"


@pytest.mark.parametrize("code", CODES)
def test_a_rule_finds_what_was_planted_for_it_and_nothing_else(code, tmp_path):
    report = judge_fixture(code, "bad", tmp_path)
    n_records = max(report.n_trajectories // 2, 1) if code == "trained-twice" else None
    assert set(rules_in(report)) == {code}
    assert report.by_rule[code] >= (n_records or report.n_trajectories)
    assert {finding.severity for finding in report.findings} == {rule_named(code).severity}


@pytest.mark.parametrize("code", CODES)
def test_a_rule_is_silent_where_nothing_is_wrong(code, tmp_path):
    report = judge_fixture(code, "good", tmp_path)
    assert report.by_rule[code] == 0
    assert report.n_sequences >= 1
    assert all(finding.severity is not Severity.ERROR for finding in report.findings)


@pytest.mark.parametrize("code", CODES)
def test_a_place_holds_the_ids_it_names(code, tmp_path):
    for finding in judge_fixture(code, "bad", tmp_path).findings:
        if finding.token_start is None:
            assert finding.token_end is None
            assert finding.window == ()
            continue
        assert finding.token_end is not None
        assert 0 <= finding.token_start < finding.token_end
        assert 1 <= len(finding.ids) <= finding.token_end - finding.token_start
        shown = [token_id for stretch in finding.window for token_id in stretch.ids]
        at = finding.token_start - finding.window[0].token_start
        assert tuple(shown[at : at + len(finding.ids)]) == finding.ids
        signs = [stretch.trained for stretch in finding.window]
        assert all(left != right for left, right in pairwise(signs))


def test_the_fixtures_are_what_their_maker_writes():
    sys.path.insert(0, str(FIXTURES))
    try:
        import make_masks  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(FIXTURES))
    made = make_masks.files()
    assert {str(path.relative_to(MASKS)) for path in MASKS.rglob("*.*")} == set(made)
    for name, text in made.items():
        assert (MASKS / name).read_text(encoding="utf-8") == text


def test_rules_stand_worst_first_and_explain_each_other():
    assert len(CODES) == len(set(CODES))
    assert set(CODES) == set(RULE_TEXTS)
    order = [SEVERITIES.index(rule.severity) for rule in MASK_RULES]
    assert order == sorted(order)
    for number, rule in enumerate(MASK_RULES):
        assert all(CODES.index(hidden) > number for hidden in rule.hides)


def test_an_unknown_rule_is_a_usage_error_that_tells_the_known_ones():
    with pytest.raises(UsageProblem) as caught:
        rule_named("mask-shifts")
    assert caught.value.code == "U103"
    assert "mask-shifted" in str(caught.value.hint)


# --- public mask bugs, in the ids of small vocabularies


BUGS: dict[str, tuple[dict[str, Any], str]] = {
    "a template without generation tags gives an all-zero mask": (
        row_of([(USER + HEADER + "four<|im_end|>\n", 0)]),
        "empty-mask",
    ),
    "a mask that runs to the end of the conversation": (
        row_of([("<|im_start|>assistant\n", 0), ("A<|im_end|>\n" + USER, 1)]),
        "context-trained",
    ),
    "an SFT mask off by one: the last id of the header in, the stop out": (
        row_of(
            [
                (USER + HEADER[:-1], 0),
                (HEADER[-1] + "four", 1),
                ("<|im_end|>", 0),
            ]
        ),
        "mask-shifted",
    ),
    "the system prompt measured with a text of its own: the turn begins late": (
        row_of([(USER + HEADER + "fo", 0), ("ur more<|im_end|>", 1)]),
        "turn-partly-trained",
    ),
    "the first token of an answer left out behind thoughts that the template wrote": (
        row_of([(USER + HEADER + "<think>\n\n</think>\n\nfo", 0), ("ur<|im_end|>", 1)]),
        "turn-partly-trained",
    ),
    "the stop of each turn left out": (
        row_of([(USER + HEADER, 0), ("four", 1), ("<|im_end|>\n" + USER, 0)]),
        "stop-not-trained",
    ),
    "the line break behind the stop trained": (
        row_of([(USER + HEADER, 0), ("four<|im_end|>\n", 1), (USER, 0)]),
        "scaffold-trained",
    ),
    "tool results in one assistant message": (
        row_of([(HEADER, 0), ("<search>q</search><result>r</result><|im_end|>", 1)]),
        "observation-trained",
    ),
    "end of text appended to a cut completion, with log-prob 0.0": (
        row_of([(USER + HEADER, 0), ("fo<|im_end|>", 1)], finish_reason="length"),
        "stop-not-sampled",
    ),
    "the stop doubled by a template": (
        row_of([(USER + HEADER, 0), ("four<|im_end|><|im_end|>", 1), ("\n", 0)]),
        "stop-not-sampled",
    ),
    "a non-zero filler off the mask": (
        {
            **row_of([(USER + HEADER, 0), ("four<|im_end|>", 1)]),
            "logprobs": [-1.0] * len(encode(USER + HEADER))
            + [-0.1 * i for i in range(len(encode("four<|im_end|>")))],
        },
        "logprobs-off-mask",
    ),
    "missing log-probs padded with 0.0": (
        {
            **row_of([(USER + HEADER, 0), ("four and more<|im_end|>", 1)]),
            "logprobs": [0.0] * len(encode(USER + HEADER + "four and more<|im_end|>")),
        },
        "placeholder-logprobs",
    ),
    "every token of a multi-turn row trained": (
        row_of([(USER + HEADER + "four<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n", 1)]),
        "all-trained",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_mask_bug_that_was_reported_in_public_is_caught(bug, tmp_path):
    row, rule = BUGS[bug]
    assert rules_in(judge(tmp_path, row)) == {rule: 1}


def test_a_stop_that_opens_the_next_message_is_told_from_a_trained_one(tmp_path):
    head = ("<|user|>\nhow many?<|assistant|>", 0)
    rows = [
        row_of([head, ("\nget", 1), ("<|user|>\nthanks", 0)], glm()),
        row_of([head, ("\nget<|user|>", 1), ("\nthanks", 0)], glm()),
    ]
    report = judge(tmp_path, *rows, tokenizer=glm())
    assert rules_in(report) == {"stop-of-next": 1}
    assert [finding.trajectory_id for finding in report.findings] == ["#0"]


# --- no false alarms


PLAIN = {
    "a single turn": row_of([(USER + HEADER, 0), ("four<|im_end|>", 1)]),
    "a single turn cut by max_length": row_of([(USER + HEADER, 0), ("fou", 1)]),
    "text without turns, all of it trained": row_of([("Tokyo has 14 million inhabitants.", 1)]),
    "instructions and a response without control ids": row_of(
        [("Question: how many?\nAnswer:", 0), (" four", 1)]
    ),
    "a report with labels": row_of([(USER + HEADER, 0), ("Observation: none<|im_end|>", 1)]),
    "XML": row_of([(USER + HEADER, 0), ("<root><result>4</result></root><|im_end|>", 1)]),
    "tags that the prompt speaks of": row_of(
        [
            ("<|im_start|>system\nbetween <information> and </information><|im_end|>\n", 0),
            (USER + HEADER, 0),
            ("four<|im_end|>", 1),
        ]
    ),
    "thoughts that the prompt opened": row_of(
        [(USER + HEADER + "<think>\n", 0), ("so</think>four<|im_end|>", 1)]
    ),
    "thoughts left out": row_of([(USER + HEADER + "<think>so</think>", 0), ("four<|im_end|>", 1)]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_row_breaks_no_rule(name, tmp_path):
    assert rules_in(judge(tmp_path, PLAIN[name])) == {}


def test_one_log_prob_of_zero_is_a_probability_of_one(tmp_path):
    row = row_of([(USER + HEADER, 0), ("four, and not five<|im_end|>", 1)])
    n_trained = sum(row["loss_mask"])
    likely = [0.0, -0.25, *[0.0] * (n_trained - 2)]
    row["logprobs"] = [0.0] * (len(row["loss_mask"]) - n_trained) + likely
    assert rules_in(judge(tmp_path, row)) == {}


def test_rows_without_a_tokenizer_are_judged_by_the_rules_that_need_none(tmp_path):
    path = MASKS / "padding-trained" / "bad.jsonl"
    report = mask_check(path)
    assert report.by_rule["padding-trained"] == 1  # the row with an attention mask
    assert "mask-shifted" not in report.not_run
    assert "stop-not-trained" in report.not_run
    assert not report.is_clean
    assert not mask_check(MASKS / "padding-trained" / "good.jsonl").is_clean
    only = mask_check(MASKS / "padding-trained" / "good.jsonl", rules=["padding-trained"])
    assert only.is_clean


def test_the_demo_and_the_real_rollouts_break_no_rule(tmp_path):
    from trajkit.ingestion.run import ingest

    ingest([str(FIXTURES / "rollouts" / "smollm2.jsonl")], tmp_path / "real.parquet")
    report = mask_check(tmp_path / "real.parquet")
    assert report.findings == []
    assert report.n_trained_tokens == 1461
    logs = FIXTURES.parent / "src" / "trajkit" / "demo" / "logs"
    ingest([str(logs)], tmp_path / "demo.parquet", tokenizer=tiny_tokenizer())
    assert mask_check(tmp_path / "demo.parquet", tiny_tokenizer()).is_clean
