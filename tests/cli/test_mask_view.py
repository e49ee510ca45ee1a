"""`trajkit mask-view`: the whole command on a terminal, in a pipe, and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import Any

import pyarrow as pa
import pytest

from tests.builders import make_step, make_trajectory
from tests.tokenizer_builders import TINY, metaspace, save
from tests.view_builders import (
    agent_trajectory,
    assert_fits,
    assert_safe,
    encoded,
    message_trajectory,
    plain,
    read_page,
)
from trajkit.records import Trajectory
from trajkit.store.read import open_dataset
from trajkit.store.schema import SCORES_SCHEMA, SCORES_SCHEMA_NAME
from trajkit.store.write import DatasetWriter, ParquetSink, Provenance
from trajkit.tokenizer import load_tokenizer

FORCED = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "PYTHONIOENCODING")


def mask_view(*words: Any, **variables: str) -> Any:
    """Return the finished command; only the variables given say anything of colour or width."""
    environment = {k: v for k, v in os.environ.items() if k not in FORCED} | variables
    command = [sys.executable, "-m", "trajkit", "mask-view", *map(str, words)]
    return subprocess.run(command, capture_output=True, env=environment, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    hostile = make_step(
        trajectory_id="\x1b[2J\u202e",
        group_id="g\r\n",
        finish_reason="\x9b",
        action_text="\x1b]0;x\x07\u2028",
    )
    hostile = Trajectory(trajectory_id=hostile.trajectory_id, steps=(hostile,))
    provenance = Provenance(
        tokenizer_name="tiny", tokenizer_fingerprint=load_tokenizer(TINY).fingerprint
    )
    for name, trajectories in {
        "agent": [agent_trajectory(), message_trajectory(), hostile],
        "unknown": [make_trajectory([([5], [600])])],
        "none": [],
    }.items():
        with DatasetWriter(folder / f"{name}.parquet") as writer:
            for trajectory in trajectories:
                writer.write(trajectory)
            writer.provenance = provenance
    return folder


def test_the_first_trajectory_is_shown_as_the_golden_file_has_it(folder, golden):
    done = mask_view(folder / "agent.parquet", "-t", TINY, "--width", "80")
    assert done.returncode == 0
    golden("agent-80.txt", done.stdout.decode())
    assert b"--limit" in done.stderr


def test_colour_is_off_in_a_pipe_and_can_be_asked_for(folder, golden):
    data = folder / "agent.parquet"
    words = [data, "-t", TINY, "--width", "80"]
    assert b"\x1b" not in mask_view(*words).stdout
    assert b"\x1b" not in mask_view(*words, FORCE_COLOR="1", NO_COLOR="1").stdout
    always = mask_view(*words, "--color", "always", NO_COLOR="1").stdout.decode()
    assert always == mask_view(*words, FORCE_COLOR="1").stdout.decode()
    assert "".join(f"{plain(line)}\n" for line in always.splitlines()) == (
        mask_view(*words).stdout.decode()
    )


def test_every_trajectory_is_safe_to_show_whatever_it_is_called(folder):
    done = mask_view(folder / "agent.parquet", "-t", TINY, "--limit", "9", "--color", "always")
    assert done.returncode == 0
    lines = done.stdout.decode().split("\n")
    assert "␛[2J⟦U+202E⟧" in done.stdout.decode()
    for line in lines:
        assert_safe(line)
        assert_fits(line, 100)
    assert sum(line.startswith("text-only · ") for line in map(plain, lines)) == 1


def test_a_stdout_that_cannot_encode_the_gutter_gets_ascii(folder):
    done = mask_view(folder / "agent.parquet", "-t", TINY, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    body = done.stdout.decode("ascii").splitlines()
    assert "A|     80 \\[<|im_end|>\\]" in body
    for line in body:
        assert len(line) <= 100


def test_one_trajectory_and_one_step_can_be_chosen(folder):
    words = [folder / "agent.parquet", "-t", TINY, "--trajectory", "count-people/7"]
    done = mask_view(*words, "--step", "3")
    lines = done.stdout.decode().splitlines()
    rules = [line for line in lines if line.startswith("──")]
    assert len(rules) == 2
    assert rules[1].startswith("── step 3 ")
    assert "▌      33 <answer>14 million</answer>⟪<|im_end|>⟫" in lines
    assert done.stderr == b""


def test_json_has_the_columns_of_every_sequence(folder):
    done = mask_view(folder / "agent.parquet", "-t", TINY, "--format", "json", "--limit", "2")
    assert done.returncode == 0
    assert done.stdout.isascii()
    document = json.loads(done.stdout)
    assert document["schema"] == "trajkit.mask-view/1"
    shown = document["trajectories"]
    assert [t["trajectory_id"] for t in shown] == ["count-people/7"] * 3 + ["text-only"]
    assert [t["sequence"] for t in shown] == [0, 1, 2, None]
    first = shown[0]
    assert set(first["tokens"]) == {"id", "text", "bytes", "kind", "action", "step"}
    assert {len(column) for column in first["tokens"].values()} == {first["n_tokens"]}
    assert sum(first["tokens"]["action"]) == first["n_action_tokens"] == 21 + 8


def test_the_view_can_be_written_to_a_file(folder, tmp_path):
    out = tmp_path / "view.txt"
    data = folder / "agent.parquet"
    done = mask_view(data, "-t", TINY, "--width", "80", "-o", out, "--color", "always")
    assert (done.returncode, done.stdout) == (0, b"")
    assert out.read_text() == mask_view(data, "-t", TINY, "--width", "80").stdout.decode()


def test_without_a_tokenizer_ids_are_shown(folder):
    done = mask_view(folder / "agent.parquet")
    assert done.returncode == 0
    assert "▌      80      2" in done.stdout.decode().splitlines()


def test_a_page_holds_every_trajectory_and_is_published_whole(folder, tmp_path):
    out = tmp_path / "view.html"
    words = [folder / "agent.parquet", "-t", TINY, "--format", "html", "-o", out]
    done = mask_view(*words)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    page = read_page(out.read_text(encoding="ascii"))
    assert [entry["name"] for entry in page.shared["index"]] == [
        *("count-people/7", "text-only", "␛[2J⟦U+202E⟧")
    ]
    again = mask_view(*words)
    assert again.returncode == 2
    assert b"error[U101]" in again.stderr


def test_a_page_can_be_cut_to_some_trajectories_and_says_that_it_is(folder):
    data = folder / "agent.parquet"
    done = mask_view(data, "-t", TINY, "--format", "html", "--trajectory", "text-only")
    page = read_page(done.stdout.decode("ascii"))
    assert [entry["name"] for entry in page.shared["index"]] == ["text-only"]
    assert done.stderr == b""


def test_more_trajectories_than_a_page_takes_are_told(tmp_path):
    data = tmp_path / "many.parquet"
    with DatasetWriter(data) as writer:
        for number in range(33):
            writer.write(make_trajectory([([5], [6])], f"t{number}"))
    done = mask_view(data, "--format", "html")
    assert len(read_page(done.stdout.decode("ascii")).trajectories) == 32
    assert b"the first 32 trajectories only" in done.stderr
    done = mask_view(data, "--format", "html", "--limit", "33")
    assert len(read_page(done.stdout.decode("ascii")).trajectories) == 33


def test_a_page_does_not_go_to_a_terminal(folder):
    primary, secondary = os.openpty()
    command = [sys.executable, "-m", "trajkit", "mask-view", folder / "agent.parquet"]
    done = subprocess.run(
        [*command, "--format", "html"], stdout=secondary, stderr=subprocess.PIPE, check=False
    )
    os.close(secondary)
    os.close(primary)
    assert done.returncode == 2
    assert b"error[U103]: --format html needs a file" in done.stderr


def test_a_drawing_is_the_selection(folder):
    words = [folder / "agent.parquet", "-t", TINY, "--format", "svg"]
    done = mask_view(*words, "--step", "3", "--only", "action", "-q")
    assert done.returncode == 0
    assert done.stdout.isascii()
    root = ET.fromstring(done.stdout)
    looks = [element.get("class") for element in list(root)[-2]]
    assert looks.count("action") == 1
    assert "bar" in looks


def test_lines_can_be_chosen_by_kind_token_and_text(folder):
    words = [folder / "agent.parquet", "-t", TINY, "-q"]
    done = mask_view(*words, "--only", "think", "--only", "stop")
    shown = [line for line in done.stdout.decode().splitlines() if line.startswith(("▌  ", "·  "))]
    assert shown == [
        "▌      60 <think>I should search.</think>␊",
        "▌      80 ⟪<|im_end|>⟫",
    ]
    done = mask_view(*words, "--tokens", "80:83")
    shown = [line for line in done.stdout.decode().splitlines() if line.startswith(("▌  ", "·  "))]
    assert shown == ["▌      80 ⟪<|im_end|>⟫", "·      81 ␊", "·      82 ⟪<|im_start|>⟫"]
    done = mask_view(*words, "--grep", "should")
    assert "▌      60 <think>I should search.</think>␊" in done.stdout.decode().splitlines()
    assert b"step 1" not in done.stdout


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Return a dataset of one trajectory and scores of it."""
    folder = tmp_path_factory.mktemp("scored")
    action = encoded("Tokyo search")
    trajectory = make_trajectory([([5], action)], rollout_logprobs=[[-5.0, -1.0]])
    with DatasetWriter(folder / "data.parquet") as writer:
        writer.write(trajectory)
    numbers = {
        "trajectory_id": ["t"],
        "step_index": [0],
        "status": ["ok"],
        "logprobs": [[-4.75, None]],
        "entropy": [[2.0, 0.0]],
        "rank": [[8, 0]],
    }
    arrays = [pa.array(numbers.get(f.name, [None]), f.type) for f in SCORES_SCHEMA]
    with (folder / "scores.parquet").open("wb") as stream:
        sink = ParquetSink(stream, SCORES_SCHEMA, SCORES_SCHEMA_NAME)
        sink.write_group(pa.Table.from_arrays(arrays, schema=SCORES_SCHEMA))
        groups = open_dataset(folder / "data.parquet").metadata["row_groups"]
        sink.close({"data": {"row_groups": groups}})
    return folder


