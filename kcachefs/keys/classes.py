"""What a class says about itself, without what Python generates from it: that differs between versions."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import collections
import dataclasses
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, cast

from kcachefs.errors import Unkeyable
from kcachefs.keys.asking import ask, dictionary_of, is_a
from kcachefs.keys.dependencies import MISSING, cell_value
from kcachefs.keys.encoding import encode
from kcachefs.keys.files import extension_digests
from kcachefs.keys.libraries import imported_name, is_library, is_library_class, module_of, top_of, version_of
from kcachefs.keys.visibility import attributes, is_made_in_c, is_visible, is_written_in_c
from kcachefs.keys.walk import Walk

# Members that Python adds to a class by itself, or derives from members that are read here under another name.
_NOISE = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__"),
        *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__static_attributes__"),
        *("__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__slots__", "__type_params__"),
        *("__dataclass_fields__", "__dataclass_params__", "__conditional_annotations__", "__classdictcell__"),
        "__slotnames__",  # left by the first copy of an instance
        # Of typed dictionaries, whose annotations say the same.
        *("__required_keys__", "__optional_keys__", "__readonly_keys__", "__mutable_keys__", "__total__"),
        # Of protocols: their first instance changes these.
        *("_is_protocol", "__protocol_attrs__", "__callable_proto_members_only__"),
        "__non_callable_proto_members__",
    }
)
# Attributes that libraries derive from a class's annotations and members, which count themselves. Some of these are
# Rust objects, and some appear only once the class is used.
_DERIVED = {
    "__pydantic_core_schema__": (
        *("__pydantic_core_schema__", "__pydantic_core_config__", "__pydantic_serializer__", "__pydantic_validator__"),
        *("__pydantic_parent_namespace__", "__pydantic_setattr_handlers__", "__signature__"),
    ),
    "_explicit_class_assumptions": ("default_assumptions", "_prop_handler"),  # of sympy's expressions
}
# Modules that put methods into the classes they complete.
_COMPLETING = frozenset({"dataclasses", "typing", "_collections_abc"})
# The state that these keep is in `_fields_`, or is read below.
_READABLE_METACLASSES = frozenset(
    {
        *("_ctypes.PyCStructType", "_ctypes.UnionType", "_ctypes.PyCArrayType", "_ctypes.PyCSimpleType"),
        *("_ctypes.CType_Type", "msgspec._core.StructMeta"),
    }
)
# How the fields of named tuples and of ctypes' structures are reached; the fields themselves are read.
_ACCESSORS = frozenset({"collections._tuplegetter", "_collections._tuplegetter", "_ctypes.CField", "ctypes.CField"})
# A word in an annotation that is text.
NAME = re.compile(r"[^\W\d]\w*")
_FIELD = ("name", "type", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only", "metadata")
_DATACLASS_FLAGS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")


def type_name(cls: type, home: str = "") -> bytes:
    """A class by its name, and the version of the library that it belongs to."""
    module = module_of(cls)
    version = version_of(module) if is_library(module, home) else ""
    if top_of(module) in sys.stdlib_module_names and ask(sys.modules.get(top_of(module)), cls.__name__) is cls:
        module = top_of(module)  # the part of a package that a class is in changes between versions
    return encode(("type", imported_name(module), cls.__qualname__, version))


def write_class(walk: Walk, cls: type, out: list[bytes]) -> None:
    """A library's class by name and version, a class of the project by everything it says."""
    if is_library_class(cls, walk.rules.home):
        out.append(type_name(cls, walk.rules.home))
        return
    if is_written_in_c(cls):
        walk.fields("extension class", (cls.__module__, cls.__qualname__, _extension(cls)), out)
        return
    walk.fields("class", (cls.__qualname__, cls.__bases__), out)
    if type(cls) is not type:
        _refuse_hidden_metaclass(type(cls))
        walk.named("metaclass", type(cls).__qualname__, type(cls), out)
    for name, value in class_members(cls, walk.rules.ignore):
        walk.named("member", name, value, out)


def watch_class(walk: Walk, cls: type) -> None:
    """Make a remembered key depend on everything that the class of an object says."""
    for base in [*cls.__mro__, *cast(type, type(cls)).__mro__]:
        if is_library_class(base, walk.rules.home):
            continue
        walk.dependencies.add_class(base)
        scope = dictionary_of(sys.modules.get(module_of(base)))
        for word in _words_in(_annotations(base) or {}).difference(walk.rules.ignore):
            if is_a(scope, dict):
                walk.dependencies.add_slot(scope, word, scope.get(word, MISSING))


