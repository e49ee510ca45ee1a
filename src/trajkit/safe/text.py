"""Text of strangers, made safe to show: nothing in it can move a cursor, hide or reorder."""

from __future__ import annotations

import codecs
import re
import unicodedata
from functools import lru_cache

HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
_PICTURES_BUT_NEWLINE = {code: picture for code, picture in _PICTURES.items() if code != 0x0A}
_ASCII = "".join(map(chr, range(0x80)))  # as a charmap: one C loop, where str.translate is slow
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
# Letters and marks that Unicode calls default-ignorable: they take no room on the screen, so a
# message can hide in them. U+FE0E and U+FE0F stay: they choose between text and emoji style.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0d\uffa0"
    "\U000e0100-\U000e01ef]"
)


def visible(text: str, *, keep_newlines: bool = False) -> str:
    r"""Return `text` with every character that acts or hides replaced by one that shows.

    C0 controls become their pictures (`␛`, `␍`), DEL becomes `␡`, all else without a glyph of its
    own (C1, bidi, zero-width, surrogates, private use, unassigned, line separators) `⟦U+202E⟧`.

    Args:
        text: any string, lone surrogates included.
        keep_newlines: leave `"\n"` as it is; otherwise it is shown as `␊`.
    """
    checked = text.replace("\n", "") if keep_newlines else text
    if checked.isprintable() and (checked.isascii() or not _BLANK.search(checked)):
        return text
    pictures = _PICTURES_BUT_NEWLINE if keep_newlines else _PICTURES
    if text.isascii():
        return codecs.charmap_decode(text.encode(), "strict", _ASCII.translate(pictures))[0]
    return _BEYOND_ASCII.sub(_show_run, text).translate(pictures)


def shorten(text: str, limit: int) -> str:
    """Return `visible(text)` in at most `limit` characters, the last one `…` if it was cut."""
    shown = visible(text[: limit + 1])
    return shown if len(shown) <= limit else shown[: max(limit - 1, 0)] + "…"[:limit]


def _show_run(match: re.Match[str]) -> str:
    run = match[0]
    if run.isprintable() and not _BLANK.search(run):
        return run
    return "".join(map(_show_character, run))


@lru_cache(maxsize=4096)
def _show_character(character: str) -> str:
    if unicodedata.category(character) in HIDDEN_CATEGORIES or _BLANK.match(character):
        return f"⟦U+{ord(character):04X}⟧"
    return character


def shown_bytes(n_bytes: int) -> str:
    """Return a number of bytes as a person reads it."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"
