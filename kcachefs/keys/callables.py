"""What a function consists of: its statement, and everything that it refers to by name."""

from __future__ import annotations

import builtins
import inspect
import sys
import types
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys import sources
from kcachefs.keys.asking import ask, dictionary_of, is_a
from kcachefs.keys.classes import NAME, type_name
from kcachefs.keys.dependencies import MISSING, annotations_of, cell_value
from kcachefs.keys.encoding import encode, tagged, write
from kcachefs.keys.files import extension_digests
from kcachefs.keys.imports import imported
from kcachefs.keys.libraries import is_library, is_library_file, library_name, version_of
from kcachefs.keys.modules import write_attribute
from kcachefs.keys.readers.torch import compile_settings, is_namespace, operator_called, operators_mentioned
from kcachefs.keys.readers.triton import settings_of
from kcachefs.keys.references import Path, global_paths, names_in
from kcachefs.keys.walk import Walk

# The builtins as they were when Python started: one that was replaced since is followed like any global.
_BUILTINS = dict(vars(builtins))
# Attributes that torch puts on functions, some of them only at first use.
_NOISE = frozenset({"__dynamo_disable", "_torchdynamo_wrapper_id"})
_OF_COMPILING = frozenset(
    {
        *("__wrapped__", "_is_torch_compile", "_isolate_recompiles_id", "aot_compile", "get_compiler_config"),
        *("_torchdynamo_disable", "_torchdynamo_disable_msg", "_torchdynamo_disable_recursive", "_torchdynamo_inline"),
        "_torchdynamo_orig_callable",
    }
)
_OF_DISPATCHING = frozenset({"__wrapped__", "_clear_cache", "dispatch", "register", "registry"})


def write_function(walk: Walk, function: types.FunctionType, out: list[bytes]) -> None:
    """A function of the project by its whole content; a function that a library offers by name and version."""
    module = str(function.__globals__.get("__name__", ""))
    if not is_library(module, walk.rules.home):
        _write_own(walk, function, out)
    elif (name := library_name(function, walk.rules.home)) is not None:
        walk.dependencies.add_function(function)
        walk.fields("library function", (*name, version_of(name[0])), out)
    # Whatever wraps such a function has a copy of its attributes.
    elif "_torchdynamo_orig_callable" in function.__dict__ and module.startswith("torch._dynamo."):
        _write_compiled(walk, function, out)
    elif module == "functools" and "registry" in function.__dict__:
        walk.dependencies.is_complete = False
        walk.fields("singledispatch", (function.__name__, dict(function.__dict__["registry"])), out)
        for attribute in sorted(function.__dict__.keys() - walk.rules.ignore - _OF_DISPATCHING):
            walk.named("attribute", attribute, function.__dict__[attribute], out)
    else:
        # Made by a library's decorator: what it closes over is the project's.
        named = (module, version_of(module), function.__code__.co_qualname, function.__qualname__)
        walk.dependencies.add_function(function)
        walk.fields("function of a library", named, out)
        if not is_library_file(function.__code__.co_filename):  # generated, or lent the library's name
            out.append(sources.statement(function))
        _write_parts(walk, function, out, _copied(function, "_torchdynamo_orig_callable", _OF_COMPILING))


def write_triton(walk: Walk, wrapper: Any, out: list[bytes]) -> None:
    """A function wrapped by Triton, which compiles the text that it read when the function was decorated."""
    out.append(type_name(type(wrapper)))
    for name in settings_of(wrapper):
        walk.slot("attribute", vars(wrapper), name, out)
    walk.dependencies.add_place(vars(wrapper), "fn", wrapper.fn)
    text = getattr(wrapper, "src", None)
    if is_a(wrapper.fn, types.FunctionType) and type(text) is str:
        walk.dependencies.add_place(vars(wrapper), "_src", vars(wrapper).get("_src", MISSING))
        _write_own(walk, wrapper.fn, out, text)
    else:
        write(wrapper.fn, out, walk)


