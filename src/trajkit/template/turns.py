"""Messages into turns: where the policy's own text begins and ends in the text it was part of.

A step's prompt is the template over the messages before, with the generation prompt; what the
policy wrote follows. Both are read off real renders. For the usual template, which only ever adds
to what it wrote before, they are the beginning of the whole conversation's text, and one render
serves all steps: the places are measured at the first and the last turn of each kind, turns being
of one kind when the scaffold on either side of them is the same, and hold for those between.
Where a turn of a kind does not fit the whole text, each turn of that kind has its own renders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from trajkit.template.leaves import POLICY_ROLE
from trajkit.template.load import ChatTemplate
from trajkit.template.render import Rendered, Setting, prompt_for_step, render, render_text
from trajkit.tokenizer import Tokenizer


class TurnFit(StrEnum):
    """How a step's own render relates to that of the whole conversation."""

    SAME = "same"
    """The whole conversation begins with the step's prompt and action."""
    REWRITTEN = "rewritten"
    """Later, the template writes the step's prompt or action otherwise."""
    PARTED = "parted"
    """The message, as the template writes it, does not go on from the generation prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message of the policy, in the text that holds it.

    Attributes:
        message: its index.
        fit: how the step's own render relates to the whole conversation's.
        rendered: the whole conversation when they are the same, else that up to this message.
        start: the character where the policy's own text begins: the generation prompt ends.
        end: past its end-of-turn token; what follows is scaffold.
        stop: `[start, end)` of the end-of-turn token; `None` where the template writes none.
        parts_at: where the two part: for `REWRITTEN` the step's text and the whole
            conversation's, for `PARTED` the step's text and its prompt.
        own_prompt: what the policy saw, where that is not `rendered` up to `start`.
    """

    message: int
    fit: TurnFit
    rendered: Rendered
    start: int
    end: int
    stop: tuple[int, int] | None
    parts_at: int | None = None
    own_prompt: Rendered | None = None

    @property
    def prompt_text(self) -> str:
        """Return the text the policy saw."""
        return self.rendered.text[: self.start] if self.own_prompt is None else self.own_prompt.text

    @property
    def action_text(self) -> str:
        """Return the policy's own text, end-of-turn included."""
        return self.rendered.text[self.start : self.end]


def turn_spans(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    setting: Setting | None = None,
) -> Iterator[Turn]:
    """Yield a turn for each message of the policy, in order.

    Raises:
        InputError: T106 when the template refuses the conversation or its beginning.
    """
    turns = _Turns(template, messages, tokenizer, setting)
    yield from turns.all()


_Kind: TypeAlias = tuple[Any, ...]
_NUMBER = re.compile(
    r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|\b(?:[Tt]rue|[Ff]alse|null|None)\b"
)
"""Scalars in arguments, which are not leaves: scaffold that differs in them alone is the same."""


@dataclass(frozen=True, slots=True)
class _Edges:
    """The strings around a turn in the whole conversation's text, all of them character places.

    The scaffold before it is `[before, first)`, the one behind `[last, after)`.
    """

    before: int
    first: int
    last: int
    after: int


