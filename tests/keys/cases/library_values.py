"""Values of Python's own library."""

from __future__ import annotations

from tests.keys.cases.case import Case, values

CASES: list[Case] = [
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
]