def class_members(cls: type, ignore: Collection[str] = ()) -> list[tuple[str, Any]]:
    """What a class says about itself, sorted by name; `ignore` are globals that do not count."""
    held = vars(cls)
    names = set(held.keys() - _NOISE)
    for mark in _DERIVED.keys() & held.keys():
        names.difference_update(_DERIVED[mark])
    members = _special_members(cls)
    is_special = bool(members)
    # Of the bases that Python fills in, only those with arguments: the others differ between versions.
    generic = tuple(base for base in held.get("__orig_bases__", ()) if typing.get_origin(base) is not None)
    if is_special and generic:
        members.append(("generic bases", generic))
    if issubclass(cls, enum.Enum):
        names = {name for name in names - cls.__members__.keys() if not _is_enum_internal(name, held[name])}
    annotations = _annotations(cls)
    members += [("annotations", annotations), ("annotated", _named_in(cls, annotations or {}, ignore))]
    if not is_special:
        members.append(("original bases", held.get("__orig_bases__")))
        members.append(("documentation", inspect.cleandoc(doc) if isinstance(doc := cls.__doc__, str) else None))
    if "_abc_impl" in held:
        members.append(("registered", _registered(cls)))
    if "__attrs_attrs__" in held:  # attrs generated its methods from these and from its flags, which count
        generated = {name for name in names if _is_made_by_attrs(cls, name, held[name])}
        members.append(("generated", sorted(generated - {"__replace__"})))  # added in Python 3.13
        names -= generated
    if "__pydantic_decorators__" in held:
        members.append(("order in the model", _order_in_model(held)))
    slots = held.get("__slots__")
    if slots is not None:
        members.append(("slots", (slots,) if is_a(slots, str) else tuple(slots)))
    members += [(name, held[name]) for name in names if not _is_generated(cls, name, held[name], is_special)]
    return sorted(members, key=lambda member: member[0])


def _special_members(cls: Any) -> list[tuple[str, Any]]:
    """For classes that Python completes: the data that it completes them from."""
    held = vars(cls)
    if issubclass(cls, enum.Enum):
        values = [(f"member {name}", member.value) for name, member in cls.__members__.items()]
        return [*values, ("boundary", str(held.get("_boundary_"))), ("order", list(cls.__members__))]
    if issubclass(cls, tuple) and "_fields" in held:
        return [("fields", held["_fields"]), ("field defaults", held.get("_field_defaults"))]
    if "__dataclass_fields__" in held:
        fields = [tuple(getattr(field, name) for name in _FIELD) for field in dataclasses.fields(cls)]
        # What `__post_init__` is given, in this order; these are not fields.
        passed = [field.name for field in held["__dataclass_fields__"].values() if _is_passed(field)]
        flags = held["__dataclass_params__"]
        told = [("fields", fields), ("flags", [getattr(flags, name) for name in _DATACLASS_FLAGS])]
        return [*told, ("passed on", passed)] if passed else told
    if "__total__" in held and "__required_keys__" in held:  # a TypedDict
        return [("total", held["__total__"])]
    if type(cls).__qualname__ == "StructMeta" and type(cls).__module__ == "msgspec._core":
        config = [
            (name, getattr(cls.__struct_config__, name))
            for name in sorted(dir(cls.__struct_config__))
            if name[0] != "_"
        ]
        # The fields that may be given by position, and the name of each when it is encoded.
        names = [("positional", cls.__match_args__), ("encoded names", cls.__struct_encode_fields__)]
        fields = [("fields", cls.__struct_fields__), ("field defaults", cls.__struct_defaults__)]
        return [*fields, *names, ("config", config)]
    return []


def _is_passed(field: Any) -> bool:
    return str(ask(field._field_type, "name")) == "_FIELD_INITVAR"


def _refuse_hidden_metaclass(metaclass: type) -> None:
    """A metaclass written in C may keep more about a class than its dictionary shows."""
    for base in metaclass.__mro__[: metaclass.__mro__.index(type)]:
        if "__getattribute__" in vars(base):
            raise Unkeyable(
                f"a class made by {base.__module__}.{base.__qualname__} cannot be read: this metaclass defines "
                "`__getattribute__` and may hide anything; give the class a __kcachefs_key__ method, or name the "
                "variable in `ignore`"
            )
        if not is_visible(base) and f"{base.__module__}.{base.__qualname__}" not in _READABLE_METACLASSES:
            raise Unkeyable(
                f"a class made by {base.__module__}.{base.__qualname__} cannot be read in full: this metaclass keeps "
                "state where Python cannot see it; give the class a __kcachefs_key__ method, or name the variable in "
                "`ignore`"
            )


