"""Sources in, one dataset out: every record is written, or set aside with a reason, or stops it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from trajkit.errors import InputError, Place, TrajkitError, UsageProblem
from trajkit.formats import detect, flat, format_named, formats_with, rows
from trajkit.formats.alignment import Align, align_named
from trajkit.formats.raw import Format, RawTrajectory
from trajkit.ingestion.flat import encode_flat
from trajkit.ingestion.made import MadeIds
from trajkit.ingestion.rendered import MessageRenderer
from trajkit.ingestion.report import Detected, IngestReport
from trajkit.ingestion.steps import Source, to_trajectory
from trajkit.ingestion.tables import formats_of_tables, is_table, read_to_end, table_records
from trajkit.markup import Markup, load_markup
from trajkit.records import Trajectory
from trajkit.safe.files import (
    expand_sources,
    open_source,
    remove_quietly,
    same_file,
)
from trajkit.safe.json import BadRecord, Record, dumps, read_records
from trajkit.safe.plain import is_text, read_text
from trajkit.safe.unpack import SourceStream
from trajkit.store.write import DatasetWriter, InputFile, Provenance, StatePolicy, is_one_file
from trajkit.template import ChatTemplate, Setting, load_template
from trajkit.tokenizer import Tokenizer, load_tokenizer

_NOT_MADE = (
    "--retokenize needs flat text or messages for each step: this has no ids, and keeps none"
)


class OnError(StrEnum):
    """What a bad record does."""

    STOP = "stop"
    QUARANTINE = "quarantine"


def ingest(  # noqa: PLR0913 - one argument an option of the command
    sources: Sequence[str],
    out: Path | str | None,
    *,
    from_format: str = "auto",
    tokenizer: Tokenizer | Path | str | None = None,
    retokenize: bool = False,
    chat_template: ChatTemplate | Path | str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    now: datetime | None = None,
    markup: Markup | str | None = None,
    align: Align | str = Align.AUTO,
    state: StatePolicy | str = StatePolicy.AUTO,
    on_error: OnError | str = OnError.STOP,
    limit: int | None = None,
    overwrite: bool = False,
) -> IngestReport:
    """Return the report of turning logs into one dataset of step records.

    Args:
        sources: files, folders, globs, `-` for standard input.
        out: a `.parquet` file or a folder; `None` reads and reports, and writes nothing.
        from_format: a name in `FORMATS`, or `auto`.
        tokenizer: checks ids against its vocabulary and fills the text columns.
        retokenize: whether ids are made from flat text and messages, and said to be.
        chat_template: what messages are rendered with; `None` takes the one in the tokenizer's
            folder.
        template_kwargs: further variables for it (`enable_thinking`, ...).
        now: what it takes for the present; `None` is the clock.
        markup: the tag profile that flat text is read with, or its name or TOML file; `None`
            takes the one that a pair of tags confirms.
        align: how the masks of pre-tokenised rows stand to their ids; `auto` decides from their
            length.
        state: when the derived column `state_before` is written.
        on_error: stop at a bad record, or set it aside.
        limit: how many records to read at most.
        overwrite: whether `out` may exist.

    Raises:
        TrajkitError: nothing is published then.
    """
    if retokenize and tokenizer is None:
        raise UsageProblem(
            "U103", "--retokenize needs a tokenizer", hint="give -t with the tokenizer's folder"
        )
    if not retokenize and (chat_template is not None or template_kwargs):
        raise UsageProblem(
            "U103", "a chat template makes ids, which nobody asked for", hint="add --retokenize"
        )
    profile = load_markup(markup) if isinstance(markup, str) else markup
    align = align_named(align)
    if align is not Align.AUTO and from_format not in ("auto", rows.FORMAT.name):
        raise UsageProblem("U103", f"--align is for the masks of {rows.FORMAT.name}")
    formats = formats_with(profile, align)
    job = _Job(
        files=expand_sources(sources),
        out=None if out is None else Path(out),
        form=None if from_format == "auto" else format_named(from_format, formats),
        formats=formats,
        markup=profile,
        align=align,
        renderer=_renderer(chat_template, tokenizer, template_kwargs, now) if retokenize else None,
        tokenizer=load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer,
        state=StatePolicy(state),
        on_error=OnError(on_error),
        limit=limit,
        overwrite=overwrite,
    )
    return job.run()


@dataclass(slots=True, kw_only=True)
class _Job:
    files: list[Path]
    out: Path | None
    form: Format | None
    formats: tuple[Format, ...]
    markup: Markup | None
    align: Align
    renderer: MessageRenderer | None
    tokenizer: Tokenizer | None
    state: StatePolicy
    on_error: OnError
    limit: int | None
    overwrite: bool
    report: IngestReport = field(default_factory=IngestReport)
    ids: set[str] = field(default_factory=set)
    hashes: Counter[str] = field(default_factory=Counter)
    seen_formats: set[tuple[str, ...]] = field(default_factory=set)
    inputs: list[InputFile] = field(default_factory=list)
    quarantine: BinaryIO | None = None

    def run(self) -> IngestReport:
        self._check_output()
        if self.out is None:
            self._write(None)
            return self.report
        with DatasetWriter(self.out, overwrite=self.overwrite, state=self.state) as writer:
            self._write(writer)
            writer.provenance = self._provenance()
        self.report.n_states_left_out = writer.n_states_left_out
        self.report.out = str(self.out)
        if (
            self.overwrite and self.quarantine is None
        ):  # what the old dataset set aside goes with it
            remove_quietly(quarantine_path(self.out))
        return self.report

    def _write(self, writer: DatasetWriter | None) -> None:
        for file, name in zip(self.files, _relative(self.files), strict=True):
            if self._is_full:
                break
            for trajectory in self._read(file, name, writer):
                self.report.count(trajectory)
                if writer is not None:
                    writer.write(trajectory)
        if self.report.n_read == 0:
            raise self._nothing_read()

    @property
    def _is_full(self) -> bool:
        return self.limit is not None and self.report.n_read >= self.limit

    def _check_output(self) -> None:
        for file in self.files:
            if self.out is not None and same_file(file, self.out):
                raise UsageProblem(
                    "U102", f"{self.out} is the input too", hint="give another path with -o"
                )

    def _nothing_read(self) -> InputError:
        return InputError(
            "I109",
            f"expected at least one record, found none in {len(self.files)} "
            + ("file" if len(self.files) == 1 else "files"),
            place=Place(file=str(self.files[0])),
            hint="check that the program that writes the log has finished",
        )

    def _read(self, file: Path, name: str, writer: DatasetWriter | None) -> Iterator[Trajectory]:
        n_bytes = 0
        formats, as_table = self.formats, is_table(file)
        if as_table:
            formats = formats_of_tables(self.form, formats)
        with open_source(file) as stream:
            for record in table_records(file, name) if as_table else self._records(stream, name):
                if self._is_full and as_table:
                    break
                if self._is_full:
                    self.inputs.append(InputFile(file=name, sha256=None, n_bytes=n_bytes))
                    return
                self.report.n_read += 1
                n_bytes = record.byte_offset + len(record.raw)
                try:
                    trajectory = self._trajectory(record, name, formats)
                except InputError as problem:
                    if self.on_error is OnError.STOP:
                        raise
                    self._set_aside(record, problem, writer)
                else:
                    yield trajectory
            if as_table:
                read_to_end(stream)
            self.inputs.append(
                InputFile(file=name, sha256=stream.sha256_hex(), n_bytes=stream.n_bytes)
            )

    def _records(self, stream: SourceStream, name: str) -> Iterator[Record | BadRecord]:
        if not is_text(name, stream.peek(4096)):
            yield from read_records(stream, name)
            return
        for record in read_text(stream, name):
            if isinstance(record, BadRecord):
                yield record
            else:
                yield from flat.conversations(record, self.markup)

    def _trajectory(
        self, record: Record | BadRecord, name: str, formats: tuple[Format, ...]
    ) -> Trajectory:
        if isinstance(record, BadRecord):
            raise record.error
        form = self._format_of(record, name, formats)
        raw = form.read(record)
        trajectory_id = self._id_for(raw.trajectory_id, record)
        source = Source(format=form.name, file=name, record=record.index, place=record.place)
        made = self._ids_made(raw, form, record)
        trajectory = to_trajectory(raw, trajectory_id, source, self.tokenizer, made)
        self.ids.add(trajectory_id)
        self.report.by_format[form.name] += 1
        self.report.by_warning.update(raw.warnings)
        return trajectory

    def _ids_made(self, raw: RawTrajectory, form: Format, record: Record) -> MadeIds | None:
        """Return ids made from a record's flat text or messages, where that was asked for."""
        if self.renderer is None or self.tokenizer is None or not raw.steps:
            return None
        if all(call.action_ids is not None for call in raw.steps):
            return None
        if raw.flat is not None:
            made = encode_flat(raw.flat, self.tokenizer)
        elif any(call.action_ids is not None for call in raw.steps):
            made = None
        else:
            made = self.renderer.ids_of(raw, form, self.tokenizer, record.place)
        if made is None:
            self.report.by_warning[_NOT_MADE] += 1
            return None
        self.report.count_made(made)
        return made

    def _format_of(self, record: Record, name: str, formats: tuple[Format, ...]) -> Format:
        form, reason = self._recognised(record, formats)
        profile = reason.partition(":")[0] if form.name == flat.FORMAT.name else ""
        key = name, form.name, profile
        if key not in self.seen_formats:
            self.seen_formats.add(key)
            self.report.detected.append(Detected(file=name, format=form.name, reason=reason))
        return form

    def _recognised(self, record: Record, formats: tuple[Format, ...]) -> tuple[Format, str]:
        """Return the format of a record, and why it is taken for that."""
        if self.form is None:
            return detect(record, formats)
        why = self.form.sniff(record.value) if self.form.name == flat.FORMAT.name else None
        return self.form, "asked for" if why is None else f"asked for, {why}"

    def _id_for(self, given: str | None, record: Record) -> str:
        """Return the source's own id, or a hash of the record, numbered where records repeat."""
        if given is None:
            digest = hashlib.sha256(record.raw).hexdigest()[:16]
            self.hashes[digest] += 1
            times = self.hashes[digest]
            given = digest if times == 1 else f"{digest}-{times}"
        if not given:
            raise InputError(
                "I201",
                "expected a trajectory id, found an empty string",
                place=record.place,
                hint="leave the key out where there is no id: one is made from the record",
            )
        if given in self.ids:
            raise InputError(
                "I401",
                f"the trajectory id {given[:60]} occurs twice",
                place=record.place,
                hint="ids must be unique over all inputs: two records are never merged into one",
            )
        return given

    def _set_aside(
        self, record: Record | BadRecord, problem: TrajkitError, writer: DatasetWriter | None
    ) -> None:
        self.report.n_quarantined += 1
        if self.out is None or writer is None:
            return
        if self.quarantine is None:
            path = quarantine_path(self.out)
            self.quarantine = writer.open_beside(path)
            self.report.quarantine = str(path)
        line = {
            "code": problem.code,
            "message": problem.message,
            "place": str(problem.place or ""),
            "file": record.file,
            "record": record.index,
            "byte_offset": record.byte_offset,
            "n_bytes": len(record.raw),
            "sha256": hashlib.sha256(record.raw).hexdigest(),
            "raw_b64": base64.b64encode(record.raw).decode("ascii"),
        }
        self.quarantine.write(dumps(line).encode() + b"\n")

    def _provenance(self) -> Provenance:
        tokenizer = self.tokenizer
        template = None if self.renderer is None else self.renderer.used
        return Provenance(
            inputs=tuple(self.inputs),
            tokenizer_name=None if tokenizer is None else tokenizer.name,
            tokenizer_fingerprint=None if tokenizer is None else tokenizer.fingerprint,
            chat_template_sha256=None if template is None else template.sha256,
            options={
                "from": "auto" if self.form is None else self.form.name,
                "state": self.state.value,
                "markup": None if self.markup is None else self.markup.name,
                "align": self.align.value,
                "retokenize": self.renderer is not None,
                **({} if self.renderer is None else self.renderer.options()),
                "on_error": self.on_error.value,
                "limit": self.limit,
            },
        )


