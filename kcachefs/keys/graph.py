"""Encodes whole object graphs: functions, classes, partials, methods and objects, to any depth and through cycles.

Whatever can refer to something else becomes a numbered node. A value mentions a node by its number; nodes are encoded
one after another in the order of their first mention. So depth costs no stack, a cycle ends at a number, and the
numbers are the same in every process because the order of mention is: names sorted, cells in order.

What has no readable meaning raises `Unkeyable`. Nothing is ever told by `id()` or by a `repr` that holds an address.
"""

from __future__ import annotations

import builtins
import enum
import functools
import os
import re
import types
import typing
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys import sources
from kcachefs.keys.arrays import encode_array
from kcachefs.keys.encoding import digest, encode, tagged, write
from kcachefs.keys.imports import imported
from kcachefs.keys.objects import DESCRIPTORS, class_members, library_name, module_content, state
from kcachefs.keys.references import global_paths, is_library, resolve, top_of, version_of
from kcachefs.keys.witness import MISSING, Witness, content

_BUILTINS = frozenset(vars(builtins))
_NAME = re.compile(r"[^\W\d]\w*")
# What of a Triton wrapper decides the code it compiles to; its other attributes are caches and change with use.
_TRITON_ATTRIBUTES = (
    *("configs", "debug", "do_not_specialize", "do_not_specialize_on_alignment", "keys", "noinline"),
    *("restore_value", "values"),
)

_Outer = Mapping[int, bytes]


