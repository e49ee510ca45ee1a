"""`trajkit demo`: a folder that is whole, and commands that work on it as they are printed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trajkit.cli.demo import COMMANDS, next_commands
from trajkit.demo import write as demo
from trajkit.errors import FileError

MODULE = [sys.executable, "-m", "trajkit"]


def run(words, cwd):
    return subprocess.run(
        [*MODULE, *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"},
    )


def files_in(folder):
    """Return the content of every file under a folder, by name."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


BUNDLED = {
    name: data for name, data in files_in(demo.HERE).items() if not name.endswith((".py", ".pyc"))
}


def test_every_bundled_file_is_in_the_table_and_all_are_small():
    assert set(demo.FILES) == set(BUNDLED)
    assert sum(map(len, BUNDLED.values())) < 1_000_000


@pytest.mark.parametrize("name", ["try", "a folder/of mine", "it's {0} new"])
def test_the_folder_is_whole_and_holds_nothing_else(tmp_path, name):
    done = run(["demo", name], tmp_path)
    assert done.returncode == 0, done.stderr
    assert files_in(tmp_path / name) == BUNDLED
    assert not list(tmp_path.rglob(".*"))
    assert f"9 files, {sum(map(len, BUNDLED.values())):,} bytes" in done.stdout
    for command in next_commands(Path(name)):
        assert f"  {command}\n" in done.stdout
        assert shlex.split(command)[0] == "trajkit"


def test_an_empty_folder_is_filled_and_stays_the_same_folder(tmp_path):
    inode = tmp_path.stat().st_ino
    assert run(["demo", "."], tmp_path).returncode == 0
    assert files_in(tmp_path) == BUNDLED
    assert tmp_path.stat().st_ino == inode


def test_a_folder_with_files_is_left_alone_without_force(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = run(["demo", tmp_path], tmp_path)
    assert done.returncode == 2
    assert "error[U101]" in done.stderr
    assert "--force" in done.stderr
    assert done.stdout == ""
    assert files_in(tmp_path) == {"notes.txt": b"mine"}


def test_force_renews_the_demos_files_and_no_others(tmp_path):
    demo.write_demo(tmp_path / "d")
    (tmp_path / "d" / "logs" / "calls.jsonl").write_text("changed")
    (tmp_path / "d" / "steps.parquet").write_bytes(b"mine")
    assert run(["demo", "d", "--force"], tmp_path).returncode == 0
    assert files_in(tmp_path / "d") == BUNDLED | {"steps.parquet": b"mine"}


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_file_of_that_name_is_no_folder(tmp_path, force):
    (tmp_path / "d").write_text("mine")
    done = run(["demo", "d", *force], tmp_path)
    assert done.returncode == 2
    assert "error[U101]" in done.stderr
    assert (tmp_path / "d").read_text() == "mine"


@pytest.mark.parametrize("name", ["d", "d/tiny"])
def test_nothing_is_written_through_a_link(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "elsewhere")
    done = run(["demo", "d", "--force"], tmp_path)
    assert done.returncode == 5
    assert "error[R103]" in done.stderr
    assert files_in(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize("is_there", [False, True])
def test_after_a_fault_nothing_is_left(tmp_path, monkeypatch, is_there):
    target = tmp_path / "d"
    if is_there:
        target.mkdir()
        (target / "notes.txt").write_text("mine")

    def fail(path, data, *, overwrite):
        if path.name == "calls.jsonl":
            raise FileError("F103", "expected room for the output, found none")
        path.write_bytes(data)

    monkeypatch.setattr(demo, "publish_bytes", fail)
    with pytest.raises(FileError):
        demo.write_demo(target, overwrite=True)
    left = {"d/notes.txt": b"mine"} if is_there else {}
    assert files_in(tmp_path) == left
    assert len(list(tmp_path.rglob("*"))) == 2 * is_there


def test_what_a_killed_run_left_goes_with_the_next(tmp_path):
    left = tmp_path / ".d.0123456789abcdef.tmp"
    left.mkdir()
    (left / "half").write_text("half")
    (tmp_path / ".d.mine.tmp").mkdir()
    demo.write_demo(tmp_path / "d")
    assert {path.name for path in tmp_path.iterdir()} == {"d", ".d.mine.tmp"}


def test_json_lists_the_files_and_the_commands(tmp_path):
    facts = json.loads(run(["demo", "d", "--format", "json"], tmp_path).stdout)
    assert facts["schema"] == "trajkit.demo/1"
    assert facts["commands"] == next_commands(Path("d"))
    assert len(facts["commands"]) == len(COMMANDS)
    for file in facts["files"]:
        assert (tmp_path / file["file"]).stat().st_size == file["n_bytes"]
        assert file["holds"]


def test_a_name_like_an_option_is_written_as_a_path():
    assert next_commands(Path("-d"))[0].startswith("trajkit ingest ./-d/logs ")


def test_drift_is_found_in_the_two_actions_that_are_spelt_otherwise(tmp_path):
    demo.write_demo(tmp_path / "d")
    ingest, drift_check, mask_view, _ = (shlex.split(c)[1:] for c in next_commands(Path("d")))
    done = run([*ingest, "--format", "json"], tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["n_trajectories"], facts["n_steps"]) == (4, 8)
    assert {row["format"] for row in facts["detected"]} == {"per-call", "messages", "flat"}
    done = run([*drift_check, "--route", "ids", "--format", "json"], tmp_path)
    assert done.returncode == 1
    found = {
        (f["trajectory_id"], f["step_index"]): (f["kind"], f["recorded_text"])
        for f in json.loads(done.stdout)["findings"]
    }
    assert found == {
        ("tokyo-0", 0): ("ids-only", " Tokyo"),
        ("tokyo-1", 1): ("ids-only", " million"),
    }
    done = run([*drift_check, "--route", "chain"], tmp_path)
    assert done.returncode == 0
    done = run(mask_view, tmp_path)
    assert done.returncode == 0
    assert "▌      48 <think>I should search.</think>" in done.stdout


@pytest.mark.torch
def test_the_log_probs_are_the_checkpoints_own(tmp_path):
    demo.write_demo(tmp_path / "d")
    ingest, *_, score = (shlex.split(command)[1:] for command in next_commands(Path("d")))
    assert run(ingest, tmp_path).returncode == 0
    done = run([*score, "--device", "cpu", "--format", "json"], tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["tokenizer_checked"] is True
    assert facts["mismatch"]["n"] == 50
    assert facts["mismatch"]["max_abs"] < 1e-5
    assert (tmp_path / "d" / "scores.parquet").exists()
