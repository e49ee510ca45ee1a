import json

from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, encoded
from trajkit.records import Trajectory
from trajkit.store.findings import StepFinding
from trajkit.view.columns import view_columns
from trajkit.view.drift import with_drift
from trajkit.view.model import view_of


def test_tokens_are_columns_and_spans_cover_them():
    half = encoded("東")[0]
    trajectory = make_trajectory(
        [([*encoded("search"), 2], [half]), ([*encoded("search"), 2, half, 201], [462])],
        group_id=["g", "g"],
        reward=[None, 2.0],
    )
    (shown,) = view_columns(view_of(trajectory), TOKENIZER)
    assert shown == {
        "trajectory_id": "t",
        "group_id": "g",
        "reward": 2.0,
        "n_steps": 2,
        "n_steps_without_ids": 0,
        "sequence": 0,
        "n_tokens": 5,
        "n_action_tokens": 2,
        "tokens": {
            "id": [298, 2, 414, 201, 462],
            "text": ["search", "<|im_end|>", None, "\n", "Tokyo"],
            "bytes": ["736561726368", b"<|im_end|>".hex(), "e69d", "0a", b"Tokyo".hex()],
            "kind": ["context", "context", "text", "context", "text"],
            "action": [False, False, True, False, True],
            "step": [0, 0, 0, 1, 1],
        },
        "spans": [
            {"start": 0, "end": 2, "kind": "context", "action": False, "step": 0},
            {"start": 2, "end": 3, "kind": "text", "action": True, "step": 0},
            {"start": 3, "end": 4, "kind": "context", "action": False, "step": 1},
            {"start": 4, "end": 5, "kind": "text", "action": True, "step": 1},
        ],
        "lanes": {},
        "drift": [],
    }
    assert json.loads(json.dumps(shown)) == shown


def test_each_sequence_is_an_object_and_its_kept_tokens_belong_to_no_step():
    trajectory = make_trajectory([([5, 6], [7]), ([5, 8], [9])])
    first, second = view_columns(view_of(trajectory), None)
    assert [first["sequence"], second["sequence"]] == [0, 1]
    assert second["tokens"]["step"] == [None, 1, 1]
    assert second["spans"][0] == {
        "start": 0,
        "end": 1,
        "kind": "context",
        "action": False,
        "step": None,
    }
    assert second["tokens"]["text"] is None
    assert second["tokens"]["bytes"] is None


def test_sequences_without_a_wanted_step_are_left_out():
    trajectory = make_trajectory([([5, 6], [7]), ([5, 8], [9])])
    (second,) = view_columns(view_of(trajectory), None, lambda index: index == 1)
    assert second["sequence"] == 1
    assert second["n_tokens"] == 3


def test_a_record_without_ids_has_empty_columns():
    trajectory = Trajectory(trajectory_id="t", steps=(make_step(action_text="x"),))
    (shown,) = view_columns(view_of(trajectory), TOKENIZER)
    assert shown["sequence"] is None
    assert shown["n_steps_without_ids"] == 1
    assert shown["tokens"] == {
        "id": [],
        "text": [],
        "bytes": [],
        "kind": [],
        "action": [],
        "step": [],
    }
    assert shown["spans"] == []


def test_numbers_and_findings_stand_beside_the_tokens():
    trajectory = make_trajectory(
        [([5, 6], [7, 8]), ([5, 6, 7, 8, 9], [10])],
        rollout_logprobs=[[-0.5, None], None],
        advantages=[None, [1.5]],
    )
    found = StepFinding(
        step_index=0,
        route="ids",
        kind="ids-only",
        cause="non-canonical-sampling",
        token_start=3,
        n_tokens=1,
        recorded_ids=(8,),
        retokenized_ids=(11, 12),
        retokenized_text="x",
    )
    (shown,) = view_columns(with_drift(view_of(trajectory), [found]), TOKENIZER)
    nothing = [None] * 6
    assert shown["lanes"] == {
        "logprob": [None, None, -0.5, *nothing[3:]],
        "advantage": [*nothing[:5], 1.5],
    }
    assert shown["drift"] == [
        {
            "start": 3,
            "end": 4,
            "is_added": False,
            "is_behind": False,
            "kind": "ids-only",
            "cause": "non-canonical-sampling",
            "other_text": "x",
            "other_ids": [11, 12],
        }
    ]
    assert json.loads(json.dumps(shown)) == shown


def test_infinite_numbers_are_words_that_json_can_hold():
    trajectory = make_trajectory(
        [([5], [6, 7])], rollout_logprobs=[[float("-inf"), -0.5]], reward=[float("inf")]
    )
    (shown,) = view_columns(view_of(trajectory), TOKENIZER)
    assert shown["reward"] == "inf"
    assert shown["lanes"] == {"logprob": [None, "-inf", -0.5]}
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
