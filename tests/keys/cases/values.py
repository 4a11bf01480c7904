"""Values of Python itself and of its library."""

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
        "library",
        "change",
        """
        import array, collections, datetime, decimal, fractions, functools, io, itertools, math, operator, os, pathlib
        import random, re, struct, types, typing, uuid, ipaddress, ast, zoneinfo, string, time, logging, sys, threading
        UTC = datetime.timezone.utc
        def zone(hours):
            return datetime.timezone(datetime.timedelta(hours=hours))
        def seeded(seed, draws=0):
            made = random.Random(seed)
            for _ in range(draws):
                made.random()
            return made
        def stream(content, position=0):
            made = io.BytesIO(content) if isinstance(content, bytes) else io.StringIO(content)
            made.seek(position)
            return made
        def ordered(*names, moved=None):
            made = collections.OrderedDict((name, 0) for name in names)
            if moved:
                made.move_to_end(moved)
            return made
        def named(function, **attributes):
            made = functools.partial(function)
            vars(made).update(attributes)
            return made
        def helper(x):
            return x
        """,
        """
        datetime.date(2024, 1, 1) || datetime.date(2024, 1, 2)
        datetime.date(2024, 1, 1) || datetime.datetime(2024, 1, 1)
        datetime.datetime(2024, 1, 1) || datetime.datetime(2024, 1, 1, 1)
        datetime.datetime(2024, 1, 1) || datetime.datetime(2024, 1, 1, tzinfo=UTC)
        datetime.datetime(2024, 1, 1) || datetime.datetime(2024, 1, 1, fold=1)
        datetime.datetime(2024, 1, 1, tzinfo=zone(1)) || datetime.datetime(2024, 1, 1, tzinfo=zone(2))
        datetime.time(1, 2) || datetime.time(1, 2, 3)
        datetime.time(1) || datetime.time(1, tzinfo=UTC)
        datetime.timedelta(1) || datetime.timedelta(0, 1)
        datetime.timedelta(0, 0, 1) || datetime.timedelta(0, 0, 2)
        zone(1) || zone(2)
        UTC || datetime.timezone(datetime.timedelta(0), "named")
        zoneinfo.ZoneInfo("UTC") || UTC
        decimal.Decimal("1.0") || decimal.Decimal("1.00")
        decimal.Decimal("0") || decimal.Decimal("-0")
        decimal.Decimal("1") || 1
        decimal.Decimal("NaN") || decimal.Decimal("sNaN")
        fractions.Fraction(1, 2) || fractions.Fraction(1, 3)
        fractions.Fraction(1, 2) || decimal.Decimal("0.5")
        array.array("i", [1]) || array.array("i", [2])
        array.array("i", [1]) || array.array("l", [1])
        array.array("b", [1]) || array.array("B", [1])
        memoryview(b"ab") || memoryview(b"ac")
        memoryview(b"ab") || b"ab"
        memoryview(b"abcd") || memoryview(b"abcd").cast("H")
        memoryview(b"abcd") || memoryview(b"abcd")[::2]
        struct.Struct("<i") || struct.Struct(">i")
        struct.Struct("<i") || "<i"
        stream(b"ab") || stream(b"ac")
        stream(b"ab") || stream(b"ab", 1)
        stream("ab") || stream("ac")
        stream("ab") || stream(b"ab")
        seeded(1) || seeded(2)
        seeded(1) || seeded(1, 1)
        re.compile("a") || re.compile("b")
        re.compile("a") || re.compile("a", re.I)
        re.compile("a") || re.compile(b"a")
        pathlib.Path("a") || pathlib.Path("b")
        pathlib.Path("a") || "a"
        pathlib.Path("a") || pathlib.PurePosixPath("a")
        pathlib.PurePosixPath("a") || pathlib.PureWindowsPath("a")
        operator.itemgetter(1) || operator.itemgetter(2)
        operator.itemgetter(1) || operator.itemgetter(1, 2)
        operator.itemgetter("a") || operator.attrgetter("a")
        operator.attrgetter("a.b") || operator.attrgetter("a.c")
        operator.methodcaller("f") || operator.methodcaller("g")
        operator.methodcaller("f", 1) || operator.methodcaller("f", 2)
        operator.methodcaller("f", x=1) || operator.methodcaller("f", x=2)
        operator.add || operator.sub
        math.sqrt || math.cos
        functools.partial(helper, 1) || functools.partial(helper, 2)
        functools.partial(helper, x=1) || functools.partial(helper, x=2)
        named(helper, tile=1) || named(helper, tile=2)
        named(helper) || named(math.sqrt)
        "ab".join || "ac".join
        "ab".join || "ab".split
        [1].append || [2].append
        int.__add__ || int.__sub__
        str.upper || str.lower
        collections.OrderedDict(a=1, b=2) || collections.OrderedDict(b=2, a=1)
        ordered("a", "b") || ordered("a", "b", moved="a")
        collections.OrderedDict(a=1) || {"a": 1}
        collections.Counter("aab") || collections.Counter("abb")
        collections.Counter("a") || {"a": 1}
        collections.defaultdict(int, a=1) || collections.defaultdict(list, a=1)
        collections.defaultdict(int, a=1) || collections.defaultdict(int, a=2)
        collections.deque([1, 2]) || collections.deque([2, 1])
        collections.deque([1]) || collections.deque([1], 1)
        collections.ChainMap({"a": 1}) || collections.ChainMap({"a": 2})
        collections.UserDict(a=1) || collections.UserDict(a=2)
        types.SimpleNamespace(a=1) || types.SimpleNamespace(a=2)
        types.SimpleNamespace(a=1) || types.SimpleNamespace(b=1)
        types.MappingProxyType({"a": 1}) || types.MappingProxyType({"a": 2})
        types.MappingProxyType({"a": 1}) || {"a": 1}
        uuid.UUID(int=1) || uuid.UUID(int=2)
        ipaddress.ip_address("10.0.0.1") || ipaddress.ip_address("10.0.0.2")
        string.Template("$a") || string.Template("$b")
        ast.parse("a + b") || ast.parse("a - b")
        ast.Constant(1) || ast.Constant(2)
        ast.Name("a", ast.Load()) || ast.Name("b", ast.Load())
        ast.Name("a", ast.Load()) || ast.Name("a", ast.Store())
        ValueError("a") || ValueError("b")
        ValueError("a") || TypeError("a")
        OSError(1, "a") || OSError(2, "a")
        OSError(1, "a", "x") || OSError(1, "a", "y")
        KeyError("a") || KeyError("a", "b")
        StopIteration(1) || StopIteration(2)
        ImportError("a", name="x") || ImportError("a", name="y")
        UnicodeDecodeError("a", b"x", 0, 1, "b") || UnicodeDecodeError("a", b"y", 0, 1, "b")
        ExceptionGroup("a", [ValueError(1)]) || ExceptionGroup("a", [ValueError(2)])
        time.struct_time(range(9)) || time.struct_time(range(1, 10))
        os.stat_result(range(10)) || os.stat_result(range(11))
        typing.List[int] || typing.List[str]
        list[int] || list[str]
        list[int] || list
        list[int] || tuple[int]
        int | None || str | None
        int | None || int
        typing.Optional[int] || typing.Optional[str]
        typing.Literal["a"] || typing.Literal["b"]
        typing.Literal[1] || typing.Literal[True]
        typing.Annotated[int, 1] || typing.Annotated[int, 2]
        typing.Callable[[int], str] || typing.Callable[[str], str]
        typing.Callable[[int], str] || typing.Callable[..., str]
        typing.TypeVar("T") || typing.TypeVar("U")
        typing.TypeVar("T") || typing.TypeVar("T", bound=int)
        typing.TypeVar("T", int, str) || typing.TypeVar("T", int, float)
        typing.ForwardRef("A") || typing.ForwardRef("B")
        typing.Any || typing.NoReturn
        logging.getLogger("a") || logging.getLogger("b")
        threading.Lock() || threading.RLock()
        sys.stdout || sys.stderr
        int || float
        int || 0
        Exception || ValueError
        math || operator
        """,
    ),
    *values(
        "ctypes",
        "change",
        """
        import ctypes
        class Point(ctypes.Structure):
            _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_int)]
        class Either(ctypes.Union):
            _fields_ = [("i", ctypes.c_int), ("f", ctypes.c_float)]
        """,
        """
        ctypes.c_int(1) || ctypes.c_int(2)
        ctypes.c_int(1) || ctypes.c_uint(1)
        ctypes.c_double(1.0) || ctypes.c_double(2.0)
        ctypes.c_char(b"a") || ctypes.c_char(b"b")
        Point(1, 2) || Point(2, 1)
        (ctypes.c_int * 2)(1, 2) || (ctypes.c_int * 2)(1, 3)
        (Point * 1)(Point(1, 2)) || (Point * 1)(Point(1, 3))
        Either(i=1) || Either(i=2)
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
        class Dice(random.Random): pass
        class Buffer(io.BytesIO): pass
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
        class Mode(enum.Flag):
            A = 1
            B = 2
        class Named(str, enum.Enum):
            X = "x"
            Y = "y"
        class Spoken:
            def __init__(self, n): self.n = n
            def __kcachefs_key__(self): return self.n
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
