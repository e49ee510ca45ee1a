import json

from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, encoded
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.view.fold import folded_rows
from trajkit.view.model import Line, Rule, rows, view_of


def fold(view, n_kept, width=60, tokenizer=TOKENIZER):
    return list(folded_rows(view, rows(view, tokenizer), tokenizer, n_kept, width))


def shown(found):
    return [row.facts[0] if isinstance(row, Rule) else row.text for row in found]


def lines(n):
    return "".join(f"{i}\n" for i in range(n))


def test_the_middle_of_long_context_becomes_a_rule_that_says_how_much():
    view = view_of(make_trajectory([(encoded(lines(20)), [5])]))
    n = len(encoded("".join(f"{i}\n" for i in range(2, 18))))
    expected = ["0␊", "1␊", f"… 16 lines, {n} tokens folded", "18␊", "19␊", "#"]
    assert shown(fold(view, 4))[1:] == expected


def test_actions_are_never_folded():
    view = view_of(make_trajectory([([5], encoded(lines(50)))]))
    assert fold(view, 2) == list(rows(view, TOKENIZER))


def test_a_rule_never_stands_for_a_single_line():
    view = view_of(make_trajectory([(encoded(lines(5)), [5])]))
    assert fold(view, 4) == list(rows(view, TOKENIZER))


def test_one_line_that_is_wider_than_the_screen_is_folded_at_its_tokens():
    view = view_of(make_trajectory([(encoded("Tokyo " * 200), [5])]))
    found = [row for row in fold(view, 2, width=30) if isinstance(row, Line)]
    head, tail, _ = found
    assert head.text.startswith("Tokyo")
    assert len(head.text) <= 30
    ids = view.sequences[0].token_ids
    assert tail.token_start is not None
    assert tail.text.replace("␣", " ") == TOKENIZER.text(ids[tail.token_start : -1])


def test_kinds_are_folded_each_by_itself():
    ids = encoded(lines(10))
    step = make_step(
        prompt_delta=[*ids, *ids],
        action_tokens=[5],
        segments=(
            Segment(SegmentKind.PROMPT, 0, len(ids)),
            Segment(SegmentKind.OBSERVATION, len(ids), 2 * len(ids)),
        ),
    )
    view = view_of(Trajectory(trajectory_id="t", steps=(step,)))
    assert shown(fold(view, 2))[1:] == [
        *("0␊", f"… 8 lines, {len(ids) - 4} tokens folded", "9␊") * 2,
        "#",
    ]


def test_messages_are_folded_by_lines_and_each_keeps_its_beginning():
    messages = [{"role": role, "content": lines(9)} for role in ("user", "tool")]
    step = make_step(messages_json=json.dumps(messages))
    view = view_of(Trajectory(trajectory_id="t", steps=(step,)))
    found = fold(view, 2, tokenizer=None)
    assert shown(found)[1:] == ["0␊", "… 7 lines folded", "8␊"] * 2
    assert [row.label for row in found if isinstance(row, Line)] == ["user", "", "tool", ""]


def test_one_folded_message_line_keeps_all_of_its_text_where_it_is_short():
    step = make_step(messages_json=json.dumps([{"role": "tool", "content": "x" * 100}]))
    view = view_of(Trajectory(trajectory_id="t", steps=(step,)))
    assert shown(fold(view, 2, width=30, tokenizer=None))[1:] == [
        "x" * 30,
        "… 2 lines folded",
        "x" * 10,
    ]
