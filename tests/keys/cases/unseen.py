"""What no key can see: the rows of the table in docs/keys.md, each shown to be true, and declared where it can be."""

from __future__ import annotations

from tests.keys.cases.case import Case, mutations

SOURCE = """
import functools, importlib, math, os, random, sys, time
import helper_module
from kcachefs.keys import env, file, hash_depends, version
N = 2
CONFIG = {"a": 1, "b": 2}
class Plan:
    @functools.cached_property
    def cost(self):
        return 1
plan = Plan()
class Base: pass
def reads_environment(): return os.environ.get("KCACHEFS_UNSEEN")
def reads_file(): return open("table.csv").read()
def evaluates(): return eval("N + 1")
def looks_up(): return globals()["N"]
def asks_module(): return getattr(helper_module, "LEVEL")
def imports_later():
    import helper_module
    return helper_module.LEVEL
def uses_library(): return math.pi
def draws(): return random.random()
def tells_time(): return time.time()
def uses_plan(): return plan.cost
def asks_base(): return Base.__subclasses__()
def asks_modules(): return sys.modules["helper_module"].LEVEL
def iterates(): return list(CONFIG)
def forget(): os.environ.pop("KCACHEFS_UNSEEN", None)
forget()
open("table.csv", "w").write("1")
"""

OPERATORS = """
import torch
if not hasattr(torch.ops.cases, "by_name"):
    torch.library.define("cases::by_name", "(Tensor x) -> Tensor")
def scale(x): return x * 2
def calls_by_name(x): return torch.ops.cases.by_name(x)
@torch.library.custom_op("cases::computed", mutates_args=())
def computed(x: torch.Tensor) -> torch.Tensor:
    return x + 1
def calls_computed(x, name="comp" + "uted"): return getattr(torch.ops.cases, name)(x)
"""

OVERLOADED = """
import numba
from numba.extending import overload
def helper(x):
    return x
def made(n):
    def implementation(x):
        return lambda x: n
    return implementation
@numba.njit
def calls_overloaded(x): return helper(x)
"""

EDITED = """
import edited_module
open(edited_module.__file__, "w").write("LEVEL = 2\\n")
def imports_edited():
    import edited_module
    return edited_module.LEVEL
"""

UNSEEN = {
    "reads_environment": "os.environ['KCACHEFS_UNSEEN'] = '1'",
    "reads_file": "open('table.csv', 'w').write('2')",
    "evaluates": "N = 3",
    "looks_up": "N = 3",
    "asks_module": "helper_module.LEVEL = 2",
    "imports_later": "helper_module.LEVEL = 2",
    "draws": "random.seed(1)",
    "tells_time": "time.sleep(0)",
    "uses_plan": "plan.cost = 5",
    "asks_base": "made = type('Made', (Base,), {})",
    "asks_modules": "helper_module.LEVEL = 2",
    "iterates": "CONFIG = {'b': 2, 'a': 1}",
}
DECLARED = {
    "[env('KCACHEFS_UNSEEN')]": UNSEEN["reads_environment"],
    "[file('table.csv')]": UNSEEN["reads_file"],
    "[N]": UNSEEN["evaluates"],
    "[helper_module.LEVEL]": UNSEEN["asks_module"],
    "[list(CONFIG)]": UNSEEN["iterates"],
    "[Base.__subclasses__()]": UNSEEN["asks_base"],
}


def _with_helper(cases: list[Case]) -> list[Case]:
    for case in cases:
        case.sources["helper_module.py"] = "LEVEL = 1\n"
    return cases


CASES: list[Case] = [
    *(
        case
        for name, change in UNSEEN.items()
        for case in _with_helper(mutations(f"unseen by {name}", "same", SOURCE, change, f"hash_function({name})"))
    ),
    *(
        case
        for depends, change in DECLARED.items()
        for case in _with_helper(mutations(f"declared {depends}", "change", SOURCE, change, f"hash_depends({depends})"))
    ),
    *_with_helper(
        mutations(
            "unseen by uses_library",
            "same",
            SOURCE,
            "pi, math.pi = math.pi, 3",
            "(hash_function(uses_library), setattr(math, 'pi', 3.141592653589793))[0]",
        )
    ),
    Case(
        "unseen by imports_edited: what was imported is no longer in the file",
        "same",
        {"main.py": EDITED, "edited_module.py": "LEVEL = 2\n"},
        "hash_function(imports_edited)",
        "hash_function(imports_edited)",
        {"edited_module.py": "LEVEL = 1\n"},
    ),
    *mutations(
        "unseen by calls_by_name",
        "same",
        OPERATORS,
        "torch.library.impl('cases::by_name', 'cpu', scale)",
        "hash_function(calls_by_name)",
        needs="torch",
    ),
    *mutations(
        "unseen by calls_computed",
        "same",
        OPERATORS,
        "computed.register_autograd(scale)",
        "hash_function(calls_computed)",
        needs="torch",
    ),
    *mutations(
        "declared [computed]",
        "change",
        OPERATORS,
        "computed.register_autograd(scale)",
        "hash_depends([computed])",
        needs="torch",
    ),
    *mutations(
        "unseen by calls_overloaded",
        "same",
        OVERLOADED,
        "overload(helper)(made(1))",
        "hash_function(calls_overloaded)",
        needs="numba",
    ),
    *mutations(
        "declared [implementation]",
        "change",
        OVERLOADED + "implementation = made(1)\n",
        "implementation = made(2)",
        "hash_depends([implementation])",
        needs="numba",
    ),
]
