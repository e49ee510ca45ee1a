"""Rules about where a mask begins and ends: shifts, headers, stops, turns, padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trajkit.formats.alignment import trained_runs
from trajkit.masks.findings import Severity, Spot
from trajkit.masks.marks import Marks, Span, Turn
from trajkit.masks.rows import MaskedRow, Writer
from trajkit.records import Mask

_FINISHED = ("stop", "eos", "end_turn")
_DOUBLED, _PADDED = 2, 3
"""A stop said twice was appended; the same one said more often pads."""
_AMBIGUOUS = ": ambiguous, it alone, or a mask late by one, its end cut off"
_THOUGHT = (b"<think>", b"</think>")


def mask_shifted(row: MaskedRow) -> Iterator[Spot]:
    """Yield one spot where every run of a mask is off by one token in the same direction."""
    if not row.runs or not row.is_claimed:
        return
    by = _shift_of_actions(row) or _shift_of_turns(row)
    if by:
        where = "early" if by < 0 else "late"
        yield Spot(
            start=row.runs[0][0],
            end=row.runs[0][1],
            detail=f"{len(row.runs)} of {len(row.runs)} runs begin and end one token {where}",
            n_tokens=int(row.trained.sum()),
        )


def mask_misplaced(row: MaskedRow) -> Iterator[Spot]:
    """Yield one spot where a mask has as many tokens as were sampled, but others."""
    actions, known = row.writer == Writer.POLICY, row.writer != Writer.UNKNOWN
    trained = row.trained & known
    n = int(actions.sum())
    if not row.is_claimed or not n or int(trained.sum()) != n:
        return
    wrong = np.flatnonzero(trained & ~actions)
    if len(wrong):
        at = int(wrong[0])
        yield Spot(start=at, end=at + 1, n_tokens=len(wrong), detail=f"{len(wrong)} of {n} trained")


def all_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield one spot where all of a response is trained, and not all of it is the policy's."""
    region = row.real.copy()
    region[: row.response] = False
    foreign = region & (row.by_environment | row.by_others) & ~row.sampled
    if not row.is_claimed or not foreign.any() or not row.trained[region].all():
        return
    spots = np.flatnonzero(region)
    yield Spot(
        start=int(spots[0]),
        end=int(spots[-1]) + 1,
        n_tokens=int(foreign.sum()),
        detail=f"{int(foreign.sum())} of {int(region.sum())} are not the policy's",
    )


def generation_prompt_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield the headers of the policy's turns that are trained."""
    for turn in row.turns:
        if not turn.is_policy or (turn.can_be_sampled and _goes_on(row, turn.start)):
            continue
        spots = np.flatnonzero(_given(row, turn.start, turn.low)) + turn.start
        if len(spots):
            yield Spot(
                start=int(spots[0]),
                end=int(spots[-1]) + 1,
                n_tokens=len(spots),
                detail=f"{len(spots)} of {turn.low - turn.start} ids of the turn's header",
                anchor=min(turn.low, len(row.token_ids) - 1),
            )


def scaffold_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield what the template puts behind a turn and the mask trains with it."""
    if row.marks is None:
        return
    others = np.concatenate([row.marks.stops, row.marks.pads])
    for turn, behind in row.turn_gaps:
        own = np.flatnonzero(_given(row, turn.end, behind)) + turn.end
        spots = own[~np.isin(row.token_ids[own], others)] if len(own) else own
        goes_on = behind < len(row.token_ids) and row.trained[behind]
        if turn.is_policy and len(spots) and _is_stopped(row, turn) and not goes_on:
            yield Spot(
                start=int(spots[0]),
                end=int(spots[-1]) + 1,
                n_tokens=len(spots),
                detail=f"{len(spots)} behind the turn's stop",
                anchor=turn.end - 1,
            )


def stop_not_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield the stops right behind an action that are not trained.

    It is a note where the record says that the action was sampled without one, as stop strings and
    servers that strip it leave it, and where the same id pads and no `attention_mask` tells which.
    """
    for start, end, marks in _open_ends(row):
        if not marks.is_stop(int(row.token_ids[end])):
            continue
        detail, severity = "right behind the action", None
        if row.sampled[end - 1] and not row.sampled[end]:
            detail = "the recorded action ends before it: a stop string, or its stop was stripped"
            severity = Severity.NOTE
        elif row.attention is None and end + 1 < len(row.real) and not row.real[end + 1]:
            detail = "it pads as well: a stop, or padding behind a cut action"
            severity = Severity.NOTE
        yield Spot(start=end, end=end + 1, anchor=start, detail=detail, severity=severity)


def stop_of_next(row: MaskedRow) -> Iterator[Spot]:
    """Yield the ids that open the next message where the action has no stop of its own."""
    for start, end, marks in _open_ends(row):
        if int(row.token_ids[end]) in marks.shared_set:
            yield Spot(start=end, end=end + 1, anchor=start, detail="it opens the next message")


