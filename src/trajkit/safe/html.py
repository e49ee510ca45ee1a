"""Text of strangers inside HTML and SVG: never a tag, never a script, always ASCII."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from typing import Any

from trajkit.safe.text import visible

_LEVEL = 9
_SCRIPT_ENDS = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def as_text(text: str) -> str:
    """Return `visible(text)` as ASCII for an element or a quoted attribute."""
    shown = html.escape(visible(text), quote=True)
    return shown.encode("ascii", errors="xmlcharrefreplace").decode("ascii")


def as_script_json(value: Any) -> str:
    """Return a value as ASCII JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_SCRIPT_ENDS)


def packed(value: Any) -> str:
    """Return a value as JSON, deflated (RFC 1950), in base64."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode("ascii")


def source_hash(source: str) -> str:
    """Return what a Content-Security-Policy calls an inline script or style by."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
