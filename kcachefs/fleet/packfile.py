"""The pack as a file: header, manifest, frames. Writes one, and reads one that somebody else wrote.

Reading goes from the outside to the inside, and each step is done only if the one before it succeeded: the lengths, the
digest of the manifest, its signature, its limits, the digest of every frame. Only then is a frame decoded.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import zstandard
from blake3 import blake3

from kcachefs.errors import PackError, PackMissing, PackUntrusted, UsageError, or_no_space
from kcachefs.fleet import manifest as manifests
from kcachefs.fleet import rules, signing
from kcachefs.fleet.manifest import Frame, Manifest
from kcachefs.whole_file import whole_file

MAGIC = b"\x89KCPACK\n"
VERSION = 1
_HEADER = struct.Struct("<8sIIQ32s32s64s")
"""Magic, version, zero, stored bytes of the manifest, their BLAKE3, public key, signature."""
_SIGNED = b"kcachefs pack 1\n"
"""The signed message is this prefix and then the digest, so that no signature made for something else fits."""
_MANIFEST_LEVEL = 19
_CHUNK = 1 << 20


def write(out: Path, manifest: Manifest, frames: IO[bytes], signer: signing.Signer | None) -> None:
    """Write a pack whose frames are in a file already; it appears at `out` when it is whole."""
    plain = manifests.encode(manifest)
    if len(plain) > (rules.MANIFEST_MAX if signer else rules.UNTRUSTED_MANIFEST_MAX):
        advice = "choose some with a pattern" if signer else "choose some with a pattern, or sign it with --key"
        raise UsageError(f"{out}: there are too many entries for one pack; {advice}")
    stored = compress(plain, _MANIFEST_LEVEL)
    digest = blake3(stored).digest()
    public, signature = (signer.public, signer.sign(_SIGNED + digest)) if signer else (bytes(32), bytes(64))
    try:
        with whole_file(out) as file:
            file.write(_HEADER.pack(MAGIC, VERSION, 0, len(stored), digest, public, signature))
            file.write(stored)
            frames.seek(0)
            shutil.copyfileobj(frames, file, _CHUNK)
    except OSError as error:
        raise or_no_space(error, out) from None


def compress(plain: bytes, level: int, progress: Callable[[int], None] = lambda count: None) -> bytes:
    """One zstd frame whose window covers everything, because repeated data lies far apart."""
    window = max(10, min(rules.WINDOW_LOG_MAX, (len(plain) - 1).bit_length()))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=len(plain), window_log=window, enable_ldm=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=len(plain))
    parts, view = [], memoryview(plain)
    for start in range(0, len(plain), _CHUNK):
        parts.append(compressor.compress(view[start : start + _CHUNK]))
        progress(min(_CHUNK, len(plain) - start))
    return b"".join((*parts, compressor.flush()))


@contextmanager
def scratch_file(beside: Path) -> Iterator[IO[bytes]]:
    """A file without a name, on the disk where the pack will be. If that disk is full, the error names the pack."""
    try:
        with tempfile.TemporaryFile(dir=beside.absolute().parent) as file:
            yield file
    except OSError as error:
        raise or_no_space(error, beside) from None


class Pack:
    """An open pack whose manifest has been read and checked."""

    def __init__(self, file: IO[bytes], name: Path, manifest: Manifest, public: bytes, start: int) -> None:
        self.name = name
        self.manifest = manifest
        self.public = public
        """The public key that signed the pack; empty if it is unsigned."""
        self._file = file
        self._start = start

    def frames(self) -> Iterator[tuple[Frame, bytes]]:
        """Every frame with its stored bytes, checked against the manifest."""
        self._file.seek(self._start)
        for frame in self.manifest.frames:
            stored = self._file.read(frame.stored)
            if len(stored) < frame.stored:
                raise PackError(f"{self.name}: is cut off")
            if blake3(stored).hexdigest() != frame.digest:
                raise PackError(f"{self.name}: is damaged: a frame is not the one that was packed")
            yield frame, stored

    def check_frames(self) -> None:
        """Raise PackError if a byte of any frame is wrong. Decodes nothing."""
        for frame, stored in self.frames():
            _check_frame(self.name, stored, frame.plain)

    def decoded(self) -> Iterator[tuple[Frame, memoryview]]:
        """Every frame with its decoded bytes, in which every file is checked against the manifest."""
        for frame, stored in self.frames():
            plain = memoryview(_decode(self.name, stored, frame.plain))
            for entry in frame.entries:
                for file in entry.files:
                    if blake3(plain[file.offset : file.offset + file.size]).hexdigest() != file.digest:
                        raise PackError(f"{self.name}: {entry.label}/{file.name} is not what was packed")
            yield frame, plain


@contextmanager
def opened(
    name: Path, trusted: Collection[bytes], *, allow_unsigned: bool = False, to_look: bool = False
) -> Iterator[Pack]:
    """Open a pack. Its signature is checked before anything else in it; with `to_look`, any key or none will do."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise PackMissing(f"{name}: does not exist") from None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise PackError(f"{name}: is not a pack")
        yield _read(file, name, found.st_size, trusted, allow_unsigned=allow_unsigned, to_look=to_look)


