"""Arrays of numpy and tensors of torch, and what torch makes of functions. Left out where a library is missing."""

from __future__ import annotations

from tests.keys.cases.case import Case, edits, mutations, values

NUMPY = """
import numpy as np
a = np.arange(6.0).reshape(2, 3)
def masked(mask, fill=None):
    return np.ma.MaskedArray([1, 2], mask=mask, fill_value=fill)
class Sub(np.ndarray):
    def view(self, *how):
        return np.zeros(1)
def sub(values, **attributes):
    made = np.ndarray.view(np.asarray(values), Sub)
    vars(made).update(attributes)
    return made
class Scalar(np.float64):
    pass
"""

TORCH = """
import torch
from torch import nn
def plain(**how):
    return torch.arange(6.0, **how).reshape(2, 3)
def sparse(values, size=3):
    return torch.sparse_coo_tensor([[0, 1]], values, (size,))
def quantised(scale=0.5, zero=0, dtype=torch.qint8):
    return torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), scale, zero, dtype)
def channels(scales, axis=0):
    return torch.quantize_per_channel(torch.ones(2, 2), torch.tensor(scales), torch.zeros(2), axis, torch.qint8)
def nested(*rows, layout=torch.strided):
    return torch.nested.nested_tensor([torch.tensor(row) for row in rows], layout=layout)
def ragged(*rows):
    return nested(*rows, layout=torch.jagged)
def tagged(**attributes):
    made = torch.ones(2)
    vars(made).update(attributes)
    return made
def with_grad(grad):
    made = torch.ones(2, requires_grad=True)
    made.grad = torch.tensor(grad)
    return made
def fake(*shape, dtype=torch.float32):
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        return torch.empty(*shape, dtype=dtype)
def hooked():
    made = torch.ones(2, requires_grad=True)
    made.register_hook(print)
    return made
def transformed():
    held = []
    torch.vmap(lambda x: (held.append(x), x)[1])(torch.ones(2))
    return held[0]
class Sub(torch.Tensor):
    pass
class Opaque(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError
class Odd(torch.Tensor):
    shape = (1, 2, 3)
class Wrapped(Opaque):
    def __tensor_flatten__(self):
        return ["inner"], None
def linear(weight=1.0, bias=True):
    made = nn.Linear(2, 2, bias=bias)
    for parameter in made.parameters():
        nn.init.constant_(parameter, weight)
    return made
def f(x):
    return x + 1
def g(x):
    return x + 2
@torch.library.custom_op("cases::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""

OPERATORS = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
if not hasattr(torch.ops.cases, "defined"):
    torch.library.define("cases::defined", "(Tensor x) -> Tensor")
@torch.library.custom_op("cases::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x + 1
def other(*args):
    return args[0]
graph = torch.fx.Graph()
graph.output(graph.call_function(torch.ops.cases.op.default, (graph.placeholder("x"),)))
GIVEN = {"op": op, "overload": torch.ops.cases.op.default, "packet": torch.ops.cases.op, "graph": graph}
def kernel(x):
    return GIVEN["op"](x)
def by_name(x):
    return x + torch.ops.cases.op(x)
ops = torch.ops
def through_ops(x):
    return x + ops.cases.op.default(x)
namespace = torch.ops.cases
def through_namespace(x):
    return x + namespace.op(x)
def with_its_own_import(x):
    import torch
    return x + torch.ops.cases.op(x)
def through_a_variable(x):
    mine = torch.ops.cases
    return x + mine.op(x)
"""

REACHING = ("through_namespace", "with_its_own_import", "through_a_variable")

# The project's own, among those of torch.
OPERATORS_AMONG_THEIRS = OPERATORS.replace("cases::op", "quantization::op").replace("cases.op", "quantization.op")

