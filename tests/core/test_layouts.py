"""What an entry is: real names from real caches, sorted into entries by the table."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from kcachefs.core.layouts import LAYOUTS, NAMESPACES, Kind, Spot, is_temporary, place
from kcachefs.core.readable_names import readable

DATA = Path(__file__).parents[1] / "data"
STRUCTURE, TREE, GROUP, LOCK, KEPT, TEMP = Kind.STRUCTURE, Kind.TREE, Kind.GROUP, Kind.LOCK, Kind.KEPT, Kind.TEMP
KEY = "IAMSL7GYPYMWSULEVNFMCOWH2KST4PG44JEMBFEOS7NLZTXBSCEA"
CODE = "c5ujs3kvmvyoikioxyihmcp4sj4lyjilvcuuhtbuw3yq7blyugwe"
HEX = "4f053a9d03452480e3d3bd630e4a43bf2ce9e6bb854238595d7737b6dad954d2"
PYTHON = "cpython-311-4f053a9d03452480"
UUID = "bd3da4e8-d10d-4c7a-be8c-a7f6cb616eff"

TABLE: dict[str, list[tuple[str, Kind] | tuple[str, Kind, str]]] = {
    "library": [
        ("kernels/", STRUCTURE),
        ("kernels/entries/", STRUCTURE),
        ("kernels/entries/v1/", STRUCTURE),
        ("kernels/entries/v1/4f/", STRUCTURE),
        (f"kernels/entries/v1/4f/{HEX[2:]}", GROUP, HEX[2:]),
        ("kernels/writers/", STRUCTURE),
        ("kernels/writers/1a2b", LOCK),
        ("kernels/locks/", STRUCTURE),
        ("kernels/locks/a7", LOCK),
    ],
    "triton": [
        (f"{KEY}/", TREE),
        (f"{KEY}/_mm.cubin", TREE),
        (f"{KEY}/tmp.pid_22717_{UUID}/_mm.ptx", TREE),
    ],
    "inductor": [
        ("fxgraph/", STRUCTURE),
        ("fxgraph/kz/", STRUCTURE),
        ("fxgraph/kz/fkzfrsam55s6/4qrbf2hl2tc4r", TREE),
        ("aotautograd/", STRUCTURE),
        ("aotautograd/a6psn3au3fks/", TREE),
        ("5u/", STRUCTURE),
        (f"5u/{CODE}.cpp", GROUP, CODE),
        (f"5u/{CODE}.so", GROUP, CODE),
        ("e6/ce6sjhqlpbfg5.main.cpp", GROUP, "ce6sjhqlpbfg5"),
        ("e6/ce6sjhqlpbfg5.main.so", GROUP, "ce6sjhqlpbfg5"),
        (f"5u/{CODE}_CxxBuild/", TEMP),
        ("5u/.10372.140549166730112.tmp", TEMP),
        (f"ni/{HEX}.best_config", GROUP, HEX),
        ("locks/", STRUCTURE),
        (f"locks/{CODE}.lock", LOCK),
        ("triton/", STRUCTURE),
        ("triton/0/", STRUCTURE),
        (f"triton/0/{KEY}/_mm.cubin", TREE),
        (f"triton/0/{KEY}.lock", LOCK),
        (f"triton/0/tmp.{UUID}/", TEMP),
        ("cutedsl_compile_cache/", STRUCTURE),
        (f"cutedsl_compile_cache/{HEX}.o", GROUP, HEX),
        ("cutedsl_compile_cache/tmpk2x9q_1a.o.tmp", TEMP),
        ("cache/", STRUCTURE),
        (f"cache/{HEX}", GROUP, HEX),
        ("dynamo/code_state_1f.pkl", GROUP, "code_state_1f.pkl"),
        ("dynamo/code_state_1f.pkl.lock", LOCK),
        ("aoti_eager/aten/cpu/add.so", TREE),
        ("bisect/bisect_status.txt", TREE),
    ],
    "precompiled_headers": [
        ("cnspdh24ebe7.h", GROUP, "cnspdh24ebe7"),
        ("cnspdh24ebe7.h.gch", GROUP, "cnspdh24ebe7"),
        ("locks/", STRUCTURE),
        ("locks/cnspdh24ebe7.lock", LOCK),
    ],
    "cuda": [
        ("index", KEPT),
        ("a/", STRUCTURE),
        ("a/2/", STRUCTURE),
        ("a/2/daf144f9da5951", GROUP, "daf144f9da5951"),
    ],
    "nvrtc": [
        ("entries/ab/", STRUCTURE),
        ("entries/ab/0123cd", GROUP, "0123cd"),
        ("tmp/entry-x1y2z3", TEMP),
    ],
    "cuda_core": [
        ("entries/", STRUCTURE),
        ("entries/ab/", STRUCTURE),
        ("entries/ab/0123cd", GROUP, "0123cd"),
        ("tmp/", STRUCTURE),
        ("tmp/entry-x1y2z3", TEMP),
    ],
    "torch_extensions": [
        ("my_ops/my_ops.so", TREE),
        ("my_ops/.ninja_log", TREE),
        ("py311_cu130/", STRUCTURE),
        ("py311_cu130/my_ops/my_ops.so", TREE),
    ],
    "torch_kernels": [
        (f"gcd_arch9.0_nvrtc13.0_ptx_2_{HEX}", GROUP, f"gcd_arch9.0_nvrtc13.0_ptx_2_{HEX}"),
        (f"gcd_arch9.0_nvrtc13.0_ptx_2_{HEX}_tmp_4711", TEMP),
    ],
    "vllm": [
        ("torch_compile_cache/", STRUCTURE),
        ("torch_compile_cache/3d5e1a/rank_0_0/backbone/computation_graph.py", TREE),
        ("torch_compile_cache/torch_aot_compile/", STRUCTURE),
        ("torch_compile_cache/torch_aot_compile/3d5e1a/rank_0_0/model", TREE),
        ("torch_aot_compile/3d5e1a/rank_0_0/model", TREE),
        ("deep_gemm/cache/", STRUCTURE),
        ("deep_gemm/cache/kernel.gemm.1f/kernel.cubin", TREE),
        ("modelinfos/vllm-llama.json", GROUP, "vllm-llama.json"),
        ("gpu_p2p_access_cache_for_0,1.json", GROUP, "gpu_p2p_access_cache_for_0,1.json"),
    ],
    "sglang": [
        ("torch_compile_cache/3d5e1a/rank_0/x.py", TREE),
        ("deep_gemm/cache/kernel.gemm.1f/kernel.cubin", TREE),
        ("deep_gemm/tmp/5c2f/", TEMP),
        ("jit/", STRUCTURE),
        ("jit/norm_1f/norm.so", TREE),
        ("jit/sm90a/", STRUCTURE),
        ("jit/sm100/norm/", STRUCTURE),
        ("jit/gfx942/norm/build-1f2e/", STRUCTURE),
        ("jit/sm90a/norm/build-1f2e/deps-3d4c/", TREE),
        ("jit/sm90a/norm/build-1f2e/deps-3d4c/norm.so", TREE),
        (f"jit/sm90a/norm/build-1f2e/.staging-{UUID}/", TEMP),
        ("rust_extensions/artifacts/sglang-grpc/", STRUCTURE),
        (f"rust_extensions/artifacts/sglang-grpc/{HEX}/_grpc.cpython-312-x86_64-linux-gnu.so", TREE),
        ("rust_extensions/targets/1f2e/release/libsglang_grpc.so", TREE),
        ("rust_extensions/locks/sglang-grpc-1f2e.lock", LOCK),
        ("diffusion/torch_compile_cache/", STRUCTURE),
        ("diffusion/torch_compile_cache/inductor/fxgraph/kz/fkzfrsam55s6/4qrbf2hl2tc4r", TREE),
        (f"diffusion/torch_compile_cache/inductor/5u/{CODE}.so", GROUP, CODE),
        ("diffusion/torch_compile_cache/triton/", STRUCTURE),
        (f"diffusion/torch_compile_cache/triton/{KEY}/_mm.cubin", TREE),
        ("diffusion/ipc_a2a_sync_r0/", TREE),
        ("inductor/aotautograd/a6psn3au3fks/", TREE),
        (f"triton/{KEY}/", TREE),
        (".cache/flashinfer/0.6.1/90a/cached_ops/batch_prefill/batch_prefill.so", TREE),
    ],
    "flashinfer": [
        (".cache/flashinfer/", STRUCTURE),
        (".cache/flashinfer/0.6.1/90a/", STRUCTURE),
        (".cache/flashinfer/0.6.1/90a/cached_ops/", STRUCTURE),
        (".cache/flashinfer/0.6.1/90a/cached_ops/batch_prefill/batch_prefill.so", TREE),
        (".cache/flashinfer/0.6.1/90a/cached_ops/tmp/batch_prefill.lock", LOCK),
        (".cache/flashinfer/0.6.1/90a/generated/batch_prefill/run.cu", TREE),
        (".cache/flashinfer/0.6.1/90a/flashinfer_jit.log", GROUP, "flashinfer_jit.log"),
        (".cache/flashinfer/cubins/", STRUCTURE),
        (".cache/flashinfer/cubins/ce07/fmha/trtllm-gen/", STRUCTURE),
        (".cache/flashinfer/cubins/ce07/fmha/trtllm-gen/fmhaSm100.cubin", GROUP, "fmhaSm100.cubin"),
        (".cache/flashinfer/cubins/ce07/fmha/trtllm-gen/fmhaSm100.cubin.lock", LOCK),
        (f".cache/flashinfer/cubins/ce07/fmha/trtllm-gen/fmhaSm100.cubin.{HEX[:32]}.tmp", TEMP),
        (".cache/flashinfer/cubins/14e0/batched_gemm-fe08bc1/include/trtllmGen_bmm_export/Enums.h", TREE),
        ("cubins/", STRUCTURE),
        ("cubins/9b1f/fmha.cubin", TREE),
        ("autotune/", STRUCTURE),
    ],
    "deep_gemm": [
        ("cache/", STRUCTURE),
        ("cache/kernel.sm90_fp8_gemm.1f/kernel.cubin", TREE),
        ("tmp/", STRUCTURE),
        (f"tmp/{UUID}/", TEMP),
        (f"tmp/{UUID}", TEMP),
    ],
    "deep_ep": [("cache/kernel.dispatch.1f/kernel.cubin", TREE), (f"tmp/{UUID}/", TEMP)],
    "trtllm": [("cache/kernel.fp8.1f/kernel.cubin", TREE), (f"tmp/{UUID}/", TEMP)],
    "tilelang": [
        ("0.1.8/", STRUCTURE),
        ("0.1.8/linux-x86_64/", STRUCTURE),
        ("0.1.8/linux-x86_64/kernels/", STRUCTURE),
        (f"0.1.8/linux-x86_64/kernels/{HEX}/kernel_lib.so", TREE),
        ("0.1.8/linux-x86_64/.staging/", STRUCTURE),
        (f"0.1.8/linux-x86_64/.staging/{UUID}/", TEMP),
        (f"0.1.8/linux-x86_64/kernels/.staging-{UUID}/", TEMP),
        ("tmp/x.cu", TEMP),
    ],
    "tvm_ffi": [("norm_1f2e/norm.so", TREE), ("norm_1f2e.lock", LOCK)],
    "cute_dsl": [("cutlass_dsl_gemm_1f.mlir", GROUP, "cutlass_dsl_gemm_1f"), (f"tmp.pid_77_{UUID}/", TEMP)],
    "flash_attn_cute": [
        ("f1d2/", STRUCTURE),
        (f"f1d2/{HEX}.o", GROUP, HEX),
        (f"f1d2/{HEX}.lock", LOCK),
        ("f1d2/fwd/", STRUCTURE),
        (f"f1d2/fwd/{HEX}.o", GROUP, HEX),
        (f"f1d2/fwd/{HEX}.lock", LOCK),
        (f"{HEX}.o", GROUP, HEX),
    ],
    "quack": [
        ("f1d2/", STRUCTURE),
        (f"f1d2/{HEX}.o", GROUP, HEX),
        (f"f1d2/{HEX}.o.tmp.4711", TEMP),
        (f"f1d2/{HEX}.lock", LOCK),
        (f"{KEY}/gemm.autotune.json", GROUP, "gemm"),
    ],
    "cutile": [
        ("cache.db", GROUP, "cache.db"),
        ("cache.db-wal", GROUP, "cache.db"),
        ("cache.db-shm", GROUP, "cache.db"),
        ("cache.db-journal", GROUP, "cache.db"),
    ],
    "helion": [
        (f"{HEX}.best_config", GROUP, HEX),
        (f"{HEX}.py", GROUP, HEX),
        (f"tmp.{UUID}", TEMP),
        ("triton/0/", STRUCTURE),
        (f"triton/0/{KEY}/", TREE),
        (f"triton/0/{KEY}/_mm.cubin", TREE),
        ("cute/0/", STRUCTURE),
        ("cute/0/cutlass_dsl_gemm_1f.mlir", GROUP, "cutlass_dsl_gemm_1f"),
        ("backward/", STRUCTURE),
        ("backward/helion_bwd_1f2e.py", GROUP, "helion_bwd_1f2e"),
        ("backward/.helion_bwd_1f2e.k2x9q_1a.py.tmp", TEMP),
    ],
    "warp": [
        ("1.11.0/", STRUCTURE),
        ("1.11.0/wp_main_1f2e3d/wp_main_1f2e3d.sm90.cubin", TREE),
        ("1.11.0/wp_main_1f2e3d_p4711_t140320232455040/", TEMP),
        ("1.11.0/lto/", STRUCTURE),
        ("1.11.0/lto/1f2e3d.lto", GROUP, "1f2e3d"),
        ("1.11.0/lto/1f2e3d.meta", GROUP, "1f2e3d"),
        ("1.11.0/lto/1f2e3d_fatbin.lto", GROUP, "1f2e3d"),
        ("1.11.0/lto_p4711_t140320232455040/", TEMP),
    ],
    "cupy": [
        ("1f2e_2.cubin", GROUP, "1f2e_2"),
        ("1f2e_2.cu", GROUP, "1f2e_2"),
        ("tmpk2x9q_1a", TEMP),
    ],
    "jax": [
        ("jit_f-1f2e-cache", GROUP, "jit_f-1f2e"),
        ("jit_f-1f2e-atime", GROUP, "jit_f-1f2e"),
        (".lockfile", LOCK),
        ("xla_gpu_per_fusion_autotune_cache_dir/", STRUCTURE),
    ],
    "numba": [
        ("src_1f2e/", STRUCTURE),
        ("src_1f2e/mod.f-12.py311.nbi", GROUP, "mod.f-12.py311"),
        ("src_1f2e/mod.f-12.py311.1.nbc", GROUP, "mod.f-12.py311"),
        ("src_1f2e/mod.f-12.py311.2.nbc", GROUP, "mod.f-12.py311"),
        ("src_1f2e/mod.f-12.py311.nbi.tmp.9f8e7d6c5b4a3f2e", TEMP),
    ],
    "miopen": [
        ("3.5.0/", STRUCTURE),
        ("3.5.0/gfx942_304.ukdb", GROUP, "gfx942_304.ukdb"),
        ("3.5.0/gfx942_304.ukdb-wal", GROUP, "gfx942_304.ukdb"),
        ("gfx942_304.HIP.ufdb.txt", GROUP, "gfx942_304.HIP.ufdb.txt"),
    ],
    "comgr": [
        (f"llvmcache-{HEX}", GROUP, f"llvmcache-{HEX}"),
        ("llvmcache.timestamp", KEPT),
        ("amdgpu-compiler-1f2e3d.tmp.o", TEMP),
    ],
    "aiter": [
        ("module_norm.so", GROUP, "module_norm"),
        ("build/", STRUCTURE),
        ("build/module_norm/build.ninja", TREE),
        ("build/lock_module_norm", LOCK),
        ("root/build/", STRUCTURE),
        ("root/build/pa_ragged_1f2e/lib.so", TREE),
        ("root/build/gfx942/", STRUCTURE),
        ("root/build/gfx942/pa_decode_1f2e.hsaco", GROUP, "pa_decode_1f2e"),
        ("root/build/gfx942/pa_decode_1f2e.json", GROUP, "pa_decode_1f2e"),
        ("root/build/gfx942/pa_decode_1f2e.lock", LOCK),
    ],
    "flydsl": [
        ("launch_gemm_1f2e/", STRUCTURE),
        ("launch_gemm_1f2e/4f053a9d03452480.pkl", GROUP, "4f053a9d03452480.pkl"),
        ("launch_gemm_1f2e/4f053a9d03452480.lock", LOCK),
        ("launch_gemm_1f2e/.4f053a9d03452480.pkl.k2x9q_1a.tmp", TEMP),
        ("autotune/", STRUCTURE),
        ("autotune/launch_gemm.json", GROUP, "launch_gemm.json"),
    ],
    "ccache": [
        ("a/", STRUCTURE),
        ("a/2/", STRUCTURE),
        ("a/2/daf144f9R", GROUP, "daf144f9R"),
        ("a/2/stats", KEPT),
        ("lock/auto_cleanup", LOCK),
        ("tmp/cpp_stdout.abc.ii", TEMP),
        ("ccache.conf", KEPT),
    ],
    "sccache": [
        ("a/2/d/", STRUCTURE),
        ("a/2/d/a2df144f", GROUP, "a2df144f"),
        ("a/2/d/.sccachetmpXy12Zq", TEMP),
        ("preprocessor/a/2/d/a2df144f", GROUP, "a2df144f"),
    ],
    "python": [
        (f"{PYTHON}/", STRUCTURE),
        (f"{PYTHON}/environment.json", KEPT),
        (f"{PYTHON}/warm.json", KEPT),
        (f"{PYTHON}/opt/venv/lib/python3.11/site-packages/", STRUCTURE),
        (f"{PYTHON}/opt/venv/lib/python3.11/site-packages/torch/", TREE),
        (f"{PYTHON}/opt/venv/lib/python3.11/site-packages/torch/nn/functional.cpython-311.pyc", TREE),
        (f"{PYTHON}/opt/venv/lib/python3.11/site-packages/six.cpython-311.pyc", GROUP, "six"),
        (f"{PYTHON}/opt/venv/lib/python3.11/site-packages/six.cpython-311.opt-1.pyc", GROUP, "six"),
        (f"{PYTHON}/opt/venv/lib/python3.11/site-packages/six.cpython-311.pyc.140320232455040", TEMP),
        (f"{PYTHON}/usr/lib/python3/dist-packages/yaml/nodes.cpython-311.pyc", TREE),
        (f"{PYTHON}/usr/lib/python3.11/", STRUCTURE),
        (f"{PYTHON}/usr/lib/python3.11/asyncio/", TREE),
        (f"{PYTHON}/usr/lib/python3.11/ast.cpython-311.pyc", GROUP, "cpython-311"),
        (f"{PYTHON}/usr/lib/python3.13t/json/decoder.cpython-313t.pyc", TREE),
        (f"{PYTHON}/home/ann/project/", STRUCTURE),
        (f"{PYTHON}/home/ann/project/model.cpython-311.pyc", GROUP, "cpython-311"),
        (f"{PYTHON}/home/ann/project/model.cpython-311.opt-2.pyc", GROUP, "cpython-311"),
        (f"{PYTHON}/home/ann/project/model.cpython-311.pyc.94103", TEMP),
        (f"{PYTHON}/home/ann/project/layers/", STRUCTURE),
        (f"{PYTHON}/home/ann/project/.venv/lib/python3.11/site-packages/numpy/", TREE),
    ],
    "a tree nobody knows": [
        ("deep/er/and/deeper", TREE),
        ("file", GROUP, "file"),
        ("state.db-wal", GROUP, "state.db"),
        ("build.lock", LOCK),
    ],
}


def spot_of(namespace: str, path: str) -> Spot:
    """As the core asks: from the top down, no further than the first folder that is an entry."""
    parts = path.rstrip("/").split("/")
    for depth in range(1, len(parts)):
        spot = place(namespace.encode(), tuple(part.encode() for part in parts[:depth]), True)
        if spot.kind is not STRUCTURE:
            return spot
    return place(namespace.encode(), tuple(part.encode() for part in parts), path.endswith("/"))


@pytest.mark.parametrize(
    ("namespace", "row"), [(namespace, row) for namespace, rows in TABLE.items() for row in rows], ids=str
)
def test_a_path_is_placed_as_its_framework_uses_it(
    namespace: str, row: tuple[str, Kind] | tuple[str, Kind, str]
) -> None:
    path, kind, *group = row
    assert spot_of(namespace, str(path)) == Spot(Kind(kind), "".join(map(str, group)).encode())


def test_every_framework_has_a_row_a_folder_and_a_test() -> None:
    assert {name.decode() for name in LAYOUTS} == set(NAMESPACES) == set(TABLE) - {"a tree nobody knows"}


def test_only_a_row_with_a_stem_makes_a_group() -> None:
    for rows in LAYOUTS.values():
        for kind, pattern in rows:
            assert (kind is GROUP) == ("{stem}" in pattern), pattern


def entries_of(listing: str) -> tuple[dict[str, Counter[Kind]], dict[tuple[str, str], list[str]]]:
    """How many paths of each kind a namespace has, and the files of each entry by its folder or group."""
    kinds: dict[str, Counter[Kind]] = defaultdict(Counter)
    entries: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in (DATA / listing).read_text(encoding="utf-8").splitlines():
        namespace, _, path = line.partition("/")
        parts = path.rstrip("/").split("/")
        for depth in range(1, len(parts) + 1):
            is_dir = depth < len(parts) or path.endswith("/")
            spot = place(namespace.encode(), tuple(part.encode() for part in parts[:depth]), is_dir)
            if spot.kind is STRUCTURE and depth < len(parts):
                continue
            kinds[namespace][spot.kind] += 1
            where = "/".join([*parts[: depth - 1], spot.group.decode()] if spot.group else parts[:depth])
            if not path.endswith("/"):
                entries[f"{namespace} {spot.kind.name}", where].append(parts[-1])
            break
    return kinds, entries


def test_the_caches_of_an_h200_fall_into_whole_entries() -> None:
    kinds, entries = entries_of("h200_caches.txt")
    kernels = [set(names) for (kind, _), names in entries.items() if kind == "triton TREE"]
    assert len(kernels) == 99
    for names in kernels:
        suffixes = sorted(name.rpartition(".")[2] for name in names)
        assert suffixes in (["so"], ["cubin", "json", "json", "llir", "ptx", "source", "ttgir", "ttir"]), names
    assert kinds["triton"].keys() == {TREE}
    assert kinds["inductor"].keys() == {STRUCTURE, TREE, GROUP}
    assert kinds["cuda"] == {STRUCTURE: 2, KEPT: 1, GROUP: 1}
    graphs = [where for kind, where in entries if kind == "inductor TREE"]
    assert Counter(where.partition("/")[0] for where in graphs) == {"fxgraph": 5, "aotautograd": 3}


def test_what_compilers_made_on_the_way_is_temporary_and_their_locks_are_no_entries() -> None:
    kinds, entries = entries_of("made_by_compilers.txt")
    assert kinds["inductor"][LOCK] == sum(kind == "inductor LOCK" for kind, _ in entries) > 30
    assert all(where.endswith(".lock") for kind, where in entries if kind.endswith("LOCK"))
    leftovers = [where for kind, where in entries if kind.endswith("TEMP")]
    assert leftovers
    assert all(is_temporary(where.rpartition("/")[2].encode()) for where in leftovers)
    objects = [sorted(names) for (kind, _), names in entries.items() if kind == "inductor GROUP"]
    assert sum(any(name.endswith(".so") for name in names) for names in objects) == sum(
        any(name.endswith(".cpp") for name in names) for names in objects
    )


@pytest.mark.parametrize(
    "name", [f"tmp.pid_22717_{UUID}", ".22717.140320232455040.tmp", f"tmp.{UUID}", ".staging", "x.pyc.94103"]
)
def test_the_name_alone_tells_a_leftover(name: str) -> None:
    assert is_temporary(name.encode())


@pytest.mark.parametrize("name", ["_mm.cubin", "__grp___mm.json", "tmp", "x.tmp.py", ".22717.tmpx", KEY])
def test_an_ordinary_name_is_no_leftover(name: str) -> None:
    assert not is_temporary(name.encode())


def test_a_triton_kernel_is_called_by_its_name() -> None:
    facts = {"name": "_mm", "target": {"backend": "cuda", "arch": 90}, "num_warps": 8, "num_stages": 3}
    files = {b"_mm.json": json.dumps(facts).encode(), b"__grp___mm.json": b"{}", b"_mm.cubin": b"\x7fELF"}

    def read(path: tuple[bytes, ...]) -> bytes | None:
        return files.get(path[0])

    assert readable(b"triton", (KEY.encode(),), read, list(files)) == "_mm sm_90, 8 warps, 3 stages"
    inside = (b"triton", b"0", KEY.encode())
    assert readable(b"inductor", inside, read, list(files)) == "_mm sm_90, 8 warps, 3 stages"
    facts["target"] = {"backend": "hip", "arch": "gfx942"}
    files[b"_mm.json"] = json.dumps(facts).encode()
    assert readable(b"triton", (KEY.encode(),), read, list(files)) == "_mm gfx942, 8 warps, 3 stages"
    files[b"_mm.json"] = b"half a json {"
    assert readable(b"triton", (KEY.encode(),), read, list(files)) == KEY


def test_an_inductor_entry_is_called_by_the_kind_of_its_graph() -> None:
    pickle = b"\x80\x05\x95...# AOT ID: ['1_backward']\nfrom ctypes import c_void_p\n"

    def read(path: tuple[bytes, ...]) -> bytes | None:
        return pickle

    graph = (b"fxgraph", b"kz", b"fkzfrsam55s6xfee")
    assert readable(b"inductor", graph, read, [b"4qrb"]) == "compiled graph 1, backward fkzfrsam55s6"
    code = (b"6x", b"c6xqlvqfuc5eyay")
    assert readable(b"inductor", code, read, [b"c6xqlvqfuc5eyay.py"]) == "generated code 1, backward c6xqlvqfuc5e"
    assert readable(b"inductor", code, read, [b"c6x.cpp", b"c6x.so"]) == "C++ kernel c6xqlvqfuc5e"
    assert readable(b"inductor", (b"aotautograd", b"akanj7ufvsmd"), read) == "autograd graph akanj7ufvsmd"


def test_any_other_entry_is_called_by_its_path() -> None:
    def nothing(path: tuple[bytes, ...]) -> bytes | None:
        return None

    assert readable(b"warp", (b"1.11.0", b"wp_main_1f"), nothing) == "1.11.0/wp_main_1f"
    assert readable(b"mine", (b"\xff\xfe",), nothing) == "\\xff\\xfe"
