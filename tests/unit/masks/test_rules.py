"""Every rule finds the fault that was planted for it and is silent where there is none."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest

from tests.builders import FIXTURES, tiny_tokenizer
from tests.mask_builders import (
    MASKS,
    encode,
    glm,
    judge,
    judge_fixture,
    mistral,
    row_of,
    rules_in,
    thinker,
)
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


def padded(
    pieces: list[tuple[str, int]], pad: str = "<|endoftext|>", n: int = 3, **extra: Any
) -> dict[str, Any]:
    """Return a row with padding behind it that attention_mask leaves out."""
    n_real = sum(len(encode(text)) for text, _ in pieces)
    return {**row_of([*pieces, (pad * n, 0)], **extra), "attention_mask": [1] * n_real + [0] * n}


def response_of(pieces: list[tuple[str, int]], by: int) -> dict[str, Any]:
    """Return a row of a prompt, the first piece, and a response whose mask is off by one."""
    made = row_of(pieces)
    n = len(encode(pieces[0][0]))
    mask = made["loss_mask"][n:]
    return {
        "prompt_ids": made["input_ids"][:n],
        "response_ids": made["input_ids"][n:],
        "response_mask": [*mask[1:], 0] if by < 0 else [0, *mask[:-1]],
    }


def told(report: Any) -> list[tuple[str, str]]:
    """Return the rule and the severity of each finding."""
    return [(finding.rule, finding.severity.value) for finding in report.findings]


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
    "one label in the middle of an answer left out": (
        row_of([(USER + HEADER, 0), ("four", 1), (" and", 0), (" five<|im_end|>", 1)]),
        "turn-partly-trained",
    ),
    "the stop said four times, in a vocabulary that does not pad with it": (
        row_of([(USER + HEADER, 0), ("four" + "<|im_end|>" * 4, 1)]),
        "padding-trained",
    ),
    "other stops behind the stop": (
        row_of([(USER + HEADER, 0), ("four<|im_end|><|endoftext|><|im_end|>", 1)]),
        "stop-not-sampled",
    ),
    "a response mask one token early: the first turn begins where the response does": (
        response_of(
            [(USER + HEADER, 0), ("get<|im_end|>", 1), ("\n" + HEADER, 0), ("four<|im_end|>", 1)],
            -1,
        ),
        "mask-shifted",
    ),
    "a response mask one token late, its first token an opening tag": (
        response_of([(USER + HEADER, 0), ("<think>so</think>four<|im_end|>", 1)], 1),
        "turn-partly-trained",
    ),
    "a turn cut by max_length loses its mask": (
        row_of([(USER + HEADER, 0), ("get<|im_end|>", 1), ("\n" + USER + HEADER + "fou", 0)]),
        "turn-not-trained",
    ),
    "a cut completion left out of one mask and trained by the other": (
        {
            "prompt_ids": encode(USER + HEADER),
            "completion_ids": encode("fou"),
            "completion_mask": [0] * len(encode("fou")),
            "tool_mask": [1] * len(encode("fou")),
        },
        "empty-mask",
    ),
    "a mask that grew with the completion and did not shrink with it": (
        {
            "prompt_ids": encode(USER + HEADER),
            "completion_ids": encode("four<|im_end|>"),
            "tool_mask": [1] * (len(encode("four<|im_end|>")) + 2),
        },
        "mask-misfit",
    ),
    "one log-prob more than ids": (
        {
            **row_of([(USER + HEADER, 0), ("four<|im_end|>", 1)]),
            "logprobs": [-0.5] * (len(encode("four<|im_end|>")) + 1),
        },
        "mask-misfit",
    ),
    "two masks of one row that say other things": (
        {
            **row_of([(USER + HEADER, 0), ("four<|im_end|>", 1)]),
            "response_mask": [1] * len(encode(USER + HEADER + "four<|im_end|>")),
        },
        "mask-misfit",
    ),
    "the stand-in for a failed trajectory": (
        {"prompt_ids": encode(USER + HEADER), "response_ids": [0], "loss_mask": [0]},
        "empty-mask",
    ),
    "targets of a datum that are the inputs again": (
        {
            "model_input": encode(USER + HEADER + "four"),
            "target_tokens": encode(USER + HEADER + "four"),
            "weights": [0] * (len(encode(USER + HEADER)) - 1) + [1] * (len(encode("four")) + 1),
        },
        "wrong-label",
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


TURNS = [(USER + HEADER, 0), ("get 4<|im_end|>", 1), ("\n<|im_start|>tool\n4<|im_end|>\n", 0)]
TURNS += [(HEADER, 0), ("four<|im_end|>", 1)]


def test_a_mask_made_of_its_sum_trains_the_end_of_the_row(tmp_path):
    row = row_of(TURNS)
    n_trained, n = sum(row["loss_mask"]) + 9, len(row["loss_mask"])
    row["loss_mask"] = [0] * (n - n_trained) + [1] * n_trained
    found = rules_in(judge(tmp_path, row))
    assert {"observation-trained", "generation-prompt-trained", "turn-not-trained"} <= set(found)


def test_turns_sliced_by_the_length_of_another_text_are_off_from_the_second_on(tmp_path):
    row = row_of(TURNS)
    n = len(encode("".join(text for text, _ in TURNS[:3])))
    row["loss_mask"] = [*row["loss_mask"][:n], *row["loss_mask"][n + 1 :], 0]
    found = rules_in(judge(tmp_path, row))
    assert found == {"generation-prompt-trained": 1, "stop-not-trained": 1}


LATE = [(USER + HEADER, 0), ("four more<|im_end|>", 1)]
CUT = [(USER + HEADER, 0), ("fou", 1), ("<|endoftext|>" * 3, 0)]


def late(pieces: list[tuple[str, int]], tokenizer: Any = None, **extra: Any) -> dict[str, Any]:
    """Return a row whose mask is late by one."""
    row = row_of(pieces, tokenizer, **extra)
    return {**row, "loss_mask": [0, *row["loss_mask"][:-1]]}


@pytest.mark.parametrize(
    ("row", "tokenizer"),
    [
        (late([*LATE, ("<|endoftext|>" * 3, 0)]), None),
        (late([*LATE, ("<|im_end|>" * 3, 0)]), None),
        (late([*LATE, ("<|im_start|>user\nand?", 0)]), None),
        (late([*LATE, ("\n", 0)]), None),
        ({**padded([LATE[0], ("fou", 1)]), "loss_mask": late(CUT)["loss_mask"]}, None),
        ({**late(LATE), "loss_mask": [1, *row_of(LATE)["loss_mask"][:-1]]}, None),
        (
            late([("[INST] how many? [/INST]", 0), ("four</s>", 1), ("</s></s>", 0)], mistral()),
            mistral(),
        ),
    ],
)
def test_a_single_turn_that_is_late_trains_what_stands_behind_it(row, tokenizer, tmp_path):
    report = judge(tmp_path, row, tokenizer=tokenizer)
    assert rules_in(report) == {"mask-shifted": 1}
    assert report.findings[0].detail.endswith("one token late")


def test_a_single_turn_at_the_end_of_its_row_is_ambiguous_and_says_so(tmp_path):
    for row in (late(LATE), response_of(LATE, 1)):
        (finding,) = judge(tmp_path, row).findings
        assert (finding.rule, finding.severity) == ("turn-partly-trained", Severity.WARNING)
        assert "ambiguous, it alone, or a mask late by one, its end cut off" in finding.detail
    n = len(encode(USER + HEADER)) + 1
    for behind in ("\n", "<|endoftext|>" * 3, "\n" + USER):
        row = row_of([*LATE, (behind, 0)])
        row["loss_mask"][n - 1] = 0
        (finding,) = judge(tmp_path, row).findings
        assert finding.rule == "turn-partly-trained"
        assert "ambiguous" not in finding.detail  # a late mask would train what stands behind


def test_the_first_token_left_out_where_the_next_message_is_the_stop_is_no_shift(tmp_path):
    head = ("<|user|>\nhow many?<|assistant|>\ng", 0)
    row = row_of([head, ("et four<|user|>", 1), ("\nthanks", 0)], glm())
    assert rules_in(judge(tmp_path, row, tokenizer=glm())) == {"turn-partly-trained": 1}


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
    "thoughts between texts left out": row_of(
        [(USER + HEADER, 0), ("a", 1), ("<think>so</think>", 0), ("four<|im_end|>", 1)]
    ),
    "a tag that prose mentions": row_of(
        [(USER + HEADER, 0), ("close it, or the <answer> tag stays open<|im_end|>", 1)]
    ),
    "a cut action padded": padded([(USER + HEADER, 0), ("fou", 1)]),
    "a cut action padded with the stop": padded([(USER + HEADER, 0), ("fou", 1)], "<|im_end|>"),
    "a cut action padded, without attention": row_of(
        [(USER + HEADER, 0), ("fou", 1), ("<|endoftext|>" * 3, 0)]
    ),
    "a row cut behind a finished turn": row_of(
        [(USER + HEADER, 0), ("get<|im_end|>", 1), ("\n<|im_start|>tool\n14 mil", 0)],
        finish_reason="length",
    ),
    "versions of what was sampled": {
        **row_of([(USER + HEADER, 0), ("four<|im_end|>", 1)]),
        "versions": [-1] * len(encode(USER + HEADER)) + [7] * len(encode("four<|im_end|>")),
    },
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_row_breaks_no_rule(name, tmp_path):
    assert rules_in(judge(tmp_path, PLAIN[name])) == {}


CHAT = [(USER + HEADER, 0), ("a, and not five or six or seven<|im_end|>", 1)]


def with_zeros(*behind: int) -> dict[str, Any]:
    """Return a row whose log-probs are -0.25, and 0.0 where counted from the row's end."""
    row = row_of(CHAT)
    n = len(row["input_ids"])
    row["logprobs"] = [-0.25 * bit for bit in row["loss_mask"]]
    for back in behind:
        row["logprobs"][n - back] = 0.0
    row["logprobs"][n - 12] = -0.5
    return row


