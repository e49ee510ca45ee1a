"""What a template does with single things: clock, system prompt, arguments, null, first token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from trajkit.drift.profile.shapes import TOOLS, Message, call, calls, result, says, user
from trajkit.drift.profile.traits import Example, Probe, Trait
from trajkit.errors import InputError
from trajkit.template import ChatTemplate, Nulls, Setting, render_text
from trajkit.template.habits import habits_of, suited
from trajkit.tokenizer import Tokenizer

NOW = datetime(2024, 2, 3, 4, 5, 6)  # noqa: DTZ001 - a template's clock has no zone
"""What templates take for the present, so that a profile is the same on every day."""
_LATER = datetime(2031, 11, 28, 19, 47, 58)  # noqa: DTZ001
_TAG = re.compile(r"<[^<>\s]*>|\[/?[A-Z_]+\]|<｜[^<>]*｜>")
_FEW = 3
"""So many words in a row, outside tags, are more than the header of a turn."""
_TEXT = '{"city":"O\\u0073lo","n":1.50,"ok":true}'
"""Arguments as a policy may write them: no reader and writer of JSON gives them back so."""
_RESULT = 'say "café" <1>\n'
_NEAR = 64


def writing_probes(
    template: ChatTemplate, tokenizer: Tokenizer, setting: Setting
) -> Iterator[Probe]:
    """Yield what a template does with single things; what it refuses is not asked further."""
    talk: tuple[Message, ...] = (user("alpha?"), says("beta one."))
    yield from _clock(template, setting, talk)
    yield from _system(template, setting)
    yield from _arguments(template, setting)
    yield from _nulls(template, setting)
    yield from _results(template, setting)
    yield from _begin(template, tokenizer, setting, talk)


def _write(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], setting: Setting
) -> tuple[str, str | None]:
    """Return the text of a conversation, or an empty one and why the template refuses it."""
    try:
        return render_text(template, messages, setting, add_generation_prompt=True), None
    except InputError as refusal:
        return "", refusal.message


def _clock(template: ChatTemplate, setting: Setting, talk: Sequence[Message]) -> Iterator[Probe]:
    """Yield whether two days give two texts, with tools and without."""
    for tools in (None, TOOLS):
        given = replace(setting, tools=tools)
        today, refusal = _write(template, talk, given)
        then, _ = _write(template, talk, replace(given, now=_LATER))
        if refusal is None:
            at = next((i for i, (a, b) in enumerate(zip(today, then, strict=False)) if a != b), 0)
            example = {"text": today[max(at - 32, 0) : at + 16]}
            yield Trait.CLOCK, None if today == then else example


def _system(template: ChatTemplate, setting: Setting) -> Iterator[Probe]:
    """Yield the words in front of a first message when no message is a system prompt."""
    text, refusal = _write(template, [user("alpha?")], replace(setting, tools=None))
    if refusal is not None:
        return
    front = text[: text.find("alpha?")] if "alpha?" in text else text
    n_words = len(re.findall(r"[^\W\d_]+", _TAG.sub(" ", front)))
    yield Trait.DEFAULT_SYSTEM, {"text": front} if n_words >= _FEW else None


def _arguments(template: ChatTemplate, setting: Setting) -> Iterator[Probe]:
    """Yield how a call's arguments are written, given as JSON text and as an object."""
    habits = habits_of(template)
    setting = replace(setting, tools=TOOLS, nulls=habits.nulls)
    for form, arguments in (("text", _TEXT), ("object", json.loads(_TEXT))):
        made = call("Oslo")
        made = {**made, "function": {**made["function"], "arguments": arguments}}
        messages = [user("alpha?"), {**says(""), "tool_calls": [made]}]
        text, refusal = _write(template, messages, setting)
        example: Example = {"form": form, "error": refusal}
        yield Trait.ARGUMENTS_REFUSED, None if refusal is None else example
        if refusal is not None:
            continue
        at = max(text.rfind("city"), 0)
        is_written = "lo" in text[at:]
        yield Trait.CALLS_DROPPED, None if is_written else {"probe": "a call", "form": form}
        shown = {"form": form, "sampled": _TEXT, "written": text[max(at - 8, 0) : at + _NEAR]}
        if is_written:
            yield from _printed(text[max(at - 8, 0) :], form, shown)


def _printed(written: str, form: str, shown: Example) -> Iterator[Probe]:
    """Yield what became of arguments that stand in the text."""
    if form == "text":
        is_escaped = json.dumps(_TEXT)[1:-1] in written
        yield Trait.ESCAPED_ARGUMENTS, shown if is_escaped else None
        yield Trait.REWRITTEN_ARGUMENTS, None if is_escaped or _TEXT in written else shown
    else:
        yield Trait.REWRITTEN_ARGUMENTS, shown if "True" in written else None
        yield Trait.REPRINTED_ARGUMENTS, shown


def _nulls(template: ChatTemplate, setting: Setting) -> Iterator[Probe]:
    """Yield whether a call beside `"content": null` is written as one beside no words."""
    habits = habits_of(template)
    setting = replace(setting, tools=TOOLS)
    empty = suited([user("alpha?"), calls("Oslo")], habits)
    absent = [empty[0], {**empty[1], "content": None}]
    wanted, _ = _write(template, empty, replace(setting, nulls=habits.nulls))
    for nulls in Nulls:
        text, refusal = _write(template, absent, replace(setting, nulls=nulls))
        added = any(text.count(word) > wanted.count(word) for word in ("None", "null"))
        at = max(text.rfind("None"), text.rfind("null"))
        written = text[max(at - 16, 0) : at + 16] if at >= 0 else None
        example = {"nulls": nulls.value, "error": refusal, "written": written}
        yield Trait.NULL_CONTENT, example if refusal or (added and wanted) else None


def _results(template: ChatTemplate, setting: Setting) -> Iterator[Probe]:
    """Yield whether a tool's result is written as it was returned."""
    habits = habits_of(template)
    messages = suited([user("alpha?"), calls("Oslo"), result(_RESULT)], habits)
    given = replace(setting, tools=TOOLS, nulls=habits.nulls)
    text, refusal = _write(template, messages, given)
    if refusal is None:
        at = max(text.rfind("say "), 0)
        example = {"probe": "tool result", "role": "tool", "text": _RESULT}
        written = text[at : at + len(_RESULT) + 16]
        yield Trait.CONTEXT_CHANGED, None if _RESULT in text else {**example, "written": written}


def _begin(
    template: ChatTemplate, tokenizer: Tokenizer, setting: Setting, talk: Sequence[Message]
) -> Iterator[Probe]:
    """Yield whether encoding puts a token in front that the template writes as well."""
    front = tokenizer.text(tokenizer.framing[0])
    text, refusal = _write(template, talk, replace(setting, tools=None))
    if refusal is None:
        is_doubled = bool(front) and text.startswith(front)
        yield Trait.DOUBLED_BOS, {"text": front} if is_doubled else None
