"""State that is easily overlooked: behind wrappers, in tables that Python keeps, among the keys of dictionaries."""

from __future__ import annotations

import platform

from tests.keys.cases.case import Case, mutations, values

MEMBERS = """
N = 2
def helper(x):
    return x * N
class Speaker:
    def __kcachefs_key__(self):
        return {helper}
speaker = Speaker()
KEYED, MEMBERS, FROZEN, NESTED = {helper: 1}, {helper}, frozenset([helper]), (frozenset([(helper, 1)]),)
def kernel(x, functions=frozenset([helper])):
    return functions
def of_keys(x):
    return [f(x) for f in KEYED]
def of_set(x):
    return [f(x) for f in MEMBERS]
def of_frozen(x):
    return [f(x) for f in FROZEN]
def of_nested(x):
    return NESTED
def of_speaker(x):
    return speaker
"""

FUNCTIONS = """
import abc, builtins, functools
def wraps(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x)
    return wrapper
def helper(x):
    return x
@functools.lru_cache
def remembered(x):
    return x
@functools.singledispatch
def dispatched(x):
    return x
class Shape(abc.ABC):
    fixed = staticmethod(helper)
    made = classmethod(helper)
def kernel(x):
    '''One.'''
    return remembered(x), dispatched(x), isinstance(x, Shape), Shape.fixed(x), surely_undefined
def tidied(key):
    vars(builtins).pop("surely_undefined", None)
    return key
"""

TRITON = """
import triton, triton.language as tl
@triton.jit
def kernel(ptr, n):
    tl.store(ptr, n)
def other(ptr, n, extra=1):
    tl.store(ptr, n)
hook = print
"""

STATE = """
import abc, collections, contextvars, dataclasses, decimal, enum, functools, io, queue, threading, types, typing
import weakref
def helper(x):
    return x
def remembered(**attributes):
    made = functools.lru_cache(helper)
    vars(made).update(attributes)
    return made
def dispatched(**attributes):
    made = functools.singledispatch(helper)
    vars(made).update(attributes)
    return made
def wrapped(kind, **attributes):
    made = kind(helper)
    vars(made).update(attributes)
    return made
def documented(text):
    def inner(x):
        "one"
        return x
    inner.__doc__ = text
    return inner
def with_builtins(n):
    scope = {"__builtins__": {"len": lambda x: n}, "__name__": "made"}
    exec("def inner(x): return len(x)", scope)
    return scope["inner"]
def registered(*classes):
    class Base(abc.ABC):
        pass
    for cls in classes:
        Base.register(cls)
    return Base
def hashed(**members):
    return type("Hashed", (), members)
def marked(n):
    class Mode(enum.Enum):
        A = 1
    Mode.A._tile_ = n
    return Mode.A
def marked_class(n):
    class Mode(enum.Enum):
        A = 1
    Mode._tile_ = n
    return Mode.A
def closed():
    made = io.BytesIO(b"a")
    made.close()
    return made
def released():
    made = memoryview(b"a")
    made.release()
    return made
def noted(*notes):
    made = ValueError(1)
    for note in notes:
        made.add_note(note)
    return made
def made(**flags):
    return dataclasses.make_dataclass("Made", [("x", int)], **flags)
class Meta(type):
    def __new__(meta, name, bases, members, **words):
        return super().__new__(meta, name, bases, members)
    def __init__(cls, name, bases, members, tile=0):
        type.__setattr__(cls, "tile", tile)
def by_keyword(n):
    class Made(metaclass=Meta, tile=n):
        pass
    return Made
class Outer:
    __slots__ = ("x",)
class Inner(Outer):
    __slots__ = ("x",)
def shadowed(one, two):
    made = Inner()
    made.x = one
    Outer.x.__set__(made, two)
    return made
class Both:
    __slots__ = ("x", "__dict__")
def doubled(slot, item):
    made = Both()
    made.x = slot
    vars(made)["x"] = item
    return made
class Answering(type):
    def __getattribute__(cls, name):
        return {} if name == "__dict__" else type.__getattribute__(cls, name)
class Answered(metaclass=Answering):
    n = 1
def numbered(made):
    vars(made)[1] = 2
    return made
LIMIT = 1
class Limited:
    x: "typing.Annotated[int, LIMIT]"
class Local(threading.local):
    def __init__(self, n):
        self.n = n
class OfClass:
    level = 1
    __kcachefs_key__ = classmethod(lambda cls: cls.level)
class OfProperty:
    def __init__(self, n):
        self.n = n
    @property
    def __kcachefs_key__(self):
        return lambda: self.n
class Item:
    def __init__(self, n):
        self.n = n
class Token:
    def __init__(self):
        self.mark = object()
MARK = object()
def uses_mark(x=MARK):
    return x is MARK
async def coroutines():
    yield 1
def ordered(*names):
    return types.MappingProxyType(collections.OrderedDict((name, 1) for name in names))
def typed(total):
    return typing.TypedDict("Typed", {"a": int}, total=total)
KEPT = Item(1)
"""

