"""Scopes: nodes of one kind share one part of a bucket, so that no node loads an index of entries it cannot use."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

from kcachefs.errors import UsageError

_SCOPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_KFD = Path("/sys/class/kfd/kfd/topology/nodes")


def is_scope(name: str) -> bool:
    return _SCOPE.fullmatch(name) is not None


def checked(scope: str) -> str:
    """The scope, if it can be one."""
    if not is_scope(scope):
        raise UsageError(f"{scope!r}: is not a scope; letters, digits, dots, + and - are allowed, like x86_64-cuda90")
    return scope


def default_scope() -> str:
    """The machine's architecture and its kinds of GPU, like x86_64-cuda90, or x86_64-cpu where there are none."""
    gpus = sorted({*_cuda(), *_rocm()})
    return "-".join([platform.machine(), *(gpus or ["cpu"])])


def _cuda() -> set[str]:
    """Compute capabilities, as the driver's own library reports them."""
    try:
        library = _nvml()
    except (OSError, AttributeError):
        return set()
    if library.nvmlInit_v2() != 0:
        return set()
    found, count = set(), ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for number in range(count.value):
        device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) != 0:
            continue
        if library.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)) == 0:
            found.add(f"cuda{major.value}{minor.value}")
    library.nvmlShutdown()
    return found


def _nvml() -> ctypes.CDLL:
    """NVIDIA's library, with the types of the functions that are called."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    for name, *types in (
        ("nvmlInit_v2",),
        ("nvmlDeviceGetCount_v2", ctypes.POINTER(ctypes.c_uint)),
        ("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)),
        (
            "nvmlDeviceGetCudaComputeCapability",
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_int),
            ctypes.POINTER(ctypes.c_int),
        ),
        ("nvmlShutdown",),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = ctypes.c_int, types
    return library


def _rocm() -> set[str]:
    """Targets from the kernel's table, in which gfx942 is 90402."""
    found = set()
    for properties in _KFD.glob("*/properties"):
        try:
            told = re.search(r"^gfx_target_version (\d+)$", properties.read_text(), re.MULTILINE)
        except OSError:
            continue
        if told is not None and (version := int(told[1])):
            found.add(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    return found
