"""Processes hear of each other through a folder, whatever earlier starts left in it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trajkit.errors import FileError, InputError, TrajkitError, UsageProblem
from trajkit.scoring.running import company as room
from trajkit.scoring.running.company import Claims, Company, in_company
from trajkit.scoring.running.job import ALONE, Job


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_SIGN_EVERY_S", 0.05)
    monkeypatch.setattr(room, "_LATE_S", 0.4)
    monkeypatch.setattr(room, "SILENCE_S", 0.4)


def company_of(folder: Path, rank: int, size: int = 2, name: str = "n") -> Company:
    return Company(folder, Job(rank=rank, size=size, name=name))


def fail(company: Company, text: str) -> None:
    with pytest.raises(RuntimeError, match=text[:9]), company.present():
        raise RuntimeError(text)


def never() -> bool:
    return False


def test_a_process_that_failed_fails_the_others(tmp_path):
    first = company_of(tmp_path, 0)
    first.check()
    fail(company_of(tmp_path, 1), "the disk of rank 1 is full\nand more")
    for told in (first.check, lambda: first.wait(never, 1), first.see_off):
        with pytest.raises(FileError, match=r"rank 1 is full$") as caught:
            told()
        assert caught.value.code == "F104"


def test_the_first_process_that_failed_fails_the_others(tmp_path):
    other = company_of(tmp_path, 1)
    fail(company_of(tmp_path, 0), "no such model")
    with pytest.raises(FileError, match=r"process 0 .* no such model"):
        other.check()


def test_a_failure_before_the_first_process_came_is_heard(tmp_path):
    """Files of an earlier start look the same: whoever fails early waits, and says it again."""
    with ThreadPoolExecutor() as pool:
        failing = pool.submit(fail, company_of(tmp_path, 1), "no GPU here")
        while not (tmp_path / "n-1.failed").exists():
            time.sleep(0.01)
        first = company_of(tmp_path, 0)
        first.check()  # as far as it can tell, an old word
        with first.present():
            failing.result()
            with pytest.raises(FileError, match="no GPU here"):
                first.check()


def test_who_is_done_stays_for_the_first_process_and_no_longer(tmp_path, monkeypatch):
    """The first one was there before, and is gone before its next sign: that is seen, too."""
    monkeypatch.setattr(room, "_LATE_S", 9.0)
    first = company_of(tmp_path, 0)
    with first.present():
        other = company_of(tmp_path, 1)
        start = time.monotonic()
        with other.present():
            pass
        first.see_off()
    assert time.monotonic() - start < 5.0
    assert not tmp_path.exists()
    tmp_path.mkdir()
    (tmp_path / "n-0.alive").write_text("about to go")
    with ThreadPoolExecutor() as pool:
        start = time.monotonic()
        going = pool.submit(lambda: _come_and_go(company_of(tmp_path, 1)))
        while not (tmp_path / "n-1.done").exists():
            time.sleep(0.01)
        shutil.rmtree(tmp_path)
        going.result()
    assert time.monotonic() - start < 5.0


def _come_and_go(company: Company) -> None:
    with company.present():
        pass


def test_an_interrupted_process_waits_for_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_LATE_S", 9.0)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), company_of(tmp_path, 1).present():
        raise KeyboardInterrupt
    assert time.monotonic() - start < 5.0
    assert (tmp_path / "n-1.failed").read_text().splitlines()[0] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        (UsageProblem("U101", "it is there", hint="--force replaces it"), "--force replaces it"),
        (InputError("S103", "the file is damaged"), None),
        (FileError("F104", "process 2 failed: S103"), None),
        (FileError("F103", "no room", hint="free some"), "free some"),
        (FileError("F102", "a fault"), "start the run again"),
        (RuntimeError("a bug"), "start the run again"),
    ],
)
def test_the_others_are_told_what_helps_the_one_that_failed(tmp_path, problem, hint):
    first = company_of(tmp_path, 0)
    with pytest.raises(type(problem)), company_of(tmp_path, 1).present():
        raise problem
    with pytest.raises(FileError) as caught:
        first.check()
    assert (caught.value.hint or "")[:19] == (hint or "")
    assert str(problem) in str(caught.value)


def test_the_folder_is_named_once(tmp_path):
    """The third process hears of the second, which hears nothing of the first."""
    folder = tmp_path / "s.parquet.parts"
    second, third = company_of(folder, 1, 3), company_of(folder, 2, 3)
    with pytest.raises(FileError), second.present():
        second.wait(never, 0)
    with pytest.raises(FileError) as caught:
        third.check()
    assert str(caught.value).count(folder.name) == 1


def test_processes_at_different_runs_end(tmp_path):
    first, other, third = (company_of(tmp_path, rank, 3) for rank in range(3))
    with first.present(), other.present():
        first.agree("aa")
        other.check()  # not known yet
        other.agree("aa")
        first.check()
        other.check()
        third.agree("bb")
        for one in (first, other):
            with pytest.raises(FileError, match=r"process 2 .* other data") as caught:
                one.check()
            assert caught.value.code == "F104"
        with pytest.raises(FileError, match=r"process 0 .* other data"):
            third.check()
        late = company_of(tmp_path, 1, 3)
        late.agree("cc")
        late.check()  # what was there before says nothing


def test_another_run_is_noticed_when_all_else_is_over(tmp_path):
    first, other = company_of(tmp_path, 0), company_of(tmp_path, 1)
    with first.present():
        first.agree("aa")
        with other.present():
            other.agree("bb")
        with pytest.raises(FileError, match=r"process 1 .* other data"):
            first.see_off()


def test_another_run_that_was_over_before_the_first_process_came_is_noticed(tmp_path):
    def other() -> None:
        company = company_of(tmp_path, 1)
        with company.present():
            company.agree("bb")

    with ThreadPoolExecutor() as pool:
        going = pool.submit(other)
        while not (tmp_path / "n-1.done").exists():
            time.sleep(0.01)
        first = company_of(tmp_path, 0)
        with first.present():
            first.agree("aa")
            with pytest.raises(FileError, match=r"process 1 .* other data"):
                first.see_off()
        going.result()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_start_of_the_same_name_does_not_touch_the_first(tmp_path, rank):
    pair = [company_of(tmp_path, 0), company_of(tmp_path, 1)]
    with pair[0].present(), pair[1].present():
        signs = sorted((one.name, one.read_text()) for one in tmp_path.iterdir())
        second = company_of(tmp_path, rank)
        with pytest.raises(FileError, match="only writer") as caught, second.present():
            pytest.fail("it is not to begin")
        assert caught.value.code == "F102"
        assert sorted((one.name, one.read_text()) for one in tmp_path.iterdir()) == signs
        pair[1 - rank].check()


def test_the_last_one_to_leave_removes_all_words(tmp_path):
    folder = tmp_path / "s.parquet.parts"
    first, other = company_of(folder, 0), company_of(folder, 1)

    def run() -> None:
        with first.present():
            fail(other, "no such model")
            assert (folder / "n-1.failed").exists()
            first.check()

    with pytest.raises(FileError, match="no such model"):
        run()
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_folder_that_cannot_be_one_is_an_error(tmp_path, kind):
    folder = tmp_path / "in" / "s.parquet.parts"
    if kind == "link":
        folder.parent.mkdir()
        folder.symlink_to(tmp_path, target_is_directory=True)
    else:
        folder.parent.touch()
    with pytest.raises(TrajkitError) as caught, company_of(folder, 1).present():
        pytest.fail("it has no place to sign")
    assert caught.value.code == ("R103" if kind == "link" else "F102")


def test_what_an_earlier_start_of_the_same_name_left_is_old(tmp_path):
    fail(company_of(tmp_path, 1), "of yesterday")
    first = company_of(tmp_path, 0)
    first.check()
    with pytest.raises(FileError, match="no sign"):
        first.wait(never, 1)
    with company_of(tmp_path, 1).present():
        assert not (tmp_path / "n-1.failed").exists()
        first.check()


def test_a_process_that_shows_itself_is_waited_for(tmp_path):
    first = company_of(tmp_path, 0)
    end = time.monotonic() + 1.0  # longer than silence may last
    with company_of(tmp_path, 1).present():
        first.wait(lambda: time.monotonic() > end, 1)
    assert not (tmp_path / "n-1.alive").exists()


def test_a_killed_process_is_missed(tmp_path):
    (tmp_path / "n-1.alive").write_text("killed")
    with pytest.raises(FileError, match="no sign") as caught:
        company_of(tmp_path, 0).wait(never, 1)
    assert caught.value.code == "F104"


def test_the_first_process_leaves_last(tmp_path):
    first = company_of(tmp_path, 0)
    left: list[int] = []

    def other() -> None:
        with company_of(tmp_path, 1).present():
            time.sleep(0.6)  # later than one that never came
            left.append(1)

    with ThreadPoolExecutor() as pool, first.present():
        going = pool.submit(other)
        while not (tmp_path / "n-1.alive").exists():
            time.sleep(0.01)
        first.see_off()
        assert left == [1]
        going.result()


def test_a_process_that_never_came_is_not_waited_for_long(tmp_path):
    first = company_of(tmp_path, 0)
    start = time.monotonic()
    first.see_off()
    assert 0.3 < time.monotonic() - start < 2.0


def test_who_is_alone_leaves_no_trace(tmp_path):
    with in_company(tmp_path / "s.parquet", ALONE) as company:
        assert company is None
    with in_company(None, Job(size=2)) as company:
        assert company is None
    assert not list(tmp_path.iterdir())


def test_a_window_is_taken_once(tmp_path):
    """Eight processes that run for the same windows: each window has one of them."""
    companies = [company_of(tmp_path, rank, 8) for rank in range(8)]
    ready = threading.Barrier(8)

    def taken(company: Company) -> list[int]:
        with company.present():
            claims = Claims(tmp_path, company)
            ready.wait()
            mine = [number for number in range(40) if claims.take(number)]
            assert all(claims.holder(number) is not None for number in range(40))
            ready.wait()
            return mine

    with ThreadPoolExecutor(8) as pool:
        shares = list(pool.map(taken, companies))
    assert sorted(number for share in shares for number in share) == list(range(40))


@pytest.fixture
def claims_of(tmp_path: Path) -> Iterator[Callable[..., Claims]]:
    with ThreadPoolExecutor() as pool:
        stop = threading.Event()
        ready: list[threading.Event] = []

        def be(company: Company, here: threading.Event) -> None:
            with company.present():
                here.set()
                stop.wait()

        def make(rank: int, **named: Any) -> Claims:
            company = company_of(tmp_path, rank, **named)
            ready.append(threading.Event())
            pool.submit(be, company, ready[-1])
            ready[-1].wait()
            return Claims(tmp_path, company)

        yield make
        stop.set()


def test_a_claim_lasts_as_long_as_who_made_it(claims_of, tmp_path):
    first, other, third = claims_of(0, size=3), claims_of(1, size=3), claims_of(2, size=3)
    assert other.take(3)
    assert other.take(3)
    assert not first.take(3)
    assert first.holder(3) == 1
    (tmp_path / "n-1.alive").write_text("a later start")
    assert first.holder(3) is None
    assert first.take(3)
    assert not third.take(3)
    assert third.holder(3) == 0


def test_who_is_done_keeps_its_windows_unless_they_are_wanted_from_it(tmp_path):
    first, other = company_of(tmp_path, 0), company_of(tmp_path, 1)
    with first.present():
        with other.present():
            assert Claims(tmp_path, other).take(3)
        claims = Claims(tmp_path, first)
        assert not claims.take(3)
        assert claims.holder(3) is None
        assert claims.take(3, from_done=True)
        assert claims.holder(3) == 0


@pytest.mark.parametrize(
    "left", ["other-1.00ff", "n-1.00ff", "n-7.00ff", "n-x.00ff", "n-\u00b2.0", ""]
)
def test_a_claim_of_another_start_is_none(claims_of, tmp_path, left):
    """The eighth process was killed, and the run started again with two."""
    (tmp_path / "n-7.alive").write_text("00ff")
    first = claims_of(0)
    claims_of(1)
    (tmp_path / "00003.0.claim").symlink_to(left or "?")
    assert first.holder(3) is None
    assert first.take(3)


def test_where_links_cannot_be_made_there_is_an_error(tmp_path):
    claims = Claims(tmp_path / "gone", company_of(tmp_path, 0))
    with pytest.raises(FileError) as caught:
        claims.take(0)
    assert caught.value.code == "F102"
