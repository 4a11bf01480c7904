"""Keys of functions that import as they run: what is imported counts, whether or not it has been imported yet."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

from kcachefs.errors import Unkeyable
from kcachefs.keys import hash_function
from kcachefs.keys.libraries import installed_version
from tests.keys.modules import Modules, modules

__all__ = ["modules"]

LOWER = "from user_project import passes\ndef lower(x):\n    return passes.simplify(x) + 1\n"
SIMPLIFY = "def simplify(x):\n    return x * 2\n"
IMPORT = "from user_project.codegen import lower; return lower(x)"


def write_project(modules: Modules, lower: str = LOWER, simplify: str = SIMPLIFY, start: str = "") -> None:
    modules.write("user_project.passes", simplify)
    modules.write("user_project.codegen", lower)
    modules.write("user_project.__init__", start)


def key(modules: Modules, body: str = IMPORT, package: str = "", ignore: list[str] | None = None) -> str:
    module = modules.load(f"def build(x):\n    {body}\n")
    module.__package__ = package
    return hash_function(module.build, ignore=ignore or [])


@pytest.mark.parametrize(
    ("body", "package"),
    [
        (IMPORT, ""),
        ("from user_project import codegen; return codegen.lower(x)", ""),
        ("import user_project.codegen as c; return c.lower(x)", ""),
        ("import user_project; return user_project.codegen.lower(x)", ""),
        ("from .codegen import lower; return lower(x)", "user_project"),
        ("from ..codegen import lower; return lower(x)", "user_project.inner"),
        (f"def inner():\n        {IMPORT}\n    return inner()", ""),
    ],
)
def test_a_module_of_the_project_counts_with_all_that_it_imports(modules: Modules, body: str, package: str) -> None:
    keys = []
    for lower, simplify, start in (
        (LOWER, SIMPLIFY, ""),
        (LOWER.replace("+ 1", "+ 2"), SIMPLIFY, ""),
        (LOWER, SIMPLIFY.replace("* 2", "* 3"), ""),
        (LOWER, SIMPLIFY, "N = 1"),
        (LOWER, SIMPLIFY, ""),
    ):
        write_project(modules, lower, simplify, start)
        keys.append(key(modules, body, package))
    assert "user_project" not in sys.modules
    assert keys[0] == keys[-1]
    assert len(set(keys)) == 4


def test_packages_without_an_init_are_searched(modules: Modules) -> None:
    keys = set()
    for number in (1, 2):
        modules.write("user_space.inner.deep", f"N = {number}\n")
        keys.add(key(modules, "from user_space.inner import deep; return deep.N"))
    assert len(keys) == 2


def test_having_been_imported_does_not_show(modules: Modules) -> None:
    write_project(modules)
    before = key(modules)
    importlib.import_module("user_project.codegen")
    assert key(modules) == before


def test_a_file_edited_after_its_import_does_not_lend_its_text_to_the_old_code(modules: Modules) -> None:
    write_project(modules)
    one = key(modules)
    codegen = importlib.import_module("user_project.codegen")
    assert codegen.__file__ is not None
    Path(codegen.__file__).write_text(LOWER.replace("+ 1", "+ 2000"))
    stale = key(modules)
    importlib.reload(codegen)
    two = key(modules)
    assert len({one, stale, two}) == 3
    write_project(modules, LOWER.replace("+ 1", "+ 2000"))
    assert key(modules) == two


def test_a_function_with_such_an_import_is_not_remembered(modules: Modules) -> None:
    write_project(modules)
    build = modules.load(f"def build(x):\n    {IMPORT}\n").build
    before = hash_function(build)
    write_project(modules, simplify="def simplify(x):\n    return x\n")
    assert hash_function(build) != before


def test_a_library_counts_by_its_version_and_is_not_imported(modules: Modules, tmp_path: Path) -> None:
    folder = tmp_path / "importable" / "site-packages"
    modules.write("user_project.__init__", "")
    sys.path.insert(0, str(folder))
    try:
        keys = []
        for version, text in (("1.0", "raise ImportError"), ("1.0", "N = 1"), ("2.0", "N = 1")):
            modules.write("site-packages.user_library.__init__", text)
            told = folder / f"user_library-{version}.dist-info"
            told.mkdir(exist_ok=True)
            (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: user-library\nVersion: {version}\n")
            installed_version.cache_clear()
            keys.append(key(modules, "import user_library.deep; return user_library.N"))
            (told / "METADATA").unlink()
            told.rmdir()
    finally:
        sys.path.remove(str(folder))
        installed_version.cache_clear()
    assert "user_library" not in sys.modules
    assert keys[0] == keys[1] != keys[2]


def test_a_module_that_comes_to_be_there_counts(modules: Modules) -> None:
    modules.write("user_project.__init__", "")
    body = "import user_project.extra; return x"
    before = key(modules, body)
    modules.write("user_project.extra", "")
    assert key(modules, body) != before


@pytest.mark.parametrize("name", ["user_project", "user_project.codegen"])
def test_a_module_that_is_ignored_does_not_count(modules: Modules, name: str) -> None:
    write_project(modules)
    before = key(modules, ignore=[name])
    write_project(modules, LOWER.replace("+ 1", "+ 2"))
    assert key(modules, ignore=[name]) == before


def test_a_module_without_a_file_is_refused_by_name(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "user_made", types.ModuleType("user_made"))
    with pytest.raises(Unkeyable, match=r"user_made has no file.*ignore"):
        key(modules, "import user_made; return x")
    assert key(modules, "import user_made; return x", ignore=["user_made"])