def _registered(cls: type) -> set[type]:
    """The classes that were registered as subclasses of an abstract class."""
    alive = (known() for known in _abc._get_dump(cls)[0])
    return {known for known in alive if known is not None}


def _order_in_model(held: Mapping[str, Any]) -> list[list[str]]:
    """A pydantic model validates and prints its fields in their order, and runs its decorated methods in theirs."""
    tables = attributes(held["__pydantic_decorators__"])
    fields = held.get("__pydantic_fields__", held.get("model_fields"))
    return [list(table) for table in (fields, *(tables[kind] for kind in sorted(tables))) if is_a(table, dict)]


def _annotations(cls: type) -> Any:
    try:
        return dict(inspect.get_annotations(cls))
    except NameError:  # evaluated late, and a name in them is not defined yet
        return None


def _named_in(cls: type, annotations: dict[str, Any], ignore: Collection[str]) -> dict[str, Any]:
    """The globals named in annotations that are left as text, by name."""
    scope = dictionary_of(sys.modules.get(module_of(cls)))
    words = _words_in(annotations).difference(ignore)
    return {word: scope[word] for word in words if word in scope and scope[word] is not cls}


def _words_in(annotations: dict[str, Any]) -> set[str]:
    return {word for text in annotations.values() if type(text) is str for word in NAME.findall(text)}


def _is_enum_internal(name: str, member: Any) -> bool:
    """Python keeps an enumeration's tables under such names; methods under them are the project's."""
    return name in _ENUM_TABLES and not is_a(member, types.FunctionType | staticmethod | classmethod | property)


_ENUM_TABLES = frozenset(
    {
        *("_all_bits_", "_boundary_", "_flag_mask_", "_generate_next_value_", "_hashable_values_", "_inverted_"),
        *("_member_map_", "_member_names_", "_member_type_", "_new_member_", "_singles_mask_", "_unhashable_values_"),
        *("_unhashable_values_map_", "_use_args_", "_value2member_map_", "_value_repr_"),
    }
)


def _is_generated(cls: type, name: str, member: Any, is_special: bool) -> bool:
    if is_made_in_c(member, cls) or (member is object.__init__ and typing.Protocol in cls.__mro__):
        return True
    if f"{type(member).__module__}.{type(member).__qualname__}" in _ACCESSORS:
        return True
    outer = ask(member, "__func__", member)
    function = _without_guard(outer)
    # Every method that Python generates has a private name; somebody wrote the ones with a public name.
    if type(function) is not types.FunctionType or not name.startswith("_"):
        return False
    module = str(function.__globals__.get("__name__", ""))
    if module == "typing":
        return True
    if not is_special:
        return False
    if module == "enum":
        return name in ("__new__", "__reduce_ex__") or function is _inherited_by_enum(cls, name)
    if module == "collections" or module.startswith("namedtuple_"):
        return function.__qualname__.split(".")[-2:-1] == [cls.__name__] or _is_as_made_anew(cls, name, function)
    if function.__code__.co_qualname.startswith("__create_fn__"):
        is_named_so = str(outer.__qualname__).split(".")[-2:] == [cls.__name__, name]
        return is_named_so or _is_as_made_anew(cls, name, function)
    return module in _COMPLETING


def _is_as_made_anew(cls: Any, name: str, function: types.FunctionType) -> bool:
    """Whether Python would generate this method from the class's fields: a renamed class cannot be told by name."""
    try:
        made = _named_tuple_anew(cls) if issubclass(cls, tuple) else _dataclass_anew(cls)
        other = _without_guard(ask(vars(made).get(name), "__func__", vars(made).get(name)))
        return _has_same_code(function, other) and _are_same(_values_in(function, cls), _values_in(other, cls), cls)
    except Exception:  # fields that Python would not take, or annotations that it cannot evaluate
        return False


def _has_same_code(one: Any, other: Any) -> bool:
    parts = ("co_code", "co_names", "co_consts", "co_varnames", "co_freevars")
    return all(getattr(one.__code__, part) == getattr(other.__code__, part) for part in parts)


