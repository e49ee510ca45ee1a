import numpy as np
import pytest

from tests.builders import make_step, make_trajectory
from tests.score_builders import chain
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.scoring.model import LoadedModel
from trajkit.scoring.scored import ScoredTrajectory
from trajkit.scoring.steps import score_trajectories
from trajkit.scoring.tokens import TokenCollector, TokenPlace, group_of, sampled_ids

CALLS = chain(([1, 2], [10, 11, 12]), ([3], [13, 14]))


def score_trajectory(model: LoadedModel, trajectory: Trajectory) -> ScoredTrajectory:
    (scored,) = score_trajectories(model, [trajectory]).scored
    return scored


def test_columns_speak_of_the_same_tokens(llama: LoadedModel) -> None:
    collector = TokenCollector()
    middle = (Segment(SegmentKind.INSERTED, 3, 4),)
    collector.add(score_trajectory(llama, make_trajectory(CALLS, "a", segments=[middle, None])))
    collector.add(score_trajectory(llama, make_trajectory([([], [7, 8])], "b", reward=[2.0])))
    tokens = collector.finish()
    assert tokens.trajectory.tolist() == [0, 0, 0, 0, 1]
    assert tokens.position.tolist() == [0, 2, 0, 1, 1]
    assert tokens.step_index[tokens.step].tolist() == [0, 0, 1, 1, 0]
    assert tokens.place(1) == TokenPlace(trajectory_id="a", step_index=0, action_position=2)
    assert tokens.place(4) == TokenPlace(trajectory_id="b", step_index=0, action_position=1)
    assert np.isnan(tokens.returns).tolist() == [True, False]
    assert not np.isnan(tokens.logprobs).any()
    assert collector.n_first_token == 1
    assert tokens.recorded_advantages is None


def test_nothing_collected() -> None:
    tokens = TokenCollector().finish()
    assert len(tokens.logprobs) == len(tokens.trajectory) == len(tokens.returns) == 0


def test_inserted_ids_are_not_the_policys() -> None:
    step = make_step(
        prompt_delta=[1, 2],
        action_tokens=[3, 4, 5],
        segments=(Segment(SegmentKind.TEXT, 2, 4), Segment(SegmentKind.INSERTED, 4, 5)),
    )
    assert sampled_ids(step).tolist() == [True, True, False]
    assert len(sampled_ids(make_step())) == 0


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"group_id": ["g"]}, {"group_id": ["g"]}, True),
        ({"group_id": ["g"]}, {"group_id": ["h"]}, False),
        ({"group_id": ["g"]}, {}, False),
        ({}, {}, True),
    ],
)
def test_groups_go_by_id_and_then_by_first_prompt(
    left: dict[str, list[str]], right: dict[str, list[str]], *, same: bool
) -> None:
    prompt = [1, 2, 3]
    groups = [
        group_of(make_trajectory([(prompt, [action])], str(action), **fields))
        for action, fields in ((5, left), (6, right))
    ]
    assert (groups[0] == groups[1]) is same


def test_other_first_prompts_are_other_groups() -> None:
    one = make_trajectory([([1, 2], [3])], "one")
    other = make_trajectory([([1, 3], [3])], "other")
    assert group_of(one) != group_of(other)


def test_an_unknown_first_prompt_is_no_group_and_an_empty_one_is() -> None:
    unknown = Trajectory(trajectory_id="unknown", steps=(make_step(),))
    assert group_of(unknown) is None
    named = Trajectory(trajectory_id="named", steps=(make_step(group_id="g"),))
    assert group_of(named) == ("group_id", "g")
    empty = group_of(make_trajectory([([], [3])], "empty"))
    assert empty is not None
    assert empty[0] == "first_prompt"


def test_recorded_advantages_are_counted_also_where_not_all_have_one(llama: LoadedModel) -> None:
    collector = TokenCollector()
    given = [[None, 1.0, 2.0], [3.0, None]]
    collector.add(score_trajectory(llama, make_trajectory(CALLS, "a", advantages=given)))
    collector.add(score_trajectory(llama, make_trajectory([([1], [2])], "b", advantages=[[0.5]])))
    tokens = collector.finish()
    assert tokens.recorded_advantages is None
    assert tokens.n_recorded_advantages == 4