@pytest.mark.parametrize(
    ("lane", "drawn"),
    [
        ("logprob", "▌         █████▂▂▂▂▂▂▂"),
        ("scored", "▌         █████???????"),
        ("ratio", "▌         ▄▄▄▄▄???????"),
        ("entropy", "▌         ▄▄▄▄▄"),
        ("rank", "▌         █████"),
        ("advantage", "▌         ????????????"),
    ],
)
def test_numbers_are_drawn_under_actions(scored, lane, drawn):
    words = [scored / "data.parquet", "-t", TINY, "--scores", scored / "scores.parquet"]
    lines = mask_view(*words, "--overlay", lane).stdout.decode().splitlines()
    at = lines.index("▌       1 Tokyo search")
    assert lines[at + 1] == drawn
    assert any(line.endswith("? missing") for line in lines[:at])


def test_a_page_holds_a_checkpoints_numbers(scored):
    words = [scored / "data.parquet", "-t", TINY, "--scores", scored / "scores.parquet"]
    page = read_page(mask_view(*words, "--format", "html").stdout.decode("ascii"))
    assert page.trajectories[0]["lanes"] == {
        "logprob": [[-5.0, -1.0]],
        "scored": [[-4.75, None]],
        "ratio": [[0.25, None]],
        "entropy": [[2.0, 0.0]],
        "rank": [[8.0, 0.0]],
    }


