from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory
from trajkit.records import LogprobKind, Segment, SegmentKind, Trajectory
from trajkit.rl.tokens import (
    ScoredStep,
    TokenCollector,
    TokenPlace,
    group_of,
    not_comparable,
    rows_of,
    sampled_ids,
)
from trajkit.sequence import build_sequences

CALLS = [([1, 2], [10, 11, 12]), ([1, 2, 10, 11, 12, 3], [13, 14])]


def scored(trajectory: Trajectory, **given: Any) -> tuple[Trajectory, list[ScoredStep]]:
    """Return a trajectory with a log-prob of -1 for each token that has something before it."""
    steps = []
    for step in trajectory.steps:
        logprobs = np.full(step.n_action_tokens, -1.0, dtype=np.float32)
        if step.prompt_len == 0:
            logprobs[:1] = np.nan
        steps.append(ScoredStep(step=step, logprobs=logprobs, **given))
    return trajectory, steps


def test_columns_speak_of_the_same_tokens() -> None:
    collector = TokenCollector()
    middle = (Segment(SegmentKind.INSERTED, 3, 4),)
    collector.add(*scored(make_trajectory(CALLS, "a", segments=[middle, None])))
    collector.add(*scored(make_trajectory([([], [7, 8])], "b", reward=[2.0])))
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


def test_recorded_advantages_are_counted_also_where_not_all_have_one() -> None:
    collector = TokenCollector()
    recorded = [[None, 1.0, 2.0], [3.0, None]]
    collector.add(*scored(make_trajectory(CALLS, "a", advantages=recorded)))
    collector.add(*scored(make_trajectory([([1], [2])], "b", advantages=[[0.5]])))
    tokens = collector.finish()
    assert tokens.recorded_advantages is None
    assert tokens.n_recorded_advantages == 4


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, None),
        ({"temperature": 1.0, "top_p": 1.0, "top_k": 0}, None),
        ({"temperature": 1.0, "top_k": -1}, None),
        ({"temperature": 0.7}, "temperature 0.7"),
        ({"temperature": 0.0}, "temperature 0"),
        ({"temperature": 1.0, "top_p": 0.9}, "top_p 0.9"),
        ({"temperature": 1.0, "top_k": 50}, "top_k 50"),
        ({"temperature": 0.7, "logprob_kind": LogprobKind.RAW}, None),
        ({"top_p": 0.9, "logprob_kind": LogprobKind.RAW}, None),
        ({"temperature": 0.7, "logprob_kind": LogprobKind.UNKNOWN}, "temperature 0.7"),
        ({"temperature": 1.0, "logprob_kind": LogprobKind.PROCESSED}, None),
        ({"logprob_kind": LogprobKind.PROCESSED}, "processed, temperature unknown"),
        ({"logprob_kind": LogprobKind.UNKNOWN}, None),
        ({"temperature": 1.0, "top_k": 1 << 30}, None),
        ({"extra_json": '{"sampling":{"min_p":0.05}}'}, "min_p 0.05"),
        ({"extra_json": '{"sampling":{"repetition_penalty":1.1}}', "top_p": 0.9}, "top_p 0.9"),
        (
            {
                "extra_json": '{"sampling":{"presence_penalty":0.5}}',
                "logprob_kind": LogprobKind.PROCESSED,
            },
            "presence_penalty 0.5",
        ),
        ({"extra_json": '{"sampling":{"min_p":0.05}}', "logprob_kind": LogprobKind.RAW}, None),
        ({"extra_json": '{"call":{"sampling":{"min_p":0.05}}}'}, None),
        ({"extra_json": '{"sampling":{"\\u001b[2J":1,"min_p":"0.05"}}'}, None),
        ({"extra_json": '{"sampling":[0.05]}'}, None),
        ({"extra_json": '{"sampling":'}, None),
    ],
)
def test_which_recorded_logprobs_are_the_models_own(
    fields: dict[str, Any], why: str | None
) -> None:
    assert not_comparable(make_step(prompt_delta=[1], action_tokens=[2], **fields)) == why


def test_columns_that_only_whole_data_use_are_dropped_at_the_first_gap() -> None:
    collector = TokenCollector()
    whole = [[-1.0, -2.0, -3.0], [-4.0, -5.0]]
    collector.add(*scored(make_trajectory(CALLS, "a", old_logprobs=whole)))
    assert collector.finish().old_logprobs is not None
    collector.add(*scored(make_trajectory([([1], [2])], "b")))
    collector.add(*scored(make_trajectory([([1], [2])], "c", old_logprobs=[[-1.0]])))
    tokens = collector.finish()
    assert tokens.old_logprobs is None
    assert len(tokens.logprobs) == 7


