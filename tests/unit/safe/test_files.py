import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import os
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trajkit.errors import FileError, InputError, RefusedError, TrajkitError, UsageProblem
from trajkit.safe.files import (
    expand_sources,
    open_source,
    publish,
    publish_bytes,
    remove_quietly,
    same_file,
)

TEXT = b"".join(b'{"n": %d, "t": "a b c"}\n' % n for n in range(5000))


def make(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(str(path).encode())


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


def read_all(path: Path) -> bytes:
    with open_source(path) as stream:
        return stream.read()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# --- sources


def test_a_folder_gives_its_logs_sorted_and_leaves_the_private_ones(tmp_path):
    wanted = [
        tmp_path / name
        for name in ("a.jsonl", "b/c.json.gz", "b/d/e.ndjson", "b/f.JSONL", "z.jsonl.zst")
    ]
    unwanted = [
        tmp_path / name
        for name in (".a.jsonl", "_b.json", ".git/c.json", "_old/d.json", "e.parquet", "f.txt.gz")
    ]
    make(*wanted, *unwanted)
    assert expand_sources([str(tmp_path)]) == wanted


def test_the_order_of_arguments_is_kept_and_each_file_comes_once(tmp_path):
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    make(a, b)
    (tmp_path / "hard.jsonl").hardlink_to(b)
    (tmp_path / "soft.jsonl").symlink_to(a)
    assert expand_sources([str(b), str(tmp_path), str(a)]) == [b, a]
    assert expand_sources([str(tmp_path / "soft.jsonl")]) == [tmp_path / "soft.jsonl"]


def test_a_named_file_may_have_any_name(tmp_path):
    odd = tmp_path / "_log[1].txt"
    make(odd)
    assert expand_sources([str(odd)]) == [odd]


def test_globs_match_as_in_a_shell(tmp_path):
    wanted = [tmp_path / name for name in ("x/1.jsonl", "x/y/2.jsonl", "x/y/z/3.jsonl")]
    make(*wanted, tmp_path / "x/_4.jsonl", tmp_path / "x/.5.jsonl", tmp_path / "x/6.txt")
    assert expand_sources([str(tmp_path / "x/**/*.jsonl")]) == wanted
    assert expand_sources([str(tmp_path / "x/*.jsonl")]) == wanted[:1]
    assert expand_sources([str(tmp_path / "x/_*.jsonl")]) == [tmp_path / "x/_4.jsonl"]
    assert expand_sources([str(tmp_path / "?")]) == wanted


def test_standard_input_is_a_source(tmp_path):
    make(tmp_path / "a.json")
    assert expand_sources(["-", str(tmp_path), "-"]) == [Path("-"), tmp_path / "a.json"]


@pytest.mark.parametrize("name", ["nothing.jsonl", "*.jsonl", "empty"])
def test_a_source_that_names_nothing_is_a_usage_problem(tmp_path, name):
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty/_hidden.jsonl")
    source = str(tmp_path / name)
    with pytest.raises(UsageProblem) as caught:
        expand_sources([source])
    assert caught.value.code == "U104"
    assert source in caught.value.message


def test_no_source_is_a_usage_problem():
    with pytest.raises(UsageProblem) as caught:
        expand_sources([])
    assert caught.value.code == "U104"


def test_what_is_no_readable_file_is_a_file_error(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "dangling.jsonl").symlink_to(tmp_path / "gone")
    make(tmp_path / "secret.jsonl")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for name in ("pipe.jsonl", "dangling.jsonl", "secret.jsonl"):
        with pytest.raises(FileError) as caught:
            expand_sources([str(tmp_path / name)])
        assert caught.value.code == "F101"
    with pytest.raises(FileError):
        read_all(tmp_path / "pipe.jsonl")


def test_a_closed_folder_on_the_way_is_a_file_error(tmp_path, monkeypatch):
    def lstat(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(FileError, match="Permission denied") as caught:
        expand_sources([str(tmp_path / "closed" / "a.jsonl")])
    assert caught.value.code == "F101"


# --- opening


@pytest.mark.parametrize(
    "pack",
    [
        lambda data: data,
        gzip.compress,
        lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:]) + b"\0" * 9,
        zstd,
        lambda data: zstd(data[:999]) + b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zstd(data[999:]),
        lambda data: b"\x51\x2a\x4d\x18\x04\0\0\0skip" + zstd(data),
    ],
    ids=["plain", "gzip", "gzip members", "zstd", "zstd frames", "zstd after a skippable frame"],
)
@pytest.mark.parametrize("data", [TEXT, b"", b"x"])
def test_content_alone_tells_how_a_source_is_packed(tmp_path, pack, data):
    path = tmp_path / "log.txt"
    path.write_bytes(pack(data))
    with open_source(path) as stream:
        assert b"".join(stream) == data
        assert stream.n_bytes == path.stat().st_size
        assert stream.sha256_hex() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_digest_is_not_told_before_the_end(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(TEXT * 50)
    with open_source(path) as stream:
        stream.readline()
        assert not stream.is_at_end
        with pytest.raises(ValueError, match="at its end"):
            stream.sha256_hex()


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_packed_bytes_cut_anywhere_are_an_error(tmp_path, pack):
    path = tmp_path / "log"
    packed = pack(TEXT[:2000])
    for cut in range(4, len(packed)):
        path.write_bytes(packed[:cut])
        with pytest.raises(InputError) as caught:
            read_all(path)
        assert caught.value.code == "I108", cut


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize("stray", [b"\n", b"x", b"garbage", b"{}" * 300_000])
def test_bytes_after_the_packed_ones_are_an_error(tmp_path, pack, stray):
    path = tmp_path / "log"
    path.write_bytes(pack(TEXT) + stray)
    with pytest.raises(InputError) as caught:
        read_all(path)
    assert caught.value.code == "I108"


@pytest.mark.parametrize("at", [-8, -1, 40])
def test_a_wrong_checksum_is_an_error(tmp_path, at):
    packed = bytearray(gzip.compress(TEXT))
    packed[at] ^= 1
    (tmp_path / "log").write_bytes(packed)
    with pytest.raises(InputError) as caught:
        read_all(tmp_path / "log")
    assert caught.value.code == "I108"


def gzip_bomb(n_mebibytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(b" " * 2**20) for _ in range(n_mebibytes)) + packer.flush()


def zstd_bomb(n_mebibytes: int) -> bytes:
    return zstd(b" " * 2**20) * n_mebibytes


@pytest.mark.parametrize("bomb", [gzip_bomb, zstd_bomb])
def test_a_bomb_is_refused_in_bounded_memory(tmp_path, bomb):
    (tmp_path / "log").write_bytes(bomb(300))
    n_read: list[int] = []
    tracemalloc.start()
    with open_source(tmp_path / "log") as stream, pytest.raises(RefusedError) as caught:
        n_read.extend(map(len, iter(lambda: stream.read(2**20), b"")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == "R102"
    assert sum(n_read) == 256 * 2**20
    assert peak < 16 * 2**20


def test_much_repetition_in_a_small_file_is_no_bomb(tmp_path):
    (tmp_path / "log").write_bytes(gzip_bomb(8))
    assert len(read_all(tmp_path / "log")) == 8 * 2**20


def append(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"more")


def cut(path: Path) -> None:
    os.truncate(path, 2**20)


@pytest.mark.parametrize("change", [append, cut])
def test_a_file_that_changes_size_while_it_is_read_is_an_error(tmp_path, change):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 5 * 2**20)
    with open_source(path) as stream:
        stream.read(10)
        change(path)
        with pytest.raises(FileError) as caught:
            stream.read()
    assert caught.value.code == "F101"


def test_a_disk_that_fails_under_a_reader_is_an_error(tmp_path, monkeypatch):
    class Failing(io.FileIO):
        def readinto(self, buffer):
            raise OSError(errno.EIO, "Input/output error")

    for data in (TEXT, gzip.compress(TEXT), zstd(TEXT)):
        (tmp_path / "log").write_bytes(data)
        monkeypatch.setattr(io, "FileIO", Failing)
        with pytest.raises(FileError) as caught:
            read_all(tmp_path / "log")
        assert caught.value.code == "F101"
        monkeypatch.undo()


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, zstd])
def test_standard_input_is_unpacked_too_and_stays_open(monkeypatch, pack):
    class Slow(io.BytesIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:3])

    stdin = io.TextIOWrapper(Slow(pack(TEXT[:1000])))
    monkeypatch.setattr(sys, "stdin", stdin)
    with open_source(Path("-")) as stream:
        assert stream.read() == TEXT[:1000]
        assert stream.is_at_end
    assert not stdin.closed


