"""Reads a cubin's facts about itself: registers, stack, shared memory, and which ptxas made it. Needs no CUDA tool."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kcachefs.errors import ArtefactGarbled

_SECTION = struct.Struct("<IIQQQQIIQQ")
_HEADER_MIN = 64
_NO_BITS = 8
_SECTIONS_MAX = 20_000
_NAME_MAX = 200
_FORM_SIZED = 4
_REGISTERS, _FRAME, _TOOLKIT_API = 0x2F, 0x11, 0x37
"""Attributes of `.nv.info`, as cuobjdump names them: REGCOUNT, FRAME_SIZE, CUDA_API_VERSION."""
_WORDS = re.compile(rb"[ -~]{4,200}")


@dataclass(frozen=True, slots=True)
class CubinFacts:
    registers: int | None = None
    stack: int | None = None
    """Bytes of local memory for each thread: more than 0 mostly means that registers were spilled."""
    static_shared: int = 0
    code_bytes: int = 0
    cuda: str = ""
    """The CUDA API that it was made for, such as 12.8."""
    ptxas: str = ""
    """Release and build of the ptxas that made it; only CUDA 13 and later record it."""
    ptxas_flags: str = ""


def read(data: bytes) -> CubinFacts:
    """The facts in the file; `ArtefactGarbled` if it is not a cubin."""
    if len(data) < _HEADER_MIN or data[:5] != b"\x7fELF\x02":
        raise ArtefactGarbled("it is not a 64-bit ELF file")
    registers: list[int] = []
    stacks: list[int] = []
    shared = code = 0
    cuda = release = build = flags = ""
    for name, body, size in _sections(data):
        if name == ".nv.info" or name.startswith(".nv.info."):
            for attribute, value in _attributes(body):
                if attribute == _REGISTERS and len(value) == 8:
                    registers.append(struct.unpack("<II", value)[1])
                elif attribute == _FRAME and len(value) == 8:
                    stacks.append(struct.unpack("<II", value)[1])
                elif attribute == _TOOLKIT_API and len(value) == 4:
                    number = struct.unpack("<I", value)[0]
                    cuda = f"{number // 10}.{number % 10}"
        elif name.startswith(".nv.shared."):
            shared += size
        elif name.startswith(".text."):
            code += size
        elif name == ".note.nv.tkinfo":
            words = [word.decode("ascii") for word in _WORDS.findall(body)]
            release = next((word.partition("release ")[2] for word in words if "release " in word), "")
            build = next((word.removeprefix("Build ") for word in words if word.startswith("Build ")), "")
            flags = next((word for word in reversed(words) if word.startswith("-")), "")
    return CubinFacts(
        registers=max(registers, default=None),
        stack=max(stacks, default=None),
        static_shared=shared,
        code_bytes=code,
        cuda=cuda,
        ptxas=" ".join(filter(None, (release, build))),
        ptxas_flags=flags,
    )


def _sections(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Name, bytes and size of each section; bytes only for the sections that are used."""
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, number, names_at = struct.unpack_from("<HHH", data, 0x3A)
    if size < _SECTION.size or number > _SECTIONS_MAX or names_at >= number or start + size * number > len(data):
        raise ArtefactGarbled("its table of sections is damaged")
    heads = [_SECTION.unpack_from(data, start + index * size) for index in range(number)]
    names = data[heads[names_at][4] : heads[names_at][4] + heads[names_at][5]]
    left = len(data)
    for head in heads:
        name = names[head[0] : head[0] + _NAME_MAX].partition(b"\0")[0].decode("ascii", "replace")
        body = b""
        if head[1] != _NO_BITS and name.startswith((".nv.info", ".note.nv.tkinfo")):
            left -= head[5]
            if left < 0:  # sections share bytes, which would be read over and over
                raise ArtefactGarbled("its sections are larger than the file")
            body = data[head[4] : head[4] + head[5]]
        yield name, body, min(head[5], 1 << 40)


def _attributes(body: bytes) -> list[tuple[int, bytes]]:
    """The attributes of a section `.nv.info` whose value states its own size."""
    found, at = [], 0
    while at + 4 <= len(body):
        form, attribute, size = struct.unpack_from("<BBH", body, at)
        at += 4
        if form == _FORM_SIZED:
            found.append((attribute, body[at : at + size]))
            at += size
    return found