ARRAYS = """
import numpy as np
def padded(junk, kind):
    made = np.empty(1, kind)
    made.view("u1")[:] = junk
    if made.dtype.names:
        made["f0"], made["f1"] = 1, 2
    else:
        made[0] = 1
        made.view("u1")[10:] = junk
    return made
RECORD = np.dtype("u1,f8", align=True)
def told(n):
    return np.dtype([("a", np.dtype("i4", metadata={"x": n}))])
def records(*items):
    return np.array([(1, items)], [("a", "i4"), ("b", object)])
"""

MODULES = """
import torch
from torch import nn
import torch.nn.utils.parametrize as parametrize
def linear(weight=1.0):
    made = nn.Linear(2, 2)
    for parameter in made.parameters():
        nn.init.constant_(parameter, weight)
    return made
def buffered(value=1.0, persistent=True):
    made = linear()
    made.register_buffer("extra", torch.full((2,), value), persistent=persistent)
    return made
def once(module, inputs, output):
    return output
def twice(module, inputs, output):
    return output * 2
def hooked(hook, **how):
    made = linear()
    made.register_forward_hook(hook, **how)
    return made
class Scaled(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
    def forward(self, x):
        return x * self.by
def scaled(by):
    made = linear()
    parametrize.register_parametrization(made, "weight", Scaled(by))
    return made
def replaced():
    made = linear()
    made.forward = lambda x: x
    return made
def accumulated():
    made = torch.ones(2, requires_grad=True)
    made.register_post_accumulate_grad_hook(print)
    return made
def optimiser(rate):
    return torch.optim.Adam(linear().parameters(), lr=rate)
"""

OTHERS = """
import sympy
import numba
x = sympy.Symbol("x")
def plus(x):
    return x + 1
def used(function):
    function(1.0)
    return function
def copied(x, y):
    y[0] = x[0]
def doubled(x, y):
    y[0] = x[0] * 2
def general(function=copied, layout="(n)->(n)", types="void(float64[:],float64[:])"):
    return numba.guvectorize([types], layout)(function)
"""

