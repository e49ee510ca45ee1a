"""What a dataset says about itself: sealed JSON in each part's footer and a folder's manifest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajkit.errors import FileError, InputError, Place

MANIFEST = "_manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of a folder, as its manifest names it."""

    path: Path
    row_groups: tuple[str, ...] | None
    """The digest of each row group; `None` where there is no manifest to tell."""


def seal(document: dict[str, Any], *, indent: int | None = None) -> bytes:
    """Return a document as JSON with a digest of itself: `unseal` tells when it was changed."""
    sealed = document | {"digest": _digest(document)}
    return json.dumps(sealed, ensure_ascii=False, sort_keys=True, indent=indent).encode()


def unseal(text: bytes) -> dict[str, Any]:
    """Return the document that `seal` wrote.

    Raises:
        ValueError: it is no JSON object, or not the one that was sealed.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    if document.pop("digest", None) != _digest(document):
        raise ValueError("changed since it was written")
    return document


def read_manifest(folder: Path) -> tuple[Part, ...]:
    """Return the parts of a dataset folder in order.

    Raises:
        InputError: S104 there is no manifest, S103 it is not as it was written.
        FileError: F101 it cannot be read.
    """
    path = folder / MANIFEST
    place = Place(file=str(path))
    hint = "run trajkit ingest again with the same -o and --force"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            "S104",
            f"the folder has no {MANIFEST}: it is not a dataset, or its writer never finished",
            place=Place(file=str(folder)),
            hint="run trajkit ingest again with the same -o",
        ) from None
    except OSError as problem:
        raise FileError("F101", f"cannot be read: {problem.strerror}", place=place) from problem
    try:
        parts = [(str(part["file"]), tuple(part["row_groups"])) for part in unseal(text)["parts"]]
    except (ValueError, KeyError, TypeError) as problem:
        message = f"the manifest cannot be understood: {problem}"
        raise InputError("S103", message, place=place, hint=hint) from problem
    if not parts or any(Path(name).name != name for name, _ in parts):
        message = "the manifest names no parts of this folder"
        raise InputError("S103", message, place=place, hint=hint)
    for name, _ in parts:
        if not (folder / name).is_file():
            message = f"the folder has no {name}, which its manifest names"
            raise InputError("S104", message, place=place, hint=hint)
    return tuple(Part(path=folder / name, row_groups=digests) for name, digests in parts)


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