def test_what_a_reference_model_said_wins_over_the_record() -> None:
    collector = TokenCollector()
    recorded = make_trajectory([([1], [2, 3])], "a", ref_logprobs=[[-7.0, None]])
    collector.add(*scored(recorded))
    collector.add(*scored(recorded, ref_logprobs=np.array([-5.0, -6.0], dtype=np.float32)))
    found = collector.finish().ref_logprobs
    assert found.tolist()[0] == -7.0
    assert np.isnan(found[1])
    assert found.tolist()[2:] == [-5.0, -6.0]


def test_a_mask_is_taken_at_the_tokens_that_have_a_logprob() -> None:
    collector = TokenCollector()
    mask = np.array([True, False], dtype=np.bool_)
    collector.add(*scored(make_trajectory([([], [2, 3])], "a"), loss_mask=mask))
    collector.add(*scored(make_trajectory([([1], [2, 3])], "b"), loss_mask=mask))
    assert collector.finish().loss_mask.tolist() == [False, True, False]


def test_counted_context_is_kept_apart_from_actions() -> None:
    collector = TokenCollector()
    around = np.array([np.nan, -2.0, -3.0], dtype=np.float32)
    collector.add(*scored(make_trajectory(CALLS, "a"), context_logprobs=around))
    tokens = collector.finish()
    assert len(tokens.logprobs) == collector.n_tokens == 5
    assert tokens.context_logprobs.tolist() == [-2.0, -3.0, -2.0, -3.0]
    assert tokens.context_step.tolist() == [0, 0, 1, 1]


def test_groups_are_numbered_and_the_unknown_are_by_themselves() -> None:
    collector = TokenCollector()
    for name, group in (("a", "g"), ("b", "h"), ("c", "g")):
        collector.add(*scored(make_trajectory([([1], [2, 3])], name, group_id=[group])))
    tokens = collector.finish()
    assert tokens.group_index.tolist() == [0, 1, 0]
    assert tokens.group_index[tokens.trajectory].tolist() == [0, 0, 1, 1, 0, 0]
    collector.add(make_trajectory([([1], [2])], "d"), [])
    assert len(collector.finish().trajectory_ids) == 3


ids = st.integers(0, 2)


@given(st.data())
def test_rows_are_the_sequences_of_build_sequences(data: st.DataObject) -> None:
    calls: list[tuple[list[int], list[int]]] = []
    for _ in range(data.draw(st.integers(1, 5))):
        before = [ids for prompt, action in calls for ids in (prompt, [*prompt, *action])]
        kept = data.draw(st.sampled_from(before)) if before else []
        keep = data.draw(st.integers(0, len(kept)))
        few = st.lists(ids, max_size=3)
        calls.append(([*kept[:keep], *data.draw(few)], data.draw(few)))
    trajectory = make_trajectory(calls)
    wanted = {
        place.step.step_index: row
        for row, sequence in enumerate(build_sequences(trajectory))
        for place in sequence.steps
    }
    assert rows_of(trajectory) == wanted


def test_context_answers_the_action_in_front_of_it() -> None:
    collector = TokenCollector()
    made = make_trajectory(CALLS, "a")
    first, second = made.steps
    logprobs = np.full(3, -1.0, dtype=np.float32)
    around = np.array([np.nan, -2.0], dtype=np.float32)
    entropy = np.array([1.0, np.nan, 2.0], dtype=np.float32)
    collector.add(*scored(make_trajectory([([1], [2])], "before")))
    collector.add(
        made,
        [
            ScoredStep(
                step=first,
                logprobs=logprobs,
                entropy=entropy,
                context_logprobs=around,
                n_before=2,
            ),
            ScoredStep(
                step=second,
                logprobs=logprobs[:2],
                context_logprobs=np.array([-3.0, -4.0], dtype=np.float32),
                n_before=1,
            ),
        ],
    )
    tokens = collector.finish()
    assert tokens.context_step.tolist() == [1, 2, 2]
    assert tokens.context_answers.tolist() == [-1, 1, 2]  # a first prompt answers nothing
    np.testing.assert_array_equal(tokens.step_entropy, [np.nan, 1.5, np.nan])
    np.testing.assert_array_equal(tokens.entropy[1:4], [1.0, np.nan, 2.0])
    assert np.isnan(tokens.exact_kl).all()
