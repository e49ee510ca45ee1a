"""A raw trajectory into steps: prompts as parent + keep + delta, rewards placed, spans named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trajkit.errors import InputError, Place
from trajkit.formats.raw import RawStep, RawTrajectory, Sampling, is_truncated
from trajkit.ingestion.flat import text_fields
from trajkit.ingestion.made import MadeIds
from trajkit.ingestion.prefix import Growth, PrefixTree
from trajkit.ingestion.spelling import Speller
from trajkit.records import (
    ActionSource,
    Ids,
    LogprobKind,
    PromptSource,
    RewardPart,
    Segment,
    SegmentKind,
    Step,
    Trajectory,
)
from trajkit.safe.json import dumps
from trajkit.tokenizer import Tokenizer

_NOTHING: Ids = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a record was read."""

    format: str
    file: str
    record: int
    place: Place


def to_trajectory(
    raw: RawTrajectory,
    trajectory_id: str,
    source: Source,
    tokenizer: Tokenizer | None,
    made: MadeIds | None = None,
) -> Trajectory:
    """Return the trajectory of a source record; ids are kept as they are.

    Args:
        raw: what the format read.
        trajectory_id: the source's id, or the one made for it.
        source: where it was read.
        tokenizer: names ids in text; without it the text columns stay null.
        made: ids made from its text, where that was asked for.

    Raises:
        InputError: I304 when the tokenizer does not know an id.
    """
    builder = _Builder(raw, trajectory_id, source, tokenizer, made)
    return Trajectory(trajectory_id=trajectory_id, steps=tuple(builder.steps()))


