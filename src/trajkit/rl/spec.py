"""What a loss is made of: a term per token, a ratio, an advantage, a correction, a mean.

A preset (`rl/presets.py`) is a `Loss` in these words; two presets with the same words are the same
loss, whoever wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Term(StrEnum):
    """The policy term of a token; A its advantage, r its ratio, sg stops the gradient."""

    LOGPROB = "logprob"
    """-A log p."""
    RATIO = "ratio"
    """-r A."""
    CLIP = "clip"
    """-min(r A, clip(r) A)."""
    CLIP_WEIGHT = "clip_weight"
    """-sg(clip(r)) A log p."""
    MASK_SHIFT = "mask_shift"
    """-r A, and 0 where the probability moved too far in the advantage's direction."""


class Behaviour(StrEnum):
    """The policy that a ratio is taken against."""

    OLD = "old"
    """The trainer's before the update; the sampler where no trainer's log-probs are recorded."""
    SAMPLER = "sampler"


class Level(StrEnum):
    """What one ratio speaks of."""

    TOKEN = "token"
    ROW_PRODUCT = "row_product"
    """The product of the ratios of a row's counted tokens."""
    ROW_GEOMETRIC = "row_geometric"
    """Their geometric mean."""


class Advantage(StrEnum):
    """What a token's term is weighed by; `advantages.py` has the formulas."""

    ONE = "one"
    RETURN = "return"
    GROUP_STD = "group_std"
    """(R - mean) / (std + 1e-6) in the group."""
    GROUP_STD_TRL = "group_std_1e-4"
    GROUP_STD_OPENRLHF = "group_std_1e-9"
    GROUP_MEAN = "group_mean"
    """R - mean."""
    LEAVE_ONE_OUT = "leave_one_out"
    """R - mean of the others."""
    LEAVE_ONE_OUT_STD = "leave_one_out_std"
    """That, over the std of the others + 1e-6."""
    STEP_GAE = "step_gae"
    """GAE over steps, out of recorded values."""


class Mean(StrEnum):
    """What the sum of the tokens' losses is divided by."""

    TOKEN = "token"
    """Counted tokens."""
    SUM = "sum"
    """1."""
    ROW_SUM = "row_sum"
    """Rows with a counted token."""
    ROW_MEAN = "row_mean"
    """The mean over rows of each row's token mean."""
    LENGTH = "length"
    """A constant length."""
    ROW_LENGTH = "row_length"
    """Rows times a constant length."""
    TRAJECTORY_SUM = "trajectory_sum"
    TRAJECTORY_MEAN = "trajectory_mean"
    """The mean over trajectories of the token mean over all rows of each."""
    GROUP_MEAN = "group_mean"
    """The mean over groups of each group's token mean."""


class Estimator(StrEnum):
    """Schulman's estimators of KL(policy || reference), d = log p - log p_ref of a sampled token.

    http://joschu.net/blog/kl-approx.html
    """

    K1 = "k1"
    """d."""
    K2 = "k2"
    """d^2 / 2."""
    K3 = "k3"
    """exp(-d) - 1 + d."""


class Weigh(StrEnum):
    """What becomes of an importance weight outside of its bounds."""

    TRUNCATE = "truncate"
    """It becomes the bound."""
    DROP = "drop"
    """It becomes 0."""
    DROP_ROW = "drop_row"
    """All of the row's become 0, the others stay as they are: the row's geometric mean decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """r = p / p_behaviour.

    Attributes:
        low, high: what is clipped, or masked, lies outside [1 - low, 1 + high]; for `MASK_SHIFT`
            probabilities that moved by more than `low` down or `high` up.
        dual: dual clip: where A < 0 the loss is at most -dual A.
        bounds: log r is cut to these before anything else.
        square: weight of (log r)^2, added to the term.
    """

    against: Behaviour = Behaviour.OLD
    level: Level = Level.TOKEN
    low: float = 0.0
    high: float = 0.0
    dual: float | None = None
    bounds: tuple[float, float] | None = None
    square: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A weight p_old / p_sampler on each token's policy term: what the two programs differ by."""

    level: Level
    weigh: Weigh
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """A penalty for the distance to a reference model.

    Attributes:
        bound: d is cut to [-bound, bound], and what comes out of it to [-result, result].
    """

    estimator: Estimator
    weight: float
    bound: float | None = None
    result: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One loss.

    Attributes:
        formula: a sentence.
        source: the paper, or the system's commit and file, that it is from.
    """

    formula: str
    source: str
    term: Term
    mean: Mean
    advantage: Advantage
    ratio: Ratio | None = None
    correction: Correction | None = None
    kl: Kl | None = None
