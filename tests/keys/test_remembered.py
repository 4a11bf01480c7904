"""Keys of functions that were made already: they go with their functions, and are made anew when something changed."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from kcachefs.keys import hash_function
from tests.keys.modules import Modules, modules

__all__ = ["modules"]


class Weights:
    """Says little of what it holds, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __kcachefs_key__(self) -> str:
        self.asked += 1
        return "weights"


def closure(weights: Weights) -> Callable[[], object]:
    def kernel() -> object:
        return weights

    return kernel


def defaults(weights: Weights) -> Callable[[], object]:
    def kernel(given: object = weights) -> object:
        return given

    return kernel


def attribute(weights: Weights) -> Callable[[], object]:
    def kernel() -> None:
        return None

    kernel.__dict__["weights"] = weights
    return kernel


def helper(weights: Weights) -> Callable[[], object]:
    inner = closure(weights)

    def kernel() -> object:
        return inner()

    return kernel


def recursive(weights: Weights) -> Callable[[], object]:
    def kernel() -> object:
        return weights or kernel()

    return kernel


@pytest.mark.parametrize("make", [closure, defaults, attribute, helper, recursive])
def test_what_a_dropped_function_held_goes_with_it(make: Callable[[Weights], Callable[[], object]]) -> None:
    weights = Weights()
    kernel = make(weights)
    key = hash_function(kernel)
    asked = weights.asked
    assert hash_function(kernel) == key
    assert weights.asked == asked + 1, "the key was made anew"
    alive = weakref.ref(weights)
    del weights, kernel
    if make is recursive:  # it refers to itself, also where it has no key
        gc.collect()
    assert alive() is None


CLASS = """
    LEVEL = 1
    class Meta(type):
        RANK = 1
    class Base:
        def scale(self):
            return 2
    class Other:
        pass
    class Tensor(Base, metaclass=Meta):
        SCALE = 2
        TABLE = {"a": 1}
        level: "LEVEL"
        @property
        def size(self):
            return 1
        @staticmethod
        def fixed(x=1):
            return x
        def __kcachefs_key__(self):
            return 1
    tensor = Tensor()
    def kernel():
        return tensor.SCALE
"""


@pytest.mark.parametrize(
    "change",
    [
        "Tensor.SCALE = 3",
        "Tensor.TABLE['a'] = 2",
        "Tensor.new = 1",
        "del Tensor.SCALE",
        "Tensor.size = property(lambda self: 2)",
        "Tensor.fixed.__defaults__ = (2,)",
        "Base.scale = lambda self: 3",
        "Base.__qualname__ = 'Renamed'",
        "Tensor.__bases__ = (Other,)",
        "Meta.RANK = 2",
        "LEVEL = 2",
    ],
)
def test_a_changed_class_of_an_object_that_speaks_for_itself_is_noticed(modules: Modules, change: str) -> None:
    module = modules.load(CLASS)
    before = hash_function(module.kernel)
    assert hash_function(module.kernel) == before
    exec(change, vars(module))
    assert hash_function(module.kernel) != before


def test_a_function_in_the_place_of_a_dropped_one_has_a_key_of_its_own() -> None:
    keys = set()
    for number in range(50):

        def kernel(n: int = number) -> int:
            return n

        keys.add(hash_function(kernel))
        del kernel
    assert len(keys) == 50


def test_a_function_that_calls_itself_by_name_depends_on_what_has_the_name(modules: Modules) -> None:
    text = "def kernel(n):\n    return n and kernel(n - 1)\ndef other(n):\n    return n\n"
    module = modules.load(text)
    kernel: Any = module.kernel
    before = hash_function(kernel)
    module.__dict__["kernel"] = module.other
    assert hash_function(kernel) != before
    module.__dict__["kernel"] = kernel
    assert hash_function(kernel) == before


def test_a_closure_that_calls_itself_depends_on_what_it_calls(modules: Modules) -> None:
    text = """
        def made():
            def kernel(n):
                return n and kernel(n - 1)
            def change(to):
                nonlocal kernel
                kernel = to
            return kernel, change
        kernel, change = made()
    """
    module = modules.load(text)
    before = hash_function(module.kernel)
    module.change(abs)
    assert hash_function(module.kernel) != before
    module.change(module.kernel)
    assert hash_function(module.kernel) == before


def test_an_object_with_a_function_is_more_than_that(modules: Modules) -> None:
    text = """
        class Launcher:
            tile = 1
            def __call__(self, x):
                return self.fn(x) * self.tile
        def kernel(x):
            return x
        launcher = Launcher()
        launcher.fn = kernel
    """
    module = modules.load(text)
    before = hash_function(module.launcher)
    module.launcher.tile = 2
    assert hash_function(module.launcher) != before


REDEFINED = """
import sys
from kcachefs.keys import functions, hash_function

kept = []
for i in range(4):
    exec(f"def inner(x): return x + {i}\\ndef outer(x): return inner(x) * {i}")
    hash_function(outer), hash_function(inner)
    kept.append(outer)
inner = None
sys.kept = kept, functions  # longer than the names of any module
"""


def test_functions_that_outlive_the_modules_end_without_a_word() -> None:
    """As in a notebook that defines its functions over and over, with one of them held by what ends last."""
    done = subprocess.run([sys.executable, "-c", REDEFINED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
