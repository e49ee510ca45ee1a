"""The Triton kernel without a GPU: interpreted, and compiled for two of them.

`make kernels`, which fetches Triton, runs this file with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch

from trajkit.scoring.forward.judging import judge_by_kernel, judge_plainly, kernel_agrees
from trajkit.scoring.forward.judging_kernel import row_sums

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from trajkit.scoring.forward.judging_kernel import _LANES, _WARPS, _row_sums

pointers = dict(logits="*fp32", stride="i32", ids="*i64", tops="*fp32", totals="*fp32",
                weighteds="*fp32", ranks="*i32")
fixed = dict(n_ids=int(sys.argv[2]), lanes=_LANES)
source = ASTSource(fn=_row_sums, signature=pointers | dict.fromkeys(fixed, "constexpr"),
                   constexprs=fixed)
made = compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32),
               options=dict(num_warps=_WARPS))
print(len(made.asm["cubin"]))
"""


def test_the_kernel_is_interpreted_here() -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1"


def test_the_kernel_agrees_on_odd_rows() -> None:
    assert kernel_agrees(CPU)


@pytest.mark.parametrize("n_ids", [1, 2, 61, 4_096, 4_097, 50_000])
def test_its_numbers_are_those_of_float64(n_ids: int) -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(5, n_ids) * 4, torch.randint(n_ids, (5,))
    exact = logits.double().log_softmax(1)
    logprob, entropy, rank = judge_by_kernel(logits, ids)
    chosen = exact.gather(1, ids[:, None])
    torch.testing.assert_close(logprob.double(), chosen[:, 0], atol=3e-6, rtol=0.0)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(1), atol=3e-6, rtol=0.0)
    likelier = (logits > logits.gather(1, ids[:, None])).sum(1, dtype=torch.int32)
    assert torch.equal(rank, likelier)


@pytest.mark.parametrize("n_ids", [61, 9_000])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_and_inf_poison_their_row_alone(n_ids: int, poison: float) -> None:
    torch.manual_seed(0)
    for at in (0, n_ids // 2, n_ids - 1):
        logits = torch.randn(3, n_ids)
        logits[1, at] = poison
        logprob, entropy, _ = judge_by_kernel(logits, torch.zeros(3, dtype=torch.int64))
        assert logprob.isnan().tolist() == [False, True, False]
        assert entropy.isnan().tolist() == [False, True, False]


def test_ids_without_probability_add_nothing() -> None:
    logits = torch.full((3, 9_000), -math.inf)
    logits[0, 8_999], logits[1, 0], logits[1, 8_000] = 2.0, 1.0, 1.0
    ids = torch.tensor([8_999, 4, 0])
    logprob, entropy, rank = judge_by_kernel(logits, ids)
    assert logprob.tolist()[:2] == [0.0, -math.inf]
    assert entropy.tolist()[:2] == pytest.approx([0.0, math.log(2)], abs=1e-6)
    assert logprob[2].isnan()
    assert rank.tolist()[:2] == [0, 2]
    for one, other in zip((logprob, entropy), judge_plainly(logits.clone(), ids)[:2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0.0, equal_nan=True)


def test_rows_of_a_wider_table_are_read_where_they_stand() -> None:
    torch.manual_seed(0)
    table, ids = torch.randn(4, 5_000), torch.tensor([0, 3, 4_499, 9])
    for found, wanted in zip(
        row_sums(table[:, :4_500], ids), row_sums(table[:, :4_500].contiguous(), ids), strict=True
    ):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_for_a_gpu_that_is_not_there(capability: int) -> None:
    given = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-c", COMPILE, str(capability), "151936"],
        env=given, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    assert int(made.stdout) > 1_000
