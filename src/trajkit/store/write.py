"""Trajectories into Parquet, published whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import chain, count, repeat
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq

from trajkit import __version__
from trajkit.errors import Place, TrajkitError, UsageProblem
from trajkit.records import Step, Trajectory, states_in_order
from trajkit.safe.files import publish, remove_quietly
from trajkit.safe.lock import faults_named
from trajkit.store.columns import steps_table
from trajkit.store.digest import content_digest
from trajkit.store.manifest import MANIFEST, read_manifest, seal
from trajkit.store.schema import METADATA_KEY, SCHEMA, SCHEMA_NAME

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_STATE_BYTES = 64 * 2**20
"""`state_before` is written by `--state auto` while one trajectory's states stay below this."""


class StatePolicy(StrEnum):
    """When the derived column `state_before` is written."""

    AUTO = "auto"
    FULL = "full"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One source file as it was read."""

    file: str
    sha256: str | None
    """Of its bytes as stored; `None` when a limit ended the reading of a text first."""
    n_bytes: int
    """Stored bytes; where a limit ended the reading, unpacked bytes up to there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a dataset was made from and how: it goes into every part's metadata."""

    inputs: tuple[InputFile, ...] = ()
    tokenizer_name: str | None = None
    tokenizer_fingerprint: str | None = None
    chat_template_sha256: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


class ParquetSink:
    """One Parquet file being written: fixed encodings, a digest per row group in its metadata."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema, schema_name: str) -> None:
        self._schema_name = schema_name
        self._digests: list[str] = []
        self.n_rows = 0
        self._writer = pq.ParquetWriter(_Outlet(stream), schema, **_encodings(schema))

    @property
    def digests(self) -> tuple[str, ...]:
        """Return the digest of each row group's content."""
        return tuple(self._digests)

    def write_group(self, table: pa.Table) -> None:
        """Write one row group."""
        self._digests.append(content_digest(table))
        self.n_rows += table.num_rows
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self, metadata: dict[str, Any]) -> None:
        """Write the footer with schema name, version, digests and the given metadata."""
        full = {
            "schema": self._schema_name,
            "trajkit_version": __version__,
            **metadata,
            "row_groups": self._digests,
        }
        self._writer.add_key_value_metadata({METADATA_KEY: seal(full)})
        self._writer.close()


class _Outlet(io.RawIOBase):
    """A stream that swallows what comes after its end: a writer given up says its last words."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        return memoryview(data).nbytes if self._stream.closed else self._stream.write(data)


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return writer options: zstd-3; plain ids, split floats, prefix-coded states, checksums."""
    dictionary, encoding = [], {}
    for name in schema.names:
        kind = schema.field(name).type
        if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
            encoding[f"{name}.list.element"] = "PLAIN"
        elif pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
            encoding[f"{name}.list.element"] = "BYTE_STREAM_SPLIT"
        elif name == "state_before":
            encoding[name] = "DELTA_BYTE_ARRAY"
        elif not (
            pa.types.is_nested(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)
        ):
            dictionary.append(name)
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": dictionary,
        "column_encoding": encoding,
        "write_page_checksum": True,
        "write_statistics": ["trajectory_id", "step_index"],
    }


