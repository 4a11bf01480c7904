"""The README as the package index shows it: links that lead nowhere from there become absolute, or plain text.

The build asks for it (see pyproject.toml). Links become absolute as soon as `[project.urls]` names a `Source`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface as Hook
except ImportError:  # outside of a build only `page` is of use
    Hook = object

README = Path(__file__).resolve().parents[1] / "README.md"
_PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)([^)]+)\)\n*")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def page(text: str, source: str = "") -> str:
    """The text for the index; `source` is where the files of the repository can be read."""
    if source:
        return re.sub(r"\]\((?!https?:|#)", f"]({source.rstrip('/')}/", text)
    return _LINK.sub(r"\1", _PICTURE.sub("", text))


class IndexPage(Hook):  # type: ignore[misc]
    """Puts the page into the metadata of the build."""

    def update(self, metadata: dict[str, Any]) -> None:
        source = metadata.get("urls", {}).get("Source", "")
        metadata["readme"] = {"content-type": "text/markdown", "text": page(README.read_text(), source)}
