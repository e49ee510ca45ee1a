import json
from pathlib import Path
from typing import Any

import pytest

import trajkit
from tests.builders import make_trajectory
from trajkit.errors import UsageProblem
from trajkit.records import Trajectory
from trajkit.scoring.context import with_context_asked
from trajkit.scoring.planning import forecast as module
from trajkit.scoring.planning.forecast import WINDOW_TOKENS, forecast, grouped, windows
from trajkit.scoring.scored import steps_to_score
from trajkit.store.write import DatasetWriter
from trajkit.tokenizer import load_tokenizer
from trajkit.training import TRAIN_POLICIES

APPEND = [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6], [7, 8])]
DRIFTED = [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 9, 6], [7, 8])]


def written(path: Path, trajectories: list[Trajectory]) -> Path:
    with DatasetWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(
        tmp_path / "d.parquet",
        [
            make_trajectory(APPEND, "a"),
            make_trajectory(DRIFTED, "b"),
            make_trajectory([([1, 2], [3])], "c", exclude_reason=["abandoned"]),
        ],
    )


def test_what_each_way_of_scoring_reads(data: Path) -> None:
    found = forecast(data)
    assert (found.n_trajectories, found.n_steps, found.n_scored_steps) == (3, 5, 4)
    assert found.n_action_tokens == 8
    assert found.n_raw_tokens == 2 * (5 + 8)
    assert found.n_row_tokens == 8 + (5 + 8)
    # 1 2 3 4 | 5 6 7 | 9 6 7; the last ids of b's first step and of both second steps are asked
    assert found.n_forwarded_tokens == 4 + 3 + 3
    assert found.n_forwards == 1
    assert found.by_status == {"ok": 4, "excluded": 1}
    assert found.sampled_share == 1.0


def test_the_price_of_drift_is_named(data: Path) -> None:
    found = forecast(data)
    (one,) = found.breaks
    assert (one.trajectory_id, one.step_index) == ("b", 1)
    assert (one.n_kept, one.n_lost, one.n_read_again) == (4, 1, 1)
    assert found.n_read_again == 1


def test_a_budget_cuts_and_repeats(data: Path) -> None:
    found = forecast(data, tokens_per_batch=7)
    assert (found.n_forwards, found.n_forwarded_tokens) == (2, 14)


