"""A view without what is private: ids and texts are gone before any face sees them.

A face cannot leak what it was never given, so nothing is hidden while drawing: the ids of a view
become `HIDDEN`, its names and messages are rewritten, and all that no face shows is dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from trajkit.errors import UsageProblem
from trajkit.records import Ids, Mask, Step, Trajectory, read_only
from trajkit.sequence import TokenSequence
from trajkit.tokenizer import Tokenizer
from trajkit.view.drift import DriftMark, without_other
from trajkit.view.glyphs import BLOCK, HIDDEN

if TYPE_CHECKING:
    from trajkit.view.model import View

_FACTS = (
    *("step_index", "is_terminal", "action_source", "prompt_source", "reward", "is_truncated"),
    *("source_format", "source_record", "prompt_len", "prompt_keep"),
    *("rollout_logprobs", "old_logprobs", "ref_logprobs", "advantages", "values", "token_rewards"),
)
"""Fields of a step that a redacted one keeps as they are: numbers, and words of trajkit's own."""
_MESSAGES = ("messages_json", "text_delta", "action_message_json", "action_text", "observation")
"""What a step without prompt ids shows; rewritten where it is shown, as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What is not to be shown.

    Attributes:
        patterns: what no text may hold.
        hides_text: whether there is to be no text at all, and no id; names stay.
    """

    patterns: tuple[re.Pattern[str], ...] = ()
    hides_text: bool = False

    @property
    def is_nothing(self) -> bool:
        """Return whether everything may be shown."""
        return not self.patterns and not self.hides_text

    def matches(self, text: str) -> list[tuple[int, int]]:
        """Return where a text holds what it may not: `[start, end)` in characters, ascending."""
        found = chain.from_iterable(pattern.finditer(text) for pattern in self.patterns)
        return sorted(match.span() for match in found if match.end() > match.start())

    def finds(self, text: str | None) -> bool:
        """Return whether any of a text is not to be shown."""
        return text is not None and (self.hides_text or bool(self.matches(text)))

    def text(self, text: str) -> str:
        """Return a text with a block sign for each match; those that overlap share one."""
        parts, at = [], 0
        for start, end in self.matches(text):
            if start >= at:
                parts += [text[at:start], BLOCK]
            at = max(at, end)
        return "".join([*parts, text[at:]])

    def value(self, value: object) -> object:
        """Return a JSON value with every string in it rewritten, and JSON inside strings too.

        One that is nested too deep to be searched is a block sign.
        """
        try:
            return self._value(value)
        except RecursionError:
            return BLOCK

    def _value(self, value: object) -> object:
        if isinstance(value, str):
            return self.text(self._inside(value))
        if isinstance(value, list):
            return [self._value(entry) for entry in value]
        if isinstance(value, dict):
            found: dict[str, object] = {}
            for key, entry in value.items():
                name = self.text(str(key))
                while name in found:  # two keys that are the same now
                    name += BLOCK
                found[name] = self._value(entry)
            return found
        return value

    def _inside(self, text: str) -> str:
        """Return a text that is JSON with its strings rewritten; others as they are."""
        if text.lstrip()[:1] not in ("{", "["):
            return text
        try:
            inner = json.loads(text)
        except ValueError:
            return text
        hidden = self._value(inner)
        return text if hidden == inner else json.dumps(hidden, ensure_ascii=False)


NOTHING = Redaction()
"""Everything may be shown."""


