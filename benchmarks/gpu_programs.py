"""The programs that scripts/gpu_check runs, each in its own process: python -m benchmarks.gpu_programs NAME DEVICE.

A program prints one line of JSON: the seconds until the first result, a digest of the results, and counters. It needs
only torch and triton; the environment says where the caches are.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Result = tuple[float, Any, dict[str, int]]


def triton_kernels(device: str) -> Result:
    """Hand-written kernels, one of them autotuned over several configurations."""
    import torch
    import triton

    from benchmarks import gpu_kernels

    torch.manual_seed(0)
    x, y = torch.randn(1 << 20, device=device), torch.randn(1 << 20, device=device)
    a, b = (torch.randn(512, 512, device=device, dtype=torch.float16) for _ in range(2))
    torch.cuda.synchronize()
    compiled = 0

    def count(*arguments: Any, **keywords: Any) -> None:
        nonlocal compiled
        compiled += not keywords.get("cache_hit", False)

    if hasattr(triton, "knobs"):
        triton.knobs.compilation.listener = count
    started = time.perf_counter()
    out = [gpu_kernels.add(x, y), gpu_kernels.softmax(a.float()), gpu_kernels.matmul(a, b)]
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    torch.testing.assert_close(out[0], x + y)
    torch.testing.assert_close(out[1], torch.softmax(a.float(), -1))
    torch.testing.assert_close(out[2], a @ b, rtol=1e-2, atol=1e-1)
    return seconds, out[:2], {"compiled": compiled}


def triton_offline(device: str) -> Result:
    """Kernels compiled for sm_90, which needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from benchmarks import gpu_kernels

    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    started = time.perf_counter()
    cubins = [
        triton.compile(
            ASTSource(gpu_kernels._add, signature, {"BLOCK": 64 << power}), target=GPUTarget("cuda", 90, 32)
        ).asm["cubin"]
        for power in range(8)
    ]
    seconds = time.perf_counter() - started
    return seconds, hashlib.sha256(b"".join(cubins)).hexdigest(), {}


def transformer_training(device: str) -> Result:
    """A training step of a small decoder, compiled with its backward pass."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.mix(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.inner(self.second(x))

    width, layers, length = (384, 6, 256) if device == "cuda" else (32, 1, 16)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, width), *(Block(width, 4) for _ in range(layers)), nn.Linear(width, 1000))
    model = model.to(device)
    tokens = torch.randint(0, 1000, (4, length + 1), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    @torch.compile  # type: ignore[untyped-decorator]
    def loss_of(tokens: Any) -> Any:
        scores = model(tokens[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())

    return _timed(lambda: _step(loss_of, tokens, optimizer), 3)


def _step(loss_of: Callable[[Any], Any], tokens: Any, optimizer: Any) -> Any:
    loss = loss_of(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def convolutional_network(device: str) -> Result:
    """Inference with a small residual network."""
    import torch
    from torch import nn

    class Residual(nn.Module):  # type: ignore[misc]
        def __init__(self, into: int, out: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
            self.skip = nn.Conv2d(into, out, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.second(self.first(x)) + self.skip(x))

    widths, size = ((64, 64, 128, 128, 256, 256, 512, 512), 112) if device == "cuda" else ((8, 8), 16)
    torch.manual_seed(0)
    blocks = [Residual(i, o, 1 + (o > i)) for i, o in zip((widths[0], *widths), widths, strict=False)]
    model = nn.Sequential(nn.Conv2d(3, widths[0], 7, 2, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = model.to(device).eval()
    images = torch.randn(4, 3, size, size, device=device)
    compiled = torch.compile(model)

    def call() -> Any:
        with torch.no_grad():
            return compiled(images)

    return _timed(call, 1)


def small_network(device: str) -> Result:
    """Inference with three layers: about the least that torch.compile can be asked for."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).to(device).eval()
    compiled, data = torch.compile(model), torch.randn(8, 64, device=device)

    def call() -> Any:
        with torch.no_grad():
            return compiled(data)

    return _timed(call, 1)


def driver_cache(device: str) -> Result:
    """PTX that the CUDA driver compiles when it is loaded, and keeps in the driver's own cache."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, module, number = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(number), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    call("cuCtxSetCurrent", context)
    body = "\n".join(f"fma.rn.f32 %f{i % 60}, %f{(i + 7) % 60}, %f{(i + 13) % 60}, %f{i % 60};" for i in range(3000))
    kernels = "".join(
        f".visible .entry k{k}(.param .u64 out) {{ .reg .f32 %f<64>; .reg .b64 %p<2>; ld.param.u64 %p0, [out];\n"
        + "".join(f"ld.global.f32 %f{i}, [%p0+{4 * (i + k)}];\n" for i in range(60))
        + body
        + "".join(f"st.global.f32 [%p0+{4 * i}], %f{i};\n" for i in range(60))
        + "ret; }\n"
        for k in range(24)
    )
    image = f".version 7.0\n.target sm_70\n.address_size 64\n{kernels}".encode() + b"\0"
    started = time.perf_counter()
    call("cuModuleLoadData", ctypes.byref(module), image)
    return time.perf_counter() - started, "loaded", {}


def _timed(call: Callable[[], Any], times: int) -> Result:
    """The seconds of the first call, which compiles; the results of all calls; and TorchInductor's counters."""
    import torch
    from torch._dynamo.utils import counters

    started = time.perf_counter()
    first = call()
    if first.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    # A backward pass adds numbers in a different order each time, so later results are only equal to three decimals.
    results = [first, *(call().round(decimals=3) for _ in range(times - 1))]
    return (
        seconds,
        results,
        {
            "graph_hits": counters["inductor"]["fxgraph_cache_hit"],
            "graph_misses": counters["inductor"]["fxgraph_cache_miss"],
            "autograd_hits": counters["aot_autograd"]["autograd_cache_hit"],
        },
    )


PROGRAMS: dict[str, Callable[[str], Result]] = {
    "triton": triton_kernels,
    "offline": triton_offline,
    "transformer": transformer_training,
    "convnet": convolutional_network,
    "mlp": small_network,
    "driver": driver_cache,
}
ON_A_GPU = ("triton", "transformer", "convnet", "driver")
ON_A_CPU = ("offline", "transformer", "convnet")


def _digest(result: Any) -> str:
    """A digest that is equal for equal bits."""
    if isinstance(result, str):
        return result
    import torch

    parts = [torch.as_tensor(part).detach().cpu().contiguous().numpy().tobytes() for part in result]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def _end() -> None:
    """Exit at once and kill the processes that TorchInductor compiles in, which take long to stop by themselves."""
    sys.stdout.flush()
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _descendants(pid: int) -> list[int]:
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_bytes().rpartition(b")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


if __name__ == "__main__":
    seconds, result, counted = PROGRAMS[sys.argv[1]](sys.argv[2])
    print(json.dumps({"seconds": seconds, "digest": _digest(result), "counters": counted}))
    _end()