def _read(
    file: IO[bytes], name: Path, size: int, trusted: Collection[bytes], *, allow_unsigned: bool, to_look: bool
) -> Pack:
    raw = file.read(_HEADER.size)
    if raw[: len(MAGIC)] != MAGIC[: len(raw)] or not raw:
        raise PackError(f"{name}: is not a pack")
    if len(raw) < _HEADER.size:
        raise PackError(f"{name}: is cut off")
    _, version, zero, length, digest, public, signature = _HEADER.unpack(raw)
    if version != VERSION:
        raise PackError(f"{name}: has format {version}, and this kcachefs reads format {VERSION}; update kcachefs")
    if zero:
        raise PackError(f"{name}: is damaged: its header is not that of a pack")
    if length > min(size - _HEADER.size, rules.MANIFEST_MAX):
        raise PackError(f"{name}: is cut off, or its header is damaged")
    stored = file.read(length)
    if blake3(stored).digest() != digest:
        raise PackError(f"{name}: is damaged: its manifest is not the one that was packed")
    _check_signature(name, public, signature, digest, None if to_look else trusted, allow_unsigned)
    plain, is_trusted = _decoded_size(name, stored), public in trusted
    if plain > (most := rules.MANIFEST_MAX if is_trusted else rules.UNTRUSTED_MANIFEST_MAX):
        unless = "" if is_trusted else ", unless a trusted key signed it"
        raise PackError(f"{name}: its manifest decodes to {plain:,} bytes; at most {most:,} are read{unless}")
    try:
        manifest = rules.checked(manifests.decode(_decode(name, stored, plain)))
    except PackError as error:
        raise PackError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None
    start = _HEADER.size + length
    end = start + sum(frame.stored for frame in manifest.frames)
    if size != end:
        raise PackError(f"{name}: is cut off" if size < end else f"{name}: is damaged: something follows its end")
    return Pack(file, name, manifest, public if any(public) else b"", start)


def _check_signature(
    name: Path,
    public: bytes,
    signature: bytes,
    digest: bytes,
    trusted: Collection[bytes] | None,
    allow_unsigned: bool,
) -> None:
    if not any(public):
        if any(signature):
            raise PackUntrusted(f"{name}: its signature is wrong: it was changed after it was signed")
        if trusted is not None and not allow_unsigned:
            raise PackUntrusted(f"{name}: is not signed; if you know where it comes from, use --allow-unsigned")
        return
    if trusted is not None and public not in trusted:
        key = signing.public_text(public)
        raise PackUntrusted(f"{name}: is signed by {key}, which is not trusted; trust it with --trust {key}")
    try:
        signing.check(public, signature, _SIGNED + digest)
    except PackUntrusted as error:
        raise PackUntrusted(f"{name}: {error}") from None


def _decode(name: Path, stored: bytes, plain: int) -> bytes:
    """Decode one zstd frame whose header states its decoded size."""
    _check_frame(name, stored, plain)
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << rules.WINDOW_LOG_MAX)
    try:
        return decoder.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise PackError(f"{name}: is damaged: {error}") from None


def _check_frame(name: Path, stored: bytes, plain: int) -> None:
    """Raise PackError unless the frame decodes to `plain` bytes, with a small window."""
    size = _decoded_size(name, stored)
    if size != plain:
        raise PackError(f"{name}: a frame decodes to {size:,} bytes, which is not what it may have")


def _decoded_size(name: Path, stored: bytes) -> int:
    """The decoded size that a frame states; PackError if it states none, or needs a large window."""
    try:
        told = zstandard.get_frame_parameters(stored)
    except zstandard.ZstdError as error:
        raise PackError(f"{name}: is damaged: {error}") from None
    if told.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        raise PackError(f"{name}: is damaged: a frame does not say how large it becomes")
    if told.window_size > 1 << rules.WINDOW_LOG_MAX:
        raise PackError(f"{name}: needs a window of {told.window_size:,} bytes to be decoded, which is too much")
    return int(told.content_size)
