"""The nouns: what a step, a segment and a trajectory are. numpy and nothing else.

Dimension key: P ids of a prompt, A ids of an action, D ids of a prompt's delta, L ids of the tail.
Ids are int32; log-probs are float32 nats with NaN where one is missing; every array is read-only.

A prompt is stored as what it keeps of its parent's prompt + action, and what it adds:

    step 0   prompt = delta                                          parent: none
    step 1   prompt = (prompt 0 + action 0)[:keep] + delta           parent: step 0

Append-only agents keep everything, windows and summaries keep less, retries share a parent. The
table of parents *is* the prefix tree; nothing here needs to know which strategy made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.errors import InputError, Place

Ids: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]


class SegmentKind(StrEnum):
    """What a run of tokens is: the first group stands in prompts and tails, the rest in actions."""

    PROMPT = "prompt"
    SCAFFOLD = "scaffold"
    OBSERVATION = "observation"
    WARNING = "warning"
    HISTORY = "history"
    MEDIA = "media"
    CONTEXT = "context"

    THINK = "think"
    TOOL_CALL = "tool_call"
    ANSWER = "answer"
    TEXT = "text"
    STOP = "stop"
    INSERTED = "inserted"


class ActionSource(StrEnum):
    """Where a step's action ids come from; only `SAMPLED` can be checked for drift."""

    SAMPLED = "sampled"
    RETOKENIZED = "retokenized"
    UNKNOWN = "unknown"
    NONE = "none"


class PromptSource(StrEnum):
    """Where a step's prompt ids come from."""

    RECORDED = "recorded"
    RENDERED = "rendered"
    NONE = "none"


class EndReason(StrEnum):
    """Why a trajectory or branch ended."""

    ENV = "env"
    AGENT = "agent"
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    TIMEOUT = "timeout"
    ERROR = "error"


