"""What an entry is, per framework: a table that maps a path to its entry. Pure: it reads no files.

An entry is a set of files that live and are evicted together. Each namespace has rows, and the first row that matches
says what a path is. A pattern ends in `/` when it means a folder; `**/` is any folders or none, `*` any part of a name,
`?` one character, `#` digits, `@` letters, digits, `-` and `_`, and `{stem}` the part that all files of a group share.
The table does not apply below a folder that is a TREE. A path that no row matches is an entry of its own, a folder
together with everything below it.

A changed row affects new names only. A folder that is an entry in a store stays one until it is evicted or removed, and
files that are added to it belong to it.

CONTRIBUTING.md says how to add a framework.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass


class Kind(enum.Enum):
    """What a path is."""

    STRUCTURE = "structure"
    """A folder that holds entries and is not one itself."""
    TREE = "tree"
    """A folder that is an entry, with all below it."""
    GROUP = "group"
    """A file of an entry whose files lie side by side in one folder and share a stem."""
    LOCK = "lock"
    """Not part of an entry: a lock, whose content nobody reads. Every user may take it, and so may write to it."""
    KEPT = "kept"
    """Not part of an entry: a file that a framework reads for its whole cache: index, configuration, statistics."""
    TEMP = "temp"
    """A file, or a folder with all below it, of an entry that is being written; useless once its writer is gone."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a path belongs."""

    kind: Kind
    group: bytes = b""
    """For a GROUP: the stem of the entry's files in their folder, or the name of a single file."""


NAMESPACES: tuple[str, ...] = (
    "triton",
    "inductor",
    "precompiled_headers",
    "cuda",
    "nvrtc",
    "cuda_core",
    "torch_extensions",
    "torch_kernels",
    "vllm",
    "sglang",
    "flashinfer",
    "deep_gemm",
    "deep_ep",
    "trtllm",
    "tilelang",
    "tvm_ffi",
    "cute_dsl",
    "flash_attn_cute",
    "quack",
    "cutile",
    "helion",
    "warp",
    "cupy",
    "jax",
    "numba",
    "miopen",
    "aiter",
    "flydsl",
    "ccache",
    "sccache",
    "library",
    "python",
    "comgr",
)
"""First-level folders that every mount has."""


def place(namespace: bytes, path: tuple[bytes, ...], is_dir: bool) -> Spot:
    """Where a path relative to its namespace's folder belongs. Its parent folder is STRUCTURE or the namespace."""
    pattern, spots = _table(namespace)
    matched = pattern.fullmatch(b"/".join(path) + (b"/" if is_dir else b""))
    if matched is None:
        return _TREE if is_dir else Spot(Kind.GROUP, path[-1])
    row = matched.lastgroup
    assert row is not None
    spot = spots[row]
    return spot if spot is not None else Spot(Kind.GROUP, matched[f"stem_{row}"])


ADOPTING = b".staging-adopt-"
"""The prefix of the names under which `kcachefs adopt` and `arrivals.py` build entries before they rename them."""


def is_temporary(name: bytes) -> bool:
    """Whether a file or folder of this name, anywhere in an entry, is a leftover of a writer that died."""
    return _TEMPORARY.fullmatch(name) is not None


# --- the table -------------------------------------------------------------------------------------------------------

Rows = tuple[tuple[Kind, str], ...]
"""What a path is, by pattern; the first matching row counts."""


def _within(folder: str, rows: Rows) -> Rows:
    """The rows of a cache that sits in a folder of another cache, and rows for that folder and those above it."""
    parts = folder.split("/")
    above = tuple((Kind.STRUCTURE, "/".join(parts[: depth + 1]) + "/") for depth in range(len(parts)))
    return above + tuple((kind, f"{folder}/{pattern}") for kind, pattern in rows)


def _split(levels: int, width: str = "?") -> Rows:
    """Folders that only spread files by the first characters of their names, `levels` deep."""
    return tuple((Kind.STRUCTURE, "/".join([width] * depth) + "/") for depth in range(1, levels + 1))


_LOCKS: Rows = (
    (Kind.LOCK, "**/*.lock"),
    (Kind.LOCK, "**/*.lockfile"),
    (Kind.LOCK, "**/*.ninja_lock"),
    (Kind.STRUCTURE, "**/locks/"),
)

