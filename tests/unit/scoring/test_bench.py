"""The benches of scoring: their data are what they say, their checks can fail, the script runs."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from bench import score, score_checks, score_gpu, score_work
from bench.score_checks import Wrong
from bench.score_models import CASES, MODELS, data_of

from tests.varlen_twin import TOLD_TWIN
from trajkit.scoring.forward import kernels
from trajkit.scoring.planning.forecast import grouped
from trajkit.scoring.planning.plan import plan_tree

CPU = torch.device("cpu")
PUBLISHED = {
    "append-only, 8 steps": (5_360, 1_020),
    "window of 3 turns, 600 ids in front, 8 steps": (6_760, 2_200),
    "GRPO group, 4 × 4 steps": (9_120, 1_680),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_the_data_at_full_size_have_the_lengths_they_are_known_by(case):
    data = score.data_of(score.QWEN3, case)
    n_raw = sum(len(prompt) + len(action) for prompt, action in data.samples)
    assert (n_raw, data.n_trie) == PUBLISHED[case]


@pytest.mark.parametrize(
    "data",
    [
        *(score.data_of(shape, case) for shape in score.SHAPES.values() for case in shape.cases),
        *(data_of(case, 500, is_tiny=True) for case in CASES.values()),
    ],
)
def test_a_plan_reads_and_asks_what_counting_prefixes_gives(data):
    plan = plan_tree(grouped([(one, one.steps) for one in data.trajectories]))[0]
    assert len(plan.token_ids) == data.n_asked < data.n_trie
    assert int((plan.depth + 1).sum()) == data.n_seen
    assert len(np.unique(plan.edge_row)) == data.n_rows
    calls = [call for one in data.trajectories for call in one.steps]
    for step, (prompt, action) in zip(calls, data.samples, strict=True):
        assert np.array_equal(step.prompt_ids, prompt)
        assert np.array_equal(step.action_tokens, action)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    arguments = ["--device", "cpu", "--tiny", "--minutes", "60", "--out", str(folder)]
    code = score_gpu.main(arguments)
    return code, json.loads((folder / "score_gpu.json").read_text()), folder


def test_the_script_runs_every_part_that_needs_no_gpu(tiny):
    code, told, _ = tiny
    states = {one["part"]: (one["state"], one.get("why")) for one in told["parts"]}
    assert code == 0
    for name in MODELS:
        for case in CASES:
            for way in (*score_gpu.PLAIN, *score_gpu.OURS):
                assert states.pop(f"{name} / {case} / {way}") == ("done", None)
    for_cuda = {name for name, state in states.items() if state == ("skipped", "only on CUDA")}
    assert for_cuda == {
        "check: varlen attention",
        "check: varlen attention to nothing",
        "check: kernel that judges logits",
        *(f"check: float32 product of a bf16 head, {size} wide" for size in (896, 2048, 3584)),
    }
    assert {state for name, state in states.items() if name not in for_cuda} == {("done", None)}


def test_all_ways_agree_and_the_tree_is_read_once(tiny):
    cells = {
        tuple(one["part"].split(" / ")): one["figures"]
        for one in tiny[1]["parts"]
        if " / " in one["part"]
    }
    assert len(cells) == len(MODELS) * len(CASES) * 5
    for (name, case, way), figures in cells.items():
        naive = cells[name, case, "naive"]
        if way != "naive":
            assert figures["max abs Δ"] <= 1e-4
        if way == "tree":
            assert figures["ids read"] == figures["ids to read"] < naive["ids read"]


def test_the_report_holds_each_cell_beside_naive_scoring(tiny):
    _, told, folder = tiny
    text = (folder / "score_gpu.md").read_text()
    assert told["title"] in text
    rows = [line for line in text.splitlines() if line.startswith("| Qwen")]
    assert len(rows) == len(MODELS) * len(CASES) * 5
    cells = {one["part"]: one["figures"] for one in told["parts"]}
    case = next(iter(CASES))
    seconds = [cells[f"Qwen3-1.7B / {case} / {way}"]["s"] for way in ("naive", "tree")]
    (row,) = (line for line in rows if line.startswith(f"| Qwen3-1.7B | {case} | tree |"))
    assert f"| {seconds[0] / seconds[1]:.1f}x |" in row
    assert "skipped: check: varlen attention: only on CUDA" in text


def test_a_way_that_gives_other_numbers_has_failed():
    one = score_work.Found(logprobs=np.array([-1.0, -2.0], dtype=np.float32), n_read=2)
    other = score_work.Found(logprobs=np.array([-1.0, -2.5], dtype=np.float32), n_read=2)
    assert score_gpu.gap(one, other, 0.3) == {"mean abs Δ": 0.25, "max abs Δ": 0.5}
    with pytest.raises(Wrong):
        score_gpu.gap(one, other, 0.2)
    lost = score_work.Found(logprobs=np.array([-1.0, np.nan], dtype=np.float32), n_read=2)
    with pytest.raises(Wrong):
        score_gpu.gap(lost, other, 0.3)


def test_half_precision_is_noisier_in_bf16_than_in_fp16(tiny):
    (noise,) = (one["figures"] for one in tiny[1]["parts"] if "noise" in one["part"])
    for way in ("naive", "tree"):
        bf16, fp16 = (noise[f"{dtype}, {way}"]["mean abs Δ"] for dtype in ("bf16", "fp16"))
        assert 0 < 3 * fp16 < bf16


def test_parts_that_fail_or_do_not_fit_are_told_and_the_next_runs(tmp_path):
    ends = time.monotonic() + 60
    bench = score_gpu.Bench(device=CPU, is_tiny=True, out=tmp_path, ends=ends, rate=1e9)

    def fails():
        raise torch.OutOfMemoryError("no room")

    assert bench.part("a", fails) == {}
    assert bench.part("b", lambda: {"x": 1.0}, guess_s=1e4) == {}
    assert bench.part("c", lambda: {"x": 2.0}) == {"x": 2.0}
    told = [(one["part"], one["state"], one.get("why")) for one in bench.parts]
    assert told[0] == ("a", "failed", "OutOfMemoryError: no room")
    assert told[1][:2] == ("b", "no time")
    assert str(told[1][2]).startswith("takes 10000 s or so, ")
    assert told[2] == ("c", "done", None)
    text = (tmp_path / "score_gpu.md").read_text()
    assert "- c: x 2" in text
    assert "- failed: a: OutOfMemoryError: no room" in text


def test_what_fails_on_the_device_behind_a_part_is_that_parts_failure(tmp_path, monkeypatch):
    def lost(_):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(score_gpu, "settle", lost)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    gpu, ends = torch.device("cuda", 0), time.monotonic() + 60
    bench = score_gpu.Bench(device=gpu, is_tiny=True, out=tmp_path, ends=ends, rate=1e9)
    for name in ("a", "b"):
        bench.part(name, lambda: {"x": 1.0})
    assert [one["why"] for one in bench.parts] == ["RuntimeError: an illegal memory access"] * 2


def test_a_part_that_failed_is_exit_1(tmp_path, monkeypatch, capsys):
    def fails(*_):
        raise Wrong("off")

    monkeypatch.setattr(score_checks, "copy_rate", fails)
    monkeypatch.setattr(score_gpu, "MODELS", {"none": ("no such kind", {})})
    assert score_gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "- failed: ceiling: copy: Wrong: off" in text
    assert "- failed: none: made: KeyError: 'none'" in text
    assert "- check: attention over a tree, float32: " in text


def test_without_time_nothing_is_run_and_all_of_it_is_told(tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    assert score_gpu.main(["--device", "cpu", "--tiny", "--minutes", "0", *out]) == 1
    text = capsys.readouterr().out
    assert all(f"no time: {name}: made: takes" in text for name in MODELS)


def test_without_a_gpu_the_script_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        score_gpu.main(["--out", str(tmp_path)])
    assert "there is no GPU here" in capsys.readouterr().err


def by_segment(query, key, value, segments, *, near, scale, from_the_top=False):
    """Attend segment by segment with plain products: the twin of the kernel."""
    starts = segments.asking_starts.tolist(), segments.seen_starts.tolist()
    outs, sums = [], []
    for at in range(len(starts[0]) - 1):
        q, k, v = (
            part[of[at] : of[at + 1]].double().transpose(0, 1)
            for part, of in ((query, starts[0]), (key, starts[1]), (value, starts[1]))
        )
        assert q.shape[1] <= segments.most_asking
        k, v = (part.repeat_interleave(len(q) // len(part), 0) for part in (k, v))
        scores = q @ k.mT * scale
        shift = 0 if from_the_top else k.shape[1] - q.shape[1]
        if near[1] == 0:
            scores = scores.masked_fill(torch.ones(scores.shape[1:]).tril(shift) == 0, -torch.inf)
        if near[0] >= 0:
            gone = torch.ones(scores.shape[1:]).tril(shift - near[0] - 1) == 1
            scores = scores.masked_fill(gone, -torch.inf)
        outs.append(scores.softmax(-1) @ v)
        sums.append(scores.logsumexp(-1))
    return torch.cat(outs, 1), torch.cat(sums, 1)


def test_the_check_of_segments_takes_the_right_kernel_and_no_other():
    figures = score_checks.varlen(CPU, by_segment)
    assert figures.pop("checked") == 2 * 8 * 3
    assert max(figures.values()) < 1e-9

    def from_the_top(*given, **how):
        return by_segment(*given, **how, from_the_top=True)

    def other_sums(*given, **how):
        out, sums = by_segment(*given, **how)
        return out, sums.T

    def without_window(*given, near, scale):
        return by_segment(*given, near=(-1, near[1]), scale=scale)

    def mixes_single_rows(query, key, value, segments, **how):
        out, sums = by_segment(query, key, value, segments, **how)
        few = segments.most_asking == 1 and key.shape[1] < query.shape[1]
        return (out.flip(0), sums) if few else (out, sums)

    for wrong in (from_the_top, other_sums, without_window, mixes_single_rows):
        with pytest.raises(Wrong):
            score_checks.varlen(CPU, wrong)


def test_the_check_asks_the_call_that_trajkit_makes(monkeypatch):
    with pytest.raises(Wrong, match="takes nothing"):
        score_checks.varlen(CPU)
    monkeypatch.setattr(kernels, "_library_varlen", lambda: TOLD_TWIN)
    monkeypatch.setattr(score_checks, "varlen_of", lambda *_: kernels._cuda_varlen)
    assert score_checks.varlen(CPU)["out"] < 1e-2
    assert score_checks.varlen_nothing(CPU)["largest of out"]


def test_sums_of_rows_that_see_nothing_are_checked():
    def full(query, *_, **__):
        return query.transpose(0, 1), torch.zeros(query.shape[1], len(query))

    with pytest.raises(Wrong, match="sums are"):
        score_checks.varlen_nothing(CPU, full)


def test_the_check_of_trees_sees_a_run_that_is_left_out(monkeypatch):
    runs, positions, sees = score_checks._tree()
    cut = tuple(
        replace(run, subtree_end=run.end) if at == 3 else run for at, run in enumerate(runs)
    )
    monkeypatch.setattr(score_checks, "_tree", lambda: (cut, positions, sees))
    with pytest.raises(Wrong):
        score_checks.tree(CPU, torch.float32)


def test_a_cell_is_told_as_json(tmp_path, capsys):
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    turns = score_work.Turns(prompt=12, action=5, observation=3, steps=3)
    shape = score.Shape(
        config=sizes | heads,
        dtype="bf16",
        cases={"short": lambda draw: score_work.append_only(draw, turns)},
        ways=(),
    )
    score.make_model(shape, tmp_path)
    found = {}
    for way in ("nothing", "naive", "single", "tree", "fp32"):
        score.child(tmp_path, shape, "short", way)
        found[way] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found[way]["peak_mib"] >= found[way]["held_mib"] > 0
    assert found["nothing"]["n_read"] == 0
    assert found["tree"]["n_read"] == 12 + 3 * 5 + 2 * 3 - 1
    assert found["single"]["n_read"] == 3 * 17 + 3 * 8
    assert found["naive"]["n_read"] == 2 * 25 + 33
    exact = np.array(found["fp32"]["logprobs"])
    assert exact.shape == (15,)
    for way in ("naive", "single", "tree"):
        apart = np.abs(np.array(found[way]["logprobs"]) - exact)
        assert 0 < apart.max() < 0.1
