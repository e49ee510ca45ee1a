from pathlib import Path

import pytest

from tests.builders import make_floats, make_step
from trajkit.store.scores import StepNumbers
from trajkit.view.lanes import LANES, rounded

BY_NAME = {lane.name: lane for lane in LANES}


def test_every_lane_has_a_name_of_its_own_and_a_scale():
    assert len({lane.name for lane in LANES}) == len(LANES) > 3
    assert all(lane.full for lane in LANES)


def test_every_lane_stands_in_the_readme():
    rows = (Path(__file__).parents[3] / "docs/masks.md").read_text().splitlines()
    told = [row.split("|")[1] for row in rows if row.startswith("| `")]
    assert [lane.name for lane in LANES if not any(f"`{lane.name}`" in row for row in told)] == []


def test_a_lane_gives_what_its_column_holds():
    step = make_step(action_tokens=[1, 2], rollout_logprobs=[-0.5, None], advantages=[1.0, -1.0])
    by_name = {lane.name: lane.of(step, None) for lane in LANES}
    assert rounded(by_name["logprob"]) == [-0.5, None]
    assert rounded(by_name["advantage"]) == [1.0, -1.0]
    assert rounded(by_name["value"]) is None


def test_a_missing_value_is_none_and_no_zero_is_negative():
    values = make_floats([-0.00001, float("-inf"), None, -1.23456])
    assert repr(rounded(values)) == "[0.0, -inf, None, -1.2346]"


def test_what_a_checkpoint_said_stands_beside_the_sampler():
    step = make_step(action_tokens=[1, 2], rollout_logprobs=[-0.5, None])
    scores = StepNumbers(
        logprobs=make_floats([-0.75, -1.0]), entropy=make_floats([2.0, 1.0]), rank=None
    )
    told = {lane.name: rounded(lane.of(step, scores)) for lane in LANES if lane.is_scored}
    assert told == {
        "scored": [-0.75, -1.0],
        "ratio": [-0.25, None],
        "entropy": [2.0, 1.0],
        "rank": None,
    }
    assert BY_NAME["ratio"].of(make_step(action_tokens=[1]), scores) is None
    assert BY_NAME["ratio"].of(step, None) is None


@pytest.mark.parametrize(
    ("name", "values", "level"),
    [
        ("logprob", [0.0], 0),
        ("logprob", [-0.3], 0),
        ("logprob", [-0.32], 1),
        ("logprob", [-2.5], 4),
        ("logprob", [-1.0, -4.0], 6),
        ("logprob", [float("-inf")], 8),
        ("logprob", [-1.0, None], None),
        ("logprob", [], 0),
        ("ratio", [0.25], 4),
        ("ratio", [-0.25], -4),
        ("ratio", [0.1, -9.0], -8),
        ("entropy", [2.0], 4),
    ],
)
def test_a_level_is_that_of_the_most_extreme_value(name, values, level):
    assert BY_NAME[name].level(values) == level
