"""Trajectories into a drift report: the routes are walked, the findings counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from trajkit.drift.chain import branches_off, check_chain, is_chained
from trajkit.drift.findings import DriftFinding, DriftReport, Route, RouteCount
from trajkit.drift.ids import check_ids
from trajkit.errors import Place, UsageProblem
from trajkit.records import Step, Trajectory
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.tokenizer import Tokenizer, load_tokenizer, require_same_tokenizer

_BATCH_TOKENS = 2**18
"""Actions are encoded together until they hold so many ids: enough to keep all threads busy."""


def drift_check(
    data: Dataset | Path | str,
    tokenizer: Tokenizer | Path | str | None = None,
    *,
    routes: Collection[Route] = (),
    only: Collection[str] = (),
    limit: int | None = None,
    steps: Callable[[int], bool] | None = None,
) -> DriftReport:
    """Return what re-tokenising a dataset would change.

    Args:
        data: step records.
        tokenizer: the sampler's; route `ids` needs it, route `chain` only names ids with it.
        routes: which routes to walk; empty walks all that data and tokenizer allow.
        only: trajectory ids to check; empty checks all.
        limit: how many trajectories to check at most.
        steps: which step indices to check and report on; all when `None`. Route `chain` checks the
            prompt that grows from such a step.

    Raises:
        UsageProblem: U103 when route `ids` is asked for without a tokenizer, U107 when no step or
            trajectory is of those asked for.
        InputError: T102 when the data were made with another tokenizer, I304 when an id is not in
            its vocabulary.
    """
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    if loaded is not None:
        require_same_tokenizer(
            loaded,
            fingerprint=dataset.tokenizer_fingerprint,
            name=dataset.metadata.get("tokenizer_name"),
            file=str(dataset.path),
        )
    elif Route.IDS in routes:
        raise UsageProblem(
            "U103", "route ids needs a tokenizer", hint="give its folder with -t TOKENIZER"
        )
    walked = [r for r in Route if (r in routes or not routes) and (loaded or r is Route.CHAIN)]
    trajectories = read_trajectories(dataset, only=only, limit=limit)
    report = _Check(walked, loaded, steps or (lambda _: True)).run(trajectories)
    report.not_walked = [r.value for r in Route if r not in walked and not routes]
    if report.n_trajectories and not report.n_steps:
        raise UsageProblem("U107", "no step has this index", place=Place(file=str(dataset.path)))
    return report


class _Check:
    """The walk: trajectories in, counts and findings out."""

    def __init__(
        self, routes: list[Route], tokenizer: Tokenizer | None, wanted: Callable[[int], bool]
    ) -> None:
        self._routes = routes
        self._tokenizer = tokenizer
        self._wanted = wanted
        self.report = DriftReport(tokenizer=None if tokenizer is None else tokenizer.name)
        self.report.by_route = {route.value: RouteCount() for route in routes}

    def run(self, trajectories: Iterable[Trajectory]) -> DriftReport:
        for batch in _batches(trajectories):
            found = self._ids(batch)
            for trajectory in batch:
                for step in trajectory.steps:
                    if self._wanted(step.step_index):
                        self._count_step(step)
                own = [finding for step in trajectory.steps for finding in found.get(id(step), ())]
                self._add(own + self._chain(trajectory))
        return self.report

    def _ids(self, batch: list[Trajectory]) -> dict[int, list[DriftFinding]]:
        """Return the findings of route `ids`, by `id()` of the step."""
        if Route.IDS not in self._routes or self._tokenizer is None:
            return {}
        steps = [step for trajectory in batch for step in trajectory.steps]
        checkable = [step for step in steps if step.is_checkable and self._wanted(step.step_index)]
        found = {id(step): findings for step, findings in check_ids(checkable, self._tokenizer)}
        for findings in found.values():
            self._count(Route.IDS, len(findings))
        return found

    def _chain(self, trajectory: Trajectory) -> list[DriftFinding]:
        findings: list[DriftFinding] = []
        if Route.CHAIN not in self._routes:
            return findings
        with_ids = [step for step in trajectory.steps if step.prompt_delta is not None]
        for previous, step in pairwise(with_ids):
            earlier = step.parent or previous
            if not is_chained(step) or not self._wanted(earlier.step_index):
                continue
            finding = check_chain(step, earlier, self._tokenizer)
            self._count(Route.CHAIN, 0 if finding is None else 1)
            if finding is not None:
                findings.append(finding)
            elif branches_off(step, previous):
                self.report.by_route[Route.CHAIN.value].n_branched_steps += 1
        return findings

    def _count_step(self, step: Step) -> None:
        report = self.report
        report.n_steps += 1
        report.by_source[step.action_source.value] += 1
        report.n_action_tokens += step.n_action_tokens
        report.n_checkable_steps += step.is_checkable

    def _count(self, route: Route, n_findings: int) -> None:
        count = self.report.by_route[route.value]
        count.n_checked_steps += 1
        count.n_drifted_steps += n_findings > 0
        count.n_findings += n_findings

    def _add(self, findings: list[DriftFinding]) -> None:
        """Add one trajectory's findings."""
        report = self.report
        findings.sort(key=lambda finding: (finding.step_index, finding.token_start))
        report.n_trajectories += 1
        report.n_drifted_trajectories += bool(findings)
        report.n_drifted_steps += len({finding.step_index for finding in findings})
        report.n_drifted_action_tokens += _n_covered(findings)
        report.by_kind.update(finding.kind.value for finding in findings)
        report.by_cause.update(finding.cause for finding in findings)
        report.findings.extend(findings)


def _batches(trajectories: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    """Yield whole trajectories, some hundred thousand action ids a time."""
    batch: list[Trajectory] = []
    n_tokens = 0
    for trajectory in trajectories:
        batch.append(trajectory)
        n_tokens += trajectory.n_action_tokens
        if n_tokens >= _BATCH_TOKENS:
            yield batch
            batch, n_tokens = [], 0
    if batch:
        yield batch


def _n_covered(findings: Iterable[DriftFinding]) -> int:
    """Return the action ids that findings cover, each once, whichever routes found it."""
    n, covered = 0, (-1, 0)  # the step, and the end of what is counted in its action
    spans = [(f.step_index, f.action_start or 0, f.n_action_tokens) for f in findings]
    for step_index, start, length in sorted(spans):
        end = start + length
        seen = covered[1] if covered[0] == step_index else 0
        n += max(0, end - max(start, seen))
        covered = step_index, max(end, seen)
    return n
