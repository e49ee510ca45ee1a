"""The scored action tokens of a run as flat columns: all that losses and statistics need.

About 40 bytes a token and a thousand a step stay in memory, whatever else the data hold;
everything else of a trajectory is let go once its numbers are taken.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trajkit.formats.raw import other_settings
from trajkit.records import Floats, LogprobKind, Mask, SegmentKind, Step, Trajectory
from trajkit.rl.table import F64
from trajkit.rl.values import gae_of_steps
from trajkit.safe.json import strict_json

KINDS = tuple(SegmentKind)
"""By their numbers in a column."""
GroupKind: TypeAlias = Literal["group_id", "first_prompt"]
Group: TypeAlias = tuple[GroupKind, str]
"""What the trajectories of one group share: the name of it, and its value."""


_NO_TOP_K = 1 << 30
"""What SGLang writes where it keeps the whole vocabulary."""
_NO_FLOATS: Floats = np.empty(0, dtype=np.float32)
_Context: TypeAlias = tuple[Floats, NDArray[np.int32], NDArray[np.int32]]
"""Log-probs [C], the step that brought each token, and the step it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlace:
    """Which token of the data a number speaks of."""

    trajectory_id: str
    step_index: int
    action_position: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredStep:
    """What is known of a step's action beyond its record.

    Attributes:
        logprobs: [A] nats under the checkpoint, NaN where there is none.
        ref_logprobs: [A] nats under a reference model; `None`: those of the record.
        exact_kl: [A] nats, KL(checkpoint || reference); `None` where it was not computed.
        entropy: [A] nats, of the checkpoint; `None` where it is not known.
        loss_mask: [A] True where a loss counts the token; `None`: where the policy sampled it.
        context_logprobs: [C] nats of the context tokens that a loss counts; `None`: of none.
        n_before: how many of those stand in front of the action; the others behind it.
    """

    step: Step
    logprobs: Floats
    ref_logprobs: Floats | None = None
    exact_kl: Floats | None = None
    entropy: Floats | None = None
    loss_mask: Mask | None = None
    context_logprobs: Floats | None = None
    n_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredTokens:
    """N action tokens with a log-prob, of S steps, of M trajectories.

    Attributes:
        logprobs: [N] float32 nats; -inf where the checkpoint gives the id no probability.
        rollout_logprobs: [N] float32 nats as recorded, NaN where not.
        ref_logprobs, exact_kl: [N] float32 nats of a reference model, NaN where there are none.
        entropy: [N] float32 nats of the checkpoint, NaN where it is not known.
        recorded_advantages, old_logprobs: [N] float32; `None` unless every token has one.
        loss_mask: [N] whether a loss counts the token.
        kind: [N] int8 index into `KINDS`: what the record calls this part of the action.
        position: [N] int32 index in its action.
        step: [N] int32 index into the per-step columns.
        context_logprobs, context_step: [C] the same of context tokens that a loss counts.
        context_answers: [C] the step whose action a context token stands behind, -1 for none.
        step_trajectory, step_index: [S]; `step_comparable`: [S] whether recorded log-probs are;
            `step_row`: [S] the token sequence a step stands in; `step_gae`: [S] NaN where there are
            no values; `step_entropy`: [S] nats, the mean over its sampled tokens, NaN as above.
        trajectory_ids, returns, groups: [M]; a return is NaN where no finite reward is known, a
            group is `None` where it is unknown.
        n_recorded_advantages: tokens with a recorded advantage.
    """

    logprobs: Floats
    rollout_logprobs: Floats
    ref_logprobs: Floats
    exact_kl: Floats
    entropy: Floats
    recorded_advantages: Floats | None
    old_logprobs: Floats | None
    loss_mask: Mask
    kind: NDArray[np.int8]
    position: NDArray[np.int32]
    step: NDArray[np.int32]
    context_logprobs: Floats
    context_step: NDArray[np.int32]
    context_answers: NDArray[np.int32]
    step_trajectory: NDArray[np.int64]
    step_index: NDArray[np.int64]
    step_row: NDArray[np.int64]
    step_comparable: Mask
    step_gae: F64
    step_entropy: F64
    trajectory_ids: tuple[str, ...]
    returns: F64
    groups: tuple[Group | None, ...]
    n_recorded_advantages: int

    @property
    def trajectory(self) -> NDArray[np.int64]:
        """Return [N] index of each token's trajectory."""
        return self.step_trajectory[self.step]

    @property
    def group_index(self) -> NDArray[np.int64]:
        """Return [M] the group of each trajectory, which is one by itself where it has none."""
        seen: dict[Any, int] = {}
        own = [
            seen.setdefault(("alone", at) if group is None else group, len(seen))
            for at, group in enumerate(self.groups)
        ]
        return np.array(own, dtype=np.int64)

    def place(self, token: int) -> TokenPlace:
        """Return where a token stands in the data."""
        step = self.step[token]
        return TokenPlace(
            trajectory_id=self.trajectory_ids[self.step_trajectory[step]],
            step_index=int(self.step_index[step]),
            action_position=int(self.position[token]),
        )


