"""The rules, one line each: what is looked for, how bad it is, and what else it explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from trajkit.errors import UsageProblem
from trajkit.masks import borders, content, numbers
from trajkit.masks.content import Siblings
from trajkit.masks.findings import Severity, Spot
from trajkit.masks.rows import MaskedRow
from trajkit.masks.texts import RULE_TEXTS, RuleText

Finder: TypeAlias = Callable[[MaskedRow, Siblings], Iterator[Spot]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRule:
    """One rule.

    Attributes:
        find: where one sequence breaks it, given what its siblings train.
        needs_tokenizer: whether it reads control ids or text.
        needs_turns: whether it cannot judge a claim where no turn of the policy is known.
        of_context: whether it also holds where context is trained on purpose.
        hides: rules that this one explains: where it is broken they are not reported.
    """

    code: str
    severity: Severity
    find: Finder
    needs_tokenizer: bool = False
    needs_turns: bool = False
    of_context: bool = False
    hides: tuple[str, ...] = ()

    @property
    def text(self) -> RuleText:
        """Return what the rule is about."""
        return RULE_TEXTS[self.code]


def _alone(
    find: Callable[[MaskedRow], Iterator[Spot]], row: MaskedRow, _: Siblings
) -> Iterator[Spot]:
    return find(row)


def _rule(
    code: str,
    severity: Severity,
    find: Callable[[MaskedRow], Iterator[Spot]],
    *,
    text: bool = False,
    turns: bool = False,
    of_context: bool = False,
    hides: tuple[str, ...] = (),
) -> MaskRule:
    """Return a rule over one sequence by itself; `text`, `turns`: it needs the tokenizer."""
    return MaskRule(
        code=code,
        severity=severity,
        find=partial(_alone, find),
        needs_tokenizer=text or turns,
        needs_turns=turns,
        of_context=of_context,
        hides=hides,
    )


_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
_BORDERS = (
    "generation-prompt-trained",
    "stop-not-trained",
    "stop-of-next",
    "scaffold-trained",
    "turn-partly-trained",
    "context-trained",
    "observation-trained",
    "logprobs-off-mask",
    "unclosed-tag",
)
_EVERYTHING = (
    "generation-prompt-trained",
    "scaffold-trained",
    "context-trained",
    "observation-trained",
    "logprobs-off-mask",
    "unclosed-tag",
)

MASK_RULES: tuple[MaskRule, ...] = (
    _rule("mask-misfit", _ERROR, numbers.mask_misfit, of_context=True),
    MaskRule(
        code="mask-shifted",
        severity=_ERROR,
        find=partial(_alone, borders.mask_shifted),
        needs_turns=True,
        hides=("mask-misplaced", "stop-not-sampled", "padding-trained", *_BORDERS),
    ),
    _rule("mask-misplaced", _ERROR, borders.mask_misplaced, hides=_BORDERS),
    _rule("all-trained", _ERROR, borders.all_trained, turns=True, hides=_EVERYTHING),
    _rule("observation-trained", _ERROR, content.observation_trained, text=True),
    _rule("context-trained", _ERROR, content.context_trained, turns=True),
    _rule("generation-prompt-trained", _ERROR, borders.generation_prompt_trained, turns=True),
    _rule("stop-not-trained", _ERROR, borders.stop_not_trained, text=True),
    _rule("stop-not-sampled", _ERROR, borders.stop_not_sampled, text=True),
    _rule("padding-trained", _ERROR, borders.padding_trained, of_context=True),
    _rule("wrong-label", _ERROR, numbers.wrong_label),
    _rule("placeholder-logprobs", _ERROR, numbers.placeholder_logprobs),
    MaskRule(code="empty-mask", severity=_WARNING, find=content.empty_mask, of_context=True),
    _rule("scaffold-trained", _WARNING, borders.scaffold_trained, turns=True),
    _rule("stop-of-next", _WARNING, borders.stop_of_next, text=True),
    _rule("turn-partly-trained", _WARNING, borders.turn_partly_trained, turns=True),
    _rule("logprobs-off-mask", _WARNING, numbers.logprobs_off_mask),
    _rule("reward-off-end", _WARNING, numbers.reward_off_end),
    MaskRule(code="trained-twice", severity=_WARNING, find=content.trained_twice),
    _rule("forged-observation", _WARNING, content.forged_observation, text=True),
    _rule("unclosed-tag", _WARNING, content.unclosed_tag, text=True),
    _rule("replacement-character", _WARNING, content.replacement_character, text=True),
    MaskRule(code="mixed-versions", severity=_NOTE, find=content.mixed_versions),
    _rule("stop-missing", _NOTE, borders.stop_missing, text=True),
    _rule("turn-not-trained", _NOTE, borders.turn_not_trained, turns=True),
)
"""Worst first."""


def rule_named(code: str) -> MaskRule:
    """Return the rule of that code.

    Raises:
        UsageProblem: U103 with the codes there are.
    """
    for rule in MASK_RULES:
        if rule.code == code:
            return rule
    names = ", ".join(rule.code for rule in MASK_RULES)
    raise UsageProblem("U103", f"there is no mask rule {code}", hint=f"--rule takes {names}")
