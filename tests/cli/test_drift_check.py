"""`trajkit drift-check`: what it prints in each form, and what it exits with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import make_step, make_trajectory
from tests.drift_builders import CHATML, ids_of, say, talk
from tests.tokenizer_builders import TINY, metaspace, save
from trajkit.demo.write import write_demo
from trajkit.records import ActionSource, Trajectory
from trajkit.store.write import DatasetWriter, Provenance
from trajkit.tokenizer import load_tokenizer

# ids of the tiny tokenizer; the letters s e a r c h are another spelling of `search`
SEARCH, NEWLINE, TOKYO, IM_START, IM_END = 298, 201, 462, 1, 2
LETTERS = [85, 71, 67, 84, 69, 74]


def trajkit(*words: Any) -> Any:
    command = [sys.executable, "-m", "trajkit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write(path: Any, *trajectories: Any, fingerprint: str | None = None) -> Any:
    with DatasetWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
        writer.provenance = Provenance(tokenizer_name="tiny", tokenizer_fingerprint=fingerprint)
    return path


def two_steps(name: str, action: list[int], next_prompt: list[int]) -> Any:
    return make_trajectory([([1, 5], action), (next_prompt, [TOKYO])], name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a dataset of each kind, made for the tiny tokenizer."""
    folder = tmp_path_factory.mktemp("data")
    end = [NEWLINE, IM_START]
    clean = two_steps("clean", [SEARCH, IM_END], [1, 5, SEARCH, IM_END, *end])
    spelt = two_steps("sp\x1belt", [*LETTERS, IM_END], [1, 5, *LETTERS, IM_END, *end])
    broken = two_steps("broken", [SEARCH, IM_END], [1, 5, SEARCH, *end])
    fingerprint = load_tokenizer(TINY).fingerprint
    write(folder / "clean.parquet", clean, fingerprint=fingerprint)
    write(folder / "drift.parquet", clean, spelt, broken, fingerprint=fingerprint)
    steps = [replace(s, action_source=ActionSource.RETOKENIZED) for s in spelt.steps]
    retokenized = Trajectory(trajectory_id=spelt.trajectory_id, steps=tuple(steps))
    write(folder / "retokenized.parquet", retokenized)
    text = Trajectory(trajectory_id="t", steps=(make_step(action_text="search"),))
    write(folder / "text.parquet", text)
    write(folder / "unknown.parquet", two_steps("unknown", [600], [1, 5, 600]))
    tiny = load_tokenizer(TINY)
    asked = ids_of("<|im_start|>user\nsearch<|im_end|>\n<|im_start|>assistant\n", tiny)
    said = [(asked, ids_of("Tokyo<|im_end|>", tiny))]
    write(folder / "talk.parquet", talk(said, say("search", "Tokyo"), "talk"))
    (folder / "chatml.jinja").write_text(CHATML)
    other = two_steps("clean", [TOKYO, IM_END], [1, 5, TOKYO, IM_END, *end])
    write(folder / "other.parquet", other, two_steps("alone", [SEARCH], [1, 5, SEARCH]))
    return folder


def test_drift_exits_1_and_says_how_much_where_and_what(folder):
    done = trajkit("drift-check", folder / "drift.parquet", "-t", TINY)
    assert done.returncode == 1
    first, second = done.stdout.splitlines()[:2]
    assert first == "sampled ids: 6 of 6 steps (100.0%)"
    assert second.startswith("drift: 2 of 6 (33.3%)")
    assert "2 of 3 (66.7%) trajectories" in second
    assert "7 of 14 (50.0%) action tokens" in second
    assert "sp␛elt step 0: ids-only by route ids" in done.stdout
    assert "at token 2, action token 0, byte 0" in done.stdout
    assert '"s│e│a│r│c│h"  [85, 71, 67, 84, 69, 74]' in done.stdout
    assert re.search(r're-encoded +"search" +\[298\]', done.stdout)
    assert "broken step 0: prefix by route chain" in done.stdout
    assert re.search(r'recorded +"<\|im_end\|>" +\[2\]', done.stdout)
    assert 'nothing here; it goes on with "␊<|im_start|>"  [201, 1]' in done.stdout
    assert "\x1b" not in done.stdout


