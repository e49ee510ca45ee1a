"""Causes in frame, templates, calls and history: each from a difference that only it explains."""

from __future__ import annotations

import json

import pytest

from tests.cause_builders import as_chain, compared, first, ids_of, told
from trajkit.drift.causes import UNEXPLAINED, cause_of

HEAD = "<|im_start|>user\nWhere is Gozo?<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
MORE = "\n<|im_start|>user\nAnd Malta?<|im_end|>\n<|im_start|>assistant\n"
THOUGHT = "<think>\nAn island, I think.\n</think>\n\n"
EMPTY = "<think>\n\n</think>\n\n"
LLAMA = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>"


def said(name, head, action):
    """Return a list that ends with an action, and the action's span."""
    n_head = len(ids_of(name, head))
    recorded = ids_of(name, head, action)
    return recorded, ((n_head, len(recorded)),)


def both_routes(name, recorded, other, action, **facts):
    """Return the cause that routes pair and chain tell of the first difference."""
    difference = compared(name, recorded, other, action=action, **facts)[0]
    causes = {cause_of(difference)[0], cause_of(as_chain(difference))[0]}
    assert len(causes) == 1
    return causes.pop()


@pytest.mark.parametrize("more", ["", MORE])
def test_reasoning_that_is_gone_was_stripped(more):
    recorded, action = said("qwen3", HEAD, THOUGHT + "In Malta." + END)
    other = ids_of("qwen3", HEAD, "In Malta." + END + more)
    assert both_routes("qwen3", recorded, other, action) == "reasoning-stripped"
    emptied = ids_of("qwen3", HEAD, EMPTY + "In Malta." + END + more)
    assert both_routes("qwen3", recorded, emptied, action) == "reasoning-stripped"


def test_an_analysis_that_is_gone_was_stripped():
    head = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>Hello."
    analysis = "<|channel|>analysis<|message|>Greet.<|end|><|start|>assistant"
    recorded, action = said("gptoss", head, analysis + final + "<|return|>")
    other = ids_of("gptoss", head, final + "<|end|><|start|>user<|message|>More<|end|>")
    assert told("gptoss", recorded, other, action=action) == ["reasoning-stripped", "eos-swapped"]


def test_reasoning_that_lost_a_word_was_not_stripped():
    recorded, action = said("qwen3", HEAD, THOUGHT + "In Malta." + END)
    other = ids_of("qwen3", HEAD, THOUGHT.replace("An island", "A city") + "In Malta." + END)
    assert both_routes("qwen3", recorded, other, action) == UNEXPLAINED
    another = ids_of("qwen3", HEAD, "In Italy, far away." + END)
    assert both_routes("qwen3", recorded, another, action) == UNEXPLAINED


@pytest.mark.parametrize("more", ["", MORE])
def test_an_empty_block_that_nobody_sampled_was_injected(more):
    recorded, action = said("qwen3", HEAD, "In Malta." + END)
    other = ids_of("qwen3", HEAD, EMPTY + "In Malta." + END + more)
    assert both_routes("qwen3", recorded, other, action) == "reasoning-injected"


def test_the_opening_in_front_of_an_action_is_the_generation_prompts():
    recorded, action = said("qwen3", HEAD + EMPTY, "In Malta." + END)
    other = ids_of("qwen3", HEAD, "In Malta." + END)
    assert both_routes("qwen3", recorded, other, action) == "generation-prompt-mismatch"
    bare, action = said("qwen3", HEAD, "In Malta." + END)
    asked = [{"role": "user", "content": "Where is Gozo?"}]
    prompt = ids_of("qwen3", HEAD, EMPTY, "In Malta." + END)
    found = told("qwen3", bare, prompt, action=action, messages=asked)
    assert found == ["generation-prompt-mismatch"]


