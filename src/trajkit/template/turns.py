"""Messages into turns: where the policy's own text begins and ends in the text it was part of.

A step's prompt is the template over the messages before, with the generation prompt; what the
policy wrote follows. Both are read off the step's own renders. So that this does not cost two
renders of everything for each step, turns are sorted into kinds: turns are of one kind when the
scaffold on either side of them in the whole conversation's text is the same. The first and the
last turn of a kind are measured by their own renders, and so are those between unless both show

- that the whole text begins with prompt and action: then the same holds for those between; or else
- that the whole text begins with the prompt, and that a short conversation (its head, the turn
  before, this one) gives the same action: then those between are read off short conversations.

What is left by this is read off a conversation that ends before the user's next message or the
policy's answer to the last one (`epochs.py`), if this tells the first and the last of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from trajkit.errors import TrajkitError
from trajkit.template.edges import common_prefix
from trajkit.template.epochs import moved_turn, splice
from trajkit.template.leaves import POLICY_ROLE
from trajkit.template.load import ChatTemplate
from trajkit.template.measure import Ruler, Turn, TurnFit
from trajkit.template.rendering import Rendered, Setting
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
        first: int | None = None,
    ) -> None:
        """Look at all messages of the policy, or in a short conversation at those from one on."""
        self._template = template
        self._messages = messages
        self._tokenizer = tokenizer
        self._setting = setting
        policy = [i for i, one in enumerate(messages) if one.get("role") == POLICY_ROLE]
        self._policy = policy
        self._turns = policy[bisect_left(policy, first or 0) :]
        self._is_short = first is not None
        self._ruler = Ruler(template, messages, tokenizer, setting)
        self._whole, self._edges = self._ruler.whole, self._ruler.edges
        users = [i for i, one in enumerate(messages) if one.get("role") == "user"]
        self._users = users
        self._last_user = users[-1] if users else -1
        self._n_head = users[0] + 1 if users else 0
        self._epoch: tuple[int, dict[int, Turn]] = (-1, {})
        """The end of the latest stretch before a message of the user, and its turns."""

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
        known = {*measured, *models}
        left = [] if self._is_short else [k for k in self._turns if k not in known]
        outer = [self._ruler.measure(k) for k in (left[0], left[-1])] if len(left) > 2 else []
        tried = [(self._in_epoch(turn.message), turn) for turn in outer]
        is_told = all(told is None or _is_same(told, turn) for told, turn in tried)
        in_epochs = set(left) if tried and is_told else set()
        for k in self._turns:
            turn = measured.pop(k, None)
            if turn is None and k in models:
                turn = self._by_model(models[k], k)
            elif turn is None and k in in_epochs:
                turn = self._in_epoch(k)
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
        found = self._in_short(k)
        if found is None:
            return None
        turn, before = found
        rest = header + model.prompt_more
        origin, own = before + len(header), turn.rendered.text  # here `start` is `origin`
        n_prompt = before + len(rest)
        if turn.prompt_text[before:] != rest or own[:before] != turn.prompt_text[:before]:
            return None
        if turn.fit is TurnFit.PARTED:
            if turn.parts_at is None or turn.parts_at < before:
                return None
            fit, parts_at = TurnFit.PARTED, turn.parts_at - origin + start
        else:
            tail = own[origin : turn.end]
            n_same = common_prefix(tail, text[start : start + len(tail)])
            if n_same == len(tail):
                return _placed(turn, k, self._whole, start - origin, n_prompt)
            fit, parts_at = TurnFit.REWRITTEN, start + n_same
        return replace(
            turn,
            message=k,
            fit=fit,
            parts_at=parts_at,
            prompt=self._whole,
            prompt_end=start,
            prompt_more=model.prompt_more,
        )

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

    def _in_short(self, k: int) -> tuple[Turn, int] | None:
        """Return the turn of message k in a short conversation, and where its header begins there.

        `None` when there is no such.
        """
        before = self._turn_before(k)
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
        edges = short.edges.get(len(kept) - 1)
        if edges is None or turn.rendered is not short.whole:
            return None
        return replace(turn, rendered=turn.rendered.renumbered(kept)), edges.before

    def _in_epoch(self, k: int) -> Turn | None:
        """Return the turn of message k in the conversation as it was before the user went on.

        Or before the policy's last message to the user: some templates drop thoughts then.
        """
        at = bisect_left(self._users, k)
        if at == 0:
            return None
        first, end = self._users[at - 1], [*self._users[at : at + 1], len(self._messages)][0]
        if self._epoch[0] != end:
            answer = self._turn_before(end)
            found = self._epoch_turns(first, answer, first)
            if end < len(self._messages):
                found |= self._epoch_turns(first, end, answer)
            self._epoch = (end, found)
        return self._epoch[1].get(k)

    def _epoch_turns(self, first: int, end: int, wanted: int) -> dict[int, Turn]:
        """Return turns of a conversation that ends earlier, by their message.

        Args:
            first: the message of the user before them.
            end: the first message that is left out.
            wanted: the message from which on turns are wanted.
        """
        before = self._turn_before(first)
        head = range(self._n_head if before >= self._n_head else 0)
        kept = [*head, *range(before if head else 0, end)]
        if end <= wanted:
            return {}
        messages = [self._messages[i] for i in kept]
        start = len(kept) - (end - wanted)
        try:
            short = _Turns(self._template, messages, self._tokenizer, self._setting, start)
            turns = list(short.all())
        except TrajkitError:
            return {}
        found = {}
        spliced = splice(self._whole, short._whole.renumbered(kept), first)
        for turn in turns if spliced is not None else ():
            at_place = spliced
            if turn.prompt is not short._whole:
                at_place = splice(self._whole, turn.prompt.renumbered(kept), first)
            if at_place is not None:
                found[kept[turn.message]] = moved_turn(turn, *at_place, kept, self._whole)
        return found

    def _turn_before(self, k: int) -> int:
        at = bisect_left(self._policy, k)
        return self._policy[at - 1] if at else 0


def _placed(turn: Turn, k: int, whole: Rendered, moved: int, n_prompt: int) -> Turn:
    """Return a turn of a short conversation as the whole text holds it: all was written so."""
    return replace(
        turn,
        message=k,
        fit=TurnFit.SAME,
        prompt=whole,
        prompt_end=n_prompt + moved,
        prompt_more="",
        rendered=whole,
        start=turn.start + moved,
        text_start=turn.text_start + moved,
        end=turn.end + moved,
        stop=None if turn.stop is None else (turn.stop[0] + moved, turn.stop[1] + moved),
        parts_at=None,
    )


def _is_same(a: Turn | None, b: Turn) -> bool:
    """Return whether two turns tell the same, whichever texts they tell it of."""
    return a is not None and _shape(a) == _shape(b)


def _shape(turn: Turn) -> _Shape:
    return (
        turn.message,
        turn.fit,
        turn.prompt_text,
        turn.action_text,
        turn.text_start - turn.start,
        None if turn.stop is None else turn.stop[0] - turn.start,
        turn.parts_at,
    )
