"""One policy message, measured: its prompt and its action by the step's own renders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trajkit.errors import TrajkitError
from trajkit.template.edges import (
    common_prefix,
    cut_no_token,
    edges_of,
    find_stop,
    room_of,
    stop_tokens,
)
from trajkit.template.leaves import pick_nonce
from trajkit.template.literal import Allow, TextPiece
from trajkit.template.load import ChatTemplate
from trajkit.template.rendering import Rendered, Setting, prompt_for_step, render, render_text
from trajkit.tokenizer import Tokenizer


class TurnFit(StrEnum):
    """How a step's own render relates to that of the whole conversation."""

    SAME = "same"
    """The whole conversation's text begins with the step's prompt and action."""
    REWRITTEN = "rewritten"
    """Later, the template writes the step's prompt or action otherwise."""
    PARTED = "parted"
    """The message, as the template writes it, does not go on from the generation prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message of the policy: what it saw and what it wrote.

    Attributes:
        message: its index.
        fit: how the step's own render relates to the whole conversation's.
        prompt: a text that begins with what the policy saw.
        prompt_end: how much of it the policy saw.
        prompt_more: what it saw behind that: the rest of a generation prompt that is never
            written into the history; mostly empty.
        rendered: a text that holds the action.
        start: the character of it where the policy's own text begins.
        text_start: where the first string of the message begins; before it stands what the template
            writes for the policy (an empty block of thoughts, the opening of a call).
        end: past its end-of-turn token; what follows is scaffold.
        stop: `[start, end)` of the end-of-turn token; `None` where the template writes none.
        parts_at: where the two part: for `REWRITTEN` the step's own text and the whole
            conversation's, for `PARTED` the step's own text and its prompt.
    """

    message: int
    fit: TurnFit
    prompt: Rendered
    prompt_end: int
    prompt_more: str = ""
    rendered: Rendered
    start: int
    text_start: int
    end: int
    stop: tuple[int, int] | None
    parts_at: int | None = None

    @property
    def prompt_text(self) -> str:
        """Return the text the policy saw."""
        return self.prompt.text[: self.prompt_end] + self.prompt_more

    @property
    def action_text(self) -> str:
        """Return the policy's own text, end-of-turn included."""
        return self.rendered.text[self.start : self.end]

    def prompt_pieces(self, tokenizer: Tokenizer, start: int = 0) -> tuple[TextPiece, ...]:
        """Return the prompt from a character on in pieces to be encoded; T107 as there."""
        pieces = self.prompt.pieces(tokenizer, start, self.prompt_end)
        more = self.prompt_more[max(0, start - self.prompt_end) :]
        return (*pieces, TextPiece(more, Allow.ALL)) if more else pieces

    def action_pieces(self, tokenizer: Tokenizer) -> tuple[TextPiece, ...]:
        """Return the action in pieces to be encoded; T107 as in `Rendered.pieces`."""
        return self.rendered.pieces(tokenizer, self.start, self.end)


class Ruler:
    """Measures turns of one conversation; `whole` is its text, `edges` those of its messages."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        setting: Setting | None,
    ) -> None:
        self._template = template
        self._messages = messages
        self._setting = setting
        self._control = tuple(tokenizer.control.values())
        self._stops = stop_tokens(template, tokenizer)
        self.whole = render(template, messages, setting)
        self.edges = edges_of(self.whole)

    def measure(self, k: int) -> Turn:
        """Return the turn of message k by its own renders."""
        whole, upto = self.whole.text, self._messages[: k + 1]
        before = self._text(self._messages[:k], prompt=True)
        own = self._text(upto, prompt=False)
        n_same, n_prompt = common_prefix(own, whole), common_prefix(own, before)
        edges, rendered = self.edges.get(k), self.whole
        if own != whole and (edges is None or edges.after > n_same):
            rendered = render(self._template, upto, self._setting)
            edges = edges_of(rendered).get(k)
        last = self._where_content_would_end(own, upto) if edges is None else edges.last
        first = last if edges is None else edges.first
        base = cut_no_token(own, max(n_prompt, last), self._control)
        earlier, later = room_of(rendered, k, first or base, base)
        later = min(later, len(own))
        n_tail, stop = find_stop(own[base:later], self._going_on(own[:base], upto), self._stops)
        fit, start, parts_at = TurnFit.SAME, n_prompt, None
        if n_prompt < max(len(before), earlier):
            fit, parts_at = TurnFit.PARTED, n_prompt
        elif not whole.startswith(own[: base + n_tail]):
            fit, parts_at = TurnFit.REWRITTEN, n_same
        if fit is not TurnFit.SAME and rendered is self.whole and own != whole:
            rendered = render(self._template, upto, self._setting)
        prompt, prompt_end, more = self._prompt(k, before)
        if fit is TurnFit.PARTED:
            start = self._parted_start(own, k, before, n_prompt, (earlier, first or base + n_tail))
        return Turn(
            message=k,
            fit=fit,
            prompt=prompt,
            prompt_end=prompt_end,
            prompt_more=more,
            rendered=rendered,
            start=start,
            text_start=max(first, start),
            end=base + n_tail,
            stop=None if stop is None else (base + stop[0], base + stop[1]),
            parts_at=parts_at,
        )

    def _prompt(self, k: int, before: str) -> tuple[Rendered, int, str]:
        """Return a text that begins as a prompt, how far it does, and the rest of the prompt.

        The rest is scaffold: where it holds words of messages the prompt is a text of its own.
        """
        whole = self.whole
        n_same = common_prefix(before, whole.text)
        if n_same == len(before):
            return whole, n_same, ""
        edges = self.edges.get(k)
        n_same = n_same if edges is None else min(n_same, edges.first)
        n_same = cut_no_token(before, n_same, self._control)
        prompt = prompt_for_step(self._template, self._messages, k, self._setting)
        is_near = edges is not None and edges.before <= n_same
        if is_near and all(span.end <= n_same for span in prompt.spans):
            return whole, n_same, before[n_same:]
        return prompt, len(prompt.text), ""

    def _parted_start(
        self, own: str, k: int, before: str, n_prompt: int, room: tuple[int, int]
    ) -> int:
        """Return where the policy's text begins when its own render leaves the prompt.

        That is where they part when only the header is written otherwise (no control token is
        cut for it); when it is the messages before, it is behind the same header. `room` lies
        between the words of the messages before and those of its own.
        """
        earlier, first = room
        if n_prompt >= earlier:
            return max(earlier, cut_no_token(own, n_prompt, self._control))
        prompt = prompt_for_step(self._template, self._messages, k, self._setting)
        header = before[max((span.end for span in prompt.spans), default=0) :]
        found = own.find(header, earlier, first)
        return found + len(header) if found >= 0 else first

    def _going_on(self, text: str, upto: Sequence[Mapping[str, Any]]) -> str:
        """Return what is written behind a text when its conversation goes on."""
        longer = self.whole.text
        if len(upto) == len(self._messages) or not longer.startswith(text):
            longer = self._text(upto, prompt=True)
        return longer[len(text) :] if longer.startswith(text) else ""

    def _where_content_would_end(self, text: str, upto: Sequence[Mapping[str, Any]]) -> int:
        """Return where the last message's content would end if it had any; 0 when not known."""
        word = pick_nonce(text)
        try:
            filled = self._text([*upto[:-1], {**upto[-1], "content": word}], prompt=False)
        except TrajkitError:
            return 0
        _, found, tail = filled.rpartition(word)
        return len(text) - len(tail) if found and text.endswith(tail) else 0

    def _text(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        return render_text(self._template, messages, self._setting, add_generation_prompt=prompt)
