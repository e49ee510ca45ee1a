"""Route `join`: decode each whole token sequence, encode it again as one text, compare.

This is what a trainer gets that keeps a trajectory as text. The encoding is naive on purpose:
tokens merge across the borders of actions, and control text that was ordinary ids becomes control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from trajkit.align import same_ids
from trajkit.drift.difference import differences
from trajkit.drift.findings import Route
from trajkit.drift.walked import CauseOf, Found, Walked, action_spans, found_in
from trajkit.records import Ids, PromptSource, Step, Trajectory
from trajkit.sequence import TokenSequence, build_sequences
from trajkit.tokenizer import Tokenizer

_CONTEXT = 256
"""Ids of a kept prefix that are encoded again where no control token cuts it."""


def walk_join(
    batch: Sequence[Trajectory],
    tokenizer: Tokenizer,
    wanted: Callable[[int], bool],
    cause_of: CauseOf,
) -> list[Walked]:
    """Return what the route finds in each trajectory of a batch, which is encoded together.

    Raises:
        InputError: I304 when an id is outside the vocabulary.
    """
    each = [joinable(trajectory) for trajectory in batch]
    streams = [sequence for sequences in each for sequence in sequences]
    cuts = [_cut(sequence, tokenizer) for sequence in streams]
    texts = tokenizer.decode_batch(s.token_ids[at:] for s, at in zip(streams, cuts, strict=True))
    distinct = list(dict.fromkeys(texts))
    encoded = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
    again = iter([(at, encoded[text]) for at, text in zip(cuts, texts, strict=True)])
    walked = []
    for sequences in each:
        own = [s.step for one in sequences for s in one.steps if is_joinable(s.step)]
        checked = {step.step_index for step in own if wanted(step.step_index)}
        found = [one for s in sequences for one in _compare(s, *next(again), tokenizer, cause_of)]
        kept = tuple(one for one in found if one.finding.step_index in checked)
        walked.append(Walked(checked=tuple(sorted(checked)), found=kept))
    return walked


def joinable(trajectory: Trajectory) -> list[TokenSequence]:
    """Return the sequences of which some step holds what the sampler saw and emitted."""
    if not any(map(is_joinable, trajectory.steps)):
        return []
    return [s for s in build_sequences(trajectory) if any(is_joinable(o.step) for o in s.steps)]


def is_joinable(step: Step) -> bool:
    """Return whether both the prompt and the action of a step are as the sampler had them."""
    return step.is_checkable and step.prompt_source is PromptSource.RECORDED


def _cut(sequence: TokenSequence, tokenizer: Tokenizer) -> int:
    """Return where the text to be encoded begins: at a kept prefix's last control token.

    The prefix is another sequence's and is checked there; encoding starts afresh at control tokens.
    """
    first = sequence.steps[0]
    tokenizer.require_known(sequence.token_ids, "prompt or action", first.step.place)
    if not first.start:
        return 0
    control = np.flatnonzero(np.isin(sequence.token_ids[: first.start], tokenizer.control_ids))
    return int(control[-1]) if len(control) else max(0, first.start - _CONTEXT)


def _compare(
    sequence: TokenSequence, at: int, again: Ids, tokenizer: Tokenizer, cause_of: CauseOf
) -> Iterator[Found]:
    ids = sequence.token_ids[at:]
    if same_ids(ids, again):
        return
    end = len(sequence.token_ids)
    spans = action_spans(sequence.steps, at, end)
    n_kept = sequence.steps[0].start
    parts = (
        part
        for part in differences(ids, again, tokenizer, route=Route.JOIN, action=spans)
        if not n_kept or at + part.recorded.end > n_kept
    )
    yield from found_in(parts, sequence.steps, at, cause_of)
