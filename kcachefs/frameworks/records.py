"""One record per framework: its variables, its folder in the mount, and what is known about its cache.

A framework that cannot be told where to keep its cache has no variable, and a note on what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Framework:
    """What kcachefs knows about one framework's cache."""

    name: str
    namespace: str
    """Its folder in the mount."""
    default: str
    """Where its cache is if no variable is set."""
    layout: str
    """What it contains. kcachefs/core/layouts.py defines its entries."""
    needs: str
    """What it needs from a filesystem beyond files and folders."""
    source: str
    """Where these facts come from."""
    variables: dict[str, str] = field(default_factory=dict)
    """Each variable and the folder, relative to the mount, that it is set to."""
    settings: dict[str, str] = field(default_factory=dict)
    """Variables that name no folder."""
    packages: tuple[str, ...] = ()
    """Distributions; if any of them is installed, the framework is."""
    modules: tuple[str, ...] = ()
    """Modules that read the variable when they are imported; setting it later has no effect."""
    note: str = ""
    on_request: bool = False
    """Whether only `--only` moves it: a compiler cache that people have set up for all of their builds."""
    where_it_helps: bool = False
    """Whether it is moved only for commands that gain by it; `bytecode.py` judges that, and sets its variable."""

    @property
    def obeys(self) -> bool:
        """Whether it can be told where to keep its cache."""
        return bool(self.variables)


_READ = "the framework's source, August 2026"
_TRACED = "the framework's source and a trace of its system calls"
_RENAME = "rename over a file; rmdir of a folder in use refused"
_NINJA = "mtimes in nanoseconds, files rewritten in place, dlopen"
_SQLITE = "record locks, files rewritten in place, fsync"
_PUBLISH = "rename of whole folders, fsync of folders"