def stop_missing(row: MaskedRow) -> Iterator[Spot]:
    """Yield the ends of actions that say they finished and hold no stop."""
    marks = row.marks
    if marks is None or not (len(marks.stops) or len(marks.shared)):
        return
    for run in row.runs:
        part = row.part_at(run[0])
        is_last = run[1] == part.action_end
        reason = part.finish_reason
        if not is_last or part.is_truncated is not False or reason not in _FINISHED:
            continue
        is_inside = run[1] < len(row.real) and bool(row.real[run[1]])
        around = row.token_ids[run[1] - 1 : run[1] + is_inside]
        if not np.isin(around, np.concatenate([marks.stops, marks.shared])).any():
            yield Spot(
                start=run[1] - 1, end=run[1], anchor=run[0], detail=f"it ended with {reason}"
            )


def stop_not_sampled(row: MaskedRow) -> Iterator[Spot]:
    """Yield stops that are trained and cannot have been sampled, and other inserted ids."""
    for start, end in trained_runs((row.trained & row.inserted).astype(np.float64)):
        yield Spot(start=start, end=end, detail="something inserted it")
    marks = row.marks
    if marks is None:
        return
    for run in row.runs:
        n_stops = _n_stops(row, run, marks)
        if _n_padding(row, run, marks):
            continue
        if row.is_cut(run) and n_stops:
            yield Spot(
                start=run[1] - n_stops,
                end=run[1],
                anchor=run[0],
                detail="a limit cut the action before it",
            )
        elif n_stops >= _DOUBLED:
            n = n_stops - 1
            detail = "the second in a row" if n == 1 else f"{n} behind the first"
            yield Spot(start=run[1] - n, end=run[1], anchor=run[0], detail=detail)


def padding_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield trained padding: what attention_mask leaves out, padding ids, one stop many times."""
    padding = np.zeros(len(row.token_ids), dtype=np.bool_)
    if row.attention is not None:
        padding |= ~row.attention
    marks = row.marks
    if marks is not None:
        padding |= np.isin(row.token_ids, marks.pads)
        for run in row.runs:
            padding[run[1] - _n_padding(row, run, marks) : run[1]] = True
    for start, end in trained_runs((padding & row.trained & ~row.sampled).astype(np.float64)):
        yield Spot(start=start, end=end, detail=f"{end - start} in a row")


def turn_partly_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield what a mask leaves out at the borders and first in the middle of a turn it trains."""
    for turn in row.turns if row.is_claimed else ():
        inside = np.flatnonzero(row.trained[turn.high : turn.end]) + turn.high
        if not turn.is_policy or not len(inside):
            continue
        first, last = int(inside[0]), int(inside[-1]) + 1
        stop = turn.end - _is_stopped(row, turn)
        at = np.flatnonzero(np.diff(inside) > 1)
        holes = zip((inside[at] + 1).tolist(), inside[at + 1].tolist(), strict=True)
        middle = next((hole for hole in holes if not _is_left_out_by_choice(row, *hole)), None)
        left_out = [("first", turn.high, first), ("last", last, stop)]
        for side, start, end in [*left_out, *([("middle", *middle)] if middle else [])]:
            if end > start and not _is_left_out_by_choice(row, start, end):
                is_opener = _is_lone_opener(row, start, end) and not 0 < row.response <= start
                detail = f"the {side} {end - start} of {turn.end - turn.high} are left out"
                if side == "first" and not is_opener and _may_be_late(row, turn):
                    detail += _AMBIGUOUS
                yield Spot(
                    start=start,
                    end=end,
                    anchor=first,
                    detail=detail + (": the template's, or a mask late by one" * is_opener),
                    severity=Severity.NOTE if is_opener else None,
                )


def turn_not_trained(row: MaskedRow) -> Iterator[Spot]:
    """Yield the first turn that a mask leaves out beside others, with their number."""
    own = row.parts[0].start if row.parts else 0
    turns = [t for t in row.turns if t.is_policy and t.end > t.low and t.start >= own]
    left_out = [turn for turn in turns if not row.trained[turn.start : turn.end].any()]
    if row.is_claimed and left_out and len(left_out) < len(turns):
        turn = left_out[0]
        yield Spot(
            start=turn.low,
            end=turn.end,
            n_tokens=sum(turn.end - turn.low for turn in left_out),
            detail=f"{len(left_out)} of {len(turns)} turns",
        )


def _shift_of_actions(row: MaskedRow) -> int:
    """Return by how much a mask is off the actions of the record; 0 where it is not, or unknown."""
    actions = row.writer == Writer.POLICY
    if not actions.any() or (row.writer == Writer.UNKNOWN).any():
        return 0
    if (row.trained == actions).all():
        return 0
    if (row.trained[:-1] == actions[1:]).all():
        return -1
    return 1 if (row.trained[1:] == actions[:-1]).all() else 0


