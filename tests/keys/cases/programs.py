"""Programs for run-time compilers, tensor signatures and graphs: arguments, options, and headers on the disk."""

from __future__ import annotations

from tests.keys.cases.case import Case, Expectation, dedent

MAIN = """
import os
from kcachefs.keys import *
def program(code="__global__ void k() {}", *options, order="preserved", **more):
    given = {"target": "cubin", "arch": "sm_90", "compiler_version": "13.4", **more}
    return program_key(code, list(options), option_order=order, **given)
def normal(*options):
    return program("", *options, order="normalised")
def including(code, *options, folders=("first", "second"), **more):
    root = os.getcwd() if more.pop("absolute", False) else ""
    paths = [os.path.join(root, folder) for folder in folders]
    return program(code, *options, *(f"-I{path}" for path in paths), include_paths=paths, **more)
def tensor(*spec, **more):
    return hash_tensor_signature(TensorSpec(*spec, **more))
def graph(device):
    return CacheKey("g", device=DeviceClass.parse(device)).digest()
def linked(code):
    for link in ("first/link", "second/link"):
        os.path.lexists(link) or os.symlink(os.path.abspath("outside/inner"), link)
    return including(code)
def absolute(code):
    with open("second/to_there.h", "w") as file:
        file.write(f'#include "{os.path.abspath("outside")}/near.h"')
    with open("outside/near.h", "w") as file:
        file.write('#include "far.h"\\n#include "inner/in.h"')
    return including(code)
"""

FILES = {
    "main.py": dedent(MAIN),
    "first/unused.h": "#define U 1\n",
    "second/outer.h": '#include "detail/inner.h"\n',
    "second/detail/inner.h": '#include "beside.h"\n',
    "second/detail/beside.h": "#define N 1\n",
    "second/escape.h": '#include "../outside/far.h"\n',
    "second/names.h": '#define WHICH "outer.h"\n',
    "outside/far.h": "#define FAR 1\n",
    "outside/x.h": "#define X 1\n",
    "outside/inner/in.h": "#define IN 1\n",
    "second/x.h": "#define X 2\n",
    "second/where.h": "const char* where = __FILE__;\n",
}

ABSOLUTE = """absolute('#include "to_there.h"')"""


def calls(section: str, expect: Expectation, lines: str, is_portable: bool = True) -> list[Case]:
    """One case for each line `one || two` of expressions that give a key."""
    cases = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        one, _, two = line.partition(" || ")
        before, after = one.strip(), (two or one).strip()
        cases.append(Case(f"{section}: {line}", expect, FILES, before, after, is_portable=is_portable))
    return cases


def headers(section: str, expect: Expectation, call: str, lines: str) -> list[Case]:
    """One case for each line `file: old || new`, an edit of a header; a file that is not there is written anew."""
    cases = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, _, change = line.partition(": ")
        old, new = (part.strip() for part in change.split("||"))
        changed = {name: FILES.get(name, "").replace(old, new) if old else new + "\n"}
        cases.append(Case(f"{section}: {call} [{line}]", expect, FILES, call, call, changed))
    return cases