def test_a_closed_standard_input_is_a_file_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(FileError):
        read_all(Path("-"))


# --- the same file


def test_links_and_detours_name_the_same_file(tmp_path):
    a = tmp_path / "a"
    make(a, tmp_path / "b")
    (tmp_path / "hard").hardlink_to(a)
    (tmp_path / "soft").symlink_to(a)
    assert same_file(a, tmp_path / "hard")
    assert same_file(a, tmp_path / "soft")
    assert same_file(tmp_path / "new", tmp_path / "x" / ".." / "new")
    assert not same_file(a, tmp_path / "b")
    assert not same_file(a, tmp_path / "new")


def test_removing_quietly_never_fails(tmp_path):
    make(tmp_path / "a")
    remove_quietly(tmp_path / "a")
    remove_quietly(tmp_path / "a")
    remove_quietly(tmp_path)
    assert names(tmp_path.parent).count(tmp_path.name) == 1
    assert names(tmp_path) == []


# --- publishing


def test_a_published_file_is_whole_and_alone_in_its_folder(tmp_path):
    out = tmp_path / "out.bin"
    with publish(out, overwrite=False) as stream:
        stream.write(b"one")
        stream.flush()
        assert not out.exists()
        stream.write(b" two")
    assert out.read_bytes() == b"one two"
    assert names(tmp_path) == ["out.bin"]