def test_reasoning_from_a_key_that_only_one_version_reads_is_the_librarys():
    recorded, action = said("qwen3", HEAD, "In Malta." + END)
    other = ids_of("qwen3", HEAD, THOUGHT + "In Malta." + END)
    message = {"role": "assistant", "reasoning": "An island, I think.", "content": "In Malta."}
    cause, evidence = first("qwen3", recorded, other, action=action, message=message)
    assert (cause, evidence["key"]) == ("library-version", "reasoning")
    assert told("qwen3", recorded, other, action=action) == [UNEXPLAINED]


def test_a_system_prompt_nobody_logged_is_the_templates():
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    recorded, action = said("qwen3", HEAD, "Hi" + END)
    other = ids_of("qwen3", system + HEAD, "Hi" + END)
    assert both_routes("qwen3", recorded, other, action) == "default-system-prompt"
    logged = [{"role": "system", "content": "You are a helpful assistant."}]
    assert told("qwen3", recorded, other, action=action, messages=logged) == [UNEXPLAINED]
    own = ids_of("qwen3", system.replace("a helpful", "my own") + HEAD, "Hi" + END)
    assert told("qwen3", own, recorded) != ["default-system-prompt"]


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("Current date: 2025-08-05", "Current date: 2025-08-06", "dynamic-template-value"),
        ("Today Date: 26 Jul 2024", "Today Date: 30 Nov 2026", "dynamic-template-value"),
        ("It was found 2025-08-05", "It was found 2025-08-06", UNEXPLAINED),
        ("Current date: soon", "Current date: later", UNEXPLAINED),
    ],
)
def test_a_date_that_a_line_calls_one_is_read_from_the_clock(old, new, cause):
    texts = (f"<|start|>system<|message|>{one}\nBrief.<|end|>" for one in (old, new))
    assert set(told("gptoss", *(ids_of("gptoss", text) for text in texts))) == {cause}


CALL = {"name": "f", "arguments": {"to": "Malmö <M>", "b": [1, True, None], "a": "it's"}}
DENSE = json.dumps(CALL, separators=(",", ":"), ensure_ascii=False)
WRAPPED = {
    "qwen3": HEAD + "<tool_call>\n{}\n</tool_call><|im_end|>",
    "llama3_1": LLAMA.format("user", "Go.") + LLAMA.format("assistant", "{}"),
    "deepseek_v3": "<｜Assistant｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```",
    "gptoss": "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize(
    ("again", "style"),
    [
        (json.dumps(CALL, ensure_ascii=False), "spacing"),
        (json.dumps(CALL, separators=(",", ":")), "escaping"),
        (json.dumps(CALL, sort_keys=True, separators=(",", ":"), ensure_ascii=False), "key-order"),
        (str(CALL), "python-literals"),
    ],
)
def test_a_call_with_equal_values_was_printed_again(name, again, style):
    recorded, other = (ids_of(name, WRAPPED[name].replace("{}", one)) for one in (DENSE, again))
    for difference in compared(name, recorded, other):
        cause, evidence = cause_of(difference)
        assert cause == "tool-call-reserialisation"
        assert style in evidence["styles"]


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize(("old", "new"), [("true", "1"), ("it's", "it is"), ('"to"', '"from"')])
def test_a_call_with_other_values_was_not(name, old, new):
    texts = (DENSE, DENSE.replace(old, new))
    recorded, other = (ids_of(name, WRAPPED[name].replace("{}", one)) for one in texts)
    assert set(told(name, recorded, other)) == {UNEXPLAINED}


def test_a_parameter_in_tags_may_be_spelt_as_python_does():
    text = HEAD + "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>"
    for old, new, cause in (
        ("false", "False", "tool-call-reserialisation"),
        ("null", "None", "tool-call-reserialisation"),
        ("false", "None", UNEXPLAINED),
    ):
        recorded, other = ids_of("qwen3", text.format(old)), ids_of("qwen3", text.format(new))
        assert set(told("qwen3", recorded, other)) == {cause}


