"""What is judged: one sequence of tokens with its mask, whichever file it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trajkit.formats.alignment import Align, trained_runs
from trajkit.formats.raw import is_truncated
from trajkit.formats.token_row import TokenRow
from trajkit.masks.marks import Marks, Span, Turn, environment_spans, padding_from, turns_of
from trajkit.records import ActionSource, Floats, Ids, Mask, SegmentKind, Trajectory
from trajkit.safe.json import Record
from trajkit.sequence import SequenceStep, TokenSequence, build_sequences
from trajkit.tokenizer import Tokenizer
from trajkit.training import TRAIN_POLICIES, TrainPolicy, loss_mask


class Writer(IntEnum):
    """Who wrote a token, as far as the record says."""

    UNKNOWN = -1
    CONTEXT = 0
    POLICY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The tokens of one step in a sequence; a row is one part.

    Attributes:
        start, end: from the delta's first id up to the next step's.
        action_end: behind its action; in a row behind the last trained id.
        is_truncated: whether a limit cut the action; `None` where nothing says so.
    """

    step_index: int | None
    start: int
    action_end: int
    end: int
    is_truncated: bool | None
    finish_reason: str | None
    temperature: float | None
    versions: tuple[str, ...]
    is_excluded: bool = False
    record: int
    file: str


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedRow:
    """One sequence with its mask: every array speaks of token t at index t.

    Attributes:
        rollout: what the sequences of one rollout share.
        weights: [T] float64, 0 where a token is not trained.
        is_claimed: whether the source says what is trained, or it follows from the actions.
        policy: the loss mask that was chosen; `None` where none was.
        writer: [T] of `Writer`.
        sampled: [T] True where the record says that the policy sampled this very id.
        observation, inserted: [T] True where the record says so.
        attention: [T] False for padding; `None` where nothing says so.
        response: where the row's response begins; 0 where nothing says so.
        logprobs, token_rewards: [T] NaN where there is none; `None` without any.
        misfit: what could not be brought to the ids, in sentences.
        wrong_labels: trained positions whose label is another id.
        parts: ascending, without gap, from `first` on: what lies before is a kept prefix.
    """

    trajectory_id: str
    rollout: str
    token_ids: Ids
    weights: NDArray[np.float64]
    is_claimed: bool
    policy: TrainPolicy | None = None
    writer: NDArray[np.int8]
    sampled: Mask
    observation: Mask
    inserted: Mask
    attention: Mask | None = None
    response: int = 0
    logprobs: Floats | None = None
    token_rewards: Floats | None = None
    misfit: tuple[str, ...] = ()
    wrong_labels: NDArray[np.int64]
    parts: tuple[Part, ...]
    marks: Marks | None = None
    line: int | None = None
    align: Align | None = None

    @cached_property
    def trained(self) -> Mask:
        """Return [T] True where a token is trained."""
        mask: Mask = self.weights != 0
        return mask

    @cached_property
    def runs(self) -> tuple[Span, ...]:
        """Return the spans of neighbouring trained tokens, cut where a new step begins."""
        borders = sorted(part.start for part in self.parts[1:])
        found: list[Span] = []
        spot = 0
        for start, end in trained_runs(self.weights):
            left = start
            while spot < len(borders) and borders[spot] < end:
                if borders[spot] > left:
                    found.append((left, borders[spot]))
                    left = borders[spot]
                spot += 1
            found.append((left, end))
        return tuple(found)

    @cached_property
    def pieces(self) -> list[bytes]:
        """Return the bytes of each token; empty without a tokenizer."""
        return [] if self.marks is None else self.marks.tokenizer.pieces(self.token_ids)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """Return the turns by control ids; empty without a tokenizer."""
        return () if self.marks is None else turns_of(self.token_ids, self.marks, self.real)

    @cached_property
    def real(self) -> Mask:
        """Return [T] False for padding: as `attention` says, else as the row's end shows."""
        if self.attention is not None:
            return self.attention
        real = np.ones(len(self.token_ids), dtype=np.bool_)
        if self.marks is not None:
            real[padding_from(self.token_ids, self.trained, self.marks) :] = False
        return real

    @cached_property
    def n_real(self) -> int:
        """Return where the padding behind the row begins."""
        return int(np.flatnonzero(self.real)[-1]) + 1 if self.real.any() else 0

    @property
    def has_unknown_turns(self) -> bool:
        """Return whether a claim cannot be held against turns: no turn of the policy is known."""
        is_open = self.is_claimed and bool((self.writer == Writer.UNKNOWN).any())
        return is_open and not any(turn.is_policy for turn in self.turns)

    @property
    def turn_gaps(self) -> Iterator[tuple[Turn, int]]:
        """Yield each turn and where what stands behind it ends."""
        for number, turn in enumerate(self.turns, 1):
            is_last = number == len(self.turns)
            yield turn, max(self.n_real, turn.end) if is_last else self.turns[number].start

    @cached_property
    def environment(self) -> tuple[Span, ...]:
        """Return the spans that tags give to the environment."""
        return tuple(environment_spans(self.pieces))

    @cached_property
    def by_environment(self) -> Mask:
        """Return [T] True where the record, a turn's role or a tag says: the environment's."""
        mask = self.observation.copy()
        for start, end in self.environment:
            mask[start:end] = True
        for turn in self.turns:
            if turn.is_tool:
                mask[turn.start + self._is_shared(turn) : turn.end] = True
        return mask

    @cached_property
    def by_others(self) -> Mask:
        """Return [T] True where neither policy nor environment speaks: prompts, scaffold."""
        mask = self.writer == Writer.CONTEXT
        mask[slice(*self.before_turns)] = True
        for turn, behind in self.turn_gaps:
            if turn.is_policy:
                mask[turn.start : turn.low] = False
                mask[turn.end : behind] = False
            elif not turn.is_tool:
                mask[turn.start + self._is_shared(turn) : turn.end] = True
        others: Mask = mask & ~self.by_environment
        return others

    @property
    def before_turns(self) -> Span:
        """Return the span before the first turn; empty where it may be the end of another one.

        The first id of a row is no loss's, and what stands before an id that is a stop as well may
        be the policy's.
        """
        if not self.turns or self.marks is None or self._is_shared(self.turns[0]):
            return 0, 0
        low, high = int(np.argmax(self.real)) + 1, self.turns[0].start
        is_left_over = np.isin(self.token_ids[low:high], self.marks.stops).any()
        return (0, 0) if is_left_over else (low, high)

    def _is_shared(self, turn: Turn) -> bool:
        """Return whether the id that opens a turn is the stop of the action before it, too."""
        return self.marks is not None and int(self.token_ids[turn.start]) in self.marks.shared_set

    def turn_at(self, token: int) -> Turn | None:
        """Return the turn that a token stands in or behind, `None` before the first."""
        spot = int(np.searchsorted(self._turn_starts, token, side="right")) - 1
        return None if spot < 0 else self.turns[spot]

    @cached_property
    def _turn_starts(self) -> NDArray[np.int64]:
        return np.array([turn.start for turn in self.turns], dtype=np.int64)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.array([part.start for part in self.parts], dtype=np.int64)

    def part_at(self, token: int) -> Part:
        """Return the step that brought a token."""
        return self.parts[max(int(np.searchsorted(self._starts, token, side="right")) - 1, 0)]

    def is_cut(self, run: Span) -> bool | None:
        """Return whether a limit cut the action that a run is of; `None` where nothing says so."""
        part = self.part_at(run[0])
        if part.step_index is None and run != self.runs[-1]:
            return None
        is_last = run == self.runs[-1] and part is self.parts[-1]
        if is_last and not self.sampled[run[0]] and self._goes_on_behind(run[1]):
            return None
        return part.is_truncated

    def _goes_on_behind(self, end: int) -> bool:
        """Return whether more than a stop and white space stands behind a run: a later cut."""
        if self.marks is None:
            return False
        if self.turns and self.turns[-1].start >= end:
            return True
        behind = self.token_ids[end : self.n_real]
        is_stopped = end > 0 and self.marks.is_stop(int(self.token_ids[end - 1]))
        rest = behind[~np.isin(behind, self.marks.stops)] if is_stopped else behind[:0]
        return bool(self.marks.text(rest).strip())


