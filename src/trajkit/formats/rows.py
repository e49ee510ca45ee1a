"""Pre-tokenised rows: one token sequence a record, with the mask it is trained by.

    {"input_ids", "labels"}                      -100 where nothing is trained
    {"input_ids", "loss_mask" | ...}             of the whole row, or of its response
    {"prompt_ids", "response_ids", "response_mask" | ...}
    {"model_input", "loss_fn_inputs": {"target_tokens", "weights" | "mask"}}    a datum of Tinker

`attention_mask`, log-probs, advantages and rewards may stand beside it. Nothing says that the ids
were sampled: steps read from rows are `unknown`. Each run of trained ids is one action.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trajkit.errors import InputError
from trajkit.formats.alignment import Align, mask_runs, trained_runs
from trajkit.formats.raw import Format, RawStep, RawTrajectory
from trajkit.formats.row_keys import is_row
from trajkit.formats.token_row import TokenRow, read_row
from trajkit.records import ActionSource, Floats
from trajkit.safe.json import Record

_NO_ACTION = "the mask trains no token: the row has no action"
_PADDED = "padding that attention_mask leaves out is not kept"
_FRACTIONS = "weights between 0 and 1 are kept in source_mask; each id that has one is an action's"
_OFF_MASK = "log-probs, advantages and rewards of ids that are not trained are not kept"


def with_align(align: Align) -> Format:
    """Return the format with the masks of its rows read as they are said to stand."""
    return replace(FORMAT, read=partial(_read, align=align))


def _read(record: Record, align: Align = Align.AUTO) -> RawTrajectory:
    row = read_row(record, align)
    if row.misfit_logprobs is not None:
        raise InputError(
            "I305",
            f"{row.misfit_logprobs} log-probs for a row of {len(row.token_ids)} ids",
            place=record.place,
            hint="one for each id, for each of the response, or for each that is trained",
        )
    if len(row.wrong_labels):
        spot = int(row.wrong_labels[0])
        raise InputError(
            "I407",
            f"the label of id {spot} is another id",
            place=record.place,
            hint="trajkit mask-check shows all of them",
        )
    first, end = _unpadded(row)
    runs = trained_runs(row.weights)
    told = {
        _PADDED: (first, end) != (0, len(row.token_ids)),
        _NO_ACTION: not runs,
        _FRACTIONS: bool(((row.weights > 0) & (row.weights < 1)).any()),
        _OFF_MASK: any(
            values is not None and bool(np.nan_to_num(values)[row.weights == 0].any())
            for values in (row.logprobs, row.advantages, row.token_rewards)
        ),
    }
    versions = row.policy_version or ()
    unmapped = {
        "rollout_id": row.rollout,
        "policy_version": versions if len(versions) > 1 else None,
    }
    return RawTrajectory(
        **row.whole,
        steps=tuple(_steps(row, first, end, runs)) if end > first else (),
        extra=row.extra | {name: value for name, value in unmapped.items() if value is not None},
        warnings=tuple(warning for warning, is_so in told.items() if is_so),
    )


def _unpadded(row: TokenRow) -> tuple[int, int]:
    """Return the span of a row that is left when padding at its ends is not kept."""
    if row.attention is None:
        return 0, len(row.token_ids)
    kept = np.flatnonzero(row.attention | (row.weights != 0))
    return (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (0, 0)


def _steps(row: TokenRow, first: int, end: int, runs: list[tuple[int, int]]) -> Iterator[RawStep]:
    """Yield one step for each run of trained ids; a row without any is one prompt."""
    if not runs:
        yield RawStep(
            prompt_ids=row.token_ids[first:end],
            source_mask=mask_runs(row.weights[first:end]),
            finish_reason=row.finish_reason,
        )
        return
    at = first
    for start, stop in runs:
        is_last = stop == runs[-1][1]
        tail = end if is_last else stop
        yield RawStep(
            prompt_ids=row.token_ids[first:start],
            action_ids=row.token_ids[start:stop],
            action_source=ActionSource.UNKNOWN,
            tail_ids=row.token_ids[stop:end] if is_last and end > stop else None,
            source_mask=mask_runs(row.weights[at:tail]),
            logprobs=_part(row.logprobs, start, stop),
            advantages=_part(row.advantages, start, stop),
            token_rewards=_part(row.token_rewards, start, stop),
            policy_version=row.policy_version if len(row.policy_version or ()) == 1 else None,
            finish_reason=row.finish_reason if is_last else None,
            is_truncated=row.is_truncated if is_last else None,
        )
        at = stop


def _part(values: Floats | None, start: int, stop: int) -> Floats | None:
    """Return the values of an action, `None` where none of them is known."""
    if values is None or np.isnan(values[start:stop]).all():
        return None
    part: NDArray[np.float32] = values[start:stop]
    return part


FORMAT = Format(
    name="rows",
    shape='{"input_ids", "labels"}, or ids with a mask',
    sniff=is_row,
    read=_read,
)
