"""A drawing as PNG, by resvg, which draws with the fonts of this machine."""

from __future__ import annotations

import re

from trajkit.errors import UsageProblem
from trajkit.view.svg import FONTS

_ZOOM = 2
_MOST = 16_000
"""Pixels of a side that viewers and journals still open."""
_CODE = re.compile(r"&#(\d+);")
_DRAWN = frozenset(range(0x2400, 0x2422))
"""Pictures of controls: drawn as lines, their text is unseen."""
_UNKNOWN = 0x10FFFD  # private use, at the very end: in no font
_MOST_CODES = 500
_SIZE = re.compile(r'<svg [^>]*width="(\d+)" height="(\d+)"')
_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    "<text x='2' y='16' style='font: 13px {fonts}'>&#{code};</text></svg>"
)


def png_of(svg: str) -> tuple[bytes, int]:
    """Return a drawing of `trajkit.view.svg` as PNG, and how many characters are boxes in it.

    A unit of the drawing is two pixels. A box is what a character is that no font here has.

    Raises:
        UsageProblem: U105 when resvg is not installed, or finds no font to draw text with; U103
            when the picture would be too large.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise UsageProblem(
            "U105", "--format png needs resvg", hint="pip install 'trajkit[png]'"
        ) from None
    size = _SIZE.match(svg)
    sides = [_ZOOM * int(side) for side in size.groups()] if size else []
    if max(sides, default=0) > _MOST:
        raise UsageProblem(
            "U103",
            f"a picture of {sides[0]:,} x {sides[1]:,} pixels is too large (at most {_MOST:,})",
            hint="choose fewer tokens with --step or --tokens A:B, or use --format svg",
        )
    codes = sorted({int(code) for code in _CODE.findall(svg)} - _DRAWN)
    seen, blank, box, *others = (
        svg_to_bytes(svg_string=_PROBE.format(fonts=FONTS, code=code))
        for code in (ord("M"), ord(" "), _UNKNOWN, *codes[:_MOST_CODES])
    )
    if seen == blank:
        raise UsageProblem(
            "U105",
            "there is no font here that text could be drawn with",
            hint="install one (apt-get install fonts-dejavu-core), or use --format svg",
        )
    return bytes(svg_to_bytes(svg_string=svg, zoom=_ZOOM)), sum(
        other in (box, blank) for other in others
    )
