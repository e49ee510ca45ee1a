"""The formats trajkit reads: one file each, one line each in `FORMATS`."""

from __future__ import annotations

from trajkit.errors import InputError, UsageProblem
from trajkit.formats import (
    flat,
    messages,
    mini_swe_agent,
    per_call,
    responses,
    rows,
    sharegpt,
    swe_agent,
    tau_bench,
)
from trajkit.formats.alignment import Align
from trajkit.formats.fields import kind_of
from trajkit.formats.raw import Format, RawTrajectory
from trajkit.markup import Markup
from trajkit.safe.json import Record

FORMATS: tuple[Format, ...] = (
    per_call.FORMAT,
    responses.FORMAT,
    rows.FORMAT,
    tau_bench.FORMAT,
    swe_agent.FORMAT,
    sharegpt.FORMAT,
    mini_swe_agent.FORMAT,
    messages.FORMAT,
    flat.FORMAT,
)
"""In the order in which they are tried: what carries ids comes first."""


_WRAP = 'a conversation is one record: {"messages": [...]}; '


def formats_with(markup: Markup | None, align: Align = Align.AUTO) -> tuple[Format, ...]:
    """Return the formats: flat text with the given tag profile, rows with masks that stand so."""
    changed = {rows.FORMAT.name: rows.with_align(align)}
    if markup is not None:
        changed[flat.FORMAT.name] = flat.with_markup(markup)
    return tuple(changed.get(entry.name, entry) for entry in FORMATS)


def format_named(name: str, formats: tuple[Format, ...] = FORMATS) -> Format:
    """Return the format of that name.

    Raises:
        UsageProblem: U103 with the names there are.
    """
    for entry in formats:
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in FORMATS)
    raise UsageProblem("U103", f"there is no format {name}", hint=f"--from takes auto or: {names}")


def detect(record: Record, formats: tuple[Format, ...] = FORMATS) -> tuple[Format, str]:
    """Return the first format that recognises a record, and the reason it gave.

    Raises:
        InputError: I402 when none does.
    """
    for entry in formats:
        reason = entry.sniff(record.value)
        if reason is not None:
            return entry, reason
    raise InputError(
        "I402",
        f"no format recognises this record: {_told(record.value)}",
        place=record.place,
        hint=_WRAP * _is_message(record.value)
        + "trajkit reads "
        + "; ".join(f"{f.name} ({f.shape})" for f in formats),
    )


def _is_message(value: object) -> bool:
    """Return whether a record is one chat message: a list of them is no record by itself."""
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _told(value: object) -> str:
    if not isinstance(value, dict):
        return kind_of(value)
    keys = [str(key)[:20] for key in list(value)[:6]]
    return "an object " + (f"with the keys {', '.join(keys)}" if keys else "without keys")


__all__ = ["FORMATS", "Format", "RawTrajectory", "detect", "format_named", "formats_with"]
