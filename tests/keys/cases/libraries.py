"""Functions and values of Triton, numba and others. Left out where the library is not installed."""

from __future__ import annotations

from dataclasses import replace

from tests.keys.cases.case import Case, edits, mutations, values

VALUE = "hash_value(value)"

TRITON = """
import triton, triton.language as tl
WIDTH = tl.constexpr(4)
UNUSED = tl.constexpr(9)
@triton.jit
def helper(x):
    return x * WIDTH
def prune(configs, named, **kwargs):
    return configs[:1]
def before(args):
    return None
@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=4, num_stages=2)],
    key=["n"], prune_configs_by={"early_config_prune": prune}, pre_hook=None, reset_to_zero=[],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def tuned(ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.store(ptr + tl.arange(0, BLOCK), helper(n))
@triton.jit
def kernel(ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(ptr + offsets, helper(offsets), mask=offsets < n)
def launch(x):
    return kernel[(1,)](x, 4, BLOCK=64), tuned[(1,)](x, 4)
"""

NUMBA = """
import numba
from numba import njit, vectorize
N = 4
@njit
def helper(x):
    return x * N
@njit(fastmath=True, inline="never")
def kernel(x):
    return helper(x) + 1
@njit("float64(float64)")
def typed(x):
    return x + 1
@vectorize
def ufunc(x):
    return x + 2
def run(x):
    return kernel(x), typed(x), ufunc(x)
kind = numba.float64
"""

NUMBA_TYPES = """
import collections, enum, numba
from numba import njit, types
from numba.experimental import jitclass
N = 4
@njit
def helper(x):
    return x * N
@jitclass([("a", types.int64), ("b", types.float32)])
class Point:
    def __init__(self):
        self.a = 1
class Mode(enum.IntEnum):
    FAST = 1
Pair = collections.namedtuple("Pair", "x y")
point = Point.class_type.instance_type
@njit([(point,)])
def typed(p):
    return p.a
GIVEN = {
    "function": types.List(types.Dispatcher(helper)),
    "class": types.Tuple([point, types.int64]),
    "named": types.List(types.NamedTuple([types.int64, types.int64], Pair)),
    "mode": types.Optional(types.IntEnumMember(Mode, types.int64)),
    "omitted": types.Omitted(helper),
    "module": types.Module(numba),
    "literal": types.literal(1),
    "typed": typed,
    "itself": Point,
}
"""

NUMBA_OWN_TYPE = """
from numba import types
class Tile(types.Type):
    def __init__(self, size):
        self.size = size
        super().__init__(name="Tile")
value = Tile(1)
"""

PYDANTIC = """
import pydantic
check = pydantic.field_validator("x")
whole = pydantic.model_validator(mode="after")
shown = pydantic.computed_field
class Config(pydantic.BaseModel):
    x: int = 1
    y: int = 2
    @check
    def add(cls, x): return x + 1
    @check
    def grow(cls, x): return x * 2
    @whole
    def low(self): return self
    @whole
    def high(self): return self
    @shown
    def area(self) -> int: return 1
    @shown
    def cost(self) -> int: return 1
value = Config(x=3)
"""

PYDANTIC_PRIVATE = """
import pydantic
class Config(pydantic.BaseModel):
    _seen: int = pydantic.PrivateAttr(default=0)
    _made: list = pydantic.PrivateAttr(default_factory=list)
"""

# As flax has it: modules get a number each, which is theirs alone.
FLAX = {
    "flax/__init__.py": "",
    "flax/linen/__init__.py": "",
    "flax/linen/module.py": """
class Module:
    def __init__(self, features, number):
        self.features, self._id = features, number
""",
    "main.py": """
from flax.linen.module import Module
class Dense(Module):
    pass
""",
}

SCIPY = """
import numpy, scipy.special, scipy.stats
from scipy.stats import norm, rv_discrete
class Slope(scipy.stats.rv_continuous):
    def _pdf(self, x):
        return 2 * x
slope = Slope(a=0, b=1)
def flat(mean=0, seed=None):
    return scipy.stats.multivariate_normal([mean, 0], seed=seed)
plane = flat()
def kernel(x):
    return norm.pdf(x), slope.pdf(x), plane.pdf(x), scipy.stats.dirichlet
"""

