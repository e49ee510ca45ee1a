"""`trajkit mask-check`: what it prints in each form, and what it exits with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.builders import FIXTURES, TINY
from tests.mask_builders import MASKS, row_of, write_rows
from trajkit.formats.alignment import Align
from trajkit.ingestion.run import ingest
from trajkit.masks.rules import MASK_RULES
from trajkit.training import TRAIN_POLICIES

HEADER = "<|im_start|>user\nhow many?<|im_end|>\n<|im_start|>assistant\n"
BAD = MASKS / "mask-shifted" / "bad.jsonl"
GOOD = MASKS / "mask-shifted" / "good.jsonl"


def trajkit(*words: Any) -> Any:
    command = [sys.executable, "-m", "trajkit", "mask-check", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_clean_file_ends_with_0_and_says_what_was_judged():
    done = trajkit(GOOD, "-t", TINY)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "clean: no rule is broken"
    assert any("the source's own in 2 of 2 sequences" in line for line in lines)
    assert any("2 input" in line for line in lines)


def test_a_broken_rule_ends_with_1_and_shows_a_window():
    done = trajkit(BAD, "-t", TINY)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "masks: 2 errors in 2 of 2 trajectories"
    assert "error mask-shifted: r0, tokens 31 to 41" in lines
    at = lines.index("error mask-shifted: r0, tokens 31 to 41")
    assert lines[at + 1] == "  2 of 2 runs begin and end one token early"
    assert lines[at + 2].startswith("  ·  27  not trained")
    assert lines[at + 3].startswith("  ▌  31  trained")
    assert "… 1 more finding (all, one a line: --format jsonl)" in lines


def test_without_a_tokenizer_it_says_what_was_not_asked():
    done = trajkit(GOOD)
    assert done.returncode == 1
    assert done.stdout.startswith("partly checked")
    assert "no -t TOKENIZER" in done.stdout
    assert trajkit(GOOD, "--rule", "mask-misfit").returncode == 0


def test_a_note_alone_ends_with_0():
    done = trajkit(MASKS / "mixed-versions" / "bad.jsonl", "-t", TINY)
    assert done.returncode == 0
    assert "1 note in 1 of 1 trajectories" in done.stdout


def test_json_has_the_keys_that_programs_read():
    done = trajkit(BAD, "-t", TINY, "--format", "json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["schema"] == "trajkit.mask-check/1"
    assert report["n_trajectories"] == 2
    assert set(report["by_rule"]) == {rule.code for rule in MASK_RULES}
    assert report["by_rule"]["mask-shifted"] == len(report["findings"]) == 2
    assert {"rule", "severity", "trajectory_id", "step_index", "token_start", "token_end"} <= set(
        report["findings"][0]
    )


def test_jsonl_is_one_finding_a_line():
    done = trajkit(BAD, "-t", TINY, "--format", "jsonl")
    assert [json.loads(line)["rule"] for line in done.stdout.splitlines()] == ["mask-shifted"] * 2
    assert "2 errors" in done.stderr
    assert trajkit(BAD, "-t", TINY, "--format", "jsonl", "-q").stderr == ""


def test_github_annotates_the_line_of_the_row():
    done = trajkit(BAD, "-t", TINY, "--format", "github")
    first, second = done.stdout.splitlines()
    assert first.startswith("::error file=")
    assert ",line=1,title=trajkit mask-shifted::the whole mask is off by one token" in first
    assert ",line=2," in second


def test_sarif_names_rules_and_places():
    done = trajkit(BAD, "-t", TINY, "--format", "sarif")
    (run,) = json.loads(done.stdout)["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [r.code for r in MASK_RULES]
    assert {result["ruleId"] for result in run["results"]} == {"mask-shifted"}
    assert run["results"][0]["properties"]["token_start"] == 31


def test_step_records_tell_their_share_of_sampled_ids_first(tmp_path):
    ingest([str(FIXTURES / "rollouts" / "smollm2.jsonl")], tmp_path / "s.parquet")
    done = trajkit(tmp_path / "s.parquet", "--rule", "empty-mask", "--step", "0:2", "-n", "2")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "sampled ids: 4 of 4 steps (100.0%)"
    chosen = trajkit(tmp_path / "s.parquet", "--rule", "empty-mask", "--train", "last-step")
    assert "the loss mask last-step" in chosen.stdout


def test_two_masks_are_compared(tmp_path):
    left = row_of([(HEADER, 0), ("four<|im_end|>", 1)], id="a")
    right = row_of([(HEADER, 0), ("four", 1), ("<|im_end|>", 0)], id="a")
    paths = [write_rows(tmp_path / f"{n}.jsonl", row) for n, row in enumerate((left, right))]
    same = trajkit(paths[0], "--against", paths[0])
    assert (same.returncode, same.stdout.splitlines()[0]) == (0, "masks agree in 1 of 1 sequence")
    other = trajkit(paths[0], "--against", paths[1], "-t", TINY)
    assert other.returncode == 1
    assert "1 tokens are trained here alone, 0 there alone" in other.stdout
    document = json.loads(trajkit(paths[0], "--against", paths[1], "--format", "json").stdout)
    assert (document["schema"], document["n_here"]) == ("trajkit.mask-diff/1", 1)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--rule", "nothing"], "U103"),
        (["--train", "nothing"], "U103"),
        (["--train", "action"], "U103"),
        (["--align", "nothing"], "U103"),
        (["--step", "0"], "U103"),
        (["--trajectory", "nobody"], "U107"),
        (["--against", str(GOOD), "--rule", "empty-mask"], "U103"),
        (["--against", str(GOOD), "--format", "sarif"], "U103"),
        (["-o", str(GOOD)], "U102"),
    ],
)
def test_usage_errors_have_a_code_and_end_with_2(words, code):
    done = trajkit(GOOD, "-t", TINY, *words)
    assert done.returncode == 2
    assert f"error[{code}]" in done.stderr
    assert done.stdout == ""


def test_the_help_names_every_policy_and_convention():
    words = " ".join(trajkit("--help").stdout.replace("│", " ").split())
    assert all(re.search(rf"\b{policy.name}[,.]", words) for policy in TRAIN_POLICIES)
    joined = words.replace(" ", "")
    assert "|".join(Align)[:22] in joined


def test_what_is_no_row_is_refused_with_the_way_out():
    done = trajkit(FIXTURES / "rollouts" / "smollm2.jsonl", "-t", TINY)
    assert done.returncode == 3
    assert "error[I402]" in done.stderr
    assert "trajkit ingest" in done.stderr


def test_an_ambiguous_mask_is_an_error_until_it_is_said(tmp_path):
    row = {"prompt_ids": [5], "response_ids": [85, 71, 2], "mask": [1, 1, 1]}
    path = write_rows(tmp_path / "r.jsonl", row)
    done = trajkit(path, "-t", TINY)
    assert (done.returncode, "error[I406]" in done.stderr) == (3, True)
    assert "--align response|shifted" in done.stderr
    rule = ("--rule", "padding-trained")
    assert trajkit(path, "-t", TINY, "--align", "response", *rule).returncode == 0


@pytest.mark.parametrize("form", ["text", "json", "jsonl", "github", "sarif"])
def test_no_text_of_the_data_acts_on_a_terminal(form, tmp_path):
    row = row_of([(HEADER, 0), ("\x1b[2J\u202e fo", 1), ("<|im_end|>", 0)], id="x\x1b]0;t\x07\ny")
    done = trajkit(write_rows(tmp_path / "r.jsonl", row), "-t", TINY, "--format", form)
    assert done.returncode == 1
    assert done.stdout
    for output in (done.stdout, done.stderr):
        assert not set(output) & {"\x1b", "\x07", "\u202e", "\r"}


def test_where_no_turn_is_marked_nothing_is_called_clean(tmp_path):
    bare = row_of([("[INST] how many? [/INST] four", 1)], id="a")
    done = trajkit(write_rows(tmp_path / "r.jsonl", bare), "-t", TINY)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    told = "not checkable: no turn markers in 1 of 1 sequence"
    assert lines[0] == f"{told}; nothing else found"
    assert {"all-trained", "context-trained", "mask-shifted"} <= {line.strip() for line in lines}
    document = json.loads(
        trajkit(tmp_path / "r.jsonl", "-t", TINY, "--format", "json").stdout,
    )
    assert document["n_without_turns"] == 1
    assert "context-trained" in document["not_run"]
    assert "padding-trained" not in document["not_run"]
    chosen = trajkit(tmp_path / "r.jsonl", "-t", TINY, "--rule", "padding-trained")
    assert chosen.returncode == 0
    turns = row_of([(HEADER, 0), ("four<|im_end|>", 1)], id="b")
    both = trajkit(write_rows(tmp_path / "r.jsonl", bare, turns), "-t", TINY)
    assert both.stdout.startswith("partly checkable: no turn markers in 1 of 2 sequences")
    wrong = row_of([("a", 1), ("<|im_end|>", 0)], id="c")
    told = trajkit(write_rows(tmp_path / "r.jsonl", wrong), "-t", TINY).stdout.splitlines()[0]
    assert told.endswith(
        "1 error in 1 of 1 trajectories; not checkable: no turn markers in 1 of 1 sequence"
    )


def test_a_note_of_a_rule_about_errors_is_shown_as_a_note(tmp_path):
    row = row_of([(HEADER, 0), ("four, and not five<|im_end|>", 1)], id="a")
    row["logprobs"] = [-0.5 * bit for bit in row["loss_mask"]]
    row["logprobs"][-1] = 0.0
    done = trajkit(write_rows(tmp_path / "r.jsonl", row), "-t", TINY)
    assert done.returncode == 0
    assert re.search(r"^  placeholder-logprobs  note ", done.stdout, re.M)


def test_no_line_of_a_comparison_begins_with_words_of_the_data(tmp_path):
    name = "::error file=x::pwned"
    left = row_of([(HEADER, 0), ("four<|im_end|>", 1)], id=name)
    right = row_of([(HEADER, 0), ("four", 1), ("<|im_end|>", 0)], id=name)
    other = row_of([(HEADER, 0), ("five<|im_end|>", 1)], id=name)
    path = write_rows(tmp_path / "l.jsonl", left)
    for number, row in enumerate((right, other)):
        second = write_rows(tmp_path / f"{number}.jsonl", row)
        done = trajkit(path, "--against", second, "-t", TINY)
        assert name in done.stdout
        assert not any(line.lstrip().startswith("::") for line in done.stdout.splitlines())


def test_the_report_goes_into_a_file(tmp_path):
    done = trajkit(BAD, "-t", TINY, "--format", "sarif", "-o", tmp_path / "r.sarif")
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads((tmp_path / "r.sarif").read_text())["version"] == "2.1.0"
    assert trajkit(BAD, "-t", TINY, "-o", tmp_path / "r.sarif").returncode == 2