def rows_of_trajectory(
    trajectory: Trajectory,
    policy: TrainPolicy | None,
    tokenizer: Tokenizer | None,
    marks: Marks | None,
) -> Iterator[MaskedRow]:
    """Yield the sequences of a trajectory with the mask that is to be judged.

    Args:
        trajectory: step records.
        policy: the loss mask to judge; `None` takes the source's, and the actions where it has
            none.
        tokenizer: tells the parts of an action, where the policy asks for them.
        marks: what its control ids mean.
    """
    for sequence in build_sequences(trajectory):
        yield _of_sequence(sequence, policy, tokenizer, marks)


def _of_sequence(
    sequence: TokenSequence,
    policy: TrainPolicy | None,
    tokenizer: Tokenizer | None,
    marks: Marks | None,
) -> MaskedRow:
    n = len(sequence.token_ids)
    chosen = policy or TRAIN_POLICIES[0]
    weights = loss_mask(sequence, chosen, tokenizer).astype(np.float64)
    writer = np.full(n, Writer.CONTEXT, dtype=np.int8)
    observation, inserted, sampled = (np.zeros(n, dtype=np.bool_) for _ in range(3))
    for span in sequence.spans:
        where = slice(span.start, span.end)
        writer[where] = Writer.POLICY if span.is_action else Writer.CONTEXT
        observation[where] = span.kind is SegmentKind.OBSERVATION
        inserted[where] = span.kind is SegmentKind.INSERTED
    logprobs, rewards = (np.full(n, np.nan, dtype=np.float32) for _ in range(2))
    ends = [place.start for place in sequence.steps[1:]] + [n]
    misfit: list[str] = []
    is_claimed = False
    for place, end in zip(sequence.steps, ends, strict=True):
        step, action = place.step, slice(place.action_start, place.action_end)
        is_own = step.action_source in (ActionSource.SAMPLED, ActionSource.RETOKENIZED)
        if not is_own:
            writer[place.start : end] = Writer.UNKNOWN
        sampled[action] = step.action_source is ActionSource.SAMPLED
        if step.rollout_logprobs is not None:
            logprobs[action] = step.rollout_logprobs
        if step.token_rewards is not None:
            rewards[action] = step.token_rewards
        if policy is None and step.source_mask is not None:
            is_claimed = True
            misfit += _claim(weights, place, end)
    sampled &= ~inserted
    return MaskedRow(
        trajectory_id=sequence.trajectory_id,
        rollout=sequence.trajectory_id,
        token_ids=sequence.token_ids,
        weights=weights,
        is_claimed=is_claimed,
        policy=policy,
        writer=writer,
        sampled=sampled,
        observation=observation,
        inserted=inserted,
        logprobs=None if np.isnan(logprobs).all() else logprobs,
        token_rewards=None if np.isnan(rewards).all() else rewards,
        misfit=tuple(misfit),
        wrong_labels=np.empty(0, dtype=np.int64),
        parts=tuple(_part(place, end) for place, end in zip(sequence.steps, ends, strict=True)),
        marks=marks,
    )


