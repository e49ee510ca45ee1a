"""Differences for the tests of causes: two texts or id lists, read with a real tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tests.template_builders import real
from trajkit.drift.causes import cause_of
from trajkit.drift.difference import Difference, differences
from trajkit.drift.findings import DriftKind, Route
from trajkit.records import Ids, ids_array
from trajkit.tokenizer import Tokenizer, load_tokenizer


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """Return one of the real tokenizers."""
    return load_tokenizer(real(name))


def ids_of(name: str, *parts: str | Sequence[int]) -> Ids:
    """Return the ids of some texts, each encoded by itself; ids stand for themselves."""
    found: list[int] = []
    for part in parts:
        if isinstance(part, str):
            found += next(tokenizer_of(name).encode_batch([part])).tolist()
        else:
            found += part
    return ids_array(found)


def compared(
    name: str,
    recorded: Ids,
    other: Ids,
    *,
    action: tuple[tuple[int, int], ...] = (),
    route: Route = Route.PAIR,
    **facts: Any,
) -> list[Difference]:
    """Return the differences of two lists."""
    return list(
        differences(recorded, other, tokenizer_of(name), route=route, action=action, facts=facts)
    )


def told(name: str, recorded: Ids, other: Ids, **more: Any) -> list[str]:
    """Return the causes of the differences of two lists."""
    return [cause_of(difference)[0] for difference in compared(name, recorded, other, **more)]


def first(name: str, recorded: Ids, other: Ids, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return the first difference's cause and evidence."""
    return cause_of(compared(name, recorded, other, **more)[0])


def as_chain(difference: Difference) -> Difference:
    """Return a difference as route chain meets it."""
    return replace(difference, route=Route.CHAIN, kind=DriftKind.PREFIX)
