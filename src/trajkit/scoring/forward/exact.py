"""Whole float32 products, whatever the process around a pass has asked of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_SETTING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Products:
    """How torch multiplies float32.

    Attributes:
        word, cudnn: its one word for products of matrices, and whether cuDNN may use TF32; `None`
            for a caller who has set single kinds so that these do not say it.
        kinds: a word for each of `_kinds()`; `none` asks further up.
    """

    word: str | None
    cudnn: bool | None
    kinds: tuple[str, ...]


_before: list[_Products] = []
"""A copy, for each block that is open in any thread, of what was set outside of all of them."""


@contextmanager
def whole_products() -> Iterator[None]:
    """Turn autocast off, and TF32 and its kin for float32 products, while inside.

    Blocks may be open in several threads: torch is as before when the last one closes.
    """
    with _SETTING:
        now = _before[-1] if _before else _products()
        _before.append(now)
        _set(
            _Products(
                word=now.word and "highest",
                cudnn=None if now.cudnn is None else False,
                kinds=("ieee",) * len(now.kinds),
            )
        )
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        with _SETTING:
            before = _before.pop()
            if not _before:
                _set(before)


def _kinds() -> list[Any]:
    """Return where torch keeps how float32 is multiplied, by library and kind of product."""
    backends: Any = torch.backends
    libraries = (backends.cudnn, backends.mkldnn)
    others = [kind for library in libraries for kind in (library.conv, library.rnn)]
    return [backends.cuda.matmul, backends.mkldnn.matmul, *others]


def _products() -> _Products:
    backends: Any = torch.backends
    words = (str(kind.fp32_precision) for kind in _kinds())
    return _Products(
        word=_told(torch.get_float32_matmul_precision),
        cudnn=_told(lambda: backends.cudnn.allow_tf32),
        kinds=tuple("none" if one == backends.fp32_precision else one for one in words),
    )


def _told(read: Callable[[], Any]) -> Any:
    """Return what torch says, `None` where single kinds were set so that it cannot."""
    try:
        return read()
    except RuntimeError:
        return None


def _set(products: _Products) -> None:
    backends: Any = torch.backends
    if products.word is not None:
        torch.set_float32_matmul_precision(products.word)
    if products.cudnn is not None:
        backends.cudnn.allow_tf32 = products.cudnn
    for kind, word in zip(_kinds(), products.kinds, strict=True):
        kind.fp32_precision = word
