"""What a format yields: typed values, ids checked, nothing mapped in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from trajkit.markup import FlatTrajectory
from trajkit.records import ActionSource, EndReason, Floats, Ids, MaskRun, Observation
from trajkit.safe.json import Record

OTHER_SETTINGS: dict[str, tuple[float, float, float]] = {
    "min_p": (0.0, 0.0, 1.0),
    "repetition_penalty": (1.0, 1e-3, 1e3),
    "frequency_penalty": (0.0, -1e3, 1e3),
    "presence_penalty": (0.0, -1e3, 1e3),
}
"""Sampling settings that have no column: the value at which each changes nothing, the least and
the greatest. What is outside is no such setting: rewards are called penalties too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawStep:
    """One policy call as its source tells it; `None` means that the source does not say."""

    prompt_ids: Ids | None = None
    """[P] the whole prompt."""
    action_ids: Ids | None = None
    """[A] what the sampler emitted."""
    logprobs: Floats | None = None
    """[A] recorded by the sampler, NaN where missing."""
    messages_added: tuple[Any, ...] = ()
    """Messages between the previous action and this one, verbatim."""
    action_message: Any = None
    """The policy's own message, verbatim; `None` when the source has none for this call."""
    action_text: str | None = None
    observation: str | None = None
    observations: tuple[Observation, ...] | None = None
    reward: float | None = None
    finish_reason: str | None = None
    sampling: Sampling | None = None
    """How this call was sampled, where the call itself says so."""
    action_source: ActionSource = ActionSource.SAMPLED
    """Where `action_ids` come from, when there are any."""
    tail_ids: Ids | None = None
    """[L] ids behind the action that no later prompt holds."""
    source_mask: tuple[MaskRun, ...] | None = None
    """The source's own mask as runs over what the prompt adds + action + tail."""
    advantages: Floats | None = None
    token_rewards: Floats | None = None
    policy_version: tuple[str, ...] | None = None
    is_truncated: bool | None = None
    """Whether a limit cut the action, where the source says so beside `finish_reason`."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def has_messages(self) -> bool:
        """Return whether the source tells this call as messages."""
        return self.action_message is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How actions were sampled."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    others: dict[str, float] = field(default_factory=dict)
    """What is said of `OTHER_SETTINGS`; the source's keys stay in `extra` as well."""

    def overruled_by(self, own: Sampling) -> Sampling:
        """Return this with what `own` says in place of it."""
        told = {f.name: getattr(own, f.name) for f in fields(own)}
        told["others"] = self.others | own.others
        return replace(self, **{name: value for name, value in told.items() if value is not None})

    @property
    def altering(self) -> dict[str, float]:
        """Return the settings without a column that changed what was sampled from."""
        told = self.others.items()
        return {name: value for name, value in told if value != OTHER_SETTINGS[name][0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTrajectory:
    """One source record: its steps, its whole-record fields, and every key nobody mapped."""

    trajectory_id: str | None = None
    group_id: str | None = None
    task_id: str | None = None
    agent: str | None = None
    reward: float | None = None
    """The whole trajectory's reward, as opposed to the steps'."""
    end_reason: EndReason | None = None
    sampling: Sampling = field(default_factory=Sampling)
    tools_json: str | None = None
    steps: tuple[RawStep, ...]
    messages_after: tuple[Any, ...] = ()
    """Messages after the last action, which no prompt holds; all of them where there is none."""
    extra: dict[str, Any] = field(default_factory=dict)
    flat: FlatTrajectory | None = None
    """The whole of it as one text, where the source keeps it so; its steps are these steps."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """An input format.

    Attributes:
        name: what `--from` takes.
        shape: what a record looks like, in a few words.
        sniff: the reason to believe that a JSON value is of this format, or `None`.
        read: a record into a trajectory; raises `InputError` where it is not what it should be.
        as_chat: a message of the source, or what it has for one, as the chat message that a
            template takes; `None` where the source's messages are no conversation.
    """

    name: str
    shape: str
    sniff: Callable[[object], str | None]
    read: Callable[[Record], RawTrajectory]
    as_chat: Callable[[Any], dict[str, Any]] | None = None


def other_settings(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the keys of an object that are settings without a column."""
    return {
        name: told[name]
        for name, (_, least, greatest) in OTHER_SETTINGS.items()
        if type(told.get(name)) in (int, float) and least <= told[name] <= greatest
    }


def is_truncated(finish_reason: str | None) -> bool | None:
    """Return whether a limit cut the action, `None` where the reason does not say."""
    if finish_reason in ("length", "max_tokens", "max_output_tokens"):
        return True
    whole = ("stop", "eos", "end_turn", "stop_sequence", "tool_calls", "tool_use", "function_call")
    return False if finish_reason in whole else None