CASES: list[Case] = [
    *(
        case
        for name in ("kernel", "of_keys", "of_set", "of_frozen", "of_nested", "of_speaker")
        for case in mutations(
            f"member of an unordered container, {name}",
            "change",
            MEMBERS,
            """
            N = 3
            helper.tile = 1
            helper.__defaults__ = (1,)
            """,
            f"hash_function({name})",
        )
    ),
    *mutations(
        "behind a wrapper",
        "change",
        FUNCTIONS,
        """
        kernel.__doc__ = "Two."
        remembered.tile = 1
        dispatched.tile = 1
        dispatched.register(int, helper)
        Shape.register(int)
        vars(vars(Shape)["fixed"])["tile"] = 1
        vars(vars(Shape)["made"])["tile"] = 1
        builtins.surely_undefined = 5
        """,
        "tidied(hash_function(kernel))",
    ),
    *mutations(
        "behind a wrapper, kept",
        "same",
        FUNCTIONS,
        """
        kernel.__doc__ = "One" + "."
        remembered(1), dispatched(1)
        isinstance(1, Shape)
        """,
    ),
    *mutations("triton wrapper changed", "change", TRITON, "kernel.fn = other", needs="triton torch"),
    *values(
        "overlooked",
        "change",
        STATE,
        """
        remembered(tile=1) || remembered(tile=2)
        remembered(tile=1) || remembered()
        dispatched(tile=1) || dispatched(tile=2)
        wrapped(staticmethod, tile=1) || wrapped(staticmethod)
        wrapped(classmethod, tile=1) || wrapped(classmethod)
        wrapped(functools.cached_property, tile=1) || wrapped(functools.cached_property)
        functools.partialmethod(helper, 1) || functools.partialmethod(helper, 2)
        property(helper, doc="a") || property(helper, doc="b")
        documented("one") || documented("two")
        documented("one") || documented(None)
        registered(int) || registered()
        registered(int) || registered(str)
        hashed(__hash__=None) || hashed()
        hashed(__eq__=helper, __hash__=object.__hash__) || hashed(__eq__=helper)
        marked(1) || marked(2)
        marked_class(1) || marked_class(2)
        made(match_args=False) || made()
        made(slots=True) || made()
        made(kw_only=True) || made()
        made(slots=True, weakref_slot=True) || made(slots=True)
        by_keyword(1) || by_keyword(2)
        typed(True) || typed(False)
        typing.ParamSpec("P") || typing.ParamSpec("P", bound=int)
        typing.ParamSpec("P") || typing.ParamSpec("P", covariant=True)
        typing.NewType("A", int) || typing.NewType("A", str)
        next(iter(tuple[int])) || tuple[int]
        typing.Unpack[tuple[int]] || tuple[int]
        noted("a") || noted()
        noted("a") || noted("b")
        ordered("a", "b") || ordered("b", "a")
        OfProperty(1) || OfProperty(2)
        slice(Item(1)) || slice(Item(2))
        slice(Item(1), None) || slice(None, Item(1))
        shadowed(1, 1) || shadowed(2, 1)
        shadowed(1, 1) || shadowed(1, 2)
        doubled(1, 1) || doubled(2, 1)
        doubled(1, 1) || doubled(1, 2)
        """,
    ),
    *mutations("overlooked", "change", STATE, "LIMIT = 2", "hash_value(Limited)"),
    *values("overlooked", "change", STATE, "with_builtins(1) || with_builtins(2)", is_portable=False),
    *values(
        "overlooked equal",
        "same",
        STATE,
        """
        documented("one") || documented("o" "ne")
        registered(int, str) || registered(str, int)
        OfClass() || OfClass()
        Token() || Token()
        uses_mark || uses_mark
        slice(Item(1)) || slice(Item(1))
        property(helper, doc="a") || property(helper, doc="a")
        hashed(__eq__=helper, __hash__=None) || hashed(__eq__=helper)
        """,
    ),
    *values(
        "overlooked refused",
        "refused",
        STATE,
        """
        object()
        [1, {"a": MARK}]
        closed()
        released()
        weakref.finalize(KEPT, print)
        weakref.proxy(KEPT)
        weakref.WeakValueDictionary()
        contextvars.copy_context()
        coroutines()
        functools.cmp_to_key(helper)
        decimal.Context(prec=3)
        io.TextIOWrapper(io.BytesIO(b"a"))
        queue.SimpleQueue()
        super(Item, KEPT)
        Local(1)
        {1: 2}.keys()
        Answered
        Answered()
        numbered(Item(1))
        numbered(lambda: 1)
        """,
    ),
    *values(
        "arrays overlooked",
        "change",
        ARRAYS,
        """
        np.str_("a") || np.str_("b")
        np.str_("a") || "a"
        np.bytes_(b"a") || np.bytes_(b"b")
        np.void(b"a") || np.void(b"b")
        np.ones(1, RECORD)[0] || np.zeros(1, RECORD)[0]
        told(1) || told(2)
        np.dtype("u1,f8", align=True) || np.dtype("u1,f8")
        np.dtype([(("t", "a"), "i4")]) || np.dtype([(("u", "a"), "i4")])
        np.dtype(("i4", (2,))) || np.dtype(("i4", (3,)))
        np.dtypes.StringDType(na_object=None) || np.dtypes.StringDType()
        records({}) || records({1: 2})
        slice(np.int64(1)) || slice(np.int64(2))
        slice(np.int64(1)) || slice(1)
        np.longdouble(1) || np.longdouble(1) + np.finfo(np.longdouble).eps
        np.ma.MaskedArray([1], hard_mask=True) || np.ma.MaskedArray([1])
        np.polynomial.Polynomial([1, 2]) || np.polynomial.Polynomial([1, 3])
        np.vectorize(len) || np.vectorize(abs)
        """,
        "numpy",
    ),
    *values(
        "arrays overlooked equal",
        "same",
        ARRAYS,
        """
        padded(0, RECORD) || padded(255, RECORD)
        np.str_("a") || np.array(["a"])[0]
        """,
        "numpy",
    ),
    *(
        values("arrays overlooked", "same", ARRAYS, "padded(0, np.longdouble) || padded(255, np.longdouble)", "numpy")
        if platform.machine() == "x86_64"  # elsewhere no byte of it is unused
        else ()
    ),
    *values(
        "arrays overlooked",
        "refused",
        ARRAYS,
        """
        np.arange(3).flat
        np.frompyfunc(len, 1, 1)
        np.broadcast([1], [2])
        """,
        "numpy",
    ),
    *values(
        "modules overlooked",
        "change",
        MODULES,
        """
        buffered(1.0) || buffered(2.0)
        buffered() || buffered(persistent=False)
        hooked(once) || hooked(twice)
        hooked(once) || linear()
        hooked(once) || hooked(once, with_kwargs=True)
        hooked(once) || hooked(once, always_call=True)
        scaled(1) || scaled(2)
        replaced() || linear()
        nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()}) || nn.ModuleDict({"b": nn.Tanh(), "a": nn.ReLU()})
        nn.ParameterList([torch.ones(2)]) || nn.ParameterList([torch.zeros(2)])
        (lambda module: (module, module))(linear()) || (linear(), linear())
        optimiser(0.1) || optimiser(0.2)
        torch.finfo(torch.float16) || torch.finfo(torch.float32)
        torch.iinfo(torch.int8) || torch.iinfo(torch.int16)
        torch.vmap(once, in_dims=0) || torch.vmap(once, in_dims=1)
        torch.func.grad(once, argnums=0) || torch.func.grad(once, argnums=1)
        torch.autocast("cpu", torch.bfloat16) || torch.autocast("cpu", torch.float16)
        """,
        "torch numpy",
    ),
    *values(
        "modules overlooked equal",
        "same",
        MODULES,
        """
        hooked(once) || hooked(once)
        buffered() || buffered()
        scaled(1) || scaled(1)
        optimiser(0.1) || optimiser(0.1)
        """,
        "torch numpy",
    ),
    *values(
        "modules overlooked",
        "refused",
        MODULES,
        """
        torch.ones(2, requires_grad=True) * 1
        accumulated()
        torch.jit.script(linear())
        torch.ones(2, 2).to_mkldnn()
        """,
        "torch numpy",
    ),
    *values(
        "other libraries overlooked",
        "change",
        OTHERS,
        """
        sympy.Function("f") || sympy.Function("g")
        sympy.Function("f") || sympy.Function("f", real=True)
        sympy.Function("f")(x) || sympy.Function("f", real=True)(x)
        sympy.Matrix([[1]]) || sympy.Matrix([[2]])
        numba.vectorize(["float64(float64)"])(plus) || numba.vectorize(["float32(float32)"])(plus)
        numba.vectorize(["float64(float64)"])(plus) || numba.vectorize(plus)
        general() || general(doubled)
        general() || general(layout="(n),(n)")
        general() || general(types="void(float32[:],float32[:])")
        """,
        "sympy numba",
    ),
    *values(
        "other libraries overlooked equal",
        "same",
        OTHERS,
        """
        sympy.Function("f")(x) || sympy.Function("f")(x)
        numba.vectorize(plus) || used(numba.vectorize(plus))
        general() || general()
        """,
        "sympy numba",
    ),
]
