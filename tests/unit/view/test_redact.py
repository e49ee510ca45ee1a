import json
import re

import pytest

from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, encoded
from trajkit.errors import UsageProblem
from trajkit.records import RewardPart, Trajectory
from trajkit.view.columns import view_columns
from trajkit.view.glyphs import BLOCK, HIDDEN
from trajkit.view.model import Line, rows, view_of
from trajkit.view.redact import Redaction, redacted, redaction_of


def hiding(*patterns):
    return Redaction(patterns=tuple(map(re.compile, patterns)))


def texts(view, tokenizer=TOKENIZER):
    return [row.text for row in rows(view, tokenizer) if isinstance(row, Line)]


def message_view(redaction, **given):
    step = make_step(**given)
    return redacted(view_of(Trajectory(trajectory_id="t", steps=(step,))), None, redaction)


def test_each_token_of_a_match_is_one_sign_whatever_its_length():
    ids = [*encoded("in Tokyo!"), *encoded("Tokyo", control=False)]
    view = redacted(view_of(make_trajectory([(ids, [5])])), TOKENIZER, hiding("Tokyo"))
    n = len(encoded(" Tokyo"))
    assert texts(view) == [f"in{BLOCK * n}!{BLOCK * 5}", "#"]
    (sequence,) = view.sequences
    assert (sequence.token_ids == HIDDEN).sum() == n + 5


def test_a_token_that_holds_only_the_edge_of_a_match_is_hidden_whole():
    (merged,) = encoded("search")
    view = redacted(view_of(make_trajectory([([merged], [5])])), TOKENIZER, hiding("ar"))
    assert texts(view) == [BLOCK, "#"]


def test_what_a_later_sequence_keeps_is_hidden_in_both():
    first = encoded("ali", control=False)
    calls = [(first, [5]), ([*first, *encoded("ce", control=False)], [6])]
    whole = view_of(make_trajectory(calls))
    assert len(whole.sequences) == 2
    shown = view_columns(redacted(whole, TOKENIZER, hiding("alice")), TOKENIZER)
    assert [columns["tokens"]["id"] for columns in shown] == [
        [None, None, None, 5],
        [None, None, None, None, None, 6],
    ]


def test_messages_are_searched_inside_json_and_as_they_are_shown():
    call = {"arguments": json.dumps({"q": "caf\u00e9", "n": 4417}), "id": 4417}
    view = message_view(
        hiding("caf\u00e9", "4417"),
        messages_json=json.dumps([{"role": "caf\u00e9", "content": "a caf\u00e9\ncaf\u00e9"}]),
        action_message_json=json.dumps({"role": "assistant", "tool_calls": [call]}),
    )
    lines = [row for row in rows(view, None) if isinstance(row, Line)]
    assert [line.label for line in lines] == [BLOCK, "", "assistant"]
    assert [line.text for line in lines[:2]] == [f"a␣{BLOCK}␊", BLOCK]
    assert "4417" not in lines[2].text
    assert "caf" not in lines[2].text
    assert lines[2].text.count(BLOCK) == 3


def test_keys_that_became_the_same_stay_two():
    assert hiding("[ab]").value({"a": 1, "b": 2}) == {BLOCK: 1, BLOCK * 2: 2}


def test_json_too_deep_to_be_searched_is_not_shown():
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert hiding("x").value(deep) == BLOCK


def test_names_of_a_step_are_rewritten_and_what_no_face_shows_is_gone():
    step = make_step(
        trajectory_id="alice-1",
        group_id="of alice",
        finish_reason="alice",
        prompt_delta=[5],
        action_tokens=[6],
        text_delta="alice",
        extra_json='{"who": "alice"}',
        model="alice",
        source_file="alice.jsonl",
        rewards=(RewardPart(name="alice", value=1.0),),
    )
    whole = view_of(Trajectory(trajectory_id="alice-1", steps=(step,)))
    view = redacted(whole, TOKENIZER, hiding("alice"))
    assert "alice" not in repr(view.trajectory) + repr(view.sequences)
    assert view.trajectory.trajectory_id == f"{BLOCK}-1"
    assert view.trajectory.group_id == f"of {BLOCK}"


def test_without_text_a_line_says_of_which_kind_it_is_and_how_long():
    whole = view_of(make_trajectory([(encoded("Tokyo\nin"), [6, 7])], finish_reason=["alice"]))
    view = redacted(whole, TOKENIZER, Redaction(hides_text=True))
    lines = [row for row in rows(view, TOKENIZER) if isinstance(row, Line)]
    n = len(encoded("Tokyo\nin"))
    assert [(line.text, line.note) for line in lines] == [
        (BLOCK * n, f"context, {n} tokens"),
        (BLOCK * 2, "text, 2 tokens"),
    ]
    assert view.trajectory.steps[0].finish_reason is None


def test_without_text_there_are_no_messages():
    view = message_view(
        Redaction(hides_text=True), action_text="x", observation="y", messages_json="[1]"
    )
    assert texts(view, None) == []


def test_ids_cannot_be_searched_without_their_tokenizer():
    with pytest.raises(UsageProblem, match="without their tokenizer") as caught:
        redacted(view_of(make_trajectory([([5], [6])])), None, hiding("x"))
    assert caught.value.code == "U103"


@pytest.mark.parametrize("pattern", ["(", "x*", ""])
def test_a_pattern_that_cannot_be_meant_is_refused(pattern):
    with pytest.raises(UsageProblem, match="--redact"):
        redaction_of([pattern])


def test_matches_that_overlap_share_a_sign():
    assert hiding("ab", "bc").text("abcd") == f"{BLOCK}d"


def test_where_nothing_is_to_be_hidden_the_view_is_the_same():
    view = view_of(make_trajectory([([5], [6])]))
    assert redacted(view, None, Redaction()) is view
