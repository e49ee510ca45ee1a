import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory
from trajkit.drift.price.rules import TRAINER_RULES, RuleCost, costs
from trajkit.records import Segment, SegmentKind
from trajkit.sequence import build_sequences

RULES = {rule.name: rule for rule in TRAINER_RULES}
LIMIT = 1024

P0 = [10, 11, 12]
A0 = [20, 21, 22, 23]
A1 = [40, 41]
A2 = [50, 51, 52]


def cost(name: str, calls: Any, n_findings: int = 0, **given: Any) -> RuleCost:
    return RULES[name].cost(make_trajectory(calls, **given).steps, n_findings)


def rows(n_rows: int, n_trained: int, n_lost: int, n_repeated: int) -> RuleCost:
    return RuleCost(
        n_rows=n_rows,
        n_trained_tokens=n_trained,
        n_lost_tokens=n_lost,
        n_repeated_tokens=n_repeated,
        n_emptied_trajectories=int(n_trained == 0 and n_lost > 0),
    )


HOLDS = [*P0, *A0, 30]
CLEAN = [(P0, A0), (HOLDS, A1), ([*HOLDS, *A1, 31], A2)]

INSIDE = [*P0, 20, 21, 99, 30]
"""The first action comes back with its third id changed."""
BROKEN = [(P0, A0), (INSIDE, A1), ([*INSIDE, *A1, 31], A2)]

EARLY = [*P0[:2], 98, *A0, 30]
"""The prompt itself comes back changed."""
REWRITTEN = [(P0, A0), (EARLY, A1)]

RETRIED = [(P0, A0), (P0, A1), ([*P0, *A0, 30], A2)]
"""The second step asks again; the third goes on from the first."""

WORKED = {
    "row-per-step": [rows(3, 9, 0, 7 + 10), rows(3, 9, 0, 5 + 9), rows(2, 6, 0, 2)],
    "keep-recorded": [rows(1, 9, 0, 0), rows(2, 9, 0, 5), rows(2, 6, 0, 2)],
    "fork": [rows(1, 9, 0, 0), rows(2, 9, 0, 5), rows(2, 6, 0, 2)],
    "realign-trl": [rows(1, 9, 0, 0), rows(1, 7, 2, 0), rows(2, 6, 0, 2)],
    "realign-slime": [rows(1, 9, 0, 0), rows(1, 5, 4, 0), rows(2, 6, 0, 2)],
    "mask": [rows(1, 9, 0, 0), rows(1, 0, 9, 0), rows(1, 0, 6, 0)],
    "drop": [rows(1, 9, 0, 0), rows(0, 0, 9, 0), rows(0, 0, 6, 0)],
}


@pytest.mark.parametrize("name", RULES)
def test_each_rule_on_a_clean_a_broken_and_a_rewritten_trajectory(name):
    clean, broken, rewritten = WORKED[name]
    assert cost(name, CLEAN) == clean
    assert cost(name, BROKEN, 1) == broken
    assert cost(name, REWRITTEN, 1) == rewritten


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("keep-recorded", rows(2, 9, 0, 3)),
        ("fork", rows(3, 9, 0, 3 + 7)),
        ("realign-trl", rows(2, 5, 4, 7)),  # its rule overwrites what was answered before
        ("realign-slime", rows(2, 9, 0, 3)),
        ("mask", rows(1, 0, 9, 0)),
    ],
)
def test_a_prompt_asked_again_and_a_return_to_the_first_answer(name, expected):
    assert cost(name, RETRIED) == expected


def test_the_thresholds_of_both_realigning_rules():
    long = list(range(2000, 2000 + LIMIT + 5))
    parts = [(P0, long), ([*P0, *long[:5], 99], A1)]  # 1024 ids before the end
    assert cost("realign-trl", parts) == rows(2, LIMIT + 7, 0, 8)
    assert cost("realign-slime", parts) == rows(1, 2, LIMIT + 5, 0)
    later = [(P0, long), ([*P0, *long[:6], 99], A1)]
    assert cost("realign-trl", later) == rows(1, 8, LIMIT - 1, 0)
    answered_at_length = [(P0, A0), (INSIDE, long)]
    assert cost("realign-slime", answered_at_length) == rows(2, LIMIT + 9, 0, 5)
    assert cost("realign-trl", answered_at_length) == rows(1, LIMIT + 7, 2, 0)


def test_rows_without_a_trained_token_are_not_written_except_where_they_are():
    calls = [(P0, A0), ([99], [])]
    for name in ("keep-recorded", "realign-trl", "realign-slime"):
        assert cost(name, calls) == rows(1, 4, 0, 0)
    assert cost("fork", calls) == rows(2, 4, 0, 0)


def test_inserted_ids_and_excluded_steps_are_neither_trained_nor_lost():
    inserted = [(Segment(SegmentKind.INSERTED, 3, 5),), None]
    got = cost("realign-slime", [(P0, A0), (INSIDE, A1)], segments=inserted)
    assert (got.n_trained_tokens, got.n_lost_tokens) == (2, 2)
    got = cost("mask", [(P0, A0), (INSIDE, A1)], exclude_reason=["abandoned", None])
    assert (got.n_trained_tokens, got.n_lost_tokens) == (0, 2)


@pytest.mark.parametrize("name", RULES)
def test_nothing_costs_nothing(name):
    assert RULES[name].cost((), 0) == RuleCost()
    empty = make_step(prompt_delta=P0)
    assert RULES[name].cost((empty,), 0).n_trained_tokens == 0