class LogprobKind(StrEnum):
    """Whether temperature, top-p and top-k were applied before a log-prob was recorded."""

    RAW = "raw"
    PROCESSED = "processed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Segment:
    """A half-open token span `[start, end)` of one kind."""

    kind: SegmentKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MaskRun:
    """A half-open token span `[start, end)` to which the source gave one weight."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One result the environment returned."""

    call_id: str | None = None
    name: str | None = None
    text: str | None = None
    is_error: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """One named part of a reward; `kind` is outcome, format, cost or process."""

    name: str
    value: float | None
    weight: float | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    """A placeholder for an image, sound or file: by reference, never inline."""

    start: int
    end: int
    type: str
    ref: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class StepRef:
    """A step of another trajectory."""

    trajectory_id: str
    step_index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One policy call: the prompt it saw, the action it sampled, the observation it got.

    `state_before`, `action_tokens`, `observation`, `reward` and `is_terminal` are the five fields
    of the step-level record; the others say where those come from. `None` means "not known".
    """

    trajectory_id: str
    step_index: int
    is_terminal: bool
    action_source: ActionSource
    prompt_source: PromptSource
    source_format: str
    source_file: str
    source_record: int

    group_id: str | None = None
    task_id: str | None = None
    agent: str | None = None
    env_state_ref: str | None = None
    spawned_by: StepRef | None = None

    action_tokens: Ids | None = None
    """[A] ids the policy sampled, never re-tokenised; `None`: not recorded, empty: none sampled."""
    observation: str | None = None
    reward: float | None = None
    end_reason: EndReason | None = None
    is_truncated: bool | None = None

    parent: Step | None = field(default=None, repr=False)
    """The step whose prompt + action this prompt grows from; `None` when from nothing."""
    prompt_keep: int | None = None
    prompt_delta: Ids | None = None
    """[D] ids after the kept ones."""
    prompt_len: int | None = None
    tail_tokens: Ids | None = None
    """[L] ids after the action that no later prompt holds."""

    text_keep: int | None = None
    text_delta: str | None = None
    text_tail: str | None = None
    messages_keep: int | None = None
    messages_json: str | None = None
    action_message_json: str | None = None
    action_text: str | None = None
    observations: tuple[Observation, ...] | None = None
    tools_json: str | None = None

    segments: tuple[Segment, ...] | None = None
    """Spans over delta + action + tail, counted from the delta's first id."""
    source_mask: tuple[MaskRun, ...] | None = None

    rollout_logprobs: Floats | None = None
    """[A] recorded by the sampler, nats, NaN where missing."""
    logprob_kind: LogprobKind | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    old_logprobs: Floats | None = None
    ref_logprobs: Floats | None = None
    advantages: Floats | None = None
    values: Floats | None = None
    token_rewards: Floats | None = None
    policy_version: tuple[str, ...] | None = None
    model: str | None = None
    tokenizer: str | None = None
    media: tuple[MediaSpan, ...] | None = None
    rewards: tuple[RewardPart, ...] | None = None
    finish_reason: str | None = None
    started_at: datetime | None = None
    latency_s: float | None = None
    usage_json: str | None = None
    extra_json: str | None = None
    exclude_reason: str | None = None

    origin: Step | None = field(init=False, repr=False, default=None)
    """The nearest step up the parents that adds something to what this prompt keeps.

    Windows keep the same first ids step after step: the way there is one hop, not one a step.
    """

    def __post_init__(self) -> None:
        node = self.parent
        while node is not None and _keeps_no_more(self, node):
            node = node.origin
        object.__setattr__(self, "origin", node)

    @property
    def prompt_parent(self) -> int | None:
        """Return the index of the step this prompt grows from."""
        return None if self.parent is None else self.parent.step_index

    @property
    def n_action_tokens(self) -> int:
        """Return A, 0 when no ids are recorded."""
        return 0 if self.action_tokens is None else len(self.action_tokens)

    @property
    def sequence_len(self) -> int | None:
        """Return P + A, the ids a later prompt may keep of this step."""
        return None if self.prompt_len is None else self.prompt_len + self.n_action_tokens

    @property
    def is_checkable(self) -> bool:
        """Return whether the ids are the sampler's own, so that drift can be measured at all."""
        return self.action_source is ActionSource.SAMPLED and self.action_tokens is not None

    @property
    def prompt_ids(self) -> Ids | None:
        """Return [P] all ids the sampler saw at this step, rebuilt along the parents."""
        if self.prompt_delta is None:
            return None
        return read_only(np.concatenate([*_kept_ids(self), self.prompt_delta]))

    @property
    def state_before(self) -> str | None:
        """Return the full text the policy saw, rebuilt along the parents."""
        if self.text_delta is None:
            return None
        return (_kept_text(self) + self.text_delta.encode("utf-8")).decode("utf-8")

    @property
    def action_mask(self) -> Mask | None:
        """Return [D + A + L] True where the policy sampled the token: derived, stored nowhere."""
        if self.action_tokens is None:
            return None
        n_delta = 0 if self.prompt_delta is None else len(self.prompt_delta)
        n_tail = 0 if self.tail_tokens is None else len(self.tail_tokens)
        mask = np.zeros(n_delta + len(self.action_tokens) + n_tail, dtype=np.bool_)
        mask[n_delta : n_delta + len(self.action_tokens)] = True
        for segment in self.segments or ():
            if segment.kind is SegmentKind.INSERTED:
                mask[segment.start : segment.end] = False
        mask.setflags(write=False)
        return mask

    @property
    def place(self) -> Place:
        """Return where this step came from."""
        return Place(
            file=self.source_file, trajectory_id=self.trajectory_id, step_index=self.step_index
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One episode: its steps in order."""

    trajectory_id: str
    steps: tuple[Step, ...]

    @property
    def group_id(self) -> str | None:
        """Return the prompt group the trajectory was sampled in."""
        return self.steps[0].group_id if self.steps else None

    @property
    def reward(self) -> float | None:
        """Return the trajectory's own reward where it has one beside its steps', else their sum.

        `None` when no reward is known.
        """
        for part in (self.steps[-1].rewards or ()) if self.steps else ():
            if part.name == "trajectory" and part.kind == "outcome":
                return part.value
        known = [step.reward for step in self.steps if step.reward is not None]
        return float(sum(known)) if known else None

    @property
    def n_action_tokens(self) -> int:
        """Return the number of action ids over all steps."""
        return sum(step.n_action_tokens for step in self.steps)


_NO_IDS: Ids = np.empty(0, dtype=np.int32)


def read_only(array: NDArray[np.int32]) -> Ids:
    """Return the same array, no longer writable."""
    array.setflags(write=False)
    return array


def ids_array(values: Sequence[int]) -> Ids:
    """Return a read-only int32 array of ids that are already known to fit."""
    return read_only(np.asarray(values, dtype=np.int32))


def states_in_order(steps: Iterable[Step]) -> Iterator[str | None]:
    """Yield each step's `state_before` in one walk, holding one full state at a time.

    The same text as asking every step by itself, without walking to the root at each.
    """
    buffer = bytearray()
    last: Step | None = None
    for step in steps:
        if step.text_delta is None:
            last = None
            yield None
            continue
        if step.parent is not None and step.parent is last:
            keep = step.text_keep or 0
            if keep > len(buffer):
                raise _keeps_too_much(step)
            del buffer[keep:]
        else:
            buffer = bytearray(_kept_text(step))
        buffer += step.text_delta.encode("utf-8")
        yield buffer.decode("utf-8")
        buffer += (step.action_text or "").encode("utf-8")
        last = step


def _keeps_no_more(step: Step, parent: Step) -> bool:
    """Return whether all that a step keeps is kept by its parent too."""
    return (step.prompt_keep or 0) <= (parent.prompt_keep or 0) and (step.text_keep or 0) <= (
        parent.text_keep or 0
    )


def _kept_ids(step: Step) -> list[Ids]:
    """Return the ids a step's prompt keeps, in pieces."""
    pieces: list[Ids] = []
    for node, n in _holders(step, lambda s: s.prompt_keep or 0):
        delta = _NO_IDS if node.prompt_delta is None else node.prompt_delta
        action = _NO_IDS if node.action_tokens is None else node.action_tokens
        if n > len(delta) + len(action):
            raise _keeps_too_much(step)
        pieces += [action[: max(0, n - len(delta))], delta[:n]]
    pieces.reverse()
    return pieces


def _kept_text(step: Step) -> bytes:
    """Return the text a step's state keeps, as UTF-8."""
    pieces: list[bytes] = []
    for node, n in _holders(step, lambda s: s.text_keep or 0):
        delta = _first_bytes(node.text_delta or "", n)
        action = _first_bytes(node.action_text or "", n - len(delta))
        if n > len(delta) + len(action):
            raise _keeps_too_much(step)
        pieces += [action, delta]
    pieces.reverse()
    return b"".join(pieces)


def _holders(step: Step, keep_of: Callable[[Step], int]) -> Iterator[tuple[Step, int]]:
    """Yield the steps that hold what `step` keeps, with how much of each; the nearest first."""
    need, node = keep_of(step), step.origin
    while need > 0:
        if node is None:
            raise _keeps_too_much(step)
        keep = keep_of(node)
        if need > keep:
            yield node, need - keep
            need = keep
        node = node.origin


def _first_bytes(text: str, n: int) -> bytes:
    """Return the first `n` bytes of a text's UTF-8, all of it when there are fewer."""
    return text[:n].encode("utf-8")[:n]


def _keeps_too_much(step: Step) -> InputError:
    return InputError("S103", "a prompt keeps more than its parents hold", place=step.place)
