"""What happens between two questions in one process: changes that must be noticed, and uses that must not show."""

from __future__ import annotations

from tests.keys.cases.case import Case, mutations

CHANGING = """
import builtins, functools, types
N = 2
TABLE = [1]
NAMES = {"a": 1}
CHOICES = {1}
def helper(x):
    return x + N
def other(x):
    return x - N
def make():
    step = 1
    def inner(x):
        return x + step
    def change(to):
        nonlocal step
        step = to
    return inner, change
inner, change = make()
class Mode:
    LEVEL = 1
mode = Mode()
mode.level = 1
space = types.SimpleNamespace(a=1)
def kernel(x: int, y=1, *, z=2) -> int:
    return helper(x) * y + len(TABLE) + NAMES["a"] + inner(1) + mode.level + space.a + z + len(CHOICES) + missing
"""

FROZEN = """
N = 2
def helper(x):
    return x + N
def another(x):
    return x - N
def kernel(x: int, y=1, *, z=2) -> int:
    return helper(x) * y + abs(z)
"""

SMALL = """
TABLE = [1]
NAMES = {"a": 1}
CHOICES = {1, 2}
PAIR = (1, [2])
def kernel(x):
    return len(TABLE) + NAMES["a"] + len(CHOICES) + PAIR[0]
"""

USED = """
import abc, collections, dataclasses, enum, functools, logging, threading, typing, fractions, ipaddress, pathlib
LOCK = threading.RLock()
LOG = logging.getLogger("cases")
class Plain:
    def __init__(self, n):
        self.n = n
    @functools.cached_property
    def area(self):
        return self.n * self.n
class Slotted:
    __slots__ = ("n", "__dict__")
    @functools.cached_property
    def area(self):
        return 1
@dataclasses.dataclass
class Tile:
    m: int
    @functools.cached_property
    def area(self):
        return self.m
class Sized(typing.Protocol):
    n: int
@typing.runtime_checkable
class Checked(typing.Protocol):
    n: int
class Sizable(abc.ABC):
    pass
class Given(Sized):
    n = 1
@functools.lru_cache
def remembered(x):
    return x
@functools.singledispatch
def dispatched(x):
    return 0
@dispatched.register
def _(x: int):
    return 1
class Dispatching:
    @functools.singledispatchmethod
    def run(self, x):
        return 0
    @run.register
    def _(self, x: int):
        return 1
class Mode(enum.Flag, boundary=enum.STRICT):
    A = 1
    B = 2
plain, slotted, tile = Plain(3), Slotted(), Tile(4)
half, network, path = fractions.Fraction(1, 2), ipaddress.ip_network("10.0.0.0/8"), pathlib.Path("a/b")
dispatching = Dispatching()
def kernel(x):
    with LOCK:
        LOG.info("running")
        return (plain, slotted, tile, remembered(x), dispatched(x), dispatching.run(x), Sized, Checked, Sizable,
                Given, Mode, half, network, path)
"""

CASES: list[Case] = [
    *mutations(
        "changed in between",
        "change",
        CHANGING,
        """
        N = 3
        TABLE.append(2)
        TABLE[0] = 2
        TABLE = [2]
        NAMES["a"] = 2
        NAMES["b"] = 2
        CHOICES.add(2)
        change(2)
        Mode.LEVEL = 2
        Mode.more = 1
        mode.level = 2
        mode.other = 1
        space.a = 2
        helper = other
        missing = 1
        len = other
        kernel.__defaults__ = (2,)
        kernel.__kwdefaults__ = {"z": 3}
        kernel.__kwdefaults__["z"] = 3
        kernel.__annotations__ = {"x": str, "return": int}
        kernel.__annotations__["x"] = float
        kernel.__annotations__["new"] = float
        kernel.__name__ = "other"
        kernel.__qualname__ = "Some.kernel"
        kernel.block = 1
        kernel.__wrapped__ = helper
        helper.block = 1
        helper.__code__ = other.__code__
        helper.__defaults__ = (1,)
        """,
    ),
    *mutations(
        "changed in between, where the key was remembered",
        "change",
        FROZEN,
        """
        N = 3
        N = True
        kernel.__defaults__ = (2,)
        kernel.__defaults__ = None
        kernel.__kwdefaults__ = {"z": 3}
        kernel.__kwdefaults__ = None
        kernel.__kwdefaults__["z"] = 3
        kernel.__annotations__ = {"x": str, "return": int}
        kernel.__annotations__["x"] = float
        kernel.__annotations__["new"] = float
        del kernel.__annotations__["x"]
        kernel.__name__ = "other"
        kernel.__qualname__ = "Some.kernel"
        kernel.block = 1
        kernel.__dict__ = {"block": 1}
        helper.block = 1
        helper.__annotations__["x"] = int
        helper.__defaults__ = (1,)
        helper.__kwdefaults__ = {"x": 1}
        helper.__code__ = another.__code__
        abs = helper
        del N
        """,
    ),
    *mutations(
        "small container changed in between",
        "change",
        SMALL,
        """
        TABLE.append(2)
        TABLE[0] = True
        TABLE = [2]
        NAMES["a"] = 1.0
        NAMES["b"] = 1
        CHOICES.add(3)
        PAIR[1].append(3)
        """,
    ),
    *mutations(
        "method of a container changed in between",
        "change",
        """
        ITEMS = [1]
        push, look = ITEMS.append, {"a": 1}.get
        def kernel(x):
            return push, look(x)
        """,
        """
        push(2)
        look.__self__["b"] = 1
        ITEMS.clear()
        """,
    ),
    *mutations(
        "text of an annotation that gets its meaning later",
        "change",
        """
        from __future__ import annotations
        def kernel(x: Tile, *, y=1, z) -> Other:
            return x
        """,
        """
        Tile = 4
        Other = int
        kernel.__kwdefaults__["z"] = 1
        """,
    ),
    *mutations(
        "annotations that are told not to count",
        "same",
        FROZEN,
        """
        kernel.__annotations__ = {"x": str}
        kernel.__annotations__["x"] = float
        helper.__annotations__["x"] = float
        """,
        key="hash_function(kernel, annotations=False)",
    ),
    *mutations(
        "changed back",
        "same",
        FROZEN,
        """
        N = 3; N = 2
        kernel.__kwdefaults__ = {"z": 3}; kernel.__kwdefaults__ = {"z": 2}
        kernel.__annotations__["x"] = float; kernel.__annotations__["x"] = int
        kernel.block = 1; del kernel.block
        """,
    ),
    *mutations(
        "used",
        "same",
        USED,
        """
        plain.area
        slotted.area
        tile.area
        remembered(1)
        dispatched(1)
        dispatched(object())
        dispatching.run(1)
        kernel(1)
        isinstance(plain, Checked)
        isinstance(plain, Sizable)
        Given()
        Mode.A | Mode.B
        Mode(3)
        hash(half)
        network.num_addresses
        str(path), hash(path), path.parts
        LOCK.acquire()
        LOG.setLevel("DEBUG")
        LOG.isEnabledFor(10)
        import linecache; linecache.clearcache()
        import gc; gc.collect()
        """,
    ),
    *mutations(
        "value used",
        "same",
        USED,
        """
        plain.area
        slotted.area
        tile.area
        dispatching.run(1)
        hash(half)
        network.num_addresses
        str(path), hash(path), path.parts
        """,
        key="hash_value([plain, slotted, tile, half, network, path, dispatching])",
    ),
]
