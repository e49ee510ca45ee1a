"""What the benches of scoring share: data whose prefixes are known, and how others score them.

A call is a prompt and the action sampled on it, a list of calls a trajectory, a list of those a
group. Ways of scoring return the log-probs of all action ids in file order and how many ids the
model read, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from trajkit.records import ActionSource, Floats, Ids, PromptSource, Step, Trajectory, read_only
from trajkit.scoring.forward.logprobs import pass_scores
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.planning.pack import pack_trees, pass_of
from trajkit.scoring.planning.plan import plan_rows
from trajkit.scoring.steps import default_budget, score_trajectories

Call: TypeAlias = tuple[Ids, Ids]
Calls: TypeAlias = list[list[Call]]
Draw: TypeAlias = Callable[[int], Ids]

_HEAD_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How many ids a prompt, an action and an observation have, and how many steps there are."""

    prompt: int
    action: int
    observation: int
    steps: int

    def over(self, divisor: int) -> Turns:
        """Return turns of so many times fewer ids."""
        sizes = (self.prompt, self.action, self.observation)
        prompt, action, observation = (max(1, size // divisor) for size in sizes)
        return replace(self, prompt=prompt, action=action, observation=observation)


def append_only(draw: Draw, turns: Turns) -> Calls:
    """Return an agent whose prompts hold all that came before."""
    return [_grown(draw, turns, draw(turns.prompt))]


def sliding_window(draw: Draw, turns: Turns, n_seen: int = 3) -> Calls:
    """Return an agent that sees its instructions and its last turns."""
    system, calls = draw(turns.prompt), []
    seen: list[Ids] = []
    for _ in range(turns.steps):
        calls.append((np.concatenate([system, *seen[-n_seen:]]), action := draw(turns.action)))
        seen.append(np.concatenate([action, draw(turns.observation)]))
    return [calls]


def group_of(draw: Draw, turns: Turns, n_rollouts: int) -> Calls:
    """Return append-only rollouts on one prompt."""
    prompt = draw(turns.prompt)
    return [_grown(draw, turns, prompt) for _ in range(n_rollouts)]


def branching(draw: Draw, turns: Turns) -> Calls:
    """Return a search: each step is from a random earlier one, retried or gone on from."""
    calls = [(draw(turns.prompt), draw(turns.action))]
    chance = np.random.default_rng(int(draw(1)[0]))
    while len(calls) < turns.steps:
        prompt, action = calls[int(chance.integers(len(calls)))]
        goes_on = chance.random() < 0.7
        grown = np.concatenate([prompt, action, draw(turns.observation)]) if goes_on else prompt
        calls.append((grown, draw(turns.action)))
    return [calls]


def unrelated(draw: Draw, turns: Turns, n_rollouts: int) -> Calls:
    """Return rollouts that have nothing in common."""
    return [_grown(draw, turns, draw(turns.prompt)) for _ in range(n_rollouts)]


def _grown(draw: Draw, turns: Turns, context: Ids) -> list[Call]:
    calls = []
    for _ in range(turns.steps):
        calls.append((context, action := draw(turns.action)))
        context = np.concatenate([context, action, draw(turns.observation)])
    return calls


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """Calls, and the same as trajectories of one group.

    Attributes:
        n_trie: distinct prefixes of the calls' ids; `n_asked`: those an action id stands behind,
            which is all that a model has to read.
        n_seen: the ids that rows of these see, their own included: what attention costs.
        n_rows: distinct prefixes that are asked about an action id: what the head costs.
    """

    samples: list[Call]
    trajectories: list[Trajectory]
    n_trie: int
    n_asked: int
    n_seen: int
    n_rows: int


def data_of(calls: Calls) -> Data:
    """Return data made of calls."""
    samples = [call for one in calls for call in one]
    trie: dict[int, int] = {}
    asked: dict[int, int] = {}
    rows: set[int] = set()
    for prompt, action in samples:
        prefixes = list(_prefixes(np.concatenate([prompt, action])))
        trie |= prefixes
        asked |= prefixes[:-1]
        rows |= {prefix for prefix, _ in prefixes[len(prompt) - 1 : -1]}
    return Data(
        samples=samples,
        trajectories=[trajectory(one, f"t{at}") for at, one in enumerate(calls)],
        n_trie=len(trie),
        n_asked=len(asked),
        n_seen=sum(asked.values()),
        n_rows=len(rows),
    )


def _prefixes(ids: Ids) -> Iterator[tuple[int, int]]:
    """Yield a name of each prefix, and its length."""
    name = 0
    for at, one in enumerate(ids.tolist()):
        name = hash((name, at, one))
        yield name, at + 1


def trajectory(calls: Sequence[Call], name: str) -> Trajectory:
    """Return a trajectory whose prompts grow from where they share the most."""
    steps: list[Step] = []
    sequences = [np.concatenate(call) for call in calls]
    for index, (prompt, action) in enumerate(calls):
        shared = [_shared(prompt, before) for before in sequences[:index]]
        keep = max(shared, default=0)
        parent = steps[max(at for at, n in enumerate(shared) if n == keep)] if keep else None
        steps.append(
            Step(
                trajectory_id=name,
                step_index=index,
                is_terminal=index == len(calls) - 1,
                action_source=ActionSource.SAMPLED,
                prompt_source=PromptSource.RECORDED,
                source_format="bench",
                source_file="bench",
                source_record=0,
                group_id="group",
                parent=parent,
                prompt_keep=keep,
                prompt_delta=read_only(prompt[keep:].copy()),
                prompt_len=len(prompt),
                action_tokens=read_only(action.copy()),
            )
        )
    return Trajectory(trajectory_id=name, steps=tuple(steps))


def _shared(left: Ids, right: Ids) -> int:
    n = min(len(left), len(right))
    differ = np.flatnonzero(left[:n] != right[:n])
    return int(differ[0]) if len(differ) else n


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """Log-probs [N] of all action ids in file order, and how many ids the model read for them."""

    logprobs: Floats
    n_read: int


@torch.inference_mode()
def full_logits(model: Any, data: Data, n_at_once: int) -> Found:
    """Score step by step in padded batches; log-softmax of every logit, as it is mostly written."""
    found: list[torch.Tensor] = []
    n_read = 0
    for some, ids_BT, mask_BT in _padded(model, data, n_at_once):
        logits = model(input_ids=ids_BT, attention_mask=mask_BT).logits
        table = logits.float().log_softmax(-1)
        for row, (prompt, action) in enumerate(some):
            ids_A = ids_BT[row, len(prompt) : len(prompt) + len(action), None]
            found.append(table[row, len(prompt) - 1 :][: len(action)].gather(1, ids_A)[:, 0])
        n_read += ids_BT.numel()
        del logits, table
    return Found(logprobs=torch.cat(found).cpu().numpy(), n_read=n_read)


@torch.inference_mode()
def padded_batches(model: Any, data: Data, n_at_once: int) -> Found:
    """Score step by step in padded batches; the head is given the rows of actions alone."""
    found: list[torch.Tensor] = []
    n_read = 0
    for some, ids_BT, mask_BT in _padded(model, data, n_at_once):
        body = model.model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False)
        for row, (prompt, action) in enumerate(some):
            wanted = body.last_hidden_state[row, len(prompt) - 1 :][: len(action)]
            ids_A = ids_BT[row, len(prompt) : len(prompt) + len(action), None]
            parts = torch.split(wanted, _HEAD_ROWS), torch.split(ids_A, _HEAD_ROWS)
            for states, ids in zip(*parts, strict=True):
                table = model.lm_head(states).float().log_softmax(-1)
                found.append(table.gather(1, ids)[:, 0])
        n_read += ids_BT.numel()
    return Found(logprobs=torch.cat(found).cpu().numpy(), n_read=n_read)


def _padded(
    model: Any, data: Data, n_at_once: int
) -> Iterator[tuple[Sequence[Call], torch.Tensor, torch.Tensor]]:
    """Yield calls, their ids [B, T] padded on the right, and where these are ids [B, T]."""
    for start in range(0, len(data.samples), n_at_once):
        some = data.samples[start : start + n_at_once]
        rows = [torch.from_numpy(np.concatenate(call).astype(np.int64)) for call in some]
        pad: Any = torch.nn.utils.rnn.pad_sequence
        mask_BT = pad([torch.ones_like(row) for row in rows], batch_first=True)
        ids_BT = pad(rows, batch_first=True)
        yield some, ids_BT.to(model.device), mask_BT.to(model.device)


def packed_steps(loaded: LoadedModel, data: Data) -> Found:
    """Score each step as a sequence of its own, many in a pass and none padded, by trajkit."""
    alone = [trajectory([call], f"s{at}") for at, call in enumerate(data.samples)]
    plan = plan_rows([(one, one.steps) for one in alone])
    logprobs = np.full(len(plan.edge_row), np.nan, dtype=np.float32)
    packs = pack_trees(plan, default_budget(loaded))
    for pack in packs:
        reading = pass_of(plan, pack)
        scores = pass_scores(loaded, reading, plan.edge_target[reading.edges])
        logprobs[reading.edges] = scores.logprobs
    return Found(
        logprobs=np.concatenate([logprobs[wanted.edges] for wanted in plan.wanted]),
        n_read=sum(pack.n_tokens for pack in packs),
    )


def rows(loaded: LoadedModel, data: Data) -> Found:
    """Score by trajkit with one pass a sequence: steps share what they append to, no more."""
    return tree(replace(loaded, why_unshared="bench"), data)


def tree(loaded: LoadedModel, data: Data) -> Found:
    """Score by trajkit as it is."""
    batch = score_trajectories(loaded, data.trajectories)
    columns = [row.logprobs for one in batch.scored for row in one.steps]
    return Found(
        logprobs=np.concatenate([column for column in columns if column is not None]),
        n_read=batch.n_forwarded_tokens,
    )


def random_weights(model: Any) -> Any:
    """Return a model in evaluation mode whose weights are large enough to tell ids apart."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model.eval()


def resident_mib(field: str) -> float | None:
    """Return `VmRSS`, what this process holds, or `VmHWM`, the most it held; `None` off Linux."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """Let `VmHWM` start again from what is held now."""
    reset = Path("/proc/self/clear_refs")
    if reset.is_file():
        reset.write_text("5")