def test_a_published_file_has_the_mode_of_any_new_file(tmp_path):
    for mask in (0o022, 0o027, 0o000):
        before = os.umask(mask)
        try:
            publish_bytes(tmp_path / "out", b"x", overwrite=True)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o666 & ~mask


def test_a_stream_can_seek_and_be_closed_by_its_user(tmp_path):
    with publish(tmp_path / "out", overwrite=False) as stream:
        stream.write(b"....tail")
        stream.seek(0)
        stream.write(b"head")
        assert stream.tell() == 4
        stream.close()
    assert (tmp_path / "out").read_bytes() == b"headtail"


def test_parquet_can_be_written_into_it(tmp_path):
    table = pa.table({"a": [1, 2, 3]})
    with publish(tmp_path / "out.parquet", overwrite=False) as stream:
        pq.write_table(table, stream)
    assert pq.read_table(tmp_path / "out.parquet").equals(table)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("old", [b"old", None])
def test_a_failing_block_leaves_what_was_there(tmp_path, error, old):
    out = tmp_path / "out"
    if old is not None:
        out.write_bytes(old)

    def fail() -> None:
        with publish(out, overwrite=True) as stream:
            stream.write(b"x" * 3 * 2**20)
            raise error("mine")

    with pytest.raises(error, match="mine"):
        fail()
    assert (out.read_bytes() if out.exists() else None) == old
    assert names(tmp_path) == ["out"] * (old is not None)


