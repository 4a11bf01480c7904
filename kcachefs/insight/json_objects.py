"""JSON that somebody else wrote: names with values, and not more of it than makes sense."""

from __future__ import annotations

import json
from typing import Any

from kcachefs.errors import ArtefactGarbled


def json_object(data: bytes, name: str, limit: int) -> dict[str, Any]:
    """What a file of that name holds; `ArtefactGarbled` if it is something else, or has more than `limit` bytes."""
    if len(data) > limit:
        raise ArtefactGarbled(f"{name} is too large ({len(data)} bytes)")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ArtefactGarbled(f"{name} is not JSON") from None
    if not isinstance(found, dict):
        raise ArtefactGarbled(f"{name} holds no names with values")
    return found
