"""Tensors of every layout and other values of torch. Imports it only where it is imported already."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from blake3 import blake3

from kcachefs import libc
from kcachefs.errors import Unkeyable
from kcachefs.keys.asking import ask
from kcachefs.keys.dtypes import dtype_name
from kcachefs.keys.libraries import top_of, version_of
from kcachefs.keys.readers.reader import Reader


def _tensor(value: Any) -> Any:
    torch = sys.modules["torch"]
    try:
        # A subclass answers questions about itself as it likes; this asks the tensor beneath.
        with torch._C.DisableTorchFunctionSubclass():
            return _read(torch, value)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise Unkeyable(f"{type(value).__qualname__} cannot be read: {reason}; pass a plain tensor") from None


def _read(torch: Any, value: Any) -> Any:
    cls = type(value)
    if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return _wrapper(value)
    if torch._C._functorch.is_functorch_wrapped_tensor(value) or torch._is_functional_tensor(value):
        raise Unkeyable("a tensor under a transform of torch.func holds no data of its own; pass it from outside")
    for base in cls.__mro__[: cls.__mro__.index(torch.Tensor)]:
        if not _ASKED.isdisjoint(vars(base)) and base is not torch.nn.Parameter:
            raise Unkeyable(f"{base.__qualname__} overrides what a tensor says; give it a __kcachefs_key__ method")
    if value._backward_hooks or value._post_accumulate_grad_hooks:
        raise Unkeyable("a tensor with backward hooks cannot be read; pass it without them, or detached")
    if value.grad_fn is not None:
        raise Unkeyable("a tensor that remembers what it was computed from cannot be read in full; pass it detached")
    about = (
        dtype_name(value.dtype),
        str(value.layout),
        value.device.type,
        (value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.is_inference()),
        # Removed from torch after 2.12.
        names if any(names := getattr(value, "names", ())) else None,
        _tensor(value.grad) if value.is_leaf and value.grad is not None else None,
    )
    return (_class_label(torch, cls), about, _content(torch, value))


# What is asked of a tensor, and must not be answered by a subclass.
_ASKED = frozenset(
    {
        *("dtype", "layout", "device", "shape", "stride", "requires_grad", "is_leaf", "is_conj", "is_neg", "grad"),
        *("is_inference", "is_nested", "is_quantized", "is_coalesced", "detach", "resolve_conj", "resolve_neg", "cpu"),
        *("contiguous", "numel", "element_size", "data_ptr", "values", "offsets", "unbind", "int_repr", "qscheme"),
        *("grad_fn", "_post_accumulate_grad_hooks"),
        *("crow_indices", "col_indices", "ccol_indices", "row_indices", "_indices", "_values", "_backward_hooks"),
    }
)


def _content(torch: Any, value: Any) -> Any:
    if value.is_nested:
        if value.layout is torch.jagged:
            return ("jagged", _tensor(value.values()), _tensor(value.offsets()), value._ragged_idx)
        return ("nested", [_tensor(part) for part in value.unbind()])
    shape = tuple(_size(size) for size in value.shape)
    if value.layout is torch.sparse_coo:
        return (shape, value.is_coalesced(), _tensor(value._indices()), _tensor(value._values()))
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return (shape, *map(_tensor, (value.crow_indices(), value.col_indices(), value.values())))
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return (shape, *map(_tensor, (value.ccol_indices(), value.row_indices(), value.values())))
    if value.layout is not torch.strided:
        raise Unkeyable(f"a tensor of layout {value.layout} cannot be read; pass a strided one")
    if value.is_quantized:
        return (shape, value.stride(), _quantisation(torch, value), _tensor(value.int_repr()))
    return (shape, value.stride(), None if value.device.type == "meta" else _bytes(value))


def _bytes(value: Any) -> bytes:
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    size = flat.numel() * flat.element_size()
    return blake3(libc.bytes_at(flat.data_ptr(), size) if size else b"").digest()


def _quantisation(torch: Any, value: Any) -> Any:
    scheme = value.qscheme()
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return (str(scheme), value.q_scale(), value.q_zero_point())
    scales, zeros = value.q_per_channel_scales(), value.q_per_channel_zero_points()
    return (str(scheme), _tensor(scales), _tensor(zeros), value.q_per_channel_axis())


def _wrapper(value: Any) -> Any:
    """A subclass that keeps its data in other tensors, and says in which."""
    flatten = getattr(type(value), "__tensor_flatten__", None)
    if flatten is None:
        raise Unkeyable(
            f"{type(value).__qualname__} keeps its data elsewhere; give it a __tensor_flatten__ that says where"
        )
    names, context = flatten(value)
    return ("wrapper", {name: getattr(value, name) for name in names}, context)


def _fake(value: Any) -> Any:
    shape, strides = (tuple(_size(size) for size in sizes) for sizes in (value.shape, value.stride()))
    return (dtype_name(value.dtype), shape, strides, str(value.layout), value.fake_device.type, value.requires_grad)


def _size(size: Any) -> int:
    if type(size) is not int:
        raise Unkeyable(f"{size} is a symbolic size; pass a TensorSpec with a Dim in its place")
    return size


def _class_label(torch: Any, cls: type) -> str:
    return cls.__name__ if cls in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) else ""


def _module(value: Any) -> Any:
    """What the attributes of a module do not tell: the order of its parts, and its hooks without their numbers."""
    held = vars(value)
    if not all(isinstance(held.get(name), dict) for name in _PARTS):
        raise Unkeyable(f"{type(value).__qualname__} keeps its parts where Python cannot see them; pass a plain module")
    parts = [list(held[name]) for name in _PARTS]
    hooks = []
    for name in sorted(_HOOKS & held.keys()):
        marks = [held.get(name + end) or () for end in ("_with_kwargs", "_always_called")]
        hooks.append((name, [(hook, *(number in mark for mark in marks)) for number, hook in held[name].items()]))
    return (parts, hooks)


_PARTS = ("_parameters", "_buffers", "_modules")
# Hooks by number, and numbers of those that are called in another way. Numbers are counted by the process.
_HOOKS = frozenset(
    {
        *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks"),
        *("_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    }
)
_HOOK_MARKS = frozenset(
    {"_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs"}
)


def _tensors_of_module(value: Any) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers: a step that changes one that two modules have changes both."""
    held = vars(value)
    for kind in ("_parameters", "_buffers"):
        for name in sorted(held[kind]):
            if held[kind][name] is not None:
                yield f"{kind}.{name}", held[kind][name]


