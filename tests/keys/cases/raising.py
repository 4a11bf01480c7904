"""Objects that raise something else than AttributeError for what they do not have, or whenever they are asked."""

from __future__ import annotations

from tests.keys.cases.case import Case, values

RAISING = """
import collections, functools, pathlib, types
class AttrDict(dict):
    __getattr__ = dict.__getitem__
class Slotted:
    __slots__ = ("n",)
    def __init__(self, n):
        self.n = n
    def __getattr__(self, name):
        raise RuntimeError(name)
class Closed:
    def __init__(self, n):
        object.__setattr__(self, "n", n)
    def __getattribute__(self, name):
        raise KeyError(name)
    def __call__(self):
        return 1
class Listing:
    def __init__(self, n):
        self.n = n
    def __getattr__(self, name):
        return []
class Classless:
    def __init__(self, n):
        self.n = n
    @property
    def __class__(self):
        raise ValueError("no class")
    @property
    def __name__(self):
        raise ValueError("no name")
class Holder:
    def __init__(self, held):
        self.held = held
def holding(held):
    class Holding:
        member = held
    return Holding
def using(held):
    def uses():
        return held
    return uses
class Recursive:
    def __getattr__(self, name):
        return self.table[name]
    def __call__(self):
        return 1
class Module(types.ModuleType):
    def __getattribute__(self, name):
        raise ValueError(name)
class Equal(type):
    def __eq__(cls, other):
        return True
class Unhashable(metaclass=Equal):
    pass
class Silent(type):
    def __getattribute__(cls, name):
        raise ValueError(name)
class Hidden(metaclass=Silent):
    pass
class Pathless(pathlib.PurePosixPath):
    def __fspath__(self):
        raise ValueError("no path")
class Endless(collections.deque):
    @property
    def maxlen(self):
        raise ZeroDivisionError
class Speechless:
    def __kcachefs_key__(self):
        raise LookupError("no words")
class Odd(Exception):
    def __str__(self):
        raise ValueError
class Oddly:
    def __kcachefs_key__(self):
        raise Odd
class Unprintable:
    def __repr__(self):
        raise ValueError("not to be shown")
class Shapeless:
    @property
    def shape(self):
        raise RuntimeError("not known yet")
"""

CASES: list[Case] = [
    *values(
        "raising",
        "change",
        RAISING,
        """
        AttrDict(a=1) || AttrDict(a=2)
        AttrDict(a=1) || {"a": 1}
        AttrDict(a=AttrDict(b=1)) || AttrDict(a=AttrDict(b=2))
        AttrDict(a=1).get || AttrDict(a=2).get
        Slotted(1) || Slotted(2)
        Closed(1) || Closed(2)
        Listing(1) || Listing(2)
        Classless(1) || Classless(2)
        Holder(AttrDict(a=1)) || Holder(AttrDict(a=2))
        Holder(Closed(1)) || Holder(Closed(2))
        holding(AttrDict(a=1)) || holding(AttrDict(a=2))
        holding(Closed(1)) || holding(Closed(2))
        functools.partial(Closed(1)) || functools.partial(Closed(2))
        using(AttrDict(a=1)) || using(AttrDict(a=2))
        hash_function(using(AttrDict(a=1))) || hash_function(using(AttrDict(a=2)))
        hash_function(using(Classless(1))) || hash_function(using(Classless(2)))
        hash_function(Closed(1)) || hash_function(Closed(2))
        hash_depends([AttrDict(a=1)]) || hash_depends([AttrDict(a=2)])
        hash_depends([Classless(1)]) || hash_depends([Classless(2)])
        """,
    ),
    *values("raising, kept", "same", RAISING, 'AttrDict(a=1, b=2) || AttrDict(b=2, a=1)\nClosed("a") || Closed("a")'),
    *values(
        "raising, refused",
        "refused",
        RAISING,
        """
        Recursive()
        Module("module")
        Unhashable()
        Hidden()
        Hidden
        Pathless("a")
        Endless()
        Speechless()
        Oddly()
        [Holder({"a": Speechless()})]
        hash_function(Recursive())
        hash_function(Unprintable())
        hash_tensor_signature(AttrDict(a=1))
        hash_tensor_signature(Shapeless())
        hash_tensor_signature(Recursive())
        TensorSpec((1,), AttrDict(a=1))
        """,
    ),
]
