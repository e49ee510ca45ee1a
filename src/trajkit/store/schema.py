"""The columns on disk: name, type, whether null is allowed, and what they mean.

`SCHEMA` is built from `COLUMNS`, and so are `trajkit schema` and the table in the README: a column
that is not here does not exist, and one that is here is explained.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_NAME = "trajkit/1"
SCORES_SCHEMA_NAME = "trajkit.scores/1"
FINDINGS_SCHEMA_NAME = "trajkit.findings/1"
METADATA_KEY = b"trajkit"
DERIVED = frozenset({"state_before"})
"""Columns written for other readers and never read back: the steps rebuild them."""


def _list(item: pa.DataType) -> pa.ListType:
    return pa.list_(pa.field("element", item))  # the name that Parquet gives it


_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_IDS = _list(pa.int32())
_FLOATS = _list(pa.float32())
_STEP_REF = pa.struct([("trajectory_id", pa.string()), ("step_index", pa.int32())])
_SEGMENTS = _list(pa.struct([("kind", pa.string()), ("start", pa.int32()), ("end", pa.int32())]))
_MASK_RUNS = _list(
    pa.struct([("start", pa.int32()), ("end", pa.int32()), ("weight", pa.float64())])
)
_OBSERVATIONS = _list(
    pa.struct(
        [
            ("call_id", pa.string()),
            ("name", pa.string()),
            ("text", pa.large_string()),
            ("is_error", pa.bool_()),
        ]
    )
)
_MEDIA = _list(
    pa.struct(
        [
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("type", pa.string()),
            ("ref", pa.string()),
            ("sha256", pa.string()),
        ]
    )
)
_REWARDS = _list(
    pa.struct(
        [
            ("name", pa.string()),
            ("value", pa.float64()),
            ("weight", pa.float64()),
            ("kind", pa.string()),
        ]
    )
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, whether it may be null, and its meaning in a sentence."""

    name: str
    type: pa.DataType
    nullable: bool
    meaning: str


def _c(name: str, kind: pa.DataType, meaning: str, *, required: bool = False) -> Column:
    return Column(name, kind, not required, meaning)


_STRING, _TEXT, _INT = pa.string(), pa.large_string(), pa.int32()

COLUMNS: tuple[Column, ...] = (
    _c("trajectory_id", _STRING, "the source's id, or a hash of the source record", required=True),
    _c("step_index", _INT, "0.. within the trajectory", required=True),
    _c("group_id", _STRING, "prompt group"),
    _c("task_id", _STRING, "task"),
    _c("agent", _STRING, "agent name"),
    _c("env_state_ref", _STRING, "the hidden initial state s0, by reference"),
    _c("spawned_by", _STEP_REF, "the step that started this sub-agent"),
    _c("state_before", _TEXT, "full text the policy saw (a derived copy; see text_delta)"),
    _c("action_tokens", _IDS, "raw ids the policy sampled; null: not recorded, []: none sampled"),
    _c("observation", _TEXT, "text after the action; null: none or unknown, '': empty"),
    _c("reward", pa.float64(), "step reward; a trajectory's reward stands on its last step"),
    _c("is_terminal", pa.bool_(), "last step of its trajectory or branch", required=True),
    _c("end_reason", _DICTIONARY, "env, agent, max_steps, max_tokens, context, timeout, error"),
    _c("is_truncated", pa.bool_(), "this action was cut by a limit"),
    _c("action_source", _DICTIONARY, "sampled, retokenized, unknown or none", required=True),
    _c("prompt_parent", _INT, "step whose prompt + action this prompt grows from"),
    _c("prompt_keep", _INT, "ids of the parent's prompt + action that are kept as prefix"),
    _c("prompt_delta", _IDS, "ids after the kept ones"),
    _c("prompt_len", _INT, "ids in the whole prompt"),
    _c("prompt_source", _DICTIONARY, "recorded, rendered or none", required=True),
    _c("tail_tokens", _IDS, "ids after the action that no later prompt holds"),
    _c("text_keep", pa.int64(), "UTF-8 bytes kept of the parent's state + action_text"),
    _c("text_delta", _TEXT, "text after the kept bytes"),
    _c("text_tail", _TEXT, "text after the action that no later prompt holds"),
    _c("messages_keep", _INT, "messages kept from the parent; null: none, or not known"),
    _c("messages_json", _TEXT, "messages since the previous step's action, as JSON"),
    _c("action_message_json", _TEXT, "the policy's message, as JSON"),
    _c("action_text", _TEXT, "text of the action: its ids decoded, else the source's words"),
    _c("observations", _OBSERVATIONS, "one per tool result"),
    _c("tools_json", _TEXT, "tool schemas shown; written where they change"),
    _c("segments", _SEGMENTS, "token spans by kind over delta + action + tail"),
    _c("source_mask", _MASK_RUNS, "the source's own mask or weights, as runs"),
    _c("rollout_logprobs", _FLOATS, "[A] the sampler's log-probs in nats; null inside: missing"),
    _c("logprob_kind", _DICTIONARY, "raw, processed (temperature, top-p applied) or unknown"),
    _c("temperature", pa.float32(), "sampling temperature"),
    _c("top_p", pa.float32(), "nucleus sampling"),
    _c("top_k", _INT, "top-k sampling"),
    _c("old_logprobs", _FLOATS, "[A] the trainer's log-probs before the update"),
    _c("ref_logprobs", _FLOATS, "[A] a reference model's log-probs"),
    _c("advantages", _FLOATS, "[A] advantages"),
    _c("values", _FLOATS, "[A] critic values"),
    _c("token_rewards", _FLOATS, "[A] token-level rewards"),
    _c("policy_version", _list(_STRING), "weights that sampled: one, or one per token"),
    _c("model", _STRING, "model name"),
    _c("tokenizer", _STRING, "tokenizer name"),
    _c("media", _MEDIA, "placeholders of images and files, by reference"),
    _c("rewards", _REWARDS, "named parts of the reward"),
    _c("finish_reason", _DICTIONARY, "verbatim, lower case"),
    _c("started_at", pa.timestamp("us", tz="UTC"), "when the call began"),
    _c("latency_s", pa.float64(), "seconds the call took"),
    _c("usage_json", _STRING, "reported usage"),
    _c("source_format", _STRING, "format the record was read as", required=True),
    _c("source_file", _STRING, "file it came from", required=True),
    _c("source_record", pa.int64(), "0-based record in that file", required=True),
    _c("extra_json", _TEXT, "unmapped keys: record (step 0), call, messages_after (last step)"),
    _c("exclude_reason", _STRING, "why the step is not trained"),
)

