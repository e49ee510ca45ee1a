"""JSON inside strings: calls and tools are read where they are what they say, and else left."""

from __future__ import annotations

import pytest

from trajkit.errors import Place
from trajkit.formats.fields import Fields
from trajkit.formats.nested import calls_in, take_tools
from trajkit.safe.json import strict_json


@pytest.mark.parametrize(
    "text",
    [
        "",
        "height(Ortler)",
        "{",
        '{"a": 1, "a": 2}',
        "NaN",
        "[-Infinity]",
        "[" * 9000,
        "9" * 9000,
        "1e999",
        '"\\ud800"',
    ],
)
def test_what_is_no_json_is_none(text):
    assert strict_json(text) is None
    assert calls_in(text) is None


def test_a_call_keeps_its_arguments_as_they_are():
    assert calls_in('{"name": "f", "arguments": {"b": 1, "a": [null, 2.5]}}') == [
        {"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [None, 2.5]}}}
    ]
    assert calls_in('{"name": "f", "arguments": "{\\"b\\":1}"}') == [
        {"type": "function", "function": {"name": "f", "arguments": '{"b":1}'}}
    ]


def test_a_list_is_several_calls():
    text = '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]'
    assert [call["function"]["name"] for call in calls_in(text) or ()] == ["f", "g"]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        '"f"',
        '{"name": "f"}',
        '{"arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '[{"name": "f", "arguments": {}}, 5]',
    ],
)
def test_json_of_anything_else_is_no_call(text):
    assert calls_in(text) is None


@pytest.mark.parametrize(
    ("tools", "found", "warns", "rest"),
    [
        ('[ {"name":  "f"} ]', '[ {"name":  "f"} ]', False, {}),
        ([{"name": "f"}], '[{"name":"f"}]', False, {}),
        (None, None, False, {}),
        ("", None, False, {"tools": ""}),
        ("a search tool", None, True, {"tools": "a search tool"}),
    ],
)
def test_tools_are_json_or_stay_where_they_are(tools, found, warns, rest):
    fields = Fields({"tools": tools}, Place())
    text, warnings = take_tools(fields)
    assert text == found
    assert bool(warnings) is warns
    assert fields.rest() == rest