def test_ids_stand_under_each_line(scored):
    lines = mask_view(scored / "data.parquet", "-t", TINY, "--ids").stdout.decode().splitlines()
    at = lines.index("▌       1 Tokyo search")
    assert lines[at + 1].split() == list(map(str, encoded("Tokyo search")))


def test_spans_are_a_table(folder):
    words = [folder / "agent.parquet", "-t", TINY, "--spans", "--step", "0", "-q"]
    lines = mask_view(*words).stdout.decode().splitlines()
    table = [line.split() for line in lines if line.startswith("  ")]
    assert table[0] == ["step", "side", "kind", "from", "to", "tokens", "begins"]
    assert table[-1] == ["0", "action", "(trained)", "stop", "80", "81", "1", "⟪<|im_end|>⟫"]


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    """Return a dataset with a sampled spelling no tokenizer gives, and the findings of it."""
    folder = tmp_path_factory.mktemp("drifted")
    with DatasetWriter(folder / "data.parquet") as writer:
        writer.write(make_trajectory([([5], encoded("Tokyo", control=False))]))
        writer.write(make_trajectory([([5], [6])], "u"))
    command = [sys.executable, "-m", "trajkit", "drift-check", folder / "data.parquet", "-q"]
    found = folder / "findings.parquet"
    assert subprocess.run([*command, "-t", TINY, "-o", found], check=False).returncode == 1
    return folder


def test_findings_stand_under_their_tokens_and_in_a_page(drifted):
    words = [drifted / "data.parquet", "-t", TINY, "--findings", drifted / "findings.parquet"]
    lines = mask_view(*words).stdout.decode().splitlines()
    at = lines.index("▌       1 Tokyo")
    assert lines[at + 1] == "▌   drift ^^^^^"
    assert lines[at + 2].strip().startswith("drift ids-only · ")
    assert lines[at + 2].endswith(" · other text Tokyo")
    assert any(line.startswith("drift: 1 finding · ^ other ids here") for line in lines[:at])
    page = read_page(mask_view(*words, "--format", "html").stdout.decode("ascii"))
    ((start, end, is_added, told, ids),) = page.trajectories[0]["marks"][0]
    assert (start, end, is_added, ids) == (1, 6, 0, encoded("Tokyo"))
    assert told[0] == "ids-only"
    hidden = mask_view(*words, "--redact", "Tok").stdout.decode()
    assert "other text ▒" in hidden
    assert "Tok" not in hidden