@pytest.mark.parametrize(
    ("zeros", "found"),
    [
        ((5,), []),
        ((1,), [("placeholder-logprobs", "note")]),
        ((1, 2, 3), [("placeholder-logprobs", "note")]),
        ((1, 5), []),
        (range(1, 10), [("placeholder-logprobs", "warning")]),
    ],
)
def test_zeros_at_the_end_of_an_action_are_told_by_how_odd_they_are(zeros, found, tmp_path):
    row = with_zeros(*zeros)
    assert sum(row["loss_mask"]) >= 20
    assert told(judge(tmp_path, row)) == found


def test_a_short_turn_of_zeros_is_a_note(tmp_path):
    row = row_of([*CHAT, ("\n" + HEADER, 0), ("b<|im_end|>", 1)])
    row["logprobs"] = [-0.25 * bit for bit in row["loss_mask"]]
    row["logprobs"][-2:] = [0.0, 0.0]
    row["logprobs"][-9] = -0.0
    row["logprobs"][len(encode(USER + HEADER))] = -1.0
    assert told(judge(tmp_path, row)) == [("placeholder-logprobs", "note")]
    assert told(judge(tmp_path, {**row, "temperature": 0})) == []


def test_an_opening_tag_that_is_left_out_alone_is_a_note(tmp_path):
    pieces = [(USER + HEADER + "<think>", 0), ("so</think>four<|im_end|>", 1)]
    row = row_of(pieces, thinker())
    assert told(judge(tmp_path, row, tokenizer=thinker())) == [("turn-partly-trained", "note")]
    broken = row_of([(USER + HEADER + "<think>\n", 0), pieces[1]], thinker())
    assert told(judge(tmp_path, broken, tokenizer=thinker())) == []
    n = len(row["input_ids"]) - len(encode("so</think>four<|im_end|>", thinker())) - 1
    sampled = {
        "prompt_ids": row["input_ids"][:n],
        "response_ids": row["input_ids"][n:],
        "response_mask": row["loss_mask"][n:],
    }
    found = told(judge(tmp_path, sampled, tokenizer=thinker()))
    assert found == [("turn-partly-trained", "warning")]


