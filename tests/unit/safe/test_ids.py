"""Long arrays are taken out of a record's bytes only where that changes nothing but the cost."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trajkit.errors import Place
from trajkit.safe import ids
from trajkit.safe.faults import MAX_DEPTH
from trajkit.safe.ids import MARK, NumberList, array_of, take_arrays
from trajkit.safe.json import BadRecord, Record, dumps, read_records

N = 1000
IDS = list(range(50_000, 50_000 + N))
LOGPROBS = [-1 / (i + 3) for i in range(N)]


def read_one(raw: bytes) -> Record | BadRecord:
    (record,) = read_records(io.BytesIO(raw), "x")
    return record


def value_of(raw: bytes) -> Any:
    record = read_one(raw)
    assert isinstance(record, Record), record.error
    assert record.raw == raw
    return record.value


def fault_of(raw: bytes) -> tuple[str, Place, str]:
    """Return the code, place and excerpt of what is wrong with a record."""
    record = read_one(raw)
    assert isinstance(record, BadRecord)
    assert record.error.place is not None
    assert record.error.excerpt is not None
    return record.error.code, record.error.place, record.error.excerpt


def text_of(ids: list[int], comma: str = ",") -> str:
    return comma.join(map(str, ids))


def with_ids(content: str, key: str = "prompt_token_ids") -> bytes:
    return f'{{"{key}":[{content}],"n":1}}'.encode()


@pytest.mark.parametrize("comma", [",", ", ", " ,\t", ",\r\n    "])
def test_ids_stand_in_the_record_as_list_and_as_array(comma):
    raw = with_ids(f" {text_of(IDS, comma)} ")
    taken = take_arrays(raw)
    assert taken is not None
    assert taken[0] == b'{"prompt_token_ids":' + MARK + b',"n":1}'
    (value,) = taken[1]
    assert value == IDS
    assert {type(number) for number in value} == {int}
    ids = array_of(value, np.int32)
    assert ids is not None
    assert ids.tolist() == IDS
    assert not ids.flags.writeable


def test_logprobs_keep_every_bit_beside_ids():
    record = {"token_ids": IDS, "logprobs": [*LOGPROBS, 0, -0.0, -5]}
    value = value_of(json.dumps(record).encode())
    assert repr(value) == repr(record)
    logprobs = array_of(value["logprobs"], np.float64)
    assert logprobs is not None
    assert logprobs.tobytes() == np.array(record["logprobs"]).tobytes()
    assert array_of(value["logprobs"], np.int32) is None


def test_what_an_array_shares_with_the_one_before_is_not_read_again(monkeypatch):
    read: list[int] = []

    def counted(content: bytes, plain: Callable[[bytes], Any] = ids._ids) -> Any:
        found = plain(content)
        read.append(len(found))
        return found

    monkeypatch.setattr(ids, "_ids", counted)
    turns = [{"prompt_ids": IDS[:n], "completion_ids": IDS[-500:]} for n in (600, 600, 700, 900)]
    raw = json.dumps({"turns": turns}).encode()
    taken = take_arrays(raw)
    assert taken is not None
    assert taken[1] == [each for turn in turns for each in turn.values()]
    assert sum(read) == 600 + 100 + 200 + 500
    prompts = taken[1][::2]
    assert prompts[1] is prompts[0]
    arrays = [array_of(each, np.int32) for each in prompts]
    assert [array is not None and array.tolist() for array in arrays] == prompts
    assert value_of(raw) == {"turns": turns}


@pytest.mark.parametrize(
    "goes_on", ["7", "78", " 7", " 78", "7,8", ",07", ",,7", ", ", ",7 8", ",-7", ",7.0"]
)
def test_a_beginning_that_goes_on_otherwise_is_judged_anew(goes_on):
    first, content = text_of(IDS), text_of(IDS) + goes_on
    raw = f'{{"turns":[{{"token_ids":[{first}]}},{{"token_ids":[{content}]}}]}}'.encode()
    try:
        wanted = json.loads(raw)
    except ValueError:
        assert fault_of(raw)[0] == "I102"
    else:
        assert repr(value_of(raw)) == repr(wanted)


@pytest.mark.parametrize(
    "odd",
    [
        *("-1", "1.0", "1e3", "null", "true", '"7"', "[7]", "{}", "07", "00", "", "7 8", "+7"),
        *(str(2**20), str(2**31), str(2**64), "9" * 400, "9" * 5000, "-Infinity", "NaN", "\x0b7"),
    ],
)
@pytest.mark.parametrize("at", [0, N // 2, N])
def test_what_is_not_plain_is_left_to_the_decoder(odd, at):
    items = [str(i) for i in IDS]
    items.insert(at, odd)
    assert take_arrays(with_ids(",".join(items))) is None


@pytest.mark.parametrize(
    "content", [" " * 5000, text_of(IDS)[:1000], "9" * 5000, "0" * 5000, "," * 5000]
)
def test_nothing_short_or_empty_is_taken(content):
    assert take_arrays(with_ids(content)) is None


@pytest.mark.parametrize("key", ["ids", "input_id", "prompt_token_ids2", "_ıds", '_ids\\"'])
def test_other_keys_are_left_alone(key):
    assert take_arrays(with_ids(text_of(IDS), key)) is None


@pytest.mark.parametrize("number", ["1e400", "-1e16", "9" * 400, "-", "1.", "01.5", "null"])
def test_logprobs_that_float64_does_not_hold_are_left_to_the_decoder(number):
    content = ",".join(["-0.125"] * N + [number])
    raw = f'{{"token_ids":[{text_of(IDS)}],"logprobs":[{content}]}}'.encode()
    taken = take_arrays(raw)
    assert taken is not None
    assert len(taken[1]) == 1


def test_text_that_looks_like_an_array_stays_text():
    record = {"text": f'"token_ids":[{text_of(IDS)}]', "more": f'\\"token_ids":[{text_of(IDS)}]'}
    raw = json.dumps(record).encode()
    assert take_arrays(raw) is None
    assert value_of(raw) == record


@pytest.mark.parametrize("where", ["text", "constant", "key"])
def test_a_record_cannot_forge_what_stands_for_an_array(where):
    ids = f'"token_ids":[{text_of(IDS)}]'
    forged = {"text": '"t":"-Infinity"', "constant": '"t":-Infinity', "key": '"-Infinity":1'}
    raw = f"{{{ids},{forged[where]}}}".encode()
    assert take_arrays(raw) is None
    if where == "constant":
        assert fault_of(raw)[0] == "I105"
    else:
        assert value_of(raw) == json.loads(raw)


@pytest.mark.parametrize("constant", ["NaN", "Infinity"])
def test_no_constant_slips_in_beside_an_array(constant):
    code, place, _ = fault_of(f'{{"token_ids":[{text_of(IDS)}],"reward":{constant}}}'.encode())
    assert (code, place.path) == ("I105", "$.reward")


def test_a_key_with_two_arrays_is_still_there_twice():
    ids = f'"token_ids":[{text_of(IDS)}]'
    code, place, _ = fault_of(f"{{{ids},{ids}}}".encode())
    assert (code, place.column) == ("I104", len(ids) + 3)


@pytest.mark.parametrize(("depth", "is_good"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_an_array_is_a_level_of_nesting(depth, is_good):
    n_lists = depth - 3  # beside two objects and the array itself
    inner = with_ids(text_of(IDS))
    record = read_one(b'{"a":' + b"[" * n_lists + inner + b"]" * n_lists + b"}")
    assert isinstance(record, Record) is is_good
    if isinstance(record, BadRecord):
        assert record.error.code == "I107"


def test_an_excerpt_shows_the_record_and_no_mark():
    _, _, excerpt = fault_of(f'{{"token_ids":[{text_of(IDS)}],"a":tru}}'.encode())
    assert MARK.decode() not in excerpt
    assert '50999],"a":' in excerpt


def test_a_list_with_an_array_is_written_copied_and_compared_like_any_other():
    value = value_of(with_ids(text_of(IDS)))["prompt_token_ids"]
    assert isinstance(value, NumberList)
    assert dumps(value) == json.dumps(IDS, separators=(",", ":"))
    assert repr(value) == repr(IDS)
    for copied in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), value[:]):
        assert copied == IDS


def test_a_template_sees_nothing_but_a_list():
    assert all(name.startswith("_") for name in set(dir(NumberList)) - set(dir(list)))


def test_open_arrays_are_not_each_looked_at_to_the_end(monkeypatch):
    looked: list[int] = []
    monkeypatch.setattr(ids, "_ids", lambda content: looked.append(len(content)))
    raw = (b'{"a_ids":[' + b" " * 3000) * 50
    assert take_arrays(raw) is None
    assert looked == []
    assert take_arrays(raw + b"]") is None
    assert len(looked) == 1