_KINDS: dict[str, type[np.generic]] = {
    "logprobs": np.float32,
    "rollout_logprobs": np.float32,
    "ref_logprobs": np.float32,
    "exact_kl": np.float32,
    "entropy": np.float32,
    "advantages": np.float32,
    "old_logprobs": np.float32,
    "loss_mask": np.bool_,
    "kind": np.int8,
    "position": np.int32,
    "step": np.int32,
}
"""The columns that are gathered token by token."""
_ALL_OR_NONE = ("advantages", "old_logprobs")
"""Columns of the record that are used only where every token has a number."""


class TokenCollector:
    """Gathers scored trajectories one by one, and counts what is not among their tokens.

    Attributes:
        n_tokens: action tokens with a log-prob.
        n_first_token: action tokens at position 0 of a sequence: no log-prob exists.
        n_neg_inf: action tokens to which the checkpoint gives probability 0.
        not_comparable: recorded log-probs that are no full softmax's, by reason.
    """

    def __init__(self) -> None:
        self.n_tokens = 0
        self.n_first_token = 0
        self.n_neg_inf = 0
        self.not_comparable: Counter[str] = Counter()
        self._columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _KINDS}
        self._steps: list[tuple[int, int, int, bool, float, float]] = []
        self._trajectories: list[tuple[str, float, Group | None]] = []
        self._whole = dict.fromkeys(_ALL_OR_NONE, True)
        self._context: list[_Context] = []
        self._n_advantages = 0
        self._n_rows = 0

    def add(self, trajectory: Trajectory, scored: Sequence[ScoredStep]) -> None:
        """Take the action tokens of a trajectory's scored steps."""
        scored = [one for one in scored if len(one.logprobs) or one.context_logprobs is not None]
        if not scored:
            return
        rows = rows_of(trajectory)
        gae = gae_of_steps(trajectory)
        numbers: dict[int, int] = {}
        for one in scored:
            index = one.step.step_index
            numbers[index] = len(self._steps)
            self._add_context(one, numbers)
            self._add_step(one, self._n_rows + rows.get(index, 0), gae.get(index, np.nan))
        self._n_rows += 1 + max(rows.values(), default=0)
        reward = trajectory.reward
        self._trajectories.append(
            (
                trajectory.trajectory_id,
                reward if reward is not None and np.isfinite(reward) else np.nan,
                group_of(trajectory),
            )
        )

    def _add_step(self, scored: ScoredStep, row: int, gae: float) -> None:
        step, logprobs = scored.step, scored.logprobs
        sampled = sampled_ids(step)
        self.n_first_token += int((sampled & np.isnan(logprobs)).sum())
        keep = sampled & ~np.isnan(logprobs)
        self.n_tokens += int(keep.sum())
        self.n_neg_inf += int(np.isneginf(logprobs[keep]).sum())
        ref = step.ref_logprobs if scored.ref_logprobs is None else scored.ref_logprobs
        columns: dict[str, NDArray[Any]] = {
            "logprobs": logprobs,
            "rollout_logprobs": _or_nan(step.rollout_logprobs, len(logprobs)),
            "ref_logprobs": _or_nan(ref, len(logprobs)),
            "exact_kl": _or_nan(scored.exact_kl, len(logprobs)),
            "entropy": _or_nan(scored.entropy, len(logprobs)),
            "advantages": _finite(_or_nan(step.advantages, len(logprobs))),
            "old_logprobs": _or_nan(step.old_logprobs, len(logprobs)),
            "loss_mask": sampled if scored.loss_mask is None else scored.loss_mask,
            "kind": kinds_of(step),
            "position": np.arange(len(logprobs), dtype=np.int32),
            "step": np.full(len(logprobs), len(self._steps), dtype=np.int32),
        }
        kept = {name: column[keep] for name, column in columns.items()}
        why = not_comparable(step)
        if why is not None:
            self.not_comparable[why] += int((~np.isnan(kept["rollout_logprobs"])).sum())
        self._n_advantages += int((~np.isnan(kept["advantages"])).sum())
        for name in _ALL_OR_NONE:
            if np.isnan(kept[name]).any():
                self._whole[name] = False
                self._columns[name].clear()
        for name, column in kept.items():
            if self._whole.get(name, True):
                self._columns[name].append(column)
        place = (len(self._trajectories), step.step_index, row, why is None)
        self._steps.append((*place, gae, _mean(kept["entropy"])))

    def _add_context(self, scored: ScoredStep, numbers: Mapping[int, int]) -> None:
        """Take what counts around an action; what stands before it answers the parent's."""
        around = scored.context_logprobs
        if around is None:
            return
        parent, own = scored.step.parent, len(self._steps)
        asked = -1 if parent is None else numbers.get(parent.step_index, -1)
        answers = np.full(len(around), own, dtype=np.int32)
        answers[: scored.n_before] = asked
        known = ~np.isnan(around)
        step = np.full(int(known.sum()), own, dtype=np.int32)
        self._context.append((around[known], step, answers[known]))

    def finish(self) -> ScoredTokens:
        """Return the columns of everything that was added."""
        columns = {
            name: np.concatenate([np.empty(0, dtype=kind), *self._columns[name]])
            for name, kind in _KINDS.items()
        }
        whole = {name: self._whole[name] and self.n_tokens > 0 for name in _ALL_OR_NONE}
        table = np.array(self._steps, dtype=np.float64).reshape(-1, 6)
        owner, index, row, comparable = table[:, :4].T.astype(np.int64)
        nothing: _Context = (_NO_FLOATS, np.empty(0, np.int32), np.empty(0, np.int32))
        context = tuple(zip(nothing, *self._context, strict=True))
        return ScoredTokens(
            logprobs=columns["logprobs"],
            rollout_logprobs=columns["rollout_logprobs"],
            ref_logprobs=columns["ref_logprobs"],
            exact_kl=columns["exact_kl"],
            entropy=columns["entropy"],
            recorded_advantages=columns["advantages"] if whole["advantages"] else None,
            old_logprobs=columns["old_logprobs"] if whole["old_logprobs"] else None,
            loss_mask=columns["loss_mask"],
            kind=columns["kind"],
            position=columns["position"],
            step=columns["step"],
            context_logprobs=np.concatenate(context[0]),
            context_step=np.concatenate(context[1]),
            context_answers=np.concatenate(context[2]),
            step_trajectory=owner,
            step_index=index,
            step_row=row,
            step_comparable=comparable.astype(np.bool_),
            step_gae=table[:, 4],
            step_entropy=table[:, 5],
            trajectory_ids=tuple(name for name, _, _ in self._trajectories),
            returns=np.array([reward for _, reward, _ in self._trajectories], dtype=np.float64),
            groups=tuple(group for _, _, group in self._trajectories),
            n_recorded_advantages=self._n_advantages,
        )