def write_builtin(walk: Walk, function: Any, out: list[bytes]) -> None:
    """A function written in C, or a method of a value written in C."""
    name = library_name(function, walk.rules.home)
    if name is not None:
        walk.fields("library function", (*name, version_of(name[0])), out)
        return
    owner = function.__self__
    if owner is None:
        raise Unkeyable(f"{function.__name__} is written in C, and its module is not known; name it in `ignore`")
    if not is_a(owner, types.ModuleType):
        walk.fields("method of a value", (function.__name__, owner), out)
    elif is_library(owner.__name__, walk.rules.home):
        walk.fields("library function", (owner.__name__, function.__name__, version_of(owner.__name__)), out)
    else:
        write_extension(walk, function, owner, out)


def write_extension(walk: Walk, value: Any, module: types.ModuleType, out: list[bytes]) -> None:
    """Something that an extension module of the project offers, identified by the module's file."""
    digests = extension_digests(module)
    if digests is None:
        raise Unkeyable(
            f"{module.__name__}.{value.__name__} is written in C, and its file cannot be found; name it in `ignore`"
        )
    walk.dependencies.is_complete = False
    walk.fields("extension", (module.__name__, value.__qualname__, digests), out)


def extension_of(value: Any) -> types.ModuleType | None:
    """The extension module that offers this very object under its name."""
    home, name = ask(value, "__module__"), ask(value, "__name__")
    module = sys.modules.get(home) if type(home) is str else None
    if module is None or type(name) is not str or dictionary_of(module).get(name) is not value:
        return None
    return module if extension_digests(module) is not None else None


def _write_own(walk: Walk, function: types.FunctionType, out: list[bytes], text: str | None = None) -> None:
    code = function.__code__
    walk.dependencies.add_function(function)
    walk.fields("function", (function.__name__, function.__qualname__), out)
    out.append(sources.statement(function) if text is None else sources.text_statement(text, code))
    if sys.flags.optimize:  # this drops assertions, and with -OO docstrings
        out.append(tagged(b"Z", encode(sys.flags.optimize)))
    _write_documentation(walk, function, out)
    _write_globals(walk, function, out)
    _write_imports(walk, function, out)
    _write_annotations(walk, function, out)
    _write_parts(walk, function, out)


def _write_compiled(walk: Walk, function: types.FunctionType, out: list[bytes]) -> None:
    """What `torch.compile` or `torch.compiler.disable` returned: the function inside, and the settings."""
    walk.dependencies.is_complete = False
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    settings = compile_settings(cell_value(cells["self"])) if "self" in cells else None
    inner = function.__dict__["_torchdynamo_orig_callable"]
    walk.fields("torch.compile", (inner, settings), out)
    held, copied = function.__dict__, dictionary_of(inner)
    for name in sorted(held.keys() - walk.rules.ignore - _OF_COMPILING - _NOISE):
        if not name.startswith("_torchdynamo") and held[name] is not copied.get(name, MISSING):
            walk.named("attribute", name, held[name], out)


def _write_parts(walk: Walk, function: types.FunctionType, out: list[bytes], but: frozenset[str] = frozenset()) -> None:
    """What a function holds: defaults, closure, and attributes, except those in `but`."""
    write(function.__defaults__, out, walk)
    if function.__kwdefaults__:
        for name in sorted(function.__kwdefaults__):
            walk.slot("default", function.__kwdefaults__, name, out)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name not in walk.rules.ignore:
            value = cell_value(cell)
            walk.dependencies.add_cell(cell, value)
            walk.named("closure variable", name, value, out)
    but |= _copied(function, "_clear_cache", _OF_DISPATCHING)
    for name in sorted(function.__dict__.keys() - walk.rules.ignore - _NOISE - but, key=str):
        walk.slot("attribute", function.__dict__, name, out)


