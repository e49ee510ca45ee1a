"""Which tokens a loss counts: one policy by name, a pure function of a sequence and its spans.

`action_mask` is a fact, the loss mask a choice. What a policy needs to know beyond the recorded
spans (thoughts, answers) is told by tags in the action's own text (a token belongs to the tag that
its first byte lies in), or by the channels of Harmony messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from trajkit.errors import UsageProblem
from trajkit.markup import MARKUPS, Side
from trajkit.records import Ids, Mask, SegmentKind, Step
from trajkit.sequence import SequenceStep, Span, TokenSequence
from trajkit.tokenizer import Tokenizer

_Choice: TypeAlias = Callable[["Role"], bool]
_PARTS = frozenset({SegmentKind.THINK, SegmentKind.TOOL_CALL, SegmentKind.ANSWER})
_CHANNELS = {"analysis": SegmentKind.THINK, "final": SegmentKind.ANSWER}
"""What a Harmony channel holds; a message to somebody is a call on any channel."""
_HARMONY_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER_TOKENS = 32
Part: TypeAlias = tuple[SegmentKind, int, int]
"""A kind, and the half-open span of tokens of an action that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a policy knows of a token.

    Attributes:
        step: the step that brought it.
        kind: what it is.
        is_action: whether the policy sampled it.
        beside: the kinds there are in the step's action.
        is_last: whether it stands in the last part of that kind.
    """

    step: Step
    kind: SegmentKind
    is_action: bool
    beside: frozenset[SegmentKind]
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPolicy:
    """A choice of trained tokens.

    Attributes:
        name: what `--train` takes.
        meaning: a sentence.
        counts: whether a token counts.
        trains_context: whether it trains what the policy did not sample, on purpose.
        needs_kinds: whether it asks which part of an action is thought, call or answer.
    """

    name: str
    meaning: str
    counts: _Choice
    trains_context: bool = False
    needs_kinds: bool = False


TRAIN_POLICIES: tuple[TrainPolicy, ...] = (
    TrainPolicy(
        name="action",
        meaning="every token that the policy sampled",
        counts=lambda token: token.is_action,
    ),
    TrainPolicy(
        name="last-step",
        meaning="the action of the last step",
        counts=lambda token: token.is_action and token.step.is_terminal,
    ),
    TrainPolicy(
        name="answer",
        meaning="the final answer, where tags mark one, and the stop behind it",
        counts=lambda token: (
            token.is_action
            and token.step.is_terminal
            and token.kind in (SegmentKind.ANSWER, SegmentKind.STOP)
            and token.is_last
            and SegmentKind.ANSWER in token.beside
        ),
        needs_kinds=True,
    ),
    TrainPolicy(
        name="no-think",
        meaning="actions without their thoughts",
        counts=lambda token: token.is_action and token.kind is not SegmentKind.THINK,
        needs_kinds=True,
    ),
    TrainPolicy(
        name="rewarded",
        meaning="the actions of steps whose reward is known",
        counts=lambda token: token.is_action and token.step.reward is not None,
    ),
    TrainPolicy(
        name="observation",
        meaning="what the environment answered, without scaffold and warnings: a world model",
        counts=lambda token: not token.is_action and token.kind is SegmentKind.OBSERVATION,
        trains_context=True,
    ),
    TrainPolicy(
        name="action-observation",
        meaning="actions and observations: a policy loss with a world model beside it",
        counts=lambda token: token.is_action or token.kind is SegmentKind.OBSERVATION,
        trains_context=True,
    ),
    TrainPolicy(
        name="all",
        meaning="every token",
        counts=lambda _: True,
        trains_context=True,
    ),
)
"""The first is the default. `observation` is ECHO's loss on observations (arXiv 2605.24517)."""


def policy_named(name: str) -> TrainPolicy:
    """Return the policy of that name.

    Raises:
        UsageProblem: U103 with the names there are.
    """
    for policy in TRAIN_POLICIES:
        if policy.name == name:
            return policy
    names = ", ".join(policy.name for policy in TRAIN_POLICIES)
    raise UsageProblem("U103", f"--train expects one of {names}, got {name}")


