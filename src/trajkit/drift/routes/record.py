"""Route `self`: does a record agree with itself?

Recorded ids can be wrong too. What else the record says of an action is held against its ids: the
text that was logged, how it ended, and how many log-probs stand beside it. Clients cut text at stop
strings, skip control tokens, strip white space and take reasoning apart, so text is called another
only where none of that explains it; and text behind which calls were parsed out is not compared.
What decoders and files are known to do to text is the cause, where the logged text is just that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from trajkit.drift.causes.window import TURN_ENDS, common_head, common_tail
from trajkit.drift.decoding import rewritten_by
from trajkit.drift.findings import UNEXPLAINED, DriftFinding, DriftKind, Route
from trajkit.drift.walked import SHOWN, Found, Walked, edges, require_actions_known, told_apart
from trajkit.formats.raw import is_truncated
from trajkit.records import Ids, Step, Trajectory, ids_array
from trajkit.tokenizer import Tokenizer

SELF_CHECKS: Mapping[str, str] = {
    "text": "the ids spell other text than was logged",
    "stop": "it ended by itself, and the stop id stands in the next prompt",
    "length": "a limit cut it, and it ends with a stop id",
    "logprobs": "log-probs and ids differ in number",
}
"""What is asked of a record, as a broken one reads; `evidence.check` of a finding names it."""

_CUT = 64
"""Characters that a stop string, and what was sampled with its last id, take at most."""
_CLOSED = (">", "]", ")", "}", "```", ":")
"""How text ends that a stop string may have ended."""


def walk_self(
    batch: Sequence[Trajectory],
    tokenizer: Tokenizer,
    wanted: Callable[[int], bool],
    *,
    is_text_own: bool,
) -> list[Walked]:
    """Return what the route finds in each trajectory of a batch.

    Args:
        batch: whole trajectories.
        tokenizer: the sampler's.
        wanted: which step indices to check.
        is_text_own: whether `action_text` is the source's own; else it was made from the ids.

    Raises:
        InputError: I304 when an id of an action is outside the vocabulary.
    """
    require_actions_known([s for t in batch for s in t.steps if s.is_checkable], tokenizer)
    judge = _Judge(tokenizer, is_text_own=is_text_own)
    return [_walk(trajectory, judge, wanted) for trajectory in batch]


def _walk(trajectory: Trajectory, judge: _Judge, wanted: Callable[[int], bool]) -> Walked:
    checked: list[int] = []
    found: list[Found] = []
    following = _followers(trajectory)
    for step in trajectory.steps:
        action = step.action_tokens
        if action is None or not step.is_checkable or not wanted(step.step_index):
            continue
        claims = judge.claims(step)
        if claims.are_there:
            checked.append(step.step_index)
            broken = judge.broken(step, action, claims, following.get(step.step_index))
            found += [_found(step, action, one, judge.tokenizer) for one in broken]
    return Walked(checked=tuple(checked), found=tuple(found))


def _followers(trajectory: Trajectory) -> dict[int, Step]:
    """Return the first step that goes on from each, by the index of the one it goes on from."""
    found: dict[int, Step] = {}
    for step in trajectory.steps:
        parent = step.parent
        if parent is not None and step.prompt_keep == parent.sequence_len:
            found.setdefault(parent.step_index, step)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claims:
    """What a step says of its action besides the ids."""

    text: str | None
    is_part: bool
    """Whether the text need not be all of the action's: reasoning may be kept apart."""
    ended: bool | None
    """Whether a limit cut it (`True`), or it ended (`False`)."""
    n_logprobs: int | None

    @property
    def are_there(self) -> bool:
        """Return whether there is anything to hold against the ids."""
        return not (self.text is None and self.ended is None and self.n_logprobs is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """A claim that the ids do not bear out, at ids `[start, end)` of the action."""

    check: str
    start: int
    end: int
    ids: tuple[int, ...] = ()
    text: str | None = None
    cause: str = UNEXPLAINED
    facts: dict[str, Any] = field(default_factory=dict)


class _Judge:
    """A tokenizer with what follows from it for every step."""

    def __init__(self, tokenizer: Tokenizer, *, is_text_own: bool) -> None:
        self.tokenizer = tokenizer
        self._is_text_own = is_text_own
        self._stops = {i for i, text in tokenizer.control.items() if text in TURN_ENDS}

    def claims(self, step: Step) -> _Claims:
        """Return what a step says of its action."""
        text, is_part = (step.action_text if self._is_text_own else None), False
        if text is None:
            text, is_part = _content(step.action_message_json), True
        logprobs = step.rollout_logprobs
        reason = step.finish_reason
        return _Claims(
            text=text or None,
            is_part=is_part,
            ended=is_truncated(reason) if reason != "stop" else False,
            n_logprobs=None if logprobs is None else len(logprobs),
        )

    def broken(
        self, step: Step, action: Ids, claims: _Claims, following: Step | None
    ) -> Iterator[_Broken]:
        """Yield the claims that the ids do not bear out."""
        n = len(action)
        if claims.n_logprobs not in (None, n):
            facts = {"n_ids": n, "n_logprobs": claims.n_logprobs}
            yield _Broken(check="logprobs", start=0, end=n, facts=facts)
        if claims.ended is True and n and int(action[-1]) in self._stops:
            yield _Broken(check="length", start=n - 1, end=n)
        if claims.ended is False and following is not None:
            stop = self._stop_behind(action, following)
            if stop is not None:
                yield _Broken(
                    check="stop", start=n, end=n, ids=(stop,), text=self.tokenizer.control[stop]
                )
        if claims.text is not None and not self._is_spelt(action, claims):
            yield self._parted(action, claims)

    def _stop_behind(self, action: Ids, following: Step) -> int | None:
        """Return the stop id that the next prompt holds in the action's place, `None` without one.

        Where a stop string may have ended the action, the stop id is the template's own.
        """
        delta = following.prompt_delta
        first = None if delta is None or not len(delta) else int(delta[0])
        if first not in self._stops or (len(action) and int(action[-1]) in self._stops):
            return None
        ending = self.tokenizer.text(action[-_CUT:]).rstrip()
        return None if ending.endswith(_CLOSED) else first

    def _is_spelt(self, action: Ids, claims: _Claims) -> bool:
        """Return whether ids spell a text, whatever clients do to it."""
        said, text = (claims.text or "").strip(), self.tokenizer.text
        return any(_is_text_of(said, text(ids), claims) for ids in self._readings(action))

    def _readings(self, action: Ids) -> Iterator[Ids]:
        """Yield an action's ids, and again without control ids where it has some."""
        yield action
        plain = [i for i in action.tolist() if i not in self.tokenizer.control]
        if len(plain) < len(action):
            yield ids_array(plain)

    def _cause(self, action: Ids, claims: _Claims) -> str:
        """Return why ids spell another text than was logged."""
        said = (claims.text or "").strip()

        def is_log(text: str) -> bool:
            is_behind = not claims.is_part or text.strip().endswith(said)
            return is_behind and _is_text_of(said, text, claims)

        found = (rewritten_by(ids, self.tokenizer, is_log) for ids in self._readings(action))
        return next((cause for cause in found if cause is not None), UNEXPLAINED)

    def _parted(self, action: Ids, claims: _Claims) -> _Broken:
        said = claims.text or ""
        pieces = self.tokenizer.pieces(action)
        mine, theirs = b"".join(pieces), said.encode("utf-8", errors="replace")
        head = common_head(mine, theirs)
        tail = common_tail(mine[head:], theirs[head:])
        ends = list(accumulate(map(len, pieces)))
        start = next((i for i, end in enumerate(ends) if end > head), len(ends))
        stop = next((i + 1 for i, end in enumerate(ends) if end >= len(mine) - tail), len(ends))
        first, last = (ends[i - 1] if i else 0 for i in (start, max(start, stop)))
        shown = theirs[first : len(theirs) - (len(mine) - last)][: 4 * SHOWN]
        return _Broken(
            check="text",
            start=start,
            end=max(start, stop),
            text=shown.decode("utf-8", errors="replace"),
            cause=self._cause(action, claims),
        )


def _is_text_of(said: str, spelt: str, claims: _Claims) -> bool:
    """Return whether a text is what ids spell, or what is left of it behind a stop string's cut."""
    spelt = spelt.strip()
    if claims.is_part or not said:
        return said in spelt
    rest = spelt[len(said) :] if spelt.startswith(said) else None
    return rest is not None and len(rest.strip("\ufffd") if claims.ended else rest) <= (
        0 if claims.ended else _CUT
    )


def _content(message_json: str | None) -> str | None:
    """Return the text of a policy message, `None` where calls were taken out of it or it has none.

    A message that is no JSON is somebody else's error.
    """
    if message_json is None:
        return None
    try:
        message = json.loads(message_json)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or message.get("tool_calls") or message.get("function_call"):
        return None
    content = message.get("content")
    return content if isinstance(content, str) else None


def _found(step: Step, action: Ids, broken: _Broken, tokenizer: Tokenizer) -> Found:
    place = (step.prompt_len or 0) + broken.start
    region = action[broken.start : broken.end]
    evidence: dict[str, Any] = {"check": broken.check, **broken.facts}
    if step.finish_reason is not None and broken.check in ("stop", "length"):
        evidence["finish_reason"] = step.finish_reason
    if len(region) > SHOWN:
        evidence |= {"cut": True, "n_recorded": len(region), "n_other": len(broken.ids)}
    return Found(
        finding=DriftFinding(
            trajectory_id=step.trajectory_id,
            step_index=step.step_index,
            route=Route.SELF,
            kind=DriftKind.RECORD,
            cause=broken.cause,
            token_start=place,
            action_start=broken.start,
            byte_start=sum(map(len, tokenizer.pieces(action[: broken.start]))),
            recorded_ids=tuple(region[:SHOWN].tolist()),
            retokenized_ids=broken.ids,
            recorded_text=tokenizer.text(region[:SHOWN]),
            retokenized_text=broken.text,
            n_action_tokens=len(region),
            recorded_edges=edges(tokenizer.pieces(region[:SHOWN])),
            retokenized_edges=edges(tokenizer.pieces(ids_array(broken.ids))),
            evidence=evidence,
        ),
        covers=(),
        other=told_apart(ids_array([*map(ord, broken.check), *broken.ids])),
        n_recorded=len(region),
    )
