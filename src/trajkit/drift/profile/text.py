"""The risks of data that hold text alone: nothing in them can be measured."""

from __future__ import annotations

from collections.abc import Iterable

from trajkit.drift.profile.joins import join_facts
from trajkit.drift.profile.report import template_facts_of
from trajkit.drift.profile.traits import Fact, Grade
from trajkit.errors import TrajkitError
from trajkit.markup import Markup, choose
from trajkit.records import Trajectory
from trajkit.template import ChatTemplate, Setting
from trajkit.tokenizer import Tokenizer


def text_risks(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    markups: Iterable[Markup],
    setting: Setting | None = None,
) -> tuple[Fact, ...]:
    """Return the risks where texts are joined and rendered.

    Args:
        tokenizer: the one that would make their ids.
        template: `None` where the data hold no messages, or there is none.
        markups: the tag profiles that the data are written with.
        setting: what the template is given besides; without a clock, a fixed one is taken.

    Raises:
        RefusedError: R105 when the template leaves its sandbox or goes over a limit.
    """
    facts = (*join_facts(tokenizer, markups), *template_facts_of(tokenizer, template, setting))
    return tuple(fact for fact in facts if fact.n and fact.grade is Grade.RISK)


def markups_of(trajectories: Iterable[Trajectory]) -> list[Markup]:
    """Return the tag profiles that trajectories of flat text show, each once."""
    found = (_markup(trajectory) for trajectory in trajectories)
    return list({markup.name: markup for markup in found if markup is not None}.values())


def _markup(trajectory: Trajectory) -> Markup | None:
    last, prompt = trajectory.steps[-1], trajectory.steps[0].text_delta
    state = last.state_before
    if state is None or prompt is None or not state.startswith(prompt):
        return None
    try:
        chosen = choose(state[len(prompt) :] + (last.action_text or ""), prompt=prompt)
    except TrajkitError:
        return None  # whose words these are is not known, so no join is told
    return None if chosen is None else chosen[0]
