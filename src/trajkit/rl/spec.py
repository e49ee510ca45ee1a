"""What a loss is made of: a term per token, a ratio, an advantage, a correction, a mean.

Beside the policy there may be a KL, an entropy bonus and a loss on observations, each weighed.

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
    """-r A, and 0 where the probability moved too far (`Ratio.moved`)."""
    MASK_SHIFT_WEIGHT = "mask_shift_weight"
    """-sg(min(r, cap)) A log p, and 0 where the probability moved too far."""
    SOFT_GATE = "soft_gate"
    """-(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A (SAPO, arXiv 2511.20347)."""


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
    STEP_GEOMETRIC = "step_geometric"
    """The geometric mean of the ratios of a step's counted tokens."""


class Moved(StrEnum):
    """How far a token's probability moved from p_behaviour, and which way counts."""

    TOTAL_VARIATION = "total_variation"
    """|p - p_behaviour|, up where A > 0 and down elsewhere (DPPO, arXiv 2602.04879)."""
    BINARY_KL = "binary_kl"
    """KL(behaviour || policy) of taking the token or not, up where A > 0 and down elsewhere."""
    EITHER_WAY = "either_way"
    """|p - p_behaviour|, whatever the advantage."""


class Advantage(StrEnum):
    """What a token's term is weighed by; `advantages.py` has the formulas."""

    ONE = "one"
    RETURN = "return"
    GROUP_STD = "group_std"
    """(R - mean) / (std + 1e-6) in the group."""
    GROUP_STD_TRL = "group_std_1e-4"
    GROUP_STD_OPENRLHF = "group_std_1e-9"
    GROUP_STD_AREAL = "group_std_1e-5"
    GROUP_STD_RLLM = "group_std_n"
    """(R - mean) / (std + 1e-6) in the group, std with n in its denominator."""
    GROUP_MEAN = "group_mean"
    """R - mean."""
    LEAVE_ONE_OUT = "leave_one_out"
    """R - mean of the others."""
    LEAVE_ONE_OUT_STD = "leave_one_out_std"
    """That, over the std of the others + 1e-6."""
    STEP_GAE = "step_gae"
    """GAE over steps, out of recorded values."""
    STEP_GAE_WHITE = "step_gae_white"
    """That, less its mean over all steps, over its std + 1e-8."""


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
    STEP_MEAN = "step_mean"
    """The mean over steps of each step's token mean."""


class Estimator(StrEnum):
    """What stands for KL(policy || reference) at a token, d = log p - log p_ref of the sampled one.

    The first three are Schulman's estimators, http://joschu.net/blog/kl-approx.html.
    """

    K1 = "k1"
    """d."""
    K2 = "k2"
    """d^2 / 2."""
    K3 = "k3"
    """exp(-d) - 1 + d."""
    EXACT = "exact"
    """The sum over the vocabulary, as it was scored."""


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
        low, high: what is clipped, or masked, lies outside [1 - low, 1 + high]; for a masked shift
            probabilities that moved by more than `low` down or `high` up; for `SOFT_GATE` they are
            tau where A <= 0 and where A > 0.
        moved: what a masked shift is measured by.
        cap: the most that r may be in `MASK_SHIFT_WEIGHT`.
        dual: dual clip: where A < 0 the loss is at most -dual A.
        bounds: log r is cut to these before anything else.
        square: weight of (log r)^2, added to the term.
    """

    against: Behaviour = Behaviour.OLD
    level: Level = Level.TOKEN
    low: float = 0.0
    high: float = 0.0
    moved: Moved = Moved.TOTAL_VARIATION
    cap: float | None = None
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
        mean: what it is divided by; `None`: what the policy's term is.
        bound: d is cut to [-bound, bound], and what comes out of it to [-result, result].
    """

    estimator: Estimator
    weight: float
    mean: Mean | None = None
    bound: float | None = None
    result: float | None = None


class Balance(StrEnum):
    """What an observation's loss is weighed by, beside the constant."""

    NONE = "none"
    GROUP_REWARD = "group_reward"
    """1 - the mean reward of the trajectory's group, cut to [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A loss on what the environment said, beside the policy's: counted context tokens.

    Attributes:
        weight, mean: what it is multiplied with, and what it is divided by.
        power: q of (1 - p^q) / q, which noise bends less than -log p, its limit for q = 0
            (generalised cross-entropy, arXiv 1805.07836; q = 1 is the mean absolute error).
        share: counts only what answers the share of actions with the highest mean entropy.
        balance: a weight per trajectory.
    """

    weight: float
    mean: Mean
    power: float = 0.0
    share: float = 1.0
    balance: Balance = Balance.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One loss: the policy's, plus each other part times its weight.

    Attributes:
        entropy: weight of the entropy bonus: the loss falls by this much a nat of the checkpoint's
            entropy, under the policy's own mean.
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
    entropy: float = 0.0
    observed: Observed | None = None
