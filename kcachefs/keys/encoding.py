"""The canonical encoding beneath every key: one byte string per meaning, and no byte string for two meanings.

Every value is a tag, a length or count, and its content, so that no value's encoding is a prefix of another's and
nothing can be shifted from one field into the next. Unordered containers are sorted by their elements' encodings, never
by hash order. `digest` hashes such encodings with BLAKE3 under a context string that names the kind of key and the
schema version: two kinds of key never meet, and neither do two schemas.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Protocol

from blake3 import blake3

from kcachefs.errors import Unkeyable
from kcachefs.keys.asking import full_name

# Raised whenever the same input would get a different key than before; the golden values in the tests then change too.
SCHEMA = 6


class Other(Protocol):
    """Encodes what is not plain data."""

    def write(self, value: Any, out: list[bytes]) -> None:
        """Append the encoding of `value` to `out`."""

    def alone(self) -> Other:
        """An encoder that ignores what was encoded before: for the members of unordered containers."""


_LENGTH = struct.Struct("<cQ")
_DOUBLE = struct.Struct("<d")
_QUIET_NAN = bytes.fromhex("000000000000f87f")


def digest(kind: str, *parts: bytes) -> bytes:
    """The 32-byte key of kind `kind` over encoded parts.

    >>> digest("value", b"a").hex() == digest("program", b"a").hex()
    False
    """
    return blake3(b"".join(parts), derive_key_context=f"kcachefs {kind} schema {SCHEMA}").digest()


def encode(value: object) -> bytes:
    """The canonical encoding of plain data: numbers, text, bytes, and containers of them.

    >>> encode({"b": 1, "a": 2}) == encode({"a": 2, "b": 1})
    True
    >>> encode(1) == encode(True) or encode(1) == encode(1.0) or encode([1]) == encode((1,))
    False
    """
    out: list[bytes] = []
    write(value, out, _PLAIN)
    return b"".join(out)


def write(value: Any, out: list[bytes], other: Other) -> None:
    """Append the encoding of `value` to `out`; what is not plain data goes to `other`."""
    kind = type(value)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        scalar(value, out)
    elif kind is tuple or kind is list:
        out.append(_LENGTH.pack(b"t" if kind is tuple else b"l", len(value)))
        for item in value:
            write(item, out, other)
    elif kind is dict:
        keys_alone = other.alone()
        items = sorted((_separately(key, keys_alone), _Item(item)) for key, item in value.items())
        out.append(_LENGTH.pack(b"d", len(items)))
        for encoded, item in items:
            out.append(encoded)
            write(item.value, out, other)
    elif kind is slice:
        out.append(b"k")
        for bound in (value.start, value.stop, value.step):
            write(bound, out, other)
    elif kind is set or kind is frozenset:
        alone = other.alone()
        members = sorted(_separately(item, alone) for item in value)
        out.append(_LENGTH.pack(b"S" if kind is set else b"F", len(members)))
        out.extend(members)
    else:
        other.write(value, out)


def flat(values: list[bytes]) -> bytes:
    """The encoding of a list of byte strings, in one go: most of a program's key is such a list."""
    return struct.pack(f"<cQ{len(values)}Q", b"B", len(values), *map(len, values)) + b"".join(values)


def tagged(tag: bytes, content: bytes) -> bytes:
    """One encoded field with a tag that the caller chooses; plain data uses lower-case letters and `B`, `F`, `S`."""
    return _LENGTH.pack(tag, len(content)) + content


class _Item:
    """A dictionary's value that never takes part in the sort, even where two keys encode alike."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __lt__(self, _: object) -> bool:
        return False


def _separately(value: object, other: Other) -> bytes:
    out: list[bytes] = []
    write(value, out, other)
    return b"".join(out)


class _Plain:
    """Plain data alone: anything else has no key."""

    def write(self, value: Any, out: list[bytes]) -> None:
        raise Unkeyable(
            f"{full_name(type(value))} is not plain data; "
            "pass numbers, text, bytes or containers of them, or use hash_value"
        )

    def alone(self) -> _Plain:
        return self


_PLAIN = _Plain()


def _int(value: int, out: list[bytes]) -> None:
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    out.append(_LENGTH.pack(b"i", len(content)) + content)


def _float(value: float, out: list[bytes]) -> None:
    # One NaN: payload bits are an accident of the machine. But 0.0 and -0.0 differ, as they do to compiled code.
    out.append(b"f" + (_QUIET_NAN if math.isnan(value) else _DOUBLE.pack(value)))


def _complex(value: complex, out: list[bytes]) -> None:
    out.append(b"c")
    _float(value.real, out)
    _float(value.imag, out)


def _text(value: str, out: list[bytes]) -> None:
    content = value.encode("utf-8", "surrogatepass")
    out.append(_LENGTH.pack(b"s", len(content)) + content)


def _bytes(value: bytes | bytearray, out: list[bytes]) -> None:
    out.append(_LENGTH.pack(b"b" if type(value) is bytes else b"y", len(value)) + value)


def _range(value: range, out: list[bytes]) -> None:
    out.append(b"r")
    for bound in (value.start, value.stop, value.step):
        _int(bound, out)


_SCALARS: dict[type, Callable[[Any, list[bytes]], None]] = {
    type(None): lambda value, out: out.append(b"n"),
    type(...): lambda value, out: out.append(b"e"),
    type(NotImplemented): lambda value, out: out.append(b"x"),
    bool: lambda value, out: out.append(b"1" if value else b"0"),
    int: _int,
    float: _float,
    complex: _complex,
    str: _text,
    bytes: _bytes,
    bytearray: _bytes,
    range: _range,
}
