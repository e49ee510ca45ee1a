import io
import json
import math
import re
import unicodedata
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trajkit.errors import ERROR_CODES, InputError, Place, TrajkitError
from trajkit.formats.fields import Fields
from trajkit.safe import ids
from trajkit.safe import json as reader
from trajkit.safe.faults import brackets
from trajkit.safe.json import BadRecord, Record, dumps, read_records
from trajkit.safe.text import shorten, visible

FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

any_text = st.text(st.characters(exclude_categories=()))
whole_text = st.text()
numbers = (
    st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | whole_text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(whole_text, inner, max_size=5),
    max_leaves=20,
)
json_objects = st.dictionaries(whole_text, json_values, min_size=1, max_size=5)
# Bytes that look enough like records to reach every branch.
pieces = [
    *(b'{"a": 1}', b'{"b": [2, {"c": "\\ud83d\\ude00"}]}', b'{\n "a":\n 1}', b'{"a": 1, "a": 2}'),
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\n", b"\r\n", b" ", b"\0", b"-"),
    *(b'"a"', b"1e400", b"NaN", b"tru", b"\\ud800", b"\xff", b"\xe6\x97", b"\xef\xbb\xbf"),
]
shreds = st.lists(st.sampled_from(pieces) | st.binary(max_size=3), max_size=12).map(b"".join)

# Records of arrays under the keys that are taken, plain and odd, and what may stand around them.
plain_ids = st.lists(st.integers(0, 2**20 - 1).map(str), min_size=1, max_size=12)
odd_items = st.sampled_from(
    [
        *("", " ", "01", "-1", "-0", "1.0", "1e2", "1 2", "null", "true", '"1"', "[1]", "{}", "+1"),
        *(str(2**20), str(2**31), str(2**64), "9" * 30, "9" * 5000, "1e400", "NaN", "-Infinity"),
    ]
)
log_probs = st.floats(-100, 1e-6).map(repr) | st.floats(allow_nan=False).map(json.dumps)
commas = st.sampled_from([",", ", ", " ,", ",\t ", ",\r"])


@st.composite
def contents(draw: st.DrawFn) -> str:
    """Draw the inside of an array: ids that go on from a common beginning, or log-probs."""
    items = draw(plain_ids | st.lists(log_probs, max_size=12))
    if draw(st.booleans()):
        items = ["5", "151643", "0", "77", *items]
    for odd in draw(st.lists(odd_items, max_size=1)):
        items.insert(draw(st.integers(0, len(items))), odd)
    pad = draw(st.sampled_from(["", " ", "\t"]))
    return pad + draw(commas).join(items) + pad


heads = st.sampled_from(['"token_ids":', '"prompt_ids" : ', '"logprobs":']) | st.sampled_from(
    [
        *('"a":1,"x_ids":', '"x\\"token_ids":', '"x"token_ids":', '"\\u0070_ids":', "_ids:", ""),
        *('"a":"\\"_ids\\":[1]","logprobs":', '"a":["\\ud800"],"_ids":', '"a":NaN,"x_ids":'),
        *('"a":"-Infinity","_ids":', '"messages":[{"token_ids":[1,2,3]}],"_ids":', '"é_ids":'),
    ]
)
arrays = st.builds("{}[{}]".format, heads, contents())
around = st.sampled_from(["{%s}", '{"turns":[{%s},{"n":1}]}']) | st.sampled_from(
    [
        *("[{%s}]", '{"turns":[{%s}]', "{%s", "[%s]", "%s", '{"s":"%s"}', '{"\xe9":{%s}}'),
        *("[" * n + "{%s}" + "]" * n for n in (61, 62, 63)),
    ]
)
array_records = st.builds(
    lambda form, parts, join: (form % join.join(parts)).encode(),
    around,
    st.lists(arrays, min_size=1, max_size=4),
    st.sampled_from(["},{", ","]),
)


def told(data: bytes) -> list[tuple[object, ...]] | str:
    """Return all that is to be seen of the records of some bytes."""
    try:
        found = read(data)
    except TrajkitError as error:
        return str(error)
    return [
        (
            *(type(each), each.raw, each.line, each.byte_offset, each.index),
            repr(each.value)
            if isinstance(each, Record)
            else (each.error.code, each.error.message, each.error.place, each.error.excerpt),
        )
        for each in found
    ]


