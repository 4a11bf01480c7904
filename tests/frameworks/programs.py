"""Programs that really compile, each in a process of its own; each prints one line of JSON about what happened."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import forked_programs

PATIENCE = 280.0

TRITON = """
import json, os, sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton.backends.nvidia.compiler as nvidia

stages = 0
make_cubin = nvidia.CUDABackend.make_cubin
def counted(*arguments, **keywords):
    global stages
    stages += 1
    return make_cubin(*arguments, **keywords)
nvidia.CUDABackend.make_cubin = counted

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2.0, at < n)

digests = []
for kernel, signature in (
    (add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}),
    (scale, {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}),
):
    for block in (128, 256):
        source = ASTSource(kernel, signature, {"BLOCK": block})
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        import hashlib
        digests.append(hashlib.sha256(compiled.asm["cubin"]).hexdigest())
print(json.dumps({"compiled": stages, "cubins": digests}))
"""


INDUCTOR = """
import hashlib, json, sys
import torch
import torch.nn as nn
from torch._dynamo.utils import counters
import torch._inductor.cpp_builder as cpp_builder
import torch._inductor.codecache as codecache

wanted, artifacts = sys.argv[1].split(","), sys.argv[2:]
built = []
build = cpp_builder.CppBuilder.build
def counted(self):
    if not getattr(self, "_preprocessing", False):
        built.append(self.get_target_file_path())
    return build(self)
cpp_builder.CppBuilder.build = counted

def digest(*tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:16]

def mlp():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    x = torch.randn(8, 16)
    with torch.no_grad():
        expected, found = model(x), torch.compile(model)(x)
    torch.testing.assert_close(found, expected)
    return digest(found)

def training():
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 16), nn.GELU())
    x = torch.randn(16, 32)
    model(x).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.compile(model)(x).square().mean().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected)
    return digest(*(p.grad for p in model.parameters()))

def dynamic():
    f = torch.compile(lambda x: torch.softmax(x * 2, -1).sum(0), dynamic=True)
    found = [f(torch.arange(float(n * 6)).reshape(n, 6)) for n in (3, 5, 9)]
    return digest(*found)

def cpp_wrapper():
    import torch._inductor.config as config
    # Its own header would take longer to precompile than to parse.
    with config.patch(cpp_wrapper=True, cpp_cache_precompile_headers=False):
        found = torch.compile(lambda x: (x.sin() + x.cos()).sum(1))(torch.arange(64.0).reshape(8, 8))
    return digest(found)

def told():
    return {
        "results": results,
        "built": len(built),
        "graph_hits": counters["inductor"]["fxgraph_cache_hit"],
        "graph_misses": counters["inductor"]["fxgraph_cache_miss"],
        "autograd_hits": counters["aot_autograd"]["autograd_cache_hit"],
        "autograd_misses": counters["aot_autograd"]["autograd_cache_miss"],
        "mapped": sorted({line.split()[-1] for line in open("/proc/self/maps") if "/inductor/" in line}),
    }

def ranks(count):
    # All start together on an empty cache; torch is already loaded, nothing else is shared.
    import os, torch._inductor.compile_fx
    pipes = []
    for _ in range(count):
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                torch.manual_seed(0)
                results["mlp"] = mlp()
                os.write(writer, json.dumps(told()).encode())
                os._exit(0)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
        os.close(writer)
        pipes.append(reader)
    said = [json.loads(open(reader, "rb").read() or b"null") for reader in pipes]
    assert all(os.waitstatus_to_exitcode(os.wait()[1]) == 0 for _ in pipes)
    return said

results = {}
if wanted[0].startswith("ranks"):
    print(json.dumps({"ranks": ranks(int(wanted[0].removeprefix("ranks")))}))
    sys.exit()
if artifacts and artifacts[0] == "load":
    torch.compiler.load_cache_artifacts(open(artifacts[1], "rb").read())
for name in wanted:
    torch.manual_seed(0)
    torch._dynamo.reset()
    results[name] = globals()[name]()
if artifacts and artifacts[0] == "save":
    data, _ = torch.compiler.save_cache_artifacts()
    open(artifacts[1], "wb").write(data)
print(json.dumps(told()))
"""

NVRTC = """
import hashlib, json, sys
from cuda.core import Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache

