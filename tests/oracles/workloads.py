"""What agents read and write, one kind of data a function: whole prompts and actions, no tree.

Every workload is a group of rollouts: for each, its calls in order. Nothing here knows how scoring
shares, packs or attends; a call is scored by reading `prompt + action` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tests.builders import make_trajectory
from trajkit.records import Trajectory

Prompt: TypeAlias = list[int]
Call: TypeAlias = tuple[Prompt, list[int]]
"""The whole prompt and the action of one policy call."""
Rollouts: TypeAlias = list[list[Call]]
"""The calls of each rollout of a group."""

FIRST_FREE = 55
"""Ids from here on stand in no workload."""


class _Speaker:
    """Random ids of those that workloads use."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def say(self, n: int) -> list[int]:
        return [int(one) for one in self._random.integers(3, FIRST_FREE, n)]


def append_only() -> Rollouts:
    """Return an agent whose prompts go on from all that came before."""
    agent = _Speaker(1)
    return [_chain([(agent.say(9), agent.say(5)), *((agent.say(4), agent.say(5)),) * 3])]


def observation_heavy() -> Rollouts:
    """Return an agent that writes one id in twenty of what it reads."""
    agent = _Speaker(2)
    return [_chain([(agent.say(60), agent.say(3)) for _ in range(3)])]


def sliding_window() -> Rollouts:
    """Return an agent that sees its instructions and its last two turns."""
    agent = _Speaker(3)
    system, calls = agent.say(10), list[Call]()
    turns: list[list[int]] = []
    for _ in range(6):
        seen, action = agent.say(5), agent.say(4)
        kept = [token for turn in turns[-2:] for token in turn]
        calls.append(([*system, *kept, *seen], action))
        turns.append([*seen, *action])
    return [calls]


def compaction() -> Rollouts:
    """Return an agent whose history becomes a summary of its own, and grows on from there."""
    agent = _Speaker(4)
    system = agent.say(8)
    before = _chain([([*system, *agent.say(6)], agent.say(5)), (agent.say(5), agent.say(4))])
    prompt, action = before[-1]
    summary = agent.say(7)
    asked = [*prompt, *action, *agent.say(3)]
    after = _chain(
        [([*system, *summary, *agent.say(3)], agent.say(4)), (agent.say(4), agent.say(6))]
    )
    return [[*before, (asked, summary), *after]]


def grpo_group() -> Rollouts:
    """Return rollouts of one prompt; two begin alike, two are the same."""
    agent = _Speaker(5)
    prompt = agent.say(12)
    first = agent.say(6)
    rollouts = [_chain([(prompt, agent.say(6)), (agent.say(4), agent.say(5))]) for _ in range(2)]
    alike = [
        _chain([(prompt, [*first[:4], *agent.say(3)]), (agent.say(4), agent.say(5))])
        for _ in range(2)
    ]
    return [*rollouts, *alike, alike[0]]


def branching() -> Rollouts:
    """Return a search: retries, branches inside an action and an observation, nested ones."""
    agent = _Speaker(6)
    trunk = _chain([(agent.say(8), agent.say(6)), (agent.say(6), agent.say(5))])
    (root, first), (grown, second) = trunk
    within_seen = [*grown[:-3], *agent.say(4)]
    nested = [*within_seen, *(left := agent.say(4)), *agent.say(3)]
    return [
        [
            *trunk,
            (root, [*first[:3], *agent.say(3)]),
            (root, agent.say(4)),
            (within_seen, left),
            (nested, agent.say(3)),
            (nested, agent.say(4)),
            ([*grown, *second[:2], *agent.say(3)], agent.say(3)),
        ]
    ]


WORKLOADS: dict[str, Callable[[], Rollouts]] = {
    "append-only": append_only,
    "observation 95 %": observation_heavy,
    "sliding window": sliding_window,
    "compaction": compaction,
    "GRPO group": grpo_group,
    "branching": branching,
}


def trajectories_of(
    rollouts: Rollouts, *, group: str | None = "g", name: str = "t"
) -> list[Trajectory]:
    """Return rollouts as records, in order; of one group unless told otherwise."""
    return [
        make_trajectory(calls, f"{name}{at}", group_id=[group] * len(calls))
        for at, calls in enumerate(rollouts)
    ]


def calls_of(rollouts: Rollouts) -> list[Call]:
    """Return the calls of all rollouts in order."""
    return [call for calls in rollouts for call in calls]


def _chain(parts: Sequence[tuple[list[int], list[int]]]) -> list[Call]:
    """Return append-only calls from what each adds to the prompt, and its action."""
    calls, context = list[Call](), list[int]()
    for added, action in parts:
        context = [*context, *added]
        calls.append((context, action))
        context = [*context, *action]
    return calls