def _shift_of_turns(row: MaskedRow) -> int:
    """Return by how much a mask is off the policy's turns: all runs agree, one end proves it."""
    marks, ids = row.marks, row.token_ids
    if marks is None or row.sampled.any():
        return 0
    if _is_rolled_late(row):
        return 1
    turns = [row.turn_at(start) for start, _ in row.runs]
    found = [t for t in turns if t is not None and t.is_policy]
    if len(found) < len(turns):
        return 0
    pairs = list(zip(row.runs, found, strict=True))
    early = [start == turn.low - 1 for (start, _), turn in pairs]
    is_at_response = bool(row.response) and pairs[0][0][0] == row.response == pairs[0][1].low
    if (
        any(early)
        and all(early[is_at_response:])
        and any(end < row.n_real and marks.is_stop(int(ids[end])) for (_, end), _ in pairs)
    ):
        return -1
    is_late = all(start == turn.high + 1 for (start, _), turn in pairs) and any(
        end - start > 1 and end == turn.end + 1 and int(ids[end - 1]) not in marks.shared_set
        for (start, end), turn in pairs
    )
    return int(is_late)


def _is_rolled_late(row: MaskedRow) -> bool:
    """Return whether a mask was rolled late: its last value stands at the row's first id."""
    if len(row.runs) < 2 or row.runs[0] != (0, 1) or not row.real[-1]:
        return False
    turns = [row.turn_at(start) for start, _ in row.runs[1:]]
    is_late = all(
        turn is not None and turn.is_policy and start == turn.high + 1
        for (start, _), turn in zip(row.runs[1:], turns, strict=True)
    )
    return is_late and row.runs[-1][1] == len(row.token_ids)


def _may_be_late(row: MaskedRow, turn: Turn) -> bool:
    """Return whether the only run begins one late in a turn and no id behind it could prove it.

    A mask that is late trains one id behind the turn. Where the row ends there, that value was cut
    off, and nothing is left to tell such a mask from one that leaves the first id out.
    """
    return row.runs == ((turn.high + 1, len(row.token_ids)),)


def _open_ends(row: MaskedRow) -> Iterator[tuple[int, int, Marks]]:
    """Yield the actions that end before the row does, without a stop, and were not cut."""
    marks = row.marks
    if marks is None:
        return
    for start, end in row.runs:
        last = int(row.token_ids[end - 1])
        if end >= row.n_real or row.trained[end] or not row.real[end] or row.is_cut((start, end)):
            continue
        turn = row.turn_at(start)
        if turn is not None and not turn.is_policy and not row.sampled[start]:
            continue
        if not marks.is_stop(last) and last not in marks.shared_set:
            yield start, end, marks


def _n_stops(row: MaskedRow, run: Span, marks: Marks) -> int:
    """Return how many stops a run ends with."""
    at = run[1]
    while at > run[0] and marks.is_stop(int(row.token_ids[at - 1])):
        at -= 1
    return run[1] - at


def _n_padding(row: MaskedRow, run: Span, marks: Marks) -> int:
    """Return how many stops behind the first one pad a run: the same one, again and again."""
    n = _n_stops(row, run, marks)
    tail = row.token_ids[run[1] - n + 1 : run[1]]
    is_padded = n >= _PADDED and not row.sampled[run[1] - 1] and bool((tail == tail[0]).all())
    return n - 1 if is_padded else 0


def _given(row: MaskedRow, start: int, end: int) -> Mask:
    """Return which tokens of a span are trained and not known to be sampled."""
    given: Mask = row.trained[start:end] & ~row.sampled[start:end]
    return given


def _goes_on(row: MaskedRow, at: int) -> bool:
    """Return whether a run goes on over a token from the one before it."""
    return at > 0 and bool(row.trained[at - 1] and row.trained[at])


def _is_stopped(row: MaskedRow, turn: Turn) -> bool:
    """Return whether a turn ends with a stop."""
    is_long = row.marks is not None and turn.end > turn.low
    return is_long and row.marks is not None and row.marks.is_stop(int(row.token_ids[turn.end - 1]))


def _is_left_out_by_choice(row: MaskedRow, start: int, end: int) -> bool:
    """Return whether a stretch may be left out on purpose: thoughts, white space, results."""
    if _is_lone_opener(row, start, end):
        return False
    data = b"".join(row.pieces[start:end]).strip()
    is_thought = not data or data.endswith(_THOUGHT)
    is_foreign = row.by_environment[start:end].any() or row.inserted[start:end].any()
    return is_thought or bool(is_foreign)


def _is_lone_opener(row: MaskedRow, start: int, end: int) -> bool:
    """Return whether a stretch is one token that opens thoughts: the template's, or sampled."""
    return end - start == 1 and row.pieces[start] == _THOUGHT[0]