def _renderer(
    template: ChatTemplate | Path | str | None,
    tokenizer: Tokenizer | Path | str | None,
    kwargs: Mapping[str, Any] | None,
    now: datetime | None,
) -> MessageRenderer:
    """Return what renders messages: with the template given, or the one beside the tokenizer."""
    folder = None
    if isinstance(tokenizer, str | Path):
        folder = Path(tokenizer) if Path(tokenizer).is_dir() else Path(tokenizer).parent
    if isinstance(template, str | Path):
        template = load_template(template, folder)
    elif template is None and folder is not None:
        try:
            template = load_template(folder)
        except InputError as problem:
            if problem.code != "T104":
                raise
    setting = Setting(kwargs=kwargs or {}, now=now or datetime.now().astimezone())
    return MessageRenderer(template, setting)


def quarantine_path(out: Path) -> Path:
    """Return where the records set aside for an output stand: no later run takes it for a log."""
    if is_one_file(out):
        return out.with_name(f"_{out.stem}.quarantine.jsonl")
    return out / "_quarantine.jsonl"


def _relative(files: Sequence[Path]) -> list[str]:
    """Return each file's path from the folder they have in common."""
    real = [file for file in files if str(file) != "-"]
    root = os.path.commonpath([file.resolve().parent for file in real]) if real else "."
    names = [
        "-" if str(file) == "-" else Path(os.path.relpath(file.resolve(), root)).as_posix()
        for file in files
    ]
    return [os.fsencode(name).decode("utf-8", "backslashreplace") for name in names]
