"""Message lists into the fields of steps: as the text a chat template makes, and as its ids.

Step k's prompt is the template over the messages before it, with the generation prompt, encoded as
one text; its action is the policy's own text up to and including its end-of-turn token, encoded by
itself, as a sampler emits it. What a prompt shares with the one before is not encoded again:
control tokens cut text before anything is merged, so up to the last control token of a shared
beginning the ids are shared too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajkit import align
from trajkit.errors import InputError, Place, UsageProblem
from trajkit.formats.chat import POLICY
from trajkit.formats.conversation import Conversation, conversation_of
from trajkit.formats.raw import Format, RawTrajectory, is_truncated
from trajkit.ingestion.kinds import Run, action_runs, context_runs, own_start
from trajkit.ingestion.made import MadeIds, Note
from trajkit.records import ActionSource, Ids, PromptSource, Segment, read_only
from trajkit.template import (
    REASONING,
    ChatTemplate,
    Forged,
    Habits,
    Leaf,
    LiteralText,
    Part,
    Rendered,
    Setting,
    Turn,
    TurnFit,
    encode_literally,
    habits_of,
    shared_text,
    suited,
    turn_spans,
)
from trajkit.tokenizer import Tokenizer

_SHOWN = 80
"""Characters of text in a note."""


def encode_messages(
    talk: Conversation,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    setting: Setting,
    is_cut: Sequence[bool],
) -> MadeIds:
    """Return the ids of a conversation by step.

    Args:
        talk: the messages, in a form the template takes.
        template: makes the text.
        tokenizer: makes ids of it; control tokens only where the template writes them.
        setting: what the template is given besides the messages.
        is_cut: for each step whether a limit cut its action: it has no end-of-turn token then.

    Raises:
        InputError: T106 when the template refuses the conversation, T107 when a message holds
            control text and its place is not known, T102 as in `encode_literally`.
        RefusedError: R105 when the template goes over a limit.
    """
    walk = _Walk(tokenizer, talk.actions[0])
    own = frozenset(talk.actions)  # an assistant's message in a demonstration is none
    turns = (t for t in turn_spans(template, talk.messages, tokenizer, setting) if t.message in own)
    for turn, cut in zip(turns, is_cut, strict=True):
        walk.step(turn, is_cut=cut)
    walk.finish()
    return MadeIds(steps=tuple(walk.steps), notes=tuple(walk.notes))


class MessageRenderer:
    """Makes the ids of message lists with one chat template.

    Attributes:
        used: the template, once a record was rendered with it.
    """

    def __init__(self, template: ChatTemplate | None, setting: Setting) -> None:
        self._template = template
        self._setting = setting
        self._habits: Habits | None = None
        self.used: ChatTemplate | None = None

    def ids_of(
        self, raw: RawTrajectory, form: Format, tokenizer: Tokenizer, place: Place
    ) -> MadeIds | None:
        """Return the ids of a record by step, `None` where it has no message for some step.

        Raises:
            UsageProblem: U103 when there is no chat template.
            InputError: as in `encode_messages`, with the record's place.
        """
        talk = conversation_of(raw, form)
        if talk is None:
            return None
        if self._template is None:
            raise UsageProblem(
                "U103",
                "messages become ids by a chat template, and there is none",
                hint="give --chat-template FILE: the tokenizer's folder has no template",
            )
        self.used = self._template
        self._habits = self._habits or habits_of(self._template)
        setting = replace(self._setting, tools=talk.tools, nulls=self._habits.nulls)
        talk = replace(talk, messages=tuple(suited(talk.messages, self._habits)))
        is_cut = [bool(is_truncated(call.finish_reason)) for call in raw.steps]
        try:
            return encode_messages(talk, self._template, tokenizer, setting, is_cut)
        except InputError as problem:
            raise InputError(
                problem.code, problem.message, place=place, hint=problem.hint
            ) from problem

    def options(self) -> dict[str, Any]:
        """Return what else the ids depend on."""
        now = self._setting.now
        is_dated = self.used is not None and self.used.tells_time
        return {
            "template_kwargs": dict(self._setting.kwargs),
            "now": now.date().isoformat() if is_dated and now is not None else None,
        }


class _Walk:
    """The walk over a conversation's turns: what the step before left decides what is new."""

    def __init__(self, tokenizer: Tokenizer, first_action: int) -> None:
        self._tokenizer = tokenizer
        self._first_action = first_action
        self._ids = _PromptIds(tokenizer)
        self._before: _Sequence | None = None
        self._told: set[tuple[Any, ...]] = set()
        self.steps: list[dict[str, Any]] = []
        self.notes: list[dict[str, list[Note]]] = []

    def step(self, turn: Turn, *, is_cut: bool) -> None:
        """Add the step of a turn."""
        added = turn.rendered.text[turn.start : own_start(turn)]
        turn = replace(turn, start=own_start(turn))
        end = turn.stop[0] if is_cut and turn.stop is not None else turn.end
        action = encode_literally(
            turn.rendered.pieces(self._tokenizer, turn.start, end), self._tokenizer
        )
        before = self._before
        shared = 0 if before is None else before.shared_with(turn)
        token, character = self._ids.cut(shared)
        prompt = encode_literally(turn.prompt_pieces(self._tokenizer, character), self._tokenizer)
        known = self._ids.since(token, () if before is None else before.action_ids)
        n_known = align.common_prefix(known, prompt.ids)
        self._ids.replace(token, character, prompt)
        delta = read_only(prompt.ids[n_known:].copy())
        n_kept = 0 if before is None else before.n_bytes_upto(shared)
        text_delta = _prompt_text(turn, shared)
        self.steps.append(
            {
                "action_source": ActionSource.RETOKENIZED,
                "prompt_source": PromptSource.RENDERED,
                "tokenizer": self._tokenizer.name,
                "prompt_keep": token + n_known,
                "prompt_delta": delta,
                "prompt_len": len(self._ids),
                "action_tokens": action.ids,
                "text_keep": n_kept,
                "text_delta": text_delta,
                "action_text": turn.rendered.text[turn.start : end],
                "segments": (
                    *_segments(
                        context_runs(turn, character, self._first_action),
                        prompt.starts[n_known:] + character,
                        0,
                    ),
                    *_segments(action_runs(turn, end), action.starts + turn.start, len(delta)),
                ),
            }
        )
        self.notes.append(self._notes(turn, character, prompt, action, added))
        self._before = _Sequence(
            turn, end, action.ids, n_bytes=n_kept + len(text_delta.encode("utf-8"))
        )

    def finish(self) -> None:
        """Give the last step what stands behind its action."""
        last = self._before
        if last is None:
            return
        turn = last.turn
        # the whole conversation's text begins with a prompt and action that it does not rewrite
        behind = turn.prompt if turn.fit is TurnFit.SAME else turn.rendered
        if last.end == len(behind.text):
            return
        start = last.end if turn.stop is None else min(turn.stop[0], last.end)
        tail = encode_literally(behind.pieces(self._tokenizer, start), self._tokenizer)
        is_tail = tail.starts + start >= last.end
        step = self.steps[-1]
        origin = len(step["prompt_delta"]) + len(step["action_tokens"])
        runs = context_runs(turn, last.end, self._first_action, rendered=behind)
        step["tail_tokens"] = read_only(tail.ids[is_tail].copy())
        step["text_tail"] = behind.text[last.end :]
        step["segments"] += tuple(_segments(runs, (tail.starts + start)[is_tail], origin))

    def _notes(
        self, turn: Turn, character: int, prompt: LiteralText, action: LiteralText, added: str
    ) -> dict[str, list[Note]]:
        """Return what is odd about a step."""
        told = [
            *(self._forged(one, turn.prompt, character) for one in prompt.forged),
            *(self._forged(one, turn.rendered, turn.start) for one in action.forged),
        ]
        control = [note for place, note in told if place not in self._told]
        self._told.update(place for place, _ in told)
        parted = []
        if turn.fit is TurnFit.PARTED:
            at = turn.parts_at or 0
            parted.append(
                {
                    "prompt": _prompt_text(turn, at)[:_SHOWN],
                    "message": turn.rendered.text[turn.start :][:_SHOWN],
                }
            )
        found = {
            "control_text": control,
            "parted": parted,
            "added": [{"text": added}] if added else [],
            "left_out": self._parts_left_out(turn),
        }
        return {name: notes for name, notes in found.items() if notes}

    def _forged(
        self, forged: Forged, rendered: Rendered, origin: int
    ) -> tuple[tuple[Any, ...], Note]:
        """Return the place of control text, in the message that spells it, and the note of it."""
        at = forged.start + origin
        span = next((s for s in rendered.spans_from(at) if s.start <= at < s.end), None)
        note: Note = {"text": self._tokenizer.control[forged.token_id]}
        if span is not None and span.leaf is not None:
            leaf = rendered.leaves[span.leaf]
            path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in leaf.path)
            note |= {"message": leaf.message, "path": f"${path}"}
            at += span.leaf_start - span.start
        return (note.get("message"), note.get("path"), at), note

    def _parts_left_out(self, turn: Turn) -> list[Note]:
        """Return what the template does not write of the policy's message, and of new ones."""
        last = -1 if self._before is None else self._before.turn.message
        new: list[int | None] = [*([None] if last < 0 else []), *range(last + 1, turn.message)]
        in_prompt, in_action = _left_out(turn.prompt), _left_out(turn.rendered)
        parts = [
            *((one, part) for one in new for part in in_prompt.get(one, ())),
            *((turn.message, part) for part in in_action.get(turn.message, ())),
        ]
        return [{"message": message, "part": part} for message, part in parts]