SCORES_COLUMNS: tuple[Column, ...] = (
    _c("trajectory_id", _STRING, "as in the data", required=True),
    _c("step_index", _INT, "as in the data", required=True),
    _c("logprobs", _FLOATS, "[A] log p(id | everything before it) under the checkpoint, nats"),
    _c("entropy", _FLOATS, "[A] entropy of the checkpoint's next-token distribution, nats"),
    _c("rank", _IDS, "[A] number of ids the checkpoint holds likelier, 0 for its first choice"),
    _c("context_logprobs", _FLOATS, "[D + L] the same for delta + tail; null where not asked"),
    _c("ref_logprobs", _FLOATS, "[A] under the reference checkpoint; null where not asked"),
    _c("exact_kl", _FLOATS, "[A] KL(checkpoint || reference) of the whole vocabulary, nats"),
    _c(
        "status",
        _STRING,
        "ok, no_action, no_prompt, excluded, media, nonfinite, too_long",
        required=True,
    ),
)

FINDINGS_COLUMNS: tuple[Column, ...] = (
    _c("trajectory_id", _STRING, "as in the data", required=True),
    _c("step_index", _INT, "as in the data", required=True),
    _c("route", _STRING, "how the other ids were made", required=True),
    _c("kind", _STRING, "what differs: arithmetic", required=True),
    _c("cause", _STRING, "why: inference, or UNEXPLAINED", required=True),
    _c("token_start", _INT, "first differing id, counted in prompt + action", required=True),
    _c("action_start", _INT, "the same in the action; null: it begins outside of it"),
    _c("byte_start", pa.int64(), "bytes of the action before it; null as above"),
    _c("n_action_tokens", _INT, "recorded action ids in the region", required=True),
    _c("recorded_ids", _IDS, "ids of the record", required=True),
    _c("retokenized_ids", _IDS, "ids in their place", required=True),
    _c("recorded_text", _TEXT, "what recorded_ids decode to; null without a tokenizer"),
    _c("retokenized_text", _TEXT, "what retokenized_ids decode to; null without a tokenizer"),
    _c("recorded_edges", _IDS, "where each of recorded_ids ends, in bytes of the region"),
    _c("retokenized_edges", _IDS, "the same of retokenized_ids; empty without a tokenizer"),
    _c(
        "evidence_json",
        _TEXT,
        "what the cause was told by, and route-specific facts",
        required=True,
    ),
)


TABLES: dict[str, tuple[str, tuple[Column, ...]]] = {
    "steps": (SCHEMA_NAME, COLUMNS),
    "scores": (SCORES_SCHEMA_NAME, SCORES_COLUMNS),
    "findings": (FINDINGS_SCHEMA_NAME, FINDINGS_COLUMNS),
}
"""Every table that is written, with the name of its schema."""


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Arrow schema of a table of columns."""
    return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in columns])


SCHEMA = arrow_schema(COLUMNS)
SCORES_SCHEMA = arrow_schema(SCORES_COLUMNS)
FINDINGS_SCHEMA = arrow_schema(FINDINGS_COLUMNS)
