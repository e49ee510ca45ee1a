"""Trajectories into a drift report: the routes are walked, the findings counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import tokenizers

from trajkit import __version__
from trajkit.drift.causes import cause_of
from trajkit.drift.findings import (
    NO_MESSAGES,
    DriftFinding,
    DriftKind,
    DriftReport,
    Route,
    RouteCount,
)
from trajkit.drift.price import DriftPrice, price_all
from trajkit.drift.profile import Fact, markups_of, text_risks
from trajkit.drift.routes.chain import walk_chain
from trajkit.drift.routes.ids import walk_ids
from trajkit.drift.routes.join import walk_join
from trajkit.drift.routes.pair import Partners, walk_pair
from trajkit.drift.routes.record import walk_self
from trajkit.drift.routes.render import Renderer, load_renderer, walk_render
from trajkit.drift.walked import Covered, Found, Walked, merged
from trajkit.errors import Place, UsageProblem
from trajkit.markup import MARKUPS
from trajkit.records import Step, Trajectory
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.template import ChatTemplate, Setting
from trajkit.tokenizer import Tokenizer, load_tokenizer, require_same_tokenizer

_BATCH_TOKENS = 2**18
"""Trajectories are encoded together until they hold so many ids: enough to keep threads busy."""
_NEEDS_TOKENIZER = "needs -t TOKENIZER"
_SAMPLE = 16
"""Trajectories of text that are looked at for the tags they are written with."""

_Walk: TypeAlias = Callable[[Sequence[Trajectory]], list[Walked]]


def drift_check(  # noqa: PLR0913 - one argument an option
    data: Dataset | Path | str,
    tokenizer: Tokenizer | Path | str | None = None,
    *,
    routes: Collection[Route] = (),
    only: Collection[str] = (),
    limit: int | None = None,
    steps: Callable[[int], bool] | None = None,
    against: Dataset | Path | str | None = None,
    chat_template: ChatTemplate | Path | str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> DriftReport:
    """Return what re-tokenising a dataset would change.

    Args:
        data: step records.
        tokenizer: the sampler's; only route `chain` can be walked without it.
        routes: which routes to walk; empty walks all that data and arguments allow.
        only: trajectory ids to check; empty checks all.
        limit: how many trajectories to check at most.
        steps: which step indices to check and report on; all when `None`. Route `chain` checks the
            prompt that grows from such a step.
        against: another recording of the same trajectories, for route `pair`; it may have been
            made with another tokenizer or template, which then is a cause.
        chat_template: what route `render` makes text with, or its file or folder; `None` takes the
            one in the tokenizer's folder.
        template_kwargs: further variables of the template (`enable_thinking`, ...).
        now: what the template takes for the present; `None` is the clock, read once.

    Raises:
        UsageProblem: U103 when a route is asked for without what it needs, U107 when no step or
            trajectory is of those asked for.
        InputError: T102 when the data were made with another tokenizer, I304 when an id is not in
            its vocabulary; what `load_template` raises.
    """
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    other = open_dataset(against) if isinstance(against, str | Path) else against
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    if loaded is not None:
        require_same_tokenizer(
            loaded,
            fingerprint=dataset.tokenizer_fingerprint,
            name=dataset.metadata.get("tokenizer_name"),
            file=str(dataset.path),
        )

    @cache
    def renderer() -> Renderer:
        folder = Path(tokenizer) if isinstance(tokenizer, str | Path) else None
        return load_renderer(chat_template, folder, kwargs=template_kwargs or {}, now=now)

    if chat_template is not None:
        renderer()  # a template that was named must be one, whatever the data hold
    partners = (
        None if other is None else Partners(read_trajectories(other), _made_with(dataset, other))
    )
    wanted = steps or (lambda _: True)
    is_text_own = dataset.tokenizer_fingerprint is None
    walks = _walks(loaded, wanted, renderer, partners, is_text_own=is_text_own)
    _require(routes, walks, renderer, has_other=other is not None)
    check = _Check(
        {r: walks[r] for r in Route if r in walks and (r in routes or not routes)},
        loaded,
        is_priced=steps is None,
    )
    report = check.run(read_trajectories(dataset, only=only, limit=limit), wanted)
    if report.n_trajectories and not report.n_steps:
        raise UsageProblem("U107", "no step has this index", place=Place(file=str(dataset.path)))
    report.tokenizer = None if loaded is None else loaded.name
    if not routes and loaded is None:
        report.not_walked |= {r.value: _NEEDS_TOKENIZER for r in Route if r not in walks}
        report.not_walked.pop(Route.PAIR, None)
    if Route.RENDER.value in report.by_route:
        report.template = renderer().told()
    if other is not None and partners is not None:
        is_whole = not only and limit is None
        n_left = partners.n_left() if is_whole else None
        report.against = {"data": str(other.path), "n_other_trajectories": n_left}
    report.provenance = _provenance(dataset, loaded, report.template)
    if loaded is not None and not report.n_checkable_steps:
        n = min(limit or _SAMPLE, _SAMPLE)
        sample = list(read_trajectories(dataset, only=only, limit=n))
        report.risks = _risks(loaded, dataset, sample, renderer)
    return report


def _made_with(dataset: Dataset, other: Dataset) -> dict[str, tuple[Any, Any]]:
    """Return what both recordings say they were made with, where both say it."""
    pairs = {
        fact: (dataset.metadata.get(name), other.metadata.get(name))
        for fact, name in _MADE_WITH.items()
    }
    return {fact: pair for fact, pair in pairs.items() if None not in pair}


_MADE_WITH = {
    "templates": "chat_template_sha256",
    "tokenizers": "tokenizer_fingerprint",
}
"""Facts of causes, and the key of a dataset's metadata that holds each."""


