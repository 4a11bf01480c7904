"""Functions: edits of a source file that must change the key of `kernel`, and edits that must not."""

from __future__ import annotations

from dataclasses import replace

from tests.keys.cases.case import Case, Expectation, edits

BASE = """
import contextlib, functools, math, operator
from dataclasses import dataclass
SCALE = 4
TABLE = [1, 2]
NESTED = {"tile": {"m": 64, "n": (1, 2)}}
UNUSED = 1
OFFSET = 7

def helper(x):
    return x * SCALE

def unused(x):
    return x - UNUSED

def wrap(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args)
    return wrapper

def make(offset, more=0):
    def inner(x):
        return x + offset
    return inner

def deep(level):
    def one():
        def two():
            return level
        return two
    return one

@contextlib.contextmanager
def context():
    yield OFFSET

@wrap
def wrapped(x):
    return x + 1

@functools.lru_cache(maxsize=8)
def remembered(x):
    return x + 2

@functools.singledispatch
def dispatched(x):
    return 0

@dispatched.register
def _(x: int):
    return 1

def attributed(x):
    return x
attributed.block = 64

closure = make(1)
partial = functools.partial(helper, 5)
nested = deep(3)()
square = lambda x: x * x
pair = (lambda x: x + 1, lambda x: x + 2)
compose = functools.reduce
getter = operator.itemgetter(1)

class Config:
    BLOCK = 64
    def __init__(self, n):
        self.n = n
    def size(self, x):
        return x * self.n

config = Config(3)
bound = config.size

def kernel(x, y=1, *, z=2, w: "Config" = None):
    # A comment.
    total = helper(x) + y + z + len(TABLE) + NESTED["tile"]["m"] + closure(1) + partial() + nested() + square(2)
    total += pair[0](1) + wrapped(3) + remembered(1) + dispatched(1) + attributed.block + bound(2) + config.BLOCK
    with context() as offset:
        total += offset + math.floor(2.5) + getter([1, 2])
    def local(a, b="text"):
        return [item * 3 for item in range(a) if item]
    text = f"{total:>4} and {x!r}"
    return local(2), (lambda q: q + 5)(1), text, make(2)
"""


def not_portable(section: str, expect: Expectation, source: str, lines: str) -> list[Case]:
    """Edits of code that has no text, whose keys hold for one Python version."""
    return [replace(case, is_portable=False) for case in edits(section, expect, source, lines)]


CASES: list[Case] = [
    *edits(
        "function",
        "change",
        BASE,
        """
        return x * SCALE || return x + SCALE
        return x * SCALE || return x * SCALE + 0
        SCALE = 4 || SCALE = 5
        SCALE = 4 || SCALE = 4.0
        SCALE = 4 || SCALE = True
        SCALE = 4 || SCALE = "4"
        TABLE = [1, 2] || TABLE = [2, 1]
        TABLE = [1, 2] || TABLE = (1, 2)
        TABLE = [1, 2] || TABLE = [1, 2, 3]
        "m": 64 || "m": 32
        "n": (1, 2) || "n": (1, 3)
        {"tile": {"m" || {"tiles": {"m"
        OFFSET = 7 || OFFSET = 8
        return x + offset || return x - offset
        closure = make(1) || closure = make(2)
        closure = make(1) || closure = make(1.0)
        return level || return -level
        deep(3)() || deep(4)()
        def two(): || def two(a=1):
        yield OFFSET || yield -OFFSET
        return f(*args) || return -f(*args)
        return x + 1\\n || return x + 9\\n
        @wrap\\ndef wrapped || def wrapped
        maxsize=8 || maxsize=9
        return x + 2\\n || return x + 3\\n
        return 0 || return 3
        return 1\\n || return 4\\n
        x: int || x: str
        block = 64 || block = 32
        block = 64 || blocks = 64
        helper, 5 || helper, 6
        partial(helper || partial(wrapped
        square = lambda x: x * x || square = lambda x: x + x
        square = lambda x: x * x || square = lambda x: x * x * 1
        square = lambda x: x * x || square = lambda y: y * y
        lambda x: x + 1, lambda || lambda x: x + 3, lambda
        lambda x: x + 2) || lambda x: x + 4)
        itemgetter(1) || itemgetter(0)
        BLOCK = 64 || BLOCK = 32
        self.n = n || self.n = -n
        return x * self.n || return x - self.n
        Config(3) || Config(4)
        y=1, *, || y=2, *,
        y=1, *, || y=True, *,
        z=2, w || z=3, w
        w: "Config" || w: "int"
        w: "Config" = None || w: "Config" = 0
        def kernel(x, y=1, || def kernel(q, y=1,
        len(TABLE) || sum(TABLE)
        closure(1) || closure(2)
        square(2) || square(3)
        pair[0](1) || pair[1](1)
        math.floor(2.5) || math.ceil(2.5)
        math.floor(2.5) || math.floor(2.75)
        [1, 2])\\n    def || [1, 3])\\n    def
        b="text" || b="texts"
        item * 3 || item * 4
        if item] || if not item]
        {total:>4} || {total:>5}
        {x!r} || {x!s}
        \\_and\\_ || \\_or\\_
        lambda q: q + 5 || lambda q: q + 6
        text, make(2) || text, make(3)
        total += pair || total -= pair
        with context() as offset || with context() as other
        def local(a, b || async def local(a, b
        return local(2) || return local(2.0)
        import contextlib || from __future__ import annotations\\nimport contextlib
        """,
    ),
    *edits(
        "function kept",
        "same",
        BASE,
        """
        UNUSED = 1 || UNUSED = 2
        return x - UNUSED || return x + UNUSED
        import contextlib || import os, contextlib
        SCALE = 4 || # moved down\\n\\n\\nSCALE = 4
        def unused(x): || def unused_still(x):
        UNUSED = 1\\n ||
        TABLE = [1, 2] || TABLE = [1] + [2]
        SCALE = 4 || SCALE = 2 + 2
        class Config: || class Unused:\\n    pass\\n\\nclass Config:
        return x * SCALE\\n || return x * SCALE\\n\\n
        def helper(x): || if True: pass\\ndef helper(x):
        SCALE = 4 || SCALE = 3\\nSCALE += 1
        def deep(level): || def another(level): return level\\n\\ndef deep(level):
        nested = deep(3)() || nested = deep(1 + 2)()
        pair = (lambda || other = lambda: 0\\npair = (lambda
        config = Config(3) || config = Config(n=3)
        {"tile": {"m": 64, "n": (1, 2)}} || {"tile": {"n": (1, 2), "m": 64}}
        compose = functools.reduce || compose = None
        """,
    ),
    *edits(
        "indented function",
        "same",
        """
        if True:
            def kernel(x):
                text = '''one
          two'''
                return x, text
        """,
        """
        if True: || if 1 == 1:
        """,
    ),
    *edits(
        "text of more than one line",
        "change",
        """
        def outer():
            def kernel(x):
                return '''one
                two''', b'''three
                four'''
            return kernel
        kernel = outer()
        """,
        """
        two''', || two ''',
        \\_two''', || two''',
        four''' || \\_four'''
        """,
    ),
    *not_portable(
        "generated",
        "change",
        """
        CODE = "def kernel(x):  return x + 1"
        scope = {"__name__": "generated", "N": 1}
        exec(CODE, scope)
        kernel = scope["kernel"]
        """,
        """
        x + 1 || x + 2
        x + 1 || x + 1.0
        x + 1 || x + N
        def kernel(x) || def kernel(x, y=1)
        """,
    ),
]
ANNOTATED = """
import typing
from collections.abc import Callable
T = typing.TypeVar("T")
TILE = 4
class Holder(typing.Generic[T]):
    x: dict[str, T]
def kernel(a: list[int] | None, b: typing.Literal["x"], c: Callable[[int], T], d: Holder[int]) -> "TILE":
    return a
"""

