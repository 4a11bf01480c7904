"""Keys of objects and classes: what they hold and what they say for themselves."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from kcachefs import Cache, cached
from kcachefs.errors import Unkeyable
from kcachefs.keys import hash_function, hash_value
from tests.keys.modules import Modules, modules
from tests.waiting import ending_soon

__all__ = ["modules"]


def key(module: types.ModuleType, name: str) -> str:
    return hash_function(getattr(module, name))


def test_an_object_may_speak_for_itself() -> None:
    class Device:
        def __init__(self, arch: int) -> None:
            self.arch = arch
            self.lock = threading.Lock()

        def __kcachefs_key__(self) -> int:
            return self.arch

    assert hash_value(Device(90)) == hash_value(Device(90))
    assert hash_value(Device(90)) != hash_value(Device(80))


def test_what_a_dataclass_holds_beyond_its_fields_counts() -> None:
    @dataclasses.dataclass
    class Tile:
        m: int

        @functools.cached_property
        def area(self) -> int:
            return self.m * self.m

    @dataclasses.dataclass
    class Table(dict[str, int]):
        name: str

    def with_stages(stages: int) -> str:
        tile = Tile(4)
        tile.__dict__["stages"] = stages
        return hash_value(tile)

    def with_entry(number: int) -> str:
        table = Table("a")
        table["x"] = number
        return hash_value(table)

    assert with_stages(1) == with_stages(1)
    assert len({with_stages(1), with_stages(2), hash_value(Tile(4))}) == 3
    assert len({with_entry(1), with_entry(2), hash_value(Table("a"))}) == 3
    used = Tile(4)
    assert used.area == 16
    assert hash_value(used) == hash_value(Tile(4))


@pytest.mark.parametrize(
    ("before", "after"),
    [("self.value + 1", "self.value + 2"), ("return 64", "return 32"), ("return cls.FAST", "return cls.EXACT")],
)
def test_a_member_counts_with_the_methods_of_its_enumeration(modules: Modules, before: str, after: str) -> None:
    text = """
        import enum
        class Mode(enum.Enum):
            FAST = 1
            EXACT = 2
            def stages(self):
                return self.value + 1
            @property
            def block(self):
                return 64
            @classmethod
            def default(cls):
                return cls.FAST
        def kernel(x, mode=Mode.FAST):
            return x * mode.stages() * mode.block
    """

    def keys(module: types.ModuleType) -> list[str]:
        return [key(module, "kernel"), hash_value(module.Mode.FAST), hash_value({module.Mode.FAST: 1})]

    one = keys(modules.load(text))
    assert one == keys(modules.load(text))
    assert before in text
    assert all(old != new for old, new in zip(one, keys(modules.load(text.replace(before, after))), strict=True))


def test_a_method_put_into_an_enumeration_since_the_last_call_shows(modules: Modules) -> None:
    text = "import enum\nclass Mode(enum.Enum):\n    FAST = 1\ndef kernel(mode=Mode.FAST):\n    return mode.stages()\n"
    module = modules.load(text)
    before = key(module, "kernel")
    module.Mode.stages = lambda self: 1
    assert key(module, "kernel") != before


def test_classes_that_python_completes_are_read(modules: Modules) -> None:
    text = """
        import enum, dataclasses, typing
        class Mode(enum.IntEnum):
            FAST = 1
        @dataclasses.dataclass(slots=True)
        class Tile:
            m: int = 4
        class Point(typing.NamedTuple):
            x: int = 0
        def kernel():
            return Mode.FAST, Tile(), Point()
    """
    before = key(modules.load(text), "kernel")
    assert key(modules.load(text), "kernel") == before
    for old, new in (("FAST = 1", "FAST = 2"), ("m: int = 4", "n: int = 4"), ("x: int = 0", "x: int = 1")):
        assert key(modules.load(text.replace(old, new)), "kernel") != before


def test_a_key_that_depends_on_what_an_object_says_is_remembered_until_it_says_something_else(modules: Modules) -> None:
    text = """
        class Speaker:
            def __init__(self, n):
                self.n, self.asked = n, 0
            def __kcachefs_key__(self):
                self.asked += 1
                return (self.n, helper)
        def helper(x):
            return x
        speaker = Speaker(1)
        def kernel(x):
            return speaker.n
    """
    module = modules.load(text)
    before = key(module, "kernel")
    asked = module.speaker.asked
    assert key(module, "kernel") == before
    assert module.speaker.asked == asked + 1
    module.speaker.n = 2
    after = key(module, "kernel")
    assert after != before
    module.helper.block = 3
    assert key(module, "kernel") not in (before, after)


def test_what_an_object_raises_is_told_with_the_path_to_it_and_kept_as_the_cause(modules: Modules) -> None:
    text = """
        class Speaker:
            is_mute = False
            def __kcachefs_key__(self):
                if self.is_mute:
                    raise LookupError("no words")
                return 1
        speaker = Speaker()
        def kernel(x):
            return speaker
    """
    module = modules.load(text)
    before = key(module, "kernel")
    module.speaker.is_mute = True
    expected = (
        r"^function 'kernel' > global 'speaker': .*\.Speaker cannot be read: it raised LookupError: no words; "
        r"fix its __kcachefs_key__ method$"
    )
    with pytest.raises(Unkeyable, match=expected) as refused:
        key(module, "kernel")
    assert isinstance(refused.value.__cause__, LookupError)
    del module.speaker.is_mute
    assert key(module, "kernel") == before


def test_an_argument_that_raises_for_what_it_does_not_have_is_one_like_any_other(tmp_path: Path) -> None:
    class AttrDict(dict[str, int]):
        __getattr__ = dict.__getitem__

    ran = []

    @cached(cache=Cache(tmp_path), ignore=["ran"])
    def build(config: AttrDict) -> bytes:
        ran.append(config)
        return b"%d" % config["a"]

    assert [build(AttrDict(a=1)), build(AttrDict(a=2)), build(AttrDict(a=1))] == [b"1", b"2", b"1"]
    assert ran == [{"a": 1}, {"a": 2}]


def test_every_operator_that_torch_brings_has_a_key() -> None:
    """In a process of its own: others register operators, too."""
    pytest.importorskip("torch")
    program = """
