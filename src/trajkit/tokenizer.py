"""The tokenizer door: ids to bytes, text to ids, through `tokenizer.json` and nothing else.

The file is loaded with the `tokenizers` library itself. Loaders that rebuild the pipeline from a
class name can give other ids than the file; an audit cannot afford that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from trajkit.errors import FileError, InputError, Place
from trajkit.records import Ids, ids_array

_METASPACE = "▁"
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class _Alphabet(StrEnum):
    """How a vocabulary spells bytes."""

    BYTE_LEVEL = "byte-level"
    METASPACE = "metaspace"


class Tokenizer:
    """A tokenizer with the bytes behind each id.

    Attributes:
        name: the folder's name, or the file's when it lies in no named folder.
        n_vocab: ids the vocabulary knows, added tokens included.
        control: what each control token spells, by id. These are the added tokens, which cut text
            before anything is merged; runs of white space that were added do not count.
    """

    def __init__(self, backend: tokenizers.Tokenizer, name: str) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._alphabet, self._byte_fallback = _spelling(backend)
        self._bytes: dict[int, bytes] = {}
        self._added: dict[int, str] = {
            token_id: token.content
            for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self.name = name
        self.n_vocab: int = backend.get_vocab_size(with_added_tokens=True)
        self.control: dict[int, str] = {
            token_id: content
            for token_id, content in self._added.items()
            if content.replace(_METASPACE, " ").strip()
        }

    @cached_property
    def fingerprint(self) -> str:
        """Return a sha256 over the effective pipeline; equal for files that behave the same."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    @cached_property
    def control_ids(self) -> Ids:
        """Return the ids of the control tokens, ascending."""
        return ids_array(sorted(self.control))

    def knows(self, token_id: int) -> bool:
        """Return whether the id is in the vocabulary."""
        return token_id in self._bytes or self._token(token_id) is not None

    def first_unknown(self, ids: Ids) -> int | None:
        """Return the position of the first id outside the vocabulary, `None` when there is none."""
        unknown = [token_id for token_id in np.unique(ids).tolist() if not self.knows(token_id)]
        return int(np.isin(ids, unknown).argmax()) if unknown else None

    def require_known(self, ids: Ids, what: str, place: Place | None = None) -> None:
        """Raise I304 at the first id outside the vocabulary; `what` says whose ids they are."""
        spot = self.first_unknown(ids)
        if spot is not None:
            raise self._unknown(f"{what} id {ids[spot]} (position {spot})", place)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes an id stands for (its surface: a leading space is kept).

        Raises:
            InputError: I304 when the id is outside the vocabulary.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def pieces(self, ids: Ids) -> list[bytes]:
        """Return the bytes of each id."""
        return [self.token_bytes(token_id) for token_id in ids.tolist()]

    def text(self, ids: Ids) -> str:
        """Return what ids spell: U+FFFD for bytes that are no UTF-8, control tokens kept."""
        return b"".join(self.pieces(ids)).decode("utf-8", errors="replace")

    def decode_batch(self, batches: Iterable[Ids]) -> list[str]:
        """Return the library's own decoding of each list of ids, control tokens kept."""
        lists = [ids.tolist() for ids in batches]
        return list(self._backend.decode_batch(lists, skip_special_tokens=False))

    def encode_batch(self, texts: Sequence[str]) -> Iterator[Ids]:
        """Yield the ids of each text, encoded as a whole, nothing added in front or behind."""
        for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False):
            yield ids_array(encoding.ids)

    def _unknown(self, what: str, place: Place | None) -> InputError:
        return InputError(
            "I304",
            f"{what} is outside the vocabulary of {self.name} ({self.n_vocab:,} ids)",
            place=place,
            hint="give the tokenizer of the model that sampled the data with -t",
        )

    def _token(self, token_id: int) -> str | None:
        return self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    def _spell(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None:
            raise self._unknown(f"id {token_id}", None)
        if self._alphabet is _Alphabet.BYTE_LEVEL:
            return token.encode("utf-8") if token_id in self._added else _byte_level(token)
        byte = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        if byte is not None:
            return bytes.fromhex(byte[1])
        return token.replace(_METASPACE, " ").encode("utf-8")


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Return the tokenizer in a folder or a `tokenizer.json`.

    Raises:
        FileError: F101 when there is no such file, or it cannot be read.
        InputError: T101 when it is no tokenizer, T103 when its ids do not spell bytes.
    """
    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    place = Place(file=str(file))
    if not file.is_file():
        raise FileError(
            "F101",
            "there is no tokenizer here",
            place=place,
            hint="-t takes a folder that holds tokenizer.json, or the file itself",
        )
    try:
        file.open("rb").close()
        backend = tokenizers.Tokenizer.from_file(str(file))
    except OSError as problem:
        raise FileError("F101", f"cannot be read: {problem.strerror}", place=place) from problem
    except BaseException as problem:
        # the library raises bare Exception, and for some damage a Rust panic, which is not even one
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        raise InputError("T101", f"the tokenizer cannot be read: {problem}", place=place) from None
    folder = file.resolve().parent.name
    return Tokenizer(backend, folder if file.name == "tokenizer.json" and folder else file.stem)


def require_same_tokenizer(
    tokenizer: Tokenizer, *, fingerprint: str | None, name: str | None, file: str
) -> None:
    """Raise T102 when data were ingested with a tokenizer that behaves otherwise.

    Args:
        tokenizer: the one given now.
        fingerprint: of the one at ingest; `None` when there was none, which fits any.
        name: its name.
        file: where the data lie.
    """
    if fingerprint is not None and fingerprint != tokenizer.fingerprint:
        raise InputError(
            "T102",
            f"the data were ingested with {name} ({fingerprint[:12]}), not with {tokenizer.name} "
            f"({tokenizer.fingerprint[:12]})",
            place=Place(file=file),
            hint="give the same tokenizer with -t, or ingest the logs again with this one",
        )


def _spelling(backend: tokenizers.Tokenizer) -> tuple[_Alphabet, bool]:
    """Return how the vocabulary spells bytes, and whether `<0xNN>` stands for a single byte."""
    decoder = backend.decoder
    state: dict[str, Any] = {} if decoder is None else json.loads(decoder.__getstate__())
    parts = state.get("decoders", [state])
    kinds = {str(part["type"]) for part in parts if "type" in part}
    if "ByteLevel" in kinds:
        return _Alphabet.BYTE_LEVEL, False
    spaced = "Metaspace" in kinds or any(
        part.get("type") == "Replace" and part.get("pattern", {}).get("String") == _METASPACE
        for part in parts
    )
    if not spaced:
        raise InputError(
            "T103",
            f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) does not say which "
            "bytes an id stands for; byte-level and metaspace vocabularies do",
        )
    return _Alphabet.METASPACE, "ByteFallback" in kinds


def _byte_alphabet() -> dict[str, int]:
    """Return the byte behind each character of the byte-level alphabet (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:  # a token that was put into the vocabulary as plain text
        return token.encode("utf-8")