class Walk:
    """One walk over a graph. `ignore` names globals and closure variables that are left out."""

    def __init__(self, home: str = "", ignore: Collection[str] = (), outer: _Outer | None = None) -> None:
        self.witness = Witness(home)
        self._home = home
        self._ignore = frozenset(ignore)
        self._outer: _Outer = outer or {}
        self._numbers: dict[int, int] = {}
        self._pending: deque[tuple[Any, str, bool]] = deque()
        self._alive: list[Any] = []
        self._where = ""
        self._lenient = False

    def digest(self, kind: str, root: object) -> bytes:
        """The digest of `root` and of everything it refers to."""
        out: list[bytes] = []
        write(root, out, self)
        while self._pending:
            node, self._where, self._lenient = self._pending.popleft()
            before = len(out)
            try:
                self._node(node, out)
            except Unkeyable as error:
                if not self._lenient:
                    raise Unkeyable(f"{self._where}{error}") from None
                del out[before:]
                out.append(self._type_name(type(node)))
        return digest(kind, *out)

    # --- values that are not plain data ------------------------------------------------------------------------------

    def write(self, value: Any, out: list[bytes]) -> None:
        if isinstance(value, enum.Enum):
            out.append(tagged(b"E", self._type_name(type(value)) + encode(value.name)))
            write(value.value, out, self)
            if not is_library(type(value).__module__, self._home):
                write(type(value), out, self)
        elif isinstance(value, os.PathLike):
            out.append(tagged(b"P", encode(os.fspath(value))))
        elif isinstance(value, re.Pattern):
            out.append(tagged(b"R", encode((value.pattern, value.flags))))
        elif isinstance(value, types.CodeType):
            out.append(tagged(b"C", encode(sources.shape(value))))
        elif isinstance(value, types.GenericAlias | types.UnionType):
            out.append(tagged(b"G", type(value).__name__.encode()))
            write((getattr(value, "__origin__", None), value.__args__), out, self)
        elif isinstance(value, typing.TypeVar | typing.ParamSpec):
            out.append(tagged(b"V", value.__name__.encode()))
        elif isinstance(value, types.MappingProxyType):
            out.append(b"M")
            write(dict(value), out, self)
        elif (array := encode_array(value)) is not None:
            out.append(tagged(b"A", array))
        else:
            self._mention(value, out)

    def alone(self) -> _Members:
        return _Members(self)

    def member(self, value: Any) -> bytes:
        """A member of an unordered container: by the number it has already, or by a walk of its own."""
        if id(value) in self._numbers:
            return self._number(self._numbers[id(value)])
        inner = {**self._outer, **{key: b"%d:%d" % (len(self._outer), n) for key, n in self._numbers.items()}}
        return tagged(b"D", Walk(self._home, self._ignore, inner).digest("member", value))

    def _mention(self, value: Any, out: list[bytes]) -> None:
        number = self._numbers.get(id(value))
        if number is None:
            if (known := self._outer.get(id(value))) is not None:
                out.append(tagged(b"W", known))
                return
            number = self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
            self._pending.append((value, self._where, self._lenient))
        out.append(self._number(number))

    @staticmethod
    def _number(number: int) -> bytes:
        return tagged(b"N", number.to_bytes(4, "little"))

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _node(self, node: Any, out: list[bytes]) -> None:
        if isinstance(node, types.FunctionType):
            self._function(node, out)
        elif isinstance(node, functools.partial):
            self._fields("partial", (node.func, node.args, node.keywords), out)
        elif isinstance(node, types.MethodType):
            self._fields("method", (node.__func__, node.__self__), out)
        elif isinstance(node, types.BuiltinFunctionType | types.MethodWrapperType):
            owner = node.__self__
            shown = owner.__name__ if isinstance(owner, types.ModuleType) else owner
            self._fields("builtin", (node.__name__, shown), out)
        elif isinstance(node, DESCRIPTORS):
            self._fields("descriptor", (node.__objclass__, node.__name__), out)
        elif isinstance(node, types.ModuleType):
            self._module(node, out)
        elif isinstance(node, type):
            self._class(node, out)
        elif isinstance(node, staticmethod | classmethod):
            self._fields(type(node).__name__, (node.__func__,), out)
        elif isinstance(node, property):
            self._fields("property", (node.fget, node.fset, node.fdel), out)
        elif type(node) is functools.cached_property:
            self._fields("cached property", (node.func,), out)
        elif top_of(type(node).__module__) == "triton" and hasattr(node, "fn"):
            self._triton(node, out)
        else:
            self._object(node, out)

    def _fields(self, label: str, values: tuple[Any, ...], out: list[bytes]) -> None:
        out.append(tagged(b"O", label.encode()))
        write(values, out, self)

    def _function(self, function: types.FunctionType, out: list[bytes], text: str | None = None) -> None:
        module = function.__globals__.get("__name__", "")
        code, named = function.__code__, (function.__name__, function.__qualname__)
        self.witness.functions.append((function, code, function.__defaults__, *named))
        self.witness.saw(function.__defaults__)
        # A library's decorator may close over anything; what it does is told by its name and version.
        self._lenient = is_library(module, self._home)
        if self._lenient:
            self._fields("library function", (module, version_of(module), *named), out)
        else:
            self._fields("function", named, out)
            out.append(sources.statement(function) if text is None else sources.text_statement(text, code))
            self._globals(function, out)
            self._imports(function, out)
            self._annotations(function, out)
        write(function.__defaults__, out, self)
        for name in sorted(function.__kwdefaults__ or ()):
            self._slot("default", function.__kwdefaults__ or {}, name, out)
        self._closure(function, out)
        wrapped = function.__dict__.get("__wrapped__", MISSING)
        self.witness.saw_slot(function.__dict__, "__wrapped__", wrapped)
        if wrapped is not MISSING:
            self._named("wrapped", function.__name__, wrapped, out)

    def _closure(self, function: types.FunctionType, out: list[bytes]) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in self._ignore:
                continue
            value = content(cell)
            self.witness.saw_cell(cell, value)
            self._named("closure variable", name, value, out)

    def _globals(self, function: types.FunctionType, out: list[bytes]) -> None:
        scope, library = function.__globals__, ""
        for path in global_paths(function.__code__):
            name = path[0]
            if name == library or name in self._ignore:
                continue
            value = scope.get(name, MISSING)
            if value is MISSING and name in _BUILTINS:
                self.witness.slots.append((scope, name, value))
            elif not isinstance(value, types.ModuleType) or len(path) == 1:
                self._slot("global", scope, name, out)
            elif is_library(value.__name__, self._home):
                self._slot("global", scope, name, out)
                library = name  # paths are sorted: the others into the same library come next and add nothing
            else:
                self.witness.slots.append((scope, name, value))
                self._attribute(value, path[1:], out)

    def _attribute(self, module: types.ModuleType, attributes: tuple[str, ...], out: list[bytes]) -> None:
        """`module.a.b`: the value for a module of the project; of a library, the name and the version say it all."""
        inner, rest = resolve(module, attributes)
        if is_library(inner.__name__, self._home):
            out.append(encode(("library", inner.__name__, version_of(inner.__name__))))
        elif not rest:
            self._named("module", inner.__name__, inner, out)
            self.witness.saw(inner)
        else:
            out.append(tagged(b"Q", inner.__name__.encode()))
            self._slot("attribute", vars(inner), rest[0], out)

    def _imports(self, function: types.FunctionType, out: list[bytes]) -> None:
        """What the function imports as it runs: of that there is no global to follow."""
        scope = function.__globals__
        name = str(scope.get("__name__", ""))
        package = scope.get("__package__") or (name if "__path__" in scope else name.rpartition(".")[0])
        found = imported(function.__code__, package, self._home, self._ignore)
        if found:
            out.append(tagged(b"I", encode(found)))
        if any(kind != "library" for kind, *_ in found.values()):
            self.witness.usable = False

    def _annotations(self, function: types.FunctionType, out: list[bytes]) -> None:
        """Kernel languages read annotations: their values count, and the globals named in those left as text."""
        try:
            annotations = function.__annotations__
        except NameError:  # evaluated late, and naming something not there yet: its text has been counted
            return
        for name in sorted(annotations):
            value = annotations[name]
            self._slot("annotation", annotations, name, out)
            if type(value) is str:
                for word in sorted(set(_NAME.findall(value)) & function.__globals__.keys() - self._ignore):
                    self._slot("global", function.__globals__, word, out)

    def _slot(self, label: str, mapping: dict[str, Any], name: str, out: list[bytes]) -> None:
        value = mapping.get(name, MISSING)
        self.witness.saw_slot(mapping, name, value)
        self._named(label, name, value, out)

    def _named(self, label: str, name: str, value: Any, out: list[bytes]) -> None:
        out.append(tagged(b"L", f"{label}\0{name}".encode()))
        if value is MISSING:
            out.append(b"U")
            return
        before, self._where = self._where, f"{label} {name!r}: "
        write(value, out, self)
        self._where = before

    def _module(self, module: types.ModuleType, out: list[bytes]) -> None:
        name = module.__name__
        if is_library(name, self._home):
            self._fields("library", (name, version_of(name)), out)
            return
        # Passed around as a value, so anything in it may be used: its file stands for it.
        self._fields("module", (name, module_content(module)), out)

    def _class(self, cls: type, out: list[bytes]) -> None:
        if is_library(cls.__module__, self._home):
            out.append(self._type_name(cls))
            return
        self._fields("class", (cls.__qualname__, cls.__bases__), out)
        for name, value in class_members(cls):
            self._named("member", name, value, out)

    def _type_name(self, cls: type) -> bytes:
        module = cls.__module__
        version = version_of(module) if is_library(module, self._home) else ""
        return encode(("type", module, cls.__qualname__, version))

    def _object(self, value: Any, out: list[bytes]) -> None:
        name = library_name(value)
        if name is not None:
            self._fields("library object", (*name, version_of(name[0])), out)
            return
        out.append(tagged(b"O", b"object"))
        write(type(value), out, self)
        write(state(value), out, self)

    def _triton(self, value: Any, out: list[bytes]) -> None:
        out.append(self._type_name(type(value)))
        for name in _TRITON_ATTRIBUTES:
            if name in vars(value):
                self.witness.slots.append((vars(value), name, vars(value)[name]))
                self._named("attribute", name, vars(value)[name], out)
        text = getattr(value, "src", None)
        if isinstance(value.fn, types.FunctionType) and type(text) is str:
            # Triton read this text when the function was decorated, and compiles it rather than the bytecode.
            self.witness.slots.append((vars(value), "_src", vars(value).get("_src", MISSING)))
            self._function(value.fn, out, text)
        else:
            write(value.fn, out, self)


class _Members:
    """Encodes the members of an unordered container so that the order they are met in does not show."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def write(self, value: Any, out: list[bytes]) -> None:
        out.append(self._walk.member(value))

    def alone(self) -> _Members:
        return self
