"""Typed reading of one JSON object: what is taken is checked, what is left over is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajkit.errors import InputError, Place
from trajkit.formats.raw import Sampling, other_settings
from trajkit.records import Floats, Ids, ids_array
from trajkit.safe.faults import QUARANTINE_HINT
from trajkit.safe.ids import array_of
from trajkit.safe.json import dumps

MAX_INT = 2**31 - 1
_MAX_LOGPROB = 1e-6
"""A log-prob above this is no log-prob; below it, rounding."""
_MAX_FLOAT = float(np.finfo(np.float32).max)


class Fields:
    """The keys of one JSON object, taken one by one.

    Every `take_*` takes the first of several names that is there and not null, returns `None` where
    there is none, and raises `InputError` I201 with the JSON path when the value is of another type
    than asked for. `rest()` is what nobody took; `path` is where the object stands.
    """

    def __init__(self, value: object, place: Place, path: str = "$") -> None:
        self.path = path
        self._place = place
        if not isinstance(value, dict):
            raise self.wrong("", "an object", value)
        self._left: dict[str, Any] = dict(value)

    def place(self, key: str = "") -> Place:
        """Return where a key stands."""
        return replace(self._place, path=f"{self.path}.{key}" if key else self.path)

    def wrong(self, key: str, expected: str, found: object) -> InputError:
        """Return the error that says what was expected at a key and what was found."""
        return InputError(
            "I201",
            f"expected {expected}, found {kind_of(found)}",
            place=self.place(key),
            excerpt=json.dumps(found)[:80],
            hint=QUARANTINE_HINT,
        )

    def missing(self, key: str) -> InputError:
        """Return the error for a key that must be there."""
        return InputError(
            "I202", f"the key {key} is missing", place=self.place(key), hint=QUARANTINE_HINT
        )

    def rest(self) -> dict[str, Any]:
        """Return the keys nobody took."""
        return self._left

    def take(self, *names: str) -> Any:
        """Return a value, unchecked."""
        return self._pop(names)[1]

    def take_text(self, *names: str) -> str | None:
        """Return a string."""
        value: str | None = self._typed(names, str, "a string")
        return value

    def take_list(self, *names: str) -> list[Any] | None:
        """Return a list."""
        value: list[Any] | None = self._typed(names, list, "a list")
        return value

    def take_fields(self, name: str) -> Fields | None:
        """Return an object's own fields."""
        value = self.take(name)
        return None if value is None else Fields(value, self._place, f"{self.path}.{name}")

    def open_fields(self, name: str) -> Fields | None:
        """Return the fields of an object that stays here with what nobody takes of it.

        `None` where there is none, or an empty one, or no object; it stays as it is.
        """
        value = self._left.get(name)
        if not isinstance(value, dict) or not value:
            return None
        opened = Fields(value, self._place, f"{self.path}.{name}")
        self._left[name] = opened.rest()
        return opened

    def take_json(self, name: str) -> str | None:
        """Return a value as JSON text: as it stood where it stood as text."""
        value = self.take(name)
        return value if value is None or isinstance(value, str) else dumps(value)

    def take_name(self, *names: str) -> str | None:
        """Return an identifier: a string, or an integer as its digits."""
        name, value = self._pop(names)
        if value is None or isinstance(value, str):
            return value
        if type(value) is int:
            return str(value)
        raise self.wrong(name, "a string or an integer", value)

    def take_number(self, *names: str) -> float | None:
        """Return a finite number as float64."""
        name, value = self._pop(names)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise self.wrong(name, "a number", value)
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(name, "a number that fits 64 bits", value) from None

    def take_float(self, *names: str) -> float | None:
        """Return a finite number, rounded to the float32 it is stored as."""
        name, value = self._pop(names)
        if value is None:
            return None
        if type(value) not in (int, float) or not -_MAX_FLOAT <= value <= _MAX_FLOAT:
            raise self.wrong(name, "a number that fits 32 bits", value)
        return float(np.float32(value))

    def take_int(self, *names: str) -> int | None:
        """Return an integer of 32 bits."""
        name, value = self._pop(names)
        if value is None:
            return None
        if type(value) is not int or not -MAX_INT <= value <= MAX_INT:
            raise self.wrong(name, "an integer that fits 32 bits", value)
        return value

    def take_ids(self, *names: str) -> Ids | None:
        """Return token ids as int32.

        Raises:
            InputError: I301 not an integer, I302 negative, I303 over 32 bits; with the position.
        """
        name, values = self._pop(names)
        if values is None:
            return None
        if not isinstance(values, list):
            raise self.wrong(name, "a list", values)
        known = array_of(values, np.int32)
        if known is not None:
            return known
        if set(map(type, values)) <= {int} and (
            not values or (_is_id(min(values)) and _is_id(max(values)))
        ):
            return ids_array(values)
        position = next(i for i, v in enumerate(values) if not _is_id(v))
        raise self._bad_id(f"{name}[{position}]", values[position])

    def take_logprobs(self, *names: str) -> Floats | None:
        """Return log-probs as float32, NaN for null.

        Raises:
            InputError: I306 when one is no number at or below zero; with the position.
        """
        name, values = self._pop(names)
        if values is None:
            return None
        if not isinstance(values, list):
            raise self.wrong(name, "a list", values)
        array = array_of(values, np.float64)
        if (
            array is not None
            and _is_logprob(float(array.min()))
            and _is_logprob(float(array.max()))
        ):
            return _narrow(array)
        if set(map(type, values)) <= {float, int, type(None)}:
            known = [value for value in values if value is not None]
            if not known or (_is_logprob(min(known)) and _is_logprob(max(known))):
                return _narrow(np.array(values, dtype=np.float64))
        position = next(i for i, v in enumerate(values) if v is not None and not _is_logprob(v))
        raise self._bad_logprob(f"{name}[{position}]", values[position])

    def check_lengths(self, ids: Ids | None, logprobs: Floats | None) -> None:
        """Raise I305 unless ids and their log-probs are equally many."""
        n_ids = 0 if ids is None else len(ids)
        if logprobs is not None and len(logprobs) != n_ids:
            raise InputError(
                "I305",
                f"{n_ids} action ids but {len(logprobs)} log-probs",
                place=self.place(),
                hint="every sampled id has one log-prob; null stands for one that is not known",
            )

    def _pop(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """Return the first name that is there and not null, with its value; both leave."""
        for name in names:
            if self._left.get(name) is not None:
                return name, self._left.pop(name)
        for name in names:
            self._left.pop(name, None)
        return names[0], None

    def _typed(self, names: tuple[str, ...], kind: type, expected: str) -> Any:
        name, value = self._pop(names)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(name, expected, value)
        return value

    def _bad_id(self, key: str, value: object) -> InputError:
        shown = json.dumps(value)[:40]
        hint = f"ids are the integers that the sampler gave; {QUARANTINE_HINT}"
        if type(value) is not int:
            code, sentence = "I301", f"expected a token id, found {kind_of(value)}"
        elif value < 0:
            code, sentence = "I302", f"expected a token id, found the negative {shown}"
            if value == -100:
                hint = "-100 marks labels, not ids: give the ids themselves"
        else:
            code, sentence = "I303", f"expected a token id, found {shown}, which is over 32 bits"
        return InputError(code, sentence, place=self.place(key), excerpt=shown, hint=hint)

    def _bad_logprob(self, key: str, value: object) -> InputError:
        return InputError(
            "I306",
            f"expected a log-prob at or below 0, found {kind_of(value)} {json.dumps(value)[:40]}",
            place=self.place(key),
            hint="log-probs are natural logs; null stands for one that is missing",
        )


_NESTED = "sampling_params"
"""The object that vLLM, SGLang and the trainers around them keep the settings of a call in."""
_SETTINGS: dict[str, Callable[[Fields, str], Any]] = {
    "temperature": Fields.take_float,
    "top_p": Fields.take_float,
    "top_k": Fields.take_int,
}
"""The settings that have a column, and how each is taken."""


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def _narrow(values: NDArray[np.float64]) -> Floats:
    narrow = values.astype(np.float32)
    narrow.setflags(write=False)
    return narrow


def _is_logprob(value: object) -> bool:
    return type(value) in (int, float) and -_MAX_FLOAT <= value <= _MAX_LOGPROB  # type: ignore[operator]


def take_sampling(fields: Fields) -> Sampling:
    """Return how a record's actions were sampled, by its own keys, else by its `sampling_params`.

    What is not taken of `sampling_params`, with what the own keys say already, stays there.
    """
    model = fields.take_text("model")
    nested = fields.open_fields(_NESTED)
    own, below = _take_settings(fields), Sampling()
    if nested is not None:
        told = {name for name in _SETTINGS if getattr(own, name) is not None}
        below = _take_settings(nested, but=told)
        if not nested.rest():
            fields.take(_NESTED)
    return replace(below.overruled_by(own), model=model)


def _take_settings(fields: Fields, but: Set[str] = frozenset()) -> Sampling:
    """Return the settings that are keys of an object; those without a column are left there."""
    taken = {name: take(fields, name) for name, take in _SETTINGS.items() if name not in but}
    return Sampling(**taken, others=other_settings(fields.rest()))


def take_whole(fields: Fields) -> dict[str, Any]:
    """Return what a record says of its whole trajectory, by the names of `RawTrajectory`."""
    return {
        "trajectory_id": fields.take_name("trajectory_id", "id"),
        "group_id": fields.take_name("group_id"),
        "task_id": fields.take_name("task_id"),
        "agent": fields.take_text("agent"),
        "reward": fields.take_number("reward"),
        "sampling": take_sampling(fields),
    }


def kind_of(value: object) -> str:
    """Return what a JSON value is called in a sentence."""
    if isinstance(value, list):
        return "a list"
    names = {dict: "an object", str: "a string", bool: "a boolean"}
    names |= {int: "an integer", float: "a float", type(None): "null"}
    return names.get(type(value), type(value).__name__)
