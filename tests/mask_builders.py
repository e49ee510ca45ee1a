"""The fixtures of mask-check as what is judged, and a vocabulary without an end of turn."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.builders import FIXTURES, make_trajectory, tiny_tokenizer
from trajkit.ingestion.run import ingest
from trajkit.masks.check import mask_check
from trajkit.masks.findings import MaskReport
from trajkit.records import MaskRun
from trajkit.store.write import DatasetWriter
from trajkit.tokenizer import Tokenizer

MASKS = FIXTURES / "masks"


@cache
def glm() -> Tokenizer:
    """Return a byte vocabulary whose turns are opened by role ids and ended by nothing."""
    names = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
    return _bytes_and(names, "glm")


@cache
def mistral() -> Tokenizer:
    """Return a byte vocabulary whose turns end with the id that ends texts, which pads too."""
    return _bytes_and(("[INST]", "[/INST]", "</s>"), "mistral")


@cache
def thinker() -> Tokenizer:
    """Return a byte vocabulary in which the tags of thoughts are one token each."""
    return _bytes_and(("<|im_start|>", "<|im_end|>", "<think>", "</think>"), "thinker")


@cache
def harmony() -> Tokenizer:
    """Return a byte vocabulary whose messages have channels."""
    names = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
    return _bytes_and(names, "harmony")


def _bytes_and(names: tuple[str, ...], name: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: token_id for token_id, token in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(names))
    return Tokenizer(backend, name)


def encode(text: str, tokenizer: Tokenizer | None = None) -> list[int]:
    """Return the ids of a text in the tiny vocabulary, or in another."""
    ids: list[int] = next((tokenizer or tiny_tokenizer()).encode_batch([text])).tolist()
    return ids


def row_of(
    pieces: list[tuple[str, int]], tokenizer: Tokenizer | None = None, **extra: Any
) -> dict[str, Any]:
    """Return a row of pieces of text, each trained or not."""
    encoded = [(encode(text, tokenizer), trained) for text, trained in pieces]
    return {
        "input_ids": [token_id for ids, _ in encoded for token_id in ids],
        "loss_mask": [trained for ids, trained in encoded for _ in ids],
        **extra,
    }


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    """Return a JSONL file of rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def judge(
    folder: Path, *rows: dict[str, Any], tokenizer: Tokenizer | None = None, **options: Any
) -> MaskReport:
    """Return what the rules say of rows."""
    path = write_rows(folder / "rows.jsonl", *rows)
    return mask_check(path, tokenizer or tiny_tokenizer(), **options)


def rules_in(report: MaskReport) -> dict[str, int]:
    """Return the rules that are broken, with how often."""
    return {rule: n for rule, n in report.by_rule.items() if n}


def judge_fixture(rule: str, side: str, folder: Path) -> MaskReport:
    """Return what the rules say of the fixture of one rule, `bad` or `good`, however it is kept."""
    (path,) = (MASKS / rule).glob(f"{side}.*")
    match path.name.partition(".")[2]:
        case "jsonl":
            return mask_check(path, tiny_tokenizer())
        case "calls.jsonl":
            out = folder / "steps.parquet"
            ingest([str(path)], out, tokenizer=tiny_tokenizer())
            return mask_check(out, tiny_tokenizer())
        case "steps.json":
            return mask_check(_written(json.loads(path.read_text()), folder), tiny_tokenizer())
        case "pieces.json":
            pieces = json.loads(path.read_text())
            rows = [row_of([(text, n) for text, n in row], glm()) for row in pieces]
            return judge(folder, *rows, tokenizer=glm())
        case other:
            raise AssertionError(other)


def _written(record: dict[str, Any], folder: Path) -> Path:
    runs = tuple(MaskRun(*run) for run in record["source_mask"])
    trajectory = make_trajectory(
        [(record["prompt"], record["action"])], record["id"], source_mask=[runs]
    )
    return write_steps(folder / "steps.parquet", trajectory)


def write_steps(path: Path, *trajectories: Any) -> Path:
    """Return a dataset of trajectories."""
    with DatasetWriter(path, overwrite=True) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
    return path


def bits(mask: Any) -> str:
    """Return a mask as ones and zeros."""
    return "".join("1" if bit else "0" for bit in np.asarray(mask))