@pytest.mark.parametrize("escaped", ['"one\\nline \\"2\\""', '"one\\nline \\u00222\\u0022"'])
def test_a_result_that_reads_as_json_was_escaped(escaped):
    head = LLAMA.format("assistant", "Call.")
    recorded = ids_of("llama3_1", head + LLAMA.format("ipython", 'one\nline "2"'))
    other = ids_of("llama3_1", head + LLAMA.format("ipython", escaped))
    cause, evidence = first("llama3_1", recorded, other)
    assert (cause, evidence["escape"]) == ("observation-escaped", "json")


def test_words_of_the_policy_are_no_result():
    recorded = ids_of("llama3_1", LLAMA.format("assistant", 'one\nline "2"'))
    other = ids_of("llama3_1", LLAMA.format("assistant", '"one\\nline \\"2\\""'))
    assert set(told("llama3_1", recorded, other)) == {UNEXPLAINED}


def test_a_result_may_be_escaped_for_html():
    recorded = ids_of("qwen3", "<|im_start|>tool\nif a < b && c:<|im_end|>")
    other = ids_of("qwen3", "<|im_start|>tool\nif a &lt; b &amp;&amp; c:<|im_end|>")
    assert first("qwen3", recorded, other)[1]["escape"] == "html"


@pytest.mark.parametrize("name", ["llama3_1", "gemma3"])
def test_white_space_at_the_edges_of_a_message_was_trimmed(name):
    frame = {
        "llama3_1": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        "gemma3": ("<start_of_turn>model\n", "<end_of_turn>"),
    }[name]
    recorded, action = said(name, frame[0], "  Hi there! \n\n" + frame[1])
    for more in ("", "\n" + frame[0] + "ok" + frame[1]):
        other = ids_of(name, frame[0], "Hi there!" + frame[1] + more)
        assert both_routes(name, recorded, other, action) == "template-whitespace-trim"
    inside = ids_of(name, frame[0], "  Hi  there! \n\n" + frame[1])
    assert told(name, recorded, inside, action=action) == [UNEXPLAINED]


def test_white_space_behind_the_end_of_a_turn_is_a_separator():
    whole = HEAD + "A" + END + MORE
    recorded, other = ids_of("qwen3", whole), ids_of("qwen3", whole.replace(END + "\n", END))
    assert set(told("qwen3", recorded, other)) == {"turn-separator"}
    assert first("qwen3", other, recorded)[1] == {"missing_on": "recorded", "separator": "\n"}


def test_special_tokens_that_are_all_gone_were_skipped():
    header = "<|start_header_id|>ipython<|end_header_id|>"
    recorded = ids_of("llama3_1", header + "search.call(q)<|eot_id|>")
    other = ids_of("llama3_1", "ipythonsearch.call(q)")
    assert set(told("llama3_1", recorded, other)) == {"skip-special-tokens"}


@pytest.mark.parametrize(
    ("recorded", "other", "cause"),
    [
        ("<|begin_of_text|>{}", "<|begin_of_text|><|begin_of_text|>{}", "bos-duplicated"),
        ("<|begin_of_text|><|begin_of_text|>{}", "<|begin_of_text|>{}", "bos-duplicated"),
        ("<|begin_of_text|>{}", "{}", "bos-dropped"),
        ("{}", "<|begin_of_text|>{}", "bos-added"),
    ],
)
def test_the_begin_of_text_is_counted(recorded, other, cause):
    turn = LLAMA.format("user", "Hi")
    ids = (ids_of("llama3_1", one.replace("{}", turn)) for one in (recorded, other))
    assert told("llama3_1", *ids) == [cause]


