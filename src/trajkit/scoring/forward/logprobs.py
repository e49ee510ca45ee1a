"""What a model says about recorded ids: log-prob, entropy and rank of chosen tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from trajkit.errors import InputError, NumericError, Place, UsageProblem
from trajkit.records import Floats, Ids
from trajkit.scoring.forward.attention import layout_of, tree_states
from trajkit.scoring.forward.exact import whole_products
from trajkit.scoring.forward.head import Hidden, hidden_states, logits_of
from trajkit.scoring.forward.judging import exact_kl, judge
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.memory import memory_full_told
from trajkit.scoring.planning.pack import Pass, Run
from trajkit.scoring.planning.plan import Rows, speaker

Positions: TypeAlias = NDArray[np.int64]

_LOGITS_BYTES = {"cpu": 2**26, "cuda": 2**29}
"""Logits held at once: memory does not grow with the sequence, or with what is scored of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """What the model says about N tokens; all three arrays speak of the same tokens.

    Attributes:
        logprobs: [N] float32 nats, log p(id | every id before it); NaN where there is none.
        entropy: [N] float32 nats, of the distribution the token was scored under.
        rank: [N] int32, ids strictly likelier than this one; meaningless where log-prob is NaN.
        n_nonfinite: tokens whose row of logits holds NaN or +inf.
        ref_logprobs: [N] as `logprobs`, under a reference model; `None` without one.
        exact_kl: [N] float32 nats, KL(model || reference) over the whole vocabulary; as above.
    """

    logprobs: Floats
    entropy: Floats
    rank: Ids
    n_nonfinite: int
    ref_logprobs: Floats | None = None
    exact_kl: Floats | None = None


def token_scores(
    loaded: LoadedModel,
    token_ids: Ids,
    targets: Positions,
    *,
    chunk_rows: int | None = None,
    place: Place | None = None,
) -> TokenScores:
    """Return log p(ids[t] | ids[:t]), its entropy and its rank for each wanted position t.

    One forward pass over the sequence alone: no padding, no packing, no cache. Log-softmax over the
    whole vocabulary in float32 or better. A target at position 0 has no log-prob: NaN, never 0.

    Args:
        loaded: the model.
        token_ids: [T] ids of one sequence.
        targets: [N] positions in `[0, T)`, in any order.
        chunk_rows: rows of logits held at once; changes memory, not numbers.
        place: named in errors.

    Raises:
        InputError: I304 for an id the model has no row for, before anything is on the device.
        NumericError: N103 when the sequence is longer than the model's positions.
        UsageProblem: U106 when the GPU's memory is full.
    """
    check_ids(loaded, token_ids, place)
    if not fits(loaded, len(token_ids)):
        raise too_long(loaded, len(token_ids), place)
    known = np.flatnonzero(targets > 0)
    n = len(token_ids)
    reading = Pass(
        token_ids=token_ids,
        depth=np.arange(n),
        runs=(Run(start=0, end=n, subtree_end=n),),
        edges=known,
        edge_row=speaker(targets[known]),
    )
    try:
        scores = pass_scores(loaded, reading, token_ids[targets[known]], chunk_rows=chunk_rows)
    except torch.OutOfMemoryError as problem:
        raise memory_full(n, place) from problem
    columns = np.full(len(targets), np.nan, np.float32), np.full(len(targets), np.nan, np.float32)
    logprobs, entropy, rank = *columns, np.zeros(len(targets), np.int32)
    logprobs[known], entropy[known], rank[known] = scores.logprobs, scores.entropy, scores.rank
    for column in (logprobs, entropy, rank):
        column.setflags(write=False)
    return TokenScores(
        logprobs=logprobs, entropy=entropy, rank=rank, n_nonfinite=scores.n_nonfinite
    )


def check_ids(loaded: LoadedModel, token_ids: Ids, place: Place | None) -> None:
    """Raise I304 when the model has no embedding or no logit for an id."""
    outside = (token_ids < 0) | (token_ids >= loaded.n_vocab)
    if outside.any():
        at = int(outside.argmax())
        raise InputError(
            "I304",
            f"id {token_ids[at]} at token {at} is outside the vocabulary of {loaded.name} "
            f"({loaded.n_vocab:,} ids)",
            place=place,
            hint="the data were made with another tokenizer than this checkpoint's",
        )


def has_ids(loaded: LoadedModel, token_ids: Ids) -> bool:
    """Return whether the model has an embedding and a logit for every id."""
    return bool(((token_ids >= 0) & (token_ids < loaded.n_vocab)).all())


