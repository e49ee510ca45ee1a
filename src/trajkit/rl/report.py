"""Losses over scored tokens, with what they were made of: one function for all who print them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from trajkit.records import Floats, Mask
from trajkit.rl.advantages import (
    TokenAdvantages,
    advantage_facts,
    group_means,
    token_advantages,
)
from trajkit.rl.losses import LossValue, evaluate
from trajkit.rl.presets import PRESETS
from trajkit.rl.spec import Advantage, Estimator
from trajkit.rl.table import F64, LossInputs
from trajkit.rl.tokens import ScoredTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTable:
    """Losses by name.

    Attributes:
        train: the policy that chose the counted tokens, `n_counted_tokens` of them, of which
            `n_counted_context` are no action's.
        length: the constant that some presets divide by.
        ratio_source: which recorded log-probs stand for the old policy, `None` for none.
        kl: the mean of each of Schulman's estimators of KL(checkpoint || reference) over the
            counted tokens with both log-probs, `n_kl_tokens`; `None` without any.
        exact_kl: the mean of the exact KL over the counted tokens that have one, `n_exact_kl`.
    """

    values: Mapping[str, LossValue]
    advantages: TokenAdvantages
    train: str
    n_counted_tokens: int
    n_counted_context: int
    length: int | None
    ratio_source: str | None
    kl: Mapping[str, float] | None
    n_kl_tokens: int
    exact_kl: float | None = None
    n_exact_kl: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the keys that `score` and `losses` share."""
        sizes = self.advantages.group_sizes
        return {
            "losses": {name: _loss(name, value) for name, value in self.values.items()},
            "train": self.train,
            "n_counted_tokens": self.n_counted_tokens,
            "n_counted_context": self.n_counted_context,
            "length": self.length,
            "ratio_source": self.ratio_source,
            "advantage_source": self.advantages.source,
            "n_groups": len(sizes),
            "group_sizes": {"min": min(sizes), "max": max(sizes)} if sizes else None,
            "n_without_baseline": self.advantages.n_without_baseline,
            "n_without_reward": self.advantages.n_without_reward,
            "n_recorded_advantages_ignored": self.advantages.n_recorded_ignored,
            "kl_to_reference": None
            if self.kl is None
            else {"n": self.n_kl_tokens, **dict(self.kl)},
            "exact_kl_to_reference": None
            if self.exact_kl is None
            else {"n": self.n_exact_kl, "mean": self.exact_kl},
        }


def loss_table(
    tokens: ScoredTokens,
    names: Sequence[str],
    *,
    train: str = "action",
    length: int | None = None,
) -> LossTable:
    """Return each named preset over all counted tokens.

    Recorded log-probs that are not the model's own (another temperature, a cut tail) or that are
    infinite count as unknown: a ratio with them means nothing.

    Args:
        tokens: with their loss mask.
        names: of `PRESETS`.
        train: what the mask was chosen by.
        length: see `LossInputs`.
    """
    inputs = loss_inputs(tokens, length=length)
    made: dict[Advantage, F64 | None] = {Advantage.RETURN: None}
    values = {}
    for name in names:
        advantage = PRESETS[name].advantage
        if advantage is Advantage.ONE:
            values[name] = evaluate(PRESETS[name], likelihood_inputs(tokens))
            continue
        if advantage not in made:
            made[advantage] = token_advantages(tokens, advantage)
        values[name] = evaluate(PRESETS[name], replace(inputs, advantages=made[advantage]))
    kl, n_kl = _kl(inputs)
    exact = _exact_kl(inputs)
    return LossTable(
        values=values,
        advantages=advantage_facts(tokens),
        train=train,
        n_counted_tokens=int(inputs.loss_mask.sum()) + len(tokens.context_logprobs),
        n_counted_context=len(tokens.context_logprobs),
        length=length,
        ratio_source=_ratio_source(inputs),
        kl=kl,
        n_kl_tokens=n_kl,
        exact_kl=float(exact.mean()) if len(exact) else None,
        n_exact_kl=len(exact),
    )