class _Turns:
    """The walk over one conversation."""

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
        self._stops = stop_tokens(template, tokenizer)
        self._turns = [i for i, one in enumerate(messages) if one.get("role") == POLICY_ROLE]
        self._whole = render(template, messages, setting)
        self._edges = {k: edges for k in self._turns if (edges := self._edges_of(k)) is not None}

    def all(self) -> Iterator[Turn]:
        """Yield the turns."""
        kinds: dict[_Kind, list[int]] = {}
        kind_of = {}
        for k in self._turns:
            kind_of[k] = self._kind(k)
            kinds.setdefault(kind_of[k], []).append(k)
        measured: dict[int, Turn] = {}
        regular: dict[_Kind, Turn] = {}
        for kind, members in kinds.items():
            ends = [self._measure(k) for k in dict.fromkeys((members[0], members[-1]))]
            measured |= {turn.message: turn for turn in ends if turn.fit is TurnFit.SAME}
            if all(turn.fit is TurnFit.SAME for turn in ends):
                regular[kind] = ends[0]
                if len(ends) > 1 and self._shift(ends[0], members[-1]) != ends[1]:
                    del regular[kind]
        for k in self._turns:
            model = regular.get(kind_of[k])
            turn = measured.get(k) or (None if model is None else self._shift(model, k))
            yield turn or self._measure(k)

    def _kind(self, k: int) -> _Kind:
        """Return what turns have in common when their places can be told from each other's."""
        edges = self._edges.get(k)
        if edges is None:
            return (k,)
        text = self._whole.text
        later_users = any(one.get("role") == "user" for one in self._messages[k + 1 :])
        return (
            _NUMBER.sub("0", text[edges.before : edges.first]),
            _NUMBER.sub("0", text[edges.last : edges.after]),
            k == len(self._messages) - 1,
            later_users,
        )

    def _shift(self, model: Turn, k: int) -> Turn | None:
        """Return the turn of message k by the places of another of its kind.

        `None` when the scaffold up to the place, or from it on, is not the same to the letter.
        """
        text, here, there = self._whole.text, self._edges[k], self._edges[model.message]
        header = text[there.before : model.start]
        behind = text[there.last : model.end]
        n_stop = 0 if model.stop is None else model.stop[1] - model.stop[0]
        stop = behind[len(behind) - n_stop :]
        end = here.last + len(behind)
        if _NUMBER.search(behind) or not text.startswith(behind, here.last):
            if not n_stop or text.count(stop, here.last, here.after) != 1:
                return None
            end = text.index(stop, here.last, here.after) + n_stop
        if not text.startswith(header, here.before) or model.start > there.first:
            return None
        return Turn(
            message=k,
            fit=TurnFit.SAME,
            rendered=self._whole,
            start=here.before + len(header),
            end=end,
            stop=None if model.stop is None else (end - n_stop, end),
        )

    def _measure(self, k: int) -> Turn:
        """Return the turn of message k by its own renders."""
        whole, upto = self._whole, self._messages[: k + 1]
        before = self._text(self._messages[:k], prompt=True)
        own_text = self._text(upto, prompt=False)
        n_same = common_prefix(own_text, whole.text)
        edges = self._edges.get(k)
        if edges is not None and edges.last <= n_same and whole.text.startswith(before):
            holder, last = whole, edges.last
        else:
            holder = render(self._template, upto, self._setting)
            last = max((span.end for span in holder.message_spans(k)), default=0)
        n_prompt = common_prefix(own_text, before)
        base = max(n_prompt, last)
        end, stop = self._end(own_text, base, upto)
        fit, parts_at = TurnFit.SAME, None
        if n_prompt < len(before):
            fit, parts_at = TurnFit.PARTED, n_prompt
        elif not whole.text.startswith(own_text[:end]):
            fit, parts_at = TurnFit.REWRITTEN, n_same
        if fit is not TurnFit.SAME and holder is whole:
            holder = render(self._template, upto, self._setting)
        is_parted = fit is TurnFit.PARTED
        return Turn(
            message=k,
            fit=fit,
            rendered=whole if fit is TurnFit.SAME else holder,
            start=n_prompt,
            end=end,
            stop=stop,
            parts_at=parts_at,
            own_prompt=(
                prompt_for_step(self._template, self._messages, k, self._setting)
                if is_parted
                else None
            ),
        )

    def _end(
        self, text: str, base: int, upto: Sequence[Mapping[str, Any]]
    ) -> tuple[int, tuple[int, int] | None]:
        """Return where a turn ends, and its end-of-turn token.

        It is the last one that stands behind the turn both at the end of a conversation and in
        the middle of one; where these two differ, the first one at the end.
        """
        tail = text[base:]
        found = [
            (start, start + len(token))
            for token in self._stops
            for start in _all_starts(tail, token)
        ]
        found.sort()
        middle = self._whole.text
        if len(upto) == len(self._messages) or not middle.startswith(text[:base]):
            middle = self._text(upto, prompt=True)
        shared = common_prefix(tail, middle[base:]) if middle.startswith(text[:base]) else 0
        both = [span for span in found if span[1] <= shared]
        if found:
            start, end = both[-1] if both else found[0]
            return base + end, (base + start, base + end)
        return base + (shared or len(tail)), None

    def _edges_of(self, k: int) -> _Edges | None:
        """Return the strings around message k, `None` when it has none of its own."""
        spans = self._whole.spans
        mine = [i for i, span in enumerate(spans) if span.messages == (k,)]
        if not mine or any(k in s.messages and s.messages != (k,) for s in spans):
            return None
        before, after = mine[0] - 1, mine[-1] + 1
        return _Edges(
            before=spans[before].end if before >= 0 else 0,
            first=spans[mine[0]].start,
            last=spans[mine[-1]].end,
            after=spans[after].start if after < len(spans) else len(self._whole.text),
        )

    def _text(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        return render_text(self._template, messages, self._setting, add_generation_prompt=prompt)


def stop_tokens(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return what may end a turn: the special added tokens, and the template's own end token."""
    added = tokenizer._backend.get_added_tokens_decoder().values()  # noqa: SLF001
    found = {token.content for token in added if token.special}
    return tuple(sorted(found | {template.special_tokens.get("eos_token", "")} - {""}))


def common_prefix(a: str, b: str) -> int:
    """Return how many characters two strings begin with alike."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _all_starts(text: str, token: str) -> Iterator[int]:
    at = text.find(token)
    while at >= 0:
        yield at
        at = text.find(token, at + len(token))
