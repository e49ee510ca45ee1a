import io
import json
import struct
import time
import tracemalloc

import pytest

from trajkit.errors import InputError, RefusedError
from trajkit.safe.json import BadRecord, Record, dumps, read_records


def read(data: bytes, **limits) -> list[Record | BadRecord]:
    return list(read_records(io.BytesIO(data), "log.jsonl", **limits))


def values(data: bytes) -> list[object]:
    found = read(data)
    good = [record.value for record in found if isinstance(record, Record)]
    assert len(good) == len(found), found
    return good


def only_bad(data: bytes) -> BadRecord:
    (bad,) = [record for record in read(data) if isinstance(record, BadRecord)]
    return bad


def code_of(data: bytes) -> str:
    return only_bad(data).error.code


# --- lines


def test_each_line_is_a_record_with_its_bytes_and_place():
    first, second = read(b'{"a": 1}\n\n  \n{"b": [2]}\n')
    assert first == Record(
        value={"a": 1}, raw=b'{"a": 1}', file="log.jsonl", line=1, byte_offset=0, index=0
    )
    assert second == Record(
        value={"b": [2]}, raw=b'{"b": [2]}', file="log.jsonl", line=4, byte_offset=13, index=1
    )


def test_a_last_line_without_its_newline_is_whole():
    assert values(b'{"a": 1}\n{"a": 2}') == [{"a": 1}, {"a": 2}]