def taken_from(value: object) -> list[object]:
    """Return what ids and log-probs the objects of a value give, or why they give none."""
    found: list[object] = []
    objects = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
    for each in [one for one in objects if isinstance(one, dict)]:
        fields = Fields(each, Place(file="x"))
        for take in (fields.take_ids, fields.take_logprobs):
            for key in each:
                try:
                    array = take(key)
                except InputError as error:
                    found.append((error.code, error.message, error.place, error.excerpt))
                else:
                    found.append(None if array is None else (array.dtype.str, array.tobytes()))
        found.append(repr(fields.rest()))
    return found


class Dripping(io.RawIOBase):
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__()
        self.source = io.BytesIO(data)
        self.size = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        return self.source.readinto(memoryview(buffer)[: self.size])


def read(data: bytes) -> list[Record | BadRecord]:
    return list(read_records(io.BytesIO(data), "x"))


def read_or_code(data: bytes) -> list[Record | BadRecord] | str:
    try:
        return read(data)
    except TrajkitError as error:
        return error.code


def values(data: bytes) -> list[object]:
    return [record.value if isinstance(record, Record) else record.error for record in read(data)]


@given(any_text, st.booleans())
def test_nothing_visible_can_act_or_hide(text, keep_newlines):
    shown = visible(text, keep_newlines=keep_newlines)
    bare = shown.replace("\n", "") if keep_newlines else shown
    assert not {unicodedata.category(character) for character in bare} & FORBIDDEN
    assert shown.count("\n") == (text.count("\n") if keep_newlines else 0)


@given(any_text, any_text)
def test_showing_is_done_character_by_character_and_once(one, two):
    assert visible(one + two) == visible(one) + visible(two)
    assert visible(visible(one)) == visible(one)
    assert visible(one, keep_newlines=True).replace("\n", "␊") == visible(one)


@given(any_text, st.integers(0, 30))
def test_shortened_text_is_a_visible_prefix_within_the_limit(text, limit):
    short = shorten(text, limit)
    assert len(short) <= limit
    assert short == visible(text) or visible(text).startswith(short.removesuffix("…"))


@given(json_values)
@example([-0.0, 2**64, 5.0, "\u2028\u0085\x00\x1b", {"": {"a": []}}])
def test_what_dumps_writes_is_read_back_exactly(value):
    text = dumps(value)
    assert "\n" not in text
    (record,) = read(b'{"a": 0}\n' + text.encode() + b"\n")[1:]
    assert isinstance(record, Record)
    assert repr(record.value) == repr(value)  # tells 1 from 1.0 and True, and 0.0 from -0.0
    assert record.raw == text.encode()


@given(st.lists(json_objects, min_size=2, max_size=4), st.sampled_from([None, 0, 1, "\t"]))
def test_every_layout_gives_the_same_records(objects, indent):
    lines = "".join(dumps(each) + "\n" for each in objects)
    array = json.dumps(objects, indent=indent)
    pretty = "\n".join(json.dumps(each, indent=indent) for each in objects)
    assert repr(values(lines.encode())) == repr(objects)
    assert repr(values(array.encode())) == repr(objects)
    assert repr(values(pretty.encode())) == repr(objects)


@given(shreds)
@example(b'{\n"a"\n1}\n{"b": 1}')
@example(b'[1]\n,[2]\n{"a": 1}')
@example(b'[{"a": 1},')
def test_every_byte_is_in_one_record_or_between_two(data):
    found = read_or_code(data)
    if isinstance(found, str):
        assert found == "I101"
        return
    end = 0
    for index, record in enumerate(found):
        assert record.index == index
        assert record.byte_offset >= end
        assert re.fullmatch(rb"(?:\xef\xbb\xbf)?[ \t\r\n\[\],]*", data[end : record.byte_offset])
        assert record.line == data[: record.byte_offset].count(b"\n") + 1
        end = record.byte_offset + len(record.raw)
        assert data[record.byte_offset : end] == record.raw
    assert re.fullmatch(rb"(?:\xef\xbb\xbf)?[ \t\r\n\[]*\]?[ \t\r\n]*", data[end:])


