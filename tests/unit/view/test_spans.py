from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, agent_trajectory, encoded
from trajkit.records import Trajectory
from trajkit.view.model import rows, view_of
from trajkit.view.select import Selection, selected
from trajkit.view.spans import HEAD, PREVIEW, span_rows


def spans(trajectory, **wanted):
    view = view_of(trajectory)
    found = selected(view, rows(view, TOKENIZER), TOKENIZER, Selection(**wanted))
    return list(span_rows(view, found))


def test_every_span_is_a_row():
    found = spans(agent_trajectory())
    assert found[:4] == [
        ("0", "context (not trained)", "prompt", "0", "60", "60", found[0][6]),
        ("0", "action (trained)", "think", "60", "70", "10", "<think>I should search.</think>␊"),
        (
            "0",
            "action (trained)",
            "tool_call",
            "70",
            "80",
            "10",
            "<search>population of Tokyo</search>",
        ),
        ("0", "action (trained)", "stop", "80", "81", "1", "⟪<|im_end|>⟫"),
    ]
    view = view_of(agent_trajectory())
    n = sum(span.step_index is not None for sequence in view.sequences for span in sequence.spans)
    assert len(found) == n
    assert {len(row) for row in found} == {len(HEAD)}


def test_a_span_begins_on_its_first_lines_and_is_cut():
    step = make_step(prompt_delta=encoded("Tokyo\n" * 30), action_tokens=[])
    ((*_, begins),) = spans(Trajectory(trajectory_id="t", steps=(step,)))
    assert begins == ("Tokyo␊" * 9)[: PREVIEW - 1] + "…"


def test_spans_of_the_same_kind_in_two_steps_are_two():
    trajectory = make_trajectory([([5], [6]), ([5, 6, 7], [8])])
    assert [(row[0], row[3], row[4]) for row in spans(trajectory)] == [
        *(("0", "0", "1"), ("0", "1", "2")),
        *(("1", "2", "3"), ("1", "3", "4")),
    ]


def test_only_spans_of_wanted_lines_are_told():
    assert [row[2] for row in spans(agent_trajectory(), kinds=frozenset({"stop"}))] == ["stop"]


def test_steps_without_ids_have_no_spans():
    assert spans(Trajectory(trajectory_id="t", steps=(make_step(action_text="x"),))) == []
