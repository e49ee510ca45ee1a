"""What a report of `trajkit score` says for people, made of its JSON form."""

from __future__ import annotations

from typing import Any

import pytest

from trajkit.cli.console import Printer
from trajkit.cli.score_text import print_report

GAP = {"n": 5, "mean_abs": 0.01, "p99_abs": 0.02, "max_abs": 0.03, "k3": 0.001}
NO_GAP = dict.fromkeys(GAP)
RATIO = {"mean_ratio": 1.01, "ess": 0.987, "chi2": 0.002, "share_outside": 0.4}
MISMATCH: dict[str, Any] = {
    **GAP,
    **RATIO,
    "by_step": [{"first": 0, "last": 0, **GAP}, {"first": 1, "last": 3, **GAP, "n": 4}],
    "by_kind": {"think": {**GAP, "n": 2}, "answer": {**GAP, "n": 3}},
    "worst": [
        {"trajectory_id": "a", "step_index": 1, "action_position": at, "logprob": -1.5,
         "rollout_logprob": None}
        for at in range(5)
    ],
    "n_not_recorded": 0,
    "not_comparable": {},
}  # fmt: skip


def report(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        **dict.fromkeys(("n_steps", "n_action_tokens", "n_trajectories", "n_row_tokens"), 9),
        **dict.fromkeys(("n_scored_tokens", "n_scored_trajectories", "n_raw_tokens"), 8),
        **dict.fromkeys(
            ("n_first_token", "n_neg_inf", "n_ref_forwarded_tokens", "n_without_reference"), 0
        ),
        "n_forwards": 1,
        "n_forwarded_tokens": 300,
        "by_source": {"sampled": 9},
        "by_status": {"ok": 9},
        "model": {"name": "m", "adapter": None, "dtype": "fp16", "device": "cpu"},
        "reference": None,
        "sharing": {"why_not": None},
        "tokenizer_checked": True,
        "logprob": {"sum": -1.0, "token_mean": -1.0, "sequence_mean": -1.0},
        "losses": {},
        "train": "action",
        **dict.fromkeys(("advantage_source", "ratio_source", "kl_to_reference")),
        "exact_kl_to_reference": None,
        "mismatch": MISMATCH,
        "noise_floor": GAP,
        "dtype_noise": {"against": "fp32", "why_null": None, **GAP},
        "hint": None,
        "effort": {
            "n_tokens": 300,
            "seconds": 2.0,
            "tokens_per_second": 150.0,
            "peak_memory_bytes": 3_000_000,
            "peak_memory_of": "gpu",
        },
        "exceeded": [],
        "out": None,
    }
    return {**facts, **changes}


@pytest.fixture
def shown(capsys):
    def text_of(**changes: Any) -> str:
        with Printer(colour="never") as printer:
            print_report(printer, report(**changes))
        text: str = capsys.readouterr().out
        return text

    return text_of


def test_both_floors_stand_under_the_mismatch(shown):
    lines = [" ".join(line.split()) for line in shown().splitlines()]
    figures = "1.00e-02 2.00e-02 3.00e-02 1.00e-03 5"
    at = lines.index(f"scored − recorded {figures}")
    assert lines[at + 1 : at + 3] == [
        f"noise floor (scored step by step) {figures}",
        f"noise floor (fp16 against fp32) {figures}",
    ]


@pytest.mark.parametrize(
    ("dtype", "why", "is_told"),
    [("fp32", "the run is in fp32 itself", False), ("bf16", "it does\x1b[2J not fit", True)],
)
def test_a_floor_that_was_not_measured_says_why_where_it_matters(shown, dtype, why, is_told):
    model = report()["model"] | {"dtype": dtype}
    text = shown(model=model, dtype_noise={"against": "fp32", "why_null": why, **NO_GAP})
    assert "against fp32)" not in text
    assert ("not held against fp32: " in text) is is_told
    assert "\x1b" not in text


def test_no_floor_at_all(shown):
    none = {"against": "fp32", "why_null": "--recheck 0", **NO_GAP}
    text = shown(noise_floor=None, dtype_noise=none)
    assert text.count("--recheck 0") == 1
    assert "scored − recorded" in text
    text = shown(mismatch=None, noise_floor=None, dtype_noise=none)
    assert "sampler: no log-probs to compare with\n  the noise floor was not measured" in text


def test_what_to_do_about_infinite_logits_stands_beside_their_count(shown):
    hint = "fp16 ends at 65,504: try --dtype bf16 or fp32"
    text = shown(by_status={"ok": 7, "nonfinite": 2, "media": 1}, hint=hint)
    why = "in trajectories whose logits are NaN or infinite"
    assert f"2 steps left out  {why}; {hint}\n" in text
    assert text.count(hint) == 1


def test_the_last_line_tells_what_it_took_here(shown):
    effort = report()["effort"]
    took = "in 2.0 s: 150 tokens/s, 3 MB of the GPU's memory at most"
    assert shown().endswith(f"\n300 tokens read {took}\n")
    text = shown(effort=effort | {"n_tokens": 200}, n_ref_forwarded_tokens=50, out="s.parquet")
    assert text.endswith(f"\n200 of 350 tokens read here {took}\nWrote s.parquet\n")
    nothing = effort | {"n_tokens": 0, "tokens_per_second": None, "peak_memory_bytes": None}
    assert "tokens read" not in shown(effort=nothing)


def test_a_mismatch_shows_ratios_parts_steps_and_the_furthest_tokens(shown):
    text = shown()
    assert "ESS 98.7%, chi² 2.00e-03, outside [0.8, 1.2] 40.0%" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "think 1.00e-02 2.00e-02 3.00e-02 1.00e-03 2" in lines
    assert "1 to 3 1.00e-02 2.00e-02 3.00e-02 1.00e-03 4" in lines
    assert "worst: a step 1 action token 0: scored -1.5000, recorded −inf" in lines
    assert "a step 1 action token 2: scored -1.5000, recorded −inf" in lines
    assert "a step 1 action token 3" not in text


def test_one_part_and_one_step_are_no_tables(shown):
    one = {**MISMATCH, "by_step": MISMATCH["by_step"][:1], "by_kind": {"text": GAP}, "worst": []}
    text = shown(mismatch=one)
    assert "part of the action" not in text
    assert "worst" not in text
    nothing = {**one, **dict.fromkeys(GAP), "n": 0, **dict.fromkeys(RATIO)}
    assert "ratio:" not in shown(mismatch=nothing)
