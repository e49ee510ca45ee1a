"""What drift costs: the tokens it touches, the masks it breaks, what each trainer's rule loses.

Pure functions over a trajectory and its findings. Every count adds over trajectories, so the price
of a file is the sum of the prices of its trajectories, in any order and any grouping.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from trajkit.drift.causes.window import TURN_ENDS
from trajkit.drift.findings import DriftFinding, Route
from trajkit.drift.price.counts import Counts
from trajkit.drift.price.rules import TRAINER_RULES, RuleCost, costs
from trajkit.records import SegmentKind, Step, Trajectory, ids_array
from trajkit.tokenizer import Tokenizer

_N_DECILES = 10

_Spans: TypeAlias = dict[int, list[tuple[int, int]]]
"""By step index, spans `[start, end)` counted in the step's prompt + action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure(Counts):
    """Which action tokens drift reaches.

    Attributes:
        n_tokens: ids of all steps, each once: deltas and actions.
        n_touched_tokens: action tokens inside differing regions, each once.
        n_shifted_in_step: action tokens outside all regions, behind the first one that begins in
            their own step.
        n_shifted_tokens: action tokens outside all regions whose prompt + action holds a region
            before them, or whose prompt is one that broke: the context differs from the other
            side's.
        n_first_outside: trajectories whose first region begins outside an action: in no decile.
        by_first_step: trajectories by the step index of their first region.
        by_first_decile: trajectories by the place of the first region in its action, 0 to 9.
    """

    n_trajectories: int = 0
    n_drifted_trajectories: int = 0
    n_steps: int = 0
    n_drifted_steps: int = 0
    n_tokens: int = 0
    n_action_tokens: int = 0
    n_touched_tokens: int = 0
    n_shifted_in_step: int = 0
    n_shifted_tokens: int = 0
    n_first_outside: int = 0
    by_first_step: Counter[int] = field(default_factory=Counter)
    by_first_decile: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskDamage(Counts):
    """What drift does to the border between action and context; a region counts once.

    Attributes:
        n_straddling_tokens: other-side ids that hold bytes of an action and of its context.
        n_stop_lost: stop ids of the recorded side that the other side does not have.
        n_stop_gained: stop ids of the other side that the recorded side does not have.
        n_control_from_content: control ids of the other side that the recorded side spells out
            with ordinary ids.
        n_other_control: control ids that appear or disappear in any other way.
        n_not_judged: findings left out, because they are cut or no tokenizer was given.
    """

    n_straddling_tokens: int = 0
    n_stop_lost: int = 0
    n_stop_gained: int = 0
    n_control_from_content: int = 0
    n_other_control: int = 0
    n_not_judged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPrice:
    """The price of drift in one trajectory or, added up, in many; `by_rule` as `TRAINER_RULES`."""

    exposure: Exposure = field(default_factory=Exposure)
    mask_damage: MaskDamage = field(default_factory=MaskDamage)
    by_rule: dict[str, RuleCost] = field(
        default_factory=lambda: {rule.name: RuleCost() for rule in TRAINER_RULES}
    )

    def __add__(self, other: DriftPrice) -> DriftPrice:
        return DriftPrice(
            exposure=self.exposure + other.exposure,
            mask_damage=self.mask_damage + other.mask_damage,
            by_rule={name: cost + other.by_rule[name] for name, cost in self.by_rule.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the price as JSON output has it."""
        return {
            "exposure": self.exposure.to_dict(),
            "mask_damage": self.mask_damage.to_dict(),
            "by_rule": {name: cost.to_dict() for name, cost in self.by_rule.items()},
        }


def price_drift(
    trajectory: Trajectory, findings: Sequence[DriftFinding], tokenizer: Tokenizer | None
) -> DriftPrice:
    """Return what a trajectory's drift costs.

    Args:
        trajectory: the trajectory.
        findings: all its findings, of whatever route, in any order.
        tokenizer: the sampler's; without it no finding is judged for mask damage.

    Raises:
        InputError: I304 when the tokenizer does not know an id of a finding.
    """
    placed = [step for step in trajectory.steps if step.prompt_delta is not None]
    lines = _Lines(trajectory)
    return DriftPrice(
        exposure=_exposure(trajectory, findings, lines),
        mask_damage=_mask_damage(trajectory, findings, lines, tokenizer),
        by_rule=costs(placed, len(findings)),
    )


class _Lines:
    """Where a region lies: in its step and, when it is long, in those that go on from there."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._by_index = {step.step_index: step for step in trajectory.steps}
        self._next: dict[int, Step] = {}
        for step in trajectory.steps:
            parent = step.parent
            if parent is not None and step.prompt_keep == parent.sequence_len:
                self._next.setdefault(parent.step_index, step)

    def under(self, found: DriftFinding) -> Iterator[Step]:
        """Yield the steps whose own ids a finding's region holds, its own step first."""
        _, end = _span(found)
        step: Step | None = self._by_index[found.step_index]
        while step is not None:
            yield step
            behind = _action(step)[1]
            step = self._next.get(step.step_index) if behind < end else None


def _span(found: DriftFinding) -> tuple[int, int]:
    """Return the recorded ids of a region, `[start, end)` in the step's prompt + action."""
    n = int(found.evidence.get("n_recorded", len(found.recorded_ids)))
    return found.token_start, found.token_start + n


def _action(step: Step) -> tuple[int, int]:
    """Return the `[start, end)` of a step's action in its prompt + action."""
    start = step.prompt_len or 0
    return start, start + step.n_action_tokens


# --- touched ---


def _exposure(trajectory: Trajectory, findings: Sequence[DriftFinding], lines: _Lines) -> Exposure:
    own, broken = _first_places(findings)
    spans: _Spans = defaultdict(list)
    for found in findings:
        for step in lines.under(found):
            spans[step.step_index].append(_span(found))
    first_of: dict[int, int] = {}
    touched = in_step = shifted = n_tokens = 0
    for step in trajectory.steps:
        index = step.step_index
        n_tokens += step.n_action_tokens
        n_tokens += 0 if step.prompt_delta is None else len(step.prompt_delta)
        touched += _n_covered(spans[index], _action(step))
        in_step += _n_unchanged(step, own[index], spans[index]) if index in own else 0
        first = _first_difference(step, own, broken, first_of)
        if first is not None:
            first_of[index] = first
            shifted += _n_unchanged(step, first, spans[index])
    return Exposure(
        n_trajectories=1,
        n_drifted_trajectories=int(bool(findings)),
        n_steps=len(trajectory.steps),
        n_drifted_steps=len(own),
        n_tokens=n_tokens,
        n_action_tokens=trajectory.n_action_tokens,
        n_touched_tokens=touched,
        n_shifted_in_step=in_step,
        n_shifted_tokens=shifted,
    ) + _first_divergence(trajectory, findings)


def _first_places(findings: Iterable[DriftFinding]) -> tuple[dict[int, int], dict[int, int]]:
    """Return where each step's first region begins, and where each broken prompt parts."""
    own: dict[int, int] = {}
    broken: dict[int, int] = {}
    for found in findings:
        start = found.token_start
        own[found.step_index] = min(start, own.get(found.step_index, start))
        later = found.evidence.get("next_step_index")
        if later is not None:
            broken[later] = min(start, broken.get(later, start))
    return own, broken


def _first_difference(
    step: Step, own: dict[int, int], broken: dict[int, int], first_of: dict[int, int]
) -> int | None:
    """Return where a step's prompt + action first differs, by itself or by what it keeps."""
    places = [table[step.step_index] for table in (own, broken) if step.step_index in table]
    inherited = None if step.parent is None else first_of.get(step.parent.step_index)
    if inherited is not None and inherited < (step.prompt_keep or 0):
        places.append(inherited)
    return min(places, default=None)


def _first_divergence(trajectory: Trajectory, findings: Sequence[DriftFinding]) -> Exposure:
    if not findings:
        return Exposure()
    first = min(findings, key=lambda found: (found.step_index, found.token_start))
    by_step = Counter([first.step_index])
    if first.action_start is None:
        return Exposure(n_first_outside=1, by_first_step=by_step)
    n = next(s.n_action_tokens for s in trajectory.steps if s.step_index == first.step_index)
    decile = min(_N_DECILES - 1, _N_DECILES * first.action_start // max(1, n))
    return Exposure(by_first_step=by_step, by_first_decile=Counter([decile]))


def _n_unchanged(step: Step, position: int, spans: Iterable[tuple[int, int]]) -> int:
    """Return the action ids from a position of the step's prompt + action on, outside spans."""
    start, end = _action(step)
    start = min(end, max(start, position))
    return end - start - _n_covered(spans, (start, end))


def _n_covered(spans: Iterable[tuple[int, int]], within: tuple[int, int]) -> int:
    """Return the ids of a stretch that spans cover, each once."""
    n, seen = 0, within[0]
    for start, end in sorted(spans):
        left, right = max(start, seen), min(end, within[1])
        n += max(0, right - left)
        seen = max(seen, right)
    return n


# --- mask damage ---


def _mask_damage(
    trajectory: Trajectory,
    findings: Sequence[DriftFinding],
    lines: _Lines,
    tokenizer: Tokenizer | None,
) -> MaskDamage:
    damage = MaskDamage()
    if tokenizer is None:
        return MaskDamage(n_not_judged=len(findings))
    spelt = frozenset(i for i, text in tokenizer.control.items() if text in TURN_ENDS)
    stops = spelt.union(*(_stop_ids(step, tokenizer) for step in trajectory.steps))
    judged: _Spans = defaultdict(list)
    joined: _Spans = defaultdict(list)
    # routes that know a region exactly go first; the same region found again is passed over
    for found in sorted(findings, key=lambda f: (f.route is Route.CHAIN, f.route is not Route.IDS)):
        if found.evidence.get("cut"):
            damage += MaskDamage(n_not_judged=1)
            continue
        under = list(lines.under(found))
        if _is_new(found, under, judged):
            damage += _control_damage(found, stops, tokenizer)
        if found.route is not Route.IDS and _is_new(found, under, joined):
            borders = [border for step in under for border in _action(step)]
            n = _n_straddling(found, borders, tokenizer)
            damage += MaskDamage(n_straddling_tokens=n)
    return damage


def _is_new(found: DriftFinding, under: Iterable[Step], known: _Spans) -> bool:
    """Return whether a region meets none that is known; a new one becomes known."""
    start, end = _span(found)
    span = start, max(end, start + 1)  # what is inserted has a place too
    tables = [known[step.step_index] for step in under]  # ascending and apart, each of them
    if any(_meets(span, spans) for spans in tables):
        return False
    for spans in tables:
        insort(spans, span)
    return True


def _meets(span: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    at = bisect_left(spans, span)
    behind = at < len(spans) and spans[at][0] < span[1]
    return behind or (at > 0 and span[0] < spans[at - 1][1])


def _stop_ids(step: Step, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the control ids that end a step's action, as its segments say or as it ends."""
    action = step.action_tokens
    if action is None:
        return frozenset()
    at = 0 if step.prompt_delta is None else len(step.prompt_delta)
    stops = [s for s in step.segments or () if s.kind is SegmentKind.STOP]
    named = [i for s in stops for i in action[max(0, s.start - at) : s.end - at].tolist()]
    ending = named if step.segments is not None else action[-1:].tolist()
    return frozenset(token_id for token_id in ending if token_id in tokenizer.control)


def _control_damage(found: DriftFinding, stops: frozenset[int], tokenizer: Tokenizer) -> MaskDamage:
    recorded = Counter(i for i in found.recorded_ids if i in tokenizer.control)
    other = Counter(i for i in found.retokenized_ids if i in tokenizer.control)
    lost, gained = recorded - other, other - recorded
    spelt = Counter({i: min(n, _n_spelt(found, i, tokenizer)) for i, n in gained.items()})
    added = gained - spelt
    n_lost = sum(n for i, n in lost.items() if i in stops)
    n_gained = sum(n for i, n in added.items() if i in stops)
    return MaskDamage(
        n_stop_lost=n_lost,
        n_stop_gained=n_gained,
        n_control_from_content=spelt.total(),
        n_other_control=lost.total() - n_lost + added.total() - n_gained,
    )


def _n_spelt(found: DriftFinding, control_id: int, tokenizer: Tokenizer) -> int:
    """Return how often the recorded side spells a control token with ordinary ids."""
    runs = [b""]
    for token_id in found.recorded_ids:
        if token_id in tokenizer.control:
            runs.append(b"")
        else:
            runs[-1] += tokenizer.token_bytes(token_id)
    return sum(run.count(tokenizer.control[control_id].encode()) for run in runs)


def _n_straddling(found: DriftFinding, borders: Iterable[int], tokenizer: Tokenizer) -> int:
    """Return the other-side ids that reach over a border of the recorded side.

    A border is found again by its bytes: where those before it differ, nothing can be told.
    """
    start, end = _span(found)
    other = ids_array([*found.retokenized_ids, *found.evidence.get("next_ids", ())])
    pieces = tokenizer.pieces(other)
    text, places = b"".join(pieces), list(accumulate(map(len, pieces), initial=0))
    straddling: set[int] = set()
    for border in borders:
        before = found.recorded_ids[: border - start]
        data = b"".join(tokenizer.pieces(ids_array(before))) if start < border <= end else b""
        if data and text.startswith(data):
            over = (i for i, (a, b) in enumerate(pairwise(places)) if a < len(data) < b)
            straddling.update(over)
    return len(straddling)