# What torch.compile and torch.jit leave in a module that they were given.
_LEFT_BEHIND = frozenset({"_is_torch_compile", "__overloads__"})
_MODULE = Reader("module", _module, noise=_HOOKS | _HOOK_MARKS | _LEFT_BEHIND, parts=_tensors_of_module)


def _generator(value: Any) -> Any:
    torch = sys.modules["torch"]
    return (torch.Generator.device.__get__(value).type, torch.Generator.get_state(value))


def _optimised_module(value: Any) -> Any:
    return (value._orig_mod, compile_settings(value.dynamo_ctx))


def compile_settings(context: Any) -> Any:
    """The settings of `torch.compile`, from the context that its wrapper holds."""
    backend = getattr(context, "callback", None)
    for _ in range(100):
        inner = ask(backend, "_torchdynamo_orig_backend")
        if inner is None:
            break
        backend = inner
    names = ("fullgraph", "error_on_graph_break", "_dynamic", "export", "msg", "wrapping")
    held = {name: getattr(context, name, None) for name in names}
    return (type(context).__qualname__, backend, held, version_of("torch"))


def _graph(value: Any) -> Any:
    code = value.python_code("self")
    # The text has the names of operators, which is all there is to those of torch.
    foreign = {str(node.target): node.target for node in value.nodes if _is_foreign(node.target)}
    return (code.src, code.globals, foreign)


def _operator(value: Any) -> Any:
    if not _is_foreign(value):
        return (str(value), version_of("torch"))
    definition = _definitions().get(_qualified_name(value))
    if definition is None:
        raise Unkeyable(
            f"torch.ops.{value} was registered with torch by others, and torch does not show what it does; pass what "
            "torch.library.custom_op returned, or name the variable in `ignore`"
        )
    return (str(value), definition)


def _is_foreign(target: Any) -> bool:
    """Whether a value is an operator that torch does not ship: another of the same name may do something else."""
    name = _qualified_name(target)
    return bool(name) and not _is_of_torch(name)


def _is_of_torch(name: str) -> bool:
    """Whether torch ships the operator of this qualified name; others can add theirs to its namespaces."""
    if name.partition("::")[0] not in _NAMESPACES:
        return False
    definition = _definitions().get(name)
    return definition is None or top_of(str(ask(ask(definition, "_init_fn"), "__module__"))) == "torch"


def _qualified_name(operator: Any) -> str:
    """`namespace::name` of an operator, or of one of its overloads; nothing for other values."""
    held = sys.modules["torch"]._ops
    if isinstance(operator, held.OpOverloadPacket):
        return str(operator._qualified_op_name)
    return str(operator._schema.name) if isinstance(operator, held.OpOverload) else ""


