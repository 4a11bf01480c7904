"""A pack as an OCI image layout: an image of one layer that holds the pack, so that any registry can carry it.

Such an image can be mounted as a Kubernetes image volume, or copied into another image at build time. An image that
comes back from a registry may be compressed and may be in an index; its digests are checked, and the pack in it
has a signature of its own.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import zstandard

from kcachefs.errors import PackError, UsageError
from kcachefs.fleet.manifest import Manifest
from kcachefs.fleet.rules import WINDOW_LOG_MAX
from kcachefs.fleet.scratch_folder import scratch_folder

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_INDEXES = (_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
_SUFFIX = ".kcp"
_JSON_MAX = 4 << 20
_MEMBERS_MAX = 1000
_MANIFESTS_MAX = 64
_MARGIN = 1 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def is_layout(path: Path) -> bool:
    return path.is_dir() and (path / "oci-layout").exists()


def check_place(folder: Path) -> None:
    """Raise UsageError unless an image can be made there: the folder must be empty or not exist yet."""
    if folder.is_dir():
        if any(folder.iterdir()):
            raise UsageError(f"{folder}: is not empty; name a folder that does not exist yet")
    elif os.path.lexists(folder):
        raise UsageError(f"{folder}: is not a folder; an image needs one of its own")


def write(folder: Path, pack: Path, manifest: Manifest) -> None:
    """Make an image layout at `folder`, which must be empty or not exist yet. The same pack gives the same image."""
    check_place(folder)
    folder.mkdir(parents=True, exist_ok=True)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = _write_layer(blobs, pack)
    notes = {
        "org.opencontainers.image.title": pack.name,
        "dev.kcachefs.pack.entries": str(len(manifest.entries)),
        **{f"dev.kcachefs.pack.{name}": ", ".join(values) for name, values in manifest.facts.items()},
    }
    machine = platform.machine()
    config = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Labels": notes},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    image = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _write_json(blobs, config, _CONFIG),
        "layers": [layer],
        "annotations": notes,
    }
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [_write_json(blobs, image, _MANIFEST)]}
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_text(json.dumps(index))


def _write_layer(blobs: Path, pack: Path) -> dict[str, Any]:
    part = blobs / ".layer.part"
    with open(pack, "rb") as source, tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(pack.name if pack.name.endswith(_SUFFIX) else pack.name + _SUFFIX)
        member.size = os.fstat(source.fileno()).st_size
        member.mode = 0o644
        tar.addfile(member, source)
    with open(part, "rb") as layer:
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
        size = os.fstat(layer.fileno()).st_size
    os.rename(part, blobs / digest)
    return {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": size}


def _write_json(blobs: Path, value: Any, kind: str) -> dict[str, Any]:
    raw = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(raw).hexdigest()
    (blobs / digest).write_bytes(raw)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(raw)}


# --- reading ----------------------------------------------------------------------------------------------------------


@contextmanager
def pack_in(folder: Path) -> Iterator[Path]:
    """The pack in an image layout, as a file for as long as the context lasts."""
    with scratch_folder() as scratch:
        for layer in _layers(folder):
            found = _extract(folder, layer, scratch)
            if found is not None:
                yield found
                return
    raise PackError(f"{folder}: is an image without a pack in it")


def _layers(folder: Path) -> Iterator[dict[str, Any]]:
    """The layers of every image in the layout."""
    waiting = [_object(_read_json(folder, folder / "index.json"))]
    for _ in range(_MANIFESTS_MAX):
        if not waiting:
            return
        found = waiting.pop()
        for inner in _objects(found.get("manifests")):
            kind = inner.get("mediaType")
            if kind in _INDEXES or kind == _MANIFEST or kind is None or "manifest" in str(kind):
                path = _blob(folder, inner)
                waiting.append(_object(_read_json(folder, path)))
        yield from _objects(found.get("layers"))


def _read_json(folder: Path, path: Path) -> Any:
    with open(path, "rb") as file:
        raw = file.read(_JSON_MAX + 1)
    try:
        if len(raw) > _JSON_MAX:
            raise ValueError
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise PackError(f"{folder}: is damaged: {path.name} is not a description of an image") from None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _blob(folder: Path, descriptor: dict[str, Any]) -> Path:
    """The file that a descriptor names, once its digest is checked."""
    algorithm, _, digest = str(descriptor.get("digest")).partition(":")
    if algorithm not in ("sha256", "sha512") or not digest.isalnum():
        raise PackError(f"{folder}: is damaged: a digest in it is malformed")
    path = folder / "blobs" / algorithm / digest
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
    except FileNotFoundError:
        raise PackError(f"{folder}: is not whole: blob {digest} is missing") from None
    if found != digest:
        raise PackError(f"{folder}: is damaged: blob {digest} has other bytes")
    return path


def _extract(folder: Path, layer: dict[str, Any], scratch: Path) -> Path | None:
    """The pack in a layer, as a file in `scratch`; None if the layer holds no pack."""
    path = _blob(folder, layer)
    out = scratch / "pack.kcp"
    try:
        with open(path, "rb") as raw, _decompressed(raw) as plain:
            # A pack is compressed already: a layer that becomes much larger when decompressed is not one of ours.
            bounded = _Bounded(plain, 2 * os.fstat(raw.fileno()).st_size + _MARGIN)
            with tarfile.open(fileobj=bounded, mode="r|") as tar:
                return _first_pack(tar, out, bounded.left)
    except (tarfile.TarError, EOFError, zstandard.ZstdError, OSError) as error:
        raise PackError(f"{folder}: is damaged: its layer cannot be read ({error})") from None


def _first_pack(tar: tarfile.TarFile, out: Path, most: int) -> Path | None:
    """The first pack of at most `most` bytes in a tar, as a file at `out`."""
    for number, member in enumerate(tar):
        if number >= _MEMBERS_MAX:
            break
        if member.isreg() and member.name.endswith(_SUFFIX):
            # The holes of a sparse file take no room in the tar: nothing else would keep them from filling the disk.
            if member.issparse() or member.size > most:
                raise tarfile.ReadError(f"a pack of {member.size:,} bytes is not in it whole")
            content = tar.extractfile(member)
            assert content is not None
            with content, open(out, "xb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            return out
    return None


class _Bounded(io.RawIOBase):
    """Reads a file, up to a number of bytes; more is an error."""

    def __init__(self, file: IO[bytes], left: int) -> None:
        self._file = file
        self.left = left
        """How many bytes may still be read."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self.left -= len(chunk)
        if self.left < 0:
            raise tarfile.ReadError("it becomes too large")
        return chunk


@contextmanager
def _decompressed(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """The layer as a tar, however a registry has compressed it."""
    import gzip

    start = raw.read(4)
    raw.seek(0)
    if start[:2] == b"\x1f\x8b":
        with gzip.open(raw) as plain:
            yield plain  # type: ignore[misc]
    elif start == b"\x28\xb5\x2f\xfd":
        with zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG_MAX).stream_reader(raw) as reader:
            yield reader
    else:
        yield raw