class DatasetWriter:
    """Writes trajectories to one `.parquet` file or a folder of parts with a manifest.

    A context manager: nothing is visible at `out` until the block ends without an exception; the
    manifest is published last, so a folder is a dataset only when it is whole.

    Attributes:
        group_bytes: between trajectories, a row group that takes about this much memory is full.
        long_group_bytes: inside a trajectory more is needed, since a row group begins with a whole
            state: what `StatePolicy.AUTO` allows always fits.
        group_rows: a row group of so many steps is full anywhere.
        part_bytes: a part of a folder is full when its row groups took about this much memory.
        n_states_left_out: trajectories whose states are too long for `StatePolicy.AUTO`.
    """

    group_bytes = 32 * 2**20
    long_group_bytes = group_bytes + MAX_STATE_BYTES
    group_rows = 4096
    part_bytes = 1024 * 2**20

    def __init__(
        self, out: Path, *, overwrite: bool = False, state: StatePolicy = StatePolicy.AUTO
    ) -> None:
        self.n_trajectories = 0
        self.n_states_left_out = 0
        self.provenance = Provenance()
        self._out = out
        self._is_file = is_one_file(out)
        self._overwrite = overwrite
        self._state = state
        self._stack = ExitStack()
        self._sinks: list[tuple[str, ParquetSink]] = []
        self._manifest: BinaryIO | None = None
        self._steps: list[Step] = []
        self._states: list[str | None] = []
        self._pending_bytes = 0
        self._part_bytes = 0
        self._new_folders: list[Path] = []
        self._published: list[Path] = []
        self._old_parts: list[Path] = []
        self._part_suffix = ""

    def __enter__(self) -> Self:
        if self._is_file:
            self._open_part()
            return self
        try:
            self._make_folder()
            self._manifest = self._publish(self._out / MANIFEST, overwrite=self._overwrite)
            with suppress(TrajkitError):  # none, or not understood: its parts stay
                self._old_parts = [part.path for part in read_manifest(self._out)]
            self._part_suffix = _free_suffix(self._out)
            self._open_part()
        except BaseException as problem:
            self._abort(problem)
            raise
        return self

    def write(self, trajectory: Trajectory) -> None:
        """Add one trajectory: its steps ascending, all in the same part."""
        if self._part_bytes + self._pending_bytes >= self.part_bytes and not self._is_file:
            self._flush()
            self._open_part()
        states = self._states_of(trajectory)
        for step, state in zip(trajectory.steps, states, strict=True):
            self._steps.append(step)
            self._states.append(state)
            self._pending_bytes += _n_bytes(step) + (0 if state is None else len(state))
            if self._pending_bytes >= self.long_group_bytes or len(self._steps) >= self.group_rows:
                self._flush()
        if self._pending_bytes >= self.group_bytes:
            self._flush()
        self.n_trajectories += 1

    def open_beside(self, path: Path) -> BinaryIO:
        """Return a stream whose bytes become another file when the dataset is published."""
        return self._publish(path, overwrite=self._overwrite)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if value is not None:
            self._abort(value)
            return
        try:
            self._flush()
            metadata = {"n_trajectories": self.n_trajectories, **asdict(self.provenance)}
            for _, sink in self._sinks:
                sink.close(metadata)
            if self._manifest is not None:
                self._manifest.write(self._manifest_bytes(metadata))
            self._stack.close()
        except BaseException as problem:
            self._abort(problem)
            raise
        for path in self._old_parts:
            remove_quietly(path)

    def _make_folder(self) -> None:
        if self._out.exists() and not self._out.is_dir():
            raise UsageProblem(
                "U103",
                "expected an output that ends in .parquet, or a folder, found another file",
                place=Place(file=str(self._out)),
                hint="give -o OUT.parquet, or the name of a folder",
            )
        with faults_named(self._out):
            missing = [path for path in (self._out, *self._out.parents) if not path.exists()]
            for path in reversed(missing):
                path.mkdir(exist_ok=True)
                self._new_folders.append(path)

    def _publish(self, path: Path, *, overwrite: bool) -> BinaryIO:
        """Return a stream that is published when the block ends, the last one opened first."""

        def note(kind: type[BaseException] | None, *_: object) -> None:
            if kind is None:
                self._published.append(path)

        self._stack.push(note)
        return self._stack.enter_context(publish(path, overwrite=overwrite))

    def _abort(self, problem: BaseException) -> None:
        """Let go of every temporary file, of what came out without its manifest, of new folders."""
        self._stack.__exit__(type(problem), problem, problem.__traceback__)
        named: list[Path] = []
        with suppress(TrajkitError):
            named = [part.path for part in read_manifest(self._out)]
        for path in self._published:
            if path not in named:
                remove_quietly(path)
        with suppress(OSError):
            for path in reversed(self._new_folders):
                path.rmdir()

    def _open_part(self) -> None:
        name = f"part-{len(self._sinks):05d}{self._part_suffix}.parquet"
        path = self._out if self._is_file else self._out / name
        overwrite = self._overwrite and self._is_file
        stream = self._publish(path, overwrite=overwrite)
        self._sinks.append((path.name, ParquetSink(stream, SCHEMA, SCHEMA_NAME)))
        self._part_bytes = 0

    def _states_of(self, trajectory: Trajectory) -> Iterator[str | None]:
        steps = trajectory.steps
        wanted = self._state is StatePolicy.FULL or (
            self._state is StatePolicy.AUTO and sum(map(_n_state_bytes, steps)) <= MAX_STATE_BYTES
        )
        if wanted:
            return states_in_order(steps)
        if self._state is StatePolicy.AUTO:
            self.n_states_left_out += any(step.text_delta is not None for step in steps)
        return repeat(None, len(steps))

    def _flush(self) -> None:
        """Write what is pending as one row group."""
        if self._steps:
            self._sinks[-1][1].write_group(steps_table(self._steps, self._states))
            self._part_bytes += self._pending_bytes
            self._steps, self._states, self._pending_bytes = [], [], 0

    def _manifest_bytes(self, metadata: dict[str, Any]) -> bytes:
        parts = [
            {"file": name, "n_steps": sink.n_rows, "row_groups": sink.digests}
            for name, sink in self._sinks
        ]
        full = {"schema": SCHEMA_NAME, "trajkit_version": __version__, **metadata, "parts": parts}
        return seal(full, indent=1) + b"\n"


def is_one_file(out: Path) -> bool:
    """Return whether a dataset at this path is one file, as opposed to a folder."""
    return out.suffix.lower() == ".parquet" and not out.is_dir()


def _free_suffix(out: Path) -> str:
    """Return a suffix that no part in the folder has.

    Overwriting leaves the old parts alone until the new manifest is in place.
    """
    taken = {path.name.removesuffix(".parquet")[10:] for path in out.glob("part-*.parquet")}
    suffixes = chain([""], (f".{n}" for n in count(1)))
    return next(suffix for suffix in suffixes if suffix not in taken)


_TEXT_FIELDS = (
    "observation", "text_delta", "text_tail", "messages_json", "action_message_json",
    "action_text", "tools_json", "extra_json",
)  # fmt: skip


def _n_bytes(step: Step) -> int:
    """Return about how many bytes a step's large fields take in memory."""
    ids = (step.action_tokens, step.prompt_delta, step.tail_tokens, step.rollout_logprobs)
    texts = (getattr(step, name) for name in _TEXT_FIELDS)
    return (
        512
        + sum(array.nbytes for array in ids if array is not None)
        + sum(len(text) for text in texts if text is not None)
    )


def _n_state_bytes(step: Step) -> int:
    """Return how many bytes a step's `state_before` takes, 0 where it has none."""
    text = step.text_delta
    if text is None:
        return 0
    return (step.text_keep or 0) + (len(text) if text.isascii() else len(text.encode("utf-8")))