def _claim(weights: NDArray[np.float64], place: SequenceStep, end: int) -> Iterator[str]:
    """Put a step's own mask in place of what follows from its action; yield what does not fit."""
    step = place.step
    n_tail = 0 if step.tail_tokens is None else len(step.tail_tokens)
    n_own = place.action_end - place.start + n_tail
    weights[place.start : end] = 0.0
    for run in step.source_mask or ():
        if not 0 <= run.start <= run.end <= n_own:
            yield (
                f"step {step.step_index}: its mask has a run [{run.start}, {run.end}) over "
                f"{n_own} tokens"
            )
        weights[place.start + max(run.start, 0) : min(place.start + run.end, end)] = run.weight


def _part(place: SequenceStep, end: int) -> Part:
    step = place.step
    return Part(
        step_index=step.step_index,
        start=place.start,
        action_end=place.action_end,
        end=end,
        is_truncated=step.is_truncated,
        finish_reason=step.finish_reason,
        temperature=step.temperature,
        versions=step.policy_version or (),
        is_excluded=step.exclude_reason is not None,
        record=step.source_record,
        file=step.source_file,
    )


def row_of_record(
    row: TokenRow, record: Record, trajectory_id: str, marks: Marks | None
) -> MaskedRow:
    """Return a pre-tokenised row as what is judged; nothing says who wrote its tokens."""
    n = len(row.token_ids)
    nowhere = np.zeros(n, dtype=np.bool_)
    trained = np.flatnonzero(row.weights)
    n_misfit = row.misfit_logprobs
    misfit = () if n_misfit is None else (f"{n_misfit} log-probs for a row of {n} ids",)
    told = is_truncated(row.finish_reason)
    part = Part(
        step_index=None,
        start=0,
        action_end=int(trained[-1]) + 1 if len(trained) else n,
        end=n,
        is_truncated=told if row.is_truncated is None else row.is_truncated,
        finish_reason=row.finish_reason,
        temperature=row.whole["sampling"].temperature,
        versions=row.policy_version or (),
        record=record.index,
        file=record.file,
    )
    return MaskedRow(
        trajectory_id=trajectory_id,
        rollout=row.rollout or trajectory_id,
        token_ids=row.token_ids,
        weights=row.weights,
        is_claimed=True,
        writer=np.full(n, Writer.UNKNOWN, dtype=np.int8),
        sampled=nowhere,
        observation=nowhere,
        inserted=nowhere,
        attention=row.attention,
        response=row.n_prompt or 0,
        logprobs=row.logprobs,
        token_rewards=row.token_rewards,
        misfit=misfit,
        wrong_labels=row.wrong_labels,
        parts=(part,),
        marks=marks,
        line=record.line,
        align=row.align,
    )
