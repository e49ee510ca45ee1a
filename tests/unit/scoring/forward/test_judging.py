"""One id of each row of logits: against float64, poisoned rows, and by the sums of a kernel."""

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.score_builders import assert_close
from trajkit.scoring.forward import judging
from trajkit.scoring.forward.judging import (
    exact_kl,
    judge,
    judge_by_kernel,
    judge_plainly,
    kernel_agrees,
)


@pytest.mark.parametrize("n_vocab", [2, 7, 61, 512, 49_152])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_and_inf_anywhere_in_a_row_poison_that_row_alone(n_vocab: int, poison: float) -> None:
    torch.manual_seed(0)
    for at in {0, n_vocab // 2, n_vocab - 1}:
        logits = torch.randn(3, n_vocab)
        logits[1, at] = poison
        for target in {0, n_vocab - 1}:
            logprob, entropy, _ = judge(logits.clone(), torch.full((3,), target))
            assert logprob.isnan().tolist() == [False, True, False]
            assert entropy.isnan().tolist() == [False, True, False]


def test_a_row_of_minus_inf_is_not_a_distribution() -> None:
    logprob, _, _ = judge(torch.full((1, 5), -math.inf), torch.tensor([0]))
    assert logprob.isnan().all()


def test_probability_zero_is_kept_as_minus_inf() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.0]])
    logprob, entropy, rank = judge(logits, torch.tensor([0]))
    assert logprob.item() == -math.inf
    assert entropy.item() == pytest.approx(math.log(2.0), abs=1e-6)
    assert rank.item() == 2


def test_a_confident_token_is_not_rounded_to_certainty() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, 3] = 20.0
    logprob, _, _ = judge(logits, torch.tensor([3]))
    assert logprob.item() == pytest.approx(-math.log1p(999 * math.exp(-20.0)), abs=1.3e-7)
    assert logprob.item() < 0.0


@pytest.mark.parametrize("n_vocab", [1000, 49_152, 151_936])
def test_the_normaliser_keeps_its_digits_over_a_large_vocabulary(n_vocab: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(32, n_vocab) * 4
    ids = logits.argmax(1)
    exact = logits.double().log_softmax(1)
    logprob, entropy, rank = judge(logits, ids)
    assert not rank.any()
    torch.testing.assert_close(
        logprob.double(), exact.gather(1, ids[:, None])[:, 0], atol=3e-6, rtol=0.0
    )
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(1), atol=3e-6, rtol=0.0)


def test_ties_are_not_strictly_likelier() -> None:
    _, _, rank = judge(torch.tensor([[1.0, 2.0, 1.0, 2.0]]), torch.tensor([0]))
    assert rank.item() == 2


@pytest.mark.parametrize("n_vocab", [2, 61, 20_000])
def test_exact_kl_is_the_float64_sum_and_nothing_to_itself(n_vocab: int) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(2, 5, n_vocab) * 3
    log_p, log_q = one.double().log_softmax(-1), other.double().log_softmax(-1)
    wanted = (log_p.exp() * (log_p - log_q)).sum(-1)
    assert_close(exact_kl(one, other).numpy(), wanted.numpy(), atol=1e-5)
    large = exact_kl(one + 200.0, other + 200.0)  # their digits stay, those of a float32 log do not
    shifted = [(each + 200.0).double().log_softmax(-1) for each in (one, other)]
    exact = (shifted[0].exp() * (shifted[0] - shifted[1])).sum(-1)
    assert_close(large.numpy(), exact.numpy(), atol=1e-6)
    assert_close(exact_kl(one, one.clone()).numpy(), np.zeros(5), atol=1e-6)


