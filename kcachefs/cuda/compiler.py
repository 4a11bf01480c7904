"""NVRTC itself, through cuda.bindings: one compile, and which compiler it is."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import nvrtc

from kcachefs.errors import CompileFailed

_BUILD = re.compile(rb"^// (Compiler Build ID: .*|Cuda compilation tools, .*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Output:
    """The results of one compilation."""

    ptx: bytes
    cubin: bytes | None
    lowered_names: Mapping[str, str]
    log: str


def compile_program(
    source: str | bytes,
    options: Sequence[str],
    *,
    name: str = "kernel.cu",
    headers: Mapping[str, str | bytes] | None = None,
    name_expressions: Sequence[str] = (),
    want_cubin: bool = True,
) -> Output:
    """Compile a program; raises `CompileFailed` with the compiler's log."""
    given = {key: _bytes(value) for key, value in (headers or {}).items()}
    program = _checked(
        nvrtc.nvrtcCreateProgram(
            _bytes(source), name.encode(), len(given), list(given.values()), [key.encode() for key in given]
        )
    )
    try:
        for expression in name_expressions:
            _checked(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        words = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileFailed(f"NVRTC could not compile {name}: {log.strip() or result.name}", log)
        lowered = {
            expression: _checked(nvrtc.nvrtcGetLoweredName(program, expression.encode())).decode()
            for expression in name_expressions
        }
        ptx = _blob(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        cubin = _blob(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) if want_cubin else None
        return Output(ptx.rstrip(b"\0"), cubin or None, lowered, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.cache
def compiler_version() -> str:
    """The compiler with its exact build, read from its output: its version call does not return the build."""
    major, minor = _checked(nvrtc.nvrtcVersion())
    probe = compile_program(b"", ["--gpu-architecture=compute_90"], want_cubin=False)
    build = b"; ".join(_BUILD.findall(probe.ptx)).decode()
    return f"nvrtc {major}.{minor} {build}"


@functools.cache
def supported_archs() -> tuple[int, ...]:
    """The virtual architectures that this NVRTC can compile for, lowest first."""
    return tuple(sorted(int(arch) for arch in _checked(nvrtc.nvrtcGetSupportedArchs())))


def _checked(answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileFailed(f"NVRTC refused: {result.name}; check the program's options and name expressions")
    return values[0] if len(values) == 1 else tuple(values)


def _blob(program: Any, size_of: Any, read: Any) -> bytes:
    size = int(_checked(size_of(program)))
    content = bytes(size)
    _checked(read(program, content))
    return content


def _text(program: Any, size_of: Any, read: Any) -> str:
    return _blob(program, size_of, read).rstrip(b"\0").decode("utf-8", "replace")


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
