"""The forms of drift-check's report, its thresholds and its profile, each as a program reads it."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.builders import make_step, make_trajectory
from tests.drift_builders import CHATML, ids_of, say, talk
from tests.tokenizer_builders import TINY
from trajkit.cli.app import app
from trajkit.cli.console import Printer
from trajkit.cli.drift_forms import print_report
from trajkit.cli.pages import FINDINGS
from trajkit.drift.causes import DRIFT_CAUSES
from trajkit.drift.findings import DriftFinding, DriftKind, DriftReport, Route, RouteCount
from trajkit.errors import TrajkitError
from trajkit.records import ActionSource, Trajectory
from trajkit.safe.text import visible
from trajkit.store.write import DatasetWriter
from trajkit.tokenizer import load_tokenizer

SEARCH, NEWLINE, TOKYO, IM_START, IM_END = 298, 201, 462, 1, 2
LETTERS = [85, 71, 67, 84, 69, 74]
END = [NEWLINE, IM_START]


def run(*words: Any, exits: int) -> str:
    """Return what a command prints, after a look at what it exits with."""
    done = CliRunner().invoke(app, ["drift-check", *map(str, words)])
    code = done.exception.exit_code if isinstance(done.exception, TrajkitError) else done.exit_code
    assert code == exits, done.output
    return done.stdout


def refused(*words: Any) -> str:
    """Return the code and hint of the error that a command ends with."""
    done = CliRunner().invoke(app, ["drift-check", *map(str, words)])
    assert isinstance(done.exception, TrajkitError)
    assert done.stdout == ""
    return f"{done.exception.code} {done.exception.message} {done.exception.hint}"


def write(path: Path, *trajectories: Any) -> Path:
    with DatasetWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
    return path


def two_steps(name: str, action: list[int], next_prompt: list[int], **more: Any) -> Any:
    return make_trajectory([([1, 5], action), (next_prompt, [TOKYO])], name, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a dataset of each kind, made for the tiny tokenizer."""
    folder = tmp_path_factory.mktemp("forms")
    clean = two_steps("clean", [SEARCH, IM_END], [1, 5, SEARCH, IM_END, *END])
    spelt = two_steps("sp\x1b|elt", [*LETTERS, IM_END], [1, 5, *LETTERS, IM_END, *END])
    broken = two_steps("broken", [SEARCH, IM_END], [1, 5, SEARCH, *END])
    write(folder / "clean.parquet", clean)
    write(folder / "drift.parquet", clean, spelt, broken)
    write(
        folder / "wrong.parquet",
        two_steps(
            "wrong",
            [SEARCH, IM_END],
            [1, 5, SEARCH, IM_END, *END],
            finish_reason=["length", None],
        ),
    )
    text = make_step(action_text="search")
    write(folder / "text.parquet", Trajectory(trajectory_id="t", steps=(text,)))
    tiny = load_tokenizer(TINY)
    asked = ids_of("<|im_start|>user\nsearch<|im_end|>\n<|im_start|>assistant\n", tiny)
    said = [(asked, ids_of("Tokyo<|im_end|>", tiny))]
    write(folder / "talk.parquet", talk(said, say("search", "Tokyo"), "talk"))
    (folder / "bare").mkdir()
    (folder / "bare" / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    (folder / "trim.jinja").write_text(CHATML.replace("m.content", "(m.content | trim)"))
    return folder


# --- text ---


def test_text_tells_causes_price_windows_and_what_it_was_checked_with(folder):
    shown = run(folder / "drift.parquet", "-t", TINY, exits=1)
    rows = re.findall(r"^  (eos-dropped|non-canonical-sampling) +(\S+) +(\d+) +(\d+)", shown, re.M)
    assert rows == [
        ("eos-dropped", "prefix", "1", "1"),
        ("non-canonical-sampling", "ids-only", "1", "6"),
    ]
    assert "first drift by step 0 █ 0   by tenth of the action █····█····" in shown
    assert "price: action tokens touched 7 of 14 (50.0%)" in shown
    assert re.search(r"mask damage: 1 stop ids lost", shown)
    assert re.search(r"^  keep-recorded +4 +0 of 14 \(0\.0%\) +3$", shown, re.M)
    assert re.search(r"^  drop +1 +11 of 14", shown, re.M)
    assert shown.index("broken step 0") < shown.index("sp␛|elt step 0")
    assert "hint: trajkit explain eos-dropped" in shown
    assert re.search(r"^tokenizer tiny \([0-9a-f]{12}\), tokenizers \S+, trajkit \S+$", shown, re.M)
    assert "\x1b" not in shown


def test_each_cause_has_one_window_and_the_rest_is_counted(folder, tmp_path):
    both = [
        two_steps(f"t{n}", [*LETTERS, IM_END], [1, 5, *LETTERS, IM_END, *END]) for n in range(3)
    ]
    shown = run(write(tmp_path / "more.parquet", *both), "-t", TINY, exits=1)
    assert len(re.findall(r"^t\d step 0: ", shown, re.M)) == 1
    assert "… 2 more regions (one a line: --format jsonl; -o findings.parquet)" in shown


def test_fix_names_the_setting_for_each_cause_and_changes_no_id(folder):
    data = folder / "drift.parquet"
    before = data.read_bytes()
    shown = run(data, "-t", TINY, "--fix", exits=1)
    section = shown.split("settings to change\n")[1]
    for name in ("eos-dropped", "non-canonical-sampling"):
        fix = next(cause.fix for cause in DRIFT_CAUSES if cause.name == name)
        assert "".join(fix.split()) in "".join(section.split())
    assert data.read_bytes() == before
    facts = json.loads(run(data, "-t", TINY, "--fix", "--format", "json", exits=1))
    assert list(facts["fixes"]) == ["eos-dropped", "non-canonical-sampling"]


def test_a_record_that_contradicts_itself_is_told_apart_from_drift(folder):
    shown = run(folder / "wrong.parquet", "-t", TINY, exits=1)
    assert shown.splitlines()[1].startswith("wrong record: in 1 of 2 (50.0%) steps")
    assert re.search(r"check length +record +1 +1 +structure\n", shown)
    assert "\n  a limit cut it" in shown
    assert "price" not in shown
    assert "trajkit explain record" in shown


def test_text_alone_is_told_its_risks_and_still_fails(folder):
    shown = run(folder / "text.parquet", "-t", TINY, exits=1)
    assert "not checkable" in shown
    assert "cannot be measured" in shown
    assert "clean" not in shown
    run(folder / "text.parquet", "-t", TINY, "--allow-partial", "--fail-on", "steps>50%", exits=1)


# --- other programs ---


def test_json_holds_price_causes_and_provenance(folder):
    facts = json.loads(run(folder / "drift.parquet", "-t", TINY, "--format", "json", exits=1))
    assert facts["price"]["exposure"]["n_touched_tokens"] == 7
    assert facts["price"]["by_rule"]["drop"]["n_lost_tokens"] == 11
    assert [cause["cause"] for cause in facts["causes"]] == [
        "eos-dropped",
        "non-canonical-sampling",
    ]
    assert len(facts["provenance"]["tokenizer_fingerprint"]) == 64
    assert facts["fail_on"] == []
    spelt = facts["findings"][0]
    assert (spelt["recorded_edges"], spelt["retokenized_edges"]) == ([1, 2, 3, 4, 5, 6], [6])


def test_markdown_is_made_of_tables_that_the_data_cannot_break(folder):
    shown = run(folder / "drift.parquet", "-t", TINY, "--format", "md", exits=1)
    assert shown.startswith("### drift-check: drift\n")
    tables = [line for line in shown.splitlines() if line.startswith("| ")]
    assert any(line.startswith("| eos-dropped | prefix | 1 | 1 |") for line in tables)
    assert any(line.startswith("| keep-recorded | 4 |") for line in tables)
    assert shown.count("````") == 4
    assert "\x1b" not in shown


def test_github_has_one_line_a_cause(folder):
    data = folder / "drift.parquet"
    lines = run(data, "-t", TINY, "--format", "github", exits=1).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::warning"]
    assert "title=trajkit eos-dropped::" in lines[0]
    assert "sp␛|elt step 0, token 2" in lines[1]


def test_github_says_what_could_not_be_checked(folder):
    (line,) = run(folder / "text.parquet", "-t", TINY, "--format", "github", exits=1).splitlines()
    assert line.startswith("::warning ")
    assert "title=trajkit not checkable::" in line
    assert run(folder / "clean.parquet", "-t", TINY, "--format", "github", exits=0) == ""


def test_sarif_has_a_rule_for_each_cause_and_kind_and_a_result_a_finding(folder):
    log = json.loads(run(folder / "drift.parquet", "-t", TINY, "--format", "sarif", exits=1))
    (found,) = log["runs"]
    rules = [rule["id"] for rule in found["tool"]["driver"]["rules"]]
    assert rules == [cause.name for cause in DRIFT_CAUSES] + list(DriftKind)
    assert [result["ruleId"] for result in found["results"]] == [
        "non-canonical-sampling",
        "eos-dropped",
    ]
    assert [result["level"] for result in found["results"]] == ["warning", "error"]
    assert found["results"][0]["properties"]["trajectory_id"] == "sp\x1b|elt"


def test_a_parquet_file_gets_the_findings_and_the_text_stays_on_the_terminal(folder, tmp_path):
    out = tmp_path / "findings.parquet"
    shown = run(folder / "drift.parquet", "-t", TINY, "-o", out, exits=1)
    assert shown.splitlines()[1].startswith("drift: ")
    table = pq.read_table(out)
    assert table.column("cause").to_pylist() == ["non-canonical-sampling", "eos-dropped"]
    before = out.read_bytes()
    assert refused(folder / "drift.parquet", "-t", TINY, "-o", out).startswith("U101")
    assert out.read_bytes() == before
    run(folder / "clean.parquet", "-t", TINY, "-o", out, "--force", exits=0)
    assert pq.read_table(out).num_rows == 0


def test_the_table_never_replaces_a_part_of_a_folder(tmp_path):
    write(tmp_path / "folder", two_steps("one", [SEARCH], [1, 5, SEARCH]))
    (part,) = (tmp_path / "folder").glob("*.parquet")
    before = part.read_bytes()
    assert refused(tmp_path / "folder", "-t", TINY, "-o", part, "--force").startswith("U102")
    assert part.read_bytes() == before


@pytest.mark.parametrize("given", ["data", "against"])
def test_the_table_never_replaces_what_is_read(folder, tmp_path, given):
    data = write(tmp_path / "data.parquet", two_steps("one", [SEARCH], [1, 5, SEARCH]))
    other = write(tmp_path / "other.parquet", two_steps("one", [SEARCH], [1, 5, SEARCH]))
    out = data if given == "data" else other
    before = out.read_bytes()
    words = [data, "-t", TINY, "--against", other, "-o", out, "--force"]
    assert refused(*words).startswith("U102")
    assert out.read_bytes() == before


def test_another_output_gets_the_chosen_form(folder, tmp_path):
    out = tmp_path / "report.md"
    assert run(folder / "drift.parquet", "-t", TINY, "--format", "md", "-o", out, exits=1) == ""
    assert out.read_text().startswith("### drift-check: drift")


_KINDS = st.sampled_from([kind for kind in DriftKind if kind is not DriftKind.RECORD])
_TEXT = st.text(max_size=20) | st.sampled_from(["````", "\n::error::x", "</td>", "a|b", "@you"])


@st.composite
def reports(draw) -> DriftReport:
    """Return a report whose findings hold any text at all."""
    findings = [
        DriftFinding(
            trajectory_id=draw(_TEXT),
            step_index=draw(st.integers(0, 9)),
            route=draw(st.sampled_from(Route)),
            kind=draw(_KINDS),
            cause=draw(st.sampled_from(["UNEXPLAINED", *(c.name for c in DRIFT_CAUSES)])),
            token_start=draw(st.integers(0, 99)),
            action_start=draw(st.none() | st.integers(0, 9)),
            byte_start=None,
            recorded_ids=tuple(draw(st.lists(st.integers(0, 9), max_size=12))),
            retokenized_ids=(),
            recorded_text=draw(_TEXT),
            retokenized_text=draw(st.none() | _TEXT),
            n_action_tokens=draw(st.integers(0, 9)),
            evidence={"next_ids": [1], "next_text": draw(_TEXT)},
            recorded_edges=tuple(sorted(draw(st.lists(st.integers(0, 9), max_size=3)))),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    return DriftReport(
        n_trajectories=4,
        n_steps=9,
        n_checkable_steps=9,
        n_action_tokens=99,
        by_route={"ids": RouteCount(n_checked_steps=9)},
        findings=findings,
    )


@given(reports(), st.sampled_from(["text", "md", "github"]))
def test_nothing_of_the_data_acts_or_breaks_a_line(report, form):
    text = io.StringIO()
    printer = _Collector(text)
    print_report(printer, report, form, data=Path("steps.parquet"), fix=True)
    for line in text.getvalue().splitlines():
        assert visible(line) == line
    if form == "md":
        fences = [line for line in text.getvalue().split("\n") if line.startswith("````")]
        assert len(fences) % 2 == 0
        assert set(fences) <= {"````", "````text"}
    if form == "github":
        assert all(line.startswith("::") for line in text.getvalue().splitlines())


class _Collector(Printer):
    """A printer that keeps what it is given."""

    def __init__(self, stream: io.StringIO) -> None:
        super().__init__(colour="never")
        self._stream = stream

    def line(self, text: str = "") -> None:
        assert len(text.splitlines()) <= 1
        self._stream.write(text + "\n")

    def note(self, text: str) -> None:
        assert text


# --- thresholds ---


@pytest.mark.parametrize(
    ("threshold", "exits"),
    [
        ("action-tokens>50%", 0),
        ("action-tokens>=50%", 1),
        ("steps>10%", 1),
        ("regions>2", 0),
        ("kind:structure", 0),
        ("kind:prefix", 1),
        ("cause:eos-dropped", 1),
        ("cause:eos-added", 0),
    ],
)
def test_a_threshold_decides_and_says_so(folder, threshold, exits):
    shown = run(folder / "drift.parquet", "-t", TINY, "--fail-on", threshold, exits=exits)
    assert f"{'fails' if exits else 'holds'} {threshold}: " in shown


def test_one_of_several_thresholds_is_enough(folder):
    words = [folder / "drift.parquet", "-t", TINY, "--fail-on", "regions>9"]
    run(*words, exits=0)
    facts = json.loads(run(*words, "--fail-on", "kind:prefix", "--format", "json", exits=1))
    assert [one["holds"] for one in facts["fail_on"]] == [False, True]
    assert facts["verdict"] == "drift"


def test_what_was_only_partly_checked_passes_when_that_is_allowed_and_nothing_else_is_wrong(folder):
    words = [folder / "talk.parquet", "-t", folder / "bare"]
    run(*words, exits=1)
    run(*words, "--fail-on", "steps>50%", exits=1)
    shown = run(*words, "--allow-partial", exits=0)
    assert shown.splitlines()[1].startswith("partly checked: ")
    run(folder / "drift.parquet", "--allow-partial", exits=1)


def test_what_was_not_checked_never_passes(folder, tmp_path):
    single = write(tmp_path / "single.parquet", make_trajectory([([1, 5], [SEARCH])]))
    run(single, "--allow-partial", "--fail-on", "steps>99%", exits=1)
    steps = two_steps("made", [SEARCH, IM_END], [1, 5, SEARCH, *END]).steps
    made = [replace(step, action_source=ActionSource.RETOKENIZED) for step in steps]
    data = write(tmp_path / "made.parquet", Trajectory(trajectory_id="made", steps=tuple(made)))
    run(data, "-t", TINY, "--allow-partial", "--fail-on", "steps>99%", exits=1)


def test_a_threshold_that_is_none_is_refused_before_anything_is_read(folder):
    assert refused(folder / "drift.parquet", "--fail-on", "steps<1").startswith("U103")
    assert "kind" in refused(folder / "drift.parquet", "--fail-on", "kind:texts")


# --- profile ---


def test_a_profile_needs_no_data_and_is_a_risk_and_no_measurement(folder):
    shown = run("--route", "profile", "-t", TINY, exits=0)
    assert re.match(r"tokenizer tiny \([0-9a-f]{12}\), 512 ids, template [0-9a-f]{12}\n", shown)
    assert "no data were measured" in shown
    assert shown.index("boundary merges (search-r1): ") < shown.index("good to know")
    assert "clean: " not in shown


def test_a_profile_looks_at_the_template_that_is_named(folder):
    words = ["--route", "profile", "-t", folder / "bare"]
    assert "no chat template" in run(*words, exits=0)
    shown = run(*words, "--chat-template", folder / "trim.jinja", exits=0)
    assert "action trimmed" in shown.split("good to know")[0]
    facts = json.loads(
        run(*words, "--chat-template", folder / "trim.jinja", "--format", "json", exits=0)
    )
    assert facts["schema"] == "trajkit.drift-profile/1"
    assert facts["n_risks"] == sum(
        fact["grade"] == "risk" and fact["n"] > 0
        for fact in facts["tokenizer_facts"] + facts["template_facts"]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--route", "profile"],
        ["DATA", "--route", "profile", "-t", TINY],
        ["--route", "profile", "--route", "ids", "-t", TINY],
        ["--route", "profile", "-t", TINY, "--fail-on", "steps>0"],
        ["--route", "profile", "-t", TINY, "--format", "sarif"],
        ["--route", "profile", "-t", TINY, "-o", "x.parquet"],
        ["-t", TINY],
        ["--route", "chain"],
    ],
)
def test_a_profile_takes_no_data_and_everything_else_needs_some(folder, words):
    given = [folder / "clean.parquet" if word == "DATA" else word for word in words]
    assert refused(*given).startswith("U103")


def test_every_kind_has_a_title():
    assert set(FINDINGS) >= set(DriftKind)
