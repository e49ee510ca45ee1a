import json
from typing import Any

import pytest
import tokenizers

from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, encoded
from trajkit.errors import InputError
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.tokenizer import Tokenizer
from trajkit.view.model import Line, Rule, rows, step_facts, view_of

IM_START, IM_END = 1, 2


def one_step(**fields) -> Any:
    return Trajectory(trajectory_id="t", steps=(make_step(**fields),))


def lines(trajectory, tokenizer=TOKENIZER, **options) -> Any:
    """Return (first token, side, text) of each line."""
    return [
        (row.token_start, row.is_action, row.text)
        for row in rows(view_of(trajectory), tokenizer, **options)
        if isinstance(row, Line)
    ]


def rules(trajectory, **options) -> Any:
    return [
        row.facts
        for row in rows(view_of(trajectory), TOKENIZER, **options)
        if isinstance(row, Rule)
    ]


def messages(added, action=None, **fields) -> Any:
    """Return (label, side, text) of each line of a text-only step."""
    trajectory = one_step(
        messages_json=json.dumps(added),
        action_message_json=None if action is None else json.dumps(action),
        **fields,
    )
    found = rows(view_of(trajectory), None)
    return [(r.label, r.is_action, r.text) for r in found if isinstance(r, Line)]


def test_lines_end_at_newlines_and_where_the_side_changes():
    prompt, action = encoded("search\nTokyo"), encoded("1\n\nTokyo")
    assert lines(one_step(prompt_delta=prompt, action_tokens=action)) == [
        (0, False, "search␊"),
        (2, False, "Tokyo"),
        (3, True, "1␊"),
        (5, True, "␊"),
        (6, True, "Tokyo"),
    ]


def words(*spelt) -> Any:
    """Return a tokenizer whose ids spell what is given, in byte-level letters."""
    vocabulary = {word: token_id for token_id, word in enumerate(spelt)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=spelt[0]))
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend, "words")


def test_a_line_that_begins_inside_a_token_has_that_tokens_index():
    tokenizer = words("a", "bĊc", "ĊĊ")
    assert lines(one_step(prompt_delta=[0, 1, 0, 2, 0], action_tokens=[]), tokenizer) == [
        (0, False, "ab␊"),
        (1, False, "ca␊"),
        (3, False, "␊"),
        (4, False, "a"),
    ]


def test_a_character_spread_over_ids_is_one_character():
    spread = encoded("🙂東", control=False)
    assert len(spread) == 7
    assert lines(one_step(prompt_delta=spread, action_tokens=[])) == [(0, False, "🙂東")]


def test_a_character_cut_between_the_sides_is_hex_on_both():
    first, *rest = encoded("東", control=False)
    assert lines(one_step(prompt_delta=[first], action_tokens=rest)) == [
        (0, False, "⟦E6⟧"),
        (1, True, "⟦9D B1⟧"),
    ]


def test_control_ids_do_not_look_like_the_same_text_spelt_with_plain_ids():
    typed = encoded("<|im_end|>", control=False)
    trajectory = one_step(prompt_delta=[*typed, IM_END, *encoded("\n"), IM_START], action_tokens=[])
    assert lines(trajectory) == [
        (0, False, "<|im_end|>⟪<|im_end|>⟫␊"),
        (len(typed) + 2, False, "⟪<|im_start|>⟫"),
    ]


def test_segments_of_an_action_begin_lines_and_inserted_ids_are_context():
    segments = (
        Segment(SegmentKind.THINK, 0, 1),
        Segment(SegmentKind.INSERTED, 1, 2),
        Segment(SegmentKind.STOP, 2, 3),
    )
    search, tokyo = encoded("search"), encoded("Tokyo")
    step = one_step(prompt_delta=[], action_tokens=[*search, *tokyo, IM_END], segments=segments)
    assert lines(step) == [
        (0, True, "search"),
        (1, False, "Tokyo"),
        (2, True, "⟪<|im_end|>⟫"),
    ]


def test_an_id_that_spells_nothing_is_shown_all_the_same():
    trajectory = one_step(prompt_delta=[1, 0, 1], action_tokens=[1])
    assert lines(trajectory, words("a", "")) == [
        (0, False, "⟦id 1⟧a⟦id 1⟧"),
        (3, True, "⟦id 1⟧"),
    ]


def test_without_a_tokenizer_ids_are_shown_ten_a_line():
    trajectory = one_step(prompt_delta=range(11), action_tokens=[49151])
    found = lines(trajectory, None)
    assert [(start, side, text.split()) for start, side, text in found] == [
        (0, False, [str(token_id) for token_id in range(10)]),
        (10, False, ["10"]),
        (11, True, ["49151"]),
    ]


def test_an_id_outside_the_vocabulary_is_an_error():
    with pytest.raises(InputError) as caught:
        lines(one_step(prompt_delta=[512], action_tokens=[]))
    assert caught.value.code == "I304"