def test_padding_that_ends_texts_too_hides_whether_the_stop_was_cut(tmp_path):
    pieces = [("[INST] how many? [/INST]", 0), ("fou", 1), ("</s></s></s>", 0)]
    row = row_of(pieces, mistral())
    assert told(judge(tmp_path, row, tokenizer=mistral())) == [("stop-not-trained", "note")]
    once = row_of([*pieces[:2], ("</s>", 0)], mistral())
    assert told(judge(tmp_path, once, tokenizer=mistral())) == [("stop-not-trained", "error")]


def test_text_before_the_first_turn_is_the_prompts(tmp_path):
    row = row_of(
        [("</s>", 0), ("be kind", 1), ("[INST] how many? [/INST]", 0), ("4</s>", 1)], mistral()
    )
    row["input_ids"][0] = row["input_ids"][-1]
    (finding,) = judge(tmp_path, row, tokenizer=mistral()).findings
    assert (finding.rule, finding.text) == ("context-trained", "be kind")
    left_cut = row_of([("b</s>", 1), ("[INST] how many? [/INST]", 0), ("4</s>", 1)], mistral())
    assert told(judge(tmp_path, left_cut, tokenizer=mistral())) == []


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
    assert "mask-misfit" not in report.not_run
    assert len(set(report.not_run)) == len(report.not_run)
    assert not mask_check(path, rules=["mask-shifted"]).is_clean
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
