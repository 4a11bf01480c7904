"""Classes and their instances: edits of a source file that must change the key of a value, and edits that must not."""

from __future__ import annotations

from dataclasses import replace

from tests.keys.cases.case import Case, edits, mutations

PLAIN = """
import abc, functools
class Meta(type):
    LEVEL = 1
    def __call__(cls, *args):
        return super().__call__(*args)
class Other(type):
    pass
class Base:
    def scale(self):
        return 2
class Mixin:
    pass
class Descriptor:
    def __get__(self, obj, owner):
        return 5
class Kernel(Base, metaclass=Meta):
    '''What it is.'''
    BLOCK = 64
    TABLE = {"a": [1]}
    stages: int = 2
    field = Descriptor()
    def __init__(self, n):
        self.n = n
    def size(self, x=1):
        return x * self.n
    @property
    def area(self):
        return self.n * self.n
    @staticmethod
    def fixed(x):
        return x + 1
    @classmethod
    def default(cls):
        return cls(1)
    @functools.cached_property
    def cost(self):
        return self.n + 1
    def __hash__(self):
        return 1
    def __eq__(self, other):
        return True
    def _private(self):
        return 3
    class Inner:
        DEPTH = 1
value = Kernel(3)
"""

SLOTTED = """
class Kernel:
    __slots__ = ("a", "b")
    def __init__(self):
        self.a = 1
value = Kernel()
"""

DATACLASS = """
import dataclasses
from dataclasses import dataclass, field
@dataclass(order=False, frozen=False)
class Kernel:
    m: int
    n: int = field(default=4, compare=True, metadata={"unit": "elements"})
    tags: list = field(default_factory=list)
    def area(self):
        return self.m * self.n
    def __post_init__(self):
        self.extra = 1
value = Kernel(2)
"""

PASSED = """
from dataclasses import InitVar, dataclass
@dataclass(kw_only=True)
class Kernel:
    m: InitVar[int]
    n: InitVar[int]
    k: int = 0
    def __post_init__(self, one, two):
        self.k = one - two
value = Kernel(m=2, n=2)
"""

ENUM = """
import enum
class Kernel(enum.Enum):
    FAST = 1
    EXACT = 2
    ALIAS = 1
    LIMIT = enum.nonmember(10)
    def stages(self):
        return self.value + 1
    @property
    def block(self):
        return 64
    @classmethod
    def _missing_(cls, value):
        return cls.FAST
value = Kernel.FAST
"""

NAMED = """
import collections, typing
class Kernel(typing.NamedTuple):
    m: int
    n: int = 4
    def area(self):
        return self.m * self.n
Plain = collections.namedtuple("Plain", "a b", defaults=[1])
value = [Kernel(2), Plain(3)]
"""

COMPLETED = """
import collections, dataclasses, enum, typing
@dataclasses.dataclass
class Kernel:
    m: int = 1
    change = dataclasses.replace
class Plain:
    convert = typing.cast
    __signature__ = "one"
class CField:
    def __init__(self, n): self.n = n
class Holder:
    field = CField(1)
class Mode(enum.Enum):
    A = 1
    __scale__ = 2
Made = dataclasses.make_dataclass("Made", [("x", int)])
Tuple = collections.namedtuple("Tuple", "a b")
Kind = enum.Enum("Kind", "A B")
scope = {"__name__": "json"}
exec("def dumps(x): return x + 1", scope)
value = [Kernel(), Plain(), Holder(), Mode.A, Made(1), Tuple(1, 2), Kind.A]
"""

RENAMED = """
import collections, dataclasses
def named(cls):
    cls.__name__ = cls.__qualname__ = "Renamed"
    return cls
@dataclasses.dataclass
class Lender:
    m: int = 1
@dataclasses.dataclass
class Floating:
    m: float = 1
@named
@dataclasses.dataclass(order=True, unsafe_hash=True)
class Plain:
    m: int
    n: dataclasses.InitVar[int] = 2
    tags: list = dataclasses.field(default_factory=list, hash=False)
    k: int = dataclasses.field(default=3, kw_only=True, repr=False)
    def __post_init__(self, n): pass
@named
@dataclasses.dataclass(frozen=True)
class Frozen:
    m: int = 1
@named
@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    m: int = 1
Tuple = named(collections.namedtuple("Tuple", "a b", defaults=[1]))
Other = collections.namedtuple("Other", "a")
value = [Plain, Frozen, Slotted, Tuple, Lender]
"""

