from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, agent_trajectory, encoded, message_trajectory
from trajkit.records import SegmentKind, Trajectory
from trajkit.view.html.payload import payload_of
from trajkit.view.model import rows, view_of
from trajkit.view.select import Selection, selected


def payload(*trajectories, tokenizer=TOKENIZER):
    views = [view_of(trajectory) for trajectory in trajectories]
    return payload_of([(view, rows(view, tokenizer)) for view in views], tokenizer)


def test_a_page_holds_ids_bytes_and_cells_once():
    half = encoded("東")[0]
    trajectory = make_trajectory([([*encoded("search"), 2], [half]), ([298, 2, half, 201], [298])])
    found = payload(trajectory)
    assert found.shared["ids"] == [2, 201, 298, 414]
    assert found.shared["bytes"] == [b"<|im_end|>".hex(), "0a", b"search".hex(), "e69d"]
    assert found.shared["cells"] == {
        "text": ["search", "⟪<|im_end|>⟫", "⟦E6 9D⟧", "␊"],
        "ids": [[298], [2], [414], [201]],
    }
    (shown,) = found.trajectories
    assert shown["cells"] == [0, 1, 2, 3, 0]
    context, text = (
        2 * list(SegmentKind).index(kind) for kind in (SegmentKind.CONTEXT, SegmentKind.TEXT)
    )
    assert shown["rows"] == {
        "kind": [-1, context, text + 1, -1, context, text + 1],
        "start": [None, 0, 2, None, 3, 4],
        "n": [0, 2, 1, 0, 1, 1],
        "labels": [],
        "rules": [
            ["step 0", "action 1 token", "sampled"],
            ["step 1", "action 1 token", "sampled", "terminal"],
        ],
    }
    assert shown["steps"] == [[0, 0, 2, 3], [3, 1, 4, 5]]


def test_frequent_cells_have_small_numbers():
    found = payload(make_trajectory([([5, 6, 6, 6], [7])]))
    assert found.shared["cells"]["ids"][0] == [6]
    assert found.trajectories[0]["cells"] == [1, 0, 0, 0, 2]


def test_numbers_of_the_record_become_lanes_step_by_step():
    trajectory = make_trajectory(
        [([5], [6, 7]), ([5, 6, 7, 8], [9])], rollout_logprobs=[[-0.5, None], None]
    )
    (shown,) = payload(trajectory).trajectories
    assert shown["lanes"] == {"logprob": [[-0.5, None], None]}


def test_the_index_names_each_trajectory_safely():
    step = make_step(trajectory_id="\x1b\u202e␛", group_id="g\n", reward=float("inf"))
    hostile = Trajectory(trajectory_id=step.trajectory_id, steps=(step,))
    index = payload(agent_trajectory(), hostile).shared["index"]
    assert index == [
        {
            "name": "count-people/7",
            "group": "count-people",
            "reward": 1.0,
            "n_steps": 4,
            "n_tokens": 459,
            "n_action_tokens": 40,
            "n_findings": 0,
        },
        {
            "name": "␛⟦U+202E⟧⟦U+241B⟧",
            "group": "g␊",
            "reward": "inf",
            "n_steps": 1,
            "n_tokens": None,
            "n_action_tokens": None,
            "n_findings": 0,
        },
    ]


def test_messages_have_labels_and_no_tokens():
    found = payload(message_trajectory())
    (shown,) = found.trajectories
    assert shown["rows"]["labels"] == [
        *("system", "user", "", "", "assistant"),
        *("tool", "fields", "message", "developer", "assistant", "observed"),
    ]
    assert {tuple(ids) for ids in found.shared["cells"]["ids"]} == {()}
    assert shown["steps"] == [[0, 0], [6, 1]]
    assert shown["lanes"] == {}


def test_without_a_tokenizer_no_bytes_are_known():
    found = payload(make_trajectory([([5], [6])]), tokenizer=None)
    assert found.shared["bytes"] is None
    assert [text.strip() for text in found.shared["cells"]["text"]] == ["5", "6"]


def test_only_the_rows_that_are_given_are_held():
    view = view_of(agent_trajectory())
    wanted = Selection(kinds=frozenset({"stop"}))
    found = selected(view, rows(view, TOKENIZER), TOKENIZER, wanted)
    (shown,) = payload_of([(view, found)], TOKENIZER).trajectories
    assert shown["rows"]["start"] == [None, None, 80]
    assert shown["steps"] == [[1, 0, 60, 81]]


def test_no_trajectory_is_an_empty_page():
    found = payload()
    assert (found.shared["index"], found.trajectories) == ([], [])
