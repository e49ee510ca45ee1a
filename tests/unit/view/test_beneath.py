from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, encoded
from trajkit.records import Trajectory
from trajkit.view.beneath import with_beneath
from trajkit.view.lanes import LANES
from trajkit.view.model import Rule, rows, view_of

LOGPROB = next(lane for lane in LANES if lane.name == "logprob")


def beneath(trajectory, lane=LOGPROB):
    """Return (levels, ids) under each line."""
    view = view_of(trajectory)
    found = with_beneath(view, rows(view, TOKENIZER), TOKENIZER, lane)
    return [(under.levels, under.ids) for row, under in found if not isinstance(row, Rule)]


def test_levels_stand_under_actions_and_ids_under_every_line():
    action = [*encoded("Tokyo"), *encoded("東", control=False)]
    calls = [(encoded("search"), action)]
    lane = [[-5.0, -1.0, -2.5, -0.1]]
    assert beneath(make_trajectory(calls, rollout_logprobs=lane)) == [
        ((), (298,)),
        ((("Tokyo", 8), ("東", 4)), tuple(action)),
    ]


def test_a_step_without_numbers_misses_them_all():
    assert beneath(make_trajectory([([5], encoded("Tokyo"))]))[1] == ((("Tokyo", None),), (462,))


def test_each_step_has_its_own_numbers():
    trajectory = make_trajectory([([5], [6]), ([5, 6, 7], [8])], rollout_logprobs=[[-5.0], [-2.5]])
    assert [level for levels, _ in beneath(trajectory) for _, level in levels] == [8, 4]


def test_messages_have_nothing_beneath():
    trajectory = Trajectory(trajectory_id="t", steps=(make_step(action_text="x"),))
    assert beneath(trajectory) == [((), ())]


def test_without_a_lane_there_are_only_ids():
    assert beneath(make_trajectory([([5], [6])]), None) == [((), (5,)), ((), (6,))]
