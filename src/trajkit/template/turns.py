"""Messages into turns: where the policy's own text begins and ends in the text it was part of.

A step's prompt is the template over the messages before, with the generation prompt; what the
policy wrote follows. Both are read off the step's own renders. So that this does not cost two
renders of everything for each step, turns are sorted into kinds: turns are of one kind when the
scaffold on either side of them in the whole conversation's text is the same. The first and the
last turn of a kind are measured by their own renders, and so are those between unless both show

- that the whole text begins with prompt and action: then the same holds for those between; or else
- that the whole text begins with the prompt, and that a short conversation (its head, the turn
  before, this one) gives the same action: then those between are read off short conversations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from trajkit.errors import TrajkitError
from trajkit.template.edges import common_prefix
from trajkit.template.leaves import POLICY_ROLE
from trajkit.template.load import ChatTemplate
from trajkit.template.measure import Ruler, Turn, TurnFit
from trajkit.template.rendering import Setting
from trajkit.tokenizer import Tokenizer


def turn_spans(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    setting: Setting | None = None,
) -> Iterator[Turn]:
    """Yield a turn for each message of the policy, in order.

    Raises:
        InputError: T106 when the template refuses the conversation or its beginning.
        RefusedError: R105 when it goes over a limit.
    """
    yield from _Turns(template, messages, tokenizer, setting).all()


_Kind: TypeAlias = tuple[Any, ...]
_Shape: TypeAlias = tuple[Any, ...]
_NUMBER = re.compile(
    r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|\b(?:[Tt]rue|[Ff]alse|null|None)\b"
)
"""Scalars in arguments, which are not leaves: scaffold that differs in them alone is the same."""


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
        self._tokenizer = tokenizer
        self._setting = setting
        self._turns = [i for i, one in enumerate(messages) if one.get("role") == POLICY_ROLE]
        self._ruler = Ruler(template, messages, tokenizer, setting)
        self._whole, self._edges = self._ruler.whole, self._ruler.edges
        users = [i for i, one in enumerate(messages) if one.get("role") == "user"]
        self._last_user = users[-1] if users else -1
        self._n_head = users[0] + 1 if users else 0

    def all(self) -> Iterator[Turn]:
        """Yield the turns."""
        kinds: dict[_Kind, list[int]] = {}
        for k in self._turns:
            kinds.setdefault(self._kind(k), []).append(k)
        measured: dict[int, Turn] = {}
        models: dict[int, Turn] = {}
        for members in kinds.values():
            _, *others = members  # the very first turn has nothing before it to be told by
            if len(others) > 2:
                ends = [self._ruler.measure(others[0]), self._ruler.measure(others[-1])]
                measured |= {turn.message: turn for turn in ends if turn.fit is TurnFit.SAME}
                if all(_is_same(self._by_model(ends[0], turn.message), turn) for turn in ends):
                    models |= dict.fromkeys(others, ends[0])
        for k in self._turns:
            turn = measured.pop(k, None)
            if turn is None and k in models:
                turn = self._by_model(models[k], k)
            yield turn or self._ruler.measure(k)

    def _kind(self, k: int) -> _Kind:
        """Return what turns have in common when their places can be told from each other's."""
        edges = self._edges.get(k)
        if edges is None:
            return (k,)
        text = self._whole.text
        return (
            _NUMBER.sub("0", text[edges.before : edges.first]),
            _NUMBER.sub("0", text[edges.last : edges.after]),
            k == len(self._messages) - 1,
            k > self._last_user,
            frozenset(key for key, value in self._messages[k].items() if value),
        )

    def _by_model(self, model: Turn, k: int) -> Turn | None:
        """Return the turn of message k by the places of another of its kind.

        `None` when the scaffold up to the prompt's end is not the same to the letter, or the short
        conversation does not work.
        """
        text, here, there = self._whole.text, self._edges[k], self._edges[model.message]
        header = text[there.before : model.prompt_end]
        known = model.prompt is self._whole and there.before <= model.prompt_end <= there.first
        if not known or not text.startswith(header, here.before):
            return None
        start = here.before + len(header)
        if model.fit is TurnFit.SAME:
            return self._in_whole(model, k, start)
        turn = self._in_short(k)
        if turn is None or turn.prompt_more != model.prompt_more:
            return None
        n_more = turn.start - turn.prompt_end
        own = text[:start] + turn.rendered.text[turn.prompt_end : turn.end] if n_more >= 0 else ""
        if turn.fit is TurnFit.SAME:
            parts_at = start + common_prefix(own[start:], text[start : start + len(own)])
            turn = replace(turn, fit=TurnFit.REWRITTEN, parts_at=parts_at)
        elif turn.parts_at is not None:
            turn = replace(turn, parts_at=turn.parts_at - turn.prompt_end + start)
        return replace(turn, message=k, prompt=self._whole, prompt_end=start)

    def _in_whole(self, model: Turn, k: int, start: int) -> Turn | None:
        """Return a turn that stands in the whole text as it was."""
        text, here, there = self._whole.text, self._edges[k], self._edges[model.message]
        behind = text[there.last : model.end]
        n_stop = 0 if model.stop is None else model.stop[1] - model.stop[0]
        end = here.last + len(behind)
        if _NUMBER.search(behind) or not text.startswith(behind, here.last):
            stop = behind[len(behind) - n_stop :]
            if not n_stop or text.count(stop, here.last, here.after) != 1:
                return None
            end = text.index(stop, here.last, here.after) + n_stop
        return Turn(
            message=k,
            fit=TurnFit.SAME,
            prompt=self._whole,
            prompt_end=start,
            rendered=self._whole,
            start=start,
            text_start=here.first,
            end=end,
            stop=None if model.stop is None else (end - n_stop, end),
        )

    def _in_short(self, k: int) -> Turn | None:
        """Return the turn of message k in a short conversation; `None` when there is no such."""
        before = max((i for i in self._turns if i < k), default=0)
        if before < self._n_head or not self._n_head:
            return None
        kept = [*range(self._n_head), *range(before, k + 1)]
        try:
            short = Ruler(
                self._template, [self._messages[i] for i in kept], self._tokenizer, self._setting
            )
            turn = short.measure(len(kept) - 1)
        except TrajkitError:
            return None
        rendered = turn.rendered.renumbered(kept)
        return replace(turn, rendered=rendered)


def _is_same(a: Turn | None, b: Turn) -> bool:
    """Return whether two turns tell the same, whichever texts they tell it of."""
    return a is not None and _shape(a) == _shape(b)


def _shape(turn: Turn) -> _Shape:
    return (
        turn.message,
        turn.fit,
        turn.prompt_end,
        turn.prompt_more,
        turn.prompt.text[: turn.prompt_end] == turn.prompt_text,
        turn.action_text,
        turn.text_start - turn.start,
        None if turn.stop is None else turn.stop[0] - turn.start,
        turn.parts_at,
    )
