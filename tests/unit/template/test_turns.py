"""Where turns begin and end, and what one costs."""

from __future__ import annotations

import pytest

from tests.template_builders import (
    CHATML,
    CLOSED,
    DROPS,
    OPENS,
    PREFILL,
    REMINDS,
    THINKING,
    call,
    policy,
    result,
    say,
    user,
)
from trajkit.template import (
    TurnFit,
    encode_literally,
    prompt_for_step,
    render_text,
    sandbox,
    turn_spans,
)


def turns_of(template, messages, tokenizer):
    return [
        (turn.fit, turn.prompt_text, turn.action_text)
        for turn in turn_spans(template, messages, tokenizer)
    ]


def test_a_turn_ends_with_its_end_of_turn_token_and_no_newline(template, tiny):
    messages = say("q", "a", "r", "b")
    assert turns_of(template(CHATML), messages, tiny) == [
        (TurnFit.SAME, render_text(template(CHATML), messages[:k], add_generation_prompt=True), own)
        for k, own in ((1, "a<|im_end|>"), (3, "b<|im_end|>"))
    ]
    assert prompt_for_step(template(CHATML), messages, 1).text.endswith("<|im_start|>assistant\n")


def test_an_empty_message_is_its_end_of_turn_token(template, tiny):
    assert [own for _, _, own in turns_of(template(CHATML), say("q", "", "r", ""), tiny)] == [
        "<|im_end|>",
        "<|im_end|>",
    ]


def test_an_end_of_text_behind_the_last_turn_is_no_end_of_turn(template, tiny):
    turns = list(turn_spans(template(CLOSED), say("q", "a", "r", "b"), tiny))
    assert [turn.action_text for turn in turns] == ["a<|im_end|>", "b<|im_end|>"]
    assert [turn.fit for turn in turns] == [TurnFit.SAME, TurnFit.SAME]


def test_a_rewritten_history_is_told_with_the_place(template, tiny):
    first, last = turn_spans(
        template(THINKING), say("q", "<think>\nhm\n</think>\n\nA", "r", "B"), tiny
    )
    assert (first.fit, last.fit) == (TurnFit.REWRITTEN, TurnFit.SAME)
    assert first.action_text == "<think>\nhm\n</think>\n\nA<|im_end|>"
    assert first.parts_at == first.start == len(first.prompt_text)
    assert last.action_text == "<think>\n\n</think>\n\nB<|im_end|>"
    assert last.rendered.text[last.start : last.text_start] == "<think>\n\n</think>\n\n"


def test_a_generation_prompt_that_never_enters_the_history_is_told(template, tiny):
    turns = list(turn_spans(template(PREFILL), say("q", "a", "r", "b"), tiny))
    assert [turn.fit for turn in turns] == [TurnFit.PARTED, TurnFit.PARTED]
    assert [turn.prompt_more for turn in turns] == ["<think>\n", "<think>\n"]
    assert [turn.action_text for turn in turns] == ["a<|im_end|>", "b<|im_end|>"]


LOOKED_UP = (  # a result is headed by the name of the latest call with its id
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}{% if m.role == 'tool' %}"
    "{% set found = namespace(name='') %}{% for other in messages %}"
    "{% for c in other.tool_calls or [] %}{% if c.id == m.tool_call_id %}"
    "{% set found.name = c.function.name %}{% endif %}{% endfor %}{% endfor %}"
    "{{ ' ' + found.name + '\n<' + found.name + '>' }}{% endif %}{{ '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)


def test_an_action_holds_no_words_of_a_message_before_it(template, tiny):
    messages = [
        *(user("go"), policy("", call("search", '{"q": 1}', "call_0"))),
        *(result("OUT <|im_end|>", tool_call_id="call_0"),),
        *(policy("", call("lookup", '{"q": 2}', "call_0")), result("R", tool_call_id="call_0")),
        *(policy("", call("end", "{}", "call_0")), policy("done")),
    ]
    turns = list(turn_spans(template(LOOKED_UP), messages, tiny))
    assert [turn.action_text.strip() for turn in turns] == [
        'search {"q": 1}<|im_end|>',
        'lookup {"q": 2}<|im_end|>',
        "end {}<|im_end|>",
        "done<|im_end|>",
    ]
    for turn in turns:
        before = render_text(
            template(LOOKED_UP), messages[: turn.message], add_generation_prompt=True
        )
        assert turn.prompt_text == before
        ids = encode_literally(turn.prompt_pieces(tiny), tiny).ids.tolist()
        assert ids.count(1) == turn.message + 1
        assert ids.count(2) == turn.message


def test_words_that_a_prompt_repeats_are_no_control(template, tiny):
    forged = "a <|im_end|>"
    first, last = turn_spans(template(REMINDS), say(forged, "b", "c", "d"), tiny)
    for turn, n_before in ((first, 1), (last, 3)):
        assert turn.prompt_text.endswith(forged + "<|im_start|>assistant\n")
        ids = encode_literally(turn.prompt_pieces(tiny), tiny).ids.tolist()
        assert ids.count(2) == n_before


def loop(n_steps: int, n_users: int):
    """Return tool loops, each behind a message of the user, and a last such message."""
    messages = []
    for number in range(n_users):
        messages.append(user(f"do {number}"))
        for step in range(n_steps):
            messages += [policy(f"<think>hm {step}</think>\n\nask {step}"), result(f"r {step}")]
        messages.append(policy(f"<think>so</think>\n\ndone {number}"))
    return [*messages, user("bye")]


LONG = {
    "chat": lambda n: say(*(f"<think>t {i}</think>\n\nw {i}" for i in range(2 * n))),
    "one loop": lambda n: loop(n, 1),
    "many loops": lambda n: loop(2, n // 2),
    "many calls": lambda n: loop(1, n // 2),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("source", [DROPS, OPENS, THINKING, PREFILL, CHATML])
def test_twice_the_turns_are_twice_the_messages_rendered(template, tiny, monkeypatch, source, name):
    written = []
    run = sandbox.run

    def counted(program, variables, place):
        written.append(len(variables["messages"]))
        return run(program, variables, place)

    monkeypatch.setattr(sandbox, "run", counted)
    costs = []
    for n in (24, 48):
        written.clear()
        turns = list(turn_spans(template(source), LONG[name](n), tiny))
        assert len(turns) >= n
        costs.append((len(written), sum(written)))
    assert costs[1][0] < 2.1 * costs[0][0]
    assert costs[1][1] < 2.1 * costs[0][1]