def sampled_ids(step: Step) -> Mask:
    """Return [A] True where the policy sampled the id (inserted ids are not its choice)."""
    mask = step.action_mask
    n_delta = 0 if step.prompt_delta is None else len(step.prompt_delta)
    if mask is None:
        return np.zeros(0, dtype=np.bool_)
    return mask[n_delta : n_delta + step.n_action_tokens]


def kinds_of(step: Step) -> NDArray[np.int8]:
    """Return [A] what each token of an action is, as the record's segments say; else text."""
    n_delta = 0 if step.prompt_delta is None else len(step.prompt_delta)
    kinds = np.full(n_delta + step.n_action_tokens, KINDS.index(SegmentKind.TEXT), dtype=np.int8)
    for segment in step.segments or ():
        kinds[segment.start : segment.end] = KINDS.index(segment.kind)
    return kinds[n_delta:]


def rows_of(trajectory: Trajectory) -> dict[int, int]:
    """Return which token sequence each step's action stands in, by step index.

    The sequences of `build_sequences`, in its order, without their tokens.
    """
    open_at: dict[int, int] = {}
    found: dict[int, int] = {}
    n_rows = 0
    for step in trajectory.steps:
        if step.prompt_delta is None:
            continue
        row = None
        if step.parent is not None and step.prompt_keep == step.parent.sequence_len:
            row = open_at.pop(step.parent.step_index, None)
        if row is None:
            row, n_rows = n_rows, n_rows + 1
        found[step.step_index] = open_at[step.step_index] = row
    return found


