"""Functions whose outermost decorator is a library's: that is asked for nothing but what it was told."""

from __future__ import annotations

from tests.keys.cases.case import Case, edits, mutations, values

PYTHON = """
import contextlib, functools
SCALE = 4
def helper(x):
    return x * SCALE
class Timed(contextlib.ContextDecorator):
    def __init__(self, limit):
        self.limit = limit
    def __enter__(self):
        return self
    def __exit__(self, *error):
        return False
@functools.singledispatch
def dispatched(x):
    return helper(x)
@dispatched.register
def of_text(x: str):
    return x + "!"
@contextlib.contextmanager
def managed(x, y=1):
    yield helper(x) + y
@contextlib.asynccontextmanager
async def managed_later(x):
    yield helper(x)
@Timed(3)
def timed(x):
    return helper(x)
@contextlib.contextmanager
@contextlib.contextmanager
def twice(x):
    yield helper(x)
def wrap(f):
    @functools.wraps(f)
    def wrapper(x):
        return f(x)
    return wrapper
@wrap
@functools.singledispatch
def outside(x):
    return helper(x)
@functools.singledispatch
@wrap
def inside(x):
    return helper(x)
"""
TORCH = """
import torch, numpy as np
SCALE = 4
MODE = "default"
def helper(x):
    return x * SCALE
@torch.no_grad()
def no_grad(x):
    return helper(x)
@torch.inference_mode()
def inference(x):
    return helper(x)
@torch.autocast("cpu", torch.bfloat16)
def autocast(x):
    return helper(x)
@torch.compile(mode=MODE, dynamic=False)
def compiled(x):
    return helper(x)
@torch.compiler.disable
def disabled(x):
    return helper(x)
@torch.no_grad()
@torch.compile
def both(x):
    return helper(x)
@torch.enable_grad()
def enabled(x):
    return helper(x)
@np.errstate(over="ignore")
def quiet(x):
    return helper(x)
def batched(x):
    return helper(x)
batched = torch.vmap(batched, in_dims=0)
def derived(x):
    return helper(x)
derived = torch.func.grad(derived)
jacobian = torch.func.jacrev(batched, argnums=0)
"""
PYTHON_NAMES = ("dispatched", "managed", "managed_later", "timed", "twice", "outside", "inside")
TORCH_NAMES = (
    *("no_grad", "inference", "autocast", "compiled", "disabled", "both", "enabled", "quiet", "batched", "derived"),
    "jacobian",
)


def of_each(section: str, source: str, names: tuple[str, ...], needs: str = "") -> list[Case]:
    """Of each function: a change of what it calls shows, and nothing else does."""
    cases = []
    for name in names:
        key = f"hash_function({name})"
        cases += edits(
            f"{section} {name}", "change", source, "x * SCALE || x + SCALE\nSCALE = 4 || SCALE = 8", key, needs
        )
        cases += edits(f"{section} {name}", "same", source, "SCALE = 4 || UNUSED = 1\\nSCALE = 4", key, needs)
        cases += mutations(f"{section} {name}", "change", source, f"SCALE = 5\n{name}.tile = 1", key, needs)
    return cases


CASES: list[Case] = [
    *of_each("wrapped by Python", PYTHON, PYTHON_NAMES),
    *of_each("wrapped by a library", TORCH, TORCH_NAMES, "torch numpy"),
    *edits("wrapped dispatched", "change", PYTHON, 'x + "!" || x + "?"', "hash_function(dispatched)"),
    *edits("wrapped managed", "change", PYTHON, "y=1 || y=2\n+ y || - y", "hash_function(managed)"),
    *edits("wrapped timed", "change", PYTHON, "Timed(3) || Timed(4)\nFalse || True", "hash_function(timed)"),
    *mutations("wrapped used", "same", PYTHON, "dispatched(1), dispatched('a')", "hash_function(dispatched)"),
    *mutations(
        "wrapped changed",
        "change",
        PYTHON,
        "dispatched.register(int, helper)\nhelper.tile = 1",
        "hash_function(dispatched)",
    ),
    *values(
        "wrapped by another",
        "change",
        TORCH,
        """
        hash_function(torch.no_grad()(helper)) || hash_function(torch.enable_grad()(helper))
        hash_function(torch.no_grad()(helper)) || hash_function(helper)
        hash_function(torch.compile(helper)) || hash_function(torch.compiler.disable(helper))
        hash_function(torch.vmap(helper, in_dims=0)) || hash_function(torch.vmap(helper, in_dims=1))
        hash_function(torch.compile(helper)) || hash_function(torch.compile(helper, dynamic=True))
        hash_function(torch.no_grad()(torch.compile(helper))) || hash_function(torch.no_grad()(compiled))
        torch.no_grad()(torch.compile(helper)) || torch.inference_mode()(torch.compile(helper))
        torch.no_grad()(torch.compile(helper)) || torch.no_grad()(torch.compile(helper, dynamic=True))
        torch.no_grad()(torch.compile(helper)) || torch.no_grad()(torch.compiler.disable(helper))
        hash_function(np.errstate(over="ignore")(helper)) || hash_function(np.errstate(over="raise")(helper))
        hash_function(torch.autocast("cpu")(helper)) || hash_function(torch.autocast("cpu", torch.float16)(helper))
        """,
        "torch numpy",
    ),
    *mutations(
        "wrapped compiled used",
        "same",
        TORCH + "eager = torch.compile(helper, backend='eager')\n",
        "eager(torch.ones(2))",
        "hash_function(eager)",
        "torch numpy",
    ),
]