def test_a_byte_order_mark_and_crlf_change_nothing_but_offsets():
    plain = read(b'{"a": 1}\n{"a": 2}\n')
    windows = read(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n')
    assert [record.raw for record in windows] == [record.raw for record in plain]
    assert [record.byte_offset for record in windows] == [3, 13]


def test_a_byte_order_mark_inside_the_file_is_a_fault():
    bad = only_bad(b'{"a": 1}\n\xef\xbb\xbf{"a": 2}\n')
    assert bad.error.code == "I102"
    assert "byte order mark" in bad.error.message


@pytest.mark.parametrize("break_", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_newlines_end_a_record(break_):
    text = f"one{break_}two"
    if break_ < " ":
        assert values(json.dumps({"t": text}).encode() + b"\n") == [{"t": text}]
        assert code_of(f'{{"t": "{text}"}}\n'.encode()) == "I102"  # raw controls are not JSON
    else:
        assert values(f'{{"t": "{text}"}}\n'.encode()) == [{"t": text}]


@pytest.mark.parametrize(
    "data", [b"", b"\n", b" \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b" "]
)
def test_a_file_without_records_yields_nothing(data):
    assert read(data) == []


def test_scalars_are_values_too():
    assert values(b'1\n"text"\nnull\n') == [1, "text", None]


def test_good_lines_around_a_bad_one_are_kept():
    found = read(b'{"a": 1}\n{"a": \n{"a": 3}\n')
    assert [type(record) for record in found] == [Record, BadRecord, Record]
    assert [record.index for record in found] == [0, 1, 2]
    assert found[1].raw == b'{"a": '


# --- numbers


def test_integers_are_exact_at_any_size():
    numbers = [0, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**70), 10**300]
    found = values(json.dumps(numbers).encode() + b"\n[]\n")[0]
    assert found == numbers
    assert isinstance(found, list)
    assert all(type(number) is int for number in found)


def test_floats_keep_every_bit():
    numbers = [-0.0, 5.0, 0.1, 1e300, 5e-324, -1.7976931348623157e308]
    found = values(json.dumps(numbers).encode() + b"\n[]\n")[0]
    assert isinstance(found, list)
    assert [struct.pack("<d", number) for number in found] == [
        struct.pack("<d", number) for number in numbers
    ]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e400", "-1E+400", "1" * 400 + ".5", "0.1e310"]
)
def test_a_number_that_is_not_finite_is_a_fault(number):
    before = '{"a": [1, {"reward": '
    bad = only_bad(f"{before}{number}}}]}}\n".encode())
    assert bad.error.code == "I105"
    assert bad.error.place is not None
    assert bad.error.place.path == "$.a[1].reward"
    assert bad.error.place.byte_offset == len(before)


def test_an_integer_of_5000_digits_is_a_fault():
    bad = only_bad(b'{"a": ' + b"7" * 5000 + b"}\n")
    assert bad.error.code == "I110"
    assert "5000 digits" in bad.error.message
    assert bad.error.excerpt is not None
    assert len(bad.error.excerpt) <= 80


# --- strings and keys


@pytest.mark.parametrize(
    "escape",
    [
        r"\ud800",
        r"\uDFFF",
        r"\udc00\ud800",
        r"\ud83d x",
        r"\ud83d\n",
        r"\\\ud83d",
        r"\ud83d\ud83d\ude00",
    ],
)
def test_half_a_surrogate_pair_is_a_fault(escape):
    bad = only_bad(f'{{"m": [{{"content": "x {escape}"}}]}}\n'.encode())
    assert bad.error.code == "I106"
    assert bad.error.place is not None
    assert bad.error.place.path == "$.m[0].content"


def test_half_a_surrogate_pair_in_a_key_is_a_fault():
    assert code_of(rb'{"\ud800": 1}' + b"\n") == "I106"


@pytest.mark.parametrize(
    ("escape", "text"),
    [(r"\ud83d\ude00", "😀"), (r"\\ud800", r"\ud800"), (r"\uD83D\uDE00\n", "😀\n")],
)
def test_whole_pairs_and_escaped_backslashes_are_text(escape, text):
    assert values(f'{{"t": "{escape}"}}\n'.encode()) == [{"t": text}]


def test_the_same_key_twice_is_a_fault_at_the_second():
    bad = only_bad(b'{"m": [{"role": "user", "role": "assistant"}]}\n')
    assert bad.error.code == "I104"
    assert '"role"' in bad.error.message
    assert bad.error.place is not None
    assert (bad.error.place.path, bad.error.place.column) == ("$.m[0].role", 25)


def test_keys_that_are_equal_only_after_escapes_are_the_same_key():
    assert code_of(rb'{"a": 1, "\u0061": 2}' + b"\n") == "I104"
    assert values(b'{"a": 1, "b": {"a": 2}}\n') == [{"a": 1, "b": {"a": 2}}]


def test_a_hostile_key_is_quoted_in_the_message():
    bad = only_bad('{"\\u001b]0;\u202e": 1, "\\u001b]0;\u202e": 2}\n'.encode())
    assert bad.error.code == "I104"
    assert "\x1b" not in str(bad.error)
    assert "\u202e" not in str(bad.error)


def test_a_fault_inside_a_key_is_a_fault_of_grammar():
    assert code_of(b'{"a\\qb": 1}\n') == "I102"


# --- bytes


@pytest.mark.parametrize(
    "wrong", [b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\xe6\x97"]
)
def test_bytes_that_are_not_utf8_are_a_fault_with_their_offset_in_the_file(wrong):
    good = b'{"t": "ok"}\n'
    bad = only_bad(good * 2 + b'{"t": "' + wrong + b'"}\n' + good * 2)
    assert bad.error.code == "I101"
    assert bad.raw == b'{"t": "' + wrong + b'"}'
    assert bad.error.place is not None
    assert (bad.error.place.line, bad.error.place.byte_offset) == (3, 2 * len(good) + 7)
    assert bad.error.place.column == 8


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_wide_encodings_are_refused_by_name(encoding):
    with pytest.raises(InputError, match="UTF-16") as caught:
        read('{"a": 1}\n'.encode(encoding))
    assert caught.value.code == "I101"
    assert caught.value.hint is not None
    assert "iconv" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "found", "hint"),
    [(b"PAR1\x15\x04PAR1", "Parquet", "trajkit info"), (b"PK\x03\x04rest", "zip", "unpack")],
)
def test_files_that_are_no_text_are_refused_by_name(data, found, hint):
    with pytest.raises(InputError, match=found) as caught:
        read(data)
    assert caught.value.code == "I101"
    assert hint in (caught.value.hint or "")


# --- depth, size


