"""What is got ahead and put away behind stays in order, is bounded, and fails as if it was not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from trajkit.scoring.running.overlap import Behind, ahead


def numbers(got: list[int], most: int = 5) -> Iterator[int]:
    for number in range(most):
        got.append(number)
        yield number
    raise LookupError("the end of the disk")


def test_one_item_is_got_ahead_and_errors_come_in_their_place():
    got: list[int] = []
    used: list[int] = []
    with pytest.raises(LookupError, match="the end of the disk"):  # noqa: PT012 - where it comes
        for number in ahead(numbers(got)):
            used.append(number)
            assert len(got) <= len(used) + 1
    assert used == got == [0, 1, 2, 3, 4]


def test_the_next_item_is_got_while_one_is_in_use():
    is_used = threading.Event()

    def waiting() -> Iterator[int]:
        yield 0
        assert is_used.wait(10)
        yield 1

    for number in ahead(waiting()):
        if number == 0:
            is_used.set()  # one after the other, the second could not come
    assert list(ahead([])) == []


def test_who_stops_early_leaves_no_thread():
    got: list[int] = []
    with closing(ahead(numbers(got))) as coming:
        assert next(coming) == 0
    assert got in ([0], [0, 1])
    assert not [one for one in threading.enumerate() if one.name.startswith("ahead")]


def test_calls_behind_run_in_order_and_one_at_a_time():
    done: list[int] = []
    running = threading.Lock()

    def call(number: int) -> None:
        assert running.acquire(blocking=False)
        done.append(number)
        running.release()

    with Behind() as behind:
        for number in range(50):
            behind.do(partial(call, number))
            assert len(done) >= number  # of those before, none is left
    assert done == list(range(50))
    assert not [one for one in threading.enumerate() if one.name.startswith("behind")]


def test_a_call_goes_on_while_its_caller_does():
    is_on = threading.Event()
    with Behind() as behind:
        behind.do(lambda: _check(is_on.wait(10)))
        is_on.set()


def test_what_a_call_raises_is_raised_by_the_next_or_at_the_end():
    done: list[int] = []

    def go(*after: int) -> None:
        with Behind() as behind:
            behind.do(partial(_check, False))
            for number in after:
                behind.do(partial(done.append, number))

    with pytest.raises(AssertionError):
        go(1, 2)
    with pytest.raises(AssertionError):
        go()
    assert not done


def test_what_was_started_is_finished_when_the_block_fails():
    done: list[int] = []

    def go() -> None:
        with Behind() as behind:
            behind.do(partial(done.append, 1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go()
    assert done == [1]


def _check(is_fine: bool) -> None:
    assert is_fine
