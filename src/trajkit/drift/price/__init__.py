"""What drift costs.

tokens.py    the action tokens it reaches, and the masks it breaks
rules.py     what each trainer's rule makes of the trajectories: rows, tokens lost and repeated
logprobs.py  what the other spelling is worth to a checkpoint
total.py     the sum over many trajectories
counts.py    how counts of trajectories add up
"""

from trajkit.drift.price.logprobs import LogprobPrice, StepLogprobs, price_logprobs
from trajkit.drift.price.rules import TRAINER_RULES, RuleCost
from trajkit.drift.price.tokens import DriftPrice, Exposure, MaskDamage, price_drift
from trajkit.drift.price.total import price_all

__all__ = [
    "TRAINER_RULES",
    "DriftPrice",
    "Exposure",
    "LogprobPrice",
    "MaskDamage",
    "RuleCost",
    "StepLogprobs",
    "price_all",
    "price_drift",
    "price_logprobs",
]
