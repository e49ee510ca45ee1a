"""Each turn of the shapes: does the template write what was sampled, and keep it afterwards?

For an action, four texts are looked at: the *prompt* (the messages before it, and the generation
prompt), *sampled* (prompt and words; where the template alone knows how reasoning and calls are
spelt, its own spelling), *own* (the conversation up to the action) and *later* (the next prompt of
the policy). A template that lets ids be appended begins both own and later with sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trajkit.drift.profile.shapes import SHAPES, TOOLS, Message, Shape
from trajkit.drift.profile.traits import Example, Probe, Trait
from trajkit.errors import InputError
from trajkit.template import ChatTemplate, Setting, Turn, TurnFit, render_text, turn_spans
from trajkit.template.habits import Habits, habits_of, suited
from trajkit.tokenizer import Tokenizer

_EMPTY_THINKING = re.compile(
    r"<(think\w*|thought|reasoning|seed:think)>\s*</\1>|<\|channel>thought\s*<channel\|>"
    r"|<\|START_THINKING\|>\s*<\|END_THINKING\|>|\[THINK\]\s*\[/THINK\]"
)
_OPEN_THINKING = re.compile(r"<think>\n*\Z")
_NEAR = 48
"""Characters shown of each side where two texts part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One action of a shape in a template's texts; `later` is `None` behind the last message."""

    shape: Shape
    message: Message
    others: tuple[Message, ...]
    prompt: str
    history: str
    own: str
    turn: Turn
    later: str | None

    @property
    def words(self) -> str:
        """Return the text of the message."""
        return str(self.message["content"])

    @property
    def reasoning(self) -> str | None:
        """Return the reasoning that is passed beside the text."""
        found = self.message.get("reasoning_content")
        return None if found is None else str(found)

    @property
    def sampled(self) -> str | None:
        """Return the prompt and what was sampled, `None` where the spelling is the template's."""
        if self.reasoning is not None or "tool_calls" in self.message:
            return None
        words = self.words
        if _OPEN_THINKING.search(self.prompt):  # the prompt holds the tag that was sampled else
            words = words.removeprefix("<think>\n")
        return self.prompt + words

    @property
    def wanted(self) -> str:
        """Return what the next prompt must start with: the prompt, and what was sampled."""
        turn = self.turn
        if self.sampled is None:
            action = turn.action_text
            empty = _EMPTY_THINKING.match(action) if self.reasoning is None else None
            return self.prompt + (action if empty is None else action[empty.end() :].lstrip("\n"))
        text = turn.rendered.text
        at = text.rfind(self.words, turn.start, turn.end) if self.words else -1
        if at < 0 or self.shape.is_cut:
            return self.sampled
        return self.sampled + text[at + len(self.words) : turn.end]

    @property
    def tail(self) -> str:
        """Return what own holds that its prompt does not."""
        return self.own[_common(self.own, self.prompt) :]

    @property
    def name(self) -> Mapping[str, Any]:
        """Return how an example of this turn begins."""
        return {"probe": self.shape.name, "message": self.turn.message}


def turn_probes(
    template: ChatTemplate, tokenizer: Tokenizer, setting: Setting, shapes: Iterable[Shape] = SHAPES
) -> Iterator[Probe]:
    """Yield what each turn of the shapes shows."""
    habits = habits_of(template)
    for shape in shapes:
        try:
            turns = list(_seen(template, tokenizer, setting, shape, habits))
        except InputError as refusal:
            yield Trait.REFUSES, {"probe": shape.name, "error": refusal.message}
            continue
        yield Trait.REFUSES, None
        for seen in turns:
            yield from _with_causes(probe for check in CHECKS for probe in check(seen))


def _with_causes(probes: Iterable[Probe]) -> Iterator[Probe]:
    """Yield the probes of a turn; where texts part, with all that is known to change there."""
    found = list(probes)
    shown = [trait for trait, example in found if example is not None]
    for trait, example in found:
        if example is not None and trait in CAUSES:
            causes = [cause.value for cause in shown if cause in CAUSES[trait]]
            yield trait, {**example, "causes": causes}
        else:
            yield trait, example