CASES: list[Case] = [
    *calls(
        "program",
        "change",
        """
        program() || program("__global__ void k() { }")
        program() || program(arch="sm_90a")
        program() || program(arch="compute_90")
        program() || program(target="ptx")
        program() || program(compiler_version="13.5")
        program() || program(language="nvvm")
        program() || program(name="a.cu")
        program() || program(name_expressions=["k"])
        program(name_expressions=["k"]) || program(name_expressions=[b"k"])
        program() || program(extra={"a": 1})
        program() || program(headers={"a.h": ""})
        program(headers={"a.h": "1"}) || program(headers={"a.h": "2"})
        program(headers={"a.h": "1"}) || program(headers={"b.h": "1"})
        program(extra_sources=[("a", "1"), ("b", "2")]) || program(extra_sources=[("b", "2"), ("a", "1")])
        program("", "-DA=1") || program("", "-DA=2")
        program("", "-DA") || program("", "-D", "A")
        program("", "-lineinfo", "--std=c++17") || program("", "--std=c++17", "-lineinfo")
        program("", "a", "b") || program("", "ab")
        program("") || normal()
        """,
    ),
    *calls(
        "options in order",
        "change",
        """
        normal("--fmad=false", "-fmad=true") || normal("-fmad=true", "--fmad=false")
        normal("--fmad=false", "--fmad=true") || normal("--fmad=true", "--fmad=false")
        normal("-ftz=true", "--ftz=false") || normal("--ftz=false", "-ftz=true")
        normal("--prec-div=true", "-prec-div=false") || normal("-prec-div=false", "--prec-div=true")
        normal("--prec-sqrt=true", "-prec-sqrt=false") || normal("-prec-sqrt=false", "--prec-sqrt=true")
        normal("-maxrregcount=32", "--maxrregcount=64") || normal("--maxrregcount=64", "-maxrregcount=32")
        normal("-std=c++17", "--std=c++20") || normal("--std=c++20", "-std=c++17")
        normal("-rdc=true", "--relocatable-device-code=false") || normal("--relocatable-device-code=false", "-rdc=true")
        normal("-rdc=false", "-dc") || normal("-dc", "-rdc=false")
        normal("-diag-suppress=1", "--diag-warn=1") || normal("--diag-warn=1", "-diag-suppress=1")
        normal("-DA=1", "-DA=2") || normal("-DA=2", "-DA=1")
        normal("-DA", "-UA") || normal("-UA", "-DA")
        normal("-D", "A", "-U", "B") || normal("-D", "B", "-U", "A")
        normal("-DA", "--undefine-macro=A") || normal("--undefine-macro=A", "-DA")
        normal("-Ia", "-Ib") || normal("-Ib", "-Ia")
        normal("-Ia", "--include-path=b") || normal("--include-path=b", "-Ia")
        normal("-include=a.h", "--pre-include=b.h") || normal("--pre-include=b.h", "-include=a.h")
        normal("-Xptxas", "-O1", "-Xptxas", "-O3") || normal("-Xptxas", "-O3", "-Xptxas", "-O1")
        normal("--ptxas-options=-O1", "-Xptxas=-O3") || normal("-Xptxas=-O3", "--ptxas-options=-O1")
        normal("-O2", "-O3") || normal("-O3", "-O2")
        normal("--unknown=1", "--other=2") || normal("--other=2", "--unknown=1")
        normal("-fmad", "true", "-ftz", "false") || normal("-fmad", "false", "-ftz", "true")
        """,
    ),
    *calls(
        "options that may change places",
        "same",
        """
        normal("--fmad=true", "--std=c++17") || normal("--std=c++17", "--fmad=true")
        normal("-fmad=true", "-ftz=true") || normal("-ftz=true", "-fmad=true")
        normal("--restrict", "--use_fast_math") || normal("--use_fast_math", "--restrict")
        normal("-DA", "--restrict", "-DB") || normal("--restrict", "-DA", "-DB")
        normal("--maxrregcount=32", "-Ia") || normal("-Ia", "--maxrregcount=32")
        program(name_expressions=["a", "b"]) || program(name_expressions=["b", "a"])
        program(headers={"a": "1", "b": "2"}) || program(headers={"b": "2", "a": "1"})
        program("", "-DA") || program("", b"-DA")
        program("x") || program(b"x")
        including('#include "outer.h"') || including('#include "outer.h"', absolute=True)
        including('#include "outer.h"', "-DN") || including('#include "outer.h"', "-DN", absolute=True)
        """,
    ),
    *calls(
        "paths that the compiled program tells",
        "change",
        """
        including('#include "where.h"') || including('#include "where.h"', absolute=True)
        including('#include "outer.h"', "-lineinfo") || including('#include "outer.h"', "-lineinfo", absolute=True)
        including('#include "outer.h"', "-G") || including('#include "outer.h"', "-G", absolute=True)
        including('#include "outer.h"') || including('#include "outer.h"', folders=("second", "first"))
        including('#include "outer.h"') || including('#include "outer.h"', folders=("second",))
        """,
        is_portable=False,
    ),
    *headers(
        "header",
        "change",
        """including('#include "outer.h"')""",
        """
        second/detail/beside.h: N 1 || N 2
        second/detail/inner.h: beside || other
        second/outer.h: || #define NOTHING
        first/outer.h: || #define FIRST
        first/beside.h: || #define N 3
        second/beside.h: || #define N 4
        """,
    ),
    *headers(
        "header that does not count",
        "same",
        """including('#include "outer.h"')""",
        """
        first/unused.h: U 1 || U 2
        outside/far.h: FAR 1 || FAR 2
        first/new.h: || #define NEW
        """,
    ),
    *headers("header outside", "change", """including('#include "escape.h"')""", "outside/far.h: FAR 1 || FAR 2"),
    *headers(
        "header by a macro",
        "change",
        """including('#include "names.h"\\n#include WHICH')""",
        """
        second/detail/beside.h: N 1 || N 2
        second/names.h: outer || other
        """,
    ),
    *headers(
        "header by an option",
        "change",
        """including('#include WHICH', '-DWHICH=<outer.h>')""",
        "second/detail/beside.h: N 1 || N 2",
    ),
    *headers(
        "header behind a linked folder",
        "change",
        """linked('#include "link/in.h"')""",
        "outside/inner/in.h: IN 1 || IN 2",
    ),
    *headers(
        "header beyond a linked folder",
        "change",
        """linked('#include "link/../x.h"\\n#include "x.h"')""",
        """
        outside/x.h: X 1 || X 3
        second/x.h: X 2 || X 3
        """,
    ),
    *headers(
        "header that may be there",
        "change",
        """including('#if __has_include("late.h")\\n#endif')""",
        "first/late.h: || #define LATE",
    ),
    *headers(
        "header before the source",
        "change",
        """including("", pre_includes=["outer.h"])""",
        "second/detail/beside.h: N 1 || N 2",
    ),
    *(
        Case(
            f"header that includes by an absolute path [{change}]",
            "change",
            FILES,
            ABSOLUTE,
            ABSOLUTE,
            then=change,
            is_portable=False,
        )
        for change in (
            "open('outside/far.h', 'w').write('#define FAR 2')",
            "open('outside/inner/in.h', 'w').write('#define IN 2')",
        )
    ),
    *calls(
        "includes",
        "refused",
        """
        including("#include WHICH")
        including(chr(10).join(["#define S(x) #x", "#include S(outer.h)"]))
        including("#include WHICH", "-DWHICH=OTHER")
        program("", "-lineinfo", compiler_version="")
        program_key("", "-lineinfo", target="ptx", arch="sm_90", compiler_version="1")
        program_key("", [1], target="ptx", arch="sm_90", compiler_version="1")
        program_key("", target="ptx", arch="sm_90", compiler_version="1", name_expressions="ab")
        program_key("", target="ptx", arch="sm_90", compiler_version="1", include_paths="first")
        program_key("", target="ptx", arch="sm_90", compiler_version="1", pre_includes="outer.h")
        hash_depends([file("/dev/zero")])
        """,
    ),
    *calls(
        "tensors",
        "change",
        """
        hash_tensor_signature() || tensor((), "float32")
        tensor((4,), "float32") || tensor((5,), "float32")
        tensor((4,), "float32") || tensor((4,), "float16")
        tensor((4,), "float16") || tensor((4,), "bfloat16")
        tensor((4,), "bool") || tensor((4,), "torch.int1")
        tensor((4, 4), "i8") || tensor((4, 4), "i8", (1, 4))
        tensor((4,), "i8") || tensor((4,), "i8", (-1,))
        tensor((4,), "i8") || tensor(("4",), "i8")
        tensor(("n",), "i8") || tensor(("m",), "i8")
        tensor(("n",), "i8") || tensor((Dim("n", 1),), "i8")
        tensor((Dim("n", 1),), "i8") || tensor((Dim("n", 2),), "i8")
        tensor((4,), "i8") || tensor((4,), "i8", layout="x")
        tensor((4,), "i8", padding=0) || tensor((4,), "i8", padding=0.0)
        tensor((1, "n"), "i8") || tensor((1, "n"), "i8", jagged_dim=1)
        tensor(("m", "n"), "i8", jagged_dim=0) || tensor(("m", "n"), "i8", jagged_dim=1)
        hash_tensor_signature(constexprs={"B": 1}) || hash_tensor_signature(constexprs={"B": 2})
        hash_tensor_signature(constexprs={"B": 1}) || hash_tensor_signature(constexprs={"C": 1})
        CacheKey("g").to_storage_key() || CacheKey("h").to_storage_key()
        CacheKey("g").to_storage_key() || CacheKey(b"g").to_storage_key()
        CacheKey("g").to_storage_key() || CacheKey("g", extra=1).to_storage_key()
        CacheKey("g").to_storage_key() || CacheKey("g", [InputSpec((), "i8")]).to_storage_key()
        CacheKey("g", [InputSpec((1,), "i8")]).digest() || CacheKey("g", [InputSpec((2,), "i8")]).digest()
        CacheKey("g", [InputSpec((1,), "i8")]).digest() || CacheKey("g", [InputSpec((1,), "u8")]).digest()
        CacheKey("g").digest() || CacheKey("g", device=DeviceClass.cpu()).digest()
        graph("sm_90") || graph("sm_90a")
        graph("sm_90") || graph("sm_89")
        project_fingerprint("first") || project_fingerprint("second")
        project_fingerprint(["first"]) || project_fingerprint(["first", "second"])
        hash_depends([env("KCACHEFS_A")]) || hash_depends([env("KCACHEFS_B")])
        hash_depends([file("second/x.h")]) || hash_depends([file("outside/x.h")])
        hash_depends([file("second/x.h")]) || hash_depends([file("second/missing.h")])
        hash_depends([version("blake3")]) || hash_depends([version("missing")])
        """,
    ),
    *calls(
        "tensors spelled otherwise",
        "same",
        """
        tensor((4,), "float32") || tensor([4], "fp32")
        tensor((4,), "half") || tensor((4,), "torch.float16")
        tensor((4,), "tl.int1") || tensor((4,), "bool")
        tensor((4, 2), "i8") || tensor((4, 2), "int8", (2, 1))
        tensor(("n",), "i8") || tensor((Dim("n"),), "i8")
        tensor((1, "n"), "i8", jagged_dim=1) || tensor((1, "n"), "i8", jagged_dim=-1)
        graph("sm_90a") || graph("9.0a")
        project_fingerprint("second") || project_fingerprint(os.path.abspath("second"))
        hash_depends([file("second/x.h")]) || hash_depends([file(os.path.abspath("second/x.h"))])
        """,
    ),
    *calls(
        "tensors that are none",
        "refused",
        """
        TensorSpec((4,), "float")
        TensorSpec((4,), "int")
        TensorSpec((4,), "floatt32")
        TensorSpec((4,), float)
        TensorSpec((4,), None)
        TensorSpec((4.5,), "i8")
        TensorSpec((-1,), "i8")
        TensorSpec((4, 4), "i8", (1,))
        TensorSpec((4,), "i8", jagged_dim=0)
        TensorSpec(("n",), "i8", jagged_dim=1)
        InputSpec((4,), "float")
        CacheKey("")
        DeviceClass.parse("gpu")
        hash_tensor_signature("float32")
        hash_tensor_signature(constexprs={1: 2})
        """,
    ),
]
