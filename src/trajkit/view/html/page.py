"""The page itself: one ASCII file without a network, whose script and style are named by hash."""

from __future__ import annotations

from importlib.resources import files

from trajkit import __version__
from trajkit.safe.html import as_script_json, as_text, packed, source_hash
from trajkit.safe.text import shorten
from trajkit.view.html.payload import Payload

SCRIPTS = (
    *("data.js", "search.js", "dom.js", "rows.js", "blocks.js", "map.js"),
    *("pane.js", "frame.js", "page.js"),
)
"""In the order in which they speak of each other."""

_STYLE = "page.css"
_TITLE = 60
SCHEMA = "trajkit.mask-page/1"
TAGS = frozenset(
    {"html", "head", "meta", "title", "style", "body", "noscript", "p", "main", "script"}
)
"""Every element a written page has; all others are made by its script, text by text."""


def page_of(payload: Payload) -> str:
    """Return a whole page, called after its first trajectory.

    The data are inert: deflated JSON in base64 inside a JSON element. The policy lets no other
    script run than the page's own, and lets that one neither fetch nor parse markup.
    """
    style, script = _source(_STYLE), "\n".join(map(_source, SCRIPTS))
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {source_hash(style)}",
            f"script-src {source_hash(script)}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    names = [entry["name"] for entry in payload.shared["index"]]
    title = shorten(names[0], _TITLE) if names else ""
    held = {
        "schema": SCHEMA,
        "trajkit": __version__,
        "packing": "base64(deflate(JSON))",
        "shared": packed(payload.shared),
        "trajectories": [packed(trajectory) for trajectory in payload.trajectories],
    }
    return _PAGE.format(
        policy=policy,
        title=as_text(f"{title} - trajkit mask-view"),
        style=style,
        script=script,
        held=as_script_json(held),
    )


def _source(name: str) -> str:
    return files("trajkit.view.html").joinpath(name).read_text(encoding="ascii")


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript><p>This page draws its data with a script of its own and loads nothing.
Let it run, or see the same with: trajkit mask-view DATA -t TOKENIZER</p></noscript>
<main id="app"></main>
<script type="application/json" id="held">{held}</script>
<script>{script}</script>
</body>
</html>"""
