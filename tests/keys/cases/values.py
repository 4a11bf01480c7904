"""Plain data, subclasses of Python's types, equal values, and what is refused."""

from __future__ import annotations

from tests.keys.cases.case import Case, values

CASES: list[Case] = [
    *values(
        "plain",
        "change",
        "from kcachefs.keys import *",
        """
        0 || 1
        1 || True
        0 || False
        1 || 1.0
        1 || "1"
        0 || None
        -1 || 1
        127 || 128
        255 || -1
        2**63 || 2**64
        2**64 || -2**64
        0.0 || -0.0
        1.0 || 1.0000000000000002
        float("inf") || float("-inf")
        float("inf") || float("nan")
        1j || 1.0
        1j || -1j
        0j || complex(0.0, -0.0)
        "" || None
        "" || b""
        "a" || b"a"
        "a" || "A"
        "a" || "a "
        "\\u00e9" || "e\\u0301"
        "a\\0" || "a"
        b"a" || bytearray(b"a")
        b"a" || b"b"
        ... || None
        ... || NotImplemented
        (1,) || 1
        (1,) || [1]
        () || []
        () || None
        [] || {}
        set() || {}
        set() || frozenset()
        {1} || frozenset({1})
        [1, 2] || [2, 1]
        [1, [2]] || [[1], 2]
        [[1], [2]] || [[1, 2]]
        ["ab", "c"] || ["a", "bc"]
        ["a", "b"] || ["ab"]
        {1: 2} || {2: 1}
        {"a": 1} || {"a": 1, "b": None}
        {"a": 1} || {"a": True}
        {"a": {"b": 1}} || {"a": {"c": 1}}
        {1, 2} || {1, 3}
        {(1, 2)} || {(2, 1)}
        range(3) || range(0, 3, 2)
        range(3) || [0, 1, 2]
        slice(1) || slice(0, 1)
        slice(1, 2) || slice(1, 2, 1)
        range(1) || slice(1)
        """,
    ),
    *values(
        "subclass",
        "change",
        """
        import collections, dataclasses, datetime, decimal, enum, functools, io, pathlib, random, threading, typing
        class Int(int): pass
        class Float(float): pass
        class Text(str):
            def __str__(self): return "always the same"
            __repr__ = __str__
        class Raw(bytes): pass
        class Row(tuple):
            def __iter__(self): return iter(())
        class Rows(list):
            def __len__(self): return 0
        class Table(dict):
            def items(self): return []
        class Names(frozenset): pass
        class Day(datetime.date):
            year = property(lambda self: 2000)
        class Moment(datetime.datetime): pass
        class Money(decimal.Decimal):
            def __str__(self): return "money"
        class Dice(random.Random):
            def getstate(self): return 1
        class Buffer(io.BytesIO):
            def getvalue(self): return b""
        class Place(pathlib.PosixPath): pass
        class Failure(ValueError):
            def __init__(self, *args, code=0):
                super().__init__(*args)
                self.code = code
        class Bound(functools.partial): pass
        class Pair(typing.NamedTuple):
            x: int
            y: int = 0
        class Signal(threading.Event):
            def __init__(self, n):
                super().__init__()
                self.n = n
        class Slotted:
            __slots__ = ("a", "__b")
            def __init__(self, a, b=0): self.a, self.__b = a, b
        class Both(Slotted):
            def __init__(self, a, c): super().__init__(a); self.c = c
        class Mode(enum.Flag, boundary=enum.STRICT):
            A = 1
            B = 2
        class Named(str, enum.Enum):
            X = "x"
            Y = "y"
        class Spoken:
            def __init__(self, n): self.n = n
            def __kcachefs_key__(self): return self.n
        def caused(n):
            made = ValueError("a")
            made.__cause__ = KeyError(n)
            return made
        def told(cls, *args, **attributes):
            made = cls(*args)
            vars(made).update(attributes)
            return made
        """,
        """
        Int(1) || Int(2)
        Int(1) || 1
        told(Int, 1, unit="m") || told(Int, 1, unit="s")
        Float(0.0) || Float(-0.0)
        Text("a") || Text("b")
        Text("a") || "a"
        told(Text, "a", n=1) || told(Text, "a", n=2)
        Raw(b"a") || Raw(b"b")
        Row((1, 2)) || Row((1, 3))
        Row((1, 2)) || (1, 2)
        Rows([1]) || Rows([2])
        told(Rows, [1], n=1) || told(Rows, [1], n=2)
        Table(a=1) || Table(a=2)
        Names("a") || Names("b")
        Day(2024, 1, 1) || Day(2025, 1, 1)
        Day(2024, 1, 1) || datetime.date(2024, 1, 1)
        told(Day, 2024, 1, 1, n=1) || told(Day, 2024, 1, 1, n=2)
        Moment(2024, 1, 1) || Moment(2024, 1, 1, 1)
        Money("1") || Money("2")
        Dice(1) || Dice(2)
        Buffer(b"a") || Buffer(b"b")
        told(Buffer, b"a", n=1) || told(Buffer, b"a", n=2)
        Place("a") || Place("b")
        Place("a") || pathlib.Path("a")
        Failure("a") || Failure("b")
        Failure("a", code=1) || Failure("a", code=2)
        Bound(print, 1) || Bound(print, 2)
        Bound(print, 1) || functools.partial(print, 1)
        Pair(1, 2) || Pair(2, 1)
        Pair(1, 2) || (1, 2)
        Signal(1) || Signal(2)
        Slotted(1) || Slotted(2)
        Slotted(1, 2) || Slotted(1, 3)
        Both(1, 2) || Both(1, 3)
        Mode.A || Mode.B
        Mode.A || Mode.A | Mode.B
        Mode.A || 1
        Named.X || Named.Y
        Named.X || "x"
        Spoken(1) || Spoken(2)
        Spoken(1) || 1
        caused(1) || caused(2)
        caused(1) || ValueError("a")
        """,
    ),
    *values(
        "equal",
        "same",
        """
        import array, collections, datetime, decimal, enum, functools, math, operator, pathlib, random, re, threading
        import typing, collections.abc, logging, os, sys, struct, dataclasses
        class Mode(enum.Enum):
            A = 1
            B = 2
        @dataclasses.dataclass
        class Tile:
            m: int
            n: int = 4
        class Counted:
            def __init__(self, n):
                self.n = n
                self.lock = threading.Lock()
            def __kcachefs_key__(self): return self.n
        class Guarded:
            def __init__(self, n):
                self.n = n
                self.lock = threading.RLock()
        def held(lock):
            lock.acquire()
            return lock
        def used(function):
            function(1)
            return function
        @functools.lru_cache
        def remembered(x): return x
        def log(level):
            made = logging.getLogger("cases")
            made.setLevel(level)
            return made
        """,
        """
        {"a": 1, "b": 2} || {"b": 2, "a": 1}
        {1, 2, 3} || {3, 2, 1}
        {"x", "y", "z"} || {"z", "y", "x"}
        frozenset("abc") || frozenset("cba")
        {Mode.A: 1, Mode.B: 2} || {Mode.B: 2, Mode.A: 1}
        {Mode.A, Mode.B} || {Mode.B, Mode.A}
        {operator.add, math.sqrt} || {math.sqrt, operator.add}
        float("nan") || -float("nan")
        1_000 || 1000
        "a" "b" || "ab"
        [*range(3)] || [0, 1, 2]
        dict(a=1) || {"a": 1}
        range(0, 3) || range(3)
        datetime.date(2024, 1, 1) || datetime.date.fromisoformat("2024-01-01")
        datetime.datetime(2024, 1, 1) || datetime.datetime.fromisoformat("2024-01-01")
        datetime.timedelta(seconds=60) || datetime.timedelta(minutes=1)
        datetime.timezone.utc || datetime.timezone(datetime.timedelta(0))
        decimal.Decimal("1.5") || decimal.Decimal(1.5)
        array.array("i", [1, 2]) || array.array("i", (1, 2))
        re.compile("a") || re.compile("a", re.UNICODE)
        pathlib.Path("a/b") || pathlib.Path("a") / "b"
        random.Random(1) || random.Random(1)
        struct.Struct("<i") || struct.Struct("<" + "i")
        operator.itemgetter(1, 2) || operator.itemgetter(*[1, 2])
        functools.partial(print, 1) || functools.partial(functools.partial(print), 1)
        collections.OrderedDict(a=1, b=2) || collections.OrderedDict([("a", 1), ("b", 2)])
        collections.Counter("ab") || collections.Counter("ba")
        Tile(4) || Tile(m=4, n=4)
        Mode.A || Mode(1)
        Counted(1) || Counted(1)
        Guarded(1) || Guarded(1)
        threading.Lock() || held(threading.Lock())
        {"lock": threading.RLock()} || {"lock": held(threading.RLock())}
        remembered || used(remembered)
        log("INFO") || log("DEBUG")
        os.environ || os.environ
        typing.Optional[int] || int | None
        typing.Union[int, str] || int | str
        list[int] || list[int]
        typing.List[int] || typing.List[int]
        collections.abc.Callable[[int], str] || collections.abc.Callable[[int], str]
        typing.TypeVar("T", bound=int) || typing.TypeVar("T", bound=int)
        ValueError("a") || ValueError("a")
        [Tile(1), Tile(1)] || [Tile(1), Tile(1)]
        (1, (2, (3,))) || (1, (2, (3,)))
        sys.stdout || sys.__stdout__
        [datetime.date(2024, 1, 1)] * 2 || [datetime.date(2024, 1, 1), datetime.date(2024, 1, 1)]
        [decimal.Decimal(1)] * 2 || [decimal.Decimal(1), decimal.Decimal(1)]
        """,
    ),
    *values(
        "refused",
        "refused",
        """
        import contextvars, ctypes, io, itertools, mmap, re, socket, sys, threading, types, weakref, zipfile, hashlib
        class Thing: pass
        class Disguised:
            __dict__ = property(lambda self: {})
        KEPT = Thing()
        def generate():
            yield 1
        class Address(ctypes.Structure):
            _fields_ = [("at", ctypes.c_void_p)]
        class Lazy(types.ModuleType): pass
        """,
        """
        generate()
        iter([1])
        zip([1], [2])
        itertools.count(1)
        itertools.chain([1])
        map(str, [1])
        enumerate([1])
        reversed([1])
        open(__file__)
        weakref.ref(KEPT)
        weakref.WeakKeyDictionary({KEPT: 1})
        threading.local()
        contextvars.ContextVar("v")
        hashlib.sha256(b"a")
        mmap.mmap(-1, 1)
        socket.socket()
        re.match("a", "a")
        sys._getframe()
        ctypes.pointer(ctypes.c_int(1))
        ctypes.c_char_p(b"a")
        ctypes.CDLL(None).getpid
        Address(1)
        Disguised()
        types.ModuleType("nowhere")
        Lazy("nowhere")
        [1, {"a": iter([1])}]
        """,
    ),
]
