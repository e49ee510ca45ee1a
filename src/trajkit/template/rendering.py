"""Messages into text, with the span of every string of every message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any

from trajkit.errors import InputError, RefusedError
from trajkit.safe.text import shorten
from trajkit.template import sandbox
from trajkit.template.leaves import (
    PLANS,
    Leaf,
    Marked,
    Nulls,
    Part,
    Plan,
    find_leaves,
    mark,
    pick_nonce,
)
from trajkit.template.leaves import plain_messages as plain
from trajkit.template.literal import POLICY_TAGS, Allow, TextPiece
from trajkit.template.load import ChatTemplate
from trajkit.template.spans import Fit, LeafSpan, explain, explain_edges, spans_of
from trajkit.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a template is given besides the messages.

    Attributes:
        tools: schemas, as the template prints them.
        documents: for retrieval templates.
        kwargs: further variables (`enable_thinking`, ...); they go before special tokens.
        now: what the template takes for the present; `None` is the clock.
        nulls: whether the template sees keys that are null.
    """

    tools: Sequence[Any] | None = None
    documents: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    now: datetime | None = None
    nulls: Nulls = Nulls.DROPPED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rendered:
    """A conversation as text.

    Attributes:
        text: what the template wrote.
        leaves: the conversation's strings, in order.
        spans: where they stand, ascending, disjoint; what lies between is scaffold.
        dropped: leaves the template did not write.
        unlocated: leaves it may have written somewhere in an unknown span.
    """

    text: str
    leaves: tuple[Leaf, ...]
    spans: tuple[LeafSpan, ...]
    dropped: tuple[int, ...]
    unlocated: tuple[int, ...]

    def scaffold(self) -> Iterator[tuple[int, int]]:
        """Yield the `[start, end)` of text that no message wrote."""
        at = 0
        for span in self.spans:
            if span.start > at:
                yield at, span.start
            at = span.end
        if at < len(self.text):
            yield at, len(self.text)

    def message_spans(self, message: int) -> tuple[LeafSpan, ...]:
        """Return the spans of one message."""
        return tuple(span for span in self.spans if message in span.messages)

    def spans_from(self, start: int) -> Iterator[LeafSpan]:
        """Yield the spans that end behind a character."""
        first = bisect_right(self.spans, start, key=lambda span: span.end)
        return islice(self.spans, first, None)

    def pieces(
        self, tokenizer: Tokenizer, start: int = 0, end: int | None = None
    ) -> tuple[TextPiece, ...]:
        """Return the text of `[start, end)` in pieces, each with the control tokens it may hold.

        Raises:
            InputError: T107 when a message holds control text and its place is not known.
        """
        if (found := _forgeable(self, tokenizer)) is not None:
            leaf, token = found
            holder = "the tools hold" if leaf.message is None else f"message {leaf.message} holds"
            raise InputError(
                "T107",
                f"{holder} the control text {shorten(token, 40)} at {shorten(leaf.place, 80)}, and "
                "the template does not show where it writes it",
                hint="leave the record out, or give a simpler chat template",
            )
        end = len(self.text) if end is None else end
        pieces, at = [], start
        for span in self.spans_from(start):
            left, right = max(span.start, start), min(span.end, end)
            if left >= end:
                break
            if span.leaf is None or left >= right:
                continue
            if left > at:
                pieces.append(TextPiece(self.text[at:left], Allow.ALL))
            is_policy = self.leaves[span.leaf].is_policy_text
            allow = Allow.TAGS if is_policy else Allow.NONE
            pieces.append(TextPiece(self.text[left:right], allow))
            at = right
        if at < end:
            pieces.append(TextPiece(self.text[at:end], Allow.ALL))
        return tuple(pieces)

    def renumbered(self, messages: Sequence[int]) -> Rendered:
        """Return the same with message i called `messages[i]`."""
        return replace(
            self,
            leaves=tuple(
                leaf if leaf.message is None else replace(leaf, message=messages[leaf.message])
                for leaf in self.leaves
            ),
            spans=tuple(
                replace(span, messages=tuple(messages[one] for one in span.messages))
                for span in self.spans
            ),
        )


@lru_cache(maxsize=8)
def _forgeable(rendered: Rendered, tokenizer: Tokenizer) -> tuple[Leaf, str] | None:
    """Return a leaf with control text that may stand where the template's own does."""
    dropped = set(rendered.dropped)
    covered: dict[int, list[tuple[int, int]]] = {}
    for span in rendered.spans:
        if span.leaf is not None:
            covered.setdefault(span.leaf, []).append((span.leaf_start, span.leaf_end))
    for number, leaf in enumerate(rendered.leaves):
        if number in dropped:
            continue
        for start, end in _uncovered(len(leaf.text), covered.get(number, [])):
            found = _control_in(leaf.text[start:end], tokenizer)
            if found and not (leaf.is_policy_text and found in POLICY_TAGS):
                return leaf, found
    return None


def render_text(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    setting: Setting | None = None,
    *,
    add_generation_prompt: bool = False,
) -> str:
    """Return the text of a conversation: that of `transformers`' `apply_chat_template`.

    Raises:
        InputError: T106 when the template refuses the conversation.
        RefusedError: R105 when it goes over a limit.
    """
    setting = setting or Setting()
    prompt = add_generation_prompt
    return _write(template, plain(messages, setting.nulls), setting.tools, setting, prompt=prompt)