def test_clean_data_exit_0(folder):
    done = trajkit("drift-check", folder / "clean.parquet", "-t", TINY)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].startswith("clean: ")


@pytest.mark.parametrize("name", ["retokenized", "text"])
def test_data_without_sampled_ids_are_not_checkable_and_exit_1(folder, name):
    done = trajkit("drift-check", folder / f"{name}.parquet", "-t", TINY)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].startswith("sampled ids: 0 of ")
    assert "not checkable" in done.stdout
    assert "clean" not in done.stdout
    facts = json.loads(
        trajkit("drift-check", folder / f"{name}.parquet", "-t", TINY, "--format", "json").stdout
    )
    assert (facts["checkable"], facts["sampled_share"]) == (False, 0.0)
    assert facts["findings"] == []


def test_json_is_one_document_with_the_findings(folder):
    done = trajkit("drift-check", folder / "drift.parquet", "-t", TINY, "--format", "json")
    assert done.returncode == 1
    assert done.stdout.isascii()
    facts = json.loads(done.stdout)
    assert facts["schema"] == "trajkit.drift-check/1"
    assert (facts["n_drifted_steps"], facts["n_drifted_action_tokens"]) == (2, 7)
    spelt, broken = facts["findings"]
    assert spelt["trajectory_id"] == "sp\x1belt"
    assert (spelt["token_start"], spelt["action_start"], spelt["byte_start"]) == (2, 0, 0)
    assert (spelt["recorded_ids"], spelt["retokenized_ids"]) == (LETTERS, [SEARCH])
    assert (broken["route"], broken["action_start"]) == ("chain", 1)
    assert (broken["recorded_ids"], broken["retokenized_ids"]) == ([IM_END], [])
    assert broken["evidence"]["next_ids"] == [NEWLINE, IM_START]


def test_jsonl_is_a_finding_a_line(folder, tmp_path):
    out = tmp_path / "findings.jsonl"
    done = trajkit(
        "drift-check", folder / "drift.parquet", "-t", TINY, "--format", "jsonl", "-o", out
    )
    assert (done.returncode, done.stdout) == (1, "")
    kinds = [json.loads(line)["kind"] for line in out.read_text().splitlines()]
    assert kinds == ["ids-only", "prefix"]


def test_trajectories_steps_and_routes_can_be_chosen(folder):
    data = folder / "drift.parquet"

    def findings(*words: str) -> Any:
        done = trajkit("drift-check", data, "-t", TINY, "--format", "json", *words)
        facts = json.loads(done.stdout)
        return done.returncode, [finding["trajectory_id"] for finding in facts["findings"]]

    assert findings("--trajectory", "broken") == (1, ["broken"])
    assert findings("--limit", "2") == (1, ["sp\x1belt"])
    assert findings("--route", "chain") == (1, ["broken"])
    assert findings("--step", "0:1") == (1, ["sp\x1belt", "broken"])


def test_without_a_tokenizer_the_chain_is_checked_and_the_rest_is_said_to_be_missing(folder):
    done = trajkit("drift-check", folder / "drift.parquet")
    assert done.returncode == 1
    assert "broken step 0: prefix by route chain" in done.stdout
    for route in ("ids", "join", "render"):
        assert re.search(f"{route} +not walked +needs -t TOKENIZER", done.stdout)


@pytest.mark.parametrize("route", ["ids", "join", "render"])
def test_a_route_that_needs_a_tokenizer_and_has_none_exits_2(folder, route):
    done = trajkit("drift-check", folder / "drift.parquet", "--route", route)
    assert done.returncode == 2
    assert "error[U103]" in done.stderr
    assert done.stdout == ""


def test_a_route_that_does_not_exist_exits_2(folder):
    done = trajkit("drift-check", folder / "drift.parquet", "-t", TINY, "--route", "rendre")
    assert done.returncode == 2
    assert "error[U103]" in done.stderr
    assert "ids, chain, join, render, pair" in done.stderr


def test_another_tokenizer_than_at_ingest_exits_3(folder, tmp_path):
    other = save(metaspace(prefix=True), tmp_path / "other")
    done = trajkit("drift-check", folder / "clean.parquet", "-t", other)
    assert done.returncode == 3
    assert "error[T102]" in done.stderr
    assert done.stdout == ""


