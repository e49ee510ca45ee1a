from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, agent_trajectory, encoded
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.view.cells import cells_of, with_ids
from trajkit.view.model import Line, Rule, rows, view_of
from trajkit.view.select import Selection, kind_names, selected


def shown(trajectory, **wanted):
    """Return (first token, text) of lines and the first fact of headings."""
    view = view_of(trajectory)
    found = selected(view, rows(view, TOKENIZER), TOKENIZER, Selection(**wanted))
    return [row.facts[0] if isinstance(row, Rule) else (row.token_start, row.text) for row in found]


def thinking():
    ids = encoded("Tokyo search\nTokyo")
    segments = (Segment(SegmentKind.THINK, 1, 4),)
    step = make_step(prompt_delta=encoded("search"), action_tokens=ids, segments=segments)
    return Trajectory(trajectory_id="t", steps=(step,))


def test_nothing_asked_is_everything():
    trajectory = agent_trajectory()
    view = view_of(trajectory)
    every = list(rows(view, TOKENIZER))
    assert list(selected(view, every, TOKENIZER, Selection())) == every


def test_kinds_and_sides_choose_lines_and_headings_without_any_are_left_out():
    assert shown(thinking(), kinds=frozenset({"think"})) == [
        "step 0",
        (1, "Tokyo search␊"),
    ]
    assert shown(thinking(), kinds=frozenset({"context"})) == ["step 0", (0, "search")]
    both = frozenset({"action", "context"})
    assert shown(thinking(), kinds=both) == shown(thinking())
    assert shown(thinking(), kinds=frozenset({"media"})) == []


def test_the_context_side_has_every_context_kind():
    step = make_step(
        prompt_delta=[5, 6], action_tokens=[7], segments=(Segment(SegmentKind.PROMPT, 0, 1),)
    )
    trajectory = Trajectory(trajectory_id="t", steps=(step,))
    found = shown(trajectory, kinds=frozenset({"context"}))
    assert [first for first, _ in found[1:]] == [0, 1]


def test_text_is_looked_for_in_what_is_shown():
    assert shown(thinking(), text="search␊") == ["step 0", (1, "Tokyo search␊")]
    assert shown(thinking(), text="nowhere") == []


def test_lines_are_cut_to_wanted_tokens():
    assert shown(thinking(), tokens=lambda index: 2 <= index < 5) == [
        "step 0",
        (2, " search␊"),
        (4, "Tokyo"),
    ]


def test_a_cut_line_still_knows_its_cells():
    view = view_of(thinking())
    wanted = Selection(tokens=lambda index: index == 2)
    found = selected(view, rows(view, TOKENIZER), TOKENIZER, wanted)
    (_, (line, ids)) = with_ids(view, found)
    assert isinstance(line, Line)
    (cell,) = cells_of(line, ids, TOKENIZER)
    assert (cell.text, cell.start, cell.end) == (" search", 2, 3)


def test_lines_without_tokens_have_no_token_to_want():
    trajectory = Trajectory(trajectory_id="t", steps=(make_step(action_text="x"),))
    assert shown(trajectory, tokens=lambda _: True) == []
    assert shown(trajectory, text="x") == ["step 0", (None, "x")]


def test_the_heading_of_a_sequence_stands_above_its_first_wanted_line_alone():
    trajectory = make_trajectory([([5, 6], [7]), ([5, 6, 7, 9], [8]), ([5, 8], [9])])
    assert [
        row for row in shown(trajectory, kinds=frozenset({"action"})) if isinstance(row, str)
    ] == [
        *("sequence 1 of 2", "step 0", "step 1"),
        *("sequence 2 of 2", "step 2"),
    ]


def test_every_kind_and_both_sides_have_a_name():
    assert set(kind_names()) == {"action"} | {kind.value for kind in SegmentKind}