WINDOW = [
    ([1, 10, 11], [20, 21]),
    ([1, 10, 11, 20, 21, 30], [22]),
    ([1, 10, 30, 22, 31], [23, 24]),
    ([1, 10, 30, 22, 31], []),
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return trajectories of all kinds: tails, a window, groups, drift, media-free and excluded."""
    return written(
        tmp_path_factory.mktemp("mixed") / "d.parquet",
        [
            make_trajectory(WINDOW, "w", tail_tokens=[None, None, [32, 33], None]),
            make_trajectory(APPEND, "a", group_id=["g", "g"], tail_tokens=[None, [40, 41]]),
            make_trajectory(DRIFTED, "b", group_id=["g", "g"]),
            make_trajectory([([1, 2], [3])], "x", exclude_reason=["abandoned"]),
            make_trajectory([([1, 50], [51])], "s"),
            make_trajectory([([1] * 90, [3] * 9)], "too long for 96 positions"),
        ],
    )


@pytest.mark.torch
@pytest.mark.parametrize("train", [policy.name for policy in TRAIN_POLICIES])
@pytest.mark.parametrize(("budget", "window"), [(4096, WINDOW_TOKENS), (9, WINDOW_TOKENS), (9, 8)])
def test_a_forecast_is_what_a_run_reads(
    mixed: Path, llama: Any, train: str, budget: int, window: int
) -> None:
    run = pytest.importorskip("trajkit.scoring.run")
    options: dict[str, Any] = {"tokens_per_batch": budget, "window_tokens": window, "train": train}
    words = load_tokenizer(Path(trajkit.__file__).parent / "demo" / "tiny")
    counts = run.score(mixed, llama, recheck=0, tokenizer=words, losses=[], **options).to_dict()
    found = forecast(mixed, max_positions=96, **options).to_dict()
    assert found["train"] == train
    for name in (
        *("n_forwarded_tokens", "n_forwards", "n_row_tokens", "n_raw_tokens", "by_status"),
        *("n_trajectories", "n_steps", "sampled_share", "by_source"),
    ):
        assert found[name] == counts[name], name


def test_context_costs_tails_and_is_counted(data: Path) -> None:
    plain, wide = forecast(data), forecast(data, train="all")
    assert (plain.n_context_tokens, wide.n_context_tokens) == (0, 3 + 1 + 3 + 2)
    assert wide.n_action_tokens == plain.n_action_tokens
    assert wide.breaks == plain.breaks != ()
    tails = make_trajectory(APPEND, "a", tail_tokens=[None, [7, 7, 7]])
    more = forecast(written(data.with_name("tails.parquet"), [tails]), train="observation")
    assert more.n_raw_tokens == 5 + 8 + 3
    assert more.n_forwarded_tokens == 8 + 3 - 1
    with pytest.raises(UsageProblem, match="--train") as caught:
        forecast(data, train="everything")
    assert caught.value.code == "U103"


def test_what_is_too_long_is_not_read(data: Path) -> None:
    found = forecast(data, max_positions=7)
    assert found.by_status == {"too_long": 4, "excluded": 1}
    assert found.n_forwarded_tokens == found.n_raw_tokens == found.n_action_tokens == 0
    assert forecast(data, max_positions=8).n_scored_steps == 4


def test_selections(data: Path) -> None:
    assert forecast(data, limit=1).n_trajectories == 1
    assert forecast(data, only=("b",)).n_raw_tokens == 13
    with pytest.raises(UsageProblem) as caught:
        forecast(data, only=("nobody",))
    assert caught.value.code == "U107"


def test_no_data_is_nothing_to_read(tmp_path: Path) -> None:
    found = forecast(written(tmp_path / "none.parquet", []))
    assert found.n_forwarded_tokens == found.n_forwards == 0
    assert found.sampled_share is None


def test_the_json_form_has_the_promised_keys(data: Path) -> None:
    found = json.loads(json.dumps(forecast(data).to_dict(), allow_nan=False))
    assert found["schema"] == "trajkit.score-plan/1"
    assert {
        "n_raw_tokens", "n_row_tokens", "n_forwarded_tokens", "n_forwards", "n_read_again",
        "breaks", "by_source", "by_status", "sampled_share", "n_action_tokens", "n_steps",
    } <= set(found)  # fmt: skip
    assert found["breaks"] == [
        {"trajectory_id": "b", "step_index": 1, "n_kept": 4, "n_lost": 1, "n_read_again": 1}
    ]


def test_windows_hold_so_many_ids_and_keep_the_order() -> None:
    made: list[Any] = [make_trajectory(APPEND, str(at)) for at in range(5)]  # 8 ids each
    assert list(windows(iter(made))) == [made]
    assert list(windows(iter(made), 16)) == [made[:2], made[2:4], made[4:]]
    assert list(windows(iter([]))) == []


def test_groups_that_begin_with_the_same_instructions_are_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MIN_COMMON", 3)
    made = [
        make_trajectory([([1, 2, 3, 4], [5])], "a", group_id=["g"]),
        make_trajectory([([1, 2, 9, 4], [5])], "b", group_id=["h"]),
        make_trajectory([([1, 2, 3, 7], [5])], "c", group_id=["i"]),
        make_trajectory([([1, 2], [5])], "d", group_id=["j"]),
        make_trajectory([([8, 8, 8, 8], [5])], "e", group_id=["g"]),
    ]
    found = grouped((one, steps_to_score(one)) for one in made)
    names = [[one.trajectory_id for one, _ in group] for group in found]
    assert names == [["a", "e", "c"], ["b"], ["d"]]


def test_context_that_is_asked_for_leaves_the_groups_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MIN_COMMON", 3)
    made = [
        make_trajectory([([1, 2, 3, 4], [5])], "a"),
        make_trajectory([([1, 2, 3, 7], [5])], "b"),
        make_trajectory([([1, 2], [5])], "c"),
        make_trajectory([([1, 2], [6])], "d"),
        make_trajectory([([1, 9], [6])], "e"),
    ]
    wide = [with_context_asked(one) for one in made]
    found = grouped(((one, steps_to_score(one)) for one in wide), made)
    names = [[one.trajectory_id for one, _ in group] for group in found]
    assert names == [["a", "b"], ["c", "d"], ["e"]]


def test_groups_are_by_id_else_by_first_prompt() -> None:
    made = [
        make_trajectory([([1, 2], [3])], "a", group_id=["g"]),
        make_trajectory([([1, 2], [3])], "b"),
        make_trajectory([([5, 5], [3])], "c", group_id=["g"]),
        make_trajectory([([1, 2], [4])], "d"),
        make_trajectory([([1, 3], [4])], "e"),
        make_trajectory([([1, 2], [4])], "f", exclude_reason=["x"]),
    ]
    found = grouped((one, steps_to_score(one)) for one in made)
    names = [[one.trajectory_id for one, _ in group] for group in found]
    assert names == [["a", "c"], ["b", "d"], ["e"]]
