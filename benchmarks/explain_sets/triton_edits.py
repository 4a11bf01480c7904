"""Changes to the source of the Triton kernels: what it computes, or only its text."""

from __future__ import annotations

from benchmarks.explain_sets.changing import Change, Expected, Line, all_of
from benchmarks.explain_sets.triton_calls import SINGLE

_MOVED = Expected("text", ("moved|line",))

SOURCE_CHANGES = (
    # The source.
    Change(
        "epsilon",
        "the global EPSILON 1e-6 → 1e-5",
        {"layer_norm": Expected("constant source", ("EPSILON|rows.py:18", "1e-0?5", "1e-0?6"))},
        edits=[("rows.py", "tl.constexpr(1e-6)", "tl.constexpr(1e-5)")],
        only=["layer_norm"],
    ),
    Change(
        "slope",
        "a global of the file of functions",
        all_of("constant source", "SLOPE|pieces.py:23", r"0\.5|5e-01", r"0\.25"),
        edits=[("pieces.py", "tl.constexpr(0.25)", "tl.constexpr(0.5)")],
        only=["gemm"],
    ),
    Change(
        "literal",
        "a literal 1e-10 → 1e-8",
        all_of("constant source", "1e-0?8", "1e-10", Line("rows.py", "top = tl.maximum")),
        edits=[("rows.py", "1e-10", "1e-8")],
        only=["quantize"],
    ),
    Change(
        "beta",
        "a literal that is passed to a function",
        all_of("constant source", Line("rows.py", "swish(result, 1.75)"), r"1\.75", r"1\.5"),
        edits=[("rows.py", "swish(result, 1.5)", "swish(result, 1.75)")],
        only=["layer_norm"],
    ),
    Change(
        "operator",
        "- → + in a rotation",
        all_of("source", Line("rows.py", "a * c + b * s")),
        edits=[("rows.py", "a * c - b * s", "a * c + b * s")],
        only=["rotate"],
    ),
    Change(
        "modulo",
        "% m removed from a line",
        all_of("source", Line("tiles.py", "rows = (row * BM + tl.arange(0, BM))")),
        edits=[("tiles.py", "rows = (row * BM + tl.arange(0, BM)) % m", "rows = (row * BM + tl.arange(0, BM))")],
        only=["gemm"],
    ),
    Change(
        "semantics",
        'sem="relaxed" → "acq_rel"',
        all_of("source", Line("tiles.py", "tl.atomic_add")),
        edits=[("tiles.py", 'sem="relaxed"', 'sem="acq_rel"')],
        only=["tally"],
    ),
    Change(
        "statement",
        "a statement added to a function",
        {
            "layer_norm": Expected("source", (Line("pieces.py", "apart = apart * 1.0"),)),
            "gemm": Expected("text", ("pieces.py|moved|line",)),
        },
        edits=[("pieces.py", "    return mean, tl.sum", "    apart = apart * 1.0\n    return mean, tl.sum")],
        only=["layer_norm", "gemm"],
    ),
    Change(
        "helper_operator",
        "* → + in a function that is called",
        all_of("source", Line("pieces.py", "x * tl.sigmoid(x + beta)")),
        edits=[("pieces.py", "x * tl.sigmoid(x * beta)", "x * tl.sigmoid(x + beta)")],
        only=["layer_norm"],
    ),
    Change(
        "other_function",
        "leaky is replaced by its own expression",
        all_of("source", Line("tiles.py", "total = tl.where")),
        edits=[("tiles.py", "total = leaky(total)", "total = tl.where(total > 0, total, 0.0)")],
        only=["gemm"],
    ),
    Change(
        "cast",
        "the store casts to bfloat16",
        all_of("source", Line("tiles.py", "total.to(tl.bfloat16)")),
        edits=[("tiles.py", "total.to(tl.float16)", "total.to(tl.bfloat16)")],
        only=["gemm"],
    ),
    Change(
        "parameter",
        "a parameter renamed",
        all_of("source", "seed", "key"),
        only=["drop"],
        edits=[("rows.py", "n, seed, chance", "n, key, chance"), ("rows.py", "tl.rand(seed", "tl.rand(key")],
        types={"seed": "", "key": "i32"},
    ),
    Change(
        "added_parameter",
        "a parameter added",
        all_of("source type", "offset"),
        only=["pool"],
        edits=[
            ("tiles.py", "def pool(x, y, length,", "def pool(x, y, length, offset,"),
            ("tiles.py", "x + at + tap,", "x + offset + at + tap,"),
        ],
        types={"offset": "i32"},
    ),
    # Only the text.
    Change(
        "comment",
        "a comment at the end of a line",
        all_of("text", "rows.py|text|comment"),
        edits=[("rows.py", "half = tl.arange(0, HEAD // 2)\n", "half = tl.arange(0, HEAD // 2)  # of a pair\n")],
        only=["rotate"],
    ),
    Change(
        "comment_in_function",
        "a comment of a function changed",
        all_of("text", "pieces.py|text|comment"),
        edits=[("pieces.py", "# smooth, and close", "# smooth and close")],
        only=["layer_norm"],
    ),
    Change(
        "blank",
        "a blank line inside a kernel",
        {"quantize": Expected("text", (r"rows.py:5\d|line",)), "drop": _MOVED},
        edits=[("rows.py", "    scale = top / LIMIT\n", "\n    scale = top / LIMIT\n")],
        only=["quantize", "drop"],
    ),
    Change(
        "above",
        "two lines above all kernels",
        all_of("text", "moved|line"),
        edits=[("tiles.py", "import triton\n", "import math\nimport os\n\nimport triton\n")],
        only=["pool", "tally", "gemm"],
    ),
    Change(
        "functions_moved",
        "a line above the functions",
        all_of("text", r"pieces.py"),
        edits=[("pieces.py", "import triton\n", "import math\n\nimport triton\n")],
        only=["layer_norm", "gemm"],
    ),
    Change(
        "renamed",
        "a kernel renamed",
        all_of("source", "pool", "average"),
        edits=[("tiles.py", "def pool(", "def average(")],
        only=["pool"],
        renamed={"pool": "average"},
    ),
    Change(
        "local",
        "a local variable renamed",
        all_of("text source", "values|loaded|rows.py"),
        only=["drop"],
        edits=[
            (
                "rows.py",
                "    values = tl.load(x + at, mask=at < n)\n    tl.store(y + at, tl.where(kept, values /",
                "    loaded = tl.load(x + at, mask=at < n)\n    tl.store(y + at, tl.where(kept, loaded /",
            )
        ],
    ),
    # Two at once: the first in the order of causes.
    Change(
        "two",
        "num_warps=8 and a literal",
        all_of("option", "num_warps", "8"),
        options={"num_warps": 8},
        edits=[("rows.py", "1e-10", "1e-8")],
        only=["quantize"],
    ),
    Change(
        "type_and_source",
        "fp32 in, and an operator",
        all_of("type", r"\bx\b", "f32", "f16"),
        types={"x": SINGLE},
        edits=[("rows.py", "values / (1 - chance)", "values * (1 - chance)")],
        only=["drop"],
    ),
    Change(
        "new",
        "a kernel that was not there",
        all_of("new", "new|nothing"),
        edits=[
            (
                "tiles.py",
                "@triton.jit\ndef tally(",
                "@triton.jit\ndef fill(x, BLOCK: tl.constexpr):\n    tl.store(x + tl.arange(0, BLOCK), 1.0)\n\n\n"
                "@triton.jit\ndef tally(",
            )
        ],
        only=["fill"],
        types={"x": SINGLE},
        constants={"BLOCK": 64},
    ),
)
