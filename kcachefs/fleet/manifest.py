"""The manifest of a pack: what it holds and where. Plain records; docs/packs.md describes them field by field."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kcachefs.errors import PackError

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Time = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class PackedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One file of an entry."""

    name: str
    """Its path from the entry's folder, with `/` between the parts."""
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)]
    mtime: _Time
    """Nanoseconds since 1970."""
    size: _Count
    offset: _Count
    """Where its bytes begin in the decoded frame."""
    digest: _Digest
    """BLAKE3 of its bytes in the frame."""
    moves: bool = False
    """Whether its bytes contain `moving.PLACE`, which unpacking replaces with the path of the mount."""


class PackedEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One entry: a folder with everything below it, or with `group` the files of one stem in a folder."""

    namespace: str
    path: list[str]
    """The folder in the namespace: the entry itself, or the folder that holds the group."""
    group: str = ""
    files: list[PackedFile]

    @property
    def label(self) -> str:
        """The entry's path as `kcachefs ls` shows it."""
        return "/".join((self.namespace, *self.path, *filter(None, (self.group,))))


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Whole entries that are compressed together."""

    stored: _Count
    plain: _Count
    digest: _Digest
    """BLAKE3 of the stored bytes."""
    entries: list[PackedEntry]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything about a pack but the bytes of its files."""

    facts: dict[str, list[str]]
    """What is known of the content, for people and for choosing packs: versions, and the GPUs it was compiled for."""
    frames: list[Frame]

    @property
    def entries(self) -> list[PackedEntry]:
        return [entry for frame in self.frames for entry in frame.entries]

    @property
    def files(self) -> int:
        return sum(len(entry.files) for entry in self.entries)

    @property
    def bytes(self) -> int:
        """The size of all files, before compression and deduplication."""
        return sum(file.size for entry in self.entries for file in entry.files)


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON; the same manifest always gives the same bytes."""
    return msgspec.json.encode(manifest, order="deterministic")


def decode(raw: bytes) -> Manifest:
    try:
        return msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PackError(f"its manifest makes no sense: {error}") from None