def test_the_end_of_the_last_turn_is_swapped_dropped_or_added():
    ended, action = said("qwen3", HEAD, "In Malta." + END)
    cut, cut_action = said("qwen3", HEAD, "In Malta.")
    assert told("qwen3", ended, cut, action=action) == ["eos-dropped"]
    cause, evidence = first("qwen3", cut, ended, action=cut_action, finish_reason="length")
    assert cause == "eos-added"
    assert evidence == {"eos": END, "finish_reason": "length"}
    other = ids_of("qwen3", HEAD, "In Malta.<|endoftext|>")
    assert both_routes("qwen3", ended, other, action) == "eos-swapped"


def test_an_id_that_the_facts_call_a_stop_is_one():
    recorded, action = said("qwen3", HEAD, "In Malta.</tool_call>")
    stop = int(recorded[-1])
    assert told("qwen3", recorded, recorded[:-1], action=action) == [UNEXPLAINED]
    found = told("qwen3", recorded, recorded[:-1], action=action, stop_ids=[stop])
    assert found == ["eos-dropped"]


def test_marks_that_one_template_writes_are_another_version():
    text = "<｜tool▁call▁end｜>{}<｜tool▁outputs▁begin｜>ok"
    recorded = ids_of("deepseek_v3", text.format("<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"))
    other = ids_of("deepseek_v3", text.format(""))
    assert told("deepseek_v3", recorded, other) == ["template-version"]
    assert told("deepseek_v3", recorded, other, templates=("a", "a")) == [UNEXPLAINED]
    unused = ids_of("deepseek_v3", text.format("<｜place▁holder▁no▁3｜>"))
    assert told("deepseek_v3", unused, other) == [UNEXPLAINED]


def test_the_end_of_an_action_that_a_template_does_not_write_is_its_version():
    parts = (
        "ok<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        "<｜tool▁outputs▁begin｜>",
    )
    recorded, other = ids_of("deepseek_v3", *parts), ids_of("deepseek_v3", parts[0], parts[2])
    action = ((0, len(recorded) - 1),)
    assert told("deepseek_v3", recorded, other, action=action) == ["template-version"]
    pair = recorded[:-1], other[:-1]  # a step by itself: nothing shows that the other side goes on
    assert told("deepseek_v3", *pair, action=action) == [UNEXPLAINED]
    found = told("deepseek_v3", *pair, action=action, templates=("a", "b"))
    assert found == ["template-version"]


TALK = [
    ("user", "Find me the boat to Gozo, please."),
    ("assistant", "I search for it now."),
    ("user", "Result: there is none today at all."),
    ("assistant", "Then I look at the map."),
    ("user", "Result: the map of the west coast."),
    ("assistant", "It leaves from the west coast."),
]


def chatml(turns):
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)


def test_turns_that_are_gone_or_summarised_are_history_rewritten():
    recorded = ids_of("qwen3", chatml(TALK))
    window = ids_of("qwen3", chatml([TALK[0], *TALK[3:]]))
    cause, evidence = first("qwen3", recorded, window)
    assert (cause, evidence["turns_lost"]) == ("history-rewritten", 2)
    summary = [("user", "Summary of what was done: boats, maps."), *TALK[4:]]
    assert first("qwen3", recorded, ids_of("qwen3", chatml(summary)))[0] == "history-rewritten"
    masked = [*TALK[:2], ("user", "[output omitted]"), *TALK[3:]]
    cause, evidence = first("qwen3", recorded, ids_of("qwen3", chatml(masked)))
    assert (cause, evidence["marker"]) == ("history-rewritten", "omitted")


def test_a_message_in_other_words_or_a_cut_across_turns_is_unexplained():
    recorded = ids_of("qwen3", chatml(TALK))
    words = [*TALK[:2], ("user", "Nothing was found by anybody."), *TALK[3:]]
    assert set(told("qwen3", recorded, ids_of("qwen3", chatml(words)))) == {UNEXPLAINED}
    n = len(ids_of("qwen3", chatml(TALK[:1])))
    other = ids_of("qwen3", recorded[: n - 5].tolist(), recorded[n + 7 :].tolist())
    assert told("qwen3", recorded, other) == [UNEXPLAINED]