WRAPPED = """
import collections, dataclasses, functools, typing
def loud(method, mark="one"):
    @functools.wraps(method)
    def wrapper(*args, **kwargs):
        return method(*args, **kwargs), mark
    return wrapper
@dataclasses.dataclass(order=True)
class Kernel:
    m: int = 1
@dataclasses.dataclass
class Other:
    n: int = 1
class Plain(typing.NamedTuple):
    a: int = 1
value = [Kernel(), Plain()]
# Wrapped here.
"""

ABSTRACT = """
import abc, typing
class Shape(abc.ABC):
    @abc.abstractmethod
    def size(self): ...
@typing.runtime_checkable
class Sized(typing.Protocol):
    n: int
class Kernel(Shape):
    def size(self):
        return 2
value = [Kernel(), Sized]
"""

VALUE = "hash_value(value)"

CASES: list[Case] = [
    *edits(
        "class",
        "change",
        PLAIN,
        """
        LEVEL = 1 || LEVEL = 2
        return super().__call__(*args) || return super().__call__(*args[:1])
        metaclass=Meta || metaclass=Other
        Base, metaclass || Base, Mixin, metaclass
        Kernel(Base, || Kernel(
        return 2 || return 4
        return 5 || return 6
        BLOCK = 64 || BLOCK = 32
        BLOCK = 64 || BLOCKS = 64
        {"a": [1]} || {"a": [2]}
        stages: int || stages: float
        stages: int = 2 || stages: int = 3
        field = Descriptor() || other = Descriptor()
        self.n = n || self.m = self.n = n
        Kernel(3) || Kernel(4)
        x=1): || x=2):
        return x * self.n || return x + self.n
        self.n * self.n || self.n ** self.n
        @property || @functools.cached_property
        return x + 1 || return x + 2
        @staticmethod\\n    def fixed(x): || def fixed(x):
        return cls(1) || return cls(2)
        self.n + 1 || self.n + 2
        return 1\\n    def __eq__ || return 2\\n    def __eq__
        return True || return False
        return 3 || return 4
        DEPTH = 1 || DEPTH = 2
        class Inner || class Within
        '''What it is.''' || '''What it was.'''
        """,
        VALUE,
    ),
    *edits(
        "slots",
        "change",
        SLOTTED,
        """
        ("a", "b") || ("a", "c")
        ("a", "b") || ("a",)
        ("a", "b") || ("a", "b", "__dict__")
        __slots__ = ("a", "b")\\n || pass\\n
        self.a = 1 || self.a = 2
        self.a = 1 || self.b = 1
        """,
        VALUE,
    ),
    *edits(
        "dataclass",
        "change",
        DATACLASS,
        """
        order=False || order=True
        frozen=False || eq=False
        frozen=False || unsafe_hash=True
        frozen=False || repr=False
        frozen=False || match_args=False
        m: int || k: int
        m: int || m: float
        default=4 || default=5
        compare=True || compare=False
        compare=True || repr=False
        compare=True || hash=False
        compare=True || kw_only=True
        "unit": "elements" || "unit": "bytes"
        default_factory=list || default_factory=dict
        self.m * self.n || self.m + self.n
        self.extra = 1 || self.extra = 2
        Kernel(2) || Kernel(3)
        Kernel(2) || Kernel(2, 5)
        Kernel(2) || Kernel(2, tags=[1])
        """,
        VALUE,
    ),
    *edits(
        "dataclass flag", "change", DATACLASS.replace("self.extra = 1", "pass"), "frozen=False || frozen=True", VALUE
    ),
    *edits(
        "dataclass slots", "change", DATACLASS.replace("self.extra = 1", "pass"), "frozen=False || slots=True", VALUE
    ),
    *edits(
        "dataclass order",
        "change",
        PASSED,
        "m: InitVar[int]\\n    n: InitVar[int] || n: InitVar[int]\\n    m: InitVar[int]",
        VALUE,
    ),
    *edits(
        "dataclass order kept",
        "same",
        PASSED.replace("kw_only=True", "kw_only=True, slots=True"),
        "m=2, n=2 || n=2, m=2",
        VALUE,
    ),
    *edits(
        "enumeration",
        "change",
        ENUM,
        """
        FAST = 1 || FAST = 3
        FAST = 1 || FAST = "1"
        FAST = 1 || QUICK = FAST = 1
        EXACT = 2 || EXACT = 3
        EXACT = 2 || PRECISE = 2
        ALIAS = 1 || ALIAS = 2
        nonmember(10) || nonmember(11)
        self.value + 1 || self.value + 2
        return 64 || return 32
        return cls.FAST || return cls.EXACT
        (enum.Enum) || (enum.IntEnum)
        Kernel.FAST || Kernel.EXACT
        """,
        VALUE,
    ),
    *edits(
        "named tuple",
        "change",
        NAMED,
        """
        m: int || k: int
        m: int || m: str
        n: int = 4 || n: int = 5
        self.m * self.n || self.m + self.n
        Kernel(2) || Kernel(3)
        "a b" || "a c"
        defaults=[1] || defaults=[2]
        "Plain", || "Simple",
        """,
        VALUE,
    ),
    *edits(
        "completed",
        "change",
        COMPLETED,
        """
        dataclasses.replace || dataclasses.asdict
        typing.cast || typing.no_type_check
        __signature__ = "one" || __signature__ = "two"
        CField(1) || CField(2)
        __scale__ = 2 || __scale__ = 3
        [("x", int)] || [("x", float)]
        "a b" || "a c"
        "A B" || "A C"
        """,
        VALUE,
    ),
    *(
        replace(case, is_portable=False)
        for case in edits(
            "generated in a library's name", "change", COMPLETED, "x + 1 || x + 2", "hash_value(scope['dumps'])"
        )
    ),
    *edits(
        "renamed",
        "change",
        RENAMED,
        """
        order=True || order=False
        = 2 || = 4
        default_factory=list || default_factory=dict
        default=3 || default=4
        repr=False || repr=True
        frozen=True) || frozen=False)
        "a b" || "a c"
        defaults=[1] || defaults=[2]
        "Renamed" || "Other"
        """,
        VALUE,
    ),
    *(
        replace(case, is_portable=False)
        for case in edits(
            "renamed and wrapped",
            "change",
            RENAMED,
            """
            value = || Plain.__eq__ = Lender.__eq__\\nvalue =
            value = || Plain.__repr__ = Lender.__repr__\\nvalue =
            value = || Plain.__init__ = Lender.__init__\\nvalue =
            value = || Frozen.__init__ = Lender.__init__\\nvalue =
            value = || Lender.__init__ = Floating.__init__\\nvalue =
            value = || Plain.__lt__ = Plain.__gt__\\nvalue =
            value = || Tuple.__repr__ = Other.__repr__\\nvalue =
            value = || Tuple.__new__ = Other.__new__\\nvalue =
            """,
            VALUE,
        )
    ),
    *(
        replace(case, is_portable=False)
        for case in edits(
            "generated and wrapped",
            "change",
            WRAPPED,
            """
            # Wrapped here. || Kernel.__init__ = loud(Kernel.__init__)
            # Wrapped here. || Kernel.__repr__ = loud(Kernel.__repr__)
            # Wrapped here. || Kernel.__eq__ = loud(Kernel.__eq__, "two")
            # Wrapped here. || Kernel.__lt__ = Kernel.__gt__
            # Wrapped here. || Kernel.__repr__ = Other.__repr__
            # Wrapped here. || Plain.__repr__ = collections.namedtuple("Other", "b").__repr__
            # Wrapped here. || Plain.__repr__ = loud(Plain.__repr__)
            # Wrapped here. || Plain.__new__ = loud(Plain.__new__)
            """,
            VALUE,
        )
    ),
    *edits(
        "abstract",
        "change",
        ABSTRACT,
        """
        @abc.abstractmethod\\n    def size(self): ... || def size(self): ...
        def size(self): ... || def size(self, x=1): ...
        n: int || m: int
        n: int || n: float
        return 2 || return 3
        (abc.ABC) || (object)
        @typing.runtime_checkable\\n ||
        """,
        VALUE,
    ),
    *(
        case
        for name, source in (("class", PLAIN), ("slots", SLOTTED), ("dataclass", DATACLASS), ("enumeration", ENUM))
        for case in mutations(
            f"{name} used",
            "same",
            source,
            """
            import copy; copy.copy(value), copy.deepcopy(value)
            import pickle; pickle.loads(pickle.dumps(value))
            hash(Kernel), repr(value), value == value
            import inspect, typing; inspect.signature(Kernel), typing.get_type_hints(Kernel)
            """,
            VALUE,
        )
    ),
    *mutations(
        "enumeration cached",
        "same",
        """
        import enum, functools
        class Kernel(enum.Enum):
            FAST = 1
            @functools.cached_property
            def cost(self):
                return 2
        value = Kernel.FAST
        """,
        "value.cost",
        VALUE,
    ),
    *edits(
        "class kept",
        "same",
        PLAIN,
        """
        class Other(type):\\n    pass\\n ||
        import abc, functools || import functools
        class Mixin: || # moved\\nclass Mixin:
        BLOCK = 64\\n    TABLE = {"a": [1]} || TABLE = {"a": [1]}\\n    BLOCK = 64
        value = Kernel(3) || value = Kernel(n=3) if False else Kernel(3)
        """,
        VALUE,
    ),
    *edits("slots kept", "same", SLOTTED, "class Kernel: || class Kernel():", VALUE),
    *edits(
        "dataclass kept",
        "same",
        DATACLASS,
        """
        import dataclasses\\n || import dataclasses, os\\n
        Kernel(2) || Kernel(m=2, n=4, tags=[])
        (order=False, frozen=False) || (frozen=False, order=False)
        (order=False, frozen=False) || ()
        """,
        VALUE,
    ),
    *edits(
        "enumeration borrowed",
        "change",
        ENUM,
        """
        def stages(self): || __repr__ = enum.Enum.__str__\\n    def stages(self):
        def stages(self): || __hash__ = enum.Enum.__dir__\\n    def stages(self):
        class Kernel || @enum.global_enum\\nclass Kernel
        """,
        VALUE,
    ),
    *edits(
        "enumeration of text",
        "same",
        ENUM.replace("enum.Enum", "str, enum.Enum"),
        "def stages(self): || __str__ = enum.Enum.__str__\\n    def stages(self):",
        VALUE,
    ),
    *edits("enumeration kept", "same", ENUM, "Kernel.FAST || Kernel(1)", VALUE),
    *edits("named tuple kept", "same", NAMED, "Kernel(2) || Kernel(m=2, n=4)", VALUE),
]
GENERIC = """
import typing
from dataclasses import dataclass
import enum
T = typing.TypeVar("T")
class Base(typing.Generic[T]):
    def width(self):
        return typing.get_args(type(self).__orig_bases__[0])[0].__name__
@dataclass
class Kernel(Base[int]):
    n: int = 1
class Table(typing.NamedTuple, typing.Generic[T]):
    n: T
class Typed(typing.TypedDict, typing.Generic[T]):
    n: T
@dataclass
class Plain(Base):
    n: int = 1
value = [Kernel(), Plain, Table[int](1), Typed]
"""
CASES += edits(
    "generic base",
    "change",
    GENERIC,
    """
    Base[int] || Base[float]
    Base[int] || Base
    Plain(Base) || Plain(Base[int])
    TypeVar("T") || TypeVar("T", bound=int)
    """,
    VALUE,
)
CASES += edits("generic base kept", "same", GENERIC, "import enum || import os, enum", VALUE)
