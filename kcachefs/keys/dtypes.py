"""Element types of numpy, torch, Triton and JAX: one name for each type in all four libraries. Imports none of them."""

from __future__ import annotations

import sys
from typing import Any

from kcachefs.errors import UsageError
from kcachefs.keys.asking import ask, is_a

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
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
    "float8e4nv": "float8_e4m3fn",
    "float8e5": "float8_e5m2",
    "float8e4b8": "float8_e4m3fnuz",
    "float8e5b16": "float8_e5m2fnuz",
    "float8e4b15": "fp8e4b15",
    "bool_": "bool",
}
_NAMES = frozenset(
    {
        *("bool", "float16", "bfloat16", "float32", "float64", "float128", "fp8e4b15"),
        *("complex32", "bcomplex32", "complex64", "complex128", "complex256"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (*range(2, 9), 16, 32, 64)),
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
        *("float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float4_e2m1fn_x2"),
        *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "qint8", "quint8", "qint32", "quint2x4", "quint4x2"),
        "uint1",
    }
)
# The width of these differs from one library to the next.
_AMBIGUOUS = frozenset({"float", "int", "uint", "long", "ulong", "short", "char", "complex", "cfloat", "cdouble"})
_PREFIXES = ("torch.", "tl.", "triton.language.", "numpy.", "np.", "jnp.", "jax.numpy.")


def dtype_name(dtype: Any) -> str:
    """The one name of an element type; raises UsageError for anything else.

    >>> dtype_name("torch.float16"), dtype_name("fp16"), dtype_name("half"), dtype_name("int8")
    ('float16', 'float16', 'float16', 'int8')
    """
    if is_a(dtype, str):
        return _name_of_text(dtype)
    if _is_instance(dtype, "torch", "dtype"):
        return str(dtype).removeprefix("torch.")
    if _is_instance(dtype, "numpy", "dtype") or _is_scalar_type(dtype):
        return _name_of_numpy(dtype)
    if _is_instance(dtype, "triton.language.core", "dtype"):
        return _ALIASES.get(str(dtype), str(dtype))
    if _is_instance(ask(dtype, "dtype"), "numpy", "dtype"):  # such as jax.numpy.float32
        return _name_of_numpy(dtype.dtype)
    raise UsageError(f"{dtype!r} is not an element type; write it like 'float16' or pass torch's, numpy's or Triton's")


def _name_of_text(text: str) -> str:
    name = text
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name == "int1" and text.startswith("torch."):
        return name  # one bit of an integer; Triton's int1 is a truth value
    name = _ALIASES.get(name, name)
    if name in _NAMES:
        return name
    if name in _AMBIGUOUS:
        raise UsageError(f"{text!r} is not the same element type in every library; give its width, as in 'float32'")
    raise UsageError(f"{text!r} is not an element type; write one like 'float16', 'int32' or 'float8_e4m3fn'")


def _name_of_numpy(dtype: Any) -> str:
    found = sys.modules["numpy"].dtype(dtype)
    said = _metadata(found)
    metadata = f" {said!r}" if said else ""
    if found.fields is not None or found.subdtype is not None or not found.isnative or found.kind in "TO":
        return f"numpy:{found!r}{metadata}"
    return _ALIASES.get(str(found.name), str(found.name)) + metadata


def _metadata(dtype: Any) -> list[Any]:
    """The metadata of an element type and of the types of its fields, which its name does not show."""
    if dtype.subdtype is not None:
        return _metadata(dtype.base)
    told = sorted(dtype.metadata.items()) if dtype.metadata else []
    inner = [(name, said) for name in dtype.names or () if (said := _metadata(dtype.fields[name][0]))]
    return told + inner


def _is_scalar_type(dtype: object) -> bool:
    generic: type | None = getattr(sys.modules.get("numpy"), "generic", None)
    return generic is not None and is_a(dtype, type) and issubclass(dtype, generic)


def _is_instance(value: object, module: str, name: str) -> bool:
    cls: type | None = getattr(sys.modules.get(module), name, None)
    return cls is not None and is_a(value, cls)