class _Sequence:
    """A step's prompt and action, which the next prompt may go on from."""

    def __init__(self, turn: Turn, end: int, action_ids: Ids, *, n_bytes: int) -> None:
        self.turn = turn
        self.end = end
        self.action_ids = action_ids
        self._n_bytes = n_bytes
        self._n_characters = turn.prompt_end + len(turn.prompt_more)

    def shared_with(self, turn: Turn) -> int:
        """Return how many characters of a prompt this begins with."""
        same = turn.prompt is self.turn.prompt
        base = min(turn.prompt_end, self.turn.prompt_end) if same else 0
        mine = _prompt_text(self.turn, base) + self._action
        return base + shared_text(mine, _prompt_text(turn, base))

    def n_bytes_upto(self, n_characters: int) -> int:
        """Return the UTF-8 bytes of the first characters of prompt and action."""
        if n_characters <= self._n_characters:
            rest = _prompt_text(self.turn, n_characters)
            return self._n_bytes - len(rest.encode("utf-8"))
        more = self._action[: n_characters - self._n_characters]
        return self._n_bytes + len(more.encode("utf-8"))

    @property
    def _action(self) -> str:
        return self.turn.rendered.text[self.turn.start : self.end]


class _PromptIds:
    """The ids of the latest prompt, and where its control tokens lie in its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._control = tokenizer.control_ids
        self._ids = array("i")
        self._cuts: list[tuple[int, int, int]] = []
        """Of each control token: its index, and its `[start, end)` in the text."""

    def __len__(self) -> int:
        return len(self._ids)

    def cut(self, shared: int) -> tuple[int, int]:
        """Return the last control token inside so many characters: its index and its start."""
        while self._cuts and self._cuts[-1][2] > shared:
            self._cuts.pop()
        return self._cuts[-1][:2] if self._cuts else (0, 0)

    def since(self, token: int, action: Iterable[int]) -> Ids:
        """Return the ids from a token on, and those of the action behind them."""
        return np.array([*self._ids[token:], *action], dtype=np.int32)

    def replace(self, token: int, character: int, found: LiteralText) -> None:
        """Put others in the place of the ids from a token on; their text begins at a character."""
        del self._ids[token:]
        self._ids.extend(found.ids.tolist())
        while self._cuts and self._cuts[-1][0] >= token:
            self._cuts.pop()
        for spot in np.flatnonzero(np.isin(found.ids, self._control)).tolist():
            start, end = int(found.starts[spot]), int(found.ends[spot])
            self._cuts.append((token + spot, character + start, character + end))


def _prompt_text(turn: Turn, start: int) -> str:
    """Return what the policy saw from a character on."""
    if start >= turn.prompt_end:
        return turn.prompt_more[start - turn.prompt_end :]
    return turn.prompt.text[start : turn.prompt_end] + turn.prompt_more


@lru_cache(maxsize=4)
def _left_out(rendered: Rendered) -> dict[int | None, list[str]]:
    """Return the parts of each message that a template does not write; `None`: of the tools."""
    dropped = set(rendered.dropped)
    shown: set[tuple[int | None, str]] = set()
    hidden: dict[tuple[int | None, str], None] = {}
    for number, leaf in enumerate(rendered.leaves):
        name = _part_name(leaf)
        if number not in dropped:
            shown.add((leaf.message, name))
        elif leaf.part is not Part.NAME or (leaf.role == POLICY and leaf.path[-1] == "name"):
            hidden[leaf.message, name] = None
    found: dict[int | None, list[str]] = {}
    for message, name in hidden:
        if name not in ("reasoning", "tools") or (message, name) not in shown:
            found.setdefault(message, []).append(name)
    return found


def _part_name(leaf: Leaf) -> str:
    """Return the part of a message that a string belongs to; reasoning goes by several names."""
    if leaf.message is None:
        return "tools"
    return "reasoning" if leaf.path[0] in REASONING else str(leaf.path[0])


def _segments(runs: Iterable[Run], starts: NDArray[np.int64], origin: int) -> list[Segment]:
    """Return the segments of tokens: each is of the kind in whose text its first byte lies.

    Args:
        runs: characters from which on text is of a kind, ascending.
        starts: [T] the character where each token begins.
        origin: what the first token is counted from.
    """
    borders, kinds = zip(*runs, strict=True) if len(starts) else ((0,), ())
    owners = np.maximum(np.searchsorted(np.asarray(borders), starts, side="right") - 1, 0)
    changes = np.flatnonzero(np.diff(owners)) + 1
    found: list[Segment] = []
    for left, right in pairwise([0, *changes.tolist(), len(owners)] if len(starts) else ()):
        kind, start = kinds[owners[left]], left + origin
        if found and found[-1].kind is kind:
            start = found.pop().start
        found.append(Segment(kind, start, right + origin))
    return found