def redaction_of(
    patterns: Collection[str | re.Pattern[str]], *, hides_text: bool = False
) -> Redaction:
    """Return what is not to be shown.

    Raises:
        UsageProblem: U103 where a pattern cannot be one, or finds the empty text.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except (re.error, OverflowError, RecursionError) as problem:
            raise UsageProblem(
                "U103", f"--redact expects a regular expression, got {pattern}: {problem}"
            ) from problem
        if compiled[-1].fullmatch(""):
            raise UsageProblem("U103", f"--redact {pattern} finds the empty text everywhere")
    return Redaction(patterns=tuple(compiled), hides_text=hides_text)


def redacted(view: View, tokenizer: Tokenizer | None, redaction: Redaction) -> View:
    """Return a view without what is not to be shown: every id of it `HIDDEN`, names rewritten.

    Args:
        view: what there is to show.
        tokenizer: says what ids spell.
        redaction: what is not to be shown. A token is hidden when any of its bytes is.

    Raises:
        UsageProblem: U103 when ids cannot be searched because there is no tokenizer.
        InputError: I304 when the tokenizer does not know an id.
    """
    if redaction.is_nothing:
        return view
    masks = [_hidden(sequence.token_ids, tokenizer, redaction) for sequence in view.sequences]
    _share(view.sequences, masks)
    steps: dict[int, Step] = {}
    sequences = tuple(
        _sequence(sequence, hidden, redaction, steps)
        for sequence, hidden in zip(view.sequences, masks, strict=True)
    )
    for step in view.without_ids:
        ids = step.action_tokens
        hidden = None if ids is None else _hidden(ids, tokenizer, redaction)
        shown = None if ids is None or hidden is None else _without(ids, hidden)
        texts = {} if redaction.hides_text else {name: getattr(step, name) for name in _MESSAGES}
        steps[step.step_index] = _step(step, redaction, action_tokens=shown, **texts)
    return replace(
        view,
        trajectory=Trajectory(
            trajectory_id=redaction.text(view.trajectory.trajectory_id),
            steps=tuple(steps[step.step_index] for step in view.trajectory.steps),
        ),
        sequences=sequences,
        without_ids=tuple(steps[step.step_index] for step in view.without_ids),
        redaction=redaction,
        marks=_marks(view, sequences, redaction),
    )


def _marks(
    view: View, sequences: Sequence[TokenSequence], redaction: Redaction
) -> dict[int, tuple[DriftMark, ...]]:
    """Return the marks without what redaction hides, of the record or of the other side.

    Text that was cut out of its surroundings may hold a part of a match: where a pattern finds
    anything in a mark, or a token of it is hidden, nothing of the other side is left.
    """
    owner = {place.step.step_index: each for each in sequences for place in each.steps}
    found = {}
    for index, marks in view.marks.items():
        is_hidden = owner[index].token_ids == HIDDEN
        found[index] = tuple(
            without_other(mark)
            if is_hidden[mark.start : mark.end].any() or redaction.finds(mark.other_text)
            else mark
            for mark in marks
        )
    return found


def _hidden(ids: Ids, tokenizer: Tokenizer | None, redaction: Redaction) -> Mask:
    """Return [T] True where a token holds any byte of a match."""
    if redaction.hides_text or not len(ids):
        return np.ones(len(ids), dtype=np.bool_)
    if tokenizer is None:
        raise UsageProblem(
            "U103",
            "ids cannot be searched for text without their tokenizer",
            hint="give it with -t, or show no ids at all with --no-text",
        )
    pieces = tokenizer.pieces(ids)
    ends = np.cumsum(np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)))
    text = b"".join(pieces).decode("utf-8", errors="surrogateescape")
    change = np.zeros(len(ids) + 1, dtype=np.int64)
    at, n_bytes = 0, 0
    for start, end in redaction.matches(text):
        n_bytes += len(text[at:start].encode("utf-8", errors="surrogateescape"))
        n_more = len(text[start:end].encode("utf-8", errors="surrogateescape"))
        change[np.searchsorted(ends, n_bytes, side="right")] += 1
        change[np.searchsorted(ends, n_bytes + n_more, side="left") + 1] -= 1
        at = start
    return np.cumsum(change[:-1]) > 0


def _share(sequences: Sequence[TokenSequence], masks: Sequence[Mask]) -> None:
    """Hide what a sequence keeps of another in both, where either hides it."""
    owner = {
        place.step.step_index: number
        for number, sequence in enumerate(sequences)
        for place in sequence.steps
    }
    kept = []
    for number, sequence in enumerate(sequences):
        first = sequence.steps[0]
        parent = first.step.prompt_parent
        if first.start and parent in owner:
            kept.append((number, owner[parent], first.start))
    for child, parent, n in [*reversed(kept), *kept]:  # to the first sequence, and back
        both = masks[child][:n] | masks[parent][:n]
        masks[child][:n] = both
        masks[parent][:n] = both


def _sequence(
    sequence: TokenSequence, hidden: Mask, redaction: Redaction, steps: dict[int, Step]
) -> TokenSequence:
    """Return a sequence whose ids and steps are rewritten; its steps are added to `steps`."""
    ids = _without(sequence.token_ids, hidden)
    places = []
    for place in sequence.steps:
        step = _step(
            place.step,
            redaction,
            prompt_delta=ids[place.start : place.action_start],
            action_tokens=None
            if place.step.action_tokens is None
            else ids[place.action_start : place.action_end],
        )
        steps[step.step_index] = step
        places.append(replace(place, step=step))
    return replace(
        sequence,
        trajectory_id=redaction.text(sequence.trajectory_id),
        token_ids=ids,
        steps=tuple(places),
    )


def _step(step: Step, redaction: Redaction, **given: object) -> Step:
    """Return a step of facts, rewritten names and what is given; the rest is gone."""
    facts = {name: getattr(step, name) for name in _FACTS}
    finish = None if redaction.hides_text else step.finish_reason
    names = {
        "group_id": step.group_id,
        "finish_reason": finish,
        "exclude_reason": step.exclude_reason,
    }
    told = {name: None if text is None else redaction.text(text) for name, text in names.items()}
    rewards = tuple(part for part in step.rewards or () if part.name == "trajectory")
    fixed = {"trajectory_id": redaction.text(step.trajectory_id), "source_file": ""}
    return Step(**(facts | told | fixed | {"rewards": rewards} | given))


def _without(ids: Ids, hidden: Mask) -> Ids:
    return read_only(np.where(hidden, np.int32(HIDDEN), ids))