import torch
from kcachefs.keys import hash_value
names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
for namespace, name in {space: own for space, own in (name.split("::") for name in names)}.items():
    hash_value(getattr(getattr(torch.ops, namespace), name))
if hasattr(torch.ops.mkl, "_mkl_linear"):
    hash_value(torch.ops.mkl._mkl_linear)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


class Node:
    """One operation of a graph."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.users: set[Node] = set()
        self.inputs: set[Node] = set()


def layers(count: int, width: int, last: int = 0, both_ways: bool = False) -> list[Node]:
    """Layers of nodes of which each uses all of the next; the first layer."""
    made = [[Node(width * layer + number) for number in range(width)] for layer in range(count)]
    made[-1][-1].number += last
    for one, other in itertools.pairwise(made):
        for user in one:
            user.users.update(other)
        for node in other if both_ways else []:
            node.inputs.update(one)
    return made[0]


def test_sets_that_lead_to_one_object_in_many_ways_are_read_soon() -> None:
    with ending_soon():
        key = hash_value(layers(40, 4))
        assert key == hash_value(layers(40, 4)) != hash_value(layers(40, 4, last=1))
        assert hash_value(dict.fromkeys(layers(40, 4), 1)) != key


def test_sets_that_lead_back_and_forth_in_too_many_ways_are_refused_soon() -> None:
    with ending_soon():
        assert hash_value(layers(4, 2, both_ways=True)) != hash_value(layers(4, 2, last=1, both_ways=True))
        with pytest.raises(Unkeyable, match="refer to each other in too many ways"):
            hash_value(layers(12, 3, both_ways=True))