digests = []
with FileStreamProgramCache(path=sys.argv[1]) as cache:
    before = len(cache)
    for number in range(int(sys.argv[2])):
        code = 'extern "C" __global__ void k%d(float *x) { x[threadIdx.x] *= %d.0f; }' % (number, number + 2)
        program = Program(code, "c++", ProgramOptions(arch="sm_90"))
        compiled = program.compile("cubin", cache=cache)
        digests.append(hashlib.sha256(compiled.code).hexdigest())
    made = len(cache) - before
print(json.dumps({"made": made, "cubins": digests}))
"""

EXTENSION = """
import ctypes, json, os
import torch.utils.cpp_extension as extension

# Without torch's own headers, which take a minute to parse; ninja, its files and the library are the same.
source = 'extern "C" int twice(int x) { return 2 * x; }'
extension.load_inline("kcachefs_twice", [source], is_python_module=False, no_implicit_headers=True)
folder = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "kcachefs_twice")
[library] = [name for name in os.listdir(folder) if name.endswith(".so")]
made = [name for name in os.listdir(folder) if name.endswith((".o", ".so"))]
stamps = {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in made}
print(json.dumps({"twice": ctypes.CDLL(os.path.join(folder, library)).twice(21), "stamps": stamps}))
"""


NUMBA = """
import json
import numba

@numba.njit(cache=True)
def total(n):
    result = 0
    for i in range(n):
        result += i * i
    return result

value = total(1000)
stats = total.stats
print(json.dumps({"value": value, "hits": sum(stats.cache_hits.values()), "misses": sum(stats.cache_misses.values())}))
"""

JAX = """
import json, os
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
import jax, jax.numpy as jnp

counted = {}
def count(event, **keywords):
    counted[event.rpartition("/")[2]] = counted.get(event.rpartition("/")[2], 0) + 1
jax.monitoring.register_event_listener(count)
value = float(jax.jit(lambda x: (jnp.sin(x) * x).sum())(jnp.arange(64.0)))
print(json.dumps({"value": value, "hits": counted.get("cache_hits", 0), "misses": counted.get("cache_misses", 0)}))
"""

CUPY = """
import json, random
from cupy.cuda import compiler

cache = compiler._kernel_cache_backend
names = [f"{number:040x}.cubin" for number in range(3)]
found = [cache.load(name) for name in names]
cubins = [random.Random(name).randbytes(5000) for name in names]
for name, cubin, loaded in zip(names, cubins, found):
    if loaded is None:
        cache.save(name, cubin, "source")
print(json.dumps({"hits": sum(loaded == cubin for loaded, cubin in zip(found, cubins)), "misses": found.count(None)}))
"""


def run_program(
    text: str,
    environment: dict[str, str],
    *arguments: str,
    folder: Path | None = None,
    quiet: bool = True,
    afresh: bool = False,
) -> dict[str, Any]:
    """Run a program, which must succeed without a warning: no framework may complain about a mount."""
    process = start_program(text, environment, *arguments, folder=folder, afresh=afresh)
    return finish_program(process, quiet=quiet)


def start_program(
    text: str, environment: dict[str, str], *arguments: str, folder: Path | None = None, afresh: bool = False
) -> subprocess.Popen[str]:
    """Start it in a process that has imported what it needs, if there is one and not `afresh`."""
    assert text.startswith("\n"), text[:40]
    prepared = {TRITON: "torch", INDUCTOR: "torch", EXTENSION: "torch", NUMBA: "others", NVRTC: "others"}.get(text)
    text = f"import gc; gc.disable(){text}"  # on the empty first line; torch takes a tenth less time without
    # Triton hashes the path of a kernel's source file, so the path must always be the same.
    path = (
        folder or Path(environment["KCACHEFS_PROGRAMS"])
    ) / f"program_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    if not path.exists():
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(text)
        os.replace(new, path)
    variables = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", **environment}
    if prepared and not afresh and forked_programs.can_fork():
        return forked_programs.Program(path, *arguments, env=variables, prepared=prepared)
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )


_ABOUT_THE_MACHINE = "No CUDA runtime is found"
"""A warning of torch on machines with a CUDA compiler but no GPU; it has nothing to do with a cache."""


def finish_program(process: subprocess.Popen[str], quiet: bool = True) -> dict[str, Any]:
    try:
        out, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, errors
    if quiet:
        said = [line for line in errors.splitlines() if _ABOUT_THE_MACHINE not in line]
        assert said == []
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told