_TEMPS: Rows = (
    (Kind.TEMP, "**/tmp.*"),
    (Kind.TEMP, "**/tmp.*/"),
    (Kind.TEMP, "**/.#.#.tmp"),
    (Kind.TEMP, "**/*.pyc.#"),
    (Kind.STRUCTURE, "**/.staging/"),
    (Kind.TEMP, "**/.staging/*"),
    (Kind.TEMP, "**/.staging/*/"),
    (Kind.TEMP, "**/.staging*"),
    (Kind.TEMP, "**/.staging*/"),
)

_TMP_FOLDER: Rows = (
    # The folder stays: its owner makes it once and expects it to exist for each file.
    (Kind.STRUCTURE, "tmp/"),
    (Kind.TEMP, "tmp/*"),
    (Kind.TEMP, "tmp/*/"),
)

_SQLITE: Rows = (
    (Kind.GROUP, "**/{stem}-journal"),
    (Kind.GROUP, "**/{stem}-wal"),
    (Kind.GROUP, "**/{stem}-shm"),
)

_TRITON: Rows = ((Kind.TREE, "*/"),)

_GENERATED: Rows = (
    (Kind.TEMP, "*_CxxBuild/"),
    (Kind.TEMP, "*.tmp"),
    (Kind.GROUP, "{stem}.*"),
)

_INDUCTOR: Rows = (
    (Kind.STRUCTURE, "fxgraph/"),
    (Kind.STRUCTURE, "fxgraph/??/"),
    (Kind.STRUCTURE, "aotautograd/"),
    (Kind.STRUCTURE, "dynamo/"),
    (Kind.STRUCTURE, "cache/"),
    (Kind.STRUCTURE, "triton/"),
    (Kind.STRUCTURE, "triton/#/"),
    *_within("cutedsl_compile_cache", _GENERATED),
    *_within("precompiled_headers", _GENERATED),
    *_within("??", _GENERATED),
)

_DEEP_GEMM: Rows = (
    (Kind.STRUCTURE, "cache/"),
    (Kind.TREE, "cache/*/"),
    *_TMP_FOLDER,
)

_PROGRAM_CACHE: Rows = (
    (Kind.STRUCTURE, "entries/"),
    (Kind.STRUCTURE, "entries/??/"),
    *_TMP_FOLDER,
)

_OBJECTS_BY_FINGERPRINT: Rows = (
    (Kind.STRUCTURE, "*/"),
    (Kind.TEMP, "**/tmp*.o"),
    (Kind.TEMP, "**/*.tmp"),
    (Kind.TEMP, "**/*.tmp.#"),
    (Kind.GROUP, "**/{stem}.*"),
)

_COMPILED_MODELS: Rows = (
    (Kind.STRUCTURE, "torch_compile_cache/"),
    (Kind.STRUCTURE, "torch_compile_cache/torch_aot_compile/"),
    (Kind.STRUCTURE, "torch_aot_compile/"),
    *_within("deep_gemm", _DEEP_GEMM),
)

_SGLANG_MODULES: Rows = tuple(
    # <target>/<module>/build-<key>/deps-<key>/, one build each. Older versions have <module>_<hash>/, with no target.
    row
    for target in ("sm#", "sm#?", "mp#", "mp#?", "gfx*", "unknown")
    for row in _within(target, ((Kind.STRUCTURE, "*/"), (Kind.STRUCTURE, "*/build-*/")))
)

_CUBINS: Rows = (
    # <hash>/<kind>/<kernel>.cubin, each downloaded by itself; headers are included by one another.
    (Kind.TEMP, "**/*.tmp"),
    (Kind.TREE, "**/include/"),
    (Kind.STRUCTURE, "**/"),
)

_FLASHINFER: Rows = (
    *_within("cubins", _CUBINS),
    (Kind.STRUCTURE, "*/"),
    (Kind.STRUCTURE, "*/*/"),
    (Kind.STRUCTURE, "*/*/cached_ops/"),
    (Kind.STRUCTURE, "*/*/generated/"),
    *_within("*/*/cached_ops/tmp", ((Kind.TEMP, "*"), (Kind.TEMP, "*/"))),
)