def nested(depth: int) -> bytes:
    return (
        b'{"a":' * (depth // 2)
        + b"[" * (depth - depth // 2)
        + b"]" * (depth - depth // 2)
        + b"}" * (depth // 2)
    )


def test_64_levels_are_read_and_65_are_a_fault():
    assert len(values(nested(64) + b"\n")) == 1
    bad = only_bad(nested(65) + b"\n")
    assert bad.error.code == "I107"
    assert bad.error.place is not None
    assert bad.error.place.byte_offset == 32 * 5 + 32


def test_many_brackets_side_by_side_are_not_deep():
    assert len(values(b'{"a": [' + b",".join([b'[{"b": []}]'] * 5000) + b"]}\n")) == 1


def test_brackets_in_strings_are_not_deep():
    assert len(values(json.dumps({"t": '[{"\\' * 500}).encode() + b"\n")) == 1


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'[{"\\"[":'])
@pytest.mark.parametrize("is_closed", [True, False])
def test_100000_levels_are_a_fault_at_once(unit, is_closed):
    closers = bytes(
        {91: 93, 123: 125}[byte] for byte in unit.replace(b'"\\"[":', b"") if byte in b"[{"
    )
    data = unit * 100_000 + (b"1" + closers[::-1] * 100_000 if is_closed else b"")
    start = time.perf_counter()
    assert code_of(data) == "I107"
    assert code_of(b'{"x": 1}\n' + data + b"\n") == "I107"
    assert time.perf_counter() - start < 2


def test_a_record_over_the_limit_is_refused_before_memory_grows():
    limit = 2**20
    huge = io.BytesIO(b'{"a": 1}\n{"a": "' + b"x" * (64 * limit) + b'"}\n')
    records = read_records(huge, "log.jsonl", max_record_bytes=limit)
    assert isinstance(next(records), Record)
    tracemalloc.start()
    with pytest.raises(RefusedError) as caught:
        next(records)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == "R101"
    assert caught.value.place is not None
    assert (caught.value.place.line, caught.value.place.byte_offset) == (2, 9)
    assert peak < 4 * limit


@pytest.mark.parametrize("shape", [b"[%s]", b'{\n"a": %s}', b"%s", b'[{"a": 1}, {"b": %s}'])
def test_no_layout_escapes_the_limit(shape):
    data = shape % (b'"' + b"x" * 10_000 + b'"')
    with pytest.raises(RefusedError) as caught:
        read(data, max_record_bytes=4_000)
    assert caught.value.code == "R101"
    assert len(read(shape % b"1", max_record_bytes=4_000)) > 0


def test_a_line_of_an_array_may_be_longer_than_a_record():
    data = b"[\n" + b", ".join([b'{"a": 1}'] * 100) + b"\n]"
    assert len(read(data, max_record_bytes=50)) == 100
    assert len(read(data.replace(b"\n", b""), max_record_bytes=50)) == 100


def test_a_record_of_just_the_limit_is_read():
    line = b'{"a": 1}'
    assert len(read(line + b"\r\n" + line + b"\n" + line, max_record_bytes=len(line))) == 3
    with pytest.raises(RefusedError):
        read(line + b"\n", max_record_bytes=len(line) - 1)


# --- cut files


@pytest.mark.parametrize(
    "record",
    [
        '{"id": "ab", "m": [{"n": -12.5e3, "ok": true}, null], "t": "日本 \\ud83d\\ude00 \\n"}',
        '["a", {"b": 1}]',
    ],
)
def test_a_file_cut_anywhere_ends_in_the_middle_of_a_record(record):
    raw = record.encode()
    for cut in range(1, len(raw)):
        found = read(b'{"x": 0}\n' + raw[:cut])
        assert isinstance(found[0], Record)
        assert isinstance(found[1], BadRecord)
        assert found[1].error.code == "I103", raw[:cut]
        assert found[1].raw == raw[:cut]
        assert found[1].error.hint is not None
        assert "--on-error quarantine" in found[1].error.hint


@pytest.mark.parametrize("line", [b'{"a": [1, 2', b'{"a": "x'])
def test_an_open_line_that_others_follow_is_not_a_cut_file(line):
    found = read(line + b'\n{"b": 1}\n')
    assert [type(record) for record in found] == [BadRecord, Record]
    assert isinstance(found[0], BadRecord)
    assert found[0].error.code == "I102"


@pytest.mark.parametrize(
    "line", [b"{a: 1}", b"{'a': 1}", b'{"a": 1,}', b'{"a": 1} x', b"[1, 2}", b"tru", b'{"a" 1}']
)
def test_what_is_not_json_is_a_fault(line):
    assert code_of(b'{"x": 0}\n' + line + b"\n") == "I102"
    assert code_of(b'{"x": 0}\n' + line) == "I102"


def test_the_excerpt_is_short_and_around_the_fault():
    bad = only_bad(b'{"t": "' + "é".encode() * 500 + b'", "n": NaN, "u": "' + b"z" * 500 + b'"}\n')
    assert bad.error.excerpt is not None
    assert len(bad.error.excerpt) <= 80
    assert "NaN" in bad.error.excerpt
    assert "\ufffd" not in bad.error.excerpt


# --- arrays and values that span lines


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_an_array_yields_its_items_with_their_exact_bytes(indent):
    items = [{"a": 1, "t": "日本 ]}"}, {"b": [{"c": {}}]}, 7, "x"]
    data = b"\n  " + json.dumps(items, indent=indent, ensure_ascii=False).encode() + b"\n"
    found = read(data)
    assert [record.value for record in found if isinstance(record, Record)] == items
    for index, record in enumerate(found):
        assert record.index == index
        assert data[record.byte_offset :].startswith(record.raw)
        assert record.line == data[: record.byte_offset].count(b"\n") + 1


def test_an_empty_array_yields_nothing():
    assert read(b"[]") == []
    assert read(b" [\n ]\n") == []


def test_an_array_longer_than_any_buffer_is_read_item_by_item():
    item = {"ids": list(range(1000)), "t": "日" * 1000}
    data = b"[" + b",\n".join([json.dumps(item, ensure_ascii=False).encode()] * 700) + b"]"
    assert len(data) > 3 * 2**20
    found = values(data)
    assert len(found) == 700
    assert all(value == item for value in found)


def test_a_bad_item_is_set_aside_alone():
    data = b'[{"a": 1}, {"a": NaN}, {"a": "\xff"}, {"a": 1, "a": 2}, {"a": 5}]'
    found = read(data)
    codes = [record.error.code if isinstance(record, BadRecord) else "" for record in found]
    assert codes == ["", "I105", "I101", "I104", ""]
    assert found[1].raw == b'{"a": NaN}'
    assert isinstance(found[2], BadRecord)
    assert found[2].error.place is not None
    assert found[2].error.place.byte_offset == data.index(b"\xff")
    assert found[2].error.place.column == data.index(b"\xff") + 1


def test_columns_count_characters_from_the_start_of_the_line():
    data = '[\n{"t": "日本"}, {"t": "é", "n": NaN}]'
    place = only_bad(data.encode()).error.place
    assert place is not None
    assert (place.line, place.column) == (2, data.index("NaN") - 1)
    assert place.byte_offset == data.encode().index(b"NaN")


@pytest.mark.parametrize(
    ("data", "code", "raw"),
    [
        (b'[{"a": 1}, {"a": ', "I103", b'{"a": '),
        (b'[{"a": 1}', "I103", b""),
        (b'[{"a": 1},', "I103", b""),
        (b'[{"a": 1} {"a": 2}]', "I102", b'{"a": 2}]'),
        (b'[{"a": 1}] {"a": 2}', "I102", b'{"a": 2}'),
        (b'[{"a": 1}, ]', "I102", b"]"),
        (b'[{"a": 1}, {"a" 2}, {"a": 3}]', "I102", b'{"a" 2}, {"a": 3}]'),
    ],
)
def test_a_damaged_array_gives_its_rest_as_one_bad_record(data, code, raw):
    good, bad = read(data)
    assert isinstance(good, Record)
    assert isinstance(bad, BadRecord)
    assert (bad.error.code, bad.raw) == (code, raw)


def test_a_deep_item_does_not_end_the_array():
    found = read(b"[1, " + nested(500) + b", 2]")
    assert [type(record) for record in found] == [Record, BadRecord, Record]


def test_lines_that_are_arrays_are_lines():
    assert values(b'[{"role": "user"}]\n\n[{"role": "tool"}, 1]\n') == [
        [{"role": "user"}],
        [{"role": "tool"}, 1],
    ]


def test_one_pretty_object_is_one_record():
    value = {"messages": [{"role": "user", "content": "日本"}], "n": {"a": [1, 2]}}
    for indent in (0, 2, "\t"):
        data = json.dumps(value, indent=indent, ensure_ascii=False).encode()
        (record,) = read(data + b"\n")
        assert isinstance(record, Record)
        assert (record.value, record.raw, record.line) == (value, data, 1)


def test_pretty_objects_one_after_another_are_records():
    one, two = json.dumps({"a": [1]}, indent=1), json.dumps({"b": {"c": 2}}, indent=1)
    found = read(f"\n{one}\n{two}\n".encode())
    assert [record.value for record in found if isinstance(record, Record)] == [
        {"a": [1]},
        {"b": {"c": 2}},
    ]
    assert [record.line for record in found] == [2, 7]


def test_a_pretty_object_with_a_fault_says_its_line_and_column():
    bad = only_bad(b'{\n  "a": 1,\n  "b": [1,\n    NaN\n  ]\n}\n')
    assert bad.error.place is not None
    assert (bad.error.place.line, bad.error.place.column) == (4, 5)
    assert bad.error.place.path == "$.b[1]"


def test_a_cut_pretty_object_is_cut():
    assert code_of(b'{\n  "a": 1,\n  "b": [1,\n') == "I103"


# --- writing


def test_dumps_is_compact_and_keeps_order_and_letters():
    assert (
        dumps({"b": "日\u2028", "a": [1, 2.5, None, True]})
        == '{"b":"日\u2028","a":[1,2.5,null,true]}'
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_dumps_refuses_numbers_that_are_not_finite(number):
    with pytest.raises(InputError) as caught:
        dumps({"a": [number]})
    assert caught.value.code == "I105"
