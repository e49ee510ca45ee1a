"""Data into a mask report: every rule over every sequence, one trajectory in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from trajkit.errors import InputError, Place, UsageProblem
from trajkit.formats.alignment import Align, align_named
from trajkit.masks.content import Siblings
from trajkit.masks.findings import MaskFinding, MaskReport, Spot, Stretch
from trajkit.masks.marks import marks_of
from trajkit.masks.rows import MaskedRow
from trajkit.masks.rules import MASK_RULES, MaskRule, rule_named
from trajkit.masks.sources import (
    Judged,
    Wanted,
    is_dataset,
    judged_rows,
    judged_steps,
    open_steps,
)
from trajkit.records import ids_array
from trajkit.tokenizer import Tokenizer, load_tokenizer
from trajkit.training import policy_named

_SHOWN_IDS = 12
_AROUND = 4
_MISFIT = "mask-misfit"


def mask_check(  # noqa: PLR0913 - one argument an option of the command
    data: Path | str,
    tokenizer: Tokenizer | Path | str | None = None,
    *,
    train: str | None = None,
    align: Align | str = Align.AUTO,
    rules: Collection[str] = (),
    only: Collection[str] = (),
    limit: int | None = None,
    steps: Callable[[int], bool] | None = None,
) -> MaskReport:
    """Return where masks break the rules.

    Step records are judged by the mask of their source, and by their own actions where the source
    has none; pre-tokenised rows by theirs.

    Args:
        data: step records, or a JSONL or Parquet file of pre-tokenised rows.
        tokenizer: tells stops, headers and tags; without it the rules that need them are not run.
        train: a name in `TRAIN_POLICIES`: that loss mask is judged in place of the source's.
        align: how the masks of rows stand to their ids; `auto` decides from their length.
        rules: codes to report; empty reports all.
        only: trajectory ids to check; empty checks all.
        limit: how many trajectories to check at most.
        steps: which step indices to report on; all when `None`.

    Raises:
        UsageProblem: U103 for a name that is not there, or an option that does not fit the data;
            U107 when nothing is of those asked for.
        InputError: as the readers of step records and of rows.
    """
    data, align = Path(data), align_named(align)
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    marks = None if loaded is None else marks_of(loaded)
    policy = None if train is None else policy_named(train)
    named = {rule_named(code).code for code in rules}
    asked = [rule for rule in MASK_RULES if rule.code in named or not named]
    wanted = Wanted(only=frozenset(only), limit=limit, policy=policy, align=align)
    is_steps = is_dataset(data)
    _refuse_what_does_not_fit(wanted, has_steps=steps is not None, is_steps=is_steps)
    found = (
        judged_steps(open_steps(data, loaded), wanted, loaded, marks)
        if is_steps
        else judged_rows(data, wanted, loaded, marks)
    )
    report = MaskReport(
        tokenizer=None if loaded is None else loaded.name,
        source="steps" if is_steps else "rows",
        policy=train,
        by_rule={rule.code: 0 for rule in asked},
        not_run=[rule.code for rule in asked if rule.needs_tokenizer and loaded is None],
    )
    _run(report, found, asked, steps or (lambda _: True))
    if is_steps and report.n_trajectories and not report.n_steps:
        raise UsageProblem("U107", "no step has this index", place=Place(file=str(data)))
    return report


def _refuse_what_does_not_fit(wanted: Wanted, *, has_steps: bool, is_steps: bool) -> None:
    """Raise U103 for an option that is about the other kind of data."""
    if is_steps and wanted.align is not Align.AUTO:
        raise UsageProblem("U103", "--align is for pre-tokenised rows; step records say where")
    if not is_steps and (wanted.policy is not None or has_steps):
        name = "--train" if wanted.policy is not None else "--step"
        raise UsageProblem(
            "U103", f"{name} is for step records", hint="trajkit ingest makes them of rows"
        )


def findings_of(
    judged: Judged, seen: dict[str, set[bytes]], rules: Sequence[MaskRule] = MASK_RULES
) -> Iterator[MaskFinding]:
    """Yield what the rules find in one trajectory.

    Args:
        judged: its sequences.
        seen: for each rollout that has several rows, what they trained; it grows.
        rules: those that are asked, worst first; a rule that is not hides no other.
    """
    if judged.misfit is not None and any(rule.code == _MISFIT for rule in rules):
        yield _misfit(judged, judged.misfit)
    n_trained = sum(int(row.trained.sum()) for row in judged.rows)
    versions = dict.fromkeys(
        version for row in judged.rows for part in row.parts for version in part.versions
    )
    for row in judged.rows:
        is_shared = row.rollout != judged.trajectory_id or len(judged.rows) > 1
        siblings = Siblings(
            n_trained=n_trained,
            versions=tuple(versions),
            is_first=row is judged.rows[0],
            seen=seen.setdefault(row.rollout, set()) if is_shared else set(),
        )
        yield from _of_row(row, siblings, rules)
    if judged.steps:
        seen.clear()


def _run(
    report: MaskReport,
    found: Iterator[Judged],
    rules: Sequence[MaskRule],
    wanted: Callable[[int], bool],
) -> None:
    seen: dict[str, set[bytes]] = {}
    for judged in found:
        report.n_trajectories += 1
        _count(report, judged, wanted)
        for finding in findings_of(judged, seen, rules):
            if finding.step_index is None or wanted(finding.step_index):
                report.by_rule[finding.rule] += 1
                report.findings.append(finding)
    if report.n_without_turns:
        bare = [rule.code for rule in rules if rule.needs_turns]
        report.not_run += [code for code in bare if code not in report.not_run]


def _count(report: MaskReport, judged: Judged, wanted: Callable[[int], bool]) -> None:
    steps = [step for step in judged.steps if wanted(step.step_index)]
    report.n_steps += len(steps)
    report.by_source.update(step.action_source.value for step in steps)
    report.n_without_ids += sum(step.prompt_delta is None for step in steps)
    for row in judged.rows:
        report.n_sequences += 1
        report.n_tokens += len(row.token_ids) - row.parts[0].start
        report.n_trained_tokens += int(row.trained.sum())
        report.n_claimed += row.is_claimed
        report.n_without_turns += row.has_unknown_turns
        if row.align is not None:
            report.by_align[row.align.value] += 1


def _of_row(row: MaskedRow, siblings: Siblings, rules: Sequence[MaskRule]) -> Iterator[MaskFinding]:
    """Yield the findings of one sequence, without those that a broken rule explains."""
    hidden: set[str] = set()
    for rule in rules:
        if rule.code in hidden or not _applies(rule, row):
            continue
        spots = list(rule.find(row, siblings))
        if spots:
            hidden.update(rule.hides)
        yield from (_finding(rule, row, spot) for spot in spots)


def _applies(rule: MaskRule, row: MaskedRow) -> bool:
    if rule.needs_tokenizer and row.marks is None:
        return False
    return rule.of_context or row.policy is None or not row.policy.trains_context


def _finding(rule: MaskRule, row: MaskedRow, spot: Spot) -> MaskFinding:
    start, end = spot.start, spot.end
    place = row.part_at(start or 0 if spot.anchor is None else spot.anchor)
    ids: tuple[int, ...] = ()
    if start is not None and end is not None:
        ids = tuple(row.token_ids[start : min(end, start + _SHOWN_IDS)].tolist())
    return MaskFinding(
        rule=rule.code,
        severity=spot.severity or rule.severity,
        trajectory_id=row.trajectory_id,
        step_index=None if start is None else place.step_index,
        token_start=None if start is None else start - place.start,
        token_end=None if end is None else end - place.start,
        n_tokens=(end or 0) - (start or 0) if spot.n_tokens is None else spot.n_tokens,
        detail=spot.detail,
        ids=ids,
        text=None if row.marks is None or not ids else row.marks.tokenizer.text(ids_array(ids)),
        window=() if start is None else _window(row, start, start + len(ids), place.start),
        file=place.file,
        record=place.record,
        line=row.line,
    )


def _window(row: MaskedRow, start: int, end: int, first: int) -> tuple[Stretch, ...]:
    """Return the tokens of a span and some around it, cut where the mask changes."""
    left, right = max(start - _AROUND, 0), min(end + _AROUND, len(row.token_ids))
    changes = np.flatnonzero(np.diff(row.trained[left:right])) + left + 1
    return tuple(
        Stretch(
            token_start=at - first,
            trained=bool(row.trained[at]),
            ids=tuple(row.token_ids[at:to].tolist()),
            text=None if row.marks is None else row.marks.tokenizer.text(row.token_ids[at:to]),
        )
        for at, to in pairwise([left, *changes.tolist(), right])
    )


def _misfit(judged: Judged, problem: InputError) -> MaskFinding:
    return MaskFinding(
        rule=_MISFIT,
        severity=rule_named(_MISFIT).severity,
        trajectory_id=judged.trajectory_id,
        step_index=None,
        token_start=None,
        token_end=None,
        n_tokens=0,
        detail=problem.message,
        file=judged.place.file or "",
        record=judged.record,
        line=judged.place.line,
    )