def fits(loaded: LoadedModel, n_tokens: int) -> bool:
    """Return whether the model has a position for every token of a sequence."""
    return loaded.max_positions is None or n_tokens <= loaded.max_positions


def memory_full(n_tokens: int, place: Place | None) -> UsageProblem:
    """Return the U106 of a pass that cannot be made smaller."""
    return UsageProblem(
        "U106",
        f"the GPU's memory is full at a sequence of {n_tokens:,} tokens",
        place=place,
        hint="use --dtype bf16, or --device cpu",
    )


def too_long(loaded: LoadedModel, n_tokens: int, place: Place | None) -> NumericError:
    """Return the N103 of a sequence that does not fit."""
    return NumericError(
        "N103",
        f"the sequence has {n_tokens:,} tokens, {loaded.name} has {loaded.max_positions:,} "
        "positions",
        place=place,
        hint="longer sequences get log-probs without meaning; score a checkpoint made for them",
    )


@memory_full_told()
@whole_products()
@torch.inference_mode()
def pass_scores(
    loaded: LoadedModel,
    reading: Pass,
    targets: Rows | Ids,
    *,
    reference: LoadedModel | None = None,
    chunk_rows: int | None = None,
) -> TokenScores:
    """Return what one forward pass says of one id [E] for each of its edges, in their order.

    No padding and no cache; a pass of several runs sees each id's own path alone. Log-softmax over
    the whole vocabulary in float32 or better. Ids and length are the caller's to check. A reference
    model, of the same vocabulary and on the same device, reads the same pass.

    Raises:
        torch.OutOfMemoryError: the pass does not fit in the GPU's memory.
    """
    team, n_edges = loaded.team, len(targets)
    if team is not None:
        reading, targets = team.begin(loaded, reading, targets, reference, chunk_rows)
    models = [loaded] if reference is None else [loaded, reference]
    n_at_once = chunk_rows or rows_at_once(loaded, reference)
    parts = []
    if len(reading.edges):
        ids_T = torch.from_numpy(reading.token_ids.astype(np.int64)).to(loaded.device)
        rows_N = torch.from_numpy(reading.edge_row).to(loaded.device)
        targets_N = torch.from_numpy(targets.astype(np.int64)).to(loaded.device)
        hidden = [_hidden(one, reading, ids_T) for one in models]
        for some_N, of_N in zip(
            torch.split(rows_N, n_at_once), torch.split(targets_N, n_at_once), strict=True
        ):
            logits = [
                logits_of(one.model, one.head, states, some_N)
                for one, states in zip(models, hidden, strict=True)
            ]
            both = (exact_kl(*logits),) if reference is not None else ()
            judged = [judge(each, of_N) for each in logits]
            parts.append((*judged[0], *both, *(ref[0] for ref in judged[1:])))
            del logits  # before the next are made
    nothing = torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.int32)
    columns = [
        _narrow(torch.cat(pieces)).cpu().numpy()
        for pieces in zip(*(parts or [(*nothing, *nothing[: 2 * len(models) - 2])]), strict=True)
    ]
    if team is not None:
        columns = team.end(columns, n_edges)
    return TokenScores(
        logprobs=columns[0],
        entropy=columns[1],
        rank=columns[2],
        n_nonfinite=int(np.isnan(columns[0]).sum()),
        exact_kl=columns[3] if reference is not None else None,
        ref_logprobs=columns[4] if reference is not None else None,
    )


def rows_at_once(loaded: LoadedModel, reference: LoadedModel | None = None) -> int:
    """Return how many rows of logits a pass holds at once, unless it is told."""
    n_models = 1 if reference is None else 2
    return max(1, _LOGITS_BYTES[loaded.device.type] // (4 * loaded.head.n_rows) // n_models)


def _narrow(column: torch.Tensor) -> torch.Tensor:
    """Return a column as it is kept: a float64 model's numbers are rounded here and only here."""
    return column.float() if column.is_floating_point() else column


def _hidden(loaded: LoadedModel, reading: Pass, ids_T: torch.Tensor) -> Hidden:
    """Return the body's states: by the model's own attention where the pass is one sequence."""
    name = loaded.head.body_name
    if len(reading.runs) == 1:
        return hidden_states(loaded.model, name, ids_T)
    layout = layout_of(reading.runs, reading.depth, loaded.device)
    return tree_states(loaded.model, name, ids_T, layout)[0]