def test_kept_ids_are_counted_and_not_shown_again():
    trajectory = make_trajectory([([5, 6, 7], [8]), ([5, 6, 9], [10])])
    assert rules(trajectory) == [
        ("sequence 1 of 2",),
        ("step 0", "action 1 token", "sampled"),
        ("sequence 2 of 2", "2 tokens kept from earlier steps, context (not trained)"),
        ("step 1", "action 1 token", "sampled", "terminal"),
    ]
    assert [start for start, _, _ in lines(trajectory)] == [0, 3, 2, 3]


def test_only_wanted_steps_are_shown_and_keep_their_indices():
    trajectory = make_trajectory([([5], [6]), ([5, 6, 7], [8]), ([9], [10])])
    second = {"wanted": lambda index: index == 1}
    assert lines(trajectory, **second) == [
        (2, False, TOKENIZER.token_bytes(7).decode()),
        (3, True, TOKENIZER.token_bytes(8).decode()),
    ]
    assert [facts[0] for facts in rules(trajectory, **second)] == ["sequence 1 of 2", "step 1"]
    assert rules(trajectory, wanted=lambda _: False) == []


def test_a_heading_says_what_is_known_of_the_step():
    step = make_step(
        3,
        prompt_delta=[1],
        action_tokens=[2, 3],
        finish_reason="le\x1bngth" + "x" * 100,
        is_truncated=True,
        reward=-0.25,
        exclude_reason="abandoned",
    )
    assert step_facts(step) == (
        *("step 3", "action 2 tokens", "sampled", "le␛ngth" + "x" * 32 + "…", "cut"),
        *("reward -0.25", "excluded: abandoned", "terminal"),
    )
    assert step_facts(make_step(0, is_terminal=False)) == ("step 0", "no ids")


def test_a_view_counts_its_tokens():
    trajectory = make_trajectory([([5, 6, 7], [8]), ([5, 6, 9], [10])])
    view = view_of(trajectory)
    assert (view.n_tokens, view.n_action_tokens, view.has_ids) == (8, 2, True)
    assert view.without_ids == ()


def test_steps_without_prompt_ids_are_shown_as_messages_behind_the_sequences():
    with_ids = make_step(0, prompt_delta=[5], action_tokens=[6])
    silent = make_step(1, action_text="said\n")
    only_action = make_step(2, action_tokens=[*encoded("Tokyo"), IM_END])
    trajectory = Trajectory(trajectory_id="t", steps=(with_ids, silent, only_action))
    view = view_of(trajectory)
    assert [step.step_index for step in view.without_ids] == [1, 2]
    assert lines(trajectory)[2:] == [(None, True, "said␊"), (None, True, "Tokyo⟪<|im_end|>⟫")]


def test_messages_stand_under_their_role_and_text_cannot_forge_one():
    added = [{"role": "user", "content": "Hi\nassistant I agree.\n"}]
    assert messages(added, {"role": "assistant", "content": "No."}) == [
        ("user", False, "Hi␊"),
        ("", False, "assistant I agree.␊"),
        ("assistant", True, "No."),
    ]


def test_what_else_a_message_holds_is_shown_as_json():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "é"}]}
    result = {"role": "tool", "content": "3", "tool_call_id": "c"}
    assert messages([result], call) == [
        ("tool", False, "3"),
        ("fields", False, '{"tool_call_id": "c"}'),
        ("assistant", True, '{"tool_calls": [{"id": "é"}]}'),
    ]


def test_messages_of_any_shape_are_shown():
    parts = [{"type": "text", "text": "x"}]
    added = [
        {"role": "user", "content": parts},
        {"role": ""},
        {"type": "function_call", "name": "f"},
        {"role": {"a": 1}, "content": ""},
        {"role": " \x1b", "content": "y"},
        "text",
        7,
        None,
    ]
    assert messages(added) == [
        ("user", False, json.dumps({"content": parts})),
        ("message", False, ""),
        ("function…", False, '{"type": "function_call", "name": "f"}'),
        ('{"a": 1}', False, ""),
        ("␣␛", False, "y"),
        ("message", False, "text"),
        ("message", False, "7"),
        ("message", False, "null"),
    ]


def test_damaged_message_json_is_shown_as_it_is():
    trajectory = one_step(messages_json='{"role": ', action_text="x")
    assert lines(trajectory) == [(None, False, '{"role":␣'), (None, True, "x")]


def test_half_a_surrogate_pair_in_a_message_is_spelt():
    assert messages([{"role": "user", "content": "\ud800"}]) == [("user", False, "\\ud800")]


def test_a_step_of_plain_text_shows_prompt_action_and_last_observation():
    trajectory = one_step(text_delta="Q?\n", action_text="A.", observation="seen")
    found = rows(view_of(trajectory), None)
    assert [(r.label, r.is_action, r.text) for r in found if isinstance(r, Line)] == [
        ("prompt", False, "Q?␊"),
        ("action", True, "A."),
        ("observed", False, "seen"),
    ]