def _copied(function: types.FunctionType, mark: str, names: frozenset[str]) -> frozenset[str]:
    """The `names` whose values `functools.wraps` copied from a function with `mark`: they count with that function."""
    held = function.__dict__
    if mark not in held:
        return frozenset()
    wrapped = dictionary_of(held.get("__wrapped__"))
    return frozenset(name for name in names if name in held and held[name] is wrapped.get(name, MISSING))


def _write_documentation(walk: Walk, function: types.FunctionType, out: list[bytes]) -> None:
    """Documentation that was assigned later; a docstring already counts as part of the source text."""
    said = function.__doc__
    if said != types.FunctionType(function.__code__, {}, closure=function.__closure__).__doc__:
        walk.named("documentation", "", inspect.cleandoc(said) if isinstance(said, str) else said, out)


def _write_globals(walk: Walk, function: types.FunctionType, out: list[bytes]) -> None:
    scope, library = function.__globals__, ""
    told: set[str] = set()
    for path in global_paths(function.__code__):
        name = path[0]
        if name in walk.rules.ignore:
            continue
        value = scope.get(name, MISSING)
        if name == library:
            told.update(_write_operator(walk, value, path[1:], out))
        elif value is MISSING:
            walk.dependencies.add_place(scope, name, value)
            _write_builtin_name(walk, function, name, out)
        elif not is_a(value, types.ModuleType) or len(path) == 1:
            walk.slot("global", scope, name, out)
        elif is_library(value.__name__, walk.rules.home):
            walk.slot("global", scope, name, out)
            library = name  # paths are sorted: the others into the same library come next and add nothing else
            told.update(_write_operator(walk, value, path[1:], out))
        elif is_namespace(value):
            walk.dependencies.add_place(scope, name, value)
            out.append(encode(("operators", name, value.__name__, version_of("torch"))))
            told.update(_write_operator(walk, value, path[1:], out))
        else:
            walk.dependencies.add_place(scope, name, value)
            write_attribute(walk, value, path[1:], out)
    if "torch" not in walk.rules.ignore:
        for called, definition in operators_mentioned(names_in(function.__code__)):
            if called not in told:
                walk.dependencies.is_complete = False
                walk.named("operator", called, definition, out)


def _write_operator(walk: Walk, module: Any, names: Path, out: list[bytes]) -> tuple[str, ...]:
    """An operator that the project registered with torch, where code calls it by its name. Returns that name."""
    called = operator_called(module, names)
    if called is None:
        return ()
    walk.dependencies.is_complete = False
    walk.named("operator", called[0], MISSING if called[1] is None else called[1], out)
    return called[:1]


def _write_builtin_name(walk: Walk, function: Any, name: str, out: list[bytes]) -> None:
    """A name that is not a global: Python's own, unless it was replaced, or `exec` gave the code other builtins."""
    found, held = _BUILTINS.get(name, MISSING), function.__builtins__
    if found is not MISSING and held.get(name, MISSING) is found:
        walk.dependencies.add_place(held, name, found)
    else:
        walk.slot("built-in", held, name, out)


def _write_imports(walk: Walk, function: types.FunctionType, out: list[bytes]) -> None:
    """The modules that the function imports as it runs: no global refers to them."""
    found = imported(function, walk.rules.home, walk.rules.ignore)
    if found:
        out.append(tagged(b"I", encode(found)))
    if any(kind != "library" for kind, *_ in found.values()):
        walk.dependencies.is_complete = False


def _write_annotations(walk: Walk, function: types.FunctionType, out: list[bytes]) -> None:
    """Kernel languages read annotations: their values count, and the globals named in annotations that are text."""
    annotations = annotations_of(function)
    if not walk.rules.annotations or annotations is None:
        return
    for name in sorted(annotations):
        value = annotations[name]
        walk.slot("annotation", annotations, name, out)
        if type(value) is str:
            for word in sorted(set(NAME.findall(value)) - walk.rules.ignore):
                if word in function.__globals__:
                    walk.slot("global", function.__globals__, word, out)
                else:  # it may be defined later
                    walk.dependencies.add_place(function.__globals__, word, MISSING)