def _seen(
    template: ChatTemplate, tokenizer: Tokenizer, setting: Setting, shape: Shape, habits: Habits
) -> Iterator[Seen]:
    """Yield the actions of a shape; T106 when the template refuses it."""
    messages = suited(shape.messages, habits)
    if shape.has_tools:
        setting = replace(setting, tools=setting.tools or TOOLS, nulls=habits.nulls)
    policy = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    for k, following in zip(policy, [*policy[1:], len(messages)], strict=True):
        *_, turn = turn_spans(template, messages[: k + 1], tokenizer, setting)
        later = None
        if following > k + 1:
            upto = messages[:following]
            later = render_text(template, upto, setting, add_generation_prompt=True)
        yield Seen(
            shape=shape,
            message=messages[k],
            others=tuple(messages[:k]),
            prompt=render_text(template, messages[:k], setting, add_generation_prompt=True),
            history=render_text(template, messages[:k], setting),
            own=render_text(template, messages[: k + 1], setting),
            turn=turn,
            later=later,
        )


# ---- the action against what was sampled, and the next prompt against both


def _verbatim(seen: Seen) -> Iterator[Probe]:
    """Yield whether the conversation up to an action goes on from its prompt as it was sampled."""
    if seen.sampled is not None:
        yield Trait.NOT_VERBATIM, _parting(seen, seen.sampled, seen.own)
    text = seen.own
    if seen.later is not None and text.startswith(seen.prompt):
        text = seen.later
    n_same, n_history = _common(text, seen.prompt), _common(seen.history, seen.prompt)
    wanted, becomes = seen.prompt[n_same:][:_NEAR], text[n_same:][:_NEAR]
    shown = {**seen.name, "prompt": wanted, "becomes": becomes}
    is_kept, is_header = n_same == len(seen.prompt), n_same >= n_history
    yield Trait.PROMPT_NOT_KEPT, shown if is_header and not is_kept else None
    yield Trait.HISTORY_CHANGED, shown if not is_header else None


def _prefix(seen: Seen) -> Iterator[Probe]:
    """Yield whether the next prompt starts with this prompt and action."""
    if seen.later is not None:
        yield Trait.NOT_PREFIX, _parting(seen, seen.wanted, seen.later)


def _parting(seen: Seen, wanted: str, found: str) -> Example | None:
    if found.startswith(wanted):
        return None
    at = _common(wanted, found)
    return {
        **seen.name,
        "at": at,
        "expected": wanted[at : at + _NEAR],
        "found": found[at : at + _NEAR],
    }


# ---- what it is that changes


def _thinking(seen: Seen) -> Iterator[Probe]:
    """Yield what becomes of reasoning, and reasoning that nobody wrote."""
    thought = seen.reasoning
    if thought is None and "</think>" in seen.words:
        thought = seen.words.split("\n")[1]
    if thought is not None:
        is_written = thought in seen.own
        yield Trait.THINKING_IGNORED, None if is_written else {**seen.name, "reasoning": thought}
        if is_written and seen.later is not None:
            is_lost = thought not in seen.later
            example = {**seen.name, "reasoning": thought} if is_lost else None
            yield Trait.THINKING_DROPPED, example
        return
    n_prompted = len(_EMPTY_THINKING.findall(seen.prompt))
    for when, text in (("written", seen.own), ("in the next prompt", seen.later or "")):
        # the next prompt may itself end with an empty block, for the next action
        behind = text[: text.rfind(seen.words) + len(seen.words)] if seen.words else text
        found = list(_EMPTY_THINKING.finditer(behind))
        if len(found) > n_prompted:
            yield Trait.EMPTY_THINKING, {**seen.name, "when": when, "text": found[-1][0]}
            return
    yield Trait.EMPTY_THINKING, None


def _words(seen: Seen) -> Iterator[Probe]:
    """Yield whether the message's words are written, and those of the messages before."""
    if (words := _last_line(seen)).strip():
        texts = [text for text in (seen.own, seen.later) if text is not None]
        is_lost = any(words.strip() not in text for text in texts)
        is_trimmed = not is_lost and any(words not in text for text in texts)
        example: Example = {**seen.name, "text": words}
        yield Trait.TRIMS, example if is_trimmed else None
        yield Trait.TEXT_DROPPED, example if is_lost else None
    for message in reversed(seen.others):
        if message["role"] == "assistant":
            break
        words = str(message["content"])
        example = {**seen.name, "role": message["role"], "text": words}
        yield Trait.CONTEXT_CHANGED, None if words in seen.prompt else example


