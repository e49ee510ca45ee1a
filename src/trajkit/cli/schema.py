"""`trajkit schema`: the columns on disk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from trajkit.cli.console import Printer
from trajkit.cli.options import Colour


def schema(
    table: Annotated[
        Literal["steps", "scores", "findings"], typer.Argument(help="Which table to describe.")
    ] = "steps",
    output_format: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
    color: Colour = "auto",
) -> None:
    """Print the columns of a Parquet table: name, type, whether null is allowed, meaning."""
    from trajkit.store.schema import TABLES

    name, columns = TABLES[table]
    with Printer(colour=color) as printer:
        if output_format == "json":
            fields = [
                {"name": c.name, "type": str(c.type), "null": c.nullable, "meaning": c.meaning}
                for c in columns
            ]
            printer.json({"schema": "trajkit.schema/1", "table": name, "columns": fields})
            return
        printer.line(f"{name}: {len(columns)} columns")
        rows = [["column", "type", "null", "meaning"]]
        for column in columns:
            kind = _short(column.type)
            rows.append([column.name, kind, "yes" if column.nullable else "no", column.meaning])
        printer.table(rows, head=True)


def _short(kind: Any) -> str:
    """Return a type in one word or two; the JSON form has it in full."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return "dictionary"
    if pa.types.is_list(kind):
        return f"list<{_short(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(field.name for field in kind)}>"
    return str(kind)
