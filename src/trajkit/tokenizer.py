"""The tokenizer door: ids to bytes, text to ids, through `tokenizer.json` and nothing else.

The file is loaded with the `tokenizers` library itself. Loaders that rebuild the pipeline from a
class name can give other ids than the file; an audit cannot afford that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import normalizers, pre_tokenizers

from trajkit.errors import FileError, InputError, Place
from trajkit.records import Ids, ids_array
from trajkit.spelling import (
    METASPACE,
    Alphabet,
    Spelling,
    SpellingTable,
    alphabet_of,
    byte_level,
    state_of,
    stripped_in_decoding,
)

_CONFIG_FILE = "tokenizer_config.json"
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class Rebuilt(StrEnum):
    """What loaders that rebuild the pipeline from a class name are known to change."""

    NO_PREFIX = "no-prefix"
    """the space in front of a text is gone"""
    NO_IGNORE_MERGES = "no-ignore-merges"
    """whole words of the vocabulary are merged anyway"""
    GPT2_WORDS = "gpt2-words"
    """text is cut into words by GPT-2's rule"""


class Tokenizer:
    """A tokenizer with the bytes behind each id.

    Attributes:
        name: the folder's name, or the file's when it lies in no named folder.
        n_vocab: ids the vocabulary knows, added tokens included.
        control: what each control token spells, by id. These are the added tokens, which cut text
            before anything is merged; runs of white space that were added do not count.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, name: str, folder: Path | None = None
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._alphabet, self._byte_fallback = alphabet_of(backend.decoder)
        self._bytes: dict[int, bytes] = {}
        self._table = SpellingTable(self.token_bytes)
        self._reachable: dict[int, bool | None] = {}
        self._rebuilt: dict[Rebuilt, Tokenizer | None] = {}
        self._added: dict[int, str] = {
            token_id: token.content
            for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self._strips = stripped_in_decoding(backend.decoder)
        if self._alphabet is Alphabet.BYTE_LEVEL and any(
            byte_level(content) != content.encode() for content in self._added.values()
        ):
            self._strips = None  # the library reads letters of an added token as bytes
        self._folder = folder
        self.name = name
        self.n_vocab: int = backend.get_vocab_size(with_added_tokens=True)
        self.control: dict[int, str] = {
            token_id: content
            for token_id, content in self._added.items()
            if content.replace(METASPACE, " ").strip()
        }

    @cached_property
    def fingerprint(self) -> str:
        """Return a sha256 over the effective pipeline; equal for files that behave the same."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    @cached_property
    def normalizer_kinds(self) -> tuple[str, ...]:
        """Return the kinds of steps that change a text before it is cut, as the file names them."""
        state = state_of(self._backend.normalizer)
        steps = state.get("normalizers", [state])
        return tuple(str(step["type"]) for step in steps if "type" in step)

    @cached_property
    def control_ids(self) -> Ids:
        """Return the ids of the control tokens, ascending."""
        return ids_array(sorted(self.control))

    @cached_property
    def ids(self) -> Ids:
        """Return all ids of the vocabulary, added tokens included, ascending."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return ids_array(sorted(set(vocabulary.values())))

    @cached_property
    def special_ids(self) -> Ids:
        """Return the added ids that are flagged special: decoders may skip them; ascending."""
        added = self._backend.get_added_tokens_decoder().items()
        return ids_array(sorted(token_id for token_id, token in added if token.special))

    @cached_property
    def framing(self) -> tuple[Ids, Ids]:
        """Return the ids that encoding with `add_special_tokens` puts before and behind a text."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        framed = self._backend.encode("a", add_special_tokens=True).ids
        n_more = len(framed) - len(bare)
        at = next((i for i in range(n_more + 1) if framed[i : i + len(bare)] == bare), 0)
        return ids_array(framed[:at]), ids_array(framed[at + len(bare) :])

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Return what `tokenizer_config.json` beside the tokenizer says; empty when there is none.

        The ids do not depend on it: loaders of other libraries read it.

        Raises:
            FileError: F101 when it cannot be read.
            InputError: I102 when it is not JSON, I201 when it is no object.
        """
        file = None if self._folder is None else self._folder / _CONFIG_FILE
        if file is None or not file.is_file():
            return {}
        place = Place(file=str(file))
        try:
            value = json.loads(file.read_bytes())
        except OSError as problem:
            raise FileError("F101", f"cannot be read: {problem.strerror}", place=place) from problem
        except (ValueError, RecursionError):
            raise InputError("I102", "expected JSON", place=place) from None
        if not isinstance(value, dict):
            raise InputError("I201", "expected an object", place=place)
        return value

    def knows(self, token_id: int) -> bool:
        """Return whether the id is in the vocabulary."""
        return token_id in self._bytes or self._token(token_id) is not None

    def first_unknown(self, ids: Ids) -> int | None:
        """Return the position of the first id outside the vocabulary, `None` when there is none."""
        unknown = [token_id for token_id in self._table.not_met(ids) if not self.knows(token_id)]
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

    def spell(self, ids: Ids) -> Spelling:
        """Return the bytes of each id in one buffer: what `pieces` says, for many ids.

        Raises:
            InputError: I304 when an id is outside the vocabulary.
        """
        return self._table.of(ids)

    def text(self, ids: Ids) -> str:
        """Return what ids spell: U+FFFD for bytes that are no UTF-8, control tokens kept."""
        return b"".join(self.pieces(ids)).decode("utf-8", errors="replace")

    def decode_batch(self, batches: Iterable[Ids]) -> list[str]:
        """Return the library's own decoding of each list of ids, control tokens kept.

        Where the decoder does little more than join bytes, and they are UTF-8, that is done here.

        Raises:
            InputError: I304 when an id is outside the vocabulary.
        """
        lists = list(batches)
        if not lists:
            return []
        self.require_known(np.concatenate(lists), "decoded")
        if self._strips is None:
            return self._decoded(lists)
        spelling = self.spell(np.concatenate(lists))
        bounds = np.cumsum([0, *map(len, lists)])
        places = np.concatenate(([0], spelling.ends))[bounds].tolist()
        texts: list[str | None] = [_utf8(spelling.data[a:b]) for a, b in pairwise(places)]
        odd = iter(
            self._decoded([ids for ids, text in zip(lists, texts, strict=True) if text is None])
        )
        strips = self._strips
        return [next(odd) if text is None else text.removeprefix(strips) for text in texts]

    def _decoded(self, lists: Iterable[Ids]) -> list[str]:
        given = [ids.tolist() for ids in lists]
        return list(self._backend.decode_batch(given, skip_special_tokens=False)) if given else []

    def encode_batch(self, texts: Sequence[str]) -> Iterator[Ids]:
        """Yield the ids of each text, encoded as a whole, nothing added in front or behind."""
        for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False):
            yield ids_array(encoding.ids)

    @cached_property
    def prepends_space(self) -> bool:
        """Return whether encoding puts a space in front of a text that has none."""
        return self.text(next(self.encode_batch(["a"]))) == " a"

    def normalizes_to(self, text: str) -> str:
        """Return what the tokenizer makes of a text before it cuts it, a space in front left out.

        Spaces are spaces, however the vocabulary spells them.
        """
        normalizer = self._backend.normalizer
        if normalizer is None:
            return text
        spaced: str = normalizer.normalize_str(text)
        if self._alphabet is Alphabet.METASPACE:
            spaced = spaced.replace(METASPACE, " ")
        return spaced.removeprefix(" ") if self.prepends_space else spaced

    def is_reachable(self, token_id: int) -> bool | None:
        """Return whether encoding an id's own text gives the id; `None` when it is no text.

        Raises:
            InputError: I304 when the id is outside the vocabulary.
        """
        if token_id not in self._reachable:
            try:
                text = self.token_bytes(token_id).decode("utf-8")
            except UnicodeDecodeError:
                self._reachable[token_id] = None
            else:
                front = "\n" if self.prepends_space else ""  # where no space is put
                before, whole = self.encode_batch([front, front + text])
                again = whole.tolist()[len(before) if front else 0 :]
                self._reachable[token_id] = again == [token_id]
        return self._reachable[token_id]

    def rebuilt(self, change: Rebuilt) -> Tokenizer | None:
        """Return the tokenizer that a loader makes of this one, `None` when it is no other.

        It is made once; the vocabulary is copied.
        """
        if change not in self._rebuilt:
            twin = tokenizers.Tokenizer.from_str(self._backend.to_str())
            is_other = _rebuild(twin, change)
            self._rebuilt[change] = Tokenizer(twin, self.name) if is_other else None
        return self._rebuilt[change]

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
        if self._alphabet is Alphabet.BYTE_LEVEL:
            return token.encode("utf-8") if token_id in self._added else byte_level(token)
        byte = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        if byte is not None:
            return bytes.fromhex(byte[1])
        return token.replace(METASPACE, " ").encode("utf-8")


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
    name = folder if file.name == "tokenizer.json" and folder else file.stem
    return Tokenizer(backend, name, file.parent)


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


def _utf8(data: bytes) -> str | None:
    """Return bytes as text, `None` when they are no UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _rebuild(backend: tokenizers.Tokenizer, change: Rebuilt) -> bool:
    """Change a pipeline as a loader would; return whether it is another one now."""
    match change:
        case Rebuilt.NO_PREFIX:
            state = state_of(backend.normalizer)
            parts = state.get("normalizers", [state])
            kept = [part for part in parts if part.get("type") != "Prepend"]
            strings = [part for part in kept if "String" in part.get("pattern", {})]
            if len(kept) == len(parts) or len(strings) < len(kept):
                return False
            spaced = [
                normalizers.Replace(part["pattern"]["String"], part["content"]) for part in kept
            ]
            backend.normalizer = normalizers.Sequence(spaced)
            return True
        case Rebuilt.NO_IGNORE_MERGES:
            is_other = bool(getattr(backend.model, "ignore_merges", False))
            if is_other:
                backend.model.ignore_merges = False
            return is_other
        case Rebuilt.GPT2_WORDS:
            is_other = "ByteLevel" in str(state_of(backend.pre_tokenizer))
            if is_other:
                backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            return is_other
