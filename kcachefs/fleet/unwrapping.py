"""Turns a checked frame of a pack into a parcel for the worker, with paths that lead into its mount."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from kcachefs.fleet import moving, parcels
from kcachefs.fleet.manifest import Frame
from kcachefs.fleet.parcels import ParcelEntry, ParcelFile


def parcel(frame: Frame, plain: memoryview, mount: Path) -> int:
    """The descriptor of a parcel with every entry of a frame. The caller closes it."""
    chunks: list[bytes | memoryview] = [plain]
    end = len(plain)
    entries = []
    for entry in frame.entries:
        files = []
        for file in entry.files:
            offset, size = file.offset, file.size
            if file.moves:
                path = PurePosixPath(entry.namespace, *entry.path, file.name)
                moved = moving.to_target(bytes(plain[offset : offset + size]), mount, path)
                offset, size, end = end, len(moved), end + len(moved)
                chunks.append(moved)
            files.append(ParcelFile(file.name, file.mode, file.mtime, offset, size))
        entries.append(ParcelEntry(entry.namespace, tuple(entry.path), entry.group, tuple(files)))
    return parcels.make(entries, chunks)