def loss_mask(
    sequence: TokenSequence, policy: TrainPolicy, tokenizer: Tokenizer | None = None
) -> Mask:
    """Return [T] True where a loss counts the token.

    Steps that are excluded, and what a sequence keeps of another, count under no policy.

    Args:
        sequence: the tokens and their spans.
        policy: the choice.
        tokenizer: tells thoughts and answers by their tags where no span names them.

    Raises:
        UsageProblem: U103 when the policy asks for parts of an action that nothing tells.
        InputError: I304 when the tokenizer does not know an id.
    """
    mask = np.zeros(len(sequence.token_ids), dtype=np.bool_)
    by_step: dict[int | None, list[Span]] = {}
    for span in sequence.spans:
        by_step.setdefault(span.step_index, []).append(span)
    for place in sequence.steps:
        spans = by_step.get(place.step.step_index, [])
        if place.step.exclude_reason is not None:
            continue
        if policy.needs_kinds and _says_text_only(spans):
            if tokenizer is None:
                raise _needs_tokenizer(place)
            spans = [part for span in spans for part in _by_tag(sequence, span, tokenizer)]
        last = {span.kind: span for span in spans if span.is_action}
        for span in spans:
            role = Role(
                step=place.step,
                kind=span.kind,
                is_action=span.is_action,
                beside=frozenset(last),
                is_last=last.get(span.kind) is span,
            )
            mask[span.start : span.end] = policy.counts(role)
    mask.setflags(write=False)
    return mask


def _says_text_only(spans: Sequence[Span]) -> bool:
    """Return whether nothing names the parts of an action."""
    kinds = {span.kind for span in spans if span.is_action}
    return SegmentKind.TEXT in kinds and not kinds & _PARTS


def _by_tag(sequence: TokenSequence, span: Span, tokenizer: Tokenizer) -> Iterator[Span]:
    """Yield the parts of a span of plain action text, by what marks them; any other span itself."""
    if not span.is_action or span.kind is not SegmentKind.TEXT:
        yield span
        return
    ids = sequence.token_ids[span.start : span.end]
    before = sequence.token_ids[max(span.start - _HEADER_TOKENS, 0) : span.start]
    parts = _by_channel(before, ids, tokenizer) or list(_by_blocks(ids, tokenizer))
    for kind, start, end in parts:
        yield replace(span, start=span.start + start, end=span.start + end, kind=kind)


def _by_blocks(ids: Ids, tokenizer: Tokenizer) -> Iterator[Part]:
    """Yield the parts of an action by its tags; a control id at its end that is no tag stops it."""
    pieces = tokenizer.pieces(ids)
    n = len(pieces)
    is_stopped = int(ids[-1]) in tokenizer.control and pieces[-1] not in _tags()
    for kind, start, end in blocks_by_tag(pieces):
        left = min(end, n - is_stopped)
        if left > start:
            yield kind, start, left
    if is_stopped:
        yield SegmentKind.STOP, n - 1, n


def _by_channel(before: Ids, ids: Ids, tokenizer: Tokenizer) -> list[Part]:
    """Return the parts of a Harmony action, one a message, the header and the end with it.

    Args:
        before: the ids right before the action, where its first header may begin.
        ids: the action.
        tokenizer: has the control ids `<|channel|>` and `<|message|>`, or nothing is returned.
    """
    named = _harmony_ids(tokenizer)
    if not {"<|start|>", "<|channel|>", "<|message|>"} <= set(named):
        return []
    whole = np.concatenate([before, ids])
    opens = np.flatnonzero(whole == named["<|start|>"])
    ends = np.isin(whole, [named[name] for name in _HARMONY_ENDS if name in named])
    n_before = len(before)
    prior = [at for at in opens.tolist() if at < n_before and not ends[at:n_before].any()]
    starts = [prior[-1] if prior else n_before, *opens[opens >= n_before].tolist()]
    bodies = np.flatnonzero(whole == named["<|message|>"])
    parts: list[Part] = []
    for start, end in pairwise([*dict.fromkeys(starts), len(whole)]):
        spot = int(np.searchsorted(bodies, start))
        body = int(bodies[spot]) if spot < len(bodies) and bodies[spot] < end else end
        kind = _kind_of_header(whole[start:body], named["<|channel|>"], tokenizer)
        if end > n_before:
            parts.append((kind, max(start - n_before, 0), end - n_before))
    return parts