def _walks(
    tokenizer: Tokenizer | None,
    wanted: Callable[[int], bool],
    renderer: Callable[[], Renderer],
    partners: Partners | None,
    *,
    is_text_own: bool,
) -> dict[Route, _Walk]:
    """Return the routes that can be walked, each as a function of a batch."""
    found: dict[Route, _Walk] = {
        Route.CHAIN: lambda batch: walk_chain(batch, tokenizer, wanted, cause_of)
    }
    if tokenizer is None:
        return found
    args = tokenizer, wanted, cause_of
    found[Route.IDS] = lambda batch: walk_ids(batch, *args)
    found[Route.JOIN] = lambda batch: walk_join(batch, *args)
    found[Route.RENDER] = lambda batch: walk_render(batch, *args, renderer)
    found[Route.SELF] = lambda batch: walk_self(batch, tokenizer, wanted, is_text_own=is_text_own)
    if partners is not None:
        found[Route.PAIR] = lambda batch: walk_pair(batch, *args, partners)
    return found


def _require(
    routes: Collection[Route],
    walks: Mapping[Route, _Walk],
    renderer: Callable[[], Renderer],
    *,
    has_other: bool,
) -> None:
    """Raise U103 when a route is asked for and lacks what the caller could have given."""
    for route in routes or ([Route.PAIR] if has_other else []):
        if route is Route.PAIR and not has_other:
            raise UsageProblem(
                "U103", "route pair needs another recording", hint="give it with --against DATA"
            )
        if route not in walks:
            raise UsageProblem(
                "U103", f"route {route} needs a tokenizer", hint="give its folder with -t TOKENIZER"
            )
        if route is Route.RENDER and renderer().template is None:
            raise UsageProblem(
                "U103",
                "route render needs a chat template, and there is none beside the tokenizer",
                hint="give its file with --chat-template FILE",
            )


def _risks(
    tokenizer: Tokenizer,
    dataset: Dataset,
    sample: Sequence[Trajectory],
    renderer: Callable[[], Renderer],
) -> tuple[Fact, ...]:
    """Return what would drift in text, by the tags and messages that some trajectories show."""
    has_messages = any(s.action_message_json is not None for t in sample for s in t.steps)
    rendering = renderer() if has_messages else None
    named = (dataset.metadata.get("options") or {}).get("markup")
    return text_risks(
        tokenizer,
        None if rendering is None else rendering.template,
        [markup for markup in MARKUPS if markup.name == named] or markups_of(sample),
        None if rendering is None else Setting(kwargs=rendering.kwargs, now=rendering.now),
    )


def _provenance(
    dataset: Dataset, tokenizer: Tokenizer | None, template: Mapping[str, Any] | None
) -> dict[str, str | None]:
    """Return what the data were checked with and made with; `None` where there was none."""
    made_with = dataset.metadata
    return {
        "trajkit": __version__,
        "tokenizers": None if tokenizer is None else tokenizers.__version__,
        "tokenizer": None if tokenizer is None else tokenizer.name,
        "tokenizer_fingerprint": None if tokenizer is None else tokenizer.fingerprint,
        "template_sha256": None if template is None else template["sha256"],
        "data_trajkit": made_with.get("trajkit_version"),
        "data_tokenizer": made_with.get("tokenizer_name"),
        "data_tokenizer_fingerprint": made_with.get("tokenizer_fingerprint"),
        "data_template_sha256": made_with.get("chat_template_sha256"),
    }


