"""Causes in the spelling of ids and in decoding, in the order they are asked, with their pages."""

from __future__ import annotations

from trajkit.drift.causes.cause import (
    BYTES,
    EVERY,
    EVERYWHERE,
    LOGGED,
    SAME_BYTES,
    SPELT,
    STORED,
    STRUCTURE,
    WRITTEN,
    Cause,
    Severity,
)
from trajkit.drift.causes.spelling import (
    boundary_merge,
    clean_up_tokenization_spaces,
    control_token_in_content,
    invalid_utf8,
    loader_rebuilds_pipeline,
    metaspace_prefix,
    newline_translation,
    non_canonical_sampling,
    normalizer_nfc,
    per_token_decode,
    stop_string_trim,
    tokenizer_revision,
    unreachable_token,
    vocabulary_mismatch,
)

TEXT_CAUSES: tuple[Cause, ...] = (
    Cause(
        name="vocabulary-mismatch",
        severity=Severity.STRUCTURE,
        kinds=STRUCTURE,
        routes=STORED,
        test=vocabulary_mismatch,
        what="control tokens that the other tokenizer does not know",
        why=(
            "The two lists were made with two vocabularies that look alike: ids of text agree, "
            "control ids do not exist on one side and are spelt out in letters. A model never saw "
            "turns like that."
        ),
        example="gpt-oss ids read with gpt-4o's tokenizer: <|start|> becomes five ids of text.",
        fix=(
            "Load the tokenizer of the checkpoint that sampled (actor.model.path and the rollout "
            "engine's --tokenizer must name one folder), and compare fingerprints before "
            "training."
        ),
    ),
    Cause(
        name="tokenizer-revision",
        severity=Severity.STRUCTURE,
        kinds=EVERY,
        routes=STORED,
        test=tokenizer_revision,
        what="another revision of the same tokenizer",
        why=(
            "Vocabulary and merges agree, the table of added tokens does not: a tag is one id in "
            "one revision, and several or a placeholder in the other."
        ),
        example="DeepSeek-V3 against R1: <think> is one id there, a placeholder here.",
        fix=(
            "Pin the revision of the model repository in rollout and trainer, and record the hash "
            "of tokenizer.json with the rollouts."
        ),
    ),
    Cause(
        name="control-token-in-content",
        severity=Severity.STRUCTURE,
        kinds=STRUCTURE,
        routes=EVERYWHERE,
        test=control_token_in_content,
        what="text that spells a control token became one, or the reverse",
        why=(
            "A tool result or an action spells <|im_end|>. Encoded naively it ends the turn: "
            "whoever writes the text moves the mask and can forge a turn of the policy."
        ),
        example=(
            "An observation 'log says <|im_end|> here': six ids of text in the record, one "
            "control id when the text is encoded again."
        ),
        fix=(
            "Encode content with control tokens switched off (split_special_tokens=True in "
            "transformers, encode_ordinary in tiktoken) and the template's frame apart from it."
        ),
    ),
    Cause(
        name="unreachable-token",
        severity=Severity.ACTION_IDS,
        kinds=SAME_BYTES,
        routes=EVERYWHERE,
        test=unreachable_token,
        what="an id that encoding can never give",
        why=(
            "The vocabulary holds ids that the tokenizer's own rules never produce. A policy can "
            "sample them; every such sample is spelt otherwise after decode and encode."
        ),
        example="Qwen3 id 77150 (two fullwidth digits) comes back as two ids.",
        fix=(
            "Train on the sampled ids: return_token_ids in vLLM, token-in token-out in the agent "
            "loop."
        ),
    ),
    Cause(
        name="boundary-merge",
        severity=Severity.STRUCTURE,
        kinds=SAME_BYTES,
        routes=EVERYWHERE,
        test=boundary_merge,
        what="a token across the edge of an action",
        why=(
            "Encoded as one text, the end of an action and the start of the observation merge "
            "into a token that nobody sampled. Whether it is trained cannot be decided."
        ),
        example=(
            "'</search>' + newlines: the sampled '>' and the environment's newlines become one id."
        ),
        fix=(
            "Append the observation's ids to the sampled ids; never encode the joined text. Put a "
            "control token between turns where the protocol is yours."
        ),
    ),
    Cause(
        name="non-canonical-sampling",
        severity=Severity.ACTION_IDS,
        kinds=SAME_BYTES,
        routes=EVERYWHERE,
        test=non_canonical_sampling,
        what="the policy sampled a spelling that the tokenizer would not choose",
        why=(
            "At temperature 1 a policy spells words as the tokenizer never does. A trainer that "
            "encodes the text computes the log-prob of ids that were never sampled: 2.4 nats off "
            "at the median of such a region, and the ratio of a fifth of the later tokens leaves "
            "the clipping range."
        ),
        example="H + AVING comes back as HAV + ING.",
        fix=(
            "Train on the sampled ids: return_token_ids in vLLM, return_tokens_as_token_ids in "
            "SGLang, the agent loop's response_ids in verl."
        ),
    ),
    Cause(
        name="loader-rebuilds-pipeline",
        severity=Severity.ACTION_BYTES,
        kinds=SPELT,
        routes=STORED,
        test=loader_rebuilds_pipeline,
        what="the loader changed the tokenizer's pipeline",
        why=(
            "A loader rebuilt the pipeline from a class name and lost or added a part: the prefix "
            "space, the word rule, ignore_merges. Every text gets other ids, in silence."
        ),
        example=(
            "AutoTokenizer of transformers 5 on Llama-2 loses the prefix space; a gpt-4o package "
            "that names GPT2Tokenizer splits words by another rule."
        ),
        fix=(
            "Load tokenizer.json itself: Tokenizer.from_file, or "
            "PreTrainedTokenizerFast(tokenizer_file=...); compare backend_tokenizer.to_str() with "
            "the file."
        ),
    ),
    Cause(
        name="invalid-utf8",
        severity=Severity.ACTION_BYTES,
        kinds=BYTES,
        routes=EVERYWHERE,
        test=invalid_utf8,
        what="sampled bytes that are no character",
        why=(
            "An action was cut inside a character, or sampled bytes that are none. Decoding wrote "
            "U+FFFD in their place; the ids cannot be had back from the text."
        ),
        example="An emoji cut by max_tokens: F0 9F A4 comes back as EF BF BD.",
        fix=(
            "Keep the ids. Mark the step as truncated (finish_reason length) and do not decode it "
            "for training."
        ),
    ),
    Cause(
        name="per-token-decode",
        severity=Severity.ACTION_BYTES,
        kinds=LOGGED,
        routes=WRITTEN,
        test=per_token_decode,
        what="text put together from ids decoded one by one",
        why=(
            "A streaming client decoded each id by itself. Characters that span ids are U+FFFD, "
            "and metaspace vocabularies lose their spaces."
        ),
        example="An emoji of three ids becomes three U+FFFD; Llama-2's 'so it is' 'soitis'.",
        fix=(
            "Decode the whole list at once, or use the engine's incremental detokenizer "
            "(DecodeStream in tokenizers)."
        ),
    ),
    Cause(
        name="newline-translation",
        severity=Severity.ACTION_BYTES,
        kinds=LOGGED,
        routes=WRITTEN,
        test=newline_translation,
        what="line ends were rewritten",
        why=(
            "A file opened as text turned CRLF into LF, or the reverse. Actions and observations "
            "lose bytes."
        ),
        example="'dir\r\nfile' comes back as 'dir\nfile'.",
        fix=(
            "Open logs with newline='' or in binary; check the subprocess wrapper (text=True "
            "translates)."
        ),
    ),
    Cause(
        name="normalizer-nfc",
        severity=Severity.ACTION_BYTES,
        kinds=LOGGED,
        routes=EVERYWHERE,
        test=normalizer_nfc,
        what="a Unicode normal form rewrote the text",
        why=(
            "Encoding first normalises the text. A sampled e + accent becomes one character: "
            "other bytes, other ids."
        ),
        example="Qwen3: 'cafe' + U+0301 comes back as 'caf' + U+00E9.",
        fix="Never encode sampled text: keep the ids. Look at normalizer in tokenizer.json.",
    ),
    Cause(
        name="metaspace-prefix",
        severity=Severity.ACTION_BYTES,
        kinds=BYTES,
        routes=EVERYWHERE,
        test=metaspace_prefix,
        what="the tokenizer put a space in front",
        why=(
            "SentencePiece vocabularies put a space in front of each text. A piece that is "
            "encoded by itself gains one."
        ),
        example="Llama-2: '(foo' comes back as ' (foo'.",
        fix=(
            "Keep the ids. Encode an observation behind a known token and cut that off, or set "
            "legacy=False and add_prefix_space=False where the loader honours it."
        ),
    ),
    Cause(
        name="clean-up-tokenization-spaces",
        severity=Severity.ACTION_BYTES,
        kinds=LOGGED,
        routes=WRITTEN,
        test=clean_up_tokenization_spaces,
        what="decoding took spaces away in front of punctuation",
        why=(
            "decode() of transformers before 5 edits English text: ' .' becomes '.'. Code and "
            "quotes change with it."
        ),
        example="Llama 3: ') . y ?' comes back as '). y?'.",
        fix="decode(..., clean_up_tokenization_spaces=False), or set it in tokenizer_config.json.",
    ),
    Cause(
        name="stop-string-trim",
        severity=Severity.ACTION_BYTES,
        kinds=BYTES,
        routes=STORED,
        test=stop_string_trim,
        what="the text was cut at a stop string",
        why=(
            "The engine cut the text where the stop string ends or begins; the sampled ids go "
            "further. The last token of the action is another one after encoding. Logged text that "
            "is shorter by a stop string contradicts no ids, so that text alone shows nothing: "
            "route render or pair does."
        ),
        example="The last sampled id is '>' with two newlines, the text ends at '</search>'.",
        fix=(
            "Keep the ids beside the text; set include_stop_str_in_output=True (vLLM), "
            "no_stop_trim=True (SGLang)."
        ),
    ),
)
