"""Counts that add: what a price is made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from functools import cache
from typing import Any, Self


class Counts:
    """A frozen dataclass of integers, `Counter`s and tuples; the sum of two adds field by field.

    A `Counter` adds key by key, a tuple is continued. The empty value changes nothing.
    """

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        names = self._names()
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON output has them, the keys of a `Counter` ascending."""
        return {name: _plain(getattr(self, name)) for name in self._names()}

    @classmethod
    @cache
    def _names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))  # type: ignore[arg-type]  # every child is one


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):
        return {str(key): value[key] for key in sorted(value)}
    return list(value) if isinstance(value, tuple) else value