class _Check:
    """The walk: trajectories in, counts and findings out."""

    def __init__(
        self, walks: Mapping[Route, _Walk], tokenizer: Tokenizer | None, *, is_priced: bool
    ) -> None:
        self._walks = walks
        self._tokenizer = tokenizer
        self.report = DriftReport(by_route={route.value: RouteCount() for route in walks})
        self.report.price = DriftPrice() if is_priced else None

    def run(self, trajectories: Iterable[Trajectory], wanted: Callable[[int], bool]) -> DriftReport:
        """Return the report over all trajectories."""
        for batch in _batches(trajectories):
            by_route = {route: walk(batch) for route, walk in self._walks.items()}
            drifted: list[list[DriftFinding]] = []
            for at, trajectory in enumerate(batch):
                for step in trajectory.steps:
                    if wanted(step.step_index):
                        self._count_step(step)
                found: list[Found] = []
                for route, walked in by_route.items():
                    self._count(route, walked[at])
                    found += walked[at].found
                drifted.append(self._add(found))
            if self.report.price is not None:
                self.report.price += price_all(zip(batch, drifted, strict=True), self._tokenizer)
        self._set_aside()
        return self.report

    def _count_step(self, step: Step) -> None:
        report = self.report
        report.n_steps += 1
        report.by_source[step.action_source.value] += 1
        report.n_action_tokens += step.n_action_tokens
        if step.is_checkable:
            report.n_checkable_steps += 1
            report.n_checkable_action_tokens += step.n_action_tokens

    def _count(self, route: Route, walked: Walked) -> None:
        count = self.report.by_route[route.value]
        count.n_checked_steps += len(walked.checked)
        count.n_drifted_steps += len({one.finding.step_index for one in walked.found})
        count.n_findings += len(walked.found)
        count.n_branched_steps += walked.n_branched_steps
        for why, n_steps in walked.left_out:
            count.left_out[why] = count.left_out.get(why, 0) + n_steps

    def _add(self, found: list[Found]) -> list[DriftFinding]:
        """Add one trajectory's findings, and return those that are drift."""
        report = self.report
        report.n_trajectories += 1
        if not found:
            return []
        findings = merged(found)
        drift = [finding for finding in findings if finding.kind is not DriftKind.RECORD]
        report.n_drifted_trajectories += bool(drift)
        report.n_drifted_steps += len({finding.step_index for finding in drift})
        report.n_drifted_action_tokens += _n_covered(span for one in found for span in one.covers)
        report.by_kind.update(finding.kind.value for finding in findings)
        report.by_cause.update(finding.cause for finding in findings)
        report.findings.extend(findings)
        return drift

    def _set_aside(self) -> None:
        """Call a route that could check no step not walked, with a reason that can be mended."""
        report = self.report
        for name, count in list(report.by_route.items()):
            if count.left_out and not count.n_checked_steps:
                del report.by_route[name]
                reasons = [why for why in count.left_out if why != NO_MESSAGES]
                report.not_walked[name] = reasons[0] if reasons else NO_MESSAGES


def _batches(trajectories: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    """Yield whole trajectories, some hundred thousand ids a time."""
    batch: list[Trajectory] = []
    n_tokens = 0
    for trajectory in trajectories:
        batch.append(trajectory)
        n_tokens += trajectory.n_action_tokens + sum(map(_n_delta, trajectory.steps))
        if n_tokens >= _BATCH_TOKENS:
            yield batch
            batch, n_tokens = [], 0
    if batch:
        yield batch


def _n_delta(step: Step) -> int:
    return 0 if step.prompt_delta is None else len(step.prompt_delta)


def _n_covered(spans: Iterable[Covered]) -> int:
    """Return the action ids that findings cover, each once, whichever routes found it."""
    n, covered = 0, (-1, 0)  # the step, and the end of what is counted in its action
    for span in sorted(spans, key=lambda span: (span.step_index, span.start)):
        seen = covered[1] if covered[0] == span.step_index else 0
        n += max(0, span.end - max(span.start, seen))
        covered = span.step_index, max(span.end, seen)
    return n
