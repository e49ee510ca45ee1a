"""Causes in frame, templates and history, in the order they are asked, with their pages."""

from __future__ import annotations

from trajkit.drift.causes.blocks import (
    default_system_prompt,
    dynamic_template_value,
    generation_prompt_mismatch,
    library_version,
    reasoning_injected,
    reasoning_stripped,
)
from trajkit.drift.causes.calls import observation_escaped, tool_call_reserialisation
from trajkit.drift.causes.cause import (
    BYTES,
    EVERY,
    PAIRED,
    SAME_BYTES,
    STORED,
    STRUCTURE,
    Cause,
    Severity,
)
from trajkit.drift.causes.history import history_rewritten, template_version
from trajkit.drift.causes.spelling import truncation
from trajkit.drift.causes.turns import (
    bos_added,
    bos_dropped,
    bos_duplicated,
    eos_added,
    eos_dropped,
    eos_swapped,
    skip_special_tokens,
    template_whitespace_trim,
    turn_separator,
)

TURN_CAUSES: tuple[Cause, ...] = (
    Cause(
        name="skip-special-tokens",
        severity=Severity.STRUCTURE,
        kinds=STRUCTURE,
        routes=STORED,
        test=skip_special_tokens,
        what="decoding left special tokens out",
        why=(
            "Headers and ends of turns are gone from the text. Encoded again, turns run into each "
            "other. Clients leave them out of logged text as a rule, so that text alone shows "
            "nothing: route render or pair does."
        ),
        example="Llama 3: '<|start_header_id|>ipython<|end_header_id|>' becomes 'ipython'.",
        fix=(
            "decode(..., skip_special_tokens=False) when logging; verl, TRL and Agent-R1 dumps "
            "are made with True."
        ),
    ),
    Cause(
        name="bos-duplicated",
        severity=Severity.CONTEXT,
        kinds=STRUCTURE,
        routes=STORED,
        test=bos_duplicated,
        what="the begin-of-text id stands twice",
        why=(
            "The template wrote it, and encoding added another. All positions move by one: 13 % "
            "of action tokens left the clipping range when measured."
        ),
        example="Llama 3: <|begin_of_text|><|begin_of_text|>.",
        fix=(
            "Encode rendered text with add_special_tokens=False, or let "
            "apply_chat_template(tokenize=True) do it."
        ),
    ),
    Cause(
        name="bos-dropped",
        severity=Severity.CONTEXT,
        kinds=STRUCTURE,
        routes=STORED,
        test=bos_dropped,
        what="the begin-of-text id is missing on the other side",
        why=(
            "The sampler saw it, the trainer does not. Every log-prob is taken in another context."
        ),
        example="DeepSeek-V3 encoded by transformers 5 starts without <｜begin▁of▁sentence｜>.",
        fix=(
            "Compare the first ids of rollout and trainer; pin the library, and write the id into "
            "the template."
        ),
    ),
    Cause(
        name="bos-added",
        severity=Severity.CONTEXT,
        kinds=STRUCTURE,
        routes=STORED,
        test=bos_added,
        what="the other side starts with a begin-of-text id that was not sampled behind",
        why=(
            "The trainer puts an id in front that the sampler never saw. Every log-prob is taken "
            "in another context."
        ),
        example="Llama-2 prompts encoded with add_special_tokens=True start with <s>.",
        fix=(
            "Encode with add_special_tokens=False, and compare the first ids of rollout and "
            "trainer."
        ),
    ),
    Cause(
        name="eos-swapped",
        severity=Severity.STRUCTURE,
        kinds=STRUCTURE,
        routes=STORED,
        test=eos_swapped,
        what="one end-of-turn id in the place of another",
        why=(
            "The policy ended its turn with one id, the template writes another. The sampled stop "
            "is not trained, one that was never sampled is."
        ),
        example="gpt-oss samples <|return|>, history holds <|end|>.",
        fix="Keep the sampled stop id in the last turn; use a training template that knows it.",
    ),
    Cause(
        name="eos-dropped",
        severity=Severity.STRUCTURE,
        kinds=STRUCTURE,
        routes=STORED,
        test=eos_dropped,
        what="the sampled end-of-turn id is gone",
        why=(
            "The policy never learns to stop. Filters on the pad id drop it where pad and stop "
            "are one id. A record without it that nothing stands beside cannot show the loss: "
            "route pair or render does, and route self where the next prompt holds the id."
        ),
        example="'The answer is 4.' without its <|endoftext|>.",
        fix=(
            "Strip padding by length, not by id; keep the stop id (skip_special_tokens=False; "
            "SGLang no_stop_trim=True)."
        ),
    ),
    Cause(
        name="eos-added",
        severity=Severity.STRUCTURE,
        kinds=STRUCTURE,
        routes=STORED,
        test=eos_added,
        what="an end-of-turn id that the policy did not sample",
        why=(
            "The action was cut, and rendering it again ends the turn. Trained, it teaches to "
            "stop there."
        ),
        example="finish_reason length: '1, 2, 3,' comes back as '1, 2, 3,<|im_end|>'.",
        fix="Keep finish_reason, and mask the added id; do not render truncated turns.",
    ),
    Cause(
        name="generation-prompt-mismatch",
        severity=Severity.CONTEXT,
        kinds=STRUCTURE | BYTES,
        routes=STORED,
        test=generation_prompt_mismatch,
        what="the turn of the policy is opened otherwise",
        why=(
            "What stands right in front of the action differs: rollout and trainer render with "
            "other template arguments, or a prefill is not rendered in history."
        ),
        example=(
            "Qwen3 with enable_thinking=False writes an empty think block in front of the action; "
            "the default does not."
        ),
        fix=(
            "Record the template's arguments (chat_template_kwargs) with the rollout and use the "
            "same in the trainer, add_generation_prompt=True among them."
        ),
    ),
    Cause(
        name="library-version",
        severity=Severity.CONTEXT,
        kinds=STRUCTURE | BYTES,
        routes=STORED,
        test=library_version,
        what="a library version that renders what the other ignores",
        why=(
            "Two versions read the same message and render other text: one knows a key that the "
            "other drops."
        ),
        example="transformers 5 renders messages' 'reasoning', 4.57 ignores it.",
        fix=(
            "Pin transformers in rollout and trainer and record the version; log the rendered "
            "prompt ids."
        ),
    ),
    Cause(
        name="reasoning-injected",
        severity=Severity.ACTION_BYTES,
        kinds=STRUCTURE | BYTES,
        routes=STORED,
        test=reasoning_injected,
        what="an empty reasoning block that nobody sampled",
        why=(
            "Rendering the turn again writes an empty think block into it: ids inside the action "
            "that the policy never sampled."
        ),
        example="Qwen3's template writes <think></think> in front of 'Hello.' in the last turn.",
        fix=(
            "Do not render the last assistant turn again; with Qwen3 use the sampled ids or a "
            "template that keeps the turn as it is."
        ),
    ),
    Cause(
        name="reasoning-stripped",
        severity=Severity.ACTION_BYTES,
        kinds=STRUCTURE | BYTES,
        routes=STORED,
        test=reasoning_stripped,
        what="reasoning was taken out of history",
        why=(
            "The template drops the reasoning of earlier turns. Packed into one sequence, the "
            "trainer either loses those ids or trains later turns in a context they were not "
            "sampled in."
        ),
        example=(
            "Qwen3 and gpt-oss: the think block (the analysis message) of turn 1 is gone in the "
            "prompt of turn 2."
        ),
        fix=(
            "Train one sequence a step, or sample with a template that keeps reasoning "
            "(preserve_thinking, clear_thinking=False)."
        ),
    ),
    Cause(
        name="default-system-prompt",
        severity=Severity.CONTEXT,
        kinds=STRUCTURE | BYTES,
        routes=STORED,
        test=default_system_prompt,
        what="a system prompt that the template put in",
        why=(
            "Without a system message the template writes its own. Rollout and trainer differ "
            "when only one of them uses it: 10 % of action tokens left the clipping range when "
            "measured."
        ),
        example="Qwen2.5 starts with 'You are Qwen, created by Alibaba Cloud.'",
        fix="Log the system message explicitly, or store the rendered prompt ids.",
    ),
    Cause(
        name="dynamic-template-value",
        severity=Severity.CONTEXT,
        kinds=BYTES | SAME_BYTES,
        routes=STORED,
        test=dynamic_template_value,
        what="a date or time that the template wrote",
        why=(
            "The template reads the clock: rendered on another day the prompt is another one, and "
            "the rollout cannot be reproduced."
        ),
        example="gpt-oss: 'Current date: 2025-08-05' against 2025-08-06.",
        fix="Freeze the date (strftime_now or date_string in chat_template_kwargs) and record it.",
    ),
    Cause(
        name="tool-call-reserialisation",
        severity=Severity.ACTION_BYTES,
        kinds=BYTES | STRUCTURE,
        routes=STORED,
        test=tool_call_reserialisation,
        what="a tool call was parsed and printed again",
        why=(
            "Its values are the same, its text is not: spaces, order of keys, escapes, or "
            "Python's False for false. Nine of ten real calls change ids when they are printed "
            "again."
        ),
        example='{"q":"Paris"} comes back as {"q": "Paris"}.',
        fix=(
            "Keep the raw text and ids beside the parsed call; do not render tool_calls from "
            "parsed arguments for training."
        ),
    ),
    Cause(
        name="observation-escaped",
        severity=Severity.CONTEXT,
        kinds=BYTES | STRUCTURE,
        routes=STORED,
        test=observation_escaped,
        what="a result stands escaped on one side",
        why=(
            "The template prints a string result as JSON, or something escaped it for HTML. The "
            "policy read other bytes than the trainer's context holds."
        ),
        example="Llama 3.1: line breaks in a result become \\n between quotes.",
        fix=(
            "Store the observation as it was rendered, or its ids; pass results in the form that "
            "the template expects."
        ),
    ),
    Cause(
        name="turn-separator",
        severity=Severity.CONTEXT,
        kinds=BYTES | STRUCTURE,
        routes=STORED,
        test=turn_separator,
        what="the white space between turns is missing, or extra",
        why=(
            "The template writes a newline behind the end of a turn, the sampler never does. "
            "Without it a third of action tokens left the clipping range when measured."
        ),
        example=(
            "Qwen: <|im_end|> is followed by a newline in the template, by nothing in the joined "
            "ids."
        ),
        fix=(
            "Append the separator as a token that is not trained, behind each sampled end of turn."
        ),
    ),
    Cause(
        name="template-whitespace-trim",
        severity=Severity.ACTION_BYTES,
        kinds=BYTES | STRUCTURE,
        routes=STORED,
        test=template_whitespace_trim,
        what="white space at the edges of a message was trimmed",
        why=(
            "The template strips messages; the policy sampled the white space. Bytes of the "
            "action are gone from the context of later turns."
        ),
        example="Llama 3.1 and Gemma 3: ' Hi there! ' comes back as 'Hi there!'.",
        fix="Build prompts from ids, or patch |trim out of the template in rollout and trainer.",
    ),
    Cause(
        name="template-version",
        severity=Severity.STRUCTURE,
        kinds=BYTES | STRUCTURE,
        routes=STORED,
        test=template_version,
        what="two versions of the chat template",
        why=(
            "One template writes marks that the other leaves out, with the same messages between "
            "them."
        ),
        example="An early DeepSeek-V3 template leaves <｜tool▁calls▁end｜> out.",
        fix=(
            "Pin the template's file, and record its hash with the rollouts (--chat-template in "
            "vLLM and SGLang, custom_chat_template in verl)."
        ),
    ),
    Cause(
        name="history-rewritten",
        severity=Severity.CONTEXT,
        kinds=BYTES | STRUCTURE,
        routes=STORED,
        test=history_rewritten,
        what="earlier turns are gone, or summarised",
        why=(
            "A window, a summary or a clean-up edited the history. The steps are sound, but they "
            "are no single sequence any more."
        ),
        example="A prompt that holds the instructions and the last three turns only.",
        fix=(
            "If it is meant, train each run of constant history as a sequence of its own; else "
            "switch the context manager off."
        ),
    ),
    Cause(
        name="truncation",
        severity=Severity.STRUCTURE,
        kinds=EVERY,
        routes=PAIRED,
        test=truncation,
        what="the other list was cut",
        why=(
            "Ids at the end or the head are gone: the reward is credited to half an action, or "
            "the instructions are missing."
        ),
        example="max_response_length 512: the list ends in the middle of a call.",
        fix=(
            "Raise the limit (data.max_response_length in verl, max_completion_length in TRL), or "
            "drop cut trajectories."
        ),
    ),
)
