"""The keys of pre-tokenised rows, by what they hold; the first of several that is there is read."""

from __future__ import annotations

from trajkit.formats.datum import is_datum

WHOLE = ("input_ids", "token_ids", "tokens")
PROMPT = ("prompt_ids", "prompt_token_ids", "prompts")
RESPONSE = (
    "response_ids",
    "completion_ids",
    "response_token_ids",
    "completion_token_ids",
    "responses",
)
LABELS = "labels"
MASKS: dict[str, bool] = {
    "loss_mask": False,
    "loss_masks": False,
    "assistant_masks": False,
    "assistant_mask": False,
    "response_mask": True,
    "completion_mask": True,
    "tool_mask": True,
    "action_mask": False,
    "token_loss_mask": False,
    "sampled_mask": False,
    "mask": False,
}
"""Each name of a mask, and whether it is called the response's."""
TOGETHER = (
    frozenset({"completion_mask", "tool_mask", "env_mask", "assistant_masks"}),
    frozenset({"response_mask", "info_mask"}),
)
"""Masks that their trainer multiplies (TRL; Search-R1): a token is trained where all of them say
so."""
GATES = {"env_mask": "completion_mask", "info_mask": "response_mask"}
"""Names that are a mask only beside another one, which they multiply."""
NO_LOSS = ("attention_mask", "padding_mask", "special_tokens_mask", "prompt_mask")
"""How names of masks end that say nothing of what is trained."""
VERSIONS = ("policy_version", "weight_version", "weight_versions", "versions")
LOGPROBS = (
    "rollout_logprobs",
    "rollout_log_probs",
    "logprobs",
    "response_logprobs",
    "completion_logprobs",
    "inference_logprobs",
    "generation_logprobs",
    "old_log_probs",
)
REWARDS = ("token_rewards", "token_level_rewards", "token_level_scores", "rm_scores")
MANY_MEANINGS = ("rewards", "reward")
"""A reward for each token where their number says so; else whatever it is, in `extra`."""


def is_row(value: object) -> str | None:
    """Return why a JSON value is taken for a pre-tokenised row, `None` when it is none."""
    if not isinstance(value, dict):
        return None
    datum = is_datum(value)
    if datum is not None:
        return datum
    masks = [name for name in (LABELS, *MASKS) if isinstance(value.get(name), list)]
    whole = [name for name in WHOLE if isinstance(value.get(name), list)]
    split = [
        next((name for name in names if isinstance(value.get(name), list)), None)
        for names in (PROMPT, RESPONSE)
    ]
    if not masks:
        return None
    if whole:
        return f"{whole[0]} with {', '.join(masks)}"
    return f"{split[0]} and {split[1]} with {', '.join(masks)}" if all(split) else None