def test_an_id_outside_the_vocabulary_exits_3_with_its_place(folder):
    done = trajkit("drift-check", folder / "unknown.parquet", "-t", TINY)
    assert done.returncode == 3
    assert "error[I304]" in done.stderr
    assert "trajectory unknown" in done.stderr
    assert done.stdout == ""


def test_what_is_no_tokenizer_exits_3_or_4(folder, tmp_path):
    assert trajkit("drift-check", folder / "clean.parquet", "-t", tmp_path).returncode == 4
    (tmp_path / "tokenizer.json").write_text("[]")
    done = trajkit("drift-check", folder / "clean.parquet", "-t", tmp_path)
    assert done.returncode == 3
    assert "error[T101]" in done.stderr


def test_clean_prompts_alone_are_only_partly_checked_unless_that_was_asked_for(folder):
    done = trajkit("drift-check", folder / "clean.parquet")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("partly checked: ")
    asked = trajkit("drift-check", folder / "clean.parquet", "--route", "chain")
    assert asked.returncode == 0
    assert asked.stdout.splitlines()[1].startswith("clean: each prompt starts with")


@pytest.mark.parametrize("words", [("--trajectory", "nobody"), ("--step", "99")])
def test_a_selection_that_matches_nothing_is_a_usage_error(folder, words):
    done = trajkit("drift-check", folder / "clean.parquet", "-t", TINY, *words)
    assert done.returncode == 2
    assert "error[U107]" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("verb", ["drift-check", "mask-view"])
def test_the_report_never_replaces_the_data(folder, verb):
    before = (folder / "clean.parquet").read_bytes()
    data = folder / "clean.parquet"
    done = trajkit(verb, data, "-t", TINY, "-o", data, "--force")
    assert done.returncode == 2
    assert "error[U102]" in done.stderr
    assert data.read_bytes() == before


def test_a_missing_folder_for_the_report_is_named(folder):
    done = trajkit("drift-check", folder / "clean.parquet", "-o", folder / "no" / "report.txt")
    assert done.returncode == 4
    assert "error[F102]" in done.stderr
    assert "mkdir -p" in done.stderr


def test_colour_repeats_the_verdict_and_the_column_names(folder):
    plain = trajkit("drift-check", folder / "clean.parquet", "-t", TINY, "--color", "never")
    shown = trajkit("drift-check", folder / "clean.parquet", "-t", TINY, "--color", "always")
    assert "\x1b[1mclean: " in shown.stdout
    assert re.sub("\x1b\\[[0-9]+m", "", shown.stdout) == plain.stdout


def test_messages_are_rendered_with_the_template_beside_the_tokenizer_or_the_one_named(folder):
    data = folder / "talk.parquet"
    done = trajkit("drift-check", data, "-t", TINY, "--chat-template", folder / "chatml.jinja")
    assert done.returncode == 0
    assert re.search("render +1 +0 of 1", done.stdout)
    assert "rendered with" in done.stdout
    assert "today" not in done.stdout
    trimmed = folder / "trimmed.jinja"
    trimmed.write_text(CHATML.replace("m.content", "m.content[:-1]"))
    done = trajkit("drift-check", data, "-t", TINY, "--chat-template", trimmed)
    assert done.returncode == 1
    assert re.search(r"talk step 0: \S+ by route render", done.stdout)
    assert re.search(r'rendered +"To?│?[ok│]*y"', done.stdout)


def test_kwargs_and_the_date_reach_the_template_and_stand_in_the_report(folder):
    dated = folder / "dated.jinja"
    dated.write_text("{{ mode }}{{ strftime_now('%Y') }}" + CHATML)
    words = ["--chat-template", dated, "--template-kwargs", '{"mode": "x"}', "--now", "2025-08-06"]
    done = trajkit("drift-check", folder / "talk.parquet", "-t", TINY, *words)
    assert done.returncode == 1
    assert '{"mode": "x"}, today 2025-08-06' in done.stdout
    assert re.search(r'rendered +"x│2│0│2│5"', done.stdout)
    done = trajkit("drift-check", folder / "talk.parquet", "-t", TINY, *words, "--format", "json")
    template = json.loads(done.stdout)["template"]
    assert (template["kwargs"], template["now"]) == ({"mode": "x"}, "2025-08-06T00:00:00")
    assert template["tells_time"] is True


