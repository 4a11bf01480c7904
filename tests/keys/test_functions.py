"""Keys of functions: whatever changes what a function does changes its key, and nothing else does."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcachefs.errors import Unkeyable, UsageError
from kcachefs.keys import hash_function
from kcachefs.keys.libraries import is_library, version_of
from tests.keys.modules import Modules, modules

__all__ = ["modules"]

BASE = """
    import functools, math
    SCALE = 4
    TABLE = [1, 2]
    def helper(x):
        return x * SCALE
    def wrap(f):
        @functools.wraps(f)
        def wrapper(*args):
            return f(*args)
        return wrapper
    class Config:
        BLOCK = 64
        def __init__(self, n):
            self.n = n
        def size(self, x):
            return x * self.n
    def make(offset):
        def inner(x):
            return x + offset
        return inner
    def kernel(x, y=1, *, z=2):
        return helper(x) + y + z + len(TABLE)
    def annotated(x: Config):
        return x
    def uses_class(x):
        return x + Config.BLOCK
    @wrap
    def wrapped(x):
        return x + 1
    def indented(x):
        if x:
            return \"\"\"
one
\"\"\"
    bound = Config(3).size
    closure = make(1)
    partial = functools.partial(kernel, 1, z=3)
"""
NAMES = ["kernel", "uses_class", "wrapped", "indented", "bound", "closure", "partial", "annotated"]


def key(module: types.ModuleType, name: str) -> str:
    return hash_function(getattr(module, name))


def test_the_same_text_gives_the_same_keys(modules: Modules) -> None:
    one = {name: key(modules.load(BASE), name) for name in NAMES}
    two = {name: key(modules.load("    # moved down, and elsewhere\n\n" + BASE), name) for name in NAMES}
    assert one == two
    assert len(set(one.values())) == len(NAMES)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("x * SCALE", "x + SCALE", {"kernel", "partial"}),
        ("SCALE = 4", "SCALE = 5", {"kernel", "partial"}),
        ("SCALE = 4", "SCALE = 4.0", {"kernel", "partial"}),
        ("TABLE = [1, 2]", "TABLE = [2, 1]", {"kernel", "partial"}),
        ("y=1,", "y=2,", {"kernel", "partial"}),
        ("y=1,", "y=True,", {"kernel", "partial"}),
        ("z=2)", "z=0)", {"kernel", "partial"}),
        ("z=3)", "z=4)", {"partial"}),
        ("BLOCK = 64", "BLOCK = 32", {"uses_class", "bound", "annotated"}),
        ("x * self.n", "x - self.n", {"uses_class", "bound", "annotated"}),
        ("Config(3)", "Config(4)", {"bound"}),
        ("make(1)", "make(2)", {"closure"}),
        ("x + offset", "x - offset", {"closure"}),
        ("return x + 1", "return x + 2", {"wrapped"}),
        ("return f(*args)", "return -f(*args)", {"wrapped"}),
        ("one\n", "  one\n", {"indented"}),
        ("one\n", "two\n", {"indented"}),
    ],
)
def test_a_change_shows_where_it_matters(modules: Modules, before: str, after: str, changed: set[str]) -> None:
    assert before in BASE
    one = modules.load(BASE)
    keys = {name: key(one, name) for name in NAMES}
    two = modules.load(BASE.replace(before, after))
    assert {name for name in NAMES if key(two, name) != keys[name]} == changed


def test_the_same_text_under_two_names_gives_two_keys(modules: Modules) -> None:
    module = modules.load("def a(x):\n    return x\n\nb = type(a)(a.__code__, a.__globals__, 'b')\n")
    assert key(module, "a") != key(module, "b")


@pytest.mark.parametrize("name", NAMES)
def test_a_key_is_the_same_again(modules: Modules, name: str) -> None:
    module = modules.load(BASE)
    assert key(module, name) == key(module, name)


def test_a_global_changed_since_the_last_call_shows(modules: Modules) -> None:
    module = modules.load(BASE)
    before = key(module, "kernel")
    for name, value in (("SCALE", 5), ("TABLE", [1, 2, 3]), ("helper", lambda x: x)):
        old = getattr(module, name)
        setattr(module, name, value)
        assert key(module, "kernel") != before
        setattr(module, name, old)
        assert key(module, "kernel") == before
    module.TABLE.append(9)
    assert key(module, "kernel") != before


def test_a_frozen_kernel_is_remembered_until_something_changes(modules: Modules) -> None:
    module = modules.load("N = 2\ndef helper(x):\n    return x + N\ndef kernel(x, y=1):\n    return helper(x) * y\n")
    before = key(module, "kernel")
    changes: list[Callable[[], None]] = [
        lambda: setattr(module, "N", 3),
        lambda: setattr(module.kernel, "__defaults__", (2,)),
        lambda: setattr(module.kernel, "__name__", "other"),
        lambda: setattr(module.helper, "__code__", (lambda x: x - 1).__code__),
        lambda: setattr(module.kernel, "__wrapped__", module.helper),
        lambda: setattr(module, "len", 3),
    ]
    seen = {before}
    for change in changes[:-1]:
        change()
        seen.add(key(module, "kernel"))
    assert len(seen) == len(changes)


def test_an_attribute_that_takes_the_place_of_an_ignored_one_shows() -> None:
    def kernel() -> None:
        pass

    kernel.__dict__["noise"] = 1
    before = hash_function(kernel, ignore=["noise"])
    del kernel.__dict__["noise"]
    kernel.__dict__["tile"] = 2
    assert hash_function(kernel, ignore=["noise"]) != before


def test_a_closure_changed_since_the_last_call_shows() -> None:
    def outer() -> tuple[Callable[[int], int], Callable[[int], None]]:
        step = 1

        def inner(x: int) -> int:
            return x + step

        def change(to: int) -> None:
            nonlocal step
            step = to

        return inner, change

    inner, change = outer()
    before = hash_function(inner)
    change(2)
    assert hash_function(inner) != before
    change(1)
    assert hash_function(inner) == before


def test_a_file_edited_after_import_does_not_lend_its_text_to_the_old_code(modules: Modules) -> None:
    old = modules.load("def kernel(x):\n    return x + 1\n")
    path = old.__file__
    assert path is not None
    with open(path, "w") as file:
        file.write("def kernel(x):\n    return x + 2\n")
    stale = key(old, "kernel")
    new = modules.load("def kernel(x):\n    return x + 2\n")
    assert stale != key(new, "kernel")


def test_functions_without_source_are_told_by_their_code() -> None:
    def made(text: str) -> Any:
        scope: dict[str, Any] = {"__name__": "generated"}
        exec(text, scope)
        return scope["k"]

    one, two = made("def k(x):\n    return x + 1"), made("\n\ndef k(x):\n    return x + 1")
    assert hash_function(one) == hash_function(two)
    assert hash_function(one) != hash_function(made("def k(x):\n    return x + 2"))
    assert hash_function(one) != hash_function(made("def k(x):\n    return x + 1.0"))


def test_lambdas_on_one_line_differ() -> None:
    pair = [lambda x: x + 1, lambda x: x + 2]
    assert hash_function(pair[0]) != hash_function(pair[1])


def test_partials_and_wrappers_to_any_depth() -> None:
    def deep(levels: int, last: int) -> Callable[[], int]:
        made: Callable[[], int] = functools.partial(int, last)
        for _ in range(levels):
            made = (lambda inner: functools.partial(lambda: inner()))(made)
        return made

    levels = sys.getrecursionlimit() + 100
    one = hash_function(deep(levels, 1))
    assert one == hash_function(deep(levels, 1))
    assert one != hash_function(deep(levels, 2))
    assert one != hash_function(deep(levels - 1, 1))


def test_mutual_recursion_ends(modules: Modules) -> None:
    text = "def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n != 0 and even(n - 1)\n"
    one, two = modules.load(text), modules.load(text)
    assert key(one, "even") == key(two, "even")
    assert key(one, "even") != key(one, "odd")
    assert key(one, "even") != key(modules.load(text.replace("n != 0", "n > 0")), "even")


def test_a_module_of_the_project_is_followed_and_a_library_is_not(modules: Modules) -> None:
    def with_tools(value: int) -> str:
        modules.load(f"WIDTH = {value}\ndef pad(x):\n    return x + WIDTH\nUNUSED = {value}\n", "user_tools")
        return key(
            modules.load("import user_tools, math\ndef kernel(x):\n    return user_tools.pad(x) + math.pi\n"), "kernel"
        )

    assert with_tools(1) == with_tools(1)
    assert with_tools(1) != with_tools(2)


def test_a_module_in_a_package_without_an_init_is_followed(modules: Modules) -> None:
    def with_matmul(tile: int) -> list[str]:
        modules.write("user_space.matmul", f"TILE = {tile}\ndef run(x):\n    return x * TILE\n")
        text = """
            import user_space.matmul
            def kernel(x):
                return user_space.matmul.run(x)
            def passes_on(x):
                return x(user_space)
        """
        module = modules.load(text)
        return [key(module, "kernel"), key(module, "passes_on")]

    one, again, two = with_matmul(1), with_matmul(1), with_matmul(2)
    assert one == again
    assert all(before != after for before, after in zip(one, two, strict=True))


def test_a_module_without_a_file_is_followed(monkeypatch: pytest.MonkeyPatch, modules: Modules) -> None:
    user_config = types.ModuleType("user_config")
    monkeypatch.setitem(sys.modules, "user_config", user_config)
    text = """
        import user_config
        def kernel(x):
            return x * user_config.N
        def passes_on(x):
            return x(user_config)
    """
    keys = set()
    for number in (1, 2):
        user_config.__dict__["N"] = number
        keys.add(key(modules.load(text), "kernel"))
    assert len(keys) == 2
    with pytest.raises(Unkeyable, match="user_config has no file"):
        key(modules.load(text), "passes_on")


@pytest.mark.parametrize("name", ["builtins", "math", "zipimport", "json.decoder", "triton._C.libtriton.ir"])
def test_what_is_built_in_or_made_by_a_library_is_one(name: str) -> None:
    importlib.import_module(name.removesuffix(".ir"))
    assert is_library(name)


def test_the_version_of_what_is_in_a_namespace_is_known() -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    assert version_of(nvrtc.__name__) == importlib.metadata.version("cuda-bindings")
    assert f"cuda-bindings-{importlib.metadata.version('cuda-bindings')}" in version_of("cuda")


def test_annotations_of_any_kind_are_read(modules: Modules) -> None:
    text = """
        import typing, collections.abc
        T = typing.TypeVar("T")
        class Holder(typing.Generic[T]):
            x: dict[str, T]
        def kernel(a: list[int] | None, b: typing.Literal["x"], c: collections.abc.Callable[[int], T], d: Holder[int]):
            return a
    """
    before = key(modules.load(text), "kernel")
    assert key(modules.load(text), "kernel") == before
    for old, new in (("dict[str, T]", "dict[int, T]"), ("list[int]", "list[str]"), ('Literal["x"]', 'Literal["y"]')):
        assert key(modules.load(text.replace(old, new)), "kernel") != before


def test_globals_named_in_annotations_left_as_text_count(modules: Modules) -> None:
    text = "from __future__ import annotations\nTILE = 4\ndef kernel(x: Tensor[TILE]):\n    return x\n"
    assert key(modules.load(text), "kernel") != key(modules.load(text.replace("TILE = 4", "TILE = 8")), "kernel")


def test_the_order_in_a_set_of_functions_does_not_show(modules: Modules) -> None:
    text = """
        def a(x):
            return x
        def b(x):
            return -x
        CHOICES = {a, b}
        def kernel(x):
            return [f(x) for f in CHOICES]
    """
    assert len({key(modules.load(text), "kernel") for _ in range(8)}) == 1
    assert key(modules.load(text), "kernel") != key(modules.load(text.replace("{a, b}", "{a}")), "kernel")


def test_what_cannot_be_read_is_refused_with_the_path_to_it() -> None:
    class Config:
        def __init__(self) -> None:
            self.numbers = iter([1])

    config = Config()

    def helper() -> Any:
        return config

    def kernel() -> Any:
        return helper()

    expected = (
        r"^function '.*kernel' > closure variable 'helper' > closure variable 'config' > attribute 'numbers': "
        r"builtins.list_iterator cannot be read in full: it keeps state.*; pass what it holds.*`ignore`"
    )
    with pytest.raises(Unkeyable, match=expected) as refused:
        hash_function(kernel)
    assert refused.value.path[-1] == "attribute 'numbers'"
    assert hash_function(kernel, ignore=["config"]) == hash_function(kernel, ignore=["config"])


def test_a_lock_is_no_part_of_the_value() -> None:
    lock = threading.Lock()

    def kernel() -> bool:
        return lock.locked()

    before = hash_function(kernel)
    with lock:
        assert hash_function(kernel) == before


KERNEL = """
    import triton, triton.language as tl
    WIDTH = tl.constexpr(4)
    @triton.jit
    def helper(x):
        return x * WIDTH
    @triton.jit
    def kernel(ptr, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(ptr + offsets, helper(offsets), mask=offsets < n)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("constexpr(4)", "constexpr(8)"),
        ("x * WIDTH", "x + WIDTH"),
        ("offsets < n", "offsets <= n"),
        ("@triton.jit\n    def kernel", "@triton.jit(noinline=True)\n    def kernel"),
        ("@triton.jit\n    def kernel", "@triton.jit(do_not_specialize=['n'])\n    def kernel"),
    ],
)
def test_triton_kernels(modules: Modules, before: str, after: str) -> None:
    one = key(modules.load(KERNEL), "kernel")
    assert one == key(modules.load(KERNEL), "kernel")
    assert before in KERNEL
    assert one != key(modules.load(KERNEL.replace(before, after)), "kernel")


numbers = st.integers(0, 3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=st.tuples(numbers, numbers, numbers, numbers), two=st.tuples(numbers, numbers, numbers, numbers))
def test_keys_meet_only_where_all_parts_do(modules: Modules, one: tuple[int, ...], two: tuple[int, ...]) -> None:
    text = """
        GLOBAL = {}
        def make(cell):
            def kernel(x, default={}):
                return x * {} + default + cell + GLOBAL
            return kernel
        kernel = make({})
    """
    same = key(modules.load(text.format(*one)), "kernel") == key(modules.load(text.format(*two)), "kernel")
    assert same == (one == two)


def test_names_to_ignore_are_a_collection() -> None:
    with pytest.raises(UsageError, match=r"ignore is 'lock'; pass a list of names"):
        hash_function(key, ignore="lock")