def group_of(trajectory: Trajectory) -> Group | None:
    """Return what a trajectory shares with its group: its group id, else its first prompt's ids.

    `None` when neither is known: two unknown prompts are not the same prompt.
    """
    if trajectory.group_id is not None:
        return ("group_id", trajectory.group_id)
    first = trajectory.steps[0].prompt_ids
    if first is None:
        return None
    ids = first.astype("<i4").tobytes()
    return ("first_prompt", hashlib.blake2b(ids, digest_size=16).hexdigest())


def not_comparable(step: Step) -> str | None:
    """Return why a step's recorded log-probs are not the model's own, `None` when they may be.

    Raw log-probs are, whatever the sampling. Others carry the temperature, and top-p, top-k or
    what `extra_json` has under `sampling` leave in them what no full softmax can reproduce.
    """
    if step.logprob_kind is LogprobKind.RAW:
        return None
    if step.temperature is not None and step.temperature != 1.0:
        return f"temperature {step.temperature:g}"
    if step.top_p is not None and step.top_p < 1.0:
        return f"top_p {step.top_p:g}"
    if step.top_k is not None and 0 < step.top_k < _NO_TOP_K:
        return f"top_k {step.top_k}"
    for name, value in _other_settings(step).items():
        return f"{name} {value:g}"
    if step.logprob_kind is LogprobKind.PROCESSED and step.temperature is None:
        return "processed, temperature unknown"
    return None


def _other_settings(step: Step) -> dict[str, float]:
    """Return the settings without a column that altered what a step was sampled from."""
    if step.extra_json is None or '"sampling"' not in step.extra_json:
        return {}
    extra = strict_json(step.extra_json)
    found = extra.get("sampling") if isinstance(extra, dict) else None
    return other_settings(found) if isinstance(found, dict) else {}


def _or_nan(column: Floats | None, n: int) -> Floats:
    return np.full(n, np.nan, dtype=np.float32) if column is None else column


def _finite(values: Floats) -> Floats:
    """Return the same with NaN for what is infinite: nothing can be weighed by it."""
    return np.where(np.isinf(values), np.float32(np.nan), values)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean(dtype=np.float64)) if len(known) else np.nan
