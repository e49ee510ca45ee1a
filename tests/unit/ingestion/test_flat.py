"""Ids made from flat text: cut where the writer changes, honest about where they come from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.builders import FIXTURES, TINY, assert_same_trajectory, tiny_tokenizer
from trajkit.errors import UsageProblem
from trajkit.ingestion.run import ingest
from trajkit.records import ActionSource, PromptSource, Trajectory
from trajkit.sequence import build_sequences
from trajkit.store.read import read_trajectories

FLAT = FIXTURES / "formats" / "flat"
CHAT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def ingested(tmp_path: Any, source: Any, **options: Any) -> tuple[Any, list[Trajectory]]:
    out = tmp_path / "steps.parquet"
    report = ingest([str(source)], out, overwrite=True, **options)
    return report, list(read_trajectories(out))


def record(tmp_path: Any, **value: Any) -> Any:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(value) + "\n")
    return path


def test_without_retokenize_the_text_is_kept_and_there_are_no_ids(tmp_path):
    report, trajectories = ingested(tmp_path, FLAT / "search-r1.txt", tokenizer=TINY)
    assert report.by_source == {"none": 4}
    assert report.n_action_tokens == 0
    for trajectory in trajectories:
        for step in trajectory.steps:
            assert step.action_tokens is None
            assert step.prompt_delta is None
            assert step.segments is None
            assert step.prompt_source is PromptSource.NONE
    last = trajectories[0].steps[-1]
    assert last.state_before is not None
    assert last.state_before.endswith("</information>\n\n")
    assert last.action_text == ("<think>That is it.</think>\n<answer> every 45 minutes </answer>")
    assert trajectories[0].steps[0].observation == "Doc 1: every 45 minutes, 4.65 €"


def test_with_retokenize_every_step_says_so_and_grows_from_the_one_before(tmp_path):
    report, trajectories = ingested(
        tmp_path, FLAT / "search-r1.jsonl", tokenizer=TINY, retokenize=True
    )
    assert report.by_source == {"retokenized": 6}
    for trajectory in trajectories:
        [sequence] = build_sequences(trajectory)
        assert len(sequence.steps) == len(trajectory.steps)
        for step in trajectory.steps:
            assert step.action_source is ActionSource.RETOKENIZED
            assert step.prompt_source is PromptSource.RENDERED
            assert not step.is_checkable
            assert step.tokenizer == "tiny"
            if step.parent is not None:
                assert step.prompt_keep == step.parent.sequence_len


@pytest.mark.parametrize("name", ["search-r1", "hermes", "react", "chatml"])
def test_the_joined_text_and_the_masks_are_those_of_the_log(tmp_path, name):
    source = FLAT / f"{name}.jsonl"
    _, trajectories = ingested(tmp_path, source, tokenizer=TINY, retokenize=True)
    _, as_text = ingested(tmp_path, source)
    for trajectory, other, line in zip(
        trajectories, as_text, source.read_text().splitlines(), strict=True
    ):
        value = json.loads(line)
        keys = ("prompt", "response", "completion", "output", "text")
        whole = "".join(value.get(key, "") for key in keys)
        [sequence] = build_sequences(trajectory)
        assert tiny_tokenizer().text(sequence.token_ids) == whole
        last: Any = trajectory.steps[-1]
        assert last.state_before + last.action_text + (last.text_tail or "") == whole
        for made, told in zip(trajectory.steps, other.steps, strict=True):
            assert tiny_tokenizer().text(made.action_tokens) == made.action_text  # type: ignore[arg-type]
            assert (made.action_text, made.observation) == (told.action_text, told.observation)
            assert made.state_before == told.state_before


def test_control_text_in_an_observation_is_text_and_is_noted(tmp_path):
    report, [trajectory] = ingested(
        tmp_path, FLAT / "hermes.jsonl", tokenizer=TINY, retokenize=True
    )
    [sequence] = build_sequences(trajectory)
    control = np.isin(sequence.token_ids, tiny_tokenizer().control_ids)
    kinds = {
        span.kind for span in sequence.spans for t in range(span.start, span.end) if control[t]
    }
    assert kinds == {"scaffold", "stop"}
    assert report.n_control_text == 3
    notes = json.loads(trajectory.steps[1].extra_json or "")["control_text"]
    data = json.loads((FLAT / "hermes.jsonl").read_text())["text"].encode()
    assert [note["text"] for note in notes] == ["<|im_end|>", "<|im_start|>", "<|im_end|>"]
    for note in notes:
        assert data[note["byte"] :].startswith(note["text"].encode())
    assert any("control_text" in warning for warning in report.warnings)


def test_the_end_of_turn_belongs_to_the_action_unless_it_was_cut(tmp_path):
    stop = next(i for i, text in tiny_tokenizer().control.items() if text == "<|im_end|>")
    options: Any = {"tokenizer": TINY, "retokenize": True, "markup": "chatml"}
    for text, ends in ((CHAT + "yes<|im_end|>\n", True), (CHAT + "yes", False)):
        _, [trajectory] = ingested(tmp_path, record(tmp_path, text=text), **options)
        action = trajectory.steps[0].action_tokens
        assert action is not None
        assert (int(action[-1]) == stop) is ends
        assert (trajectory.steps[0].tail_tokens is not None) is ends


def test_an_action_cut_inside_a_tag_is_truncated(tmp_path):
    source = record(tmp_path, prompt="q", response="<search>a")
    _, [trajectory] = ingested(tmp_path, source, markup="search-r1")
    assert trajectory.steps[0].is_truncated is True


def test_a_record_without_an_action_keeps_its_text(tmp_path):
    options: Any = {"tokenizer": TINY, "retokenize": True, "markup": "chatml"}
    _, [trajectory] = ingested(tmp_path, record(tmp_path, text=CHAT), **options)
    assert trajectory.steps[0].exclude_reason == "no_step"
    assert json.loads(trajectory.steps[0].extra_json or "")["record"]["text"] == CHAT


def test_ids_that_were_sampled_are_never_made_anew(tmp_path):
    source = FIXTURES / "formats" / "per-call" / "search.jsonl"
    _, plain = ingested(tmp_path, source, tokenizer=TINY)
    report, again = ingested(tmp_path, source, tokenizer=TINY, retokenize=True)
    assert report.by_source.keys() == {"sampled"}
    for one, other in zip(plain, again, strict=True):
        assert_same_trajectory(one, other)


def test_retokenize_needs_a_tokenizer(tmp_path):
    with pytest.raises(UsageProblem, match="U103"):
        ingest([str(FLAT / "react.jsonl")], tmp_path / "out", retokenize=True)
