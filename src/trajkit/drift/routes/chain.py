"""Route `chain`: does each prompt start with the prompt + action it grows from?

A prompt holds when it starts with the whole prompt + action of an earlier step: the one before it,
or, for a branch, any other. It also holds when it asks an earlier prompt again. Everything that
decides this stands in the table of parents, so a step that holds costs no look at its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from trajkit.align import common_prefix, next_agreement
from trajkit.drift.difference import Difference, Side
from trajkit.drift.findings import DriftFinding, DriftKind, Route
from trajkit.drift.walked import (
    SHOWN,
    CauseOf,
    Covered,
    Found,
    Walked,
    action_spans,
    alone,
    edges,
    facts_of,
    unexplained,
)
from trajkit.records import Ids, PromptSource, Step, Trajectory
from trajkit.tokenizer import Tokenizer

_AGREE = 8
"""So many equal ids in a row count as going on alike: more than a chat template's own runs."""
_NEXT = 8


def walk_chain(
    batch: Sequence[Trajectory],
    tokenizer: Tokenizer | None,
    wanted: Callable[[int], bool],
    cause_of: CauseOf,
) -> list[Walked]:
    """Return what the route finds in each trajectory of a batch."""
    return [_walk(trajectory, tokenizer, wanted, cause_of) for trajectory in batch]


def _walk(
    trajectory: Trajectory,
    tokenizer: Tokenizer | None,
    wanted: Callable[[int], bool],
    cause_of: CauseOf,
) -> Walked:
    checked, found, n_branched = [], [], 0
    with_ids = [step for step in trajectory.steps if step.prompt_delta is not None]
    for previous, step in pairwise(with_ids):
        earlier = step.parent or previous
        if not is_chained(step) or not wanted(earlier.step_index):
            continue
        checked.append(step.step_index)
        finding = check_chain(step, earlier, tokenizer, cause_of)
        if finding is not None:
            found.append(_counted(finding))
        elif branches_off(step, previous):
            n_branched += 1
    return Walked(checked=tuple(checked), found=tuple(found), n_branched_steps=n_branched)


def _counted(finding: DriftFinding) -> Found:
    start = finding.action_start or 0
    covered = Covered(finding.step_index, start, start + finding.n_action_tokens)
    return Found(
        finding=finding,
        covers=(covered,) if finding.n_action_tokens else (),
        other=(finding.evidence["n_other"], hash(finding.retokenized_ids)),
        n_recorded=finding.evidence["n_recorded"],
    )


def is_chained(step: Step) -> bool:
    """Return whether the chain route can judge the step's prompt."""
    return step.prompt_source is PromptSource.RECORDED and step.step_index > 0


def branches_off(step: Step, previous: Step) -> bool:
    """Return whether a prompt that holds does so on another step than the one before it.

    It starts with the whole of some earlier step, or asks an older prompt again, and what came in
    between is gone: a branch, or a history that somebody edited. Ids alone cannot tell.
    """
    keep = _kept(step)
    on_previous = step.parent is previous and keep == previous.sequence_len
    again = step.parent is previous and not len(_own(step.prompt_delta))
    return not on_previous and not (again and keep == previous.prompt_len)


def check_chain(
    step: Step,
    earlier: Step,
    tokenizer: Tokenizer | None,
    cause_of: CauseOf = unexplained,
) -> DriftFinding | None:
    """Return the break between a step's prompt and the step it grows from, `None` when it holds.

    The finding speaks of the earlier step: its ids are what was lost.

    Args:
        step: the later step.
        earlier: its parent; where it shares nothing with any, the one before it.
        tokenizer: names the ids; without it texts and bytes are `None`, and causes not asked for.
        cause_of: names a difference's cause.

    Raises:
        InputError: I304 when the tokenizer does not know an id.
    """
    if _holds(step, earlier):
        return None
    keep, other = _kept(step), _own(step.prompt_delta)
    recorded = _ids_behind(earlier, keep)
    same = common_prefix(recorded, other)  # a writer may have kept less than it could
    rest = recorded[same:], other[same:]
    finding = _finding(step, earlier, keep + same, rest, tokenizer)
    if tokenizer is None:
        return finding
    cause, evidence = cause_of(_difference(finding, step, earlier, rest, tokenizer))
    return replace(finding, cause=cause, evidence=evidence | finding.evidence)


def _holds(step: Step, earlier: Step) -> bool:
    keep = _kept(step)
    if keep == earlier.sequence_len:
        return True
    if not len(_own(step.prompt_delta)):
        return _asks_again(earlier, keep)
    left_behind = _owner_and_below(earlier, keep)
    owner = left_behind[-1]
    if keep >= (owner.prompt_len or 0):
        return False  # it breaks off in an action
    if not any(_kept(n) == n.parent.sequence_len for n in _line(owner) if n.parent is not None):
        return False  # it holds no earlier step whole
    # what was sampled behind the break and yet stands in the prompt: no branch, an edited history
    longest = max((_own(node.action_tokens) for node in left_behind), key=len)
    return not len(longest) or not _contains(_own(step.prompt_delta), longest)


def _asks_again(earlier: Step, keep: int) -> bool:
    """Return whether the first `keep` ids are the prompt of this step or of one it grows from."""
    for node in _line(earlier):
        if node.prompt_len == keep:
            return True
        if _kept(node) < keep:
            return False
    return False