_INSTALLED: Rows = tuple(
    row
    for folder in ("site-packages", "dist-packages")
    for row in (
        (Kind.STRUCTURE, f"**/{folder}/"),
        (Kind.TREE, f"**/{folder}/*/"),
        (Kind.GROUP, f"**/{folder}/{{stem}}.*"),
    )
)

LAYOUTS: dict[bytes, Rows] = {
    # Our own: <name>/entries/v1/ab/<rest of the key>, one file each.
    b"library": (
        (Kind.STRUCTURE, "*/"),
        *_within("*/entries", ((Kind.STRUCTURE, "*/"), (Kind.STRUCTURE, "*/??/"))),
        *_within("*/writers", ((Kind.LOCK, "@"),)),
        *_within("*/locks", ((Kind.LOCK, "@"),)),
    ),
    b"triton": _TRITON,
    b"inductor": _INDUCTOR,
    b"precompiled_headers": _GENERATED,
    b"cuda": (*_split(2), (Kind.KEPT, "index")),
    b"nvrtc": _PROGRAM_CACHE,
    b"cuda_core": _PROGRAM_CACHE,
    b"torch_extensions": (
        # torch adds this level by itself if no folder was given, so an adopted cache has it.
        (Kind.STRUCTURE, "py#_*/"),
        (Kind.TREE, "py#_*/*/"),
    ),
    b"torch_kernels": ((Kind.TEMP, "*_tmp_#"),),
    b"vllm": (*_COMPILED_MODELS, (Kind.STRUCTURE, "modelinfos/"), (Kind.TEMP, "**/*.tmp")),
    b"sglang": (
        *_COMPILED_MODELS,
        *_within("jit", _SGLANG_MODULES),
        *_within("rust_extensions/artifacts", ((Kind.STRUCTURE, "*/"),)),
        (Kind.STRUCTURE, "rust_extensions/targets/"),
        # Caches whose own variables are not set go to SGLang's folder.
        *_within("diffusion/torch_compile_cache/inductor", _INDUCTOR),
        *_within("diffusion/torch_compile_cache/triton", _TRITON),
        *_within("inductor", _INDUCTOR),
        *_within("triton", _TRITON),
        *_within(".cache/flashinfer", _FLASHINFER),
    ),
    b"flashinfer": (
        # Where older versions of kcachefs had FlashInfer keep its cubins.
        *_within("cubins", ((Kind.TEMP, "**/*.tmp"), (Kind.TREE, "*/"))),
        (Kind.STRUCTURE, "autotune/"),
        *_within(".cache/flashinfer", _FLASHINFER),
    ),
    b"deep_gemm": _DEEP_GEMM,
    b"deep_ep": _DEEP_GEMM,
    b"trtllm": _DEEP_GEMM,
    b"tilelang": (
        *_TMP_FOLDER,
        *_split(2, "*"),
        (Kind.STRUCTURE, "*/*/kernels/"),
        (Kind.STRUCTURE, "*/*/autotuner/"),
    ),
    b"tvm_ffi": ((Kind.TREE, "*/"),),
    b"cute_dsl": ((Kind.GROUP, "{stem}.*"),),
    b"flash_attn_cute": (*_OBJECTS_BY_FINGERPRINT, (Kind.STRUCTURE, "*/*/")),
    b"quack": _OBJECTS_BY_FINGERPRINT,
    b"cutile": (),
    b"helion": (
        *_within("triton/#", _TRITON),
        *_within("cute/#", ((Kind.GROUP, "{stem}.*"),)),
        *_within("backward", _GENERATED),
        (Kind.GROUP, "{stem}.*"),
    ),
    b"warp": (
        (Kind.STRUCTURE, "*/"),
        (Kind.TEMP, "*/*_p#_t#/"),
        # Tiles of all modules are linked from these files. The folder appears whole at first, then grows file by file.
        (Kind.STRUCTURE, "*/lto/"),
        (Kind.GROUP, "*/lto/{stem}_fatbin.lto"),
        (Kind.GROUP, "*/lto/{stem}.*"),
        (Kind.TREE, "*/*/"),
    ),
    b"cupy": ((Kind.TEMP, "tmp????????"), (Kind.GROUP, "{stem}.*")),
    b"jax": (
        (Kind.GROUP, "{stem}-cache"),
        (Kind.GROUP, "{stem}-atime"),
        (Kind.STRUCTURE, "xla_gpu_per_fusion_autotune_cache_dir/"),
    ),
    b"numba": (
        (Kind.STRUCTURE, "*/"),
        (Kind.TEMP, "**/*.tmp.*"),
        (Kind.GROUP, "*/{stem}.nbi"),
        (Kind.GROUP, "*/{stem}.#.nbc"),
    ),
    b"miopen": _split(2, "*"),
    b"comgr": ((Kind.KEPT, "llvmcache.timestamp"), (Kind.TEMP, "*.tmp.o")),
    b"aiter": (
        (Kind.STRUCTURE, "build/"),
        (Kind.LOCK, "**/lock_@"),
        *_within("root/build", ((Kind.STRUCTURE, "gfx*/"), (Kind.GROUP, "gfx*/{stem}.*"))),
        (Kind.GROUP, "{stem}.*"),
    ),
    b"flydsl": ((Kind.STRUCTURE, "*/"), (Kind.TEMP, "**/.*.tmp")),
    b"ccache": (
        (Kind.KEPT, "ccache.conf"),
        (Kind.KEPT, "CACHEDIR.TAG"),
        (Kind.KEPT, "**/stats"),
        (Kind.STRUCTURE, "lock/"),
        (Kind.LOCK, "lock/@"),
        *_TMP_FOLDER,
        *_split(2),
    ),
    b"sccache": (
        (Kind.TEMP, "**/.sccachetmp*"),
        *_split(3),
        *_within("preprocessor", _split(3)),
    ),
    # <environment>/<the source's own path>/<module>.<cache tag>.pyc. An environment may lie inside a project, and
    # site-packages inside the standard library, so we know where a package ends only in site-packages and in the
    # standard library. The modules of any other folder are one group, whose stem is the cache tag in their names.
    b"python": (
        (Kind.STRUCTURE, "*/"),
        (Kind.KEPT, "*/environment.json"),
        (Kind.KEPT, "*/warm.json"),
        *_INSTALLED,
        *((Kind.TREE, f"**/{folder}/python#.{minor}/*/") for folder in ("lib", "lib64") for minor in ("#", "#t")),
        (Kind.STRUCTURE, "**/"),
        (Kind.GROUP, "**/*.{stem}.opt-@.pyc"),
        (Kind.GROUP, "**/*.{stem}.pyc"),
    ),
}
"""Rows per namespace. In every namespace, the rows for locks and temporary names come before these, and those for
SQLite's side files come after them."""


