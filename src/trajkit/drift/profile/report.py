"""A tokenizer, a chat template and tag profiles → `Profile`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from trajkit.drift.profile.joins import join_facts
from trajkit.drift.profile.pipeline import pipeline_facts
from trajkit.drift.profile.traits import Fact, Grade, Trait, count
from trajkit.drift.profile.turns import turn_probes
from trajkit.drift.profile.vocabulary import vocabulary_facts
from trajkit.drift.profile.writing import NOW, writing_probes
from trajkit.markup import MARKUPS, Markup
from trajkit.template import ChatTemplate, Setting
from trajkit.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a tokenizer and a chat template will do.

    Attributes:
        tokenizer: the tokenizer's name.
        fingerprint: of its effective pipeline.
        n_vocab: its ids.
        template: the template's sha256, `None` when none was given.
        facts: all that was looked for, found or not: `tokenizer_facts` and then `template_facts`.
    """

    tokenizer: str
    fingerprint: str
    n_vocab: int
    template: str | None
    tokenizer_facts: tuple[Fact, ...]
    template_facts: tuple[Fact, ...]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Return all facts."""
        return self.tokenizer_facts + self.template_facts

    @property
    def risks(self) -> tuple[Fact, ...]:
        """Return the facts that can change ids, text or structure, and were found."""
        return tuple(fact for fact in self.facts if fact.n and fact.grade is Grade.RISK)

    def fact(self, trait: Trait, subject: str | None = None) -> Fact | None:
        """Return what is known of a trait, `None` when it was not looked for."""
        found = (f for f in self.facts if f.trait is trait and f.subject == subject)
        return next(found, None)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON output has it."""
        return {
            "schema": "trajkit.drift-profile/1",
            "tokenizer": self.tokenizer,
            "fingerprint": self.fingerprint,
            "n_vocab": self.n_vocab,
            "template_sha256": self.template,
            "n_risks": len(self.risks),
            "tokenizer_facts": [fact.to_dict() for fact in self.tokenizer_facts],
            "template_facts": [fact.to_dict() for fact in self.template_facts],
        }


def profile(
    tokenizer: Tokenizer,
    template: ChatTemplate | None = None,
    markups: Iterable[Markup] = MARKUPS,
    setting: Setting | None = None,
) -> Profile:
    """Return what a tokenizer and a chat template will do, without any data.

    The whole vocabulary is encoded once: about a second for 150,000 ids.

    Args:
        tokenizer: the sampler's.
        template: the chat template, where conversations are rendered.
        markups: the tag profiles whose joins are looked at.
        setting: what the template is given besides; without a clock, a fixed one is taken.

    Raises:
        InputError: I102 or I201 when `tokenizer_config.json` is damaged.
        RefusedError: R105 when the template leaves its sandbox or goes over a limit.
    """
    return Profile(
        tokenizer=tokenizer.name,
        fingerprint=tokenizer.fingerprint,
        n_vocab=tokenizer.n_vocab,
        template=None if template is None else template.sha256,
        tokenizer_facts=(
            *vocabulary_facts(tokenizer),
            *pipeline_facts(tokenizer),
            *join_facts(tokenizer, markups),
        ),
        template_facts=template_facts_of(tokenizer, template, setting),
    )


def template_facts_of(
    tokenizer: Tokenizer, template: ChatTemplate | None, setting: Setting | None
) -> tuple[Fact, ...]:
    """Return what was looked for in a template, nothing without one."""
    if template is None:
        return ()
    setting = setting or Setting()
    setting = replace(setting, now=setting.now or NOW)
    asked = (turn_probes, writing_probes)
    return tuple(count(chain.from_iterable(ask(template, tokenizer, setting) for ask in asked)))
