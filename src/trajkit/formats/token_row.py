"""The typed reading of one pre-tokenised row: ids, and all that stands beside them, by index t."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajkit.formats.alignment import Align, Shape, Values, candidates, spread
from trajkit.formats.datum import as_row
from trajkit.formats.fields import Fields, take_whole
from trajkit.formats.row_keys import (
    LOGPROBS,
    MANY_MEANINGS,
    PROMPT,
    RESPONSE,
    REWARDS,
    VERSIONS,
    WHOLE,
)
from trajkit.formats.row_mask import Claim, Numbers, misfit_of, take_mask, take_numbers
from trajkit.records import Floats, Ids, Mask, read_only
from trajkit.safe.json import Record


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRow:
    """One row: every array speaks of token t at index t.

    Attributes:
        whole: what the record says of its whole trajectory, by the names of `RawTrajectory`.
        rollout: what rows of one rollout share; `None` where the row does not say.
        token_ids: [T].
        weights: [T] float64, 0 where the token is not trained.
        attention: [T] False for padding; `None` where the row does not say.
        n_prompt: ids before the response; `None` where the row does not say.
        logprobs: [T] NaN where there is none; `None` without any.
        misfit_logprobs: how many log-probs there are, where their number fits nothing.
        wrong_labels: [n] the trained positions whose label is not the id it trains.
        align, why: how the mask was taken to stand, and what decided it.
    """

    whole: dict[str, Any]
    rollout: str | None
    token_ids: Ids
    weights: Values
    attention: Mask | None
    n_prompt: int | None
    logprobs: Floats | None
    misfit_logprobs: int | None
    token_rewards: Floats | None
    advantages: Floats | None
    wrong_labels: NDArray[np.int64]
    policy_version: tuple[str, ...] | None
    finish_reason: str | None
    is_truncated: bool | None
    align: Align
    why: str
    extra: dict[str, Any] = field(default_factory=dict)


def read_row(record: Record, align: Align = Align.AUTO) -> TokenRow:
    """Return the row of a record, its mask brought to its ids.

    Args:
        record: a JSON object.
        align: how the mask stands; `AUTO` decides from its length.

    Raises:
        InputError: I201 to I303 where a value is not what it should be, I406 when the mask fits
            two conventions, I407 when it fits none, or masks contradict each other.
    """
    fields = Fields(as_row(record.value), record.place)
    ids, n_prompt = _take_ids(fields)
    shape = Shape(n_ids=len(ids), n_response=None if n_prompt is None else len(ids) - n_prompt)
    mask, wrong = take_mask(fields, ids, shape, align)
    rewards = _take_rewards(fields, shape, mask)
    odd = {"reward": fields.take("reward")} if _is_odd(fields.rest().get("reward")) else {}
    whole = take_whole(fields)
    if whole["reward"] is None:
        whole["reward"] = fields.take_number("reward_score")
    logprobs, misfit = _take_logprobs(fields, shape, mask)
    finish = fields.take_text("finish_reason", "stop_reason")
    attention = take_numbers(fields, "attention_mask")
    if attention is not None and len(attention) != len(ids):
        raise misfit_of(fields, "attention_mask", len(attention), shape)
    return TokenRow(
        whole=whole,
        rollout=fields.take_name("rollout_id", "session_id"),
        token_ids=ids,
        weights=mask.weights,
        attention=None if attention is None else attention != 0,
        n_prompt=n_prompt,
        logprobs=logprobs,
        misfit_logprobs=misfit,
        token_rewards=rewards,
        advantages=_take_aligned(fields, ("advantages",), shape, mask),
        wrong_labels=wrong,
        policy_version=_take_versions(fields, shape, mask),
        finish_reason=None if finish is None else finish.lower(),
        is_truncated=_take_truncated(fields),
        align=mask.align,
        why=mask.why,
        extra=fields.rest() | odd,
    )


def _take_ids(fields: Fields) -> tuple[Ids, int | None]:
    """Return all ids of a row, and how many of them stand before its response."""
    there = fields.rest()
    if any(isinstance(there.get(name), list) for name in WHOLE):
        ids = fields.take_ids(*WHOLE)
        n_response = fields.take_int("response_length")
        if ids is None:
            raise fields.missing(WHOLE[0])
        if n_response is not None and not 0 <= n_response <= len(ids):
            raise fields.wrong("response_length", f"a number up to {len(ids)}", n_response)
        return ids, None if n_response is None else len(ids) - n_response
    prompt, response = fields.take_ids(*PROMPT), fields.take_ids(*RESPONSE)
    if prompt is None or response is None:
        raise fields.missing(PROMPT[0] if prompt is None else RESPONSE[0])
    return read_only(np.concatenate([prompt, response])), len(prompt)


def _take_logprobs(fields: Fields, shape: Shape, mask: Claim) -> tuple[Floats | None, int | None]:
    """Return [T] log-probs with NaN where there is none, and their number where it fits nothing."""
    there = [name for name in LOGPROBS if isinstance(fields.rest().get(name), list)]
    values = fields.take_logprobs(there[0]) if there else None
    if values is None:
        return None, None
    n, trained = len(values), mask.weights != 0
    stands = _stand(n, shape, mask)
    if stands is not None:
        return _floats(spread(values.astype(np.float64), shape.n_ids, stands, np.nan)), None
    if n == int(trained.sum()):  # those of the trained ids and no others
        found = np.full(shape.n_ids, np.nan)
        found[trained] = values
        return _floats(found), None
    return None, n


def _stand(n: int, shape: Shape, mask: Claim) -> Align | None:
    """Return how other values of a row stand: like the mask where that fits, else by length."""
    n_response = mask.n if mask.align is Align.RESPONSE else shape.n_response
    fits = candidates(n, Shape(n_ids=shape.n_ids, n_response=n_response), is_response=False)
    own = Align.INPUT if mask.align is Align.LABELS else mask.align
    return own if own in fits else next(iter(fits), None)


def _take_rewards(fields: Fields, shape: Shape, mask: Claim) -> Floats | None:
    there = fields.rest()
    lists = [name for name in MANY_MEANINGS if isinstance(there.get(name), list)]
    each = tuple(name for name in lists if _stand(len(there[name]), shape, mask) is not None)
    return _take_aligned(fields, (*REWARDS, *each), shape, mask)


def _is_odd(reward: object) -> bool:
    """Return whether a reward is no number but many, by name or in a list."""
    return isinstance(reward, list | dict)


def _take_aligned(
    fields: Fields, names: tuple[str, ...], shape: Shape, mask: Claim
) -> Floats | None:
    """Return [T] values that stand beside the ids, NaN for the others; a number stays in `extra`.

    Raises:
        InputError: I407 when their number fits nothing.
    """
    there = [name for name in names if isinstance(fields.rest().get(name), list)]
    values = take_numbers(fields, there[0]) if there else None
    if values is None:
        return None
    stands = _stand(len(values), shape, mask)
    if stands is None:
        raise misfit_of(fields, there[0], len(values), shape)
    return _floats(spread(values, shape.n_ids, stands, np.nan))


def _take_versions(fields: Fields, shape: Shape, mask: Claim) -> tuple[str, ...] | None:
    """Return the versions of the weights that sampled, as many as the source names.

    Of one version for each id, those of the ids that are trained; the others stay in `extra` too.
    """
    for name in VERSIONS:
        value = fields.rest().get(name)
        values = value if isinstance(value, list) else [value]
        if not values or not all(type(entry) in (str, int) for entry in values):
            continue
        stands = _stand(len(values), shape, mask) if len(values) > 1 else None
        if stands is None:
            fields.take(name)
            return tuple(map(str, values))
        spots = spread(np.arange(len(values), dtype=np.float64), shape.n_ids, stands, -1.0)
        trained = spots[(mask.weights != 0) & (spots >= 0)].astype(int).tolist()
        return tuple(dict.fromkeys(str(values[spot]) for spot in trained)) or None
    return None


def _take_truncated(fields: Fields) -> bool | None:
    for name in ("is_truncated", "truncated"):
        if isinstance(fields.rest().get(name), bool):
            return bool(fields.take(name))
    return True if fields.rest().get("status") == "truncated" else None


def _floats(values: Numbers) -> Floats:
    narrow = values.astype(np.float32)
    narrow.setflags(write=False)
    return narrow
