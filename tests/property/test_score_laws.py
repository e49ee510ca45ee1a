"""Laws of scoring: each prefix is read once, sharing changes nothing, order does not matter."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import make_trajectory
from tests.plan_builders import contexts, read_by, wanted_pairs
from tests.score_builders import N_VOCAB, assert_close, plain_logprobs, tiny_llama, write_data
from trajkit.records import Trajectory
from trajkit.rl.presets import LOSSES
from trajkit.scoring.loaded import LoadedModel
from trajkit.scoring.loading.model import load_model
from trajkit.scoring.planning.pack import pack_trees, pass_of
from trajkit.scoring.planning.plan import Plan, plan_rows, plan_tree, row_tokens
from trajkit.scoring.report import ScoreReport
from trajkit.scoring.run import score
from trajkit.scoring.scored import steps_to_score
from trajkit.scoring.steps import score_trajectories

slow = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
quick = settings(deadline=None)
Calls = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(tiny_llama(tmp_path_factory.mktemp("laws") / "tiny"), device="cpu")


ids = st.integers(0, N_VOCAB - 1)
some_ids = st.lists(ids, min_size=1, max_size=5)


@st.composite
def calls(draw: st.DrawFn, *, append_only: bool = False) -> Calls:
    """Draw the calls of an agent that appends, slides a window, retries, or starts over."""
    made: Calls = [(draw(some_ids), draw(some_ids))]
    for _ in range(draw(st.integers(0, 4))):
        prompt, action = draw(st.sampled_from(made[-1:] if append_only else made))
        how = "append" if append_only else draw(st.sampled_from(["append", "slide", "retry"]))
        match how:
            case "append":
                grown = [*prompt, *action, *draw(some_ids)]
            case "slide":
                keep = draw(st.integers(0, len(prompt)))
                grown = [*prompt[:keep], *action, *draw(some_ids)]
            case _:
                grown = prompt
        made.append((grown, draw(some_ids)))
    return made


@st.composite
def groups(draw: st.DrawFn) -> list[Trajectory]:
    """Draw trajectories of few different ids, so that they meet and part at every place."""
    few = st.lists(st.integers(0, 2), min_size=0, max_size=4)
    made = []
    for at in range(draw(st.integers(1, 3))):
        steps: Calls = []
        for _ in range(draw(st.integers(1, 4))):
            before = [ids for prompt, action in steps for ids in (prompt, [*prompt, *action])]
            kept = draw(st.sampled_from(before)) if before else []
            keep = draw(st.integers(0, len(kept)))
            steps.append(([*kept[:keep], *draw(few)], draw(few)))
        reasons = [draw(st.sampled_from([None, None, "copied_context"])) for _ in steps]
        made.append(make_trajectory(steps, f"t{at}", exclude_reason=reasons))
    return made


def plan_of(group: list[Trajectory]) -> Plan:
    return plan_tree([[(one, steps_to_score(one)) for one in group]])[0]


@quick
@given(group=groups())
def test_each_prefix_that_a_pair_needs_is_read_once_and_no_other(group: list[Trajectory]) -> None:
    plan, pairs = plan_of(group), wanted_pairs(group)
    needed = {context[:n] for context, _ in pairs for n in range(1, len(context) + 1)}
    read = contexts(plan)
    assert len(read) == len(set(read)) == len(needed)
    assert set(read) == needed
    assert plan.depth.tolist() == [len(context) - 1 for context in read]


@quick
@given(group=groups())
def test_each_pair_of_context_and_token_is_computed_once(group: list[Trajectory]) -> None:
    plan = plan_of(group)
    asked = [
        (read_by(plan, int(row)), int(target))
        for row, target in zip(plan.edge_row, plan.edge_target, strict=True)
    ]
    assert len(asked) == len(set(asked))
    assert set(asked) == wanted_pairs(group)
    for wanted in plan.wanted:
        prompt, action = wanted.step.prompt_ids, wanted.step.action_tokens
        assert prompt is not None
        assert action is not None
        for at, edge in enumerate(wanted.edges):
            context = (*prompt.tolist(), *action[:at].tolist())
            assert (edge < 0) == (not context)
            assert edge < 0 or asked[edge] == (context, action[at])


@quick
@given(group=groups(), budget=st.integers(1, 30))
def test_every_budget_asks_every_edge_once_after_its_own_path(
    group: list[Trajectory], budget: int
) -> None:
    plan = plan_of(group)
    found = []
    for pack in pack_trees(plan, budget):
        reading = pass_of(plan, pack)
        assert len(reading.token_ids) == pack.n_tokens
        for edge, row in zip(reading.edges, reading.edge_row, strict=True):
            seen = [
                int(id_)
                for run in reading.runs
                if run.start <= row < run.subtree_end
                for id_ in reading.token_ids[run.start : min(run.end, row + 1)]
            ]
            assert tuple(seen) == read_by(plan, int(plan.edge_row[edge]))
        found += reading.edges.tolist()
    assert sorted(found) == list(range(len(plan.edge_row)))


@quick
@given(group=groups())
def test_row_tokens_are_what_rows_would_read(group: list[Trajectory]) -> None:
    asked = [(one, steps_to_score(one)) for one in group]
    n_rows = sum(row_tokens(one, steps) for one, steps in asked)
    assert n_rows == len(plan_rows(asked).token_ids)
    assert len(plan_of(group).token_ids) <= n_rows


@slow
@given(group=st.lists(calls(), min_size=1, max_size=3), budget=st.integers(1, 60))
def test_sharing_gives_each_step_the_numbers_of_its_own_pass(
    model: LoadedModel, group: list[Calls], budget: int
) -> None:
    trajectories = [make_trajectory(made, f"t{at}") for at, made in enumerate(group)]
    batch = score_trajectories(model, trajectories, tokens_per_batch=budget)
    for made, scored in zip(group, batch.scored, strict=True):
        for (prompt, action), row in zip(made, scored.steps, strict=True):
            wanted = plain_logprobs(model.model, [*prompt, *action])[len(prompt) :]
            assert_close(row.logprobs, wanted, atol=2e-5)
    assert batch.n_raw_tokens == sum(len(p) + len(a) for made in group for p, a in made)
    assert batch.n_row_tokens <= batch.n_raw_tokens


@slow
@given(made=calls(append_only=True))
def test_append_only_costs_its_length_and_no_more(model: LoadedModel, made: Calls) -> None:
    batch = score_trajectories(model, [make_trajectory(made)])
    prompt, action = made[-1]
    assert batch.n_forwards == 1
    assert batch.n_forwarded_tokens == len(prompt) + len(action) - 1


def score_in_memory(model: LoadedModel, trajectories: list[Trajectory]) -> ScoreReport:
    with tempfile.TemporaryDirectory() as folder:
        return score(write_data(Path(folder) / "data.parquet", trajectories), model)


def numbers(report: ScoreReport) -> list[float]:
    gap = report.mismatch.gap if report.mismatch else None
    found = [
        report.logprob.sum,
        report.logprob.token_mean,
        report.logprob.sequence_mean,
        *(report.losses[name].value for name in LOSSES),
        *((gap.mean, gap.mean_abs, gap.k3, gap.share_outside) if gap else ()),
    ]
    return [float("nan") if value is None else value for value in found]


@st.composite
def batches(draw: st.DrawFn) -> list[Trajectory]:
    made = []
    for index in range(draw(st.integers(1, 4))):
        steps = draw(calls(append_only=True))
        given: dict[str, Any] = {
            "rollout_logprobs": [
                draw(st.lists(st.floats(-9, 0), min_size=len(a), max_size=len(a))) for _, a in steps
            ],
            "reward": [draw(st.floats(-1, 1)) for _ in steps],
            "group_id": [draw(st.sampled_from("xy"))] * len(steps),
        }
        made.append(make_trajectory(steps, f"t{index}", **given))
    return made


@slow
@given(batch=batches(), data=st.data())
def test_the_order_of_trajectories_changes_nothing(
    model: LoadedModel, batch: list[Trajectory], data: st.DataObject
) -> None:
    other = data.draw(st.permutations(batch))
    np.testing.assert_allclose(  # another order is another layout of the tree: fp32 rounds apart
        numbers(score_in_memory(model, other)),
        numbers(score_in_memory(model, batch)),
        rtol=1e-4,
        atol=1e-5,
    )


@slow
@given(batch=batches())
def test_every_action_token_is_scored_or_counted(
    model: LoadedModel, batch: list[Trajectory]
) -> None:
    counts = score_in_memory(model, batch).counts
    assert counts.n_action_tokens == sum(one.n_action_tokens for one in batch)
    assert counts.n_action_tokens == counts.n_scored_tokens + counts.n_first_token
    assert counts.n_scored_steps == counts.n_steps == sum(len(one.steps) for one in batch)
