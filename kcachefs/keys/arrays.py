"""Element types and arrays of numpy, torch and Triton, told alike whichever of them they come from. Imports none."""

from __future__ import annotations

import sys
from typing import Any

from kcachefs.keys.encoding import encode

# One name per element type. `float` and `int` differ in width between libraries and are left as they are.
_ALIASES = {
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
    "fp32": "float32",
    "f32": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "i1": "bool",
    "int1": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
}


def dtype_name(dtype: object) -> str:
    """The one name of an element type.

    >>> dtype_name("torch.float16"), dtype_name("fp16"), dtype_name("half"), dtype_name("int8")
    ('float16', 'float16', 'float16', 'int8')
    """
    if _is(dtype, "numpy", "dtype") or (isinstance(dtype, type) and dtype.__module__ == "numpy"):
        return _numpy_name(dtype)
    name = str(dtype).removeprefix("torch.").removeprefix("tl.")
    return _ALIASES.get(name, name)


def encode_array(value: object) -> bytes | None:
    """The encoding of an array, a scalar or an element type of numpy or torch; None for anything else."""
    root = type(value).__module__.partition(".")[0]
    if root == "numpy":
        return _encode_numpy(value)
    if root == "torch":
        return _encode_torch(value)
    return None


def _encode_numpy(value: Any) -> bytes | None:
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.dtype):
        return encode(("dtype", dtype_name(value)))
    if isinstance(value, numpy.ndarray | numpy.generic) and not value.dtype.hasobject:
        return encode(("array", dtype_name(value.dtype), tuple(value.shape), value.tobytes()))
    return None


def _encode_torch(value: Any) -> bytes | None:
    torch = sys.modules["torch"]
    if isinstance(value, torch.dtype):
        return encode(("dtype", dtype_name(value)))
    if isinstance(value, torch.device | torch.memory_format | torch.layout):
        return encode(("torch", type(value).__name__, str(value)))
    if isinstance(value, torch.Size):
        return encode(("size", tuple(int(item) for item in value)))
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type != "meta":
        flat = value.detach().cpu().contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        shape = tuple(int(item) for item in value.shape)
        return encode(("tensor", dtype_name(value.dtype), shape, tuple(value.stride()), value.device.type, content))
    return None


def _numpy_name(dtype: object) -> str:
    found = sys.modules["numpy"].dtype(dtype)
    if found.fields is not None or found.subdtype is not None or not found.isnative:
        return f"numpy:{found!r}"
    return _ALIASES.get(str(found.name), str(found.name))


def _is(value: object, module: str, name: str) -> bool:
    cls: type | None = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)