ATTRS = """
import attrs, functools
def loud(method):
    @functools.wraps(method)
    def wrapper(*args, **kwargs):
        return method(*args, **kwargs)
    return wrapper
@attrs.frozen(order=False, cache_hash=True)
class Tile:
    m: int = 1
    n: int = attrs.field(default=2, converter=int, validator=attrs.validators.ge(1), eq=True)
    def area(self):
        return self.m * self.n
value = Tile()
"""

ATTRS_BORROWED = """
import attr, attrs
def make(name):
    @attrs.frozen
    class Tile:
        m: int = 1
    Tile.__name__ = Tile.__qualname__ = name
    return Tile
@attrs.frozen
class Other:
    m: int = 1
Lent = make("Tile")
@attrs.frozen(slots=False)
class Tile:
    m: int = 1
    n: int = 2
@attr.s(repr_ns=None)
class Printed:
    m = attr.ib(default=1)
value = [Tile(), Printed()]
"""

ATTRS_CACHED = """
import attrs, functools
@attrs.frozen
class Tile:
    m: int = 1
    @functools.cached_property
    def cost(self):
        return self.m + 1
value = Tile()
"""

SYMPY = """
import sympy
from sympy.utilities.lambdify import implemented_function
x, y = sympy.symbols("x y")
i = sympy.Idx("i")
class Bump(sympy.Function):
    is_real = True
    def fdiff(self, argindex=1):
        return 2 * self.args[0]
class Box(sympy.Expr):
    default_assumptions_used = 1
    _prop_handlers = 1
    def doit(self, **hints):
        return sympy.Integer(2)
A = sympy.IndexedBase("A", offset=0, strides=(1, 2))
w = sympy.Wild("w", exclude=[x], properties=[lambda e: e.is_Integer])
p = sympy.Poly(x**2 + 1, x, modulus=5, symmetric=True)
made = implemented_function("made", lambda e: e + 1)
value = [Bump(x) + 1, Box(x) + 1, A[i], w + 1, p]
implemented = made(x) + 1
"""

MSGSPEC = """
import typing, msgspec
class Point(msgspec.Struct, rename="lower", frozen=True, cache_hash=True):
    x: int = 1
    y: typing.Annotated[int, msgspec.Meta(gt=0)] = msgspec.field(default=2, name="outer")
    tags: typing.Any = msgspec.field(default_factory=list)
value = Point(tags=())
"""

