"""The files of the page: read from the package, and combined for the server or into one self-contained report."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

_SCRIPTS = ("format.js", "parts.js", "chart.js", "treemap.js", "panels.js", "entry.js", "app.js")
_STYLE_LINK = '<link rel="stylesheet" href="page.css">'
_SCRIPT_LINK = '<script src="page.js" defer></script>'

LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a browser may load for the page: its own three files and its own data."""


@cache
def page() -> str:
    return _text("page.html")


@cache
def style() -> str:
    return _text("page.css")


@cache
def script() -> str:
    """All scripts, each after the scripts that it uses."""
    texts = "\n".join(map(_text, _SCRIPTS))
    return f'"use strict";\n(() => {{\n{texts}\n}})();\n'


def report(data: bytes, title: str) -> bytes:
    """The page as one file that loads nothing from elsewhere. `data` is JSON."""
    # Inside a script element, only the end tag means anything, and no JSON needs a literal "<".
    safe = data.decode().replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src '{_digest(script())}'; style-src '{_digest(style())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    text = page()
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style()}</style>'
    blocks = f'<script type="application/json" id="data">{safe}</script>\n<script>{script()}</script>'
    text = text.replace(_STYLE_LINK, head).replace(_SCRIPT_LINK, "").replace("</body>", f"{blocks}\n</body>")
    return text.replace("<title>kcachefs</title>", f"<title>{_escaped(title)}</title>").encode()


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
