"""What a profile can tell: each trait with its grade and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

Example: TypeAlias = Mapping[str, Any]
"""One place where a trait shows, as flat JSON values."""
Probe: TypeAlias = tuple["Trait", Example | None]
"""A trait that was looked for, and where it shows; `None` where it does not."""

_SHOWN = 8
"""Examples a fact keeps."""


class Grade(StrEnum):
    """What a trait does to data that are tokenised again."""

    RISK = "risk"
    """ids, text or structure can come out otherwise"""
    NOTE = "note"
    """good to know when ids are joined"""


class Trait(StrEnum):
    """One thing a tokenizer or a chat template may do."""

    UNREACHABLE = "unreachable ids"
    UNREACHABLE_INSIDE = "unreachable ids inside a text"
    SAME_BYTES = "ids with equal bytes"
    NOT_UTF8 = "ids that are no UTF-8 alone"
    FORGED_SPECIAL = "special tokens that text forges"
    FORGED_PLAIN = "plain added tokens that text forges"

    COMPOSED = "Unicode normalised"
    LOWERED = "letters lowered"
    SPACED = "white space changed"
    PREFIXED = "a space put in front"
    UNKNOWN = "text lost to the unknown token"
    CHANGED = "text changed otherwise"
    DECODE_STRIPS = "leading space lost in decoding"
    DECODE_CHANGES = "decoding changes text otherwise"
    CLEANS_UP = "spaces cleaned up by loaders"
    SPLIT_CHARACTER = "characters split into bytes"
    FRAMES = "special tokens added around a text"
    UNSETTLED_FRAME = "loaders add other special tokens"

    STRADDLES = "boundary merges"

    REFUSES = "conversations refused"
    NOT_PREFIX = "next prompt does not keep the action"
    NOT_VERBATIM = "action written otherwise than sampled"
    PROMPT_NOT_KEPT = "generation prompt not kept"
    HISTORY_CHANGED = "history written anew"
    THINKING_DROPPED = "reasoning dropped from history"
    THINKING_IGNORED = "reasoning never written"
    EMPTY_THINKING = "empty reasoning written"
    TRIMS = "action trimmed"
    TEXT_DROPPED = "text dropped"
    CALLS_DROPPED = "tool calls dropped"
    STOP_SWAPPED = "end of turn swapped"
    NO_STOP = "no end of turn"
    STOP = "end of turn"
    AFTER_TURN = "text after the end of turn"
    WRITES_AHEAD = "text in front of an action's own"
    CLOSES_CUT = "end of turn written behind a cut action"
    CONTEXT_CHANGED = "words of others changed"
    DEFAULT_SYSTEM = "default system prompt"
    CLOCK = "depends on the clock"
    ESCAPED_ARGUMENTS = "arguments escaped twice"
    REWRITTEN_ARGUMENTS = "arguments no longer JSON as sampled"
    REPRINTED_ARGUMENTS = "arguments printed anew"
    ARGUMENTS_REFUSED = "arguments refused"
    NULL_CONTENT = "null content not taken"
    DOUBLED_BOS = "begin token doubled"


_RISK, _NOTE = Grade.RISK, Grade.NOTE

TRAITS: Mapping[Trait, tuple[Grade, str]] = {
    Trait.UNREACHABLE: (
        _RISK,
        "a sampled id of these comes back as other ids when its text is encoded",
    ),
    Trait.UNREACHABLE_INSIDE: (
        _RISK,
        "the same behind a line break, where no space is put in front",
    ),
    Trait.SAME_BYTES: (_RISK, "text cannot tell these ids apart: encoding gives one of them"),
    Trait.NOT_UTF8: (_NOTE, "decoded alone, or cut behind one, text holds U+FFFD"),
    Trait.FORGED_SPECIAL: (
        _RISK,
        "content that spells one becomes a control id, unless it is encoded literally",
    ),
    Trait.FORGED_PLAIN: (
        _RISK,
        "content that spells one becomes its id, and skipping special tokens does not remove it",
    ),
    Trait.COMPOSED: (_RISK, "text that was sampled in another Unicode form is lost by encoding"),
    Trait.LOWERED: (_RISK, "upper case is lost by encoding"),
    Trait.SPACED: (_RISK, "white space is lost or changed by encoding"),
    Trait.PREFIXED: (_RISK, "each piece that is encoded alone gains a space in front"),
    Trait.UNKNOWN: (_RISK, "characters outside the vocabulary are lost by encoding"),
    Trait.CHANGED: (_RISK, "encoding gives the ids of another text"),
    Trait.DECODE_STRIPS: (_RISK, "pieces that are decoded one by one lose their spaces"),
    Trait.DECODE_CHANGES: (_RISK, "decoded text is not what the ids spell"),
    Trait.CLEANS_UP: (
        _RISK,
        "loaders that clean up spaces decode to text that gives other ids",
    ),
    Trait.SPLIT_CHARACTER: (_NOTE, "an action that is cut inside such a character is no UTF-8"),
    Trait.FRAMES: (
        _NOTE,
        "encoding pieces with add_special_tokens puts these around each of them",
    ),
    Trait.UNSETTLED_FRAME: (
        _RISK,
        "tokenizer_config.json and tokenizer.json disagree: ids depend on the loader",
    ),
    Trait.STRADDLES: (
        _RISK,
        "encoding action and observation as one text merges across the end of the action",
    ),
    Trait.REFUSES: (_NOTE, "such conversations cannot be rendered again"),
    Trait.NOT_PREFIX: (
        _RISK,
        "the next prompt does not start with this prompt and action: ids cannot be appended",
    ),
    Trait.NOT_VERBATIM: (_RISK, "rendering the message gives other text than was sampled"),
    Trait.PROMPT_NOT_KEPT: (
        _RISK,
        "what the policy was prompted with is not what history says it was",
    ),
    Trait.HISTORY_CHANGED: (
        _RISK,
        "messages before an action are written otherwise once more follows",
    ),
    Trait.THINKING_DROPPED: (_RISK, "earlier reasoning is not in later prompts"),
    Trait.THINKING_IGNORED: (_RISK, "the reasoning of a message is left out from the start"),
    Trait.EMPTY_THINKING: (_RISK, "a reasoning block that nobody sampled stands in the text"),
    Trait.TRIMS: (_RISK, "white space that was sampled at the edges of an action is gone"),
    Trait.TEXT_DROPPED: (_RISK, "words of a message are not in the text"),
    Trait.CALLS_DROPPED: (_RISK, "tool calls are not in the text"),
    Trait.STOP_SWAPPED: (_RISK, "the end-of-turn token of an action changes when a turn follows"),
    Trait.NO_STOP: (_RISK, "no token of this tokenizer ends a turn: is the template another's?"),
    Trait.STOP: (_NOTE, "these tokens end an action"),
    Trait.AFTER_TURN: (
        _NOTE,
        "the policy never samples this: it is scaffold, to be put in when ids are appended",
    ),
    Trait.WRITES_AHEAD: (
        _NOTE,
        "it stands between the prompt and the message's words: was it sampled?",
    ),
    Trait.CLOSES_CUT: (_NOTE, "an action cut by a limit gains an end of turn nobody sampled"),
    Trait.CONTEXT_CHANGED: (_NOTE, "observations are not what the environment wrote"),
    Trait.DEFAULT_SYSTEM: (_NOTE, "words that no message holds stand in front of the first"),
    Trait.CLOCK: (_RISK, "the prompt changes from day to day: keep the date of sampling"),
    Trait.ESCAPED_ARGUMENTS: (
        _RISK,
        "arguments that are JSON text become a string in a string: parse them first",
    ),
    Trait.REWRITTEN_ARGUMENTS: (
        _RISK,
        "JSON text is not written as it is, or true and null become Python's",
    ),
    Trait.REPRINTED_ARGUMENTS: (
        _NOTE,
        "parsed arguments come back with the template's own spaces, numbers and escapes",
    ),
    Trait.ARGUMENTS_REFUSED: (_NOTE, "arguments in this form cannot be rendered"),
    Trait.NULL_CONTENT: (_RISK, "a message without content is refused, or its null is written"),
    Trait.DOUBLED_BOS: (
        _RISK,
        "encode rendered text without special tokens, or its first token stands there twice",
    ),
}
"""In the order in which they are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A trait, and how often it shows.

    Attributes:
        trait: what was looked for.
        subject: the tag profile, where each is asked alone.
        n: in how many places it shows.
        n_probed: in how many it was looked for: ids, texts, joins, turns or renders.
        examples: the first places.
    """

    trait: Trait
    subject: str | None = None
    n: int
    n_probed: int
    examples: tuple[Example, ...] = ()

    @property
    def grade(self) -> Grade:
        """Return whether it is a risk."""
        return TRAITS[self.trait][0]

    @property
    def consequence(self) -> str:
        """Return what follows from it."""
        return TRAITS[self.trait][1]

    def to_dict(self) -> dict[str, Any]:
        """Return the fact as JSON output has it."""
        return {
            "trait": self.trait.value,
            "subject": self.subject,
            "grade": self.grade.value,
            "n": self.n,
            "n_probed": self.n_probed,
            "consequence": self.consequence,
            "examples": [dict(example) for example in self.examples],
        }


def count(probes: Iterable[Probe], subject: str | None = None) -> Iterator[Fact]:
    """Yield a fact for each trait that was looked for, in the order of `TRAITS`."""
    found: dict[Trait, list[Example]] = {}
    n_probed: dict[Trait, int] = {}
    for trait, example in probes:
        n_probed[trait] = n_probed.get(trait, 0) + 1
        if example is not None:
            found.setdefault(trait, []).append(example)
    for trait in TRAITS:
        if trait in n_probed:
            examples = found.get(trait, [])
            yield Fact(
                trait=trait,
                subject=subject,
                n=len(examples),
                n_probed=n_probed[trait],
                examples=tuple(_distinct(examples))[:_SHOWN],
            )


def _distinct(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield examples, one that equals the one before left out."""
    last: Example | None = None
    for example in examples:
        if example != last:
            yield example
        last = example
