"""Sources in, one dataset out: each record is written, or set aside with a reason, or stops it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.builders import FIXTURES, TINY, tiny_tokenizer
from trajkit.errors import InputError, TrajkitError, UsageProblem
from trajkit.ingestion.run import OnError, ingest, quarantine_path
from trajkit.store.read import open_dataset, read_trajectories
from trajkit.store.write import StatePolicy

FORMATS = FIXTURES / "formats"
BAD = FIXTURES / "bad"
EXPECTED: dict[str, dict[str, Any]] = json.loads((BAD / "EXPECTED.json").read_text())


def line(name: str, *, action: object = (6, 2), **more: object) -> str:
    turn = {"prompt_token_ids": [1, 5], "response_token_ids": action}
    return json.dumps({"trajectory_id": name, "turns": [turn], **more}) + "\n"


def make(path: Path, *lines: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return str(path)


def read(out: Path) -> Any:
    return list(read_trajectories(out))


def ids_in(out: Path) -> list[str]:
    return [trajectory.trajectory_id for trajectory in read(out)]


# --- what is reported and written


def test_all_samples_go_into_one_dataset(tmp_path):
    report = ingest([str(FORMATS)], tmp_path / "out", tokenizer=TINY)
    assert report.to_dict() | {"detected": None, "warnings": None} == {
        "schema": "trajkit.ingest/1",
        "format": "flat+messages+mini-swe-agent+per-call+responses+rows+sharegpt+swe-agent"
        "+tau-bench",
        "n_read": 36,
        "n_written": 36,
        "n_quarantined": 0,
        "n_trajectories": 36,
        "n_steps": 70,
        "n_action_tokens": report.n_action_tokens,
        "n_states_left_out": 0,
        "n_straddling_tokens": 0,
        "n_control_text": 0,
        "by_source": {"sampled": 12, "retokenized": 0, "unknown": 10, "none": 48},
        "by_format": {
            "flat": 8,
            "messages": 4,
            "mini-swe-agent": 2,
            "per-call": 3,
            "responses": 3,
            "rows": 6,
            "sharegpt": 4,
            "swe-agent": 2,
            "tau-bench": 4,
        },
        "quarantine": None,
        "out": str(tmp_path / "out"),
        "detected": None,
        "warnings": None,
    }
    steps = [step for trajectory in read(tmp_path / "out") for step in trajectory.steps]
    assert len(steps) == 70
    assert sum(step.n_action_tokens for step in steps) == report.n_action_tokens > 50
    assert [d.file for d in report.detected] == [
        "flat/chatml.jsonl",
        "flat/hermes-labels.jsonl",
        "flat/hermes.jsonl",
        "flat/react.jsonl",
        *["flat/search-r1.jsonl"] * 3,
        "messages/tools.jsonl",
        "mini-swe-agent/ids.jsonl",
        "mini-swe-agent/text.jsonl",
        "per-call/search.jsonl",
        "per-call/window.jsonl",
        "responses/no_ids.jsonl",
        "responses/search.jsonl",
        "rows/labels.jsonl",
        "rows/masks.jsonl",
        "rows/responses.jsonl",
        "sharegpt/tools.jsonl",
        "swe-agent/text.traj",
        "swe-agent/tools.traj",
        "tau-bench/trains.jsonl",
    ]
    assert report.warnings == [
        "an observation has no closing tag: it ends where the policy goes on (1 record)",
        "empty prompt and empty generation ids: read as not recorded (1 record)",
        "padding that attention_mask leaves out is not kept (1 record)",
        (
            "the model was shown an edited history (query): the prompts here are the whole "
            "history's (1 record)"
        ),
    ]


def test_an_action_cut_inside_a_character_keeps_its_ids_and_shows_the_cut(tmp_path):
    ingest([str(FORMATS / "per-call")], tmp_path / "a.parquet", tokenizer=TINY)
    cut = read(tmp_path / "a.parquet")[1].steps[0]
    assert cut.action_text.endswith("\ufffd")
    assert cut.is_truncated


def test_the_report_counts_only_what_was_sampled(tmp_path):
    log = make(tmp_path / "a.jsonl", line("a", action=[6, 7, 2]), line("b", action=None))
    report = ingest([log], None)
    assert (report.n_action_tokens, report.by_source["sampled"], report.by_source["none"]) == (
        3,
        1,
        1,
    )


def test_the_way_back_is_the_relative_file_and_the_record(tmp_path):
    make(tmp_path / "logs" / "a.jsonl", line("a"), "\n", line("b"))
    make(tmp_path / "logs" / "deep" / "b.jsonl", line("c"))
    ingest([str(tmp_path / "logs")], tmp_path / "out.parquet")
    found = [
        (t.steps[0].source_file, t.steps[0].source_record) for t in read(tmp_path / "out.parquet")
    ]
    assert found == [("a.jsonl", 0), ("a.jsonl", 1), ("deep/b.jsonl", 0)]


def test_a_single_file_is_called_by_its_name(tmp_path):
    log = make(tmp_path / "somewhere" / "a.jsonl", line("a"))
    ingest([log], tmp_path / "out.parquet")
    assert read(tmp_path / "out.parquet")[0].steps[0].source_file == "a.jsonl"


def test_a_file_name_that_is_no_text_is_no_obstacle(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    with open(path, "w") as stream:  # noqa: PTH123 - a name in bytes
        stream.write(line("a"))
    ingest([os.fsdecode(path)], tmp_path / "out")
    assert read(tmp_path / "out")[0].steps[0].source_file == "caf\\xe9.jsonl"


def test_two_runs_are_the_same_bytes_wherever_they_run(tmp_path):
    for place in ("one", "two"):
        log = make(tmp_path / place / "a.jsonl", line("a"), '{"messages": []}\n')
        ingest([log], tmp_path / place / "out.parquet", tokenizer=TINY)
    one, two = (tmp_path / place / "out.parquet" for place in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_what_was_read_stands_in_the_metadata(tmp_path):
    log = Path(make(tmp_path / "a.jsonl", line("a")))
    ingest([str(log)], tmp_path / "out", tokenizer=TINY, state=StatePolicy.NONE, limit=5)
    metadata = open_dataset(tmp_path / "out").metadata
    digest = hashlib.sha256(log.read_bytes()).hexdigest()
    assert metadata["inputs"] == [
        {"file": "a.jsonl", "sha256": digest, "n_bytes": log.stat().st_size}
    ]
    assert metadata["tokenizer_name"] == "tiny"
    assert metadata["tokenizer_fingerprint"] == tiny_tokenizer().fingerprint
    assert metadata["options"] == {
        "from": "auto",
        "state": "none",
        "markup": None,
        "align": "auto",
        "retokenize": False,
        "on_error": "stop",
        "limit": 5,
    }


# --- sources


def test_packed_files_and_globs_are_read(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line("a").encode()))
    packed = pa.Codec("zstd").compress(line("b").encode(), asbytes=True)
    (tmp_path / "b.jsonl.zst").write_bytes(packed)
    make(tmp_path / "c.txt", line("c"))
    ingest([str(tmp_path / "*.jsonl.*"), str(tmp_path / "c.txt")], tmp_path / "out")
    assert ids_in(tmp_path / "out") == ["a", "b", "c"]


def test_standard_input_is_a_source(tmp_path, monkeypatch):
    data = (line("a") + line("b")).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    ingest(["-"], tmp_path / "out")
    assert ids_in(tmp_path / "out") == ["a", "b"]
    assert read(tmp_path / "out")[0].steps[0].source_file == "-"
    assert open_dataset(tmp_path / "out").metadata["inputs"][0]["n_bytes"] == len(data)


def test_the_format_is_told_record_by_record(tmp_path):
    log = make(
        tmp_path / "a.jsonl",
        line("a"),
        '{"messages": [{"role": "user", "content": "hi"}]}\n',
        (FORMATS / "responses" / "search.jsonl").read_text(),
        line("b"),
    )
    report = ingest([log], tmp_path / "out")
    assert [t.steps[0].source_format for t in read(tmp_path / "out")] == [
        "per-call",
        "messages",
        "responses",
        "per-call",
    ]
    assert [d.format for d in report.detected] == ["per-call", "messages", "responses"]


def test_a_format_asked_for_is_the_only_one(tmp_path):
    log = make(tmp_path / "a.jsonl", line("a", messages=[{"role": "user", "content": "x"}]))
    report = ingest([log], None, from_format="messages")
    assert report.by_source["sampled"] == 0
    assert report.detected[0].reason == "asked for"
    with pytest.raises(UsageProblem, match="U103"):
        ingest([log], None, from_format="pickle")
    with pytest.raises(InputError, match="I202"):
        ingest([log], None, from_format="responses")


def test_a_limit_counts_records_over_all_files(tmp_path):
    one = make(tmp_path / "a.jsonl", line("a"), line("b"), line("c"))
    two = make(tmp_path / "b.jsonl", line("d"))
    for limit, expected in ((1, "a"), (3, "abc"), (4, "abcd"), (9, "abcd")):
        out = tmp_path / f"{limit}.parquet"
        report = ingest([one, two], out, limit=limit)
        assert "".join(ids_in(out)) == expected
        assert report.n_read == len(expected)


def test_a_file_that_a_limit_left_early_has_no_digest(tmp_path):
    first = line("a")
    log = make(tmp_path / "a.jsonl", first, line("b"))
    ingest([log], tmp_path / "out", limit=1)
    assert open_dataset(tmp_path / "out").metadata["inputs"] == [
        {"file": "a.jsonl", "sha256": None, "n_bytes": len(first) - 1}
    ]


def test_what_lies_beyond_a_limit_is_not_judged(tmp_path):
    log = make(tmp_path / "a.jsonl", line("a"), "not json\n")
    assert ingest([log], None, limit=1).n_read == 1


def test_a_dry_run_reads_all_and_writes_nothing(tmp_path):
    log = make(tmp_path / "a.jsonl", line("a"), "{}\n")
    with pytest.raises(InputError, match="I402"):
        ingest([log], None)
    report = ingest([log], None, on_error=OnError.QUARANTINE)
    assert (report.n_written, report.n_quarantined, report.out, report.quarantine) == (
        1,
        1,
        None,
        None,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


# --- ids


def test_records_without_an_id_are_called_by_their_content(tmp_path):
    text = '{"messages": [{"role": "user", "content": "hi"}]}'
    log = make(tmp_path / "a.jsonl", f"{text}\n", f"{text}\n", '{"messages": []}\n', f"{text}\n")
    ingest([log], tmp_path / "out")
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    other = hashlib.sha256(b'{"messages": []}').hexdigest()[:16]
    assert ids_in(tmp_path / "out") == [name, f"{name}-2", other, f"{name}-3"]


def test_an_id_twice_is_an_error_even_in_another_file(tmp_path):
    one, two = make(tmp_path / "a.jsonl", line("x")), make(tmp_path / "b.jsonl", line("x"))
    with pytest.raises(InputError) as caught:
        ingest([one, two], tmp_path / "out")
    assert caught.value.code == "I401"
    assert str(caught.value.place) == "b.jsonl:1"
    assert not (tmp_path / "out").exists()


def test_the_id_of_a_bad_record_is_free_for_a_good_one(tmp_path):
    log = make(tmp_path / "a.jsonl", line("x", action=[0.5]), line("x"), line("x"))
    report = ingest([log], tmp_path / "out", on_error=OnError.QUARANTINE)
    assert ids_in(tmp_path / "out") == ["x"]
    assert report.n_quarantined == 2


# --- what is wrong


@pytest.mark.parametrize("name", EXPECTED)
def test_each_bad_record_is_refused_for_its_reason_and_place(tmp_path, name):
    expected = EXPECTED[name]
    tokenizer = TINY if "tokenizer" in expected else None
    with pytest.raises(TrajkitError) as caught:
        ingest([str(BAD / name)], tmp_path / "out", tokenizer=tokenizer)
    problem = caught.value
    assert problem.code == expected["code"]
    assert problem.place is not None
    assert (problem.place.line, problem.place.path) == (expected["line"], expected["path"])
    assert problem.place.file is not None
    assert Path(problem.place.file).name == name
    assert problem.hint
    assert list(tmp_path.iterdir()) == []


def test_every_bad_file_is_in_the_table_and_every_code_has_one():
    assert {path.name for path in BAD.iterdir()} - {"EXPECTED.json"} == set(EXPECTED)
    codes = {expected["code"] for expected in EXPECTED.values()}
    assert codes == {f"I1{n:02}" for n in range(1, 11)} | {
        *("I201", "I202", "I203"),
        *(f"I30{n}" for n in range(1, 7)),
        *("I401", "I402", "I404", "I405", "I406", "I407"),
    }


@pytest.mark.parametrize("name", [name for name, e in EXPECTED.items() if e["line"] == 2])
def test_a_bad_record_is_set_aside_byte_by_byte(tmp_path, name):
    expected = EXPECTED[name]
    report = ingest(
        [str(BAD / name)],
        tmp_path / "out.parquet",
        tokenizer=TINY if "tokenizer" in expected else None,
        on_error=OnError.QUARANTINE,
    )
    assert (report.n_read, report.n_written, report.n_quarantined) == (2, 1, 1)
    assert ids_in(tmp_path / "out.parquet") == ["good"]
    assert report.quarantine == str(tmp_path / "_out.quarantine.jsonl")
    (row,) = map(json.loads, Path(report.quarantine).read_text().splitlines())
    whole = (BAD / name).read_bytes()
    raw = base64.b64decode(row["raw_b64"])
    assert raw == whole.split(b"\n")[1]
    assert whole[row["byte_offset"] : row["byte_offset"] + row["n_bytes"]] == raw
    assert row["sha256"] == hashlib.sha256(raw).hexdigest()
    assert (row["code"], row["file"], row["record"]) == (expected["code"], name, 1)
    assert row["message"]
    assert row["place"].startswith(f"{name}:2")


def test_when_every_record_is_bad_the_dataset_is_empty_and_all_are_set_aside(tmp_path):
    log = make(tmp_path / "a.jsonl", "{}\n", "[\n")
    report = ingest([log], tmp_path / "out", on_error=OnError.QUARANTINE)
    assert (report.n_read, report.n_written, report.n_quarantined) == (2, 0, 2)
    assert read(tmp_path / "out") == []
    assert len((tmp_path / "out" / "_quarantine.jsonl").read_text().splitlines()) == 2


def test_a_quarantine_is_no_source_of_a_later_run(tmp_path):
    make(tmp_path / "a.jsonl", line("a"), "{}\n")
    ingest([str(tmp_path)], tmp_path / "x.parquet", on_error=OnError.QUARANTINE)
    assert quarantine_path(tmp_path / "x.parquet").exists()
    report = ingest([str(tmp_path)], tmp_path / "y.parquet", on_error=OnError.QUARANTINE)
    assert report.n_read == 2


@pytest.mark.parametrize("out", ["out", "out.parquet"])
def test_a_clean_run_over_an_old_output_leaves_no_old_quarantine(tmp_path, out):
    bad = make(tmp_path / "bad.jsonl", line("a"), "{}\n")
    good = make(tmp_path / "good.jsonl", line("b"))
    ingest([bad], tmp_path / out, on_error=OnError.QUARANTINE)
    assert quarantine_path(tmp_path / out).exists()
    ingest([good], tmp_path / out, overwrite=True, on_error=OnError.QUARANTINE)
    assert not quarantine_path(tmp_path / out).exists()
    assert ids_in(tmp_path / out) == ["b"]


def test_a_stop_after_something_was_set_aside_publishes_neither(tmp_path):
    log = make(tmp_path / "a.jsonl", line("a"), "{}\n")
    cut = tmp_path / "b.jsonl.gz"
    cut.write_bytes(gzip.compress(line("b").encode())[:-9])
    with pytest.raises(InputError, match="I108"):
        ingest([log, str(cut)], tmp_path / "out", on_error=OnError.QUARANTINE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl.gz"]


def test_the_input_is_never_the_output(tmp_path):
    log = make(tmp_path / "a.parquet", line("a"))
    with pytest.raises(UsageProblem, match="U102"):
        ingest([log], log, overwrite=True)
    (tmp_path / "b.parquet").symlink_to("a.parquet")
    with pytest.raises(UsageProblem, match="U102"):
        ingest([log], tmp_path / "b.parquet", overwrite=True)
    assert Path(log).read_text() == line("a")


def test_an_output_that_exists_is_refused_before_anything_is_read(tmp_path):
    log = make(tmp_path / "a.jsonl", line("a"))
    ingest([log], tmp_path / "out")
    with pytest.raises(UsageProblem, match="U101"):
        ingest([str(BAD / "cut.jsonl")], tmp_path / "out")
    assert ids_in(tmp_path / "out") == ["a"]


def test_a_failure_over_an_old_output_leaves_it(tmp_path):
    log = make(tmp_path / "a.jsonl", line("a"))
    for out in (tmp_path / "out", tmp_path / "out.parquet"):
        ingest([log], out)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InputError, match="I103"):
            ingest([str(BAD / "cut.jsonl")], out, overwrite=True)
        assert ids_in(out) == ["a"]
        assert sorted(tmp_path.rglob("*")) == before


def test_a_warning_is_told_once_with_its_number_of_records(tmp_path):
    said = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    log = make(tmp_path / "a.jsonl", *(line(f"t{k}", messages=said) for k in range(3)), line("x"))
    (told,) = ingest([log], None).warnings
    assert told.startswith("messages and calls differ in number: ")
    assert told.endswith(" (3 records)")


def test_records_set_aside_earlier_are_kept_unless_overwriting_was_asked_for(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": [{"role": "assistant", "content": "hi"}]}) + "\n")
    kept = quarantine_path(tmp_path / "x.parquet")
    kept.write_text("the only copy")
    ingest([str(log)], tmp_path / "x.parquet")
    assert kept.read_text() == "the only copy"
    ingest([str(log)], tmp_path / "x.parquet", overwrite=True)
    assert not kept.exists()


def test_states_that_nobody_asked_for_are_not_called_too_long(tmp_path):
    report = ingest(
        [str(FIXTURES / "formats" / "flat" / "search-r1.jsonl")],
        tmp_path / "x.parquet",
        state=StatePolicy.NONE,
    )
    assert report.n_states_left_out == 0
