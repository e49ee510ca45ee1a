"""Route `render`: what a chat template makes of the messages, beside what was recorded."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_trajectory, tiny_tokenizer
from tests.drift_builders import CHATML, ids_of, literal, rendered, renderer_of, say, talk, told
from tests.tokenizer_builders import ROOT
from trajkit.drift.findings import NO_MESSAGES, DriftKind
from trajkit.drift.routes.render import NO_TEMPLATE, load_renderer, walk_render
from trajkit.drift.walked import unexplained
from trajkit.errors import FileError
from trajkit.records import ActionSource, Trajectory
from trajkit.template import (
    Setting,
    encode_literally,
    habits_of,
    load_template,
    suited,
    turn_spans,
)
from trajkit.tokenizer import Tokenizer, load_tokenizer

REAL = ROOT / ".cache" / "tokenizers"
TRIM = CHATML.replace("m.content", "m.content | trim")
DATED = "{{ strftime_now('%d') }}|" + CHATML
THINKING = (
    "{% for m in messages %}{% set text = m.content %}"
    "{% if '</think>' in text and not loop.last %}"
    "{% set text = text.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PREFILL = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
REFUSING = CHATML + "{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}"


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def day(number: int) -> datetime:
    return datetime.fromisoformat(f"2025-08-{number}")


HEADER = "<|im_start|>assistant\n"
END = "<|im_end|>"


@pytest.fixture(scope="module")
def tiny():
    return tiny_tokenizer()


def calls_of(*turns: tuple[str, str], tokenizer: Any) -> Any:
    """Return append-only calls: the text each adds to the prompt, and the text of its action."""
    calls: list[Any] = []
    prompt: list[int] = []
    for added, action in turns:
        prompt = [*prompt, *ids_of(added, tokenizer)]
        ids = ids_of(action, tokenizer)
        calls.append((prompt, ids))
        prompt = [*prompt, *ids]
    return calls


def test_what_the_template_writes_is_no_finding(tiny):
    calls = calls_of(
        (user("search") + HEADER, "Tokyo" + END),
        ("\n" + user("again") + HEADER, "yes" + END),
        tokenizer=tiny,
    )
    walked = rendered(talk(calls, say("search", "Tokyo", "again", "yes", "end")), tiny, CHATML)
    assert (walked.checked, walked.found, walked.left_out) == ((0, 1), (), ())


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), min_size=1, max_size=5))
def test_recorded_ids_of_the_template_s_own_text_never_differ(turns):
    tiny = tiny_tokenizer()
    calls: list[Any] = []
    prompt: list[int] = []
    for number, (asked, said) in enumerate(turns):
        opening = ids_of(("\n" if number else "") + "<|im_start|>", tiny)
        prompt = [*prompt, *opening, *literal(f"user\n{asked}", tiny), 2]
        prompt = [*prompt, *ids_of("\n" + "<|im_start|>", tiny)]
        whole = literal(f"assistant\n{said}", tiny)
        n_header = len(literal("assistant\n", tiny))
        if whole[:n_header] != literal("assistant\n", tiny):
            return  # the header's newline merges with the answer: another test's matter
        prompt = [*prompt, *whole[:n_header]]
        calls.append((prompt, [*whole[n_header:], 2]))
        prompt = [*prompt, *whole[n_header:], 2]
    messages = say(*(text for turn in turns for text in turn))
    assert rendered(talk(calls, messages), tiny, CHATML).found == ()


def test_white_space_that_a_template_trims_is_found_in_the_action(tiny):
    calls = calls_of((user("search") + HEADER, " Tokyo\n" + END), tokenizer=tiny)
    findings = told(rendered(talk(calls, say("search", " Tokyo\n")), tiny, TRIM))
    assert findings[0].action_start == 0
    assert findings[0].kind is DriftKind.TEXT
    assert {f.step_index for f in findings} == {0}
    assert findings[0].evidence["rendered"] == "conversation"


def test_thoughts_that_the_history_drops_are_found_once_at_their_place(tiny):
    action = "<think>hm</think>Tokyo" + END
    calls = calls_of(
        (user("search") + HEADER, action),
        ("\n" + user("again") + HEADER, "yes" + END),
        ("\n" + user("more") + HEADER, "no" + END),
        tokenizer=tiny,
    )
    said = say("search", "<think>hm</think>Tokyo", "again", "yes", "more", "no")
    (finding,) = told(rendered(talk(calls, said), tiny, THINKING))
    assert (finding.step_index, finding.action_start) == (0, 0)
    assert finding.recorded_text == "<think>hm</think>"
    assert finding.retokenized_ids == ()
    assert finding.n_action_tokens == len(ids_of("<think>hm</think>", tiny))


def test_an_end_of_turn_is_added_behind_a_cut_action(tiny):
    calls = calls_of((user("search") + HEADER, "Tok"), tokenizer=tiny)
    (finding,) = told(rendered(talk(calls, say("search", "Tok")), tiny, CHATML))
    assert finding.action_start == len(calls[0][1])
    assert (finding.recorded_ids, finding.retokenized_ids) == ((), (2,))
    assert (finding.kind, finding.n_action_tokens) == (DriftKind.STRUCTURE, 0)


def test_an_end_of_turn_that_the_next_prompt_holds_makes_the_same_ids(tiny):
    calls = calls_of(
        (user("search") + HEADER, "Tok"),
        (END + "\n" + user("again") + HEADER, "yes" + END),
        tokenizer=tiny,
    )
    assert rendered(talk(calls, say("search", "Tok", "again", "yes")), tiny, CHATML).found == ()


def test_a_separator_that_the_recording_lacks_is_found_at_each_border(tiny):
    calls = calls_of(
        (user("search") + HEADER, "Tokyo" + END),
        (user("again") + HEADER, "yes" + END),
        (user("more") + HEADER, "no" + END),
        tokenizer=tiny,
    )
    said = say("search", "Tokyo", "again", "yes", "more", "no")
    findings = told(rendered(talk(calls, said), tiny, CHATML))
    assert [(f.step_index, f.action_start) for f in findings] == [(1, None), (2, None)]
    assert [f.token_start for f in findings] == [len(p) + len(a) for p, a in calls[:2]]
    assert {f.retokenized_text for f in findings} == {"\n"}


def test_a_prompt_that_the_template_ends_otherwise_is_found_before_the_action(tiny):
    calls = calls_of((user("search") + HEADER, "Tokyo" + END), tokenizer=tiny)
    (finding,) = told(rendered(talk(calls, say("search", "Tokyo")), tiny, PREFILL))
    assert (finding.token_start, finding.recorded_ids) == (len(calls[0][0]), ())
    assert finding.retokenized_text == "<think>\n"
    assert finding.evidence["rendered"] == "step"


def test_a_template_s_own_beginning_of_the_prompt_is_recorded_and_the_history_lacks_it(tiny):
    calls = calls_of(
        (user("search") + HEADER + "<think>\n", "Tokyo" + END),
        ("\n" + user("again") + HEADER + "<think>\n", "yes" + END),
        tokenizer=tiny,
    )
    said = say("search", "Tokyo", "again", "yes")
    findings = told(rendered(talk(calls, said), tiny, PREFILL))
    assert [(f.step_index, f.action_start) for f in findings] == [(0, None), (1, None)]
    assert {f.recorded_text for f in findings} == {"<think>\n"}
    assert {f.evidence["rendered"] for f in findings} == {"conversation"}


def test_a_message_that_spells_a_control_token_would_forge_one_if_encoded_naively(tiny):
    forged = literal("<|im_end|>", tiny)
    opening = ids_of("<|im_start|>", tiny) + literal("user\na ", tiny)
    prompt = [*opening, *forged, *ids_of("<|im_end|>\n" + HEADER, tiny)]
    calls = [(prompt, ids_of("Tokyo" + END, tiny))]
    (finding,) = told(rendered(talk(calls, say("a <|im_end|>", "Tokyo")), tiny, CHATML))
    assert finding.evidence["rendered"] == "conversation, naively encoded"
    assert finding.kind is DriftKind.STRUCTURE
    assert finding.token_start == len(opening)
    assert (finding.recorded_ids, finding.retokenized_ids) == (tuple(forged), (2,))


def test_a_control_token_that_a_message_forged_is_found_in_the_recording(tiny):
    calls = calls_of((user("a <|im_end|>") + HEADER, "Tokyo" + END), tokenizer=tiny)
    (finding,) = told(rendered(talk(calls, say("a <|im_end|>", "Tokyo")), tiny, CHATML))
    assert finding.evidence["rendered"] == "conversation"
    assert (finding.recorded_ids, finding.retokenized_text) == ((2,), END)


def test_a_difference_in_what_a_broken_prompt_keeps_is_told_once(tiny):
    start = ids_of("01|" + user("search") + HEADER, tiny)
    edited = [*start, *ids_of("Kyo" + END + "\n" + user("again") + HEADER, tiny)]
    calls = [(start, ids_of("Tok" + END, tiny)), (edited, ids_of("yes" + END, tiny))]
    trajectory = talk(calls, say("search", "Tok", "again", "yes"))
    findings = told(rendered(trajectory, tiny, DATED, now=day(22)))
    assert [(f.step_index, f.token_start) for f in findings] == [(0, 0), (1, len(start))]
    assert [f.recorded_text for f in findings] == ["01", "Kyo"]


def test_behind_a_retry_the_messages_of_a_prompt_are_not_known(tiny):
    start = ids_of(user("search") + HEADER, tiny)
    calls = [(start, ids_of(word + END, tiny)) for word in ("Tok", "Kyo")]
    said = [*say("search", "Tok"), {"role": "assistant", "content": "Kyo"}]
    walked = rendered(talk(calls, said, messages_keep=[None, None]), tiny, CHATML)
    assert (walked.checked, walked.found) == ((0,), ())
    ((why, n_steps),) = walked.left_out
    assert (n_steps, "does not go on" in why) == (1, True)


def test_the_present_is_what_it_is_told_to_be(tiny):
    calls = calls_of(("22|" + user("search") + HEADER, "Tokyo" + END), tokenizer=tiny)
    trajectory = talk(calls, say("search", "Tokyo"))
    assert rendered(trajectory, tiny, DATED, now=day(22)).found == ()
    (finding,) = told(rendered(trajectory, tiny, DATED, now=day(21)))
    assert (finding.token_start, finding.recorded_text) == (1, "2")
    renderer = renderer_of(DATED, now=day(21), mode="x")
    facts = renderer.told()
    assert facts is not None
    assert (facts["now"], facts["tells_time"]) == ("2025-08-21T00:00:00", True)
    assert facts["kwargs"] == {"mode": "x"}


def test_kwargs_reach_the_template(tiny):
    template = "{{ mode }}" + CHATML
    calls = calls_of(("fast" + user("search") + HEADER, "Tokyo" + END), tokenizer=tiny)
    trajectory = talk(calls, say("search", "Tokyo"))
    assert rendered(trajectory, tiny, template, mode="fast").found == ()
    assert len(rendered(trajectory, tiny, template, mode="slow").found) == 1


def test_a_window_far_shorter_than_its_history_is_left_out_and_counted(tiny):
    history = say("a " * 5000, "Tokyo", "again", "yes")
    first = calls_of((user("a " * 5000) + HEADER, "Tokyo" + END), tokenizer=tiny)
    window = calls_of((user("again") + HEADER, "yes" + END), tokenizer=tiny)
    walked = rendered(talk([*first, *window], history), tiny, CHATML)
    assert (walked.checked, walked.found) == ((0,), ())
    ((why, n_steps),) = walked.left_out
    assert (n_steps, "far less" in why) == (1, True)


def test_a_short_window_is_a_finding_at_what_it_lacks(tiny):
    first = calls_of((user("search") + HEADER, "Tokyo" + END), tokenizer=tiny)
    window = calls_of((user("again") + HEADER, "yes" + END), tokenizer=tiny)
    history = say("search", "Tokyo", "again", "yes")
    findings = told(rendered(talk([*first, *window], history), tiny, CHATML))
    assert {f.step_index for f in findings} == {1}
    assert all(f.action_start is None for f in findings)


def test_data_without_messages_template_or_sampled_ids_are_not_checked(tiny):
    calls = calls_of((user("search") + HEADER, "Tokyo" + END), tokenizer=tiny)
    bare, full = make_trajectory(calls), talk(calls, say("search", "Tokyo"))
    assert rendered(bare, tiny, CHATML).left_out == ((NO_MESSAGES, 1),)
    none = replace(renderer_of(CHATML), template=None)
    assert rendered(full, tiny, none).left_out == ((NO_TEMPLATE, 1),)
    assert none.told() is None
    made = replace(full.steps[0], action_source=ActionSource.RETOKENIZED)
    walked = rendered(Trajectory(trajectory_id="t", steps=(made,)), tiny, CHATML)
    assert (walked.checked, walked.left_out) == ((), ())


def test_a_conversation_that_the_template_refuses_is_left_out_and_the_others_are_not(tiny):
    calls = calls_of((user("no") + HEADER, "Tokyo" + END), tokenizer=tiny)
    refused = talk(calls, say("no", "Tokyo"))
    taken = talk(calls_of((user("ja") + HEADER, "Tokyo" + END), tokenizer=tiny), say("ja", "Tokyo"))
    renderer = renderer_of(REFUSING)
    first, second = walk_render(
        [refused, taken], tiny, lambda _: True, unexplained, lambda: renderer
    )
    assert first.left_out == (("the chat template refuses the conversation", 1),)
    assert (second.checked, second.found) == ((0,), ())


def test_a_template_that_is_not_named_lies_beside_the_tokenizer(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    args: Any = {"kwargs": {}, "now": None}
    assert load_renderer(None, tmp_path, **args).template is None
    assert load_renderer(None, None, **args).template is None
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        found = load_renderer(None, path, **args).template
        assert found is not None
        assert found.source == CHATML
    with pytest.raises(FileError):
        load_renderer(tmp_path / "gone.jinja", tmp_path, **args)


# ---- what real templates and tokenizers do

QWEN_USER = "<|im_start|>user\nIs it far?<|im_end|>\n<|im_start|>assistant\n"
LLAMA_SYSTEM = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
)
LLAMA_USER = "<|start_header_id|>user<|end_header_id|>\n\nIs it far?<|eot_id|>"
LLAMA_HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
HARMONY_DAY = "2025-03-14"
HARMONY = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\nCurrent date: 2025-03-14\n\nReasoning: medium\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
    "<|end|><|start|>user<|message|>Is it far?<|end|><|start|>assistant"
)
FINAL = "<|channel|>final<|message|>No.<|return|>"
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "near", "arguments": '{"x": "inn"}'}}],
}
REPLY = {"role": "tool", "name": "near", "content": 'two\n"inns"'}
ASKED = {"role": "user", "content": "Is it far?"}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


FAMILIES: dict[str, tuple[str, str, list[Any], list[tuple[str, str]], tuple[str, str, str]]] = {
    "thoughts-leave-the-history": (
        "qwen3",
        "qwen3",
        [ASKED, said("<think>\nOn foot?\n</think>\n\nNo."), ASKED],
        [(QWEN_USER, "<think>\nOn foot?\n</think>\n\nNo.<|im_end|>")],
        (QWEN_USER, "<think>\nOn foot?\n</think>\n\n", ""),
    ),
    "empty-thoughts-are-put-in": (
        "qwen3",
        "qwen3",
        [ASKED, said("No.")],
        [(QWEN_USER, "No.<|im_end|>")],
        (QWEN_USER, "", "<think>\n\n</think>\n\n"),
    ),
    "another-generation-prompt": (
        "qwen3",
        "qwen3",
        [ASKED, said("No.")],
        [(QWEN_USER + "<think>\n\n</think>\n\n", "No.<|im_end|>")],
        (QWEN_USER, "<think>\n\n</think>\n\n", ""),
    ),
    "an-end-of-turn-after-a-cut": (
        "qwen3",
        "qwen3_instruct_2507",
        [ASKED, said("No, it is")],
        [(QWEN_USER, "No, it is")],
        (QWEN_USER + "No, it is", "", "<|im_end|>"),
    ),
    "white-space-is-trimmed": (
        "llama3_1",
        "llama3_1",
        [ASKED, said(" No. \n\n"), ASKED],
        [(LLAMA_SYSTEM + LLAMA_USER + LLAMA_HEADER, " No. \n\n<|eot_id|>")],
        (LLAMA_SYSTEM + LLAMA_USER + LLAMA_HEADER, " No. \n\n", "No."),
    ),
    "a-doubled-beginning-of-text": (
        "llama3_1",
        "llama3_1",
        [ASKED, said("No.")],
        [("<|begin_of_text|>" + LLAMA_SYSTEM + LLAMA_USER + LLAMA_HEADER, "No.<|eot_id|>")],
        ("<|begin_of_text|>", "<|begin_of_text|>", ""),
    ),
    "analysis-leaves-the-history": (
        "gptoss",
        "gptoss",
        [ASKED, {"role": "assistant", "thinking": "Think.", "content": "No."}, ASKED],
        [
            (
                HARMONY,
                "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant" + FINAL,
            )
        ],
        (
            HARMONY + "<|channel|>",
            "analysis<|message|>Think.<|end|><|start|>assistant<|channel|>",
            "",
        ),
    ),
}


@cache
def real_tokenizer(name: str) -> Tokenizer:
    return load_tokenizer(REAL / name)


def real_talk(name: str, messages: list[Any], turns: list[tuple[str, str]]) -> Any:
    tokenizer = real_tokenizer(name)
    return talk(calls_of(*turns, tokenizer=tokenizer), messages), tokenizer


@pytest.mark.model
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_of_template_drift_is_found_at_its_first_id(family):
    name, file, messages, turns, (before, recorded, other) = FAMILIES[family]
    trajectory, tokenizer = real_talk(name, messages, turns)
    now = datetime.fromisoformat(HARMONY_DAY)
    walked = rendered(
        trajectory, tokenizer, REAL / "templates" / f"{file}.jinja", folder=REAL / name, now=now
    )
    first = told(walked)[0]
    n_before, n_prompt = len(ids_of(before, tokenizer)), trajectory.steps[0].prompt_len
    assert first.token_start == n_before
    in_action = first.recorded_text == "" or first.n_action_tokens > 0
    assert first.action_start == (n_before - n_prompt if in_action else None)
    assert (first.recorded_text, first.retokenized_text) == (recorded, other)


@pytest.mark.model
def test_the_day_of_a_real_template_is_found_and_can_be_told():
    trajectory, tokenizer = real_talk("gptoss", [ASKED, said("No.")], [(HARMONY, FINAL)])
    file = REAL / "templates" / "gptoss.jinja"
    today = datetime.fromisoformat(HARMONY_DAY)
    assert rendered(trajectory, tokenizer, file, folder=REAL / "gptoss", now=today).found == ()
    later = today.replace(day=15)
    (finding,) = told(rendered(trajectory, tokenizer, file, folder=REAL / "gptoss", now=later))
    assert (finding.recorded_text, finding.retokenized_text) == ("14", "15")
    assert finding.action_start is None


@pytest.mark.model
def test_an_observation_that_a_template_escapes_is_found_in_the_next_prompt():
    call = '{"name": "near", "parameters": {"x": "inn"}}<|eot_id|>'
    reply = '<|start_header_id|>ipython<|end_header_id|>\n\ntwo\n"inns"<|eot_id|>' + LLAMA_HEADER
    trajectory, tokenizer = real_talk(
        "llama3_1",
        [ASKED, CALL, REPLY, said("No.")],
        [(LLAMA_SYSTEM + LLAMA_USER + LLAMA_HEADER, call), (reply, "No.<|eot_id|>")],
    )
    file = REAL / "templates" / "llama3_1.jinja"
    (finding,) = told(rendered(trajectory, tokenizer, file, folder=REAL / "llama3_1"))
    assert (finding.step_index, finding.action_start) == (1, None)
    assert finding.recorded_text == 'two\n"inns"'
    assert finding.retokenized_text == '"two\\n\\"inns\\""'


@pytest.mark.model
def test_a_template_that_asks_for_null_content_is_shown_it_and_what_it_leaves_out_is_found():
    call = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>near\n```json\n"
        '{"x": "inn"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
    )
    opening = "<｜begin▁of▁sentence｜><｜User｜>Is it far?<｜Assistant｜>"
    reply = (
        '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>two\n"inns"<｜tool▁output▁end｜>'
        "<｜tool▁outputs▁end｜>"
    )
    end = "<｜end▁of▁sentence｜>"
    trajectory, tokenizer = real_talk(
        "deepseek_v3", [ASKED, CALL, REPLY, said("No.")], [(opening, call), (reply, "No." + end)]
    )
    template = load_template(REAL / "deepseek_v3")
    renderer = load_renderer(template, None, kwargs={}, now=None)
    (finding,) = told(rendered(trajectory, tokenizer, renderer))
    assert (renderer.told() or {})["nulls"] == "kept"
    assert (finding.step_index, finding.retokenized_ids) == (0, ())
    assert finding.recorded_text == "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"


OWN_RENDERS = {
    "qwen3": ("qwen3", {"conversation"}),
    "qwen3_instruct_2507": ("qwen3", set()),
    "llama3_1": ("llama3_1", set()),
    "gptoss": ("gptoss", {"conversation"}),
}


@pytest.mark.model
@pytest.mark.parametrize("file", OWN_RENDERS)
def test_what_a_server_renders_step_by_step_differs_from_the_finished_conversation_alone(file):
    name, expected = OWN_RENDERS[file]
    tokenizer = real_tokenizer(name)
    path = REAL / "templates" / f"{file}.jinja"
    template = load_template(path, REAL / name)
    call = {**CALL, "content": "", "reasoning_content": "Where?"}
    messages: list[Any] = [ASKED, call, REPLY, said(" No.\n"), ASKED, said("No."), ASKED]
    today = datetime.fromisoformat(HARMONY_DAY)
    given = suited(messages, habits_of(template))
    turns = turn_spans(template, given, tokenizer, Setting(now=today))

    def ids(pieces: Any) -> list[int]:
        return list(encode_literally(pieces, tokenizer).ids.tolist())

    calls = [(ids(t.prompt_pieces(tokenizer)), ids(t.action_pieces(tokenizer))) for t in turns]
    walked = rendered(talk(calls, messages), tokenizer, path, folder=REAL / name, now=today)
    assert walked.checked == (0, 1, 2)
    assert {finding.evidence["rendered"] for finding in told(walked)} == expected
