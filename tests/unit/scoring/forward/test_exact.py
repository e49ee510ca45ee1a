"""Whole float32 products inside, whatever was asked of torch outside, and all of it as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import torch

from trajkit.scoring.forward import exact
from trajkit.scoring.forward.exact import whole_products

BACKENDS: Any = torch.backends


def by_one_word() -> None:
    torch.set_float32_matmul_precision("medium")


def by_flag() -> None:
    BACKENDS.cuda.matmul.allow_tf32 = True


def by_cudnn_flag() -> None:
    BACKENDS.cudnn.allow_tf32 = False


def by_kind() -> None:
    BACKENDS.cuda.matmul.fp32_precision = "tf32"


def by_everything() -> None:
    BACKENDS.fp32_precision = "tf32"


def by_both_ways() -> None:
    BACKENDS.cuda.matmul.allow_tf32 = True
    BACKENDS.cuda.matmul.fp32_precision = "ieee"


CALLERS = [
    *(by_one_word, by_flag, by_cudnn_flag, by_kind, by_everything, by_both_ways),
]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = exact._products()
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.fp32_precision = "none"
    exact._set(before)
    assert exact._products() == before


def said(read: Callable[[], Any]) -> Any:
    with suppress(RuntimeError):
        return read()
    return "torch cannot say"


def state() -> list[Any]:
    return [
        said(torch.get_float32_matmul_precision),
        said(lambda: BACKENDS.cuda.matmul.allow_tf32),
        said(lambda: BACKENDS.cudnn.allow_tf32),
        BACKENDS.fp32_precision,
        *(kind.fp32_precision for kind in exact._kinds()),
    ]


@pytest.mark.parametrize("caller", CALLERS)
def test_products_are_whole_inside_and_as_before_outside(caller: Callable[[], None]) -> None:
    untouched = state()
    caller()
    before = state()
    assert before != untouched
    with suppress(KeyError), whole_products():
        assert state()[:3] == ["highest", False, False]
        assert {kind.fp32_precision for kind in exact._kinds()} == {"ieee"}
        with whole_products():
            pass
        assert {kind.fp32_precision for kind in exact._kinds()} == {"ieee"}
        raise KeyError
    assert state() == before


def test_what_followed_the_general_setting_follows_it_again() -> None:
    by_everything()
    with whole_products():
        pass
    BACKENDS.fp32_precision = "ieee"
    assert BACKENDS.cuda.matmul.fp32_precision == "ieee"


def test_the_last_of_several_blocks_puts_it_back() -> None:
    by_one_word()
    before = state()
    first, second = ExitStack(), ExitStack()
    first.enter_context(whole_products())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(second.enter_context, whole_products()).result()
        first.close()
        assert BACKENDS.mkldnn.matmul.fp32_precision == "ieee"
        pool.submit(second.close).result()
    assert state() == before


def test_autocast_is_off_inside_and_on_again_behind() -> None:
    left = torch.full((2, 2), 1.0 + 2**-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with whole_products():
            assert (left @ left).dtype is torch.float32
        assert (left @ left).dtype is torch.bfloat16