@lru_cache(maxsize=8)
def _harmony_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the control ids of Harmony that a vocabulary has, by name."""
    names = {"<|start|>", "<|channel|>", "<|message|>", *_HARMONY_ENDS}
    return {name: token_id for token_id, name in tokenizer.control.items() if name in names}


def _kind_of_header(header: Ids, channel: int, tokenizer: Tokenizer) -> SegmentKind:
    """Return what a Harmony message is; plain text where its channel is none that is known."""
    at = np.flatnonzero(header == channel)
    name = tokenizer.text(header[at[-1] + 1 :]).split() if len(at) else []
    if " to=" in f" {tokenizer.text(header)}":
        return SegmentKind.TOOL_CALL
    return _CHANNELS.get(name[0].partition("<|")[0] if name else "", SegmentKind.TEXT)


def _needs_tokenizer(place: SequenceStep) -> UsageProblem:
    return UsageProblem(
        "U103",
        "which part of an action is thought or answer is told by its text",
        place=place.step.place,
        hint="give the tokenizer with -t",
    )


def kinds_by_tag(pieces: Sequence[bytes]) -> list[SegmentKind]:
    """Return the kind of each token of an action, as `blocks_by_tag` parts it."""
    return [kind for kind, start, end in blocks_by_tag(pieces) for _ in range(start, end)]


def blocks_by_tag(pieces: Sequence[bytes]) -> Iterator[Part]:
    """Yield the parts of an action, by the tag that the first byte of a token lies in.

    Tags are those that the policy writes in a known tag profile; a tag that is not closed goes on
    to the end. The tags themselves belong to what they enclose. Thoughts that the prompt opened end
    at a closing tag without an opening one.
    """
    data = b"".join(pieces)
    starts = np.cumsum([0, *map(len, pieces[:-1])]) if pieces else np.empty(0, dtype=np.int64)
    at = 0
    for match in _blocks().finditer(data):
        first, last = np.searchsorted(starts, match.span(), side="left").tolist()
        for kind, start, end in ((SegmentKind.TEXT, at, first), (_kind_of(match), first, last)):
            if end > start:
                yield kind, start, end
        at = max(at, last)
    if len(pieces) > at:
        yield SegmentKind.TEXT, at, len(pieces)


def _kind_of(match: re.Match[bytes]) -> SegmentKind:
    group = match.lastgroup or ""
    return SegmentKind.THINK if group == "prefilled" else SegmentKind(group.rpartition("_")[0])


@lru_cache(maxsize=1)
def _tags() -> frozenset[bytes]:
    """Return the tags of the policy, opening and closing."""
    own = [tag for markup in MARKUPS for tag in markup.tags if tag.writer is Side.POLICY]
    return frozenset(text.encode() for tag in own for text in (tag.open, tag.close) if text)


@lru_cache(maxsize=1)
def _blocks() -> re.Pattern[bytes]:
    """Return a pattern of what the policy's tags enclose, in groups by kind."""
    tags = {
        (tag.open, tag.close): tag.kind
        for markup in MARKUPS
        for tag in markup.tags
        if tag.writer is Side.POLICY and tag.close is not None
    }
    parts = [
        rb"(?P<%s>%s.*?(?:%s|\Z))"
        % (
            f"{kind.value}_{number}".encode(),
            re.escape(opening.encode()),
            re.escape((closing or "").encode()),
        )
        for number, ((opening, closing), kind) in enumerate(tags.items())
    ]
    prefilled = rb"(?P<prefilled>\A(?:(?!<think>).)*?</think>)"
    return re.compile(b"|".join([*parts, prefilled]), re.DOTALL)