def _owner_and_below(earlier: Step, position: int) -> list[Step]:
    """Return the line from a step up to the one whose own ids hold a position."""
    line = []
    for node in _line(earlier):
        line.append(node)
        if _kept(node) <= position:
            break
    return line


def _line(step: Step) -> Iterator[Step]:
    """Yield a step, the one it grows from, and so on to the root."""
    node: Step | None = step
    while node is not None:
        yield node
        node = node.parent


def _kept(step: Step) -> int:
    return 0 if step.parent is None else step.prompt_keep or 0


def _own(ids: Ids | None) -> Ids:
    return np.empty(0, dtype=np.int32) if ids is None else ids


def _contains(ids: Ids, run: Ids) -> bool:
    data, wanted = ids.tobytes(), run.tobytes()
    at = data.find(wanted)
    while at >= 0 and at % ids.itemsize:
        at = data.find(wanted, at + 1)
    return at >= 0


def _ids_behind(step: Step, position: int) -> Ids:
    """Return the ids of a step's prompt + action from a position on."""
    parts = []
    end = step.sequence_len
    for node in _line(step):
        start = _kept(node)
        own = np.concatenate([_own(node.prompt_delta), _own(node.action_tokens)])
        parts.append(own[max(position - start, 0) : None if end is None else end - start])
        if start <= position:
            break
        end = start
    return np.concatenate(parts[::-1])


def _spent(recorded: Ids, other: Ids) -> tuple[int, int]:
    """Return the ids each side spends before both go on alike.

    The recorded side ends somewhere. When less than an agreement is left of it, its last ids count
    where they stand close by; when those are gone too, all of it is lost and the prompt, which goes
    on with new text, spends nothing.
    """
    met = next_agreement(recorded, other, _AGREE)
    if met is not None:
        return met
    n = len(recorded)
    for n_last in range(min(_AGREE, n), 0, -1):
        nearby = other[: 2 * n + n_last]
        met = next_agreement(recorded[n - n_last :], nearby, n_last)
        if met is not None:
            return n - n_last, met[1]
    return n, 0


def _finding(
    step: Step, earlier: Step, keep: int, rest: tuple[Ids, Ids], tokenizer: Tokenizer | None
) -> DriftFinding:
    recorded, other = rest
    n_left, n_right = _spent(recorded, other)
    left, right = recorded[: min(n_left, SHOWN)], other[: min(n_right, SHOWN)]
    following = other[n_right : n_right + _NEXT]
    prompt_len = earlier.prompt_len or 0
    action_start = keep - prompt_len if keep >= prompt_len else None
    if tokenizer is not None:
        tokenizer.require_known(recorded, "recorded", earlier.place)
        tokenizer.require_known(other, "prompt", step.place)
    return DriftFinding(
        trajectory_id=earlier.trajectory_id,
        step_index=earlier.step_index,
        route=Route.CHAIN,
        kind=DriftKind.PREFIX,
        token_start=keep,
        action_start=action_start,
        byte_start=_byte_start(earlier, action_start, tokenizer),
        recorded_ids=tuple(left.tolist()),
        retokenized_ids=tuple(right.tolist()),
        recorded_text=None if tokenizer is None else tokenizer.text(left),
        retokenized_text=None if tokenizer is None else tokenizer.text(right),
        n_action_tokens=max(0, keep + n_left - max(keep, prompt_len)),
        recorded_edges=() if tokenizer is None else edges(tokenizer.pieces(left)),
        retokenized_edges=() if tokenizer is None else edges(tokenizer.pieces(right)),
        evidence={
            "next_step_index": step.step_index,
            "n_kept": keep,
            "n_recorded": n_left,
            "n_other": n_right,
            "cut": n_left > SHOWN or n_right > SHOWN,
            "next_ids": following.tolist(),
            "next_text": None if tokenizer is None else tokenizer.text(following),
        },
    )


def _difference(
    finding: DriftFinding, step: Step, earlier: Step, rest: tuple[Ids, Ids], tokenizer: Tokenizer
) -> Difference:
    """Return a break as a difference of the ids around it: some before, and all that follow."""
    keep, facts = finding.token_start, finding.evidence
    n_lead = min(keep, SHOWN)
    lead = _ids_behind(earlier, keep - n_lead)[:n_lead]
    sides = []
    for ids, n_spent in zip(rest, (facts["n_recorded"], facts["n_other"]), strict=True):
        whole = np.concatenate([lead, ids])
        pieces = tokenizer.spell(whole)
        sides.append(Side(ids=whole, pieces=pieces, start=n_lead, end=n_lead + n_spent))
    first = keep - n_lead
    return Difference(
        route=Route.CHAIN,
        kind=DriftKind.PREFIX,
        recorded=sides[0],
        other=sides[1],
        byte_start=sides[0].pieces.n_bytes(n_lead),
        action=action_spans([alone(earlier)], first, first + len(sides[0].ids)),
        tokenizer=tokenizer,
        facts=facts_of(earlier) | {"next_step_index": step.step_index},
    )


def _byte_start(step: Step, action_start: int | None, tokenizer: Tokenizer | None) -> int | None:
    if tokenizer is None or action_start is None:
        return None
    return sum(map(len, tokenizer.pieces(_own(step.action_tokens)[:action_start])))
