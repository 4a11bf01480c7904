"""Extension modules of the project count by their files: a rebuilt one gives other keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.keys.interpreters import ROOT

SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *twice(PyObject *self, PyObject *x) { return PyNumber_Multiply(x, PyLong_FromLong(FACTOR)); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {NULL}};
static PyObject *run(PyObject *self, PyObject *x) { return twice(self, x); }
static PyMethodDef of_class[] = {{"run", run, METH_O, ""}, {NULL}};
static PyType_Slot slots[] = {{Py_tp_methods, of_class}, {0, NULL}};
static PyType_Spec spec = {"native.Runner", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
typedef struct { PyObject_HEAD int hidden; } Box;
static PyType_Spec box = {"native.Box", sizeof(Box), 0, Py_TPFLAGS_DEFAULT, slots};
static int fill(PyObject *module) {
    PyModule_AddObject(module, "Runner", PyType_FromSpec(&spec));
    return PyModule_AddObject(module, "Box", PyType_FromSpec(&box));
}
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native", NULL, 0, methods, module_slots};
PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
"""
USER = """
import native
from native import twice
class Derived(native.Runner):
    pass
derived = Derived()
def by_module(x): return native.twice(x)
def by_name(x): return twice(x)
def as_it_runs(x):
    import native
    return native.twice(x)
def passes_on(x): return getattr(native, x)
def by_class(x): return native.Runner().run(x)
def by_instance(x): return derived.run(x)
def unrelated(x): return x
"""
TELL = """
import json, user, native
from kcachefs.errors import Unkeyable
from kcachefs.keys import hash_function, hash_value
told = {name: hash_function(value) for name, value in vars(user).items() if type(value) is type(user.by_name)}
told["value"] = hash_value([native.twice, native.Runner])
try:
    told["box"] = hash_value(native.Box())
except Unkeyable as error:
    told["box"] = str(error)
print(json.dumps(told))
"""


def built(folder: Path, factor: int) -> dict[str, str]:
    """The keys of a project whose extension module multiplies by `factor`, in a process of their own."""
    folder.mkdir(exist_ok=True)
    (folder / "native.c").write_text(SOURCE)
    (folder / "user.py").write_text(USER)
    target = folder / f"native{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    command = ["cc", "-shared", "-fPIC", "-O0", f"-I{include}", f"-DFACTOR={factor}", "native.c", "-o", target.name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", TELL], cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    keys: dict[str, str] = json.loads(ran.stdout)
    return keys


def test_a_rebuilt_extension_module_counts_wherever_it_is_used(tmp_path: Path) -> None:
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("there is no C compiler, or no header of Python, to build an extension module with")
    one, two = built(tmp_path / "one", 2), built(tmp_path / "one", 3)
    again, elsewhere = built(tmp_path / "one", 2), built(tmp_path / "two", 2)
    assert one == again == elsewhere
    assert {name for name in one if one[name] == two[name]} == {"unrelated", "box"}
    assert "native.Box cannot be read in full: it keeps state where Python cannot see it" in one["box"]
