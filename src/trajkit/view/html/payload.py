"""What a page holds: the rows of each view as columns, and a dictionary of the cells they share.

    shared        {"ids", "bytes", "cells": {"text", "ids"}, "controls", "kinds", "lanes",
                  "index"}
    trajectory    {"facts", "totals", "steps", "rows", "cells", "lanes", "marks"}

A cell of the dictionary is a text with the ids it shows; `cells` of a trajectory are numbers of
cells, frequent ones small, so that they deflate well. Every text in it is safe to show; an id that
is not to be shown is null.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from trajkit.records import Floats, Ids, SegmentKind, ids_array
from trajkit.tokenizer import Tokenizer
from trajkit.view.cells import Cell, cells_of, with_ids
from trajkit.view.glyphs import BLOCK, CONTROL_NAMES, HIDDEN, show_text
from trajkit.view.lanes import LANES, json_number, rounded
from trajkit.view.model import Line, Row, Rule, View
from trajkit.view.terminal import provenance, totals

_KINDS = {kind: number for number, kind in enumerate(SegmentKind)}
_RULE = -1

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Payload:
    """What a page is made of.

    Attributes:
        shared: what all trajectories need, and the index of them.
        trajectories: one object each, opened when it is looked at.
    """

    shared: dict[str, Any]
    trajectories: list[dict[str, Any]]


def payload_of(shown: Iterable[tuple[View, Iterable[Row]]], tokenizer: Tokenizer | None) -> Payload:
    """Return what a page of several views holds.

    Args:
        shown: each view with those of its rows that are to be seen, the headings of steps too.
        tokenizer: what the rows were made with.
    """
    numbers: dict[Key, int] = {}
    counts: list[int] = []
    index: list[dict[str, Any]] = []
    trajectories: list[dict[str, Any]] = []
    for view, rows in shown:
        columns = _Columns()
        columns.fill(view, rows, tokenizer, numbers)
        counts += [0] * (len(numbers) - len(counts))
        for number in columns.cells:
            counts[number] += 1
        index.append(_entry(view, {entry["name"] for entry in index}))
        trajectories.append(
            _trajectory(view, columns, None if tokenizer is None else tokenizer.name)
        )
    order = sorted(range(len(counts)), key=lambda number: (-counts[number], number))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    for trajectory in trajectories:
        trajectory["cells"] = rank[np.frombuffer(trajectory["cells"], dtype=np.uint32)].tolist()
    keys = list(numbers)
    shared = _dictionary([keys[number] for number in order], tokenizer)
    return Payload(shared=shared | {"index": index}, trajectories=trajectories)


def _dictionary(keys: Sequence[Key], tokenizer: Tokenizer | None) -> dict[str, Any]:
    ids = sorted({token_id for _, spelt in keys for token_id in spelt} - {HIDDEN})
    pieces = None if tokenizer is None else tokenizer.pieces(ids_array(ids))
    return {
        "ids": ids,
        "bytes": None if pieces is None else [piece.hex() for piece in pieces],
        "cells": {
            "text": [text for text, _ in keys],
            "ids": [[None if i == HIDDEN else i for i in spelt] for _, spelt in keys],
        },
        "controls": CONTROL_NAMES,
        "kinds": [kind.value for kind in SegmentKind],
        "lanes": [
            {
                "name": lane.name,
                "title": lane.title,
                "full": lane.full,
                "signed": lane.is_signed,
            }
            for lane in LANES
        ],
    }


@dataclass(slots=True)
class _Columns:
    """The rows of one view, one list a column; a rule has facts and no cells."""

    kinds: list[int] = field(default_factory=list)
    starts: list[int | None] = field(default_factory=list)
    n_cells: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    rules: list[list[str]] = field(default_factory=list)
    step_rows: list[int] = field(default_factory=list)
    step_indices: list[int] = field(default_factory=list)
    cells: array[int] = field(default_factory=lambda: array("I"))

    def fill(
        self,
        view: View,
        rows: Iterable[Row],
        tokenizer: Tokenizer | None,
        numbers: dict[Key, int],
    ) -> None:
        """Append all rows; cells not seen before get the next number in `numbers`."""
        for row, ids in with_ids(view, rows):
            match row:
                case Rule():
                    self._add_rule(row)
                case Line():
                    self._add_line(row, cells_of(row, ids, tokenizer), ids, numbers)

    def _add_rule(self, rule: Rule) -> None:
        if rule.step is not None:
            self.step_rows.append(len(self.kinds))
            self.step_indices.append(rule.step.step_index)
        self.rules.append(list(rule.facts))
        self._add(_RULE, None, 0)

    def _add_line(
        self, line: Line, cells: Sequence[Cell], ids: Ids, numbers: dict[Key, int]
    ) -> None:
        for cell in cells:
            key = cell.text, tuple(ids[cell.start : cell.end].tolist())
            self.cells.append(numbers.setdefault(key, len(numbers)))
        self._add(2 * _KINDS[line.kind] + line.is_action, line.token_start, len(cells))
        if line.token_start is None:
            self.labels.append(line.label)

    def _add(self, kind: int, start: int | None, n_cells: int) -> None:
        self.kinds.append(kind)
        self.starts.append(start)
        self.n_cells.append(n_cells)


def _entry(view: View, taken: set[str]) -> dict[str, Any]:
    """Return a trajectory's line in the index, under a name that links can tell from others."""
    trajectory = view.trajectory
    name = show_text(trajectory.trajectory_id)
    if name in taken:  # what told them apart is not to be shown
        name = next(each for n in count(2) if (each := f"{name} ({n})") not in taken)
    return {
        "name": name,
        "group": None if trajectory.group_id is None else show_text(trajectory.group_id),
        "reward": json_number(trajectory.reward),
        "n_steps": len(trajectory.steps),
        "n_tokens": view.n_tokens if view.has_ids else None,
        "n_action_tokens": view.n_action_tokens if view.has_ids else None,
        "n_findings": sum(map(len, view.marks.values())),
    }


def _trajectory(view: View, columns: _Columns, tokenizer_name: str | None) -> dict[str, Any]:
    places = {
        place.step.step_index: place for sequence in view.sequences for place in sequence.steps
    }
    steps = []
    for row, index in zip(columns.step_rows, columns.step_indices, strict=True):
        place = places.get(index)
        steps.append([row, index, *((place.action_start, place.action_end) if place else ())])
    lanes = {}
    for lane in LANES:
        values = [
            _numbers(lane.of(places[index].step, view.scores.get(index)))
            if index in places
            else None
            for index in columns.step_indices
        ]
        if any(value is not None for value in values):
            lanes[lane.name] = values
    facts = provenance(view, tokenizer_name)
    n_marks = sum(map(len, view.marks.values()))
    if n_marks:
        facts.append(f"drift: {n_marks:,} finding{'' if n_marks == 1 else 's'}, wavy underline")
    if not view.redaction.is_nothing:
        facts.append(f"{BLOCK} not shown")
    return {
        "facts": facts,
        "totals": totals(view),
        "steps": steps,
        "rows": {
            "kind": columns.kinds,
            "start": columns.starts,
            "n": columns.n_cells,
            "labels": columns.labels,
            "rules": columns.rules,
        },
        "cells": columns.cells,
        "lanes": lanes,
        "marks": [
            [
                [mark.start, mark.end, mark.is_added + mark.is_behind, mark.told, mark.other_ids]
                for mark in view.marks.get(index, ())
            ]
            for index in columns.step_indices
        ],
    }


def _numbers(values: Floats | None) -> list[float | str | None] | None:
    told = rounded(values)
    return None if told is None else [json_number(value) for value in told]