def test_messages_without_a_template_are_only_partly_checked(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    done = trajkit("drift-check", folder / "talk.parquet", "-t", tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("partly checked: ")
    assert re.search("render +not walked +needs --chat-template FILE", done.stdout)
    asked = trajkit("drift-check", folder / "talk.parquet", "-t", tmp_path, "--route", "render")
    assert (asked.returncode, "error[U103]" in asked.stderr) == (2, True)


def test_data_without_messages_are_clean_without_rendering(folder):
    done = trajkit("drift-check", folder / "clean.parquet", "-t", TINY)
    assert done.returncode == 0
    assert re.search("render +not walked +no messages recorded", done.stdout)


def test_another_recording_is_compared_step_by_step(folder):
    data, other = folder / "drift.parquet", folder / "other.parquet"
    done = trajkit("drift-check", data, "-t", TINY, "--route", "pair", "--against", other)
    assert done.returncode == 1
    assert "clean step 0" in done.stdout
    assert re.search(r'other data +"Tokyo"', done.stdout)
    assert "pair: 4 steps not checked: the other recording has no such step" in done.stdout
    assert "1 trajectories stand in the other recording alone" in done.stdout
    same = trajkit("drift-check", data, "-t", TINY, "--route", "pair", "--against", data)
    assert same.returncode == 0
    assert "both recordings hold the same ids" in same.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--template-kwargs", "[1]"],
        ["--template-kwargs", "{"],
        ["--route", "pair"],
    ],
)
def test_an_option_with_a_value_it_cannot_have_exits_2(folder, words):
    done = trajkit("drift-check", folder / "clean.parquet", "-t", TINY, *words)
    assert done.returncode == 2
    assert "error[U103]" in done.stderr
    assert done.stdout == ""


def test_a_date_that_is_none_exits_2(folder):
    done = trajkit("drift-check", folder / "clean.parquet", "-t", TINY, "--now", "tomorrow")
    assert (done.returncode, done.stdout) == (2, "")
    assert "tomorrow" in done.stderr


def test_another_recording_without_a_tokenizer_exits_2(folder):
    data = folder / "clean.parquet"
    done = trajkit("drift-check", data, "--against", data)
    assert done.returncode == 2
    assert "route pair needs a tokenizer" in done.stderr


def test_a_template_that_is_named_must_be_one_even_where_there_are_no_messages(folder):
    (folder / "broken.jinja").write_text("{% if %}")
    data, broken = folder / "clean.parquet", folder / "broken.jinja"
    done = trajkit("drift-check", data, "-t", TINY, "--chat-template", broken)
    assert (done.returncode, "error[T105]" in done.stderr) == (3, True)
    done = trajkit("drift-check", data, "-t", TINY, "--chat-template", folder / "gone.jinja")
    assert (done.returncode, "error[F101]" in done.stderr) == (4, True)


@pytest.mark.torch
def test_a_checkpoint_prices_the_other_spellings(tmp_path):
    write_demo(tmp_path / "demo")
    steps = tmp_path / "steps.parquet"
    trajkit("ingest", tmp_path / "demo" / "logs", "-o", steps, "-t", TINY)
    options = ("-t", TINY, "--model", TINY, "--device", "cpu")
    price = json.loads(trajkit("drift-check", steps, *options, "--format", "json").stdout)
    told = price["logprob_price"]
    assert (told["n_steps"], told["n_regions"], told["n_unknown_steps"]) == (2, 2, 0)
    assert told["share_outside"] is not None
    text = trajkit("drift-check", steps, *options).stdout
    assert "log-probs: an action re-tokenised is worth" in text
    assert trajkit("drift-check", steps, "--model", TINY).returncode == 2


def test_a_report_never_lands_inside_the_dataset_it_is_about(tmp_path):
    data = tmp_path / "data"
    trajectory = two_steps("t", [SEARCH, IM_END], [1, 5, SEARCH, IM_END, NEWLINE, IM_START])
    write(data, trajectory)
    manifest = (data / "_manifest.json").read_bytes()
    result = trajkit("drift-check", data, "-o", data / "_manifest.json", "--force")
    assert result.returncode == 2
    assert "U102" in result.stderr
    assert (data / "_manifest.json").read_bytes() == manifest
