"""What a library cache keeps (`kcachefs.cached`, `Cache`, NVRTC's programs): its ingredients, and what changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from kcachefs.caches import ingredients, record
from kcachefs.errors import ArtefactGarbled, UsageError
from kcachefs.insight.causes import Cause, Kind, clipped, in_order
from kcachefs.printable import printable

HEAD_BYTES = record.META_LIMIT + (8 << 10)
"""How much of a file is read: metadata behind a longer key is not found."""
_OWN = frozenset(("function", "ptx", "cubin", "log", "arch", "binary", ingredients.META))
_CACHE = re.compile(r"(?:^|/)library/([^/]+)/entries/")
_KINDS = (
    ("compiler", Kind.VERSION),
    ("kcachefs", Kind.VERSION),
    ("version of ", Kind.VERSION),
    ("architecture", Kind.ARCHITECTURE),
    ("variable ", Kind.ENVIRONMENT),
    ("working directory", Kind.ENVIRONMENT),
    ("file ", Kind.ENVIRONMENT),
    ("dependency ", Kind.ENVIRONMENT),
    ("options", Kind.OPTION),
    ("target", Kind.OPTION),
    ("name", Kind.OPTION),
    ("argument ", Kind.CONSTANT),
    ("metadata ", Kind.CONSTANT),
)
"""The kind of an ingredient, by how its name begins; anything else is source."""


class LibraryEntry(msgspec.Struct, frozen=True):
    path: str
    created: float
    cache: str
    name: str
    """The function called or program compiled, for people."""
    kind: str
    """call, program or value."""
    made_of: dict[str, tuple[str, str]]
    """Digest and short text of each ingredient, by the ingredient's name."""


def read(path: str, created: float, data: bytes) -> LibraryEntry:
    """The entry at the beginning of a file; `ArtefactGarbled` if the file is not of a library cache."""
    head = record.head_of(data)
    meta = head.told() if head is not None else None
    if head is None or meta is None:
        raise ArtefactGarbled("it is not an entry of a library cache")
    packed = meta.get(ingredients.META)
    try:
        told = ingredients.unpack(packed) if isinstance(packed, bytes) and packed else []
    except UsageError as error:
        raise ArtefactGarbled(str(error)) from None
    made_of = {one.name: (one.digest.hex(), one.shown) for one in told}
    for name, value in list(meta.items())[: ingredients.COUNT_MAX]:
        if name not in _OWN:
            one = ingredients.of_bytes(f"metadata {name}", msgspec.msgpack.encode(value), clipped(value, 60))
            made_of[clipped(one.name)] = (one.digest.hex(), one.shown)
    found = _CACHE.search(path)
    function = meta.get("function")
    if isinstance(function, str):
        kind, name = "call", function
    elif "kernels" in made_of or "arch" in meta:
        kind, name = "program", made_of.get("kernels", ("", ""))[1]
    else:
        kind, name = "value", ""
    key = head.given_key()
    shown = key if isinstance(key, str) else head.key.hex()
    return LibraryEntry(path, created, found[1] if found else "", clipped(name or shown), kind, made_of)


def explain(new: LibraryEntry, older: Sequence[LibraryEntry]) -> tuple[LibraryEntry | None, list[Cause]]:
    """The nearest of `older` in the same cache, and what differs."""
    if not new.made_of:
        return None, [Cause(Kind.UNKNOWN, "what its key was made of is not known", certain=False)]
    same = [one for one in older if (one.cache, one.kind) == (new.cache, new.kind) and one.made_of]
    if new.kind == "call":
        same = [one for one in same if one.name == new.name]
    nearest = min(same, key=lambda one: (len(_differing(new, one)), -one.created), default=None)
    if nearest is None or (new.kind == "program" and {"kernels", "source"} <= set(_differing(new, nearest))):
        what = {"call": f"no result of {new.name}", "program": "no program like it"}.get(new.kind, "nothing like it")
        return None, [Cause(Kind.NEW, f"new: {what} was here before")]
    return nearest, differences(new, nearest)


def differences(new: LibraryEntry, old: LibraryEntry) -> list[Cause]:
    differing = _differing(new, old)
    if "function" in differing and "source" not in differing:
        uses = (
            "the function is the same, but something that it uses changed: a helper, a global, a default or a library"
        )
        found = [Cause(Kind.SOURCE, uses)]
    else:
        found = []
    found += [
        Cause(_kind(name), _words(name, new.made_of.get(name), old.made_of.get(name)))
        for name in differing
        if name not in ("function", "kernels")
    ]
    return in_order(found) or [Cause(Kind.UNKNOWN, "all that is known of its key is the same", certain=False)]


def facts(one: LibraryEntry) -> dict[str, str]:
    """The ingredients for people; an ingredient whose text is not shown appears as the beginning of its digest."""
    return {name: shown or f"digest {digest}" for name, (digest, shown) in one.made_of.items()}


def _kind(name: str) -> Kind:
    return next((kind for start, kind in _KINDS if name.startswith(start)), Kind.SOURCE)


def _words(name: str, new: tuple[str, str] | None, old: tuple[str, str] | None) -> str:
    if name == "source":
        place = f" ({new[1]})" if new and new[1] else ""
        return f"the source changed{place}"
    if new is None or old is None:
        return f"{name} is {'new' if old is None else 'gone'}"
    if new[1] != old[1]:
        return f"{name} is {printable(new[1])}, was {printable(old[1])}"
    return f"{name} changed"


def _differing(new: LibraryEntry, old: LibraryEntry) -> list[str]:
    every: Iterable[str] = dict.fromkeys((*new.made_of, *old.made_of))
    return [name for name in every if _digest(new, name) != _digest(old, name)]


def _digest(one: LibraryEntry, name: str) -> str | None:
    return one.made_of[name][0] if name in one.made_of else None