def operator_called(module: Any, names: Sequence[str]) -> tuple[str, Any] | None:
    """The operator that `module.names` means in code, such as `torch.ops.mine.scale`, if torch does not ship it.

    With what `torch.library.custom_op` returned for it, or None if it was defined in another way, or not yet.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if module is torch:
        inside = list(names[1:]) if names[:1] == ("ops",) else []
    elif module is torch.ops:
        inside = list(names)
    else:
        inside = [module.name, *names] if is_namespace(module) else []
    name = "::".join(inside[:2])
    return None if len(inside) < 2 or _is_of_torch(name) else (name, _definitions().get(name))


def is_namespace(value: Any) -> bool:
    """Whether a value is `torch.ops.mine`, which finds its operators as they are used."""
    kind = ask(sys.modules.get("torch._ops"), "_OpNamespace")
    return kind is not None and type(value) is kind


def operators_mentioned(names: Collection[str]) -> list[tuple[str, Any]]:
    """The operators whose names are among those that code loads, with what `torch.library.custom_op` returned for each.

    So `torch.ops` may be kept in a variable, or torch imported by the function.
    """
    if "ops" not in names:
        return []
    parts = ((name, name.partition("::")) for name in sorted(_definitions()))
    return [
        (name, _definitions()[name])
        for name, (namespace, _, own) in parts
        if namespace in names and own in names and not _is_of_torch(name)
    ]


def _definitions() -> dict[str, Any]:
    """The operators that were defined with `torch.library.custom_op`, by their qualified names."""
    found = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", None)
    return dict(found) if found else {}


# Where torch keeps its own operators.
_NAMESPACES = frozenset(
    {
        *("aten", "prim", "prims", "debugprims", "rngprims", "inductor", "inductor_prims", "c10d", "c10d_functional"),
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_quantized", "debug_mode_ops"),
        *("_inductor_debug", "_inductor_test", "_test", "ao", "export", "fsdp", "higher_order", "metal_prepack", "mkl"),
        *("mkldnn", "mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic", "profiler", "quantization"),
        *("vulkan_prepack", "vulkan_quantized", "vulkan_quantized_prepack"),
        *("quantized", "quantized_decomposed", "sparse", "static_runtime", "symm_mem", "xnnpack", "prepacked"),
    }
)


def _custom_operator(value: Any) -> Any:
    """An operator with all that was registered for it: kernels, gradients, fakes, rules."""
    torch = sys.modules["torch"]
    begin, own = f"{value._namespace}/{value._name}/", ask(value._lib, "_op_impls", ())
    if any(key.startswith(begin) and key not in own for key in ask(torch.library, "_impls", ())):
        raise Unkeyable(
            f"{value._qualname} has a kernel that torch.library.impl registered, which cannot be read; register it "
            "with register_kernel, or name the variable in `ignore`"
        )
    registered = {name: held for name, held in vars(value).items() if name not in _OF_DISPATCHING}
    registry = ask(sys.modules.get("torch._library.simple_registry"), "singleton")
    effect = ask(ask(ask(registry, "_data", {}).get(value._qualname), "effect"), "effect")
    return (value._qualname, registered, effect, version_of("torch"))


# What an operator holds only in order to be called.
_OF_DISPATCHING = frozenset({"_lib", "_opoverload"})

# torch.compile marks the parameters that it has met.
_MARKS = frozenset({"_dynamo_static_input_type"})

READERS: dict[str, Reader] = {
    "torch.Tensor": Reader("tensor", _tensor, is_inline=True, noise=_MARKS),
    "torch.nn.parameter.Parameter": Reader("tensor", _tensor, is_inline=True, noise=_MARKS),
    "torch._subclasses.fake_tensor.FakeTensor": Reader("fake tensor", _fake, is_inline=True, attributes="noise"),
    "torch.dtype": Reader("dtype", dtype_name, is_inline=True),
    "torch.Size": Reader("size", lambda value: tuple(_size(size) for size in value), is_inline=True),
    "torch.device": Reader("device", str, is_inline=True),
    "torch.finfo": Reader("limits", str, is_inline=True),
    "torch.iinfo": Reader("limits", str, is_inline=True),
    "torch.nn.modules.module.Module": _MODULE,
    # Weak references to the weights, which it also has a list of.
    "torch.nn.modules.rnn.RNNBase": replace(_MODULE, noise=_MODULE.noise | {"_flat_weight_refs"}),
    "torch._C.Generator": Reader("random generator", _generator),
    "torch.layout": Reader("layout", str, is_inline=True),
    "torch.memory_format": Reader("memory format", str, is_inline=True),
    "torch.qscheme": Reader("quantisation scheme", str, is_inline=True),
    "torch._dynamo.eval_frame.OptimizedModule": Reader("compiled module", _optimised_module, attributes="noise"),
    "torch.fx.graph.Graph": Reader("graph", _graph, attributes="noise"),
    "torch._ops.OpOverload": Reader("operator", _operator, is_inline=True, attributes="noise"),
    "torch._ops.OpOverloadPacket": Reader("operator", _operator, is_inline=True, attributes="noise"),
    "torch._library.custom_ops.CustomOpDef": Reader("custom operator", _custom_operator, attributes="noise"),
}