def loss_inputs(tokens: ScoredTokens, *, length: int | None = None) -> LossInputs:
    """Return the table of tokens that losses are computed on, without advantages."""
    comparable = tokens.step_comparable[tokens.step]
    old = tokens.old_logprobs
    return LossInputs(
        logprobs=tokens.logprobs.astype(np.float64),
        loss_mask=tokens.loss_mask,
        trajectory=tokens.trajectory,
        row=tokens.step_row[tokens.step],
        group=tokens.group_index[tokens.trajectory],
        rollout_logprobs=_usable(tokens.rollout_logprobs, comparable),
        old_logprobs=None if old is None else _usable(old, comparable),
        ref_logprobs=_usable(tokens.ref_logprobs, np.ones_like(comparable)),
        exact_kl=tokens.exact_kl.astype(np.float64),
        entropy=tokens.entropy.astype(np.float64),
        step=tokens.step.astype(np.int64),
        context=_context(tokens),
        returns=tokens.returns[tokens.trajectory],
        length=length,
    )


def likelihood_inputs(tokens: ScoredTokens) -> LossInputs:
    """Return the table that likelihoods are computed on: action tokens, then context that counts.

    Context was not sampled: it has no ratio and no advantage, and no other loss may see it.
    """
    step = np.concatenate([tokens.step, tokens.context_step])
    trajectory = tokens.step_trajectory[step]
    n_context = len(tokens.context_step)
    return LossInputs(
        logprobs=np.concatenate([tokens.logprobs, tokens.context_logprobs]).astype(np.float64),
        loss_mask=np.concatenate([tokens.loss_mask, np.ones(n_context, dtype=np.bool_)]),
        trajectory=trajectory,
        row=tokens.step_row[step],
        group=tokens.group_index[trajectory],
    )


def _context(tokens: ScoredTokens) -> LossInputs:
    """Return the table of the context tokens that losses count."""
    trajectory = tokens.step_trajectory[tokens.context_step]
    answers = tokens.context_answers.astype(np.int64)
    entropy = np.append(tokens.step_entropy, np.nan)  # what answers no action has none
    rewards = group_means(tokens.returns, tokens.group_index)
    return LossInputs(
        logprobs=tokens.context_logprobs.astype(np.float64),
        loss_mask=np.ones(len(trajectory), dtype=np.bool_),
        trajectory=trajectory,
        row=tokens.step_row[tokens.context_step],
        group=tokens.group_index[trajectory],
        step=answers,
        action_entropy=entropy[answers],
        group_reward=rewards[trajectory],
    )


def _usable(logprobs: Floats, comparable: Mask) -> F64:
    known = logprobs.astype(np.float64)
    known[~comparable | np.isinf(known)] = np.nan
    return known


def _ratio_source(inputs: LossInputs) -> str | None:
    if inputs.old_logprobs is not None:
        return "old_logprobs"
    rollout = inputs.rollout_logprobs
    return None if rollout is None or np.isnan(rollout).all() else "rollout_logprobs"


def _kl(inputs: LossInputs) -> tuple[dict[str, float] | None, int]:
    """Return the mean of each estimator, and over how many tokens."""
    reference = inputs.ref_logprobs
    if reference is None:
        return None, 0
    gap = (inputs.logprobs - reference)[inputs.loss_mask]
    gap = gap[np.isfinite(gap)]
    if not len(gap):
        return None, 0
    with np.errstate(over="ignore"):
        k3 = np.expm1(-gap) + gap
    means = {Estimator.K1: gap, Estimator.K2: gap**2 / 2.0, Estimator.K3: k3}
    return {str(name): float(each.mean()) for name, each in means.items()}, len(gap)


def _exact_kl(inputs: LossInputs) -> F64:
    """Return the exact KL of the counted tokens that have one."""
    exact = inputs.exact_kl
    if exact is None:
        return np.empty(0, dtype=np.float64)
    counted = exact[inputs.loss_mask]
    return counted[~np.isnan(counted)]


def _loss(name: str, value: LossValue) -> dict[str, Any]:
    fields = asdict(value)
    why = value.reason
    if value.value is not None and math.isinf(value.value):
        why = "infinite: a token has probability 0, or a ratio that no float holds"
    fields["advantage"] = str(PRESETS[name].advantage)
    fields["why_null"] = fields["reason"] = why
    fields["parts"] = list(fields["parts"]) or None
    for each in ("reason", "remark", "parts"):
        if fields[each] is None:
            del fields[each]
    return fields


def finite(value: Any) -> Any:
    """Return the same tree, with null for numbers JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, StrEnum) else value
