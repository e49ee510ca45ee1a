"""A Tinker datum as a pre-tokenised row: the last id of a row is a target and no input.

{"model_input": {"chunks": [{"tokens"}]}, "loss_fn_inputs": {"target_tokens", "weights" | "mask"}}

A model input may be a list of ids too, an array may stand as `{"data", "dtype", "shape"}`, and the
loss's inputs may stand beside the model's. Target t is the id behind input t, and so is what
stands beside it: the shifted convention.
"""

from __future__ import annotations

from typing import Any

INPUT = "model_input"
TARGETS = "target_tokens"
WEIGHTS = "weights"
_LOSS = "loss_fn_inputs"
_MASKS = (WEIGHTS, "mask")


def is_datum(value: dict[str, Any]) -> str | None:
    """Return why an object is taken for a datum, `None` when it is none."""
    inside = value.get(_LOSS)
    there = inside if isinstance(inside, dict) else value
    masks = [name for name in _MASKS if _plain(there.get(name)) is not None]
    has_targets = bool(_plain(there.get(TARGETS))) and _tokens(value.get(INPUT)) is not None
    return f"{INPUT} and {TARGETS} with {', '.join(masks)}" if has_targets and masks else None


def as_row(value: Any) -> Any:
    """Return a datum as a row whose ids are its inputs and the last target; others as they are."""
    if not isinstance(value, dict) or is_datum(value) is None:
        return value
    row = {name: found for name, found in value.items() if name not in (INPUT, _LOSS)}
    for name, found in (value.get(_LOSS) or {}).items():
        plain = _plain(found)
        row[name] = found if plain is None else plain
    row = {name: _plain(row[name]) if name in (*_MASKS, TARGETS) else row[name] for name in row}
    return row | {"input_ids": [*(_tokens(value[INPUT]) or ()), row[TARGETS][-1]]}


def _plain(value: Any) -> list[Any] | None:
    """Return the items of a list or of an array of one dimension, `None` for anything else."""
    found = value.get("data") if isinstance(value, dict) else value
    return found if isinstance(found, list) else None


def _tokens(value: Any) -> list[Any] | None:
    """Return the ids of a model input, `None` where a part of it is no list of ids."""
    if isinstance(value, list):
        return value
    chunks = value.get("chunks") if isinstance(value, dict) else None
    if not isinstance(chunks, list) or not chunks:
        return None
    ids = []
    for chunk in chunks:
        tokens = chunk.get("tokens") if isinstance(chunk, dict) else None
        if not isinstance(tokens, list):
            return None
        ids += tokens
    return ids