def test_findings_of_other_data_are_refused(drifted, scored):
    found = drifted / "findings.parquet"
    done = mask_view(scored / "data.parquet", "-t", TINY, "--findings", found)
    assert done.returncode == 2
    assert b"findings of other data" in done.stderr


@pytest.mark.parametrize("form", ["text", "html", "svg", "json"])
def test_what_is_redacted_is_in_no_form(folder, form):
    words = [folder / "agent.parquet", "-t", TINY, "--limit", "2", "--format", form]
    secrets = ("Tokyo", "agree", "people")
    given = [word for secret in secrets for word in ("--redact", secret)]
    shown = mask_view(*words, *given).stdout.decode()
    if form == "html":
        page = read_page(shown)
        shown = str([page.title, page.shared, page.trajectories])
    assert shown
    for secret in secrets:
        assert secret not in shown
    assert "▒" in shown or form in ("svg", "json")


def test_without_text_there_are_kinds_counts_and_numbers(scored):
    words = [scored / "data.parquet", "-t", TINY, "--no-text"]
    lines = mask_view(*words, "--overlay", "logprob").stdout.decode().splitlines()
    at = lines.index("▌       1 ▒▒")
    assert lines[at + 1] == "▌         █▂"
    assert lines[at + 2].strip() == "text, 2 tokens"
    (shown,) = json.loads(mask_view(*words, "--format", "json").stdout)["trajectories"]
    assert shown["tokens"]["id"] == [None] * 3
    assert shown["tokens"]["kind"] == ["context", "text", "text"]


def test_another_tokenizer_is_drawn_under_each_line(folder, tmp_path):
    other = save(metaspace(prefix=True), tmp_path / "other")
    words = [folder / "agent.parquet", "-t", TINY, "--against-tokenizer", other]
    done = mask_view(*words, "--step", "3")
    assert done.returncode == 0
    assert "against other: " in done.stdout.decode()
    assert "borders in common" in done.stdout.decode()


def test_a_picture_is_written_and_needs_a_file(folder, tmp_path):
    out = tmp_path / "view.png"
    words = [folder / "agent.parquet", "-t", TINY, "--format", "png", "--step", "3"]
    done = mask_view(*words, "-o", out)
    assert (done.returncode, done.stdout) == (0, b"")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert b"error[U101]" in mask_view(*words, "-o", out).stderr
    assert b"error[U102]" in mask_view(*words, "-o", folder / "agent.parquet", "--force").stderr
    assert b"needs a file" in mask_view(*words).stderr


def test_long_context_is_folded_when_asked_for_and_never_in_a_pipe(folder):
    words = [folder / "agent.parquet", "-t", TINY, "-q"]
    assert b"folded" not in mask_view(*words).stdout
    folded = mask_view(*words, "--fold", "2").stdout.decode()
    assert "lines, " in folded
    assert " tokens folded ──" in folded
    assert mask_view(*words, "--fold", "2", "--unfold").stdout == mask_view(*words).stdout


def test_what_cannot_be_shown_exits_with_its_code(folder, tmp_path):
    data = folder / "agent.parquet"
    other = save(metaspace(prefix=True), tmp_path / "other")
    for words, code, exit_code in [
        ([data, "-t", other], b"T102", 3),
        ([folder / "unknown.parquet", "-t", TINY], b"I304", 3),
        ([data, "--trajectory", "nobody"], b"U107", 2),
        ([folder / "none.parquet"], b"U107", 2),
        ([data, "--step", "x"], b"U103", 2),
        ([data, "--tokens", "x"], b"U103", 2),
        ([data, "--only", "thought"], b"U103", 2),
        ([data, "--overlay", "thought"], b"U103", 2),
        ([data, "--overlay", "entropy"], b"U103", 2),
        ([data, "--format", "html", "--spans"], b"U103", 2),
        ([data, "--scores", data], b"S101", 3),
        ([data, "--findings", data], b"S101", 3),
        ([data, "--redact", "("], b"U103", 2),
        ([data, "--redact", "x*"], b"U103", 2),
        ([data, "--redact", "x"], b"U103", 2),
        ([data, "--against-tokenizer", TINY], b"U103", 2),
        ([data, "-t", TINY, "--against-tokenizer", TINY, "--no-text"], b"U103", 2),
        ([data, "-t", TINY, "--against-tokenizer", data], b"T101", 3),
        ([data, "--format", "svg", "--fold", "9"], b"U103", 2),
        ([data, "--format", "json", "--grep", "x"], b"U103", 2),
    ]:
        done = mask_view(*words)
        assert done.returncode == exit_code, words
        assert b"error[" + code + b"]" in done.stderr
