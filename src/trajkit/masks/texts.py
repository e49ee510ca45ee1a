"""What each mask rule is about: its title, why a broken one hurts, how it is mended. Text alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuleText:
    """What a rule finds, why it hurts, and what to do."""

    title: str
    why: str
    fix: str


RULE_TEXTS: dict[str, RuleText] = {
    "mask-misfit": RuleText(
        "the mask or the log-probs do not fit the ids",
        "A mask with another number of values than there are ids trains tokens that nobody chose, "
        "or is cut in silence by the trainer.",
        "Write one value for each id, or for each id of the response; --align says which.",
    ),
    "empty-mask": RuleText(
        "no token is trained",
        "The row costs a forward and teaches nothing; mean losses divide by zero or shrink. Chat "
        "templates without {% generation %} give such masks for every row.",
        "Use a template that marks the policy's turns, or leave the row out.",
    ),
    "mask-shifted": RuleText(
        "the whole mask is off by one token",
        "Each turn then trains the last id of its header and not its own end: the policy never "
        "learns to stop.",
        "Speak of token t at index t; shift once, inside the loss.",
    ),
    "all-trained": RuleText(
        "every token is trained, the environment's too",
        "The policy is trained to write tool results itself, and does so at inference.",
        "Build the mask from who wrote each token, not from padding alone.",
    ),
    "observation-trained": RuleText(
        "text of the environment is trained",
        "Gradient on tokens that the policy did not sample: it learns to make up tool results, and "
        "importance ratios of them mean nothing.",
        "Mask what the environment wrote, its tags and its turn's header included.",
    ),
    "context-trained": RuleText(
        "text that the policy did not write is trained",
        "System and user text take part in the loss as if the policy had chosen it.",
        "Train the policy's turns alone.",
    ),
    "generation-prompt-trained": RuleText(
        "ids of the generation prompt are trained",
        "The template writes the header of the policy's turn; a policy trained on it opens turns "
        "of its own.",
        "Begin the mask behind the header.",
    ),
    "scaffold-trained": RuleText(
        "what the template puts behind a turn is trained",
        "The policy stops at its end of turn; the line break behind it is the template's, and "
        "no sampler ever emits it. The training templates that TRL ships for Qwen and Gemma train "
        "it, so every row made with them is found: little harm, one id a turn.",
        "End the mask with the stop.",
    ),
    "forged-observation": RuleText(
        "the policy wrote what only the environment writes",
        "The ids were sampled, so training on them is right as a fact; with a good reward it "
        "teaches the policy to make up results.",
        "Stop the sampler at the tag or the end of turn, or leave such steps out.",
    ),
    "stop-not-trained": RuleText(
        "the id that ends a turn stands behind the action and is not trained",
        "A policy that is never trained on its stop does not learn to stop. It is a note where the "
        "record says that the action was sampled without one, as behind a stop string, and where "
        "the same id pads and no attention_mask tells which it is.",
        "Keep the sampled end-of-turn id in the action and in the mask.",
    ),
    "stop-missing": RuleText(
        "a finished action has no stop id",
        "The step says that it ended by itself, and no id says so: the stop was stripped, or a "
        "stop string took its place.",
        "Keep special tokens when ids are logged; nothing is to be done for stop strings.",
    ),
    "stop-not-sampled": RuleText(
        "a stop id is trained that the policy did not sample",
        "Something appended it: behind an action that a limit cut, or a second time. Its log-prob "
        "is made up, and cut texts are taught to end there.",
        "Leave what was inserted out of the mask.",
    ),
    "stop-of-next": RuleText(
        "the stop of an action stands in the next message and is not trained",
        "In vocabularies without an end of turn the policy stops by sampling the id that opens the "
        "next message. A template that writes it again hides that the policy sampled it.",
        "Train the first id of the next message as the stop of this one.",
    ),
    "turn-partly-trained": RuleText(
        "a part of the policy's turn is left out",
        "A mask that begins late, ends early or has a hole was measured on another text than the "
        "turn's. Thoughts, white space and results are left out on purpose. A lone <think> may be "
        "the template's: a note.",
        "Measure turns by ids, not by the length of a text rendered apart.",
    ),
    "turn-not-trained": RuleText(
        "a turn of the policy is not trained, though others are",
        "It may be meant, as where only the last step is trained; a turn cut by max_length must "
        "not vanish.",
        "Nothing, if it is meant.",
    ),
    "padding-trained": RuleText(
        "padding is trained",
        "Padding outweighs short answers, and a policy trained on it repeats its stop.",
        "Multiply the mask with attention_mask.",
    ),
    "mask-misplaced": RuleText(
        "as many tokens are trained as were sampled, but others",
        "The mask was measured on other ids than those that were sampled.",
        "Carry the mask with the sampled ids instead of measuring it again.",
    ),
    "wrong-label": RuleText(
        "a label is another id than the one it trains",
        "The loss pulls towards a token that stands nowhere in the row.",
        "Make labels from input_ids, and set the others to -100.",
    ),
    "placeholder-logprobs": RuleText(
        "log-probs of trained tokens are placeholders",
        "0.0 says probability 1 and -9999 says never: ratios to such values are garbage that no "
        "clipping saves. Zeros at the end of an action alone may be high probabilities: a warning "
        "where many stand behind values that are never 0, else a note.",
        "Log null where a log-prob is missing, and leave those tokens out of ratios.",
    ),
    "logprobs-off-mask": RuleText(
        "log-probs stand at other tokens than the mask",
        "Values beside the mask show that log-probs and mask were aligned differently: one of them "
        "is off.",
        "Bring both to the ids the same way.",
    ),
    "reward-off-end": RuleText(
        "a token-level reward does not stand on a trained end",
        "A reward on a token that is not trained is lost; one that stands early credits the wrong "
        "tokens.",
        "Put an outcome's reward on the last trained token.",
    ),
    "trained-twice": RuleText(
        "the same action in the same context is trained twice",
        "Rows that share a history count its actions again and again; long rollouts weigh more.",
        "Train each action in one of its rows.",
    ),
    "unclosed-tag": RuleText(
        "a finished action opens a tag and never closes it",
        "The next reader takes everything behind it for a thought or a call.",
        "Check how actions are cut; leave out what does not parse.",
    ),
    "replacement-character": RuleText(
        "trained text holds U+FFFD",
        "Text was decoded with a loss and encoded again: these ids were not sampled.",
        "Keep the ids, or decode whole characters only.",
    ),
    "mixed-versions": RuleText(
        "several versions of the policy sampled one trajectory",
        "Log-probs of different weights stand in one row; a ratio to one old policy is wrong for "
        "some of them.",
        "Nothing for partial rollouts that correct for it; else sample again.",
    ),
}
