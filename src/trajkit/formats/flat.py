"""Flat text with tags: one conversation a record, `{"text"}` or `{"prompt", "response"}`, or .txt.

`{"example"}` is a text that may stand in a code fence, which is nobody's and is left out. Which
tags there are says a profile of `trajkit.markup`: the one asked for, else the one that a pair of
tags outside the prompt confirms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from trajkit.errors import InputError, Place
from trajkit.formats.fields import Fields, take_whole
from trajkit.formats.raw import Format, RawStep, RawTrajectory
from trajkit.markup import (
    MARKUPS,
    FlatStep,
    FlatTrajectory,
    Markup,
    choose,
    foreign_reply,
    parse,
    split,
)
from trajkit.records import Observation
from trajkit.safe.json import BadRecord, Record

_RESPONSES = ("response", "completion", "output")
_EXAMPLE = "example"
_KEYS = ("prompt", "text", _EXAMPLE, *_RESPONSES)
_NAMED = "texts by name, with tags"
_FENCED = re.compile(r"(```[a-z]*\r?\n)(.*?)((?:\r?\n)?```\s*)\Z", re.DOTALL)
_UNCLOSED = "an observation has no closing tag: it ends where the policy goes on"


def with_markup(markup: Markup) -> Format:
    """Return the format that reads with one profile, whatever the tags."""
    return replace(FORMAT, sniff=partial(_sniff, markup), read=partial(_read, markup))


def conversations(record: Record, markup: Markup | None) -> Iterator[Record | BadRecord]:
    """Yield a record for each conversation of a text file; line breaks around them are left out.

    Where one conversation cannot be read, the rest of the file is one bad record.

    Args:
        record: the whole text.
        markup: the profile asked for, `None` to choose one.
    """
    text = str(record.value)
    data = text.encode("utf-8")
    chosen = choose(text) if markup is None else (markup, "")
    if chosen is None:
        yield record
        return
    index = end = line = seen = 0
    spans = split(data, chosen[0])
    while True:
        try:
            start, stop = next(spans)
        except StopIteration:
            return
        except InputError as problem:
            rest = end + len(data[end:]) - len(data[end:].lstrip())
            line += data.count(b"\n", seen, rest)
            yield BadRecord(
                raw=data[rest:],
                file=record.file,
                line=record.line + line,
                byte_offset=record.byte_offset + rest,
                index=index,
                error=_placed(
                    problem, _moved(problem, record, record.byte_offset, record.line - 1)
                ),
            )
            return
        line += data.count(b"\n", seen, start)
        yield Record(
            value=data[start:stop].decode("utf-8"),
            raw=data[start:stop],
            file=record.file,
            line=record.line + line,
            byte_offset=record.byte_offset + start,
            index=index,
        )
        index, end, seen = index + 1, stop, start


def _sniff(markup: Markup | None, value: object) -> str | None:
    found = _texts(value)
    if found is None:
        return _NAMED if _has_named_texts(value) else None
    key, text, prompt = found
    if markup is not None:
        return f"{key}, read with the tag profile {markup.name}"
    chosen = choose(text, prompt=prompt)
    return None if chosen is None else f"{key} with tags of {chosen[0].name}: {chosen[1]}"


def _texts(value: object) -> tuple[str, str, str | None] | None:
    """Return what a value is told by, its text, and its prompt where that stands apart."""
    if isinstance(value, str):
        return "text", value, None
    if not isinstance(value, dict):
        return None
    prompt = value.get("prompt")
    if isinstance(prompt, str):
        for key in _RESPONSES:
            if isinstance(value.get(key), str):
                return f"prompt and {key}", value[key], prompt
    for key in ("text", _EXAMPLE):
        if isinstance(value.get(key), str):
            return key, value[key] if key == "text" else _unfenced(value[key])[1], None
    return None


def _unfenced(text: str) -> tuple[str, str, str]:
    """Return a text that stands in a code fence without it, and the fence before and after it."""
    found = _FENCED.match(text)
    return ("", text, "") if found is None else (found[1], found[2], found[3])


def _read(markup: Markup | None, record: Record) -> RawTrajectory:
    if isinstance(record.value, str):
        return RawTrajectory(**_parsed(record, record.value, None, markup, "$"))
    fields = Fields(record.value, record.place)
    there = fields.rest()
    if _has_named_texts(there):
        raise _many_texts(fields)
    alone = _EXAMPLE if there.get("text") is None and _EXAMPLE in there else "text"
    key = next((name for name in _RESPONSES if there.get(name) is not None), alone)
    prompt = None if key == alone else fields.take_text("prompt")
    if prompt is None and key != alone and there.get(alone) is None:
        raise fields.missing("prompt")
    key = alone if prompt is None else key
    text = fields.take_text(key)
    if text is None:
        raise fields.missing(key)
    before, text, after = _unfenced(text) if key == _EXAMPLE else ("", text, "")
    skipped = len(before.encode("utf-8")) - len((prompt or "").encode("utf-8"))
    found = _parsed(record, text, prompt, markup, f"$.{key}", skipped)
    fence = {_EXAMPLE: [before, after]} if before else {}
    return RawTrajectory(
        **take_whole(fields),
        extra=fields.rest() | fence | found.pop("extra"),
        **found,
    )


def _has_named_texts(value: object) -> bool:
    """Return whether a value is nothing but texts by name, some of them with tags of a profile."""
    if not isinstance(value, dict) or not value or {*_KEYS} & value.keys():
        return False
    texts = list(value.values())
    if not all(isinstance(text, str) for text in texts):
        return False
    return sum(choose(text) is not None for text in texts) > 1


def _many_texts(fields: Fields) -> InputError:
    """Return the error for texts by name: examples for a prompt, which no policy sampled."""
    name = next(iter(fields.rest()))
    return InputError(
        "I404",
        f"where the prompt ends is unknown: the record is {len(fields.rest())} texts by name, as "
        "the examples of a prompt are kept",
        place=fields.place(name),
        excerpt=str(fields.rest()[name])[:80],
        hint='give each text a record of its own, {"prompt": ..., "response": ...}',
    )


def _parsed(
    record: Record,
    text: str,
    prompt: str | None,
    markup: Markup | None,
    path: str,
    skipped: int = 0,
) -> dict[str, Any]:
    """Return the steps of a text, and what else a trajectory takes from it.

    Args:
        record: what the text stands in.
        text: what follows the prompt, or all of it.
        prompt: where that stands apart.
        markup: the profile asked for, `None` to choose one.
        path: where in the record the text stands.
        skipped: bytes from the start of prompt + text back to the start of what stands there.
    """
    chosen = markup
    if chosen is None:
        found = choose(text, prompt=prompt)
        if found is None:
            raise InputError(
                "I402",
                "no tag profile has a pair of tags in this text, outside the prompt",
                place=replace(record.place, path=path),
                hint="name the profile with --markup: " + ", ".join(m.name for m in MARKUPS),
            )
        chosen = found[0]
    try:
        flat = parse(text, chosen, prompt=prompt)
        if markup is None and (spot := foreign_reply(flat)) is not None:
            raise InputError(
                "I405",
                f"the profile {chosen.name} does not know these tags, and they look like a reply",
                place=Place(byte_offset=spot, line=flat.data.count(b"\n", 0, spot) + 1),
                excerpt=flat.data[spot : spot + 80].decode("utf-8", "ignore"),
                hint="describe them in a TOML file for --markup; --markup "
                f"{chosen.name} takes them for the policy's own words",
            )
    except InputError as problem:
        if isinstance(record.value, str):
            place = _moved(problem, record, record.byte_offset, record.line - 1)
        else:
            at = problem.place.byte_offset if problem.place is not None else None
            offset = None if at is None else max(0, at + skipped)
            place = replace(record.place, path=path, byte_offset=offset)
        raise _placed(problem, place) from None
    return {
        "flat": flat,
        "steps": tuple(_step(flat, step) for step in flat.steps),
        "extra": {} if flat.steps else {"text": flat.text(0, len(flat.data))},
        "warnings": (_UNCLOSED,) if flat.n_unclosed else (),
    }


def _step(flat: FlatTrajectory, step: FlatStep) -> RawStep:
    results = [flat.text(*span) for span in step.results]
    return RawStep(
        action_text=flat.text(step.start, step.end),
        observation="\n".join(results) if results else None,
        observations=tuple(Observation(text=text) for text in results) or None,
    )


def _moved(problem: InputError, record: Record, n_bytes: int, n_lines: int) -> Place:
    """Return the place of a problem in the file, from its place in a text of it."""
    place = problem.place or Place()
    return replace(
        record.place,
        line=None if place.line is None else place.line + n_lines,
        byte_offset=None if place.byte_offset is None else place.byte_offset + n_bytes,
    )


def _placed(problem: InputError, place: Place) -> InputError:
    return InputError(
        problem.code, problem.message, place=place, hint=problem.hint, excerpt=problem.excerpt
    )


FORMAT = Format(
    name="flat",
    shape='{"text"} or {"prompt", "response"}, with tags',
    sniff=partial(_sniff, None),
    read=partial(_read, None),
)
