"""Reads JSON that somebody else wrote: refuses JSON that is too large, too deep, or could not be written again."""

from __future__ import annotations

import json
from typing import Any

_DEPTH_MAX = 64
_INTEGERS = range(-(1 << 63), 1 << 64)
"""The integers that both JSON and msgpack can hold."""


def decoded(data: bytes, limit: int) -> Any:
    """The decoded value; a `ValueError` says what is wrong with bytes that we cannot work with.

    >>> decoded(b'{"warps": 4}', limit=100)
    {'warps': 4}
    """
    if len(data) > limit:
        raise ValueError(f"is too large ({len(data)} bytes)")
    try:
        found = json.loads(data)
    except ValueError:
        raise ValueError("is not JSON") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    _check(found)
    return found


def _check(found: Any) -> None:
    """Look at all values level by level: however deep they are nested, no stack overflows."""
    level = [found]
    for _ in range(_DEPTH_MAX):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.keys()
                below += one.values()
            elif isinstance(one, list):
                below += one
            elif isinstance(one, str):
                _check_text(one)
            elif isinstance(one, int) and one not in _INTEGERS:
                raise ValueError("has a number of more than 64 bits")
        if not below:
            return
        level = below
    raise ValueError("is nested too deeply")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has half a character in a text") from None