def test_rules_have_names_of_their_own_and_say_where_they_were_read():
    assert len(RULES) == len(TRAINER_RULES)
    assert all(rule.source and rule.formula.endswith(".") for rule in TRAINER_RULES)


def test_the_guide_has_a_row_for_each_rule_in_order():
    guide = (Path(__file__).parents[4] / "docs/drift.md").read_text()
    table = guide.split("| rule | ")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.M) == list(RULES)


# --- the rules by their words, on whole prompts ---


class Row(NamedTuple):
    ids: list[int]
    trained: list[bool]
    start: int


def shared(left: list[int], right: list[int]) -> int:
    n = 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    return n


def overwritten_from(name: str, row: Row, prompt: list[int], action: list[int]) -> int | None:
    same = shared(row.ids, prompt)
    if same == len(row.ids):
        return same
    if name == "fork" or same < row.start:
        return None
    if name == "realign-trl":
        return same if len(row.ids) - same < LIMIT else None
    return row.start if len(action) < LIMIT else None


def by_words(name: str, calls: list[tuple[list[int], list[int]]]) -> tuple[int, int]:
    """Return the rows and trained tokens that a rule makes of a line of calls, id by id."""
    written: list[Row] = []
    for prompt, action in calls:
        at = overwritten_from(name, written[-1], prompt, action) if written else None
        trained = [False] * len(prompt)
        if at is not None:
            row = written.pop()
            trained = [*row.trained[:at], *([False] * (len(prompt) - at))]
        written.append(Row([*prompt, *action], trained + [True] * len(action), len(prompt)))
    kept = [row for row in written if name == "fork" or any(row.trained)]
    return len(kept), sum(sum(row.trained) for row in kept)


@st.composite
def lines(draw) -> list[tuple[list[int], list[int]]]:
    """Return calls in a line: each prompt is the last prompt + action, changed somewhere, and more.

    No id stands twice, so that a prompt shares most with the call before it.
    """
    fresh = iter(range(10**6))
    new: Callable[[int], list[int]] = lambda n: [next(fresh) for _ in range(n)]  # noqa: E731
    calls = [(new(draw(st.integers(1, 4))), new(draw(st.integers(0, 4))))]
    for _ in range(draw(st.integers(0, 5))):
        held = [*calls[-1][0], *calls[-1][1]]
        keep = draw(st.one_of(st.just(len(held)), st.integers(0, len(held))))
        more = draw(st.integers(1, 4))
        n_action = draw(st.sampled_from([0, 1, 3, 5, LIMIT - 1, LIMIT]))
        calls.append(([*held[:keep], *new(more)], new(n_action)))
    return calls


@given(lines())
def test_rules_for_a_line_of_calls_do_what_their_words_say(calls):
    n_sampled = sum(len(action) for _, action in calls)
    for name in ("fork", "realign-trl", "realign-slime"):
        got = cost(name, calls)
        assert (got.n_rows, got.n_trained_tokens) == by_words(name, calls), name
        assert got.n_trained_tokens + got.n_lost_tokens == n_sampled
    goes_on = all(
        shared([*prompt, *action], later) == len(prompt) + len(action)
        for (prompt, action), (later, _) in pairwise(calls)
    )
    assert cost("mask", calls).n_trained_tokens == (n_sampled if goes_on else 0)


@st.composite
def trees(draw) -> list[tuple[list[int], list[int]]]:
    """Return calls that go on from any earlier call, from any place of it."""
    ids = st.lists(st.integers(1, 3), max_size=4)
    calls: list[tuple[list[int], list[int]]] = []
    for _ in range(draw(st.integers(1, 7))):
        prompt, action = draw(st.sampled_from(calls)) if calls else ([], [1])
        whole = [*prompt, *action]
        keep = draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
        calls.append(([*whole[:keep], *draw(ids)], [*draw(ids), 9]))
    return calls


@given(trees())
def test_keep_recorded_makes_the_rows_that_sequences_are(calls):
    trajectory = make_trajectory(calls)
    sequences = build_sequences(trajectory)
    got = RULES["keep-recorded"].cost(trajectory.steps, 0)
    assert got.n_rows == len(sequences)
    assert got.n_trained_tokens == sum(int(one.action_mask.sum()) for one in sequences)
    own = sum(len(s.prompt_delta) + s.n_action_tokens for s in trajectory.steps)
    assert got.n_repeated_tokens == sum(len(one.token_ids) for one in sequences) - own


@given(trees(), st.integers(0, 2))
def test_every_sampled_token_is_trained_or_lost(calls, n_findings):
    n_sampled = sum(len(action) for _, action in calls)
    for name in RULES:
        got = cost(name, calls, n_findings)
        assert got.n_trained_tokens + got.n_lost_tokens == n_sampled
        assert min(got.n_trained_tokens, got.n_lost_tokens, got.n_rows) >= 0


@given(trees() | lines(), st.integers(0, 2), st.booleans(), st.booleans())
def test_what_is_known_without_asking_a_rule_is_what_it_says(calls, n_findings, cut, excludes):
    n = len(calls)
    inserted = [(Segment(SegmentKind.INSERTED, 0, 1),) if cut else None, *[None] * (n - 1)]
    excluded = [None] * (n - 1) + ["abandoned" if excludes else None]
    steps = make_trajectory(calls, segments=inserted, exclude_reason=excluded).steps
    assert costs(steps, n_findings) == {
        rule.name: rule.cost(steps, n_findings) for rule in TRAINER_RULES
    }