CASES: list[Case] = [
    *values(
        "numpy",
        "change",
        NUMPY,
        """
        np.array([1, 2]) || np.array([1, 3])
        np.array([1, 2]) || np.array([[1, 2]])
        np.array([1, 2], "i4") || np.array([1, 2], "i8")
        np.array([1, 2], "<i4") || np.array([1, 2], ">i4")
        np.zeros((2, 3)) || np.zeros((2, 3), order="F")
        a || a.T
        a || np.asfortranarray(a)
        np.ones((2, 2)) || np.ones((4, 4))[::2, ::2]
        np.zeros(3) || np.broadcast_to(np.zeros(1), 3)
        np.zeros(3) || -np.zeros(3)
        np.array([1.0]) || np.matrix([1.0])
        np.matrix([[1.0]]) || np.array([[1.0]])
        np.matrix([[1.0]]) || np.matrix([[2.0]])
        masked([0, 1]) || masked([1, 0])
        masked([0, 0]) || np.array([1, 2])
        masked([0, 1], 5) || masked([0, 1], 6)
        sub([1, 2]) || sub([1, 3])
        sub([1, 2]) || np.array([1, 2])
        sub([1], unit="m") || sub([1], unit="s")
        np.float32(1) || np.float64(1)
        np.float64(1) || np.float64(2)
        np.float64(1) || 1.0
        np.int64(1) || 1
        np.bool_(True) || True
        Scalar(1.0) || np.float64(1.0)
        Scalar(1.0) || Scalar(2.0)
        np.datetime64("2024-01-01") || np.datetime64("2024-01-02")
        np.datetime64(1, "s") || np.datetime64(1, "ms")
        np.array(["a"]) || np.array(["b"])
        np.array(["a"], np.dtypes.StringDType()) || np.array(["b"], np.dtypes.StringDType())
        np.array([{"a": 1}], object) || np.array([{"a": 2}], object)
        np.array([(1, 2)], "i4,f4") || np.array([(1, 3)], "i4,f4")
        np.array([(1, 2)], [("a", "i4"), ("b", "i4")]) || np.array([(1, 2)], [("a", "i4"), ("c", "i4")])
        np.rec.array([(1, 2)], "i4,f4") || np.array([(1, 2)], "i4,f4")
        np.dtype("f4") || np.dtype("f8")
        np.dtype("<f4") || np.dtype(">f4")
        np.dtype("f4", metadata={"a": 1}) || np.dtype("f4")
        np.float32 || np.float64
        np.add || np.subtract
        np.poly1d([1, 2]) || np.poly1d([1, 3])
        """,
        "numpy",
    ),
    *values(
        "numpy equal",
        "same",
        NUMPY,
        """
        np.array([1, 2]) || np.array((1, 2))
        np.arange(3) || np.array([0, 1, 2])
        np.zeros((2, 3)) || np.zeros(6).reshape(2, 3)
        np.array([1.0], order="F") || np.array([1.0])
        np.float64(1) || np.float64(1)
        np.dtype("float32") || np.dtype(np.float32)
        np.array([1, 2])[:1] || np.array([1])
        masked([0, 1]) || masked([False, True])
        """,
        "numpy",
    ),
    *values(
        "numpy",
        "refused",
        NUMPY,
        """
        np.nditer(a)
        """,
        "numpy",
    ),
    *values(
        "torch",
        "change",
        TORCH,
        """
        torch.ones(2) || torch.ones(3)
        torch.ones(2) || torch.zeros(2)
        torch.ones(2) || torch.ones(2, dtype=torch.float64)
        torch.ones(2).bool() || torch.ones(2, dtype=torch.uint8)
        torch.zeros(2) || -torch.zeros(2)
        plain() || plain().t().contiguous().t()
        plain() || plain().t()
        torch.ones(2) || torch.ones(2, requires_grad=True)
        torch.ones(2) || nn.Parameter(torch.ones(2))
        nn.Parameter(torch.ones(2)) || nn.Parameter(torch.ones(2), requires_grad=False)
        nn.Parameter(torch.ones(2)) || nn.Parameter(torch.zeros(2))
        with_grad([1.0, 2.0]) || with_grad([1.0, 3.0])
        torch.empty(2, device="meta") || torch.empty(3, device="meta")
        torch.empty(2, device="meta") || torch.empty(2, device="meta", dtype=torch.int8)
        torch.empty(2, 3, device="meta") || torch.empty(3, 2, device="meta").t()
        torch.empty(2, device="meta") || torch.zeros(2)
        sparse([1.0, 2.0]) || sparse([1.0, 3.0])
        sparse([1.0, 2.0]) || sparse([1.0, 2.0], 4)
        sparse([1.0, 2.0]) || sparse([1.0, 2.0]).to_dense()
        sparse([1.0, 2.0]) || sparse([1.0, 2.0]).coalesce()
        plain().to_sparse_csr() || (plain() * 2).to_sparse_csr()
        plain().to_sparse_csr() || plain().to_sparse_csc()
        plain().to_sparse_bsr((2, 3)) || (plain() + 1).to_sparse_bsr((2, 3))
        quantised(0.5) || quantised(0.25)
        quantised(zero=0) || quantised(zero=1)
        quantised() || quantised(dtype=torch.qint32)
        quantised() || quantised().int_repr()
        channels([0.5, 0.5]) || channels([0.5, 0.25])
        channels([0.5, 0.5], 0) || channels([0.5, 0.5], 1)
        torch.tensor([1 + 2j]) || torch.tensor([1 + 2j]).conj()
        torch.tensor([1 + 2j]).conj() || torch.tensor([1 - 2j])
        torch.tensor([1 + 2j]).conj().imag || torch.tensor([1 - 2j]).imag
        nested([1.0], [2.0, 3.0]) || nested([1.0], [2.0, 4.0])
        nested([1.0], [2.0, 3.0]) || nested([1.0, 2.0], [3.0])
        nested([1.0], [2.0], layout=torch.jagged) || nested([1.0], [3.0], layout=torch.jagged)
        nested([1.0], [2.0, 3.0], layout=torch.jagged) || nested([1.0, 2.0], [3.0], layout=torch.jagged)
        nested([1.0], [2.0], layout=torch.jagged) || nested([1.0], [2.0])
        tagged(tile=1) || tagged(tile=2)
        tagged(tile=1) || tagged()
        torch.ones(2).as_subclass(Sub) || torch.zeros(2).as_subclass(Sub)
        torch.ones(2).as_subclass(Sub) || torch.ones(2)
        Wrapped(torch.ones(2)) || Wrapped(torch.zeros(2))
        fake(2) || fake(3)
        fake(2) || fake(2, dtype=torch.int8)
        fake(2) || torch.empty(2, device="meta")
        torch.ones(2) || torch.ones(2).numpy()
        torch.float16 || torch.bfloat16
        torch.int1 || torch.bool
        torch.device("cpu") || torch.device("cuda")
        torch.device("cuda:0") || torch.device("cuda:1")
        torch.Size([1, 2]) || torch.Size([2, 1])
        torch.Size([1]) || (1,)
        torch.strided || torch.sparse_coo
        torch.contiguous_format || torch.channels_last
        torch.add || torch.sub
        torch.ops.aten.add.Tensor || torch.ops.aten.sub.Tensor
        linear() || linear(2.0)
        linear() || linear(bias=False)
        linear() || linear().eval()
        nn.ReLU() || nn.GELU()
        nn.Dropout(0.1) || nn.Dropout(0.2)
        torch.compile(f) || torch.compile(g)
        torch.compile(f) || f
        torch.compile(f) || torch.compile(f, mode="max-autotune")
        torch.compile(f) || torch.compile(f, dynamic=True)
        torch.compile(f) || torch.compile(f, fullgraph=True)
        torch.compile(f) || torch.compile(f, backend="eager")
        torch.compile(f) || torch.compile(f, options={"max_autotune": True})
        torch.compile(linear()) || torch.compile(linear(2.0))
        torch.compile(linear()) || torch.compile(linear(), dynamic=True)
        torch.compiler.disable(f) || torch.compiler.disable(g)
        torch.fx.symbolic_trace(linear()) || torch.fx.symbolic_trace(linear(2.0))
        torch.fx.symbolic_trace(linear()) || torch.fx.symbolic_trace(nn.Sequential(linear(), nn.ReLU()))
        torch.fx.symbolic_trace(f) || torch.fx.symbolic_trace(g)
        torch.no_grad()(f) || torch.no_grad()(g)
        torch.no_grad()(f) || torch.inference_mode()(f)
        hash_tensor_signature(torch.ones(2)) || hash_tensor_signature(torch.ones(3))
        hash_tensor_signature(plain()) || hash_tensor_signature(plain().t().contiguous().t())
        hash_tensor_signature(torch.ones(2) * 1j) || hash_tensor_signature((torch.ones(2) * 1j).conj())
        hash_tensor_signature(sparse([1.0, 2.0])) || hash_tensor_signature(torch.ones(3))
        hash_tensor_signature(ragged([[1.0]])) || hash_tensor_signature(torch.ones(1, 1, 1))
        """,
        "torch numpy",
    ),
    *values(
        "torch equal",
        "same",
        TORCH,
        """
        torch.ones(2) || torch.ones(2)
        torch.ones(4)[:2] || torch.ones(2)
        torch.ones(2, requires_grad=True) || torch.tensor([1.0, 1.0], requires_grad=True)
        torch.empty(2, device="meta") || torch.ones(2, device="meta")
        fake(2, 3) || fake(2, 3)
        torch.tensor([1 + 2j]).conj().resolve_conj() || torch.tensor([1 - 2j])
        torch.Size([1, 2]) || torch.ones(1, 2).shape
        torch.float || torch.float32
        torch.compile(f) || torch.compile(f)
        linear() || linear()
        torch.fx.symbolic_trace(linear()) || torch.fx.symbolic_trace(linear())
        double || double
        hash_tensor_signature(torch.ones(2)) || hash_tensor_signature(torch.zeros(2))
        hash_tensor_signature(torch.ones(2)) || hash_tensor_signature(torch.ones(2).numpy())
        hash_tensor_signature(fake(2, 3)) || hash_tensor_signature(torch.ones(2, 3))
        """,
        "torch numpy",
    ),
    *values(
        "torch",
        "refused",
        TORCH,
        """
        Opaque(torch.ones(2))
        torch.ones(2).as_subclass(Odd)
        hooked()
        transformed()
        torch.ones(2).untyped_storage()
        torch.jit.script(f)
        nn.UninitializedParameter()
        hash_tensor_signature(nested([1.0], [2.0, 3.0]))
        """,
        "torch numpy",
    ),
    *(
        case
        for given in ("op", "overload", "packet", "graph")
        for case in mutations(
            f"torch {given} changed",
            "change",
            OPERATORS,
            """
            op.register_fake(other)
            op.register_autograd(other)
            op.register_kernel("cuda", other)
            op.register_vmap(other)
            op.register_torch_dispatch(TorchDispatchMode, other)
            op.register_autocast("cuda", torch.float16)
            op._disabled_kernel.add("cpu")
            """,
            key=f"hash_value(GIVEN[{given!r}])",
            needs="torch",
        )
    ),
    *(
        case
        for name in ("kernel", "by_name", "through_ops", *REACHING)
        for case in mutations(
            f"torch operator called by {name}",
            "change",
            OPERATORS,
            "op.register_autograd(other)",
            key=f"hash_function({name})",
            needs="torch",
        )
    ),
    *mutations(
        "torch operator used through its namespace",
        "same",
        "import torch\naten = torch.ops.aten\ndef kernel(x):\n    return aten.xlogy(x, x)\n",
        "kernel(torch.ones(2))",
        needs="torch",
    ),
    *edits(
        "torch operator in a namespace of torch",
        "change",
        OPERATORS_AMONG_THEIRS,
        "return x + 1 || return x + 2",
        key="hash_function(by_name)",
        needs="torch",
    ),
    *values(
        "torch operator refused",
        "refused",
        OPERATORS,
        """
        torch.ops.cases.defined
        torch.ops.cases.defined.default
        """,
        "torch",
    ),
    *values(
        "torch kernel refused",
        "refused",
        OPERATORS.replace("cases::op", "cases::patched").replace("cases.op", "cases.patched")
        + 'library = torch.library.Library("cases", "IMPL")\nlibrary.impl("patched", other, "CUDA")\n',
        "op",
        "torch",
    ),
    *mutations(
        "torch used",
        "same",
        TORCH
        + """
compiled = torch.compile(f, backend="eager")
module, weighted = linear(), linear()
optimised = torch.compile(module, backend="eager")
weight = nn.Parameter(torch.ones(2))
def kernel(x):
    return compiled(x), optimised(x), double(x), torch.ops.aten.add(x, x), weight, weighted
""",
        """
        compiled(torch.ones(2))
        optimised(torch.ones(2))
        module(torch.ones(2))
        torch.compile(weighted, backend="eager")(torch.ones(2))
        torch.jit.script(weighted)
        double(torch.ones(2))
        torch.ops.cases.double(torch.ones(2))
        compiled(weight)
        torch.ops.aten.add.Tensor(weight, weight)
        hash(weight), weight.shape, weight.data_ptr()
        """,
        needs="torch",
    ),
    *mutations(
        "torch changed",
        "change",
        TORCH
        + """
module = linear()
weight = nn.Parameter(torch.ones(2))
def kernel(x):
    return module(x), weight
""",
        """
        weight.data[0] = 2.0
        weight.requires_grad_(False)
        weight.tile = 1
        weight.grad = torch.ones(2)
        module.eval()
        module.weight.data[0, 0] = 5.0
        module.extra = 1
        """,
        needs="torch",
    ),
]
