"""Route `render`: messages through the chat template, encoded, against the recorded ids.

Two texts are compared. The whole conversation rendered once is what a trainer gets that renders
finished trajectories. A step's own prompt and action, where the template writes them otherwise
while the conversation is still going on, are what a server or a trainer gets that renders call by
call. Recorded ids and rendered text are held side by side at the borders of the policy's turns, so
that each stretch is compared once, and a difference does not move what stands behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from trajkit.align import common_prefix, same_ids
from trajkit.drift.difference import Difference, differences, in_context
from trajkit.drift.findings import NO_MESSAGES, Route
from trajkit.drift.routes.join import is_joinable, joinable
from trajkit.drift.routes.track import RenderedText, Stretch, Track, Whole
from trajkit.drift.walked import SHOWN, CauseOf, Found, Walked, action_spans, found_in
from trajkit.errors import ERROR_CODES, TrajkitError
from trajkit.formats import FORMATS
from trajkit.formats.conversation import Conversation, recorded_conversation
from trajkit.records import Ids, Trajectory
from trajkit.sequence import TokenSequence
from trajkit.template import (
    ChatTemplate,
    Habits,
    Setting,
    habits_of,
    load_template,
    render,
    suited,
    turn_spans,
)
from trajkit.tokenizer import Tokenizer

NO_TEMPLATE = "needs --chat-template FILE"
_LESS = "the prompt holds far less than the messages before it"
_BRANCHED = "the prompt does not go on from the step before, and the messages it held are not known"
_REFUSALS = {code: ERROR_CODES[code] for code in ("T106", "T107", "R105")} | {
    "T102": "the tokenizer does not keep its own control tokens whole"
}
"""Why one conversation cannot be rendered or encoded; the others are all the same."""
_NEAR = 4096


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """A chat template with all it is given besides messages and tools.

    Attributes:
        template: `None` where no file was named and the tokenizer's folder has none.
        kwargs: further variables of the template.
        now: what it takes for the present.
    """

    template: ChatTemplate | None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    now: datetime

    @cached_property
    def habits(self) -> Habits | None:
        """Return in which form the template takes calls and nulls."""
        return None if self.template is None else habits_of(self.template)

    def told(self) -> dict[str, Any] | None:
        """Return what a report says of the rendering, `None` where nothing could be rendered."""
        if self.template is None or self.habits is None:
            return None
        return {
            "file": self.template.origin,
            "sha256": self.template.sha256,
            "kwargs": dict(self.kwargs),
            "now": self.now.isoformat(timespec="seconds"),
            "tells_time": self.template.tells_time,
            "nulls": self.habits.nulls.value,
        }


def load_renderer(
    template: ChatTemplate | Path | str | None,
    tokenizer: Path | None,
    *,
    kwargs: Mapping[str, Any],
    now: datetime | None,
) -> Renderer:
    """Return the renderer of a template, or of the one beside the tokenizer.

    Args:
        template: the template, or its file or folder; `None` looks beside the tokenizer.
        tokenizer: the tokenizer's folder or file, when it was loaded from one.
        kwargs: further variables of the template.
        now: what the template takes for the present; `None` is the clock, read once.

    Raises:
        TrajkitError: as `load_template` does; without a template beside the tokenizer none.
    """
    folder = tokenizer.parent if tokenizer is not None and tokenizer.is_file() else tokenizer
    if template is None and folder is not None:
        try:
            template = load_template(folder)
        except TrajkitError as problem:
            if problem.code != "T104":
                raise
    elif isinstance(template, str | Path):
        template = load_template(template, folder)
    present = now or datetime.now()  # noqa: DTZ005 - a template's clock is the local one
    return Renderer(template=template, kwargs=kwargs, now=present)


def walk_render(
    batch: Sequence[Trajectory],
    tokenizer: Tokenizer,
    wanted: Callable[[int], bool],
    cause_of: CauseOf,
    renderer: Callable[[], Renderer],
) -> list[Walked]:
    """Return what the route finds in each trajectory of a batch.

    Args:
        batch: whole trajectories.
        tokenizer: makes ids of the rendered text.
        wanted: which step indices to check.
        cause_of: names a difference's cause.
        renderer: asked for when the first trajectory with messages is met.

    Raises:
        InputError: S103 when a message column does not hold JSON.
    """
    return [_walk(one, tokenizer, wanted, cause_of, renderer) for one in batch]


def _walk(
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    wanted: Callable[[int], bool],
    cause_of: CauseOf,
    renderer: Callable[[], Renderer],
) -> Walked:
    steps = [s for s in trajectory.steps if is_joinable(s) and wanted(s.step_index)]
    talk = _conversation(trajectory) if steps else None
    if talk is None:
        return Walked(left_out=((NO_MESSAGES, len(steps)),) if steps else ())
    if renderer().template is None:
        return Walked(left_out=((NO_TEMPLATE, len(steps)),))
    n_known = _n_in_line(trajectory)
    talk = replace(
        talk,
        messages=talk.messages
        if n_known == len(talk.actions)
        else talk.messages[: talk.actions[n_known]],
        actions=talk.actions[:n_known],
    )
    line = Trajectory(trajectory_id=trajectory.trajectory_id, steps=trajectory.steps[:n_known])
    checked = [step.step_index for step in steps if step.step_index < n_known]
    left_out = Counter({_BRANCHED: len(steps) - len(checked)})
    try:
        found, less = _compare(line, talk, tokenizer, cause_of, renderer())
    except TrajkitError as problem:
        if problem.code not in _REFUSALS:
            raise
        found, less = [], set(checked)
        left_out[_REFUSALS[problem.code]] += len(checked)
    else:
        left_out[_LESS] += len(less & set(checked))
    return Walked(
        checked=tuple(index for index in checked if index not in less),
        found=tuple(one for one in found if one.finding.step_index in checked),
        left_out=tuple((why, n) for why, n in left_out.items() if n),
    )


def _n_in_line(trajectory: Trajectory) -> int:
    """Return how many steps go on from one another before one does not: a retry, a branch.

    Behind it, which messages a prompt held is not recorded.
    """
    later = enumerate(trajectory.steps[1:], start=1)
    return next((k for k, step in later if step.messages_keep is None), len(trajectory.steps))


def _conversation(trajectory: Trajectory) -> Conversation | None:
    """Return the trajectory's messages as chat, `None` where some step has none."""
    name = trajectory.steps[0].source_format
    form = next((form for form in FORMATS if form.name == name), None)
    return None if form is None else recorded_conversation(trajectory, form)


