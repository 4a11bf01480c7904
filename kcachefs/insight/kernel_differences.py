"""Why one Triton kernel does not match another: every ingredient of the key that differs, the most telling first."""

from __future__ import annotations

import json
import re
from typing import Any

from kcachefs.insight.bodies import body_causes
from kcachefs.insight.causes import Cause, Kind, clipped, in_order
from kcachefs.insight.kernels import TritonKernel, base, shown
from kcachefs.insight.sources import Read, Sources, read_file

_POINTER = re.compile(r"!tt\.ptr<(.+?)(?:, .*)?>")
_OF_THE_TARGET = frozenset(
    (
        "arch",
        "supported_fp8_dtypes",
        "deprecated_fp8_dot_operand_dtypes",
        "max_num_imprecise_acc_default",
        "default_dot_input_precision",
        "allowed_dot_input_precisions",
        "matrix_instr_nonkdim",
        "waves_per_eu",
        "kpack",
    )
)
"""Options that Triton derives from the GPU or its own version."""
_ABSENT = object()


def differences(new: TritonKernel, old: TritonKernel, read: Read = read_file) -> list[Cause]:
    """All differences; empty if the two cannot be told apart."""
    other_tool = _versions(new, old)
    other_gpu = _architecture(new, old)
    derived = bool(other_tool or other_gpu)
    causes = [*other_tool, *other_gpu, *_environment(new, old), *_options(new, old, derived=derived)]
    arguments = _arguments(new, old)
    causes += arguments
    if not derived and not any(one.kind is Kind.TYPE for one in arguments):
        causes += body_causes(new, old, Sources(read, new.created, old.created), alone=not causes)
    return in_order(causes)


def _versions(new: TritonKernel, old: TritonKernel) -> list[Cause]:
    if new.version != old.version:
        return [Cause(Kind.VERSION, f"Triton {old.version or 'unknown'} → {new.version or 'unknown'}")]
    if new.arch != old.arch or new.options.get("ptx_version") != old.options.get("ptx_version"):
        return []  # the PTX version follows from these two
    ours, theirs = (one.binary.ptxas if one.binary else "" for one in (new, old))
    if ours != theirs and (new.binary and old.binary):
        names = [
            name or f"one older than CUDA 13 (PTX {one.ptx_version})" for name, one in ((theirs, old), (ours, new))
        ]
        return [Cause(Kind.VERSION, f"ptxas {names[0]} → {names[1]}")]
    if new.ptx_version and old.ptx_version and new.ptx_version != old.ptx_version:
        return [Cause(Kind.VERSION, f"another ptxas: PTX {old.ptx_version} → {new.ptx_version}")]
    return []


def _architecture(new: TritonKernel, old: TritonKernel) -> list[Cause]:
    if new.target == old.target:
        return []
    return [Cause(Kind.ARCHITECTURE, f"GPU architecture {old.target} → {new.target}")]


def _environment(new: TritonKernel, old: TritonKernel) -> list[Cause]:
    return [
        Cause(
            Kind.ENVIRONMENT,
            f"{name} is {clipped(new.environment.get(name))}, was {clipped(old.environment.get(name))}",
        )
        for name in sorted(new.environment.keys() | old.environment.keys())
        if new.environment.get(name) != old.environment.get(name)
    ]


def _options(new: TritonKernel, old: TritonKernel, *, derived: bool) -> list[Cause]:
    found = []
    for name in dict.fromkeys((*new.options, *old.options)):
        was, now = old.options.get(name, _ABSENT), new.options.get(name, _ABSENT)
        if was == now or (derived and (name in _OF_THE_TARGET or _ABSENT in (was, now))):
            continue
        found.append(Cause(Kind.OPTION, f"{name}={_option(now)}, was {name}={_option(was)}"))
    if {name: base(path) for name, path in new.libraries.items()} != {
        name: base(path) for name, path in old.libraries.items()
    }:
        found.append(Cause(Kind.OPTION, f"linked libraries: {_libraries(new)}, was {_libraries(old)}"))
    return found


def _option(value: Any) -> str:
    if value is _ABSENT:
        return "unset"
    return clipped(value if isinstance(value, str | bool) or value is None else json.dumps(value), 60)


def _libraries(kernel: TritonKernel) -> str:
    return clipped(", ".join(sorted(base(path) for path in kernel.libraries.values())) or "none")


def _arguments(new: TritonKernel, old: TritonKernel) -> list[Cause]:
    ours, theirs = new.arguments, old.arguments
    if not ours or not theirs or ours == theirs:
        return []
    if list(ours) != list(theirs) and list(ours.values()) == list(theirs.values()):
        was, now = next((x, y) for x, y in zip(theirs, ours, strict=True) if x != y)
        return [Cause(Kind.SOURCE, f"the parameter {was} is called {now} now ({shown(new.place)})")]
    found = []
    changed = [name for name in ours if name in theirs and ours[name].type != theirs[name].type]
    if changed:
        name, more = changed[0], f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        was, now = type_in_words(theirs[name].type), type_in_words(ours[name].type)
        found.append(Cause(Kind.TYPE, f"argument {name} is {now}{more}, was {was}"))
    for name in (name for name in theirs if name not in ours):
        was = type_in_words(theirs[name].type)
        found.append(Cause(Kind.TYPE, f"argument {name} is a constant now (None, 1 or a constexpr), was {was}"))
    for name in (name for name in ours if name not in theirs):
        now = type_in_words(ours[name].type)
        found.append(Cause(Kind.TYPE, f"argument {name} is {now}, was a constant or not there"))
    for name in ours:
        if name in theirs and ours[name].divisible != theirs[name].divisible:
            was, now = _divisible(theirs[name].divisible), _divisible(ours[name].divisible)
            found.append(Cause(Kind.TYPE, f"argument {name} is {now}, was {was}"))
    return found


def _divisible(by: int | None) -> str:
    return f"divisible by {by}" if by else "not divisible by 16"


def type_in_words(text: str) -> str:
    """
    >>> type_in_words("!tt.ptr<f16>"), type_in_words("i32")
    ('a pointer to f16', 'i32')
    """
    found = _POINTER.fullmatch(text)
    return f"a pointer to {found[1]}" if found else clipped(text, 60)
