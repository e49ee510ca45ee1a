"""Which tokens a loss counts: each policy by hand, and what none of them ever counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory, tiny_tokenizer
from tests.mask_builders import bits, encode, harmony, thinker
from trajkit.errors import UsageProblem
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.sequence import TokenSequence, build_sequences
from trajkit.training import TRAIN_POLICIES, kinds_by_tag, loss_mask, policy_named

THINK, ANSWER, TEXT = SegmentKind.THINK, SegmentKind.ANSWER, SegmentKind.TEXT
CALL, STOP = SegmentKind.TOOL_CALL, SegmentKind.STOP


def sequence_of(*steps) -> TokenSequence:
    (sequence,) = build_sequences(Trajectory(trajectory_id="t", steps=steps))
    return sequence


def two_steps() -> TokenSequence:
    """Return a sequence whose parts are named: prompt 2, think 1, call 1, then 3 and an answer."""
    first = make_step(
        0,
        is_terminal=False,
        reward=0.0,
        prompt_delta=[5, 6],
        action_tokens=[7, 8],
        segments=(Segment(THINK, 2, 3), Segment(CALL, 3, 4)),
    )
    second = make_step(
        1,
        parent=first,
        prompt_delta=[9, 10, 11],
        action_tokens=[12, 13, 14],
        tail_tokens=[15],
        segments=(
            Segment(SegmentKind.SCAFFOLD, 0, 1),
            Segment(SegmentKind.OBSERVATION, 1, 2),
            Segment(SegmentKind.WARNING, 2, 3),
            Segment(THINK, 3, 4),
            Segment(ANSWER, 4, 5),
            Segment(STOP, 5, 6),
        ),
    )
    return sequence_of(first, second)


@pytest.mark.parametrize(
    ("policy", "mask"),
    [
        ("action", "00110001110"),
        ("last-step", "00000001110"),
        ("answer", "00000000110"),
        ("no-think", "00010000110"),
        ("rewarded", "00110000000"),
        ("observation", "00000100000"),
        ("action-observation", "00110101110"),
        ("all", "11111111111"),
    ],
)
def test_each_policy_counts_what_it_says(policy, mask):
    assert bits(loss_mask(two_steps(), policy_named(policy))) == mask


def test_the_policies_are_those_that_are_tested_here_and_each_has_a_sentence():
    names = [policy.name for policy in TRAIN_POLICIES]
    told = ["action", "last-step", "answer", "no-think", "rewarded", "observation"]
    assert names == [*told, "action-observation", "all"]
    assert len({policy.meaning for policy in TRAIN_POLICIES}) == len(names)
    with pytest.raises(UsageProblem, match="no-think, rewarded"):
        policy_named("actions")


def test_no_policy_counts_an_excluded_step_or_a_prefix_of_another_sequence():
    excluded = sequence_of(
        make_step(prompt_delta=[5], action_tokens=[6], exclude_reason="copied_context")
    )
    first = make_step(0, is_terminal=False, prompt_delta=[5, 6], action_tokens=[7])
    retry = make_step(1, parent=first, prompt_keep=2, prompt_delta=[], action_tokens=[8])
    branch = build_sequences(Trajectory(trajectory_id="t", steps=(first, retry)))[1]
    for policy in TRAIN_POLICIES:
        assert not loss_mask(excluded, policy, tiny_tokenizer()).any()
        assert not loss_mask(branch, policy, tiny_tokenizer())[:2].any()


def test_the_first_policy_is_the_fact():
    sequence = two_steps()
    assert bits(loss_mask(sequence, TRAIN_POLICIES[0])) == bits(sequence.action_mask)


def test_inserted_ids_are_no_action():
    step = make_step(
        prompt_delta=[5], action_tokens=[6, 7], segments=(Segment(SegmentKind.INSERTED, 2, 3),)
    )
    assert bits(loss_mask(sequence_of(step), policy_named("action"))) == "010"


# --- parts of an action that only its text tells


def test_thoughts_and_answers_are_told_by_their_tags():
    action = encode("<think>so</think>\n<answer>4</answer><|im_end|>")
    (sequence,) = build_sequences(make_trajectory([([1, 5], action)]))
    told = {
        name: tiny_tokenizer().text(
            sequence.token_ids[loss_mask(sequence, policy_named(name), tiny_tokenizer())]
        )
        for name in ("no-think", "answer")
    }
    answer = "<answer>4</answer><|im_end|>"
    assert told == {"no-think": "\n" + answer, "answer": answer}


@pytest.mark.parametrize(
    ("action", "policy", "counted"),
    [
        (
            "<answer>3</answer> no <answer>4</answer><|im_end|>",
            "answer",
            "<answer>4</answer><|im_end|>",
        ),
        ("<answer>3</answer>\n<answer>4</answer>", "answer", "<answer>4</answer>"),
        ("<answer>4</answer>", "no-think", "<answer>4</answer>"),
    ],
)
def test_the_last_answer_is_the_final_one(action, policy, counted):
    assert counts(action, policy) == counted


def test_neighbouring_answers_are_two():
    action = "<answer>3</answer><answer>4</answer>"
    assert counts(action, "answer", thinker()) == "<answer>4</answer>"


@pytest.mark.parametrize(
    ("action", "no_think"),
    [
        ("<think>so</think>", ""),
        ("<think>so", ""),
        ("<think>so<|im_end|>", "<|im_end|>"),
        ("<think>so</think>a<|im_end|>", "a<|im_end|>"),
    ],
)
def test_an_action_that_ends_with_its_thoughts(action, no_think):
    assert counts(action, "no-think", thinker()) == no_think


ANALYSIS = "<|channel|>analysis<|message|>so<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>4<|return|>"
CALL_TEXT = (
    "<|start|>assistant<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>"
)
ADDRESSED = "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>"
PREAMBLE = "<|start|>assistant<|channel|>commentary<|message|>first<|end|>"


@pytest.mark.parametrize(
    ("action", "no_think", "answer"),
    [
        (ANALYSIS + FINAL, FINAL, FINAL),
        (ANALYSIS + PREAMBLE + FINAL, PREAMBLE + FINAL, FINAL),
        (ANALYSIS + CALL_TEXT, CALL_TEXT, ""),
        (ANALYSIS + ADDRESSED, ADDRESSED, ""),
        (ANALYSIS[:-7], "", ""),
        (FINAL[18:], FINAL[18:], FINAL[18:]),
        ("<|channel|>other<|message|>x<|return|>", "<|channel|>other<|message|>x<|return|>", ""),
    ],
)
def test_harmony_messages_are_told_by_their_channels(action, no_think, answer):
    assert counts(action, "no-think", harmony()) == no_think
    assert counts(action, "answer", harmony()) == answer


def test_a_channel_that_the_prompt_opened_is_the_actions():
    prompt = "<|start|>assistant<|channel|>analysis<|message|>"
    assert counts("so<|end|>" + FINAL, "no-think", harmony(), prompt) == FINAL
    ended = "<|start|>assistant<|channel|>analysis<|message|>a<|end|>"
    assert counts("x<|end|>", "no-think", harmony(), ended) == "x<|end|>"


def test_control_text_in_a_message_is_no_channel():
    ids = [*encode("<|channel|>final<|message|>", harmony())]
    ids += [int(i) for i in b"<|channel|>analysis"]
    (sequence,) = build_sequences(make_trajectory([([1, 5], ids)]))
    mask = loss_mask(sequence, policy_named("no-think"), harmony())
    assert mask[2:].all()


def counts(action: str, policy: str, tokenizer=None, prompt: str = "a") -> str:
    """Return the text that a policy counts of one action."""
    tokenizer = tokenizer or tiny_tokenizer()
    calls = [(encode(prompt, tokenizer), encode(action, tokenizer))]
    (sequence,) = build_sequences(make_trajectory(calls))
    mask = loss_mask(sequence, policy_named(policy), tokenizer)
    text: str = tokenizer.text(sequence.token_ids[mask])
    return text


def test_without_a_tokenizer_parts_that_nothing_names_are_not_guessed():
    (sequence,) = build_sequences(make_trajectory([([1, 5], [6, 2])]))
    with pytest.raises(UsageProblem) as caught:
        loss_mask(sequence, policy_named("no-think"))
    assert caught.value.code == "U103"
    assert "-t" in str(caught.value.hint)


def test_a_token_belongs_to_the_tag_of_its_first_byte():
    pieces = [b"a<th", b"ink>b", b"</think>c", b"d"]
    assert kinds_by_tag(pieces) == [TEXT, THINK, THINK, TEXT]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (b"so</think>go", [THINK] * 10 + [TEXT] * 2),
        (b"<think>so", [THINK] * 9),
        (b"a</search>", [TEXT] * 10),
        (b"<search>q</search>!", [CALL] * 18 + [TEXT]),
        (b"", []),
    ],
)
def test_tags_that_stand_alone_go_on_to_an_end(text, kinds):
    assert kinds_by_tag([bytes([byte]) for byte in text]) == kinds


@given(
    st.lists(
        st.sampled_from([b"<think>", b"</think>", b"<answer>", b"</answer>", b"x", b"<thi", b""]),
        max_size=12,
    )
)
def test_every_token_has_one_kind(pieces):
    assert len(kinds_by_tag(pieces)) == len(pieces)
