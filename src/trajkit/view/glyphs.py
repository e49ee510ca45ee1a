"""Bytes into text that is safe to print, from which the bytes can be read back.

| sign             | stands for |
|---|---|
| ␊ ␉ ␛ …          | a control character; a newline ends its line all the same |
| ␣                | a space that would not be seen: at an edge, or one of several |
| ⟦U+202E⟧         | a character without a glyph of its own, or one that looks like these signs |
| ⟦E6 97⟧          | bytes that are no character |
| ⟦id 7⟧           | an id that spells nothing |
| ⟪<|im_end|>⟫     | one control id; the same text spelt with plain ids has no brackets |
| ▒                | one id, or a piece of a text without ids, that is not to be shown |
"""

from __future__ import annotations

import re

from trajkit.safe.text import visible

CONTROL_NAMES = (
    *("NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "⇥", "↵", "VT", "FF", "CR"),
    *("SO", "SI", "DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB"),
    *("ESC", "FS", "GS", "RS", "US", "␠", "DEL"),
)
"""How faces that choose their own fonts draw the pictures of controls, from U+2400 on."""

HIDDEN = -1
"""Stands where an id is not to be shown; no token has it."""
BLOCK = "▒"
"""What is shown of it, whatever its length."""

CONTROL_SIGN = re.compile("⟪[^⟫]*⟫")
SIGNS = re.compile("⟪[^⟫]*⟫|⟦[^⟧]*⟧")

_BAD = "[\udc80-\udcff]+"  # what decoding with surrogateescape makes of bytes that are no character
_OWN = f"[\u2400-\u2426⟦⟧⟪⟫{BLOCK}]"
_SPACES = "[\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000]"
_REPLACED = re.compile(f"{_BAD}|{_OWN}|{_SPACES}")
_HIDDEN_SPACES = re.compile(r" {2,}|^ +| +(?=␊|$)")


def show_bytes(data: bytes) -> str:
    """Return bytes as safe text, all of them visible."""
    text = data.decode("utf-8", errors="surrogateescape")
    if not text.isascii():
        text = _REPLACED.sub(_sign, text)
    return _HIDDEN_SPACES.sub(lambda match: "␣" * len(match[0]), visible(text))


def show_text(text: str) -> str:
    """Return a text as safe text, block signs kept: they stand for what is not to be shown."""
    parts = text.encode("utf-8", errors="backslashreplace").split(BLOCK.encode())
    return BLOCK.join(map(show_bytes, parts))


def show_control(content: str) -> str:
    """Return what a control id spells, in the brackets that only control ids have."""
    return f"⟪{show_bytes(content.encode('utf-8'))}⟫"


def show_empty(token_id: int) -> str:
    """Return the sign of an id that spells nothing."""
    return f"⟦id {token_id}⟧"


def _sign(match: re.Match[str]) -> str:
    if "\udc80" <= match[0][0] <= "\udcff":
        return "⟦" + " ".join(f"{ord(escaped) - 0xDC00:02X}" for escaped in match[0]) + "⟧"
    return f"⟦U+{ord(match[0]):04X}⟧"
