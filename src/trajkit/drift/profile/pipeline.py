"""Texts that do not come back as they were: what encoding and decoding change."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping

from trajkit.drift.decoding import cleaned_up
from trajkit.drift.profile.traits import Example, Fact, Probe, Trait, count
from trajkit.records import Ids
from trajkit.tokenizer import Tokenizer

TEXTS: Mapping[str, str] = {
    "words": "The answer is 42.",
    "upper case": "HTTP Error In MainThread",
    "NFC": "caf\u00e9",
    "NFD": "cafe\u0301",
    "fullwidth": "\uff11\uff12\uff21",
    "ligature": "\ufb01le",
    "CRLF": "a\r\nb",
    "line breaks": "a\n\n\nb\n",
    "leading space": " a",
    "leading spaces": "   a",
    "trailing spaces": "a  ",
    "runs of spaces": "if x:\n        return  y",
    "tab": "a\tb",
    "no-break space": "a\u00a0b",
    "wide space": "a\u3000b",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "combining": "\u0e17\u0e35\u0e48",
    "Hangul": "\u1112\u1161\u11ab",
    "controls": "a\x00\x1b[0m\x7fb",
    "rare plane": "\U00020bb7\U0001d54f",
    "metaspace": "a\u2581b",
    "spaced marks": "He said ) . y ? and it 's , well !",
}
"""Texts of one kind each."""

_LOST: tuple[tuple[Trait, Callable[[str], str]], ...] = (
    (Trait.PREFIXED, lambda text: " " + text),
    *(
        (Trait.COMPOSED, lambda text, form=form: unicodedata.normalize(form, text))
        for form in ("NFC", "NFKC", "NFD", "NFKD")
    ),
    (Trait.LOWERED, str.lower),
    (Trait.SPACED, lambda text: text.strip(" ")),
    (Trait.SPACED, str.strip),
    (Trait.SPACED, lambda text: text.replace("\r\n", "\n")),
    (Trait.SPACED, lambda text: text.replace("\u2581", " ")),
    (Trait.SPACED, lambda text: " ".join(re.split(r"\s+", text))),
)
"""What a text may become, and what that is called; the first that fits is told."""
_CHANGES = tuple(dict.fromkeys((Trait.UNKNOWN, *(trait for trait, _ in _LOST), Trait.CHANGED)))


def pipeline_facts(tokenizer: Tokenizer) -> Iterator[Fact]:
    """Yield what encoding and decoding do to texts, and what loaders make of the configuration."""
    yield from count(_probes(tokenizer))


def _probes(tokenizer: Tokenizer) -> Iterator[Probe]:
    names, texts = list(TEXTS), list(TEXTS.values())
    encoded = list(tokenizer.encode_batch(texts))
    decoded = tokenizer.decode_batch(encoded)
    for name, text, ids, back in zip(names, texts, encoded, decoded, strict=True):
        spelt = tokenizer.text(ids)
        yield from _encoding(name, text, spelt, _strangers(tokenizer, ids, text))
        yield from _decoding(name, spelt, back)
        pieces = tokenizer.pieces(ids)
        broken = [p.hex(" ") for p in pieces if "\ufffd" in p.decode("utf-8", errors="replace")]
        example = {"text": text, "probe": name, "bytes": broken[0]} if broken else None
        yield Trait.SPLIT_CHARACTER, example
        yield Trait.CLEANS_UP, _cleaned(tokenizer, name, text)
    yield from _framing(tokenizer)


def _strangers(tokenizer: Tokenizer, ids: Ids, text: str) -> list[str]:
    """Return the control tokens among ids that a text does not spell."""
    found = (tokenizer.control.get(token_id) for token_id in ids.tolist())
    return [token for token in found if token is not None and token not in text]


def _encoding(name: str, text: str, spelt: str, strangers: list[str]) -> Iterator[Probe]:
    """Yield what the ids of a text spell, when that is not the text."""
    found = {Trait.UNKNOWN} if strangers else _changes(text, spelt)
    example: Example = {"probe": name, "text": text, "becomes": spelt}
    for trait in _CHANGES:
        yield trait, example if trait in found else None


def _changes(text: str, spelt: str) -> set[Trait]:
    """Return what a text went through, a space put in front apart from the rest."""
    if spelt == text:
        return set()
    found = next((trait for trait, turned in _LOST if turned(text) == spelt), Trait.CHANGED)
    if found is Trait.CHANGED and spelt.startswith(" ") and not text.startswith(" "):
        return {Trait.PREFIXED} | _changes(text, spelt[1:])
    return {found}


def _decoding(name: str, spelt: str, back: str) -> Iterator[Probe]:
    """Yield how the library decodes ids, when that is not what they spell."""
    is_stripped = back != spelt and back == spelt.removeprefix(" ")
    example: Example = {"probe": name, "text": spelt, "becomes": back}
    yield Trait.DECODE_STRIPS, example if is_stripped else None
    yield Trait.DECODE_CHANGES, example if back != spelt and not is_stripped else None


def _cleaned(tokenizer: Tokenizer, name: str, text: str) -> Example | None:
    """Return what cleaning up spaces makes of a text, when a loader may do so."""
    setting = tokenizer.config.get("clean_up_tokenization_spaces", False)
    cleaned = cleaned_up(text)
    return (
        {"probe": name, "text": text, "becomes": cleaned} if setting and cleaned != text else None
    )


def _framing(tokenizer: Tokenizer) -> Iterator[Probe]:
    """Yield the special tokens that encoding adds, and what the configuration says of them."""
    for ids, side, key in zip(
        tokenizer.framing, ("before", "behind"), ("add_bos_token", "add_eos_token"), strict=True
    ):
        added = {"side": side, "ids": ids.tolist(), "text": tokenizer.text(ids)}
        yield Trait.FRAMES, added if len(ids) else None
        said = tokenizer.config.get(key)
        if isinstance(said, bool):
            differs = said is not bool(len(ids))
            yield Trait.UNSETTLED_FRAME, {key: said, **added} if differs else None
