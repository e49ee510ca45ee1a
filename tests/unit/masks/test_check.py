"""Data into a report: what is judged, how it is counted, what is refused, what it costs."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import FIXTURES, TINY, make_step, make_trajectory, tiny_tokenizer
from tests.mask_builders import (
    MASKS,
    encode,
    judge,
    row_of,
    rules_in,
    write_rows,
    write_steps,
)
from trajkit.errors import InputError, TrajkitError, UsageProblem
from trajkit.ingestion.run import ingest
from trajkit.masks.check import mask_check
from trajkit.records import MaskRun, Segment, SegmentKind, Trajectory

HEADER = "<|im_start|>user\nhow many?<|im_end|>\n<|im_start|>assistant\n"
GOOD = row_of([(HEADER, 0), ("four<|im_end|>", 1)])
BAD = row_of([(HEADER, 0), ("four", 1), ("<|im_end|>\n", 0)])


ROWS_AND_STEPS = (
    *("mask-shifted", "observation-trained", "context-trained", "empty-mask"),
    *("generation-prompt-trained", "stop-not-trained", "stop-not-sampled", "scaffold-trained"),
    *("turn-partly-trained", "turn-not-trained", "unclosed-tag", "replacement-character"),
    "placeholder-logprobs",
)


def sampled(*actions: str, finish: str = "stop", **given):
    """Return a trajectory of calls that append to each other."""
    calls, prompt = [], encode(HEADER)
    for action in actions:
        ids = encode(action)
        calls.append((list(prompt), ids))
        prompt = [*prompt, *ids, *encode("\n" + HEADER)]
    n = len(calls)
    return make_trajectory(
        calls, finish_reason=[finish] * n, is_truncated=[finish == "length"] * n, **given
    )


def test_rows_and_their_ingested_steps_break_the_same_rules(tmp_path):
    for rule in ROWS_AND_STEPS:
        path = MASKS / rule / "bad.jsonl"
        out = tmp_path / f"{rule}.parquet"
        ingest([str(path)], out, tokenizer=tiny_tokenizer())
        left, right = (mask_check(source, TINY) for source in (path, out))
        assert rules_in(left) == rules_in(right)
        assert (left.source, right.source) == ("rows", "steps")
        assert [f.trajectory_id for f in left.findings] == [f.trajectory_id for f in right.findings]


def test_a_place_in_step_records_counts_from_the_steps_own_delta(tmp_path):
    trajectory = sampled("<search>x</search><|im_end|>", "four", "five<|im_end|>")
    second = trajectory.steps[1]
    path = write_steps(tmp_path / "s.parquet", trajectory)
    report = mask_check(path, tiny_tokenizer(), rules=["stop-missing"])
    (finding,) = report.findings
    end = len(second.prompt_delta) + len(second.action_tokens)
    assert (finding.step_index, finding.token_start, finding.token_end) == (1, end - 1, end)
    assert finding.ids == (encode("four")[-1],)


def test_a_stop_that_the_next_prompt_holds_is_told_at_the_step_it_ends(tmp_path):
    first = make_step(0, is_terminal=False, prompt_delta=encode(HEADER), action_tokens=encode("x"))
    delta = encode("<|im_end|>\n" + HEADER)
    second = make_step(1, parent=first, prompt_delta=delta, action_tokens=encode("y<|im_end|>"))
    path = write_steps(tmp_path / "s.parquet", Trajectory(trajectory_id="t", steps=(first, second)))
    report = mask_check(path, tiny_tokenizer())
    assert rules_in(report) == {"stop-not-trained": 1}
    (finding,) = report.findings
    n_own = len(encode(HEADER)) + 1
    assert (finding.step_index, finding.token_start, finding.token_end) == (0, n_own, n_own + 1)
    assert finding.text == "<|im_end|>"


def test_a_cut_action_may_lack_its_stop_and_a_whole_one_may_not(tmp_path):
    delta = encode("<|im_end|>\n" + HEADER)
    cases: list[tuple[bool, dict[str, int]]] = [(True, {}), (False, {"stop-not-trained": 1})]
    for is_truncated, found in cases:
        first = make_step(
            0,
            is_terminal=False,
            prompt_delta=encode(HEADER),
            action_tokens=encode("x"),
            is_truncated=is_truncated,
        )
        second = make_step(1, parent=first, prompt_delta=delta, action_tokens=encode("y<|im_end|>"))
        steps = Trajectory(trajectory_id="t", steps=(first, second))
        path = write_steps(tmp_path / "s.parquet", steps)
        assert rules_in(mask_check(path, tiny_tokenizer())) == found


def test_ids_that_something_inserted_must_not_be_trained(tmp_path):
    action = encode("four<|im_end|>")
    n = len(encode(HEADER))
    given: dict[str, Any] = {
        "prompt_delta": encode(HEADER),
        "action_tokens": action,
        "segments": (Segment(SegmentKind.INSERTED, n + len(action) - 1, n + len(action)),),
    }
    path = write_steps(
        tmp_path / "s.parquet",
        Trajectory(
            trajectory_id="t",
            steps=(make_step(**given, source_mask=(MaskRun(n, n + len(action), 1.0),)),),
        ),
    )
    report = mask_check(path, tiny_tokenizer())
    assert "stop-not-sampled" in rules_in(report)
    derived = Trajectory(trajectory_id="t", steps=(make_step(**given),))
    path = write_steps(tmp_path / "d.parquet", derived)
    assert "stop-not-sampled" not in rules_in(mask_check(path, tiny_tokenizer()))


def test_a_claimed_mask_over_recorded_actions_is_held_against_them(tmp_path):
    n, n_action = len(encode(HEADER)), len(encode("four<|im_end|>"))
    masks = {
        "mask-shifted": (n - 1, n + n_action - 1),
        "mask-misplaced": (n - 2, n + n_action - 2),
        "mask-misfit": (n, n + n_action + 5),
        "all-trained": (0, n + n_action),
        "context-trained": (2, n + n_action),
    }
    for rule, (start, end) in masks.items():
        trajectory = sampled("four<|im_end|>", source_mask=[(MaskRun(start, end, 1.0),)])
        path = write_steps(tmp_path / "s.parquet", trajectory)
        assert rule in rules_in(mask_check(path, tiny_tokenizer())), rule


def test_a_chosen_loss_mask_is_judged_in_place_of_the_sources(tmp_path):
    n = len(encode(HEADER))
    shifted = [(MaskRun(n - 1, n + 2, 1.0),)]
    path = write_steps(tmp_path / "s.parquet", sampled("four<|im_end|>", source_mask=shifted))
    own, chosen = (mask_check(path, tiny_tokenizer(), train=train) for train in (None, "action"))
    assert (own.n_claimed, chosen.n_claimed) == (1, 0)
    assert rules_in(own)
    assert rules_in(chosen) == {}
    assert chosen.policy == "action"


@pytest.mark.parametrize("train", ["observation", "all"])
def test_context_that_is_trained_on_purpose_is_no_finding(train, tmp_path):
    trajectory = sampled("<search>x</search><|im_end|>", "four<|im_end|>")
    path = write_steps(tmp_path / "s.parquet", trajectory)
    report = mask_check(path, tiny_tokenizer(), train=train)
    assert set(rules_in(report)) <= {"empty-mask"}


def test_a_policy_that_trains_nothing_says_so_once_a_trajectory(tmp_path):
    path = write_steps(tmp_path / "s.parquet", sampled("a<|im_end|>", "b<|im_end|>"))
    report = mask_check(path, tiny_tokenizer(), train="rewarded")
    assert rules_in(report) == {"empty-mask": 1}
    assert report.n_trained_tokens == 0


def test_log_probs_of_greedy_sampling_are_zero_and_right(tmp_path):
    action = "four and four are eight<|im_end|>"
    zeros = [0.0] * len(encode(action))
    cases: list[tuple[float, dict[str, int]]] = [(0.0, {}), (1.0, {"placeholder-logprobs": 1})]
    for temperature, found in cases:
        steps = sampled(action, rollout_logprobs=[zeros], temperature=[temperature])
        path = write_steps(tmp_path / "s.parquet", steps)
        assert rules_in(mask_check(path, tiny_tokenizer())) == found


def test_text_only_records_cannot_be_judged(tmp_path):
    path = write_steps(tmp_path / "s.parquet", Trajectory(trajectory_id="t", steps=(make_step(),)))
    report = mask_check(path, tiny_tokenizer())
    assert (report.n_sequences, report.n_without_ids, report.is_clean) == (0, 1, False)


def test_parquet_rows_are_read_like_json_ones(tmp_path):
    rows = [{"id": "a", **GOOD}, {"id": "b", **BAD}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    report = mask_check(tmp_path / "rows.parquet", tiny_tokenizer())
    assert rules_in(report) == {"stop-not-trained": 1}
    (finding,) = report.findings
    assert (finding.trajectory_id, finding.record, finding.line) == ("b", 1, 2)


def test_labels_that_parquet_holds_as_floats_are_labels(tmp_path):
    labels = [
        float(token_id) if bit else -100.0
        for token_id, bit in zip(GOOD["input_ids"], GOOD["loss_mask"], strict=True)
    ]
    table = pa.Table.from_pylist([{"input_ids": GOOD["input_ids"], "labels": labels}])
    pq.write_table(table, tmp_path / "rows.parquet")
    assert mask_check(tmp_path / "rows.parquet", tiny_tokenizer()).is_clean


# --- selection


def test_rows_are_chosen_by_id_by_number_and_by_limit(tmp_path):
    path = write_rows(tmp_path / "r.jsonl", {"id": "a", **BAD}, BAD, {"id": "c", **GOOD})
    assert mask_check(path, TINY).n_trajectories == 3
    assert rules_in(mask_check(path, TINY, only=["a", "#1"])) == {"stop-not-trained": 2}
    assert mask_check(path, TINY, only=["c"]).is_clean
    assert mask_check(path, TINY, limit=1).n_trajectories == 1
    with pytest.raises(UsageProblem) as caught:
        mask_check(path, TINY, only=["d"])
    assert caught.value.code == "U107"


def test_steps_and_rules_are_chosen(tmp_path):
    path = write_steps(tmp_path / "s.parquet", sampled("a", "b", "c"))
    report = mask_check(path, TINY, rules=["stop-missing"], steps=lambda index: index == 1)
    assert report.by_rule == {"stop-missing": 1}
    assert [finding.step_index for finding in report.findings] == [1]
    assert report.n_steps == 1
    with pytest.raises(UsageProblem) as caught:
        mask_check(path, TINY, steps=lambda index: index > 5)
    assert caught.value.code == "U107"


def test_a_rule_that_is_not_asked_for_hides_no_other(tmp_path):
    row = row_of([(HEADER + "get<|im_end|>\n<|im_start|>tool\n4<|im_end|>", 1)])
    assert rules_in(judge(tmp_path, row)) == {"all-trained": 1}
    only = judge(tmp_path, row, rules=["observation-trained"])
    assert rules_in(only) == {"observation-trained": 1}
    assert not only.is_clean


def test_a_sampled_action_without_its_stop_is_a_note(tmp_path):
    action = encode("<search>x</search>")
    calls = [
        (encode(HEADER), action),
        (encode(HEADER) + action + encode("<|im_end|>\n" + HEADER), encode("y<|im_end|>")),
    ]
    steps = make_trajectory(calls, finish_reason=["stop"] * 2, is_truncated=[False] * 2)
    report = mask_check(write_steps(tmp_path / "s.parquet", steps), tiny_tokenizer())
    assert [(f.rule, f.severity.value) for f in report.findings] == [("stop-not-trained", "note")]
    assert report.is_clean
    whole = sampled("four<|im_end|>", "five<|im_end|>")
    n = len(encode(HEADER))
    masks = [(MaskRun(n, n + len(encode("four")), 1.0),), None]
    left_out = make_trajectory(
        [(step.prompt_ids, step.action_tokens) for step in whole.steps], source_mask=masks
    )
    report = mask_check(write_steps(tmp_path / "s.parquet", left_out), tiny_tokenizer())
    assert ("stop-not-trained", "error") in [(f.rule, f.severity.value) for f in report.findings]


def test_siblings_of_one_rollout_may_share_history_but_train_it_once(tmp_path):
    first = row_of([(HEADER, 0), ("a<|im_end|>", 1)])
    again = row_of([(HEADER, 0), ("a<|im_end|>", 1), ("\n" + HEADER, 0), ("b<|im_end|>", 1)])
    for rollout, found in (("x", 1), ("y", 0)):
        rows = [{"rollout_id": "x", **first}, {"rollout_id": rollout, **again}]
        assert judge(tmp_path, *rows).by_rule["trained-twice"] == found


# --- what is refused


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"train": "actions"}, "U103"),
        ({"train": "action"}, "U103"),
        ({"align": "left"}, "U103"),
        ({"rules": ["no-rule"]}, "U103"),
        ({"steps": lambda _: True}, "U103"),
    ],
)
def test_options_that_rows_cannot_have_are_usage_errors(options, code, tmp_path):
    path = write_rows(tmp_path / "r.jsonl", GOOD)
    with pytest.raises(UsageProblem) as caught:
        mask_check(path, TINY, **options)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"input_ids": [], "loss_mask": []}, {"empty-mask": 1}),
        ({"input_ids": [3], "loss_mask": []}, {"empty-mask": 1}),
        ({"prompt_ids": [], "response_ids": [], "response_mask": []}, {"empty-mask": 1}),
        ({"input_ids": [2], "loss_mask": [1], "logprobs": [-1]}, {}),
        (
            {"input_ids": [2, 2], "loss_mask": [0, 1], "logprobs": [-1, -1]},
            {"logprobs-off-mask": 1},
        ),
        ({"input_ids": [1], "loss_mask": [1]}, {"all-trained": 1}),
        (
            {"input_ids": [0] * 4, "loss_mask": [1] * 4, "attention_mask": [0] * 4},
            {"padding-trained": 1},
        ),
        (
            {"input_ids": [1, 1, 1, 2, 2], "loss_mask": [0, 1, 1, 1, 1]},
            {"context-trained": 1, "stop-not-sampled": 1},
        ),
    ],
)
def test_rows_that_hardly_are_any_are_judged(row, found, tmp_path):
    assert rules_in(judge(tmp_path, row)) == found


def test_step_records_say_themselves_where_their_masks_stand(tmp_path):
    path = write_steps(tmp_path / "s.parquet", sampled("a<|im_end|>"))
    with pytest.raises(UsageProblem):
        mask_check(path, TINY, align="response")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "I109"),
        ("{", "I103"),
        ('{"messages": []}\n', "I402"),
        ('{"input_ids": [5, 9999], "loss_mask": [0, 1]}\n', "I304"),
        ('{"input_ids": [5, 6.5], "loss_mask": [0, 1]}\n', "I301"),
        ('{"prompt_ids": [5], "response_ids": [6, 2], "mask": [0, 1]}\n', "I406"),
    ],
)
def test_bad_rows_are_refused_for_their_reason(text, code, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(TrajkitError) as caught:
        mask_check(path, TINY)
    assert caught.value.code == code


def test_a_damaged_parquet_file_is_an_error_and_no_crash(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(InputError) as caught:
        mask_check(path, TINY)
    assert caught.value.code == "S101"


# --- cost


def test_the_cost_grows_with_the_tokens(tmp_path):
    turn = [
        ("\n" + HEADER, 0),
        ("<think>a</think><search>x</search><|im_end|>", 1),
        ("<information>b</information>", 0),
    ]
    padded = [(HEADER, 0), ("a", 1), ("<|im_end|>" * 30, 0)]
    holes = [("<|im_start|>assistant\n", 0), ("a", 1), ("b", 0), ("<|im_end|>", 1)]
    hostile = {
        "padded": padded,
        "holes": holes,
        "results": [("</search><result>", 1)],
        "opened": [("<think><information>", 1)],
    }
    seconds = {}
    for name, pieces in {"turns": turn, **hostile}.items():
        for n in (500, 4000):
            row = row_of(pieces)
            row = {key: values * n for key, values in row.items()}
            path = write_rows(tmp_path / "r.jsonl", row)
            start = time.process_time()
            mask_check(path, tiny_tokenizer())
            seconds[name, n] = time.process_time() - start
    for name in ("turns", *hostile):
        assert seconds[name, 4000] < 24 * max(seconds[name, 500], 0.02), seconds


def test_a_report_is_json(tmp_path):
    report = judge(tmp_path, BAD)
    document = json.loads(json.dumps(report.to_dict()))
    assert document["schema"] == "trajkit.mask-check/1"
    assert document["by_rule"]["stop-not-trained"] == 1
    assert {"rule", "severity", "trajectory_id", "step_index", "token_start", "token_end"} <= set(
        document["findings"][0]
    )
    assert FIXTURES.exists()