def test_an_existing_file_is_replaced_only_on_request(tmp_path):
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with pytest.raises(UsageProblem) as caught:
        publish_bytes(out, b"new", overwrite=False)
    assert caught.value.code == "U101"
    assert caught.value.hint is not None
    assert "--force" in caught.value.hint
    assert out.read_bytes() == b"old"
    publish_bytes(out, b"new", overwrite=True)
    assert out.read_bytes() == b"new"


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UsageProblem), publish(out, overwrite=False):
        out.write_bytes(b"theirs")
    assert out.read_bytes() == b"theirs"
    assert names(tmp_path) == ["out"]


def test_links_folders_and_pipes_are_refused_before_any_work(tmp_path):
    make(tmp_path / "precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    refused = [("link", "R103"), ("dangling", "R103"), ("folder", "U101"), ("pipe", "F102")]
    for name, code in refused:
        with pytest.raises(TrajkitError) as caught, publish(tmp_path / name, overwrite=True):
            pytest.fail("the block was entered")
        assert caught.value.code == code
    assert names(tmp_path) == before
    assert (tmp_path / "precious").read_bytes() == str(tmp_path / "precious").encode()


@pytest.mark.parametrize("name", ["gone/out", "file/out", "n" * 250])
def test_a_place_that_cannot_be_written_is_a_file_error_before_any_work(tmp_path, name):
    make(tmp_path / "file")
    with pytest.raises(FileError) as caught, publish(tmp_path / name, overwrite=True):
        pytest.fail("the block was entered")
    assert caught.value.code == "F102"
    assert caught.value.place is not None
    assert caught.value.place.file == str(tmp_path / name)


def test_a_changed_working_folder_does_not_move_the_output(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with publish(Path("out"), overwrite=False) as stream:
        stream.write(b"x")
        os.chdir("elsewhere")
    assert names(tmp_path) == ["elsewhere", "out"]


def test_the_second_of_two_writers_loses_at_once(tmp_path):
    out = tmp_path / "out"
    with publish(out, overwrite=True) as stream:
        stream.write(b"first")
        with pytest.raises(FileError) as caught, publish(out, overwrite=True):
            pytest.fail("the block was entered")
    assert caught.value.code == "F102"
    assert "another process" in caught.value.message
    assert out.read_bytes() == b"first"
    assert names(tmp_path) == ["out"]
    publish_bytes(out, b"third", overwrite=True)


def test_writers_of_different_files_do_not_meet(tmp_path):
    with publish(tmp_path / "a", overwrite=True) as a, publish(tmp_path / "b", overwrite=True) as b:
        a.write(b"a")
        b.write(b"b")
    assert names(tmp_path) == ["a", "b"]


def test_without_locks_a_file_is_still_published_whole(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    stale = tmp_path / ".out.0123456789abcdef.tmp"
    make(stale, tmp_path / ".out.lock")
    publish_bytes(tmp_path / "out", b"x", overwrite=False)
    assert names(tmp_path) == [stale.name, "out"]


def test_only_temporary_files_that_nobody_holds_are_cleared(tmp_path):
    dead, held, foreign = (
        tmp_path / f".out.{name}.tmp"
        for name in ("0000000000000000", "1111111111111111", "not-one-of-ours")
    )
    other = tmp_path / ".out.x.0000000000000000.tmp"
    make(dead, held, foreign, other, tmp_path / ".out.lock")
    with held.open("r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        publish_bytes(tmp_path / "out", b"x", overwrite=False)
    assert names(tmp_path) == sorted([held.name, foreign.name, other.name, "out"])


def test_a_write_that_failed_in_silence_is_not_published(tmp_path, monkeypatch):
    out = tmp_path / "out"

    def write_on() -> None:
        with publish(out, overwrite=False) as stream:
            with monkeypatch.context() as patch, contextlib.suppress(FileError):
                patch.setattr(os, "write", fail_with(errno.ENOSPC))
                stream.write(b"x")
                stream.flush()
            stream.write(b"y")

    with pytest.raises(FileError) as caught:
        write_on()
    assert caught.value.code == "F103"
    assert names(tmp_path) == []


def fail_with(number: int):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


STEPS: list[tuple[object, str]] = [
    *((os, name) for name in ("open", "write", "fsync", "replace", "close", "unlink")),
    *((os, name) for name in ("fstat", "lseek", "listdir")),
    *((Path, name) for name in ("lstat", "stat", "unlink")),
    (fcntl, "flock"),
]


class Faults:
    """Lets each step of the system through but the `nth`, which fails."""

    def __init__(self, monkeypatch, nth: int, number: int) -> None:
        self.n_steps = 0
        for owner, name in STEPS:
            monkeypatch.setattr(owner, name, self.wrap(getattr(owner, name), nth, number))

    def wrap(self, step, nth: int, number: int):
        def stepped(*arguments, **options):
            self.n_steps += 1
            if self.n_steps == nth:
                raise OSError(number, os.strerror(number))
            return step(*arguments, **options)

        return stepped


def code_of_writing(out: Path, new: bytes) -> str | None:
    try:
        with publish(out, overwrite=True) as stream:
            stream.write(new[: 2**21])
            stream.seek(0, os.SEEK_CUR)
            stream.write(new[2**21 :])
    except FileError as error:
        return error.code
    return None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("old_temps", [set(), {".out.0123456789abcdef.tmp"}])
def test_a_fault_at_any_step_leaves_the_old_file_or_the_whole_new_one(
    tmp_path, monkeypatch, number, old_temps
):
    out, new = tmp_path / "out", b"new" * 2**20
    outcomes = []
    n_steps = nth = 0
    while n_steps >= nth:  # until a run has fewer steps than the one that is to fail
        nth += 1
        out.write_bytes(b"old")
        make(*(tmp_path / name for name in old_temps), *[tmp_path / ".out.lock"] * len(old_temps))
        with monkeypatch.context() as patch:
            faults = Faults(patch, nth, number)
            code = code_of_writing(out, new)
            n_steps = faults.n_steps
        outcomes.append((code, out.read_bytes()))
        assert {name for name in names(tmp_path) if name.endswith(".tmp")} <= old_temps
        publish_bytes(out, b"next", overwrite=True)  # no fault leaves the output locked
        for path in tmp_path.iterdir():
            path.unlink()
    code = "F102" if number == errno.EIO else "F103"
    assert outcomes[-1] == (None, new)
    assert set(outcomes) == {(None, new), (code, b"old"), (code, new)}
    assert outcomes.count((code, b"old")) >= 8
    assert outcomes.count((code, new)) == 3  # the folder, opened, flushed and closed


WRITER = """
import sys, time
from pathlib import Path
from trajkit.safe.files import publish
with publish(Path(sys.argv[1]), overwrite=True) as stream:
    print("writing", flush=True)
    for _ in range(10):
        stream.write(b"new" * 2**17)
        stream.flush()
        time.sleep(0.02)
print("published", flush=True)
time.sleep(0.1)
"""


def start_writer(out: Path) -> subprocess.Popen[str]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(out)], stdout=-1, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    return writer


def test_a_killed_writer_leaves_the_old_file_or_the_whole_new_one(tmp_path):
    out, new = tmp_path / "out", b"new" * 2**17 * 10
    found = []
    for attempt in range(10):
        publish_bytes(out, b"old", overwrite=True)  # clears what the last one left
        assert names(tmp_path) == ["out"]
        writer = start_writer(out)
        time.sleep(0.03 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        content = out.read_bytes()
        assert content in (b"old", new)
        found.append(content == new)
    assert not found[0]  # killed while writing
    publish_bytes(out, b"old", overwrite=True)
    assert names(tmp_path) == ["out"]


def test_two_processes_never_write_one_file(tmp_path):
    out = tmp_path / "out"
    writer = start_writer(out)
    with pytest.raises(FileError) as caught:
        publish_bytes(out, b"mine", overwrite=True)
    assert caught.value.code == "F102"
    output, _ = writer.communicate()
    assert output == "published\n"
    assert out.read_bytes() == b"new" * 2**17 * 10
    assert names(tmp_path) == ["out"]