def prompt_for_step(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    k: int,
    setting: Setting | None = None,
) -> Rendered:
    """Return what the policy sees before it writes message k: those before, then its header."""
    return render(template, messages[:k], setting, add_generation_prompt=True)


def render(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    setting: Setting | None = None,
    *,
    add_generation_prompt: bool = False,
) -> Rendered:
    """Return a conversation as text, with the span of each of its strings.

    The template runs twice in the usual case, at most eight times, whatever the conversation.

    Raises:
        InputError: T106 when the template refuses the conversation.
        RefusedError: R105 when it goes over a limit.
    """
    setting = setting or Setting()
    given = plain(messages, setting.nulls)
    prompt = add_generation_prompt
    text = _write(template, given, setting.tools, setting, prompt=prompt)
    constants = (*template.constants, *_strings(setting.kwargs))
    leaves = find_leaves(given, setting.tools, constants)
    nonce = pick_nonce(text, *(leaf.text for leaf in leaves), *constants)
    first: Rendered | None = None
    for plan in _plans(leaves):
        marked = mark(given, setting.tools, leaves, plan, constants=constants, nonce=nonce)
        try:
            twin = _write(template, marked.messages, marked.tools, setting, prompt=prompt)
        except (InputError, RefusedError):
            continue  # the template does not take marks in those places
        placements = explain(text, twin, marked)
        if placements is not None:
            spans = spans_of(text, leaves, placements)
            return _rendered(text, leaves, spans, marked)
        if first is None:
            placements, start, end, lost = explain_edges(text, twin, marked)
            spans = spans_of(text, leaves, placements)
            unlocated = {leaf for one in lost for leaf in one.leaves}
            first = _partly(text, leaves, spans, (start, end), unlocated)
    everything = set(range(len(leaves)))
    return first or _partly(text, leaves, [], (0, len(text)), everything)


def _write(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    tools: Sequence[Any] | None,
    setting: Setting,
    *,
    prompt: bool,
) -> str:
    """Return what the template writes."""
    variables: dict[str, Any] = {**template.special_tokens, **setting.kwargs}
    now = setting.now
    if now is not None:
        variables.setdefault("strftime_now", now.strftime)
    variables |= {
        "messages": messages,
        "tools": None if tools is None else list(tools),
        "documents": setting.documents,
        "add_generation_prompt": prompt,
    }
    program = template.program(with_tools=tools is not None)
    return sandbox.run(program, variables, template.place)


def _plans(leaves: Sequence[Leaf]) -> Iterator[Plan]:
    """Yield the plans that differ for these leaves."""
    present = {leaf.part for leaf in leaves}
    names = [leaf.text for leaf in leaves if leaf.part is Part.NAME]
    has_equal = len(set(names)) < len(names)
    seen = set()
    for plan in PLANS:
        key = plan.cut, frozenset(present & plan.parts), plan.equal_names and has_equal
        if key not in seen:
            seen.add(key)
            yield plan


def _rendered(
    text: str, leaves: tuple[Leaf, ...], spans: list[LeafSpan], marked: Marked
) -> Rendered:
    """Return a text that is explained: a leaf without a span was dropped, if it was marked."""
    shown = {span.leaf for span in spans}
    absent = [number for number in range(len(leaves)) if number not in shown]
    told = {leaf for one in marked.marks for leaf in one.leaves}
    unlocated = tuple(number for number in absent if number not in told)
    return Rendered(
        text=text,
        leaves=leaves,
        spans=tuple(spans),
        dropped=tuple(number for number in absent if number not in unlocated),
        unlocated=unlocated,
    )


def _partly(
    text: str,
    leaves: tuple[Leaf, ...],
    spans: list[LeafSpan],
    unknown: tuple[int, int],
    lost: set[int],
) -> Rendered:
    """Return a text that is explained at its edges alone; between them all is unknown."""
    start, end = unknown
    shown = {span.leaf for span in spans}
    absent = [number for number in range(len(leaves)) if number not in shown]
    touched = {leaves[number].message for number in (*absent, *lost)}
    if end > start:
        spans.append(
            LeafSpan(
                start=start,
                end=end,
                fit=Fit.UNKNOWN,
                leaf=None,
                leaf_start=0,
                leaf_end=0,
                messages=tuple(sorted(number for number in touched if number is not None)),
            )
        )
    return Rendered(
        text=text,
        leaves=leaves,
        spans=tuple(sorted(spans, key=lambda span: span.start)),
        dropped=(),
        unlocated=tuple(sorted({*absent, *lost})),
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a caller's variables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _strings(entry)


def _uncovered(length: int, covered: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    at = 0
    for start, end in sorted(covered):
        if start > at:
            yield at, start
        at = max(at, end)
    if at < length:
        yield at, length


def _control_in(text: str, tokenizer: Tokenizer) -> str | None:
    """Return the first control token that a text spells."""
    found = [(text.find(token), token) for token in tokenizer.control.values() if token in text]
    return min(found)[1] if found else None
