"""What control ids mean: which open a turn, which end one, which pad; and a row's turns by them.

The names are those of the published chat templates. A vocabulary that has none of them has no turns
here, and the rules that need turns find nothing in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from trajkit.markup import MARKUPS, Side
from trajkit.records import Ids, Mask, ids_array
from trajkit.tokenizer import Tokenizer

Span: TypeAlias = tuple[int, int]
"""A half-open span of tokens, or of bytes."""

NAMED_OPENERS: dict[str, str] = {
    "<|im_start|>": "\n",
    "<start_of_turn>": "\n",
    "<|start_header_id|>": "<|end_header_id|>",
    "<|im_user|>": "<|im_middle|>",
    "<|im_system|>": "<|im_middle|>",
    "<|im_assistant|>": "<|im_middle|>",
    "<|start|>": "",
}
"""Ids that open a turn whose role is written behind them, and what ends the role; empty: the next
control id, which belongs to the turn's content."""
ROLE_OPENERS: dict[str, str] = {
    "<|system|>": "system",
    "<|user|>": "user",
    "<|assistant|>": "assistant",
    "<|observation|>": "tool",
    "<|tool|>": "tool",
    "<｜User｜>": "user",
    "<｜Assistant｜>": "assistant",
    "<｜tool▁outputs▁begin｜>": "tool",
    "<｜tool▁outputs▁end｜>": "assistant",
    "[INST]": "user",
    "[/INST]": "assistant",
    "[AVAILABLE_TOOLS]": "system",
    "[SYSTEM_PROMPT]": "system",
    "[TOOL_RESULTS]": "tool",
    "[/TOOL_RESULTS]": "assistant",
}
"""Ids that are the role themselves; a line break may follow."""
TURN_STOPS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
)
TEXT_STOPS = ("<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]")
SHARED_STOPS = ("<|user|>", "<|observation|>")
"""What a policy without an end of turn samples: the id that opens the next message (GLM)."""
PADS = ("<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<｜▁pad▁｜>")
POLICY_ROLES = frozenset({"assistant", "model"})
TOOL_ROLES = frozenset({"tool", "function", "ipython", "observation", "environment"})
_ROLE_TOKENS = 32
_RESULTS = re.compile(
    rb"</(?:search|python|code|tool_call)>\s*"
    rb"(?P<seen><(?P<tag>result|interpreter|output)>(?:(?!<(?P=tag)>).)*?</(?P=tag)>)",
    re.DOTALL,
)
"""Tags that are the environment's only right behind a call of the policy's."""
_LABELS = re.compile(rb"^(Thought|Action|Observation)(?: ?\d+)?:", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a row, in tokens: header `[start, low)`, content from `low` to `high` on.

    Attributes:
        low, high: the first and the last token its content may begin at: templates differ in
            whether a line break belongs to the header.
        end: behind its stop, or where the next turn begins.
    """

    role: str
    opener: str
    start: int
    low: int
    high: int
    end: int

    @property
    def is_policy(self) -> bool:
        """Return whether the policy speaks."""
        return self.role.partition(" ")[0] in POLICY_ROLES

    @property
    def is_tool(self) -> bool:
        """Return whether the environment speaks: by its role, or to the policy (Harmony)."""
        return self.role in TOOL_ROLES or " to=assistant" in self.role

    @property
    def can_be_sampled(self) -> bool:
        """Return whether the policy itself may go on with another message of its own (Harmony)."""
        return self.is_policy and self.opener == "<|start|>"


@dataclass(frozen=True, kw_only=True, eq=False)
class Marks:
    """The control ids of one vocabulary by what they do; each ascending.

    Attributes:
        shared: stops that open the next message, where the vocabulary has no end of turn.
        pads: ids that only pad.
        text_ends: stops that end no turn, where the vocabulary has others that do.
    """

    tokenizer: Tokenizer
    openers: Ids
    stops: Ids
    shared: Ids
    pads: Ids
    text_ends: Ids

    @cached_property
    def _stops(self) -> frozenset[int]:
        return frozenset(self.stops.tolist())

    def is_stop(self, token_id: int) -> bool:
        """Return whether an id ends a turn or a text."""
        return token_id in self._stops

    @cached_property
    def shared_set(self) -> frozenset[int]:
        """Return `shared` for asking about one id."""
        return frozenset(self.shared.tolist())

    def text(self, ids: Ids) -> str:
        """Return what ids spell."""
        return self.tokenizer.text(ids)


def marks_of(tokenizer: Tokenizer) -> Marks:
    """Return what the control ids of a tokenizer mean, by their names and its configuration."""
    by_name = {content: token_id for token_id, content in tokenizer.control.items()}
    eos, pad = (_configured(tokenizer, key) for key in ("eos_token", "pad_token"))
    has_turn_stop = any(name in by_name for name in TURN_STOPS)
    is_shared = not has_turn_stop and "<|assistant|>" in by_name
    names = (*TURN_STOPS, *TEXT_STOPS, *([eos] if eos else []))
    stops = {by_name[name] for name in names if name in by_name}
    pads = {by_name[name] for name in (*PADS, *([pad] if pad else [])) if name in by_name}
    openers = [by_name[name] for name in (*NAMED_OPENERS, *ROLE_OPENERS) if name in by_name]
    return Marks(
        tokenizer=tokenizer,
        openers=ids_array(sorted(openers)),
        stops=ids_array(sorted(stops)),
        shared=ids_array(sorted(by_name[n] for n in SHARED_STOPS if n in by_name and is_shared)),
        pads=ids_array(sorted(pads - stops)),
        text_ends=ids_array(
            sorted(by_name[n] for n in TEXT_STOPS if n in by_name and has_turn_stop)
        ),
    )


def turns_of(ids: Ids, marks: Marks, real: Mask | None = None) -> tuple[Turn, ...]:
    """Return the turns of a row by the ids that open and end them; none goes on into padding.

    Args:
        ids: [T].
        marks: what control ids mean.
        real: [T] False for padding; `None` where there is none.
    """
    opens = np.isin(ids, marks.openers)
    starts = np.flatnonzero(opens if real is None else opens & real).tolist()
    stops = np.flatnonzero(np.isin(ids, marks.stops))
    padding = np.flatnonzero(np.zeros(len(ids)) if real is None else ~real)
    turns = []
    for start, behind in pairwise([*starts, len(ids)]):
        pad = int(np.searchsorted(padding, start))
        following = min(behind, int(padding[pad])) if pad < len(padding) else behind
        role, low, high = _header(ids, start, following, marks)
        spot = int(np.searchsorted(stops, low))
        is_stopped = spot < len(stops) and int(stops[spot]) < following
        end = int(stops[spot]) + 1 if is_stopped else following
        opener = marks.tokenizer.control[int(ids[start])]
        turns.append(Turn(role=role, opener=opener, start=start, low=low, high=high, end=end))
    return tuple(turns)


def _header(ids: Ids, start: int, following: int, marks: Marks) -> tuple[str, int, int]:
    """Return the role of the turn that opens at `start`, and where its content may begin."""
    tokenizer = marks.tokenizer
    opener = tokenizer.control[int(ids[start])]
    role = ROLE_OPENERS.get(opener)
    at = start + 1
    if role is not None:
        return role, at, _after_break(ids, at, following, marks)
    last = min(following, at + _ROLE_TOKENS)
    closer = NAMED_OPENERS[opener]
    name = b""
    while at < last:
        token_id = int(ids[at])
        piece = tokenizer.token_bytes(token_id)
        if closer == "" and token_id in tokenizer.control:
            return name.decode("utf-8", "replace").strip().lower(), at, at
        at += 1
        head, found, _ = piece.partition(closer.encode() or b"\0")
        name += head
        if found:
            low = at if closer == "\n" else _after_break(ids, at, following, marks)
            return name.decode("utf-8", "replace").strip().lower(), low, low
    return name.decode("utf-8", "replace").strip().lower(), at, at


def _after_break(ids: Ids, at: int, following: int, marks: Marks) -> int:
    """Return the place behind a token of line breaks, or the same place where there is none."""
    if at < following and not marks.tokenizer.token_bytes(int(ids[at])).strip(b"\n"):
        return at + 1
    return at


def padding_from(ids: Ids, trained: Mask, marks: Marks) -> int:
    """Return where padding begins that no `attention_mask` tells; the row's length without any.

    Padding is one id again and again that nobody trains. A stop said twice or more may be a stop
    and padding behind it; one that ends no turn is padding behind any.
    """
    n = len(ids)
    spots = np.flatnonzero(trained)
    low = int(spots[-1]) + 1 if len(spots) else 0
    if low >= n:
        return n
    others = np.flatnonzero(ids[low:] != ids[-1])
    start = low + (int(others[-1]) + 1 if len(others) else 0)
    if ids[-1] in marks.pads:
        return start
    if not marks.is_stop(int(ids[-1])):
        return n
    is_end_of_text = ids[-1] in marks.text_ends and bool(np.isin(ids, marks.openers).any())
    return start if is_end_of_text else start + 1


def environment_spans(pieces: list[bytes]) -> list[Span]:
    """Return the spans of tokens that tags or labels give to the environment, ascending.

    A pair is a closing tag and the nearest opening one before it, so that a tag which a prompt only
    mentions pairs with nothing. A token belongs to the span that its first byte lies in.
    """
    data = b"".join(pieces)
    found = [match.span() for match in _PAIRS.finditer(data)]
    found += [match.span("seen") for match in _RESULTS.finditer(data)]
    labels = list(_LABELS.finditer(data))
    ends = [label.start() for label in labels[1:]] + [len(data)]
    for before, label, end in zip(labels, labels[1:], ends[1:], strict=False):
        if (before[1], label[1]) == (b"Action", b"Observation"):
            found.append((label.start(), end))
    if not found:
        return []
    starts = np.cumsum([0, *map(len, pieces[:-1])])
    spots = np.searchsorted(starts, np.array(sorted(found)), side="left")
    return [(left, right) for left, right in spots.tolist() if right > left]


def unclosed_tag(data: bytes) -> tuple[str, int] | None:
    """Return the tag of the policy that a text opens and never closes, and the byte it begins at.

    What stands inside a tag is text. A tag in the middle of a line may be one that prose mentions:
    only one at the start of a line, or right behind another tag, is sure to open.
    """
    opened: tuple[bytes, int] | None = None
    for match in _POLICY_TAGS.finditer(data):
        if opened is None and not match["slash"]:
            if _begins(data, match.start()):
                opened = match["name"], match.start()
        elif opened is not None and match["slash"] and match["name"] == opened[0]:
            opened = None
    return None if opened is None else (f"<{opened[0].decode()}>", opened[1])


def _begins(data: bytes, at: int) -> bool:
    """Return whether nothing but blanks stands between a byte and its line's start or a tag."""
    while at and data[at - 1] in b" \t":
        at -= 1
    return not at or data[at - 1] in b"\n>"


def _configured(tokenizer: Tokenizer, key: str) -> str | None:
    """Return the token that `tokenizer_config.json` names, written as text or as an object."""
    value = tokenizer.config.get(key)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _pairs() -> re.Pattern[bytes]:
    tags = {
        (tag.open, tag.close)
        for markup in MARKUPS
        for tag in markup.tags
        if tag.writer is Side.ENVIRONMENT and tag.close is not None
    }
    parts = [
        rb"%(open)s(?:(?!%(open)s).)*?%(close)s"
        % {b"open": re.escape(left.encode()), b"close": re.escape((right or "").encode())}
        for left, right in sorted(tags)
    ]
    return re.compile(b"|".join(parts), re.DOTALL)


def _policy_tags() -> re.Pattern[bytes]:
    names = {
        tag.open.strip("<>")
        for markup in MARKUPS
        for tag in markup.tags
        if tag.writer is Side.POLICY and tag.close == f"</{tag.open.strip('<>')}>"
    }
    name = b"|".join(re.escape(name.encode()) for name in sorted(names))
    return re.compile(rb"<(?P<slash>/?)(?P<name>%s)>" % name)


_PAIRS = _pairs()
_POLICY_TAGS = _policy_tags()
