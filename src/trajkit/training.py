"""Which tokens a loss counts: one policy by name, a pure function of a sequence and its spans.

`action_mask` is a fact, the loss mask a choice. What a policy needs to know beyond the recorded
spans (thoughts, answers) is told by tags in the action's own text: a token belongs to the tag that
its first byte lies in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import TypeAlias

import numpy as np

from trajkit.errors import UsageProblem
from trajkit.markup import MARKUPS, Side
from trajkit.records import Mask, SegmentKind, Step
from trajkit.sequence import SequenceStep, Span, TokenSequence
from trajkit.tokenizer import Tokenizer

_Choice: TypeAlias = Callable[["Role"], bool]
_PARTS = frozenset({SegmentKind.THINK, SegmentKind.TOOL_CALL, SegmentKind.ANSWER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a policy knows of a token.

    Attributes:
        step: the step that brought it.
        kind: what it is.
        is_action: whether the policy sampled it.
        beside: the kinds there are in the step's action.
    """

    step: Step
    kind: SegmentKind
    is_action: bool
    beside: frozenset[SegmentKind]


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
        beside = frozenset(span.kind for span in spans if span.is_action)
        for span in spans:
            role = Role(step=place.step, kind=span.kind, is_action=span.is_action, beside=beside)
            mask[span.start : span.end] = policy.counts(role)
    mask.setflags(write=False)
    return mask


def _says_text_only(spans: Sequence[Span]) -> bool:
    """Return whether nothing names the parts of an action."""
    kinds = {span.kind for span in spans if span.is_action}
    return SegmentKind.TEXT in kinds and not kinds & _PARTS


def _by_tag(sequence: TokenSequence, span: Span, tokenizer: Tokenizer) -> Iterator[Span]:
    """Yield the parts of a span of plain action text, by the tags in it; any other span itself."""
    if not span.is_action or span.kind is not SegmentKind.TEXT:
        yield span
        return
    ids = sequence.token_ids[span.start : span.end]
    kinds = kinds_by_tag(tokenizer.pieces(ids))
    if int(ids[-1]) in tokenizer.control:
        kinds[-1] = SegmentKind.STOP
    at = span.start
    for kind, run in groupby(kinds):
        end = at + len(list(run))
        yield replace(span, start=at, end=end, kind=kind)
        at = end


def _needs_tokenizer(place: SequenceStep) -> UsageProblem:
    return UsageProblem(
        "U103",
        "which part of an action is thought or answer is told by its text",
        place=place.step.place,
        hint="give the tokenizer with -t",
    )


def kinds_by_tag(pieces: Sequence[bytes]) -> list[SegmentKind]:
    """Return the kind of each token of an action: of the tag that its first byte lies in.

    Tags are those that the policy writes in a known tag profile; a tag that is not closed goes on
    to the end. The tags themselves belong to what they enclose. Thoughts that the prompt opened end
    at a closing tag without an opening one.
    """
    data = b"".join(pieces)
    starts = np.cumsum([0, *map(len, pieces[:-1])]) if pieces else np.empty(0, dtype=np.int64)
    kinds = [SegmentKind.TEXT] * len(pieces)
    for match in _blocks().finditer(data):
        kind = _kind_of(match)
        first, last = np.searchsorted(starts, match.span(), side="left").tolist()
        kinds[first:last] = [kind] * (last - first)
    return kinds


def _kind_of(match: re.Match[bytes]) -> SegmentKind:
    group = match.lastgroup or ""
    return SegmentKind.THINK if group == "prefilled" else SegmentKind(group.rpartition("_")[0])


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