def _compare(
    trajectory: Trajectory,
    talk: Conversation,
    tokenizer: Tokenizer,
    cause_of: CauseOf,
    renderer: Renderer,
) -> tuple[list[Found], set[int]]:
    """Return all findings, each difference once, and the steps whose prompt was not compared."""
    found: dict[tuple[object, ...], Found] = {}
    less: set[int] = set()
    source = None if renderer.template is None else renderer.template.source
    facts = {"messages": list(talk.messages), "template": source}
    seen: set[tuple[object, ...]] = set()
    for sequence, stretch in _stretches(trajectory, talk, tokenizer, renderer):
        recorded = sequence.token_ids[stretch.start : stretch.end]
        if same_ids(recorded, stretch.other):
            continue
        if _holds_far_less(recorded, stretch.other):
            less |= {s.step.step_index for s in sequence.steps if s.action_start == stretch.end}
            continue
        n_kept = sequence.steps[0].start
        for one in _found(sequence, stretch, tokenizer, cause_of, facts):
            spot = one.finding.token_start, one.n_recorded, one.other
            is_kept = spot[0] + spot[1] <= n_kept and spot in seen  # the sequence it left told it
            if not is_kept:
                found.setdefault(one.key, one)
            seen.add(spot)
    return list(found.values()), less


def _holds_far_less(recorded: Ids, other: Ids) -> bool:
    """Return whether a stretch is so much shorter than its text that comparing tells nothing.

    A window's prompt beside the whole history: it would cost the history again at each step.
    """
    if len(other) <= 4 * len(recorded) + _NEAR:
        return False
    n_same = common_prefix(recorded, other)
    return len(other) - n_same > 4 * (len(recorded) - n_same) + _NEAR


def _found(
    sequence: TokenSequence,
    stretch: Stretch,
    tokenizer: Tokenizer,
    cause_of: CauseOf,
    facts: dict[str, Any],
) -> Iterator[Found]:
    steps, ids = sequence.steps, sequence.token_ids
    start, end = stretch.start, stretch.end
    first, last = max(0, start - SHOWN), min(len(ids), end + SHOWN)
    found = differences(
        ids[start:end],
        stretch.other,
        tokenizer,
        route=Route.RENDER,
        action=action_spans(steps, start, end),
        facts=facts,
    )
    parts = in_context(
        [part for part in found if _is_told(part, stretch)],
        ids[first:start],
        ids[end:last],
        action_spans(steps, first, last),
    )
    for one in found_in(parts, steps, first, cause_of, stop=end):
        evidence = {"rendered": stretch.text.value} | one.finding.evidence
        yield replace(one, finding=replace(one.finding, evidence=evidence))


def _is_told(part: Difference, stretch: Stretch) -> bool:
    """Return whether a difference counts: of a naive encoding only what messages made control."""
    if stretch.text is not RenderedText.NAIVE:
        return True
    return any(part.other.start <= spot < part.other.end for spot in stretch.forged)


def _stretches(
    trajectory: Trajectory, talk: Conversation, tokenizer: Tokenizer, renderer: Renderer
) -> Iterator[tuple[TokenSequence, Stretch]]:
    """Yield the stretches of each sequence: the steps' own renders, then the whole one's."""
    template, habits = renderer.template, renderer.habits
    if template is None or habits is None:
        return
    messages = suited(talk.messages, habits)
    setting = Setting(
        tools=talk.tools, kwargs=renderer.kwargs, now=renderer.now, nulls=habits.nulls
    )
    whole = Whole(render(template, messages, setting), tokenizer)
    tracks: list[Track] = []
    by_step: dict[int, Track] = {}
    for sequence in joinable(trajectory):
        parent = sequence.steps[0].step.prompt_parent
        track = Track(sequence, whole, None if parent is None else by_step.get(parent))
        tracks.append(track)
        by_step |= {own.step.step_index: track for own in sequence.steps}
    step_of = dict(zip(talk.actions, trajectory.steps, strict=True))
    for turn in turn_spans(template, messages, tokenizer, setting):
        step = step_of.get(turn.message)
        track_of = None if step is None else by_step.get(step.step_index)
        if step is not None and track_of is not None:
            for stretch in track_of.add(step.step_index, turn):
                yield track_of.sequence, stretch
    for track in tracks:
        for stretch in track.whole_stretches():
            yield track.sequence, stretch
