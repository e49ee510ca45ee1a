"""Work beside the model's: the next item is got while one is scored, the last one put away.

One thread ahead and one behind, an item each: order, errors and memory are as if it was one after
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self, TypeVar

_Item = TypeVar("_Item")
_END: Final = object()


def ahead(items: Iterable[_Item]) -> Generator[_Item]:
    """Yield the items in order; each is got in a thread while the one before it is in use."""
    source = iter(items)
    with ThreadPoolExecutor(1, "ahead") as pool:
        coming: Future[_Item | object] = pool.submit(next, source, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, source, _END)
            yield item  # type: ignore[misc]  # not the end


class Behind:
    """Calls made in a thread, one after the other, while the caller goes on.

    A context manager: inside, a new call waits for the one before it, and raises what that raised;
    at the end nothing is left to do, also when the block failed.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "behind")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def do(self, call: Callable[[], None]) -> None:
        """Start a call once the last one is over."""
        self._wait()
        self._last = self._pool.submit(call)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True)
        if value is None:
            self._wait()

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()
