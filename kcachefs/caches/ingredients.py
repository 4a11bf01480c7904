"""The ingredients of a key, kept beside what was made with it, so that `kcachefs explain` can name what changed.

Each has a name, the first bytes of a digest, and a short text for people. Numbers, short texts that do not look like
secrets, and the arguments of a compiler are shown; of values that may be large or private only the digest is kept. The
ingredients are collected when something is made, never on a hit, and lie in the metadata as one byte string, which a
hit does not decode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from kcachefs.errors import UsageError

META = "made_of"
"""The name of the ingredients in the metadata."""
COUNT_MAX = 96
NAME_MAX = 80
SHOWN_MAX = 60
_DIGEST_SIZE = 8
_SECRET_WORDS = frozenset(
    ("password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "credentials", "auth", "key", "apikey")
)
_PASSWORD_IN_URL = r"://[^/@\s]*:[^/@\s]*@"


class Ingredient(NamedTuple):
    name: str
    digest: bytes
    shown: str = ""


def of_bytes(name: str, content: bytes, shown: str = "") -> Ingredient:
    """An ingredient by the bytes that go into the key."""
    from blake3 import blake3

    return Ingredient(name, blake3(content).digest(_DIGEST_SIZE), shown)


def of_text(name: str, text: str) -> Ingredient:
    """A text that people may see."""
    return of_bytes(name, text.encode("utf-8", "surrogatepass"), text)


def of_value(name: str, value: Any, key: str) -> Ingredient:
    """A value with its key in hexadecimal. Numbers and short texts are shown; of others and secrets, only the type."""
    shown = type(value).__qualname__ if _is_secret(name, value) else _shown(value)
    return Ingredient(name, bytes.fromhex(key)[:_DIGEST_SIZE], shown)


def _is_secret(name: str, value: Any) -> bool:
    """Whether a value had better not be written down: by its name, or because it looks like a token or a password.

    >>> _is_secret("argument api_key", "x"), _is_secret("argument monkey", "x"), _is_secret("argument x", 5)
    (True, False, False)
    >>> _is_secret("argument x", "hf_0AbC9dEf8GhI7jKl6"), _is_secret("argument x", "https://me:pw@host/")
    (True, True)
    >>> _is_secret("argument x", "meta-llama/Llama-3.1-8B-Instruct"), _is_secret("argument x", "triton_poi_fused_12")
    (False, False)
    """
    words = re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
    if not _SECRET_WORDS.isdisjoint(words):
        return type(value) is not bool and value is not None
    if type(value) is not str:
        return False
    return re.search(_PASSWORD_IN_URL, value) is not None or any(
        not run.isalpha() and not run.isdigit() for run in re.findall(r"[A-Za-z0-9]{16,}", value)
    )


def _shown(value: Any) -> str:
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) < 1 << 64):
        return repr(value)
    if type(value) is str and len(value) < SHOWN_MAX and value.isprintable():
        return repr(value)
    return type(value).__qualname__


def pack(ingredients: Iterable[Ingredient]) -> bytes:
    """The ingredients as the metadata keeps them: of bounded size, however many there are."""
    import msgspec

    found = [Ingredient(_cut(one.name, NAME_MAX), one.digest, _cut(one.shown, SHOWN_MAX)) for one in ingredients]
    if len(found) > COUNT_MAX:
        rest = b"".join(one.name.encode("utf-8", "replace") + one.digest for one in found[COUNT_MAX - 1 :])
        found[COUNT_MAX - 1 :] = [of_bytes("more", rest, f"{len(found) - COUNT_MAX + 1} ingredients")]
    return msgspec.msgpack.encode(found)


def pack_if_told(ingredients: Iterable[Ingredient]) -> bytes:
    """`pack`, but empty if an ingredient cannot be worked out, which must not fail the caller."""
    try:
        return pack(ingredients)
    except Exception:
        return b""


def unpack(packed: bytes) -> list[Ingredient]:
    """What `pack` was given, as far as it was kept; `UsageError` for anything else."""
    import msgspec

    try:
        found = msgspec.msgpack.decode(packed, type=list[Ingredient])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"these are not the ingredients of a key: {error}") from None
    return found[:COUNT_MAX]


def _cut(text: str, limit: int) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
