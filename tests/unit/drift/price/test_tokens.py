from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory, tiny_tokenizer
from trajkit.drift.findings import DriftFinding, DriftKind, Route
from trajkit.drift.price.rules import TRAINER_RULES
from trajkit.drift.price.tokens import DriftPrice, Exposure, MaskDamage, price_drift
from trajkit.drift.routes.chain import check_chain
from trajkit.records import Segment, SegmentKind, Trajectory

START, IM_END = 1, 2
SEARCH, NEWLINE, TOKYO = 298, 201, 462


def letters(text: str) -> list[int]:
    """Return the ids of a text's bytes, each byte an id of its own."""
    tiny = tiny_tokenizer()
    by_bytes = {tiny.token_bytes(token_id): token_id for token_id in range(512)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


def finding(step: Any, at: int, recorded, other, route: Route = Route.IDS, **given: Any) -> Any:
    """Return a finding at a place of a step's prompt + action."""
    prompt_len = step.prompt_len or 0
    action_start = at - prompt_len if at >= prompt_len else None
    return DriftFinding(
        trajectory_id=step.trajectory_id,
        step_index=step.step_index,
        route=route,
        kind=DriftKind.TEXT,
        token_start=at,
        action_start=action_start,
        byte_start=None,
        recorded_ids=tuple(recorded),
        retokenized_ids=tuple(other),
        recorded_text=None,
        retokenized_text=None,
        n_action_tokens=len(recorded),
        evidence=given,
    )


def chain(trajectory: Trajectory, tokenizer: Any = None) -> list[DriftFinding]:
    """Return what the chain route finds."""
    found = [
        check_chain(step, step.parent or previous, tokenizer)
        for previous, step in pairwise(trajectory.steps)
    ]
    return [one for one in found if one is not None]


def exposure(trajectory: Trajectory, findings: list[DriftFinding]) -> Exposure:
    return price_drift(trajectory, findings, None).exposure


def damage(trajectory: Trajectory, findings: list[DriftFinding]) -> MaskDamage:
    return price_drift(trajectory, findings, tiny_tokenizer()).mask_damage


P0 = [10, 11, 12]
A0 = [20, 21, 22, 23]
P1 = [*P0, *A0, 30, 31]
A1 = [40, 41, 42, 43, 44, 45]
TWO = [(P0, A0), (P1, A1)]


# --- touched ---


def test_a_clean_trajectory_is_counted_and_costs_nothing():
    assert exposure(make_trajectory(TWO), []) == Exposure(
        n_trajectories=1, n_steps=2, n_tokens=15, n_action_tokens=10
    )


def test_touched_tokens_count_once_and_what_lies_behind_is_shifted():
    trajectory = make_trajectory(TWO)
    first = trajectory.steps[0]
    found = [finding(first, 4, [21, 22], [9]), finding(first, 5, [22], [8], Route.CHAIN)]
    assert exposure(trajectory, found) == Exposure(
        n_trajectories=1,
        n_drifted_trajectories=1,
        n_steps=2,
        n_drifted_steps=1,
        n_tokens=15,
        n_action_tokens=10,
        n_touched_tokens=2,
        n_shifted_in_step=1,  # 23
        n_shifted_tokens=1 + 6,  # and the next action
        by_first_step={0: 1},  # type: ignore[arg-type]
        by_first_decile={2: 1},  # type: ignore[arg-type]
    )


def test_the_first_divergence_is_the_earliest_step_and_its_place_in_tenths():
    trajectory = make_trajectory(TWO)
    second = trajectory.steps[1]
    got = exposure(trajectory, [finding(second, 14, [45], [9]), finding(second, 12, [43], [9])])
    assert got.by_first_step == {1: 1}
    assert got.by_first_decile == {5: 1}  # 3 of 6
    assert got.n_shifted_in_step == got.n_shifted_tokens == 1  # 44


def test_what_is_inserted_at_the_end_of_an_action_is_in_the_last_decile_and_touches_nothing():
    trajectory = make_trajectory([(P0, A0)])
    got = exposure(trajectory, [finding(trajectory.steps[0], 7, [], [2])])
    assert got.by_first_decile == {9: 1}
    assert (got.n_touched_tokens, got.n_shifted_tokens) == (0, 0)


def test_a_region_in_the_prompt_shifts_the_action_and_has_no_decile():
    trajectory = make_trajectory([(P0, A0)])
    got = exposure(trajectory, [finding(trajectory.steps[0], 1, [11], [9], Route.CHAIN)])
    assert (got.n_first_outside, got.by_first_decile) == (1, {})
    assert (got.n_touched_tokens, got.n_shifted_in_step, got.n_shifted_tokens) == (0, 4, 4)


def test_a_branch_that_does_not_hold_the_region_is_not_shifted():
    retry = (P0, [50, 51])
    trajectory = make_trajectory([*TWO, retry])
    got = exposure(trajectory, [finding(trajectory.steps[0], 4, [21], [9])])
    assert got.n_shifted_tokens == 2 + 6


def test_the_step_of_a_broken_prompt_is_shifted():
    broken = [*P0, 20, 99, 22, 23, 30, 31]
    trajectory = make_trajectory([(P0, A0), (broken, A1), ([*broken, *A1, 60], [70])])
    (found,) = chain(trajectory)
    got = exposure(trajectory, [found])
    lost = int(found.evidence["n_recorded"])
    assert got.n_touched_tokens == lost
    assert got.n_shifted_tokens == (4 - 1 - lost) + 6 + 1


def test_a_region_that_runs_on_into_the_next_step_touches_both_actions():
    trajectory = make_trajectory(TWO)
    region = [22, 23, 30, 31, 40]
    got = exposure(trajectory, [finding(trajectory.steps[0], 5, region, [9])])
    assert got.n_touched_tokens == 3
    assert (got.n_shifted_in_step, got.n_shifted_tokens) == (0, 5)


def test_a_region_that_runs_in_from_the_step_before_is_not_behind_the_steps_own():
    trajectory = make_trajectory(TWO)
    first, second = trajectory.steps
    region = finding(first, 6, [23, 30, 31, 40, 41], [9])
    got = exposure(trajectory, [region, finding(second, 13, [44], [9])])
    assert got.n_touched_tokens == 1 + 2 + 1
    assert got.n_shifted_in_step == 1  # 45
    assert got.n_shifted_tokens == 3  # and 42, 43


def test_steps_without_prompts_or_actions_are_counted_as_what_they_have():
    steps = make_step(0, action_tokens=[1, 2, 3]), make_step(1)
    trajectory = Trajectory(trajectory_id="t", steps=steps)
    got = exposure(trajectory, [finding(steps[0], 1, [2], [9])])
    assert (got.n_steps, got.n_tokens, got.n_touched_tokens, got.n_shifted_tokens) == (2, 3, 1, 1)


# --- mask damage ---


def test_a_control_id_born_from_content_is_told_from_a_stop_that_was_added():
    typed = letters("<|im_end|>")
    trajectory = make_trajectory([([START], [SEARCH, *typed, IM_END])])
    step = trajectory.steps[0]
    born = finding(step, 2, typed, [IM_END])
    assert damage(trajectory, [born]) == MaskDamage(n_control_from_content=1)
    again = finding(step, 2, typed, [IM_END], Route.CHAIN, next_step_index=1)
    assert damage(trajectory, [again, born]) == MaskDamage(n_control_from_content=1)
    added = finding(step, 2, letters("oops"), [IM_END])
    assert damage(trajectory, [added]) == MaskDamage(n_stop_gained=1)


def test_a_lost_stop_and_other_control_ids_are_told_apart():
    trajectory = make_trajectory([([START], [SEARCH, START, IM_END])])
    step = trajectory.steps[0]
    assert damage(trajectory, [finding(step, 3, [IM_END], [])]) == MaskDamage(n_stop_lost=1)
    assert damage(trajectory, [finding(step, 2, [START], [])]) == MaskDamage(n_other_control=1)
    swapped = finding(step, 2, [START, IM_END], [IM_END, START])
    assert damage(trajectory, [swapped]) == MaskDamage()


def test_segments_say_which_ids_are_stops():
    stop = (Segment(SegmentKind.STOP, 2, 3),)
    steps = make_step(prompt_delta=[1], action_tokens=[SEARCH, IM_END, NEWLINE], segments=stop)
    trajectory = Trajectory(trajectory_id="t", steps=(steps,))
    assert damage(trajectory, [finding(steps, 2, [IM_END], [])]) == MaskDamage(n_stop_lost=1)


def test_a_token_over_the_end_of_an_action_straddles_it():
    tiny = tiny_tokenizer()
    action = [SEARCH, *letters("To")]
    context = letters("kyo")
    trajectory = make_trajectory([([START], action), ([START, *action, *context], [SEARCH])])
    merged = finding(
        trajectory.steps[0], 2, [*letters("To"), *context], [TOKYO], Route.CHAIN, next_ids=[NEWLINE]
    )
    assert tiny.token_bytes(TOKYO) == b"Tokyo"
    assert damage(trajectory, [merged]) == MaskDamage(n_straddling_tokens=1)
    assert damage(trajectory, [merged, merged]) == MaskDamage(n_straddling_tokens=1)


def test_the_chain_route_shows_a_merge_at_the_end_of_an_action():
    action = [SEARCH, *letters("To")]
    merged = [START, SEARCH, TOKYO, NEWLINE, IM_END]
    trajectory = make_trajectory([([START], action), (merged, [SEARCH])])
    found = chain(trajectory, tiny_tokenizer())
    assert damage(trajectory, found) == MaskDamage(n_straddling_tokens=1)


def test_a_token_over_the_start_of_an_action_straddles_it():
    trajectory = make_trajectory([([START, *letters("To")], [*letters("kyo"), IM_END])])
    merged = finding(trajectory.steps[0], 1, letters("Tokyo"), [TOKYO], Route.CHAIN)
    assert damage(trajectory, [merged]) == MaskDamage(n_straddling_tokens=1)


def test_another_spelling_that_keeps_the_border_straddles_nothing():
    trajectory = make_trajectory([([START], letters("Tokyo"))])
    respelt = finding(trajectory.steps[0], 1, letters("Tokyo"), [TOKYO], Route.CHAIN, next_ids=[5])
    other = finding(trajectory.steps[0], 1, letters("Tokyo"), [SEARCH, TOKYO], Route.CHAIN)
    assert damage(trajectory, [respelt]) == damage(trajectory, [other]) == MaskDamage()


def test_what_cannot_be_judged_is_counted():
    trajectory = make_trajectory([([START], [SEARCH, IM_END])])
    found = finding(trajectory.steps[0], 1, [SEARCH], [], cut=True, n_recorded=70)
    assert damage(trajectory, [found]) == MaskDamage(n_not_judged=1)
    price = price_drift(trajectory, [finding(trajectory.steps[0], 1, [SEARCH], [])], None)
    assert price.mask_damage == MaskDamage(n_not_judged=1)


# --- sums ---


@st.composite
def priced(draw) -> DriftPrice:
    """Return the price of a trajectory with broken prompts and other findings."""
    ids = st.lists(st.integers(3, 6), max_size=5)
    calls: list[tuple[list[int], list[int]]] = []
    for _ in range(draw(st.integers(1, 5))):
        base = [*calls[-1][0], *calls[-1][1]] if calls else [1]
        keep = draw(st.integers(0, len(base)))
        base = base if draw(st.booleans()) else base[:keep]
        calls.append(([*base, *draw(ids)], draw(ids)))
    trajectory = make_trajectory(calls)
    found = chain(trajectory, tiny_tokenizer())
    for step in trajectory.steps:
        for at in draw(st.sets(st.integers(0, step.n_action_tokens), max_size=2)):
            recorded = step.action_tokens[at : at + 1].tolist()
            more = draw(st.sampled_from([0, 0, 4]))  # as a route finds that joins steps
            region = [*recorded, *[3] * more]
            found.append(finding(step, step.prompt_len + at, region, [2]))
    return price_drift(trajectory, found, tiny_tokenizer())


@given(priced(), priced(), priced())
def test_prices_add_in_any_order_and_grouping(one, two, three):
    assert one + DriftPrice() == one
    assert one + two == two + one
    assert (one + two) + three == one + (two + three) == sum([two, three], one)
    both = one + two
    assert both.exposure.n_trajectories == 2
    n = one.exposure.n_touched_tokens + two.exposure.n_touched_tokens
    assert both.exposure.n_touched_tokens == n


@given(priced())
def test_no_token_is_counted_twice(price):
    seen = price.exposure
    assert seen.n_touched_tokens + seen.n_shifted_tokens <= seen.n_action_tokens
    assert 0 <= seen.n_shifted_in_step <= seen.n_shifted_tokens
    n_first = seen.by_first_decile.total() + seen.n_first_outside
    assert n_first == seen.by_first_step.total() == seen.n_drifted_trajectories
    assert set(price.by_rule) == {rule.name for rule in TRAINER_RULES}


def test_a_price_as_json_has_plain_keys():
    trajectory = make_trajectory(TWO)
    price = price_drift(trajectory, [finding(trajectory.steps[0], 4, [21], [9])], None)
    shown = price.to_dict()
    assert shown["exposure"]["by_first_decile"] == {"2": 1}
    assert shown["mask_damage"]["n_not_judged"] == 1
    assert shown["by_rule"]["keep-recorded"] == {
        "n_rows": 1,
        "n_trained_tokens": 10,
        "n_lost_tokens": 0,
        "n_repeated_tokens": 0,
        "n_emptied_trajectories": 0,
    }


def test_an_empty_trajectory_costs_nothing():
    price = price_drift(Trajectory(trajectory_id="t", steps=()), [], tiny_tokenizer())
    assert price == DriftPrice(exposure=Exposure(n_trajectories=1))


def test_a_finding_of_another_trajectory_is_a_mistake_of_the_caller():
    trajectory = make_trajectory(TWO)
    with pytest.raises(KeyError):
        price_drift(trajectory, [finding(make_step(7), 0, [1], [2])], None)