@given(shreds)
def test_a_good_record_is_what_a_plain_reader_reads_and_a_bad_one_says_why(data):
    found = read_or_code(data)
    for record in [] if isinstance(found, str) else found:
        if isinstance(record, Record):
            assert record.value == json.loads(record.raw)
            continue
        error = record.error
        assert error.code in ERROR_CODES
        assert error.hint
        assert error.excerpt is not None
        assert len(error.excerpt) <= 80
        assert error.place is not None
        assert error.place.byte_offset is not None
        assert 0 <= error.place.byte_offset - record.byte_offset <= len(record.raw)


@given(st.lists(json_objects, min_size=1, max_size=3), st.data())
def test_one_changed_byte_never_goes_unnoticed_by_count(objects, data):
    raw = bytearray("".join(json.dumps(each) + "\n" for each in objects).encode())
    changed = data.draw(st.integers(0, 255).filter(lambda byte: byte != ord("\n")))
    raw[data.draw(st.integers(0, len(raw) - 2))] = changed
    found = read_or_code(bytes(raw))
    if isinstance(found, str):
        assert found == "I101"
        return
    if not raw.lstrip(b" \t\r\n").startswith(b"["):
        assert len(found) == len([line for line in raw.split(b"\n") if line.strip(b" \t\r\n")])


@given(shreds, st.integers(1, 5))
def test_the_size_of_reads_changes_nothing(data, size):
    def all_of(stream) -> list[str] | str:
        try:
            return [repr(record) for record in read_records(stream, "x")]
        except TrajkitError as error:
            return str(error)

    dripping = io.BufferedReader(Dripping(data, size), buffer_size=2)
    assert re.sub(r" at 0x\w+", "", str(all_of(dripping))) == str(all_of(io.BytesIO(data)))


@given(st.floats())
def test_a_float_is_written_only_if_it_is_finite(number):
    if math.isfinite(number):
        assert json.loads(dumps([number])) == [number]
    else:
        with pytest.raises(InputError, match="finite"):
            dumps([number])


@given(array_records)
@example(b'{"_ids":[1],"_ids":[1]}')
@example(b'[{"x_ids":[1,2]},{"x_ids":[1,234]}]')
@example(b'{"s":"a_ids\\":[1,2]","b_ids\\\\":[1,2],"_ids":[1]}')
@example(b'[{"x_ids":[1,2]},{"x_ids":[1,2,3]},{"x_ids":[1,2,34]},{"x_ids":[1,2,]}]')
@example(b'{"token_ids":[1,2],"logprobs":[-0.5,0,-0.0,1e-300,5e-324]}')
@example(b'{"_ids":[1,2' + b"3" * 40 + b"]}")
def test_taking_arrays_out_changes_nothing(raw):
    with mock.patch.object(ids, "_MIN_BYTES", 1):
        fast = told(raw), told(b'{"a": 0}\n' + raw + b'\n{"b": 0}')
        fast_taken = [taken_from(each.value) for each in read(raw) if isinstance(each, Record)]
    with mock.patch.object(reader, "take_arrays", return_value=None):
        assert fast == (told(raw), told(b'{"a": 0}\n' + raw + b'\n{"b": 0}'))
        plain = [taken_from(each.value) for each in read(raw) if isinstance(each, Record)]
        assert repr(fast_taken) == repr(plain)


@given(json_objects, st.data())
def test_taking_arrays_out_of_any_object_changes_nothing(value, data):
    inner = data.draw(st.lists(st.integers(0, 2**21), max_size=9))
    key = data.draw(st.sampled_from(["token_ids", "prompt_ids", "logprobs"]))
    raw = bytearray(json.dumps(value | {key: inner, "n": {"_ids": inner, "a": value}}).encode())
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with mock.patch.object(ids, "_MIN_BYTES", 1):
        fast = told(bytes(raw))
    with mock.patch.object(reader, "take_arrays", return_value=None):
        assert fast == told(bytes(raw))


@given(json_values)
def test_brackets_are_those_outside_strings(value):
    raw = json.dumps(value).encode()
    bare = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", raw)
    squared = bare.replace(b"{", b"[").replace(b"}", b"]")
    assert brackets(raw) == re.sub(rb"[^\[\]]", b"", squared)
    assert brackets(raw + b'"') is None
