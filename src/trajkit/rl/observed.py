"""The loss on observations that stands beside a policy's: ECHO's, and what PaW adds to it.

ECHO (arXiv 2605.24517) is plain: a weight times the cross-entropy of what the environment said.
PaW (arXiv 2606.02388) names three further ideas. Its own constants and exact formulas were not at
hand: the formulas here are trajkit's, said at each of them.
"""

from __future__ import annotations

import numpy as np

from trajkit.records import Mask
from trajkit.rl.spec import Balance, Observed
from trajkit.rl.table import F64, LossInputs, column


def observed_inputs(observed: Observed) -> tuple[str, ...]:
    """Return the columns of context that the loss needs beside the log-probs."""
    names = []
    if observed.share < 1.0:
        names.append("action_entropy")
    if observed.balance is Balance.GROUP_REWARD:
        names.append("group_reward")
    return tuple(names)


def observed_terms(observed: Observed, context: LossInputs) -> tuple[F64, F64]:
    """Return the loss [C] and its slope [C] of context tokens that all count and lack nothing.

    q = 0 is -log p. Other q give (1 - p^q) / q, whose slope -p^q fades where an observation is
    noise that nobody could predict (arXiv 1805.07836, eq. 6). A balance multiplies both.
    """
    logprobs = context.logprobs
    if observed.power:
        powers = np.exp(observed.power * logprobs)
        values, slopes = (1.0 - powers) / observed.power, -powers
    else:
        values, slopes = -logprobs, np.full(len(logprobs), -1.0)
    if observed.balance is Balance.GROUP_REWARD:
        weights = 1.0 - np.clip(column(context, "group_reward"), 0.0, 1.0)
        values = np.multiply(weights, values, out=np.zeros_like(values), where=weights != 0.0)
        slopes = weights * slopes
    return values, slopes


def chosen(observed: Observed, context: LossInputs) -> Mask:
    """Return [C] what answers the share of actions with the highest mean entropy, ties kept.

    Each action counts once, however long its answer is. Tokens whose action's entropy is unknown
    are not chosen.
    """
    if observed.share >= 1.0:
        return np.ones(len(context.logprobs), dtype=np.bool_)
    entropy = column(context, "action_entropy")
    known = ~np.isnan(entropy)
    if not known.any():
        return known
    _, first = np.unique(context.steps[known], return_index=True)
    each = np.sort(entropy[known][first])[::-1]
    n_kept = max(1, int(np.ceil(observed.share * len(each))))
    is_high: Mask = entropy >= each[n_kept - 1]
    return known & is_high