def _values_in(function: types.FunctionType, cls: type) -> list[Any]:
    named = sorted((function.__kwdefaults__ or {}).items())
    cells = [cell_value(cell) for cell in function.__closure__ or ()]
    # The annotations of a named tuple's methods are set by `typing`, from the annotations of the class.
    annotated = [] if issubclass(cls, tuple) else list(inspect.get_annotations(function).values())
    return [*(function.__defaults__ or ()), None, *(part for item in named for part in item), None, *cells, *annotated]


def _are_same(ours: list[Any], others: list[Any], cls: type) -> bool:
    """Whether both hold the same objects or equal plain ones; a class with these fields matches the regenerated one."""
    fields = vars(cls).get("__dataclass_fields__")
    return len(ours) == len(others) and all(
        our is other
        or (type(our) is type(other) and type(our) in (str, int, tuple) and our == other)
        or (is_a(our, type) and is_a(other, type) and fields is not None and vars(our).get(_FIELDS) is fields)
        for our, other in zip(ours, others, strict=True)
    )


_FIELDS = "__dataclass_fields__"


def _named_tuple_anew(cls: Any) -> type:
    return collections.namedtuple("Made", cls._fields, rename=True, defaults=cls._field_defaults.values())


def _dataclass_anew(cls: Any) -> type:
    held: dict[str, Any] = {"__annotations__": {}}
    for field in vars(cls)[_FIELDS].values():
        if str(ask(field._field_type, "name")) == "_FIELD_CLASSVAR":
            continue
        is_text = _is_passed(field) and is_a(field.type, str)
        held["__annotations__"][field.name] = dataclasses.InitVar[object] if is_text else field.type
        told = {name: getattr(field, name) for name in _FIELD if name not in ("name", "type")}
        held[field.name] = dataclasses.field(**told)
    if hasattr(cls, "__post_init__"):
        held["__post_init__"] = None
    flags = {name: getattr(vars(cls)["__dataclass_params__"], name) for name in _DATACLASS_FLAGS}
    return dataclasses.dataclass(**flags)(type("Made", (), held))


def _inherited_by_enum(cls: type, name: str) -> Any:
    """The method Python copies into an enumeration from its parent enumeration, even where another base is first."""
    return next((ask(base, name) for base in cls.__mro__[1:] if issubclass(base, enum.Enum)), None)


def _is_made_by_attrs(cls: type, name: str, member: Any) -> bool:
    """Whether attrs generated this method for this class, from data that counts: it may be another class's method."""
    if type(member) is not types.FunctionType:
        return False
    if name == "__replace__" and member.__globals__.get("__name__") == "attr._make":
        return True
    if member.__name__ != name or _ATTRS_FILE.match(member.__code__.co_filename) is None:
        return False
    if name == "__repr__" and "__qualname__" not in member.__code__.co_names:  # it holds a namespace given to attrs
        return False
    own, made_of = {id(field) for field in vars(cls)["__attrs_attrs__"]}, member.__globals__.get("attr_dict")
    if made_of and is_a(made_of, dict):  # also right for a renamed class, or two of one name
        return all(id(field) in own for field in made_of.values())
    return member.__qualname__ == f"{cls.__qualname__}.{name}"


# All generated methods but `__getattr__`, which holds functions of the project.
_ATTRS_FILE = re.compile("<attrs generated (?:methods|init|eq|hash|repr) ")


def _without_guard(function: Any) -> Any:
    """A dataclass's `__repr__` without its guard against endless recursion; other wrappers are somebody's own."""
    if type(function) is not types.FunctionType or function.__code__.co_qualname not in _GUARDS:
        return function
    if str(function.__globals__.get("__name__", "")) not in ("dataclasses", "reprlib"):
        return function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    says_else = "fillvalue" in cells and cell_value(cells["fillvalue"]) != "..."
    return function if says_else else function.__dict__.get("__wrapped__", function)


_GUARDS = frozenset(
    {"_recursive_repr.<locals>.wrapper", "recursive_repr.<locals>.decorating_function.<locals>.wrapper"}
)


def _extension(cls: type) -> tuple[bytes, bytes]:
    module = sys.modules.get(module_of(cls))
    digests = None if module is None else extension_digests(module)
    if digests is None:
        raise Unkeyable(
            f"{cls.__module__}.{cls.__qualname__} is written in C, and its file cannot be found; name it in `ignore`"
        )
    return digests
