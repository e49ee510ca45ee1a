"""What is taken from a JSON object is checked, with the path of what is wrong; the rest is kept."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from trajkit.errors import InputError, Place
from trajkit.formats.fields import Fields, kind_of, take_sampling
from trajkit.formats.raw import Sampling
from trajkit.safe.ids import NumberList, array_of
from trajkit.safe.json import Record, read_records


def fields(**value: object) -> Fields:
    return Fields(value, Place(file="log.jsonl", line=3), "$.turns[1]")


def refused(take, **value: object) -> Any:
    with pytest.raises(InputError) as caught:
        take(fields(**value))
    assert caught.value.place is not None
    assert (caught.value.place.file, caught.value.place.line) == ("log.jsonl", 3)
    assert caught.value.hint
    return caught.value


def as_read(**value: object) -> Fields:
    """Return the fields of a record that was read from bytes, long arrays as arrays."""
    (record,) = read_records(io.BytesIO(json.dumps(value).encode()), "log.jsonl")
    assert isinstance(record, Record)
    return Fields(record.value, record.place)


def test_ids_become_int32_exactly():
    ids = fields(ids=[0, 151643, 2**31 - 1]).take_ids("ids")
    assert ids is not None
    assert ids.dtype == np.int32
    assert ids.tolist() == [0, 151643, 2147483647]


def test_empty_ids_are_not_missing_ids():
    empty = fields(ids=[]).take_ids("ids")
    assert empty is not None
    assert len(empty) == 0
    assert fields(ids=None).take_ids("ids") is None
    assert fields().take_ids("ids") is None


@pytest.mark.parametrize(
    ("ids", "code", "position"),
    [
        ([1, 2, 3.0], "I301", 2),
        ([1, True], "I301", 1),
        ([False], "I301", 0),
        (["1"], "I301", 0),
        ([1, None], "I301", 1),
        ([[1, 2]], "I301", 0),
        ([1, -1], "I302", 1),
        ([-100, 5], "I302", 0),
        ([1, 2**31], "I303", 1),
        ([2**64], "I303", 0),
        ([-1, 1.5], "I302", 0),  # the first of several
    ],
)
def test_what_is_no_id_is_refused_with_its_position(ids, code, position):
    problem = refused(lambda f: f.take_ids("ids"), ids=ids)
    assert problem.code == code
    assert problem.place.path == f"$.turns[1].ids[{position}]"


def test_ids_that_are_no_list_are_of_the_wrong_type():
    assert refused(lambda f: f.take_ids("ids"), ids="1 2").code == "I201"


def test_label_padding_is_named_as_such():
    assert "-100 marks labels" in refused(lambda f: f.take_ids("ids"), ids=[-100]).hint


def test_a_huge_id_does_not_make_a_huge_message():
    problem = refused(lambda f: f.take_ids("ids"), ids=[10**4000])
    assert problem.code == "I303"
    assert len(problem.message) < 120


def test_logprobs_become_float32_with_nan_for_null():
    logprobs = fields(lp=[-0.1, None, 0, -3]).take_logprobs("lp")
    assert logprobs is not None
    assert logprobs.dtype == np.float32
    assert np.array_equal(
        logprobs, np.array([-0.1, np.nan, 0.0, -3.0], dtype=np.float32), equal_nan=True
    )
    with pytest.raises(ValueError, match="read-only"):
        logprobs[0] = 0.0


def test_a_rounding_error_above_zero_is_still_a_logprob():
    assert fields(lp=[1e-7]).take_logprobs("lp") is not None


@pytest.mark.parametrize(
    ("logprobs", "position"),
    [
        ([-0.1, 0.5], 1),
        (["-0.1"], 0),
        ([-0.1, True], 1),
        ([-1e39], 0),
        ([None, -(10**400)], 1),
        ([10**400], 0),
        ([0.5, "x"], 0),
    ],
)
def test_what_is_no_logprob_is_refused_with_its_position(logprobs, position):
    problem = refused(lambda f: f.take_logprobs("lp"), lp=logprobs)
    assert problem.code == "I306"
    assert problem.place.path == f"$.turns[1].lp[{position}]"


@pytest.mark.parametrize(
    ("ids", "logprobs"), [([1, 2], [-0.1]), ([], [-0.1]), (None, [-0.1]), ([1], [])]
)
def test_ids_and_logprobs_must_be_equally_many(ids, logprobs):
    def take(f: Fields) -> None:
        f.check_lengths(f.take_ids("ids"), f.take_logprobs("lp"))

    problem = refused(take, ids=ids, lp=logprobs)
    assert problem.code == "I305"
    assert problem.place.path == "$.turns[1]"


def test_missing_logprobs_are_no_other_number():
    f = fields(ids=[1, 2])
    f.check_lengths(f.take_ids("ids"), f.take_logprobs("lp"))
    assert f.rest() == {}


@pytest.mark.parametrize(
    ("take", "wrong"),
    [
        (lambda f: f.take_text("key"), 5),
        (lambda f: f.take_list("key"), {"a": 1}),
        (lambda f: f.take_fields("key"), [1]),
        (lambda f: f.take_name("key"), 1.5),
        (lambda f: f.take_name("key"), True),
        (lambda f: f.take_number("key"), "1"),
        (lambda f: f.take_number("key"), True),
        (lambda f: f.take_number("key"), 10**400),
        (lambda f: f.take_float("key"), 1e39),
        (lambda f: f.take_float("key"), "0.5"),
        (lambda f: f.take_int("key"), 2**31),
        (lambda f: f.take_int("key"), 1.0),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_path(take, wrong):
    problem = refused(take, key=wrong)
    assert problem.code == "I201"
    assert problem.place.path == "$.turns[1].key"


def test_what_is_no_object_is_refused():
    with pytest.raises(InputError, match="I201") as caught:
        Fields([1], Place(file="log.jsonl", line=3), "$.turns[0]")
    assert caught.value.place is not None
    assert caught.value.place.path == "$.turns[0]"


def test_the_first_of_several_names_that_is_not_null_is_taken():
    f = fields(a=None, b="x", c="y")
    assert f.take_text("a", "b", "c") == "x"
    assert f.rest() == {"a": None, "c": "y"}


def test_the_path_names_the_key_that_was_there():
    problem = refused(lambda f: f.take_ids("prompt_token_ids", "prompt_ids"), prompt_ids=[0.5])
    assert problem.place.path == "$.turns[1].prompt_ids[0]"


def test_an_identifier_may_be_an_integer():
    assert fields(key=12).take_name("key") == "12"
    assert fields(key="12").take_name("key") == "12"


def test_json_text_stays_as_it_stood():
    assert fields(tools='[ {"a":  1} ]').take_json("tools") == '[ {"a":  1} ]'
    assert fields(tools=[{"a": 1}]).take_json("tools") == '[{"a":1}]'
    assert fields(tools=[]).take_json("tools") == "[]"
    assert fields().take_json("tools") is None


def test_sampling_numbers_are_what_float32_holds():
    sampling = take_sampling(fields(temperature=0.7, top_p=1, top_k=20, model="m"))
    assert sampling.temperature == float(np.float32(0.7))
    assert (sampling.top_p, sampling.top_k, sampling.model) == (1.0, 20, "m")


def test_sampling_params_are_read_and_what_is_not_taken_stays_in_them():
    nested = {"temperature": 0.5, "top_p": 0.75, "top_k": -1, "max_tokens": 9, "n": 1}
    f = fields(sampling_params=nested, model="m", seed=7)
    sampling = take_sampling(f)
    assert (sampling.model, sampling.temperature) == ("m", 0.5)
    assert (sampling.top_p, sampling.top_k) == (0.75, -1)
    assert f.rest() == {"sampling_params": {"max_tokens": 9, "n": 1}, "seed": 7}
    assert len(nested) == 5


def test_sampling_params_that_are_all_taken_are_gone():
    f = fields(sampling_params={"temperature": 0.5})
    assert take_sampling(f).temperature == 0.5
    assert f.rest() == {}


def test_a_records_own_keys_win_over_its_sampling_params_which_are_kept():
    f = fields(temperature=1, sampling_params={"temperature": 0.5, "top_p": 0.75})
    sampling = take_sampling(f)
    assert (sampling.temperature, sampling.top_p) == (1.0, 0.75)
    assert f.rest() == {"sampling_params": {"temperature": 0.5}}


def test_an_own_key_that_is_null_says_nothing():
    f = fields(temperature=None, sampling_params={"temperature": 0.5})
    assert take_sampling(f).temperature == 0.5


@pytest.mark.parametrize(
    "value", ["SamplingParams(temperature=0.5)", [{"temperature": 0.5}], {}, 0.5, None]
)
def test_sampling_params_that_are_no_settings_stay_as_they_are(value):
    f = fields(sampling_params=value)
    assert take_sampling(f) == Sampling()
    assert f.rest() == {"sampling_params": value}


def test_a_nested_temperature_that_is_no_number_is_named_by_its_path():
    with pytest.raises(InputError, match="I201") as caught:
        take_sampling(fields(sampling_params={"temperature": "0.5"}))
    assert caught.value.place is not None
    assert caught.value.place.path == "$.turns[1].sampling_params.temperature"


def test_settings_without_a_column_are_told_and_stay():
    nested = {"min_p": 0.125, "frequency_penalty": 0.5, "presence_penalty": 0}
    f = fields(repetition_penalty=1.0, min_p=0.0, sampling_params=nested)
    sampling = take_sampling(f)
    assert sampling.others == {
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.5,
        "presence_penalty": 0,
    }
    assert sampling.altering == {"frequency_penalty": 0.5}
    assert f.rest() == {"repetition_penalty": 1.0, "min_p": 0.0, "sampling_params": nested}


@pytest.mark.parametrize(
    "told",
    [
        {"repetition_penalty": -0.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": [1.1, 1.2]},
        {"min_p": True},
        {"min_p": 2},
        {"presence_penalty": 10**400},
        {"frequency_penalty": "0.5"},
    ],
)
def test_what_is_no_such_setting_is_not_told(told):
    f = fields(**told)
    assert take_sampling(f).others == {}
    assert f.rest() == told


def test_nobody_took_what_is_left():
    f = fields(a=1, b=[2], c=None)
    assert f.take_number("a") == 1.0
    assert f.rest() == {"b": [2], "c": None}


LONG = list(range(1000, 3000))


def test_ids_read_as_an_array_are_taken_as_they_are():
    f = as_read(ids=1, token_ids=LONG)
    known = array_of(f.rest()["token_ids"], np.int32)
    assert known is not None
    ids = f.take_ids("prompt_ids", "token_ids")
    assert ids is known
    assert ids.tolist() == LONG
    assert not ids.flags.writeable
    assert f.rest() == {"ids": 1}


def test_logprobs_read_as_an_array_become_float32():
    values = [-1 / (i + 1) for i in LONG] + [0, 1e-7]
    f = as_read(token_ids=LONG, logprobs=values)
    assert array_of(f.rest()["logprobs"], np.float64) is not None
    logprobs = f.take_logprobs("logprobs")
    assert logprobs is not None
    assert logprobs.tobytes() == np.array(values, dtype=np.float64).astype(np.float32).tobytes()
    assert not logprobs.flags.writeable


@pytest.mark.parametrize("wrong", [0.5, 2e-6, -3.5e38])
def test_an_array_of_logprobs_is_held_against_the_same_bounds(wrong):
    values = [-0.25] * 1000 + [wrong] + [-0.25] * 1000
    with pytest.raises(InputError) as caught:
        as_read(token_ids=LONG, logprobs=values).take_logprobs("logprobs")
    assert caught.value.code == "I306"
    assert caught.value.place is not None
    assert caught.value.place.path == "$.logprobs[1000]"


def test_arrays_taken_as_what_they_are_not_are_judged_as_lists():
    f = as_read(token_ids=[0] * 2000, logprobs=[-0.5] * 1000)
    with pytest.raises(InputError, match="I301"):
        f.take_ids("logprobs")
    zeros = f.take_logprobs("token_ids")
    assert zeros is not None
    assert zeros.tolist() == [0.0] * 2000


def test_a_list_with_an_array_is_a_list():
    f = as_read(token_ids=LONG, more={"token_ids": LONG})
    assert isinstance(f.rest()["token_ids"], NumberList)
    assert kind_of(f.rest()["token_ids"]) == "a list"
    assert f.take_json("more") == json.dumps({"token_ids": LONG}, separators=(",", ":"))
    assert f.take_list("token_ids") == LONG
    with pytest.raises(InputError, match="found a list"):
        as_read(token_ids=LONG).take_text("token_ids")
