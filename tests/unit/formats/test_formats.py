"""The catalogue of formats: each has samples, is detected by them, and is found by its name."""

from __future__ import annotations

import pytest

from tests.builders import FIXTURES, make_record, records_of
from trajkit.errors import InputError, UsageProblem
from trajkit.formats import FORMATS, detect, format_named

SAMPLES = sorted(
    path for path in (FIXTURES / "formats").glob("*/*") if path.suffix in (".jsonl", ".traj")
)


def test_every_format_has_a_sample_and_every_sample_a_format():
    assert {path.parent.name for path in SAMPLES} == {entry.name for entry in FORMATS}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_record_of_a_sample_is_detected_as_its_format_and_read(path):
    records = records_of(path)
    assert records
    for record in records:
        form, reason = detect(record)
        assert form.name == path.parent.name
        assert reason
        assert form.read(record).steps is not None


def test_a_format_is_found_by_its_name():
    assert [format_named(entry.name) for entry in FORMATS] == list(FORMATS)


def test_an_unknown_name_is_a_usage_error_that_tells_the_known_ones():
    with pytest.raises(UsageProblem) as caught:
        format_named("pickle")
    assert caught.value.code == "U103"
    names = (
        "per-call, responses, rows, tau-bench, swe-agent, sharegpt, mini-swe-agent, messages, flat"
    )
    assert names in str(caught.value.hint)


def test_a_message_that_stands_alone_is_told_what_a_conversation_is():
    with pytest.raises(InputError) as caught:
        detect(make_record({"role": "user", "content": "x"}))
    assert str(caught.value.hint).startswith('a conversation is one record: {"messages": [...]}')


def test_a_record_with_ids_and_messages_is_taken_for_its_ids():
    record = make_record(
        {
            "messages": [{"role": "user", "content": "x"}],
            "turns": [{"prompt_token_ids": [1], "response_token_ids": [2]}],
        }
    )
    assert detect(record)[0].name == "per-call"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"prompt": "a", "completion": "b"}, "prompt, completion"),
        ({"k" * 900: 1}, ": an object with the keys kkkk"),
        ([1], ": a list"),
        ("text", ": a string"),
        (None, ": null"),
        ({}, ": an object without keys"),
    ],
)
def test_what_no_format_knows_is_refused_and_told(value, told):
    with pytest.raises(InputError) as caught:
        detect(make_record(value, line=3))
    assert caught.value.code == "I402"
    assert told in caught.value.message
    assert len(caught.value.message) < 200
    assert str(caught.value.place) == "log.jsonl:3"
    assert "per-call" in str(caught.value.hint)