def test_an_id_that_only_one_side_rules_out_decides_the_kl() -> None:
    without = torch.tensor([[0.0, 0.0, -math.inf]])
    assert exact_kl(without, torch.zeros(1, 3)).item() == pytest.approx(math.log(1.5))
    assert exact_kl(torch.zeros(1, 3), without).item() == math.inf
    assert exact_kl(without, without.clone()).item() == 0.0
    unlikely = torch.tensor([[0.0, -200.0]])  # its probability is no float32
    assert exact_kl(unlikely, torch.tensor([[0.0, -math.inf]])).item() == math.inf
    assert math.isnan(exact_kl(unlikely, torch.tensor([[0.0, math.inf]])).item())
    assert math.isnan(exact_kl(torch.tensor([[math.nan, 0.0]]), torch.zeros(1, 2)).item())


def test_rows_in_any_number_at_a_time_give_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    logits, other, ids = torch.randn(9, 50), torch.randn(9, 50), torch.arange(9)
    whole, distance = judge(logits.clone(), ids), exact_kl(logits, other)
    for n_values in (1, 100, 449):
        monkeypatch.setitem(judging._VALUES_AT_ONCE, "cpu", n_values)
        for found, wanted in zip(judge(logits.clone(), ids), whole, strict=True):
            assert torch.equal(found, wanted)
        assert torch.equal(exact_kl(logits, other), distance)


def test_no_rows_have_no_numbers() -> None:
    none = torch.empty(0, 7)
    logprob, entropy, rank = judge(none, torch.empty(0, dtype=torch.int64))
    assert [len(logprob), len(entropy), len(rank), len(exact_kl(none, none))] == [0, 0, 0, 0]


def test_float64_logits_are_judged_in_float64() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 1000, dtype=torch.float64) * 4
    exact, ids = logits.log_softmax(1), torch.tensor([1, 2, 3, 4])
    logprob, entropy, _ = judge(logits.clone(), ids)
    torch.testing.assert_close(logprob, exact.gather(1, ids[:, None])[:, 0], atol=1e-12, rtol=0.0)
    torch.testing.assert_close(entropy, -(exact.exp() * exact).sum(1), atol=1e-12, rtol=0.0)


def sums_in_plain_torch(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what the kernel's sums are by definition."""
    top = logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).amax(1)
    apart = logits.double() - top.double()[:, None]
    weight = apart.exp()
    weighted = torch.where(apart.isneginf(), 0.0, weight * apart)
    rank = (logits > logits.gather(1, ids[:, None])).sum(1, dtype=torch.int32)
    return top, weight.sum(1).float(), weighted.sum(1).float(), rank


def kernel_of(monkeypatch: pytest.MonkeyPatch, row_sums: Any) -> None:
    """Let the kernel's module be one with some other sums: Triton itself is not installed here."""
    module = ModuleType("trajkit.scoring.forward.judging_kernel")
    module.row_sums = row_sums  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_the_sums_a_kernel_makes_give_the_plain_forms_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel_of(monkeypatch, sums_in_plain_torch)
    assert kernel_agrees(torch.device("cpu"))
    torch.manual_seed(0)
    logits, ids = torch.randn(5, 3_000) * 4, torch.tensor([0, 1, 2, 2_999, 7])
    kept = logits.clone()
    found = judge_by_kernel(logits, ids)
    assert torch.equal(logits, kept)
    for one, other in zip(found, judge_plainly(logits, ids), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0.0)


@pytest.mark.parametrize("column", [0, 1, 2, 3])
def test_a_kernel_with_one_wrong_sum_is_not_used(
    monkeypatch: pytest.MonkeyPatch, column: int
) -> None:
    def wrong(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sums = list(sums_in_plain_torch(logits, ids))
        sums[column] = sums[column] + 1
        return tuple(sums)

    kernel_of(monkeypatch, wrong)
    assert not kernel_agrees(torch.device("cpu"))


def test_where_the_kernel_cannot_be_built_the_plain_form_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no C compiler")

    kernel_of(monkeypatch, broken)
    judging._kernel.cache_clear()
    assert judging._kernel(torch.device("cpu")) is None
    judging._kernel.cache_clear()