# --- patterns --------------------------------------------------------------------------------------------------------

_TREE = Spot(Kind.TREE)
_TOKEN = re.compile(r"\*\*/|\*|\?|#|@|\{stem\}")
_MEANING = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]", "#": "[0-9]+", "@": "[0-9A-Za-z_-]+"}


@functools.cache
def _table(namespace: bytes) -> tuple[re.Pattern[bytes], dict[str, Spot | None]]:
    """All rows of a namespace as one expression, whose outer groups name the rows, and the spot of each row.

    The spot is None if it depends on a stem.
    """
    spots: dict[str, Spot | None] = {}
    expressions = []
    for number, (kind, pattern) in enumerate((*_LOCKS, *_TEMPS, *LAYOUTS.get(namespace, ()), *_SQLITE)):
        row = f"row_{number}"
        spots[row] = None if kind is Kind.GROUP else Spot(kind)
        expressions.append(f"(?P<{row}>{_expression(pattern, row)})")
    return re.compile("|".join(expressions).encode(), re.DOTALL), spots


def _expression(pattern: str, row: str) -> str:
    parts, end = [], 0
    for token in _TOKEN.finditer(pattern):
        parts.append(re.escape(pattern[end : token.start()]))
        parts.append(_MEANING.get(token[0]) or f"(?P<stem_{row}>[^/]+?)")
        end = token.end()
    return "".join((*parts, re.escape(pattern[end:])))


_TEMPORARY = re.compile(
    "|".join(_expression(pattern.removesuffix("/"), "t") for _, pattern in _TEMPS if "/" not in pattern[3:-1]).encode()
)