JOINED = """
def outer():
    def kernel(x):
        told = ("one"
                "two" f"{x}"
                f"{x + 1} it's"  # isn't it
                '''three
        four''' f'''{x
        }
        five''' "six"
                "seven")
        return told, b"eight" \\
            b"nine"
    return kernel
kernel = outer()
"""
_INSIDE = ("        four", "        }", "        five")
_MOVED = "\n".join(line if line.startswith(_INSIDE) else f"  {line}" for line in JOINED.strip("\n").split("\n"))
CASES.append(
    Case(
        "joined strings: moved to the right",
        "same",
        {"main.py": JOINED},
        "hash_function(kernel)",
        "hash_function(kernel)",
        {"main.py": f"if True:\n{_MOVED}\n"},
    )
)
CASES += edits(
    "joined strings",
    "change",
    JOINED,
    r"""
    "one" || "one "
    \_four || four
    \_five || five
    "seven" || ""
    b"nine" || b"ten"
    """,
)
CASES += edits(
    "annotation",
    "change",
    ANNOTATED,
    """
    dict[str, T] || dict[int, T]
    list[int] | None || list[str] | None
    list[int] | None || list[int]
    Literal["x"] || Literal["y"]
    Callable[[int], T] || Callable[[str], T]
    Holder[int] || Holder[str]
    TypeVar("T") || TypeVar("T", bound=int)
    TILE = 4 || TILE = 8
    """,
)
CASES += edits(
    "annotation that is told not to count",
    "same",
    ANNOTATED,
    """
    dict[str, T] || dict[int, T]
    TypeVar("T") || TypeVar("T", bound=int)
    TILE = 4 || TILE = 8
    """,
    key="hash_function(kernel, annotations=False)",
)
CASES += edits(
    "ignored",
    "same",
    BASE,
    """
    SCALE = 4 || SCALE = 5
    closure = make(1) || closure = make(2)
    block = 64 || block = 32
    """,
    key="hash_function(kernel, ignore=['SCALE', 'closure', 'make', 'block'])",
)

RECURSIVE = """
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n != 0 and even(n - 1)
kernel = even
"""
CASES += edits(
    "recursive",
    "change",
    RECURSIVE,
    """
    n != 0 || n > 0
    n == 0 || n <= 0
    kernel = even || kernel = odd
    odd(n - 1) || odd(n - 2)
    """,
)
CASES += edits("kept in recursion", "same", RECURSIVE, "kernel = even || kernel = even  # the same")
