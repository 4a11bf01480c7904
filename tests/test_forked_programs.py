"""What a program that is forked from a process with torch finds is what a new process gives it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from kcachefs.frameworks import headers
from tests.forked_programs import Program
from tests.pythons import needs_torch

pytestmark = [needs_torch, pytest.mark.slow]

TELLS = """
import atexit, json, os, sys, tempfile
import torch._inductor.codecache as codecache
from torch._inductor import config
from torch._dynamo.utils import counters
atexit.register(print, "at the end")
print(json.dumps({
    "words": sys.argv[1:],
    "variables": dict(os.environ),
    "name": [__name__, __file__, sys.modules["__main__"].__file__],
    "folder": [os.getcwd(), tempfile.gettempdir()],
    "session": os.getsid(0) == os.getpid(),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "header": codecache._HEADER_DIR,
    "settings": [config.compile_threads, config.cpp.vec_isa_ok, config.cpp_cache_precompile_headers],
    "counted": sum(map(len, counters.values())),
}))
sys.exit("it failed" if sys.argv[1:] == ["fail"] else 0)
"""


def test_it_has_its_own_arguments_variables_and_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tells.py"
    file.write_text(TELLS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for variables, settings in (
        ({"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}, [1, True, True]),
        ({"TORCHINDUCTOR_COMPILE_THREADS": "3", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}, [3, None, False]),
    ):
        wanted = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), **variables}
        process = Program(file, "one", "two words", env=wanted)
        out, errors = process.communicate()
        assert (process.returncode, errors, out.splitlines()[1:]) == (0, "", ["at the end"])
        assert json.loads(out.splitlines()[0]) == {
            "words": ["one", "two words"],
            "variables": wanted,
            "name": ["__main__", str(file), str(file)],
            "folder": [str(tmp_path), str(tmp_path)],
            "session": True,
            "descriptors": [0, 1, 2],
            "header": str(headers.header_folder()),
            "settings": settings,
            "counted": 0,
        }


def test_how_it_ends_is_told(tmp_path: Path) -> None:
    file = tmp_path / "fails.py"
    file.write_text(TELLS)
    failed = Program(file, "fail", env=os.environ)
    assert failed.communicate()[1] == "it failed\n"
    assert failed.returncode == 1
    file.write_text("import signal; signal.pause()")
    waits = Program(file, env=os.environ)
    assert waits.poll() is None
    waits.kill()
    waits.communicate()
    assert waits.returncode == -signal.SIGKILL
