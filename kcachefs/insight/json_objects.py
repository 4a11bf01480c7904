"""Reads a JSON file of names with values that somebody else wrote."""

from __future__ import annotations

from typing import Any

from kcachefs import foreign_json
from kcachefs.errors import ArtefactGarbled


def json_object(data: bytes, name: str, limit: int) -> dict[str, Any]:
    """The file's names and values; `ArtefactGarbled` if it is something else, or has more than `limit` bytes."""
    try:
        found = foreign_json.decoded(data, limit)
    except ValueError as error:
        raise ArtefactGarbled(f"{name} {error}") from None
    if not isinstance(found, dict):
        raise ArtefactGarbled(f"{name} does not hold names with values")
    return found