def _last_line(seen: Seen) -> str:
    """Return the message's text without the reasoning inside it."""
    _, tag, behind = seen.words.partition("</think>\n\n")
    return behind if tag else seen.words.removeprefix("<think>\n")


def _calls(seen: Seen) -> Iterator[Probe]:
    """Yield whether each call is written, at once and in the next prompt."""
    for made in seen.message.get("tool_calls", ()):
        city = _city(made)
        lost = any(city not in text for text in (seen.own, seen.later) if text is not None)
        yield Trait.CALLS_DROPPED, {**seen.name, "arguments": city} if lost else None


def _city(made: Message) -> str:
    """Return what a call asks for."""
    arguments = made["function"]["arguments"]
    return str((json.loads(arguments) if isinstance(arguments, str) else arguments)["city"])


# ---- where the turn ends


def _stops(seen: Seen) -> Iterator[Probe]:
    """Yield the end-of-turn token, what follows it, and what a next turn makes of it."""
    turn = seen.turn
    text = turn.rendered.text
    stop = None if turn.stop is None else text[turn.stop[0] : turn.stop[1]]
    if stop is None and not seen.words and "tool_calls" not in seen.message:
        return  # where nothing is written, nothing shows where it would end
    yield Trait.NO_STOP, {**seen.name, "written": seen.tail[-_NEAR:]} if stop is None else None
    if stop is None:
        return
    yield Trait.STOP, {"text": stop}
    after = text[turn.end :]
    yield Trait.AFTER_TURN, {"text": after} if after else None
    if seen.shape.is_cut:
        yield Trait.CLOSES_CUT, {**seen.name, "text": stop}
    called = [_city(made) for made in seen.message.get("tool_calls", ())]
    words = [_last_line(seen).strip(), *called][-1]
    if words and seen.later is not None and words in seen.later and words in text:
        mine, next_one = (one[one.rindex(words) + len(words) :] for one in (text, seen.later))
        at = mine.find(stop)
        swapped = at >= 0 and not next_one.startswith(mine[: at + len(stop)])
        swapped = swapped and mine[:at] == next_one[:at]
        example = {**seen.name, "text": stop, "becomes": next_one[at : at + len(stop) + 8]}
        yield Trait.STOP_SWAPPED, example if swapped else None


def _ahead(seen: Seen) -> Iterator[Probe]:
    """Yield what stands between the prompt and the message's words."""
    turn = seen.turn
    if turn.fit is not TurnFit.PARTED and seen.sampled is not None and seen.words:
        ahead = turn.rendered.text[turn.start : turn.text_start]
        ahead = ahead if seen.words.strip() not in ahead else ""
        yield Trait.WRITES_AHEAD, {**seen.name, "text": ahead} if ahead.strip() else None


def _common(a: str, b: str) -> int:
    """Return how many characters two short texts begin with alike."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


CHECKS: tuple[Callable[[Seen], Iterator[Probe]], ...] = (
    *(_verbatim, _prefix, _thinking, _words, _calls, _stops, _ahead),
)
"""What is asked of each turn."""
_ALWAYS = (Trait.PROMPT_NOT_KEPT, Trait.HISTORY_CHANGED, Trait.EMPTY_THINKING, Trait.TRIMS)
CAUSES: Mapping[Trait, tuple[Trait, ...]] = {
    Trait.NOT_VERBATIM: (
        *_ALWAYS,
        *(Trait.THINKING_IGNORED, Trait.TEXT_DROPPED, Trait.WRITES_AHEAD),
    ),
    Trait.NOT_PREFIX: (
        *_ALWAYS,
        *(Trait.THINKING_IGNORED, Trait.THINKING_DROPPED, Trait.TEXT_DROPPED),
        *(Trait.CALLS_DROPPED, Trait.STOP_SWAPPED, Trait.WRITES_AHEAD),
    ),
}
"""What can be the reason that two texts part; nothing of it found, the reason is not known."""