class _Builder:
    """The walk over one trajectory's calls: what was seen so far decides what each step adds."""

    def __init__(
        self,
        raw: RawTrajectory,
        trajectory_id: str,
        source: Source,
        tokenizer: Tokenizer | None,
        made: MadeIds | None,
    ) -> None:
        self._raw = raw
        self._id = trajectory_id
        self._source = source
        self._tokenizer = tokenizer
        self._speller = None if tokenizer is None else Speller(tokenizer)
        self._tree = PrefixTree()
        self._done: list[Step] = []
        self._n_messages = 0
        self._made = made
        self._texts = None if raw.flat is None else text_fields(raw.flat)
        self._has_step_rewards = any(call.reward is not None for call in raw.steps)

    def steps(self) -> Iterator[Step]:
        """Yield the steps in order; a record without a call is one excluded row."""
        if not self._raw.steps:
            yield self._no_step()
            return
        for index, call in enumerate(self._raw.steps):
            step = self._step(index, call)
            self._done.append(step)
            yield step

    def _step(self, index: int, call: RawStep) -> Step:
        is_last = index == len(self._raw.steps) - 1
        grown = self._grown(index, call)
        return Step(
            **self._common(index),
            **grown,
            **self._messages(call, goes_on=self._goes_on(grown)),
            is_terminal=is_last,
            end_reason=self._raw.end_reason if is_last else None,
            **self._action_text(call, grown),
            observation=call.observation,
            observations=call.observations,
            reward=self._reward(call, is_last=is_last),
            rewards=self._reward_parts(is_last=is_last),
            finish_reason=call.finish_reason,
            rollout_logprobs=call.logprobs,
            logprob_kind=None if call.logprobs is None else LogprobKind.UNKNOWN,
            source_mask=call.source_mask,
            advantages=call.advantages,
            token_rewards=call.token_rewards,
            policy_version=call.policy_version,
            tools_json=self._raw.tools_json if index == 0 else None,
            extra_json=self._extra(index, call, is_last=is_last),
        )

    def _common(self, index: int) -> dict[str, Any]:
        """Return what a trajectory's steps have in common, and what a call may say of its own."""
        raw, source = self._raw, self._source
        sampling = self._sampling(index)
        return {
            "trajectory_id": self._id,
            "step_index": index,
            "group_id": raw.group_id,
            "task_id": raw.task_id,
            "agent": raw.agent,
            "model": sampling.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "source_format": source.format,
            "source_file": source.file,
            "source_record": source.record,
        }

    def _sampling(self, index: int) -> Sampling:
        """Return how a step was sampled: as its call says, else as the record does."""
        own = self._raw.steps[index].sampling if self._raw.steps else None
        return self._raw.sampling if own is None else self._raw.sampling.overruled_by(own)

    def _grown(self, index: int, call: RawStep) -> dict[str, Any]:
        """Return the prompt as parent, keep and delta, in ids and in text, with its segments."""
        last = self._done[-1] if self._done else None
        fields: dict[str, Any] = {
            "parent": last if call.has_messages else None,
            "action_source": ActionSource.NONE,
            "prompt_source": PromptSource.NONE,
            "is_truncated": is_truncated(call.finish_reason)
            if call.is_truncated is None
            else call.is_truncated,
        }
        if self._texts is not None:
            ids = {} if self._made is None else self._made.steps[index]
            return fields | {"parent": last} | self._texts[index] | ids
        if self._made is not None:
            return fields | {"parent": last} | self._made.steps[index]
        if call.action_ids is not None:
            fields |= {"action_source": call.action_source, "action_tokens": call.action_ids}
        if call.prompt_ids is None:
            return fields
        action = _NOTHING if call.action_ids is None else call.action_ids
        growth = self._tree.add(index, call.prompt_ids, action)
        parent = None if growth.parent is None else self._done[growth.parent]
        delta = call.prompt_ids[growth.keep :]
        fields |= {
            "parent": parent,
            "prompt_source": PromptSource.RECORDED,
            "prompt_keep": growth.keep,
            "prompt_delta": delta,
            "prompt_len": len(call.prompt_ids),
            "segments": self._segments(growth, delta, call),
            "tail_tokens": call.tail_ids,
        }
        if self._speller is not None:
            tail = _NOTHING if call.tail_ids is None else call.tail_ids
            self._check_vocabulary(index, growth.keep, delta, action, tail)
            if call.tail_ids is not None:
                fields["text_tail"] = self._speller.tokenizer.text(tail)
            keep, text = self._speller.delta(index, parent, growth.keep, delta)
            fields |= {"text_keep": keep, "text_delta": text}
            fields["tokenizer"] = self._speller.tokenizer.name
        return fields

    def _check_vocabulary(self, index: int, keep: int, *parts: Ids) -> None:
        """Raise I304 at the first id of delta, action or tail that is not in the vocabulary."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return
        for name, first, ids in zip(("prompt", "action", "tail"), (keep, 0, 0), parts, strict=True):
            spot = tokenizer.first_unknown(ids)
            if spot is not None:
                raise InputError(
                    "I304",
                    f"{name} id {ids[spot]} (position {first + spot}) is outside the vocabulary "
                    f"of {tokenizer.name} ({tokenizer.n_vocab:,} ids)",
                    place=replace(self._source.place, trajectory_id=self._id, step_index=index),
                    hint="give the tokenizer of the model that sampled the data with -t",
                )

    def _segments(self, growth: Growth, delta: Ids, call: RawStep) -> tuple[Segment, ...]:
        """Return what can be told from ids alone: prompt or context, then text and its stop."""
        kind = SegmentKind.PROMPT if growth.parent is None else SegmentKind.CONTEXT
        spans = [Segment(kind, 0, len(delta))]
        if call.action_ids is not None:
            start, end = len(delta), len(delta) + len(call.action_ids)
            stop = end - 1 if self._ends_in_control(call) else end
            spans.append(Segment(SegmentKind.TEXT, start, stop))
            spans.append(Segment(SegmentKind.STOP, stop, end))
        return tuple(span for span in spans if span.end > span.start)

    def _ends_in_control(self, call: RawStep) -> bool:
        ids = call.action_ids
        if ids is None or not len(ids) or self._tokenizer is None:
            return False
        return not is_truncated(call.finish_reason) and int(ids[-1]) in self._tokenizer.control

    def _action_text(self, call: RawStep, grown: dict[str, Any]) -> dict[str, Any]:
        """Return what the action's ids spell, else the source's own words."""
        if "action_text" in grown:
            return {}
        if call.action_ids is None or self._tokenizer is None:
            return {"action_text": call.action_text}
        return {"action_text": self._tokenizer.text(call.action_ids)}

    def _goes_on(self, grown: dict[str, Any]) -> bool:
        """Return whether a prompt goes on from the previous step; a branch or a retry does not."""
        parent: Step | None = grown["parent"]
        if parent is None or parent is not self._done[-1]:
            return False
        n_ids = grown.get("prompt_len")
        return n_ids is None or not n_ids == grown["prompt_keep"] == parent.prompt_len

    def _messages(self, call: RawStep, *, goes_on: bool) -> dict[str, Any]:
        """Return the messages since the previous action, and the policy's own.

        How many of its parent's a prompt keeps is known only where it goes on from the previous
        step; the conversation is the messages of all steps in order, in any case.
        """
        if not call.has_messages:
            return {}
        keep = self._n_messages if goes_on else None
        self._n_messages += len(call.messages_added) + 1
        return {
            "messages_keep": keep,
            "messages_json": dumps(list(call.messages_added)),
            "action_message_json": dumps(call.action_message),
        }

    def _reward(self, call: RawStep, *, is_last: bool) -> float | None:
        if self._has_step_rewards:
            return call.reward
        return self._raw.reward if is_last else None

    def _reward_parts(self, *, is_last: bool) -> tuple[RewardPart, ...] | None:
        """Return the trajectory's reward by name where the steps have rewards of their own."""
        if not is_last or self._raw.reward is None or not self._has_step_rewards:
            return None
        return (RewardPart(name="trajectory", value=self._raw.reward, kind="outcome"),)

    def _extra(self, index: int, call: RawStep, *, is_last: bool) -> str | None:
        """Return what nobody mapped, by where it stood, and what is odd about ids made here."""
        found = {
            "record": self._raw.extra if index == 0 else {},
            "call": call.extra,
            "messages_after": list(self._raw.messages_after) if is_last else [],
            "sampling": {} if call.logprobs is None else self._sampling(index).altering,
            **({} if self._made is None else self._made.notes[index]),
        }
        known = {place: value for place, value in found.items() if value}
        return dumps(known) if known else None

    def _no_step(self) -> Step:
        raw = self._raw
        return Step(
            **self._common(0),
            is_terminal=True,
            end_reason=raw.end_reason,
            action_source=ActionSource.NONE,
            prompt_source=PromptSource.NONE,
            reward=raw.reward,
            messages_json=dumps(list(raw.messages_after)) if raw.messages_after else None,
            tools_json=raw.tools_json,
            extra_json=dumps({"record": raw.extra}) if raw.extra else None,
            exclude_reason="no_step",
        )
