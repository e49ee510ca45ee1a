"""Laws of ingest: whatever the calls, prompts, states and actions come back as they were."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.builders import (
    FIXTURES,
    Call,
    grown_from,
    make_record,
    records_of,
    tiny_tokenizer,
)
from trajkit.errors import ERROR_CODES, Place, TrajkitError
from trajkit.formats import FORMATS, detect
from trajkit.formats.raw import RawStep, RawTrajectory
from trajkit.ingestion.prefix import PrefixTree
from trajkit.ingestion.run import ingest
from trajkit.ingestion.steps import Source, to_trajectory
from trajkit.records import ids_array, states_in_order
from trajkit.store.columns import steps_table
from trajkit.store.read import read_trajectories

BYTES = {tiny_tokenizer().token_bytes(i): i for i in range(3, 259)}
LETTERS = [BYTES[bytes([byte])] for byte in "aé東🙂".encode()] + [1, 2]
"""Ids of single bytes that make characters of one to four bytes, and two control tokens."""


@st.composite
def call_lists(draw: Any, ids: st.SearchStrategy[int]) -> list[Call]:
    """Draw calls whose prompts mostly go on from some point of an earlier sequence."""
    calls: list[Call] = []
    for _ in range(draw(st.integers(1, 10))):
        kept: list[int] = []
        if calls and draw(st.integers(0, 4)):
            prompt, action = draw(st.sampled_from(calls))
            whole = [*prompt, *action]
            kept = whole[: draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))]
        calls.append((kept + draw(st.lists(ids, max_size=5)), draw(st.lists(ids, max_size=6))))
    return calls


def trajectory_of(calls: list[Call]) -> Any:
    raw = RawTrajectory(
        steps=tuple(
            RawStep(prompt_ids=ids_array(prompt), action_ids=ids_array(action))
            for prompt, action in calls
        )
    )
    source = Source(format="per-call", file="log.jsonl", record=0, place=Place())
    return to_trajectory(raw, "t", source, tiny_tokenizer())


def states_by_pieces(calls: list[Call]) -> list[str]:
    """Return what each prompt spells, decoding every piece of it by itself."""
    pieces: list[list[list[int]]] = []
    for index, (prompt, _) in enumerate(calls):
        parent, keep = grown_from(prompt, calls[:index])
        kept: list[list[int]] = []
        left = keep
        for piece in [] if parent is None else [*pieces[parent], list(calls[parent][1])]:
            kept.append(piece[:left])
            left -= len(kept[-1])
        pieces.append([*kept, list(prompt)[keep:]])
    text = tiny_tokenizer().text
    return ["".join(text(ids_array(piece)) for piece in prompt) for prompt in pieces]


@given(call_lists(st.integers(0, 2)))
@settings(max_examples=400, deadline=None)
@example([([0, 0, 0], []), ([0, 0], []), ([0], []), ([0, 0, 1], []), ([0, 1], [])])
def test_the_tree_finds_the_parent_that_comparing_all_earlier_steps_finds(calls):
    tree = PrefixTree()
    for index, (prompt, action) in enumerate(calls):
        growth = tree.add(index, ids_array(prompt), ids_array(action))
        assert (growth.parent, growth.keep) == grown_from(prompt, calls[:index])


@given(call_lists(st.sampled_from(LETTERS)))
@settings(max_examples=200, deadline=None)
def test_prompts_and_actions_come_back_exactly(calls):
    for step, (prompt, action) in zip(trajectory_of(calls).steps, calls, strict=True):
        assert step.prompt_ids.tolist() == prompt
        assert step.prompt_len == len(prompt)
        assert step.action_tokens.tolist() == action


@given(call_lists(st.sampled_from(LETTERS)))
@settings(max_examples=200, deadline=None)
def test_states_are_the_pieces_of_the_prompt_decoded_one_by_one(calls):
    steps = trajectory_of(calls).steps
    expected = states_by_pieces(calls)
    assert [step.state_before for step in steps] == expected
    assert list(states_in_order(steps)) == expected


SAMPLES = [
    record.value
    for path in sorted((FIXTURES / "formats").glob("*/*.jsonl"))
    for record in records_of(path)
]
ODD: list[Any] = [None, True, 5, -1, 2.5, "", "x", [], {}, [1], [None], ["a"], {"a": 1}, 10**30]


@st.composite
def bent_records(draw: Any) -> Any:
    """Draw a sample record in which some values are others, or gone."""
    value: Any = copy.deepcopy(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 3))):
        node = value
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and draw(st.integers(0, 4)):
                node = node[key]
            elif draw(st.booleans()):
                node[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
                break
            else:
                del node[key]
                break
    return value


@given(bent_records(), st.sampled_from([None, *FORMATS]))
@settings(max_examples=300, deadline=None)
def test_a_bent_record_is_read_and_written_or_refused_with_a_code(value, form):
    record, refusal = make_record(value), None
    try:
        form = form or detect(record)[0]
        source = Source(format=form.name, file="log.jsonl", record=0, place=record.place)
        steps = to_trajectory(form.read(record), "t", source, tiny_tokenizer()).steps
    except TrajkitError as problem:
        refusal = problem
    else:
        assert len(steps_table(steps, list(states_in_order(steps)))) == len(steps) > 0
    if refusal is not None:
        assert refusal.code in ERROR_CODES
        assert refusal.place is not None
        assert refusal.hint


@given(st.lists(call_lists(st.sampled_from(LETTERS)), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_log_comes_out_of_the_file_as_it_went_in(logs):
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder, "log.jsonl"), Path(folder, "steps.parquet")
        records = [
            {
                "trajectory_id": f"t{number}",
                "turns": [
                    {"prompt_token_ids": prompt, "response_token_ids": action}
                    for prompt, action in calls
                ],
            }
            for number, calls in enumerate(logs)
        ]
        log.write_text("".join(json.dumps(record) + "\n" for record in records))
        ingest([str(log)], out, tokenizer=tiny_tokenizer())
        found: list[Any] = list(read_trajectories(out))
        column = pq.read_table(out, columns=["state_before"]).column(0).to_pylist()
    states = [state for calls in logs for state in states_by_pieces(calls)]
    assert column == states
    for number, (trajectory, calls) in enumerate(zip(found, logs, strict=True)):
        assert trajectory.trajectory_id == f"t{number}"
        assert [(s.prompt_ids.tolist(), s.action_tokens.tolist()) for s in trajectory.steps] == [
            (list(prompt), list(action)) for prompt, action in calls
        ]