CASES: list[Case] = [
    *edits(
        "triton",
        "change",
        TRITON,
        """
        constexpr(4) || constexpr(8)
        x * WIDTH || x + WIDTH
        offsets < n || offsets <= n
        @triton.jit\\ndef kernel || @triton.jit(noinline=True)\\ndef kernel
        @triton.jit\\ndef kernel || @triton.jit(debug=True)\\ndef kernel
        @triton.jit\\ndef kernel || @triton.jit(do_not_specialize=["n"])\\ndef kernel
        @triton.jit\\ndef kernel || @triton.jit(do_not_specialize_on_alignment=["n"])\\ndef kernel
        @triton.jit\\ndef kernel || @triton.jit(repr=lambda _: "name")\\ndef kernel
        @triton.jit\\ndef helper || @triton.jit(noinline=True)\\ndef helper
        n, BLOCK: tl.constexpr):\\n    offsets || n: "i32", BLOCK: tl.constexpr):\\n    offsets
        {"BLOCK": 64} || {"BLOCK": 32}
        num_warps=4 || num_warps=8
        num_stages=2 || num_stages=3
        key=["n"] || key=["n", "ptr"]
        configs[:1] || configs[:2]
        pre_hook=None || pre_hook=before
        reset_to_zero=[] || reset_to_zero=["ptr"]
        % 2 == 0 || % 4 == 0
        helper(n)) || helper(n + 1))
        BLOCK=64) || BLOCK=32)
        """,
        key="hash_function(launch)",
        needs="triton torch",
    ),
    *edits(
        "triton kept",
        "same",
        TRITON,
        """
        UNUSED = tl.constexpr(9) || UNUSED = tl.constexpr(8)
        import triton, || import os, triton,
        """,
        key="hash_function(launch)",
        needs="triton torch",
    ),
    *mutations(
        "triton used",
        "same",
        TRITON,
        """
        kernel.cache_key
        tuned.fn.fn.cache_key
        kernel.params, kernel.hash, kernel.src
        """,
        key="[hash_function(kernel), hash_function(tuned), hash_function(launch)]",
        needs="triton torch",
    ),
    *mutations(
        "triton changed",
        "change",
        TRITON,
        """
        WIDTH = tl.constexpr(8)
        WIDTH.value = 8
        helper = kernel
        kernel.do_not_specialize = ["n"]
        kernel.noinline = True
        kernel._unsafe_update_src(kernel.src.replace("offsets < n", "offsets <= n"))
        kernel.fn.__defaults__ = (1,)
        """,
        key="hash_function(kernel)",
        needs="triton torch",
    ),
    *mutations(
        "triton tuning changed",
        "change",
        TRITON,
        """
        tuned.configs.append(triton.Config({"BLOCK": 16}))
        tuned.configs[0].num_warps = 8
        tuned.keys.append("ptr")
        tuned.fn.values["EVEN"] = lambda args: True
        """,
        key="hash_function(tuned)",
        needs="triton torch",
    ),
    *edits(
        "numba",
        "change",
        NUMBA,
        """
        N = 4 || N = 5
        x * N || x - N
        helper(x) + 1 || helper(x) + 2
        fastmath=True || fastmath=False
        inline="never" || inline="always"
        "float64(float64)" || "float32(float32)"
        return x + 1\\n@vectorize || return x + 3\\n@vectorize
        return x + 2 || return x + 4
        @njit\\ndef helper || @njit(nogil=True)\\ndef helper
        """,
        key="hash_function(run)",
        needs="numba",
    ),
    *mutations(
        "numba used",
        "same",
        NUMBA,
        """
        kernel.py_func(1.0)
        kernel.signatures
        str(kind)
        """,
        key="[hash_function(run), hash_function(kernel), hash_value(kind)]",
        needs="numba",
    ),
    *(
        case
        for given, line in (
            ("function", "N = 4 || N = 5"),
            ("class", "self.a = 1 || self.a = 2"),
            ("class", """("a", types.int64), ("b", types.float32) || ("b", types.float32), ("a", types.int64)"""),
            ("named", """"x y" || "x z" """),
            ("mode", "FAST = 1 || FAST = 2"),
            ("omitted", "N = 4 || N = 5"),
            ("typed", "self.a = 1 || self.a = 2"),
            ("itself", "self.a = 1 || self.a = 2"),
        )
        for case in edits(
            f"numba type of {given}", "change", NUMBA_TYPES, line, key=f"hash_value(GIVEN[{given!r}])", needs="numba"
        )
    ),
    *mutations(
        "numba types used",
        "same",
        NUMBA_TYPES,
        """
        helper(2)
        typed(Point())
        GIVEN["literal"].literal_type
        """,
        key="hash_value(list(GIVEN.values()))",
        needs="numba",
    ),
    *edits("numba type of the project", "change", NUMBA_OWN_TYPE, "Tile(1) || Tile(2)", VALUE, "numba"),
    *mutations(
        "numba type of the project",
        "same",
        NUMBA_OWN_TYPE,
        "del value; types.List(types.List(types.List(types.int8))); value = Tile(1)",
        key=VALUE,
        needs="numba",
    ),
    *values("numba type refused", "refused", NUMBA_TYPES, "types.deferred_type()", needs="numba"),
    *edits(
        "pydantic",
        "change",
        """
        import pydantic
        class Config(pydantic.BaseModel):
            model_config = pydantic.ConfigDict(strict=False)
            x: int = 1
            y: int = pydantic.Field(2, gt=1)
            @pydantic.field_validator("x")
            def check(cls, x):
                return x
        value = Config(x=3)
        """,
        """
        x: int = 1 || x: int = 2
        x: int = 1 || x: float = 1
        gt=1 || gt=0
        return x || return x + 1
        strict=False || strict=True
        x=3 || x=4
        """,
        key="hash_value(value)",
        needs="pydantic",
    ),
    *edits(
        "pydantic order",
        "change",
        PYDANTIC,
        """
        x: int = 1\\n    y: int = 2 || y: int = 2\\n    x: int = 1
        def add(cls, x): return x + 1\\n    @check\\n    def grow(cls, x): return x * 2 || \
def grow(cls, x): return x * 2\\n    @check\\n    def add(cls, x): return x + 1
        def low(self): return self\\n    @whole\\n    def high(self): return self || \
def high(self): return self\\n    @whole\\n    def low(self): return self
        def area(self) -> int: return 1\\n    @shown\\n    def cost(self) -> int: return 1 || \
def cost(self) -> int: return 1\\n    @shown\\n    def area(self) -> int: return 1
        """,
        key="hash_value(value)",
        needs="pydantic",
    ),
    *mutations(
        "pydantic used",
        "same",
        PYDANTIC,
        """
        Config().x = 2
        Config.model_json_schema()
        Config.model_validate({"x": 2}).model_dump_json()
        value.model_copy(deep=True)
        """,
        key="hash_value(value)",
        needs="pydantic",
    ),
    *mutations("pydantic private", "same", PYDANTIC_PRIVATE, "Config()", key="hash_value(Config)", needs="pydantic"),
    *edits(
        "pydantic private",
        "change",
        PYDANTIC_PRIVATE,
        """
        default=0 || default=1
        default_factory=list || default_factory=dict
        """,
        key="hash_value(Config)",
        needs="pydantic",
    ),
    *edits(
        "attrs",
        "change",
        ATTRS,
        """
        order=False || order=True
        order=False, cache_hash=True || eq=False
        order=False || kw_only=True
        order=False || slots=False
        attrs.frozen( || attrs.define(unsafe_hash=True,
        m: int = 1 || k: int = 1
        default=2 || default=3
        converter=int || converter=float
        ge(1) || ge(0)
        eq=True || eq=False
        eq=True || repr=False
        self.m * self.n || self.m + self.n
        Tile() || Tile(2)
        """,
        key="hash_value(value)",
        needs="attrs",
    ),
    *(
        replace(case, is_portable=False)
        for case in (
            *edits(
                "attrs wrapped",
                "change",
                ATTRS,
                "Tile() || Tile()\\nTile.__repr__ = loud(Tile.__repr__)",
                VALUE,
                "attrs",
            ),
            *edits(
                "attrs borrowed",
                "change",
                ATTRS_BORROWED,
                """
                value = || Tile.__eq__ = Other.__eq__\\nvalue =
                value = || Tile.__repr__ = Other.__repr__\\nvalue =
                value = || Tile.__init__ = Other.__init__\\nvalue =
                value = || Tile.__hash__ = Other.__hash__\\nvalue =
                value = || Tile.__eq__ = Lent.__eq__\\nvalue =
                repr_ns=None || repr_ns="of"
                """,
                VALUE,
                "attrs",
            ),
            *edits("attrs cached", "change", ATTRS_CACHED, "self.m + 1 || self.m + 2", VALUE, "attrs"),
            *mutations("attrs cached used", "same", ATTRS_CACHED, "value.cost", VALUE, "attrs"),
        )
    ),
    *edits("attrs renamed", "change", ATTRS_BORROWED, "m: int = 1 || m: int = 2", "hash_value(Lent)", "attrs"),
    *mutations(
        "attrs used",
        "same",
        ATTRS,
        """
        hash(value), repr(value), value == Tile()
        import copy, pickle; copy.copy(value), pickle.dumps(value)
        """,
        key=VALUE,
        needs="attrs",
    ),
    *edits(
        "jax",
        "change",
        """
        import jax
        def kernel(x: jax.Array) -> jax.Array:
            return x + 1
        """,
        """
        x: jax.Array || x: object
        x + 1 || x + 2
        """,
        needs="jax",
    ),
    Case("flax: another", "change", FLAX, "hash_value(Dense(2, 1))", "hash_value(Dense(3, 1))"),
    Case("flax: the same", "same", FLAX, "hash_value(Dense(2, 1))", "hash_value(Dense(2, 2))"),
    *values(
        "scipy",
        "change",
        SCIPY,
        """
        scipy.special.expit || scipy.special.gamma
        scipy.special.expit || numpy.exp
        norm || scipy.stats.gamma
        norm(0, 1) || norm(0, 2)
        slope || Slope(a=0, b=2)
        slope || Slope(a=0, b=1, seed=1)
        Slope(seed=1) || Slope(seed=2)
        flat() || flat(1)
        flat() || flat(seed=1)
        flat(seed=1) || flat(seed=2)
        rv_discrete(values=([1, 2], [0.5, 0.5])) || rv_discrete(values=([1, 2], [0.4, 0.6]))
        """,
        "scipy",
    ),
    *values("ufunc refused", "refused", SCIPY, "numpy.frompyfunc(len, 1, 1)", "scipy"),
    *edits("scipy edited", "change", SCIPY, "2 * x || 3 * x", needs="scipy"),
    *mutations(
        "scipy used",
        "same",
        SCIPY,
        """
        norm.rvs(size=2), slope.rvs(size=2)
        plane.rvs(2), scipy.stats.dirichlet([1, 2]).rvs(2)
        numpy.random.seed(1)
        norm.fit([1, 2, 3]), norm.entropy(), slope.ppf(0.5), slope.moment(2)
        """,
        needs="scipy",
    ),
    *edits(
        "msgspec",
        "change",
        MSGSPEC,
        """
        rename="lower" || rename="upper"
        rename="lower" || kw_only=True
        name="outer" || name="other"
        default_factory=list || default_factory=dict
        gt=0 || gt=1
        x: int || z: int
        """,
        key="hash_value(value)",
        needs="msgspec",
    ),
    *mutations("msgspec used", "same", MSGSPEC, "hash(value)", key="hash_value(value)", needs="msgspec"),
    *edits(
        "sympy",
        "change",
        SYMPY,
        """
        2 * self.args || 3 * self.args
        Integer(2) || Integer(3)
        default_assumptions_used = 1 || default_assumptions_used = 2
        _prop_handlers = 1 || _prop_handlers = 2
        is_real || is_finite
        offset=0 || offset=1
        (1, 2) || (2, 1)
        exclude=[x] || exclude=[y]
        is_Integer || is_Symbol
        modulus=5 || modulus=7
        symmetric=True || symmetric=False
        modulus=5, symmetric=True || domain="QQ"
        modulus=5, symmetric=True || domain="ZZ[y]"
        """,
        key="hash_value(value)",
        needs="sympy",
    ),
    *edits("sympy implemented", "change", SYMPY, "e + 1 || e + 2", key="hash_value(implemented)", needs="sympy"),
    *mutations(
        "sympy used",
        "same",
        SYMPY,
        """
        [hash(one) for one in value]
        [one.is_positive for one in value[:4]]
        [one.diff(x) for one in value[:2]]
        """,
        key="hash_value(value)",
        needs="sympy",
    ),
    *values(
        "other libraries",
        "change",
        """
        import msgspec, sympy, numba
        class Point(msgspec.Struct):
            x: int
            y: int = 0
        class Frozen(msgspec.Struct, frozen=True):
            x: int
        x, y = sympy.symbols("x y")
        """,
        """
        Point(1) || Point(2)
        Point(1) || Point(1, 2)
        Point || Frozen
        Frozen(1) || Frozen(2)
        x + y || x - y
        x || sympy.Symbol("x", positive=True)
        sympy.Integer(1) || 1
        numba.float32 || numba.float64
        numba.float32[:] || numba.float32[:, :]
        """,
        "msgspec sympy numba",
    ),
    *values(
        "other libraries equal",
        "same",
        """
        import msgspec, sympy
        class Point(msgspec.Struct):
            x: int
            y: int = 0
        x, y = sympy.symbols("x y")
        def hashed(value):
            hash(value)
            return value
        """,
        """
        Point(1) || Point(1, 0)
        x + y || y + x
        x * y || hashed(sympy.Symbol("x") * y)
        """,
        "msgspec sympy",
    ),
]
