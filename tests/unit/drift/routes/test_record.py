"""Route `self`: a record that contradicts itself is found, one that clients trimmed is not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory, tiny_tokenizer
from tests.drift_builders import ids_of
from trajkit.drift.findings import UNEXPLAINED, DriftKind, Route
from trajkit.drift.routes.record import SELF_CHECKS, walk_self
from trajkit.errors import InputError
from trajkit.records import Trajectory

PROMPT = [1, 5]


def ids(text: str) -> list[int]:
    return ids_of(text, tiny_tokenizer())


def walked(trajectory: Trajectory, *, is_text_own: bool = True) -> Any:
    (found,) = walk_self([trajectory], tiny_tokenizer(), lambda _: True, is_text_own=is_text_own)
    return found


def one(action: str, **given: Any) -> Any:
    """Return what is found in a single step."""
    step = make_step(0, prompt_delta=PROMPT, action_tokens=ids(action), **given)
    return walked(Trajectory(trajectory_id="t", steps=(step,)))


def checks(found: Any) -> list[str]:
    return [one.finding.evidence["check"] for one in found.found]


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"action_message_json": json.dumps({"role": "assistant", "content": content, **more})}


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("Tokyo<|im_end|>", {"action_text": "Tokyo<|im_end|>"}),
        ("Tokyo<|im_end|>", {"action_text": "Tokyo"}),
        (" Tokyo \n<|im_end|>", {"action_text": "Tokyo"}),
        ("<search>x</search>\n\n", {"action_text": "<search>x", "finish_reason": "stop"}),
        ("<|im_start|>Tokyo<|im_end|>", {"action_text": "Tokyo"}),
        ("Tokyo<|im_end|>", said("Tokyo")),
        ("<think>why</think>Tokyo<|im_end|>", said("Tokyo", reasoning_content="why")),
        ("Tokyo<|im_end|>", said(None)),
        ("Tokyo<|im_end|>", said([{"type": "text", "text": "Paris"}])),
        ("Tokyo<|im_end|>", said("Paris", tool_calls=[{"function": {}}])),
        ("Tokyo<|im_end|>", {"action_message_json": "no JSON"}),
        ("Tokyo<|im_end|>", {"finish_reason": "stop"}),
        ("Tokyo", {"finish_reason": "length"}),
        ("", {"finish_reason": "stop", "action_text": ""}),
    ],
)
def test_what_clients_do_to_text_is_no_contradiction(action, given):
    assert checks(one(action, **given)) == []


def test_a_character_cut_by_a_limit_may_be_missing_in_the_text():
    cut = ids("Tokyo \N{SLIGHTLY SMILING FACE}")[:-1]
    step = make_step(
        0, prompt_delta=PROMPT, action_tokens=cut, action_text="Tokyo", finish_reason="length"
    )
    assert checks(walked(Trajectory(trajectory_id="t", steps=(step,)))) == []


@pytest.mark.parametrize("given", [{"action_text": "Kyoto"}, said("Kyoto")])
def test_text_of_another_sample_is_found(given):
    found = one("Tokyo is big<|im_end|>", **given)
    assert checks(found) == ["text"]
    finding = found.found[0].finding
    assert (finding.route, finding.kind) == (Route.SELF, DriftKind.RECORD)
    assert (finding.token_start, finding.action_start, finding.byte_start) == (2, 0, 0)
    assert finding.recorded_text.startswith("Tokyo")
    assert finding.retokenized_text == "Kyoto"
    assert finding.retokenized_ids == ()
    assert found.found[0].covers == ()


def test_text_that_begins_alike_is_told_from_where_it_parts():
    found = one("search search Tokyo<|im_end|>", action_text="search search Paris")
    finding = found.found[0].finding
    assert finding.action_start > 0
    assert finding.recorded_text.lstrip().startswith("Tokyo")
    assert finding.byte_start == len("search search")


@pytest.mark.parametrize(
    ("action", "given", "cause"),
    [
        ("Tokyo . Big ?<|im_end|>", {"action_text": "Tokyo. Big?"}, "clean-up-tokenization-spaces"),
        ("dir\r\nfile<|im_end|>", said("dir\nfile"), "newline-translation"),
        ("<think>a\r\nb</think>Tokyo\r\nok", said("Tokyo\nok"), "newline-translation"),
        ("Tokyo\r\nok and so on", said("Tokyo\nok"), UNEXPLAINED),
        ("Tokyo . Big ?<|im_end|>", {"action_text": "Kyoto. Big?"}, UNEXPLAINED),
    ],
)
def test_text_that_decoders_or_files_rewrote_has_a_cause(action, given, cause):
    found = one(action, **given)
    assert checks(found) == ["text"]
    assert found.found[0].finding.cause == cause


def test_the_logged_text_is_shown_as_far_as_the_ids_are():
    assert len(ids("search")) == 1
    finding = one("search", action_text="sarch").found[0].finding
    assert (finding.recorded_text, finding.retokenized_text) == ("search", "sarch")


def test_text_of_the_ids_themselves_is_not_held_against_them():
    step = make_step(0, prompt_delta=PROMPT, action_tokens=ids("Tokyo"), action_text="Kyoto")
    trajectory = Trajectory(trajectory_id="t", steps=(step,))
    assert checks(walked(trajectory)) == ["text"]
    assert checks(walked(trajectory, is_text_own=False)) == []


def test_an_action_that_a_limit_cut_has_no_stop_id():
    found = one("Tokyo<|im_end|>", finish_reason="length")
    assert checks(found) == ["length"]
    assert found.found[0].finding.recorded_ids == (2,)
    assert found.found[0].finding.evidence["finish_reason"] == "length"


def two(first: str, between: str, **given: Any) -> Any:
    action = ids(first)
    calls = [(PROMPT, action), ([*PROMPT, *action, *ids(between)], ids("Tokyo"))]
    columns: dict[str, Any] = {name: [value, None] for name, value in given.items()}
    return walked(make_trajectory(calls, **columns))


def test_a_stop_id_that_stands_in_the_next_prompt_is_missing_in_the_action():
    found = two("Tokyo", "<|im_end|>\n<|im_start|>user", finish_reason="stop")
    assert checks(found) == ["stop"]
    finding = found.found[0].finding
    assert (finding.step_index, finding.recorded_ids, finding.retokenized_ids) == (0, (), (2,))
    assert finding.action_start == len(ids("Tokyo"))


@pytest.mark.parametrize(
    ("first", "between", "reason"),
    [
        ("Tokyo<|im_end|>", "\n<|im_start|>user", "stop"),
        ("<search>x</search>", "<|im_end|>\n<|im_start|>user", "stop"),
        ("Tokyo", "<|im_end|>\n<|im_start|>user", "length"),
        ("Tokyo", "<|im_end|>\n<|im_start|>user", None),
        ("Tokyo", "\nuser", "stop"),
    ],
)
def test_a_stop_that_is_there_or_was_never_sampled_is_not_missing(first, between, reason):
    assert checks(two(first, between, finish_reason=reason)) == []


def test_logprobs_that_do_not_stand_beside_the_ids_are_found():
    found = one("Tokyo<|im_end|>", rollout_logprobs=[-1.0])
    assert checks(found) == ["logprobs"]
    assert found.found[0].finding.evidence["n_logprobs"] == 1
    n = len(ids("Tokyo<|im_end|>"))
    assert checks(one("Tokyo<|im_end|>", rollout_logprobs=[-1.0] * n)) == []


def test_only_steps_that_say_something_of_their_action_are_checked():
    assert one("Tokyo").checked == ()
    assert one("Tokyo", finish_reason="abort").checked == ()
    assert one("Tokyo", finish_reason="stop").checked == (0,)


def test_an_id_outside_the_vocabulary_is_refused_with_its_place():
    step = make_step(0, prompt_delta=PROMPT, action_tokens=[600], finish_reason="stop")
    with pytest.raises(InputError) as caught:
        walked(Trajectory(trajectory_id="t", steps=(step,)))
    assert caught.value.code == "I304"
    assert caught.value.place is not None
    assert caught.value.place.step_index == 0


def test_every_check_has_its_words():
    assert all(text and not text.endswith(".") for text in SELF_CHECKS.values())


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(_TEXTS, st.sampled_from(["stop", "length", None]), st.booleans(), st.booleans())
def test_what_ids_spell_never_contradicts_them(text, reason, ends, strips):
    action = ids(text) + ([2] if ends and reason != "length" else [])
    logged = text.strip() if strips else text
    step = make_step(
        0,
        prompt_delta=PROMPT,
        action_tokens=action,
        action_text=logged,
        finish_reason=reason,
        rollout_logprobs=np.full(len(action), -1.0).tolist(),
    )
    assert checks(walked(Trajectory(trajectory_id="t", steps=(step,)))) == []
