"""A file of names with values, as JSON that somebody else wrote."""

from __future__ import annotations

from typing import Any

from kcachefs import foreign_json
from kcachefs.errors import ArtefactGarbled


def json_object(data: bytes, name: str, limit: int) -> dict[str, Any]:
    """What a file of that name holds; `ArtefactGarbled` if it is something else, or has more than `limit` bytes."""
    try:
        found = foreign_json.decoded(data, limit)
    except ValueError as error:
        raise ArtefactGarbled(f"{name} {error}") from None
    if not isinstance(found, dict):
        raise ArtefactGarbled(f"{name} does not hold names with values")
    return found
