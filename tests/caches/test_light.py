"""The library without the filesystem: what it needs, what it loads, and what it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kcachefs
from tests.caches.processes import ROOT

FILESYSTEM = ("trio", "typer", "rich", "lmdb", "zstandard", "pyfuse3")
BLOCK = f"""
import sys
for name in {FILESYSTEM!r}: sys.modules[name] = None  # importing it raises ImportError
"""


def run(code: str, *words: object) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", BLOCK + code, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_caches_keys_and_the_decorator_need_none_of_what_the_filesystem_needs(tmp_path: Path) -> None:
    code = """
import asyncio, kcachefs
cache = kcachefs.Cache(sys.argv[1])
cache["key"] = b"value"
assert cache.get_or_compute("other", lambda: b"made") == b"made"
objects = kcachefs.ObjectCache(cache, encode=str.encode, decode=bytes.decode)
assert objects.get_or_make("object", lambda: "made") == "made"
@kcachefs.cached(cache=cache)
def compile(source): return source.encode()
@kcachefs.cached(cache=cache)
async def compile_later(source): return source.encode()
assert compile("k") == asyncio.run(compile_later("k")) == b"k"
kcachefs.keys.hash_value({"tile": 128})
print(cache["key"].decode())
"""
    assert run(code, tmp_path) == "value\n"


def loaded(code: str, *words: object) -> set[str]:
    told: list[str] = json.loads(run(f"before = set(sys.modules)\n{code}\nimport json\n{TELL}", *words))
    return set(told)


TELL = "print(json.dumps(sorted(set(sys.modules) - before)))"


def test_importing_the_package_loads_nothing_else() -> None:
    ours = {name for name in loaded("import kcachefs; dir(kcachefs)") if name.startswith("kcachefs")}
    assert ours == {"kcachefs"}


def test_a_cache_loads_little(tmp_path: Path) -> None:
    """Each of these costs milliseconds, and a cache works without it; `python -m benchmarks.library` shows how many."""
    found = loaded("import kcachefs; kcachefs.Cache(sys.argv[1])['key'] = b'value'", tmp_path)
    unwanted = {"asyncio", "dataclasses", "importlib.metadata", "inspect", "logging", "msgspec", "platformdirs"}
    assert found & unwanted == set()
    assert not [name for name in found if name.startswith(("kcachefs.keys", "kcachefs.store", "kcachefs.frameworks"))]


def test_the_package_shows_what_there_is() -> None:
    assert set(dir(kcachefs)) == set(kcachefs.__all__)
    assert {"Cache", "ObjectCache", "cached", "init", "keys", "ContentStore", "AsyncContentStore"} <= set(dir(kcachefs))
    for name in dir(kcachefs):
        assert getattr(kcachefs, name) is not None


@pytest.mark.parametrize("module", ["kcachefs", "kcachefs.caches", "kcachefs.cuda"])
def test_what_does_not_exist_is_an_attribute_error(module: str) -> None:
    imported: Any = pytest.importorskip(module)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        imported.nothing  # noqa: B018
