"""tau-bench results: trials of a task are a group, rewards are the trajectory's, info is kept."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.builders import FIXTURES, make_record, records_of
from trajkit.errors import InputError
from trajkit.formats import detect, tau_bench
from trajkit.formats.conversation import conversation_of
from trajkit.records import Observation
from trajkit.safe.json import Record, read_records

SAMPLES = records_of(FIXTURES / "formats" / "tau-bench" / "trains.jsonl")


def read(value: object) -> Any:
    return tau_bench.FORMAT.read(make_record(value))


def message(role: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_a_trial_is_read_field_by_field():
    raw = tau_bench.FORMAT.read(SAMPLES[0])
    source: Any = SAMPLES[0].value
    assert (raw.trajectory_id, raw.group_id, raw.task_id) == ("task4-trial0", "4", "4")
    assert raw.reward == 1.0
    assert raw.extra == {"info": source["info"]}
    assert [call.action_text for call in raw.steps] == [
        None,
        "13:10 is free.\n\nShall I book it?",
        None,
        "Booked.",
    ]
    assert raw.steps[0].action_message["content"] is None
    assert [call.observation for call in raw.steps] == ['["13:10"]', "Yes.", "", "###STOP###"]
    assert [call.observations for call in raw.steps] == [
        (Observation(call_id="call_a", name="find", text='["13:10"]'),),
        None,
        (Observation(call_id="call_b", name="book", text=""),),
        None,
    ]


def test_the_messages_come_back_verbatim_and_are_the_chat():
    raw = tau_bench.FORMAT.read(SAMPLES[0])
    source: Any = SAMPLES[0].value
    said = [m for call in raw.steps for m in (*call.messages_added, call.action_message)]
    assert [*said, *raw.messages_after] == source["traj"]
    chat = conversation_of(raw, tau_bench.FORMAT)
    assert chat is not None
    assert list(chat.messages) == source["traj"]
    assert chat.actions == (2, 4, 6, 8)


def test_trials_of_one_task_are_one_group_of_different_trajectories():
    first, second = map(tau_bench.FORMAT.read, SAMPLES[:2])
    assert first.group_id == second.group_id == "4"
    assert (first.trajectory_id, second.trajectory_id) == ("task4-trial0", "task4-trial1")


def test_a_trial_that_failed_before_the_first_message_has_no_step_and_keeps_its_error():
    raw = tau_bench.FORMAT.read(SAMPLES[2])
    assert (raw.steps, raw.messages_after) == ((), ())
    assert raw.reward == 0.0
    assert raw.extra["info"]["error"] == "the simulator did not answer"


def test_without_a_trial_there_is_no_id_and_without_a_task_the_trial_is_kept():
    raw = tau_bench.FORMAT.read(SAMPLES[3])
    assert (raw.trajectory_id, raw.group_id, raw.reward) == (None, "refund", None)
    raw = read({"trial": 3, "traj": []})
    assert (raw.trajectory_id, raw.group_id, raw.extra) == (None, None, {"trial": 3})


def test_an_id_that_the_record_has_is_not_replaced():
    raw = read({"id": "own", "group_id": "g", "task_id": 1, "trial": 2, "traj": []})
    assert (raw.trajectory_id, raw.group_id, raw.extra) == ("own", "g", {"trial": 2})


def test_one_array_of_all_results_is_read_record_by_record():
    values = [sample.value for sample in SAMPLES]
    stream = io.BytesIO(json.dumps(values).encode())
    found = list(read_records(stream, "results.json"))
    for record, value in zip(found, values, strict=True):
        assert isinstance(record, Record)
        assert record.value == value
        assert detect(record)[0].name == "tau-bench"


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        ({"task_id": 1, "traj": "none"}, "I201", "$.traj"),
        ({"task_id": 1, "traj": None}, "I202", "$.traj"),
        ({"task_id": 1, "traj": ["hi"]}, "I201", "$.traj[0]"),
        ({"task_id": 1, "traj": [message("user"), message("agent")]}, "I203", "$.traj[1].role"),
        ({"task_id": 1.5, "trial": 0, "traj": []}, "I201", "$.task_id"),
        ({"task_id": 1, "trial": [0], "traj": []}, "I201", "$.trial"),
        ({"task_id": 1, "reward": "1.0", "traj": []}, "I201", "$.reward"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(value, code, path):
    with pytest.raises(InputError) as caught:
        read(value)
    assert caught.value.code == code
    assert caught.value.place is not None
    assert caught.value.place.path == path


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        ({"traj": [], "reward": 0}, True),
        ({"traj": "none", "task_id": 1}, True),
        ({"traj": []}, False),
        ({"task_id": 1, "trial": 0, "reward": 0}, False),
        ([], False),
    ],
)
def test_a_record_is_known_by_its_traj_and_what_stands_beside_it(value, is_known):
    assert (tau_bench.FORMAT.sniff(value) is not None) is is_known