FRAMEWORKS: tuple[Framework, ...] = (
    Framework(
        "Triton",
        "triton",
        "~/.triton/cache",
        "<KEY>/ with seven files per kernel and a group file that names them",
        _RENAME,
        _TRACED,
        {"TRITON_CACHE_DIR": "triton"},
        packages=("triton", "pytorch-triton", "triton-windows"),
    ),
    Framework(
        "TorchInductor",
        "inductor",
        "$TMPDIR/torchinductor_<user>",
        "fxgraph/, aotautograd/, two-character folders of generated code, locks/",
        "flock; objects written in place; dlopen",
        _TRACED,
        {"TORCHINDUCTOR_CACHE_DIR": "inductor"},
        packages=("torch",),
    ),
    Framework(
        "TorchInductor's C++ headers",
        "precompiled_headers",
        "$TMPDIR/torchinductor_<user>/precompiled_headers",
        "<key>.h with a .gch of 150 MB, locks/",
        "flock; 40,000 writes in place, mapped privately",
        _TRACED,
        packages=("torch",),
        note="reads no variable: kcachefs puts a link there instead (see kcachefs/frameworks/headers.py)",
    ),
    Framework(
        "torch C++ extensions",
        "torch_extensions",
        "~/.cache/torch_extensions",
        "<name>/ with ninja's files, objects and the library",
        _NINJA,
        _READ,
        {"TORCH_EXTENSIONS_DIR": "torch_extensions"},
        packages=("torch",),
        note="gets a folder per Python and torch version if torch is installed beside kcachefs",
    ),
    Framework(
        "torch jiterator",
        "torch_kernels",
        "~/.cache/torch/kernels",
        "one file per kernel",
        "the folder must exist",
        _READ,
        {"PYTORCH_KERNEL_CACHE_PATH": "torch_kernels"},
        packages=("torch",),
    ),
    Framework(
        "CUDA driver",
        "cuda",
        "~/.nv/ComputeCache",
        "index, and files under two levels of folders",
        "files rewritten in place",
        "observed on an H200",
        {"CUDA_CACHE_PATH": "cuda"},
        {"CUDA_CACHE_MAXSIZE": "4294967296"},
        note="its own limit is set to the maximum, so that only the mount's quota applies",
    ),
    Framework(
        "cuda.core",
        "cuda_core",
        "~/.cache/cuda-python/program-cache",
        "entries/<2 hex>/<62 hex>, tmp/",
        "explicit atimes, rename over a file",
        _TRACED,
        packages=("cuda-core",),
        note="reads no variable: pass FileStreamProgramCache(path=os.environ['KCACHEFS_MOUNT'] + '/cuda_core')",
    ),
    Framework(
        "vLLM",
        "vllm",
        "~/.cache/vllm",
        "torch_compile_cache/<hash>/rank_i_j/, torch_aot_compile/, deep_gemm/",
        "flock, rename over a file, dlopen",
        _READ,
        {"VLLM_CACHE_ROOT": "vllm"},
        packages=("vllm",),
        note="keeps the caches of TorchInductor and Triton in its own folder",
    ),
    Framework(
        "SGLang",
        "sglang",
        "~/.cache/sglang",
        "torch_compile_cache/, deep_gemm/, jit/",
        "flock, rename over a file, dlopen",
        _READ,
        {
            "SGLANG_CACHE_DIR": "sglang",
            "SGLANG_JIT_CACHE_DIR": "sglang/jit",
            "SGLANG_DG_CACHE_DIR": "sglang/deep_gemm",
            "SGLANG_DIFFUSION_CACHE_ROOT": "sglang/diffusion",
        },
        packages=("sglang",),
    ),
    Framework(
        "FlashInfer",
        "flashinfer",
        "~/.cache/flashinfer",
        ".cache/flashinfer/<version>/<arch>/{cached_ops,generated}/<op>/",
        _NINJA,
        _READ,
        {
            "FLASHINFER_WORKSPACE_BASE": "flashinfer",
            "FLASHINFER_CUBIN_DIR": "flashinfer/cubins",
            "FLASHINFER_AUTOTUNE_DIR": "flashinfer/autotune",
        },
        packages=("flashinfer-python", "flashinfer"),
        modules=("flashinfer",),
        note="it does not read FLASHINFER_CACHE_DIR",
    ),
    Framework(
        "DeepGEMM",
        "deep_gemm",
        "~/.deep_gemm",
        "cache/kernel.<name>.<hash>/, tmp/",
        _PUBLISH,
        _READ,
        {"DG_JIT_CACHE_DIR": "deep_gemm"},
        packages=("deep-gemm",),
        modules=("deep_gemm",),
    ),
    Framework(
        "DeepEP",
        "deep_ep",
        "~/.deep_ep",
        "cache/kernel.<name>.<hash>/, tmp/",
        _PUBLISH,
        _READ,
        {"EP_JIT_CACHE_DIR": "deep_ep"},
        packages=("deep-ep",),
        modules=("deep_ep",),
    ),
    Framework(
        "TensorRT-LLM",
        "trtllm",
        "~/.tensorrt_llm",
        "cache/kernel.<name>.<hash>/, tmp/",
        _PUBLISH,
        "a copy of the framework's source",
        {"TRTLLM_DG_CACHE_DIR": "trtllm"},
        packages=("tensorrt-llm",),
        modules=("tensorrt_llm",),
    ),
    Framework(
        "TileLang",
        "tilelang",
        "~/.tilelang/cache",
        "<version>/<platform>/kernels/<key>/, .staging/",
        _PUBLISH,
        _READ,
        {"TILELANG_CACHE_DIR": "tilelang", "TILELANG_TMP_DIR": "tilelang/tmp"},
        packages=("tilelang",),
        modules=("tilelang",),
    ),
    Framework(
        "tvm-ffi",
        "tvm_ffi",
        "~/.cache/tvm-ffi",
        "<name>_<hash>/",
        "flock; " + _NINJA,
        _READ,
        {"TVM_FFI_CACHE_DIR": "tvm_ffi"},
        packages=("apache-tvm-ffi",),
    ),
    Framework(
        "CuTe DSL",
        "cute_dsl",
        "$TMPDIR/<user>/cutlass_python_cache",
        "one file per kernel",
        _RENAME,
        _READ,
        {"CUTE_DSL_CACHE_DIR": "cute_dsl"},
        packages=("nvidia-cutlass-dsl",),
        modules=("cutlass",),
    ),
    Framework(
        "FlashAttention CuTe",
        "flash_attn_cute",
        "/tmp/<user>/flash_attention_cute_dsl_cache",
        "<fingerprint>/<key>.o",
        "flock, dlopen",
        _READ,
        {"FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash_attn_cute"},
        packages=("flash-attn-4", "flash-attn-cute"),
        modules=("flash_attn.cute",),
    ),
    Framework(
        "quack",
        "quack",
        "/tmp/<user>/quack_cache",
        "<fingerprint>/<key>.o",
        "flock, dlopen",
        _READ,
        {"QUACK_CACHE_DIR": "quack"},
        packages=("quack-kernels",),
        modules=("quack",),
    ),
    Framework(
        "cuTile",
        "cutile",
        "~/.cache/cutile-python",
        "one SQLite file",
        _SQLITE,
        _READ,
        {"CUDA_TILE_CACHE_DIR": "cutile"},
        packages=("cuda-tile",),
        modules=("cuda.tile",),
    ),
    Framework(
        "Helion",
        "helion",
        "in TorchInductor's cache",
        "<hash>.best_config",
        _RENAME,
        _READ,
        {"HELION_CACHE_DIR": "helion"},
        packages=("helion",),
    ),
    Framework(
        "Warp",
        "warp",
        "~/.cache/warp",
        "<version>/wp_<module>_<hash>/",
        _PUBLISH,
        _READ,
        {"WARP_CACHE_PATH": "warp"},
        packages=("warp-lang",),
        modules=("warp",),
    ),
    Framework(
        "CuPy",
        "cupy",
        "~/.cupy/kernel_cache",
        "one file per kernel",
        _RENAME,
        _READ,
        {"CUPY_CACHE_DIR": "cupy"},
        packages=("cupy", "cupy-cuda12x", "cupy-cuda13x"),
        note="only its cache was tested, without a GPU: its compiler needs one even to name a kernel",
    ),
    Framework(
        "JAX",
        "jax",
        "none: caching is off by default",
        "<key>-cache with <key>-atime",
        "fcntl locks",
        _READ,
        {"JAX_COMPILATION_CACHE_DIR": "jax"},
        packages=("jax",),
        modules=("jax",),
    ),
    Framework(
        "Numba",
        "numba",
        "__pycache__ beside the source",
        "<folder>/<function>.nbi with its .nbc files",
        "mtimes in nanoseconds, rename over a file",
        _READ,
        {"NUMBA_CACHE_DIR": "numba"},
        packages=("numba",),
        modules=("numba",),
        note="caches only functions declared with cache=True",
    ),
    Framework(
        "MIOpen",
        "miopen",
        "~/.cache/miopen",
        "SQLite files per version",
        _SQLITE,
        _READ,
        {"MIOPEN_CUSTOM_CACHE_DIR": "miopen/cache", "MIOPEN_USER_DB_PATH": "miopen/db"},
    ),
    Framework(
        "AITER",
        "aiter",
        "~/.aiter",
        "<module>.so, build/<module>/",
        _NINJA,
        _READ,
        {"AITER_JIT_DIR": "aiter"},
        packages=("aiter", "amd-aiter"),
        modules=("aiter",),
    ),
    Framework(
        "FlyDSL",
        "flydsl",
        "~/.flydsl",
        "a folder per kernel",
        _PUBLISH,
        _READ,
        {"FLYDSL_RUNTIME_CACHE_DIR": "flydsl"},
        packages=("flydsl",),
        modules=("flydsl",),
    ),
    Framework(
        "ccache",
        "ccache",
        "~/.cache/ccache",
        "two levels of folders, tmp/, lock/",
        "flock, rename over a file, explicit mtimes",
        "its manual",
        {"CCACHE_DIR": "ccache"},
        note="only moved on request: --only ccache",
        on_request=True,
    ),
    Framework(
        "sccache",
        "sccache",
        "~/.cache/sccache",
        "three levels of folders",
        "rename over a file",
        "its manual",
        {"SCCACHE_DIR": "sccache"},
        note="only moved on request: --only sccache",
        on_request=True,
    ),
    Framework(
        "Python",
        "python",
        "__pycache__ beside each source",
        "<environment>/<path of the source>/<module>.<cache tag>.pyc",
        "rename over a file",
        _TRACED,
        {"PYTHONPYCACHEPREFIX": "python"},
        note="bytecode; moved where none is beside the sources: see --bytecode of kcachefs env and kcachefs run",
        where_it_helps=True,
    ),
    Framework(
        "ninetoothed",
        "",
        "~/.ninetoothed",
        "plain files, not written atomically",
        "nothing",
        _READ,
        packages=("ninetoothed",),
        note="its folder is hard-coded; only a symbolic link at ~/.ninetoothed can move it",
    ),
)
