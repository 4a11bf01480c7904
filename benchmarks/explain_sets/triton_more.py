"""More changes to the Triton kernels, written after the first ones were answered and before these were."""

from __future__ import annotations

from benchmarks.explain_sets.changing import Change, Expected, Line, all_of
from benchmarks.explain_sets.triton_calls import HALF, SINGLE

_AT = r"(tiles|rows|pieces)\.py:\d+"
_BF = "*bf16"

MORE_CHANGES = (
    Change(
        "m_taps",
        "TAPS 3 → 4 and BLOCK 256 → 512",
        all_of("constant", "TAPS|BLOCK"),
        only=["pool"],
        constants={"TAPS": 4, "BLOCK": 512},
        without_source=all_of("constant source", _AT),
    ),
    Change(
        "m_block",
        "BLOCK 512 → 1024",
        all_of("constant", "BLOCK", "1024", "512"),
        only=["drop"],
        constants={"BLOCK": 1024},
        without_source=all_of("constant", "1024", "512", _AT),
    ),
    Change(
        "m_bk",
        "BK → 16",
        all_of("constant", r"\bBK\b", "16", "32|64"),
        only=["gemm"],
        constants={"BK": 16},
        without_source=all_of("constant", "16", "32|64", _AT),
    ),
    Change(
        "m_bn",
        "BN → 256",
        all_of("constant", r"\bBN\b", "256", "64|128"),
        only=["gemm"],
        constants={"BN": 256},
        without_source=all_of("constant", "256", "64|128", _AT),
    ),
    Change(
        "m_bm",
        "BM → 16",
        all_of("constant", r"\bBM\b", "16", "64|128"),
        only=["gemm"],
        constants={"BM": 16},
        without_source=all_of("constant", "16", "64|128", _AT),
    ),
    Change(
        "m_group",
        "GROUP 8 → 1",
        all_of("constant", "GROUP", r"\b1\b", "8"),
        only=["gemm"],
        constants={"GROUP": 1},
        without_source=all_of("constant source", r"\b1\b|tiles|pieces"),
    ),
    Change(
        "m_precision",
        "tf32 → tf32x3",
        all_of("constant", "PRECISION"),
        only=["gemm"],
        constants={"PRECISION": "tf32x3"},
        without_source=all_of("constant source", Line("tiles.py", "total = tl.dot(")),
    ),
    Change(
        "m_heads",
        "HEAD 256, HEADS 4",
        all_of("constant", r"HEAD\b", "HEADS", "256", r"\b4\b"),
        only=["rotate"],
        constants={"HEAD": 256, "HEADS": 4},
        without_source=all_of("constant", _AT),
    ),
    Change(
        "m_quantum",
        "GROUP 128 → 256",
        all_of("constant", "GROUP", "256", "128"),
        only=["quantize"],
        constants={"GROUP": 256},
        without_source=all_of("constant", "256", "128", _AT),
    ),
    Change(
        "m_bins",
        "BINS 128 and BLOCK 512",
        all_of("constant", "BINS", "BLOCK", "128", "512"),
        only=["tally"],
        constants={"BINS": 128, "BLOCK": 512},
        without_source=all_of("constant", _AT),
    ),
    Change(
        "m_act",
        "ACT swish → empty",
        all_of("constant", "ACT"),
        only=["layer_norm"],
        constants={"ACT": ""},
        without_source=all_of("constant source", _AT),
    ),
    Change(
        "m_affine",
        "AFFINE False and WIDTH 512",
        all_of("constant", "AFFINE|WIDTH"),
        only=["layer_norm"],
        constants={"AFFINE": False, "WIDTH": 512},
        without_source=all_of("constant source", _AT),
    ),
    # Types.
    Change("m_bf16", "bf16 in", all_of("type", r"\bx\b", "bf16", "f32"), only=["pool"], types={"x": _BF}),
    Change("m_i64", "x of 64 bits", all_of("type", r"\bx\b", "i64", "i32"), only=["tally"], types={"x": "*i64"}),
    Change(
        "m_gemm_bf16",
        "bf16 for fp16",
        all_of("type", r"\ba\b", "bf16", "f16"),
        only=["gemm"],
        types={"a": _BF, "b": _BF},
    ),
    Change("m_m64", "m of 64 bits", all_of("type", r"\bm\b", "i64", "i32"), only=["gemm"], types={"m": "i64"}),
    Change(
        "m_k16",
        "k divisible by 16",
        all_of("type", r"argument k\b", "divisible"),
        only=["gemm"],
        divisible=(0, 1, 2, 5, 6, 7, 8),
    ),
    Change(
        "m_stride1",
        "stride_b is 1",
        all_of("type", "stride_b", "constant"),
        only=["gemm"],
        types={"stride_b": "constexpr"},
        constants={"stride_b": 1},
    ),
    Change(
        "m_chance", "chance in double", all_of("type", "chance", "f64", "f32"), only=["drop"], types={"chance": "fp64"}
    ),
    Change(
        "m_scales", "scales in half", all_of("type", "scales", "f16", "f32"), only=["quantize"], types={"scales": HALF}
    ),
    Change("m_cos", "only cos in half", all_of("type", "cos", "f16", "f32"), only=["rotate"], types={"cos": HALF}),
    Change(
        "m_length1",
        "length is 1",
        all_of("type", "length", "constant"),
        only=["pool"],
        types={"length": "constexpr"},
        constants={"length": 1},
    ),
    # Options and the rest of the key.
    Change("m_ctas", "num_ctas=2", all_of("option", "num_ctas", "2"), only=["gemm"], options={"num_ctas": 2}),
    Change(
        "m_warp1",
        "num_warps=1",
        all_of("option", "num_warps", "1", "4"),
        only=["drop", "tally"],
        options={"num_warps": 1},
    ),
    Change(
        "m_stage1", "num_stages=1", all_of("option", "num_stages", "1", "3|4"), only=["gemm"], options={"num_stages": 1}
    ),
    Change("m_debug", "debug=True", all_of("option", "debug", "True"), only=["pool"], options={"debug": True}),
    Change(
        "m_pdl", "launch_pdl=True", all_of("option", "launch_pdl", "True"), only=["pool"], options={"launch_pdl": True}
    ),
    Change(
        "m_dot_default",
        "TRITON_F32_DEFAULT=ieee",
        all_of("environment option", "TRITON_F32_DEFAULT|default_dot_input_precision", "ieee"),
        only=["pool"],
        environment={"TRITON_F32_DEFAULT": "ieee"},
    ),
    Change("m_a100", "sm_80", all_of("architecture", "90", "80"), arch=80, only=["rotate", "quantize"]),
    Change("m_b200", "sm_100", all_of("architecture", "90", "100"), arch=100, only=["gemm"]),
    Change(
        "m_newer",
        "Triton 3.10.0",
        all_of("version", r"Triton [\d.]+ → 3\.10\.0"),
        version="3.10.0",
        only=["layer_norm"],
    ),
    # Source.
    Change(
        "m_limit",
        "LIMIT 127 → 448",
        all_of("constant source", f"LIMIT|{_AT}", "448", "127"),
        only=["quantize"],
        edits=[("rows.py", "tl.constexpr(127.0)", "tl.constexpr(448.0)")],
    ),
    Change(
        "m_fill",
        "a literal in a function",
        all_of("constant source", Line("pieces.py", "apart = tl.where"), r"\b1\b"),
        only=["layer_norm"],
        edits=[("pieces.py", "values - mean, 0.0)", "values - mean, 1.0)")],
    ),
    Change(
        "m_randn",
        "rand → randn",
        all_of("source", Line("rows.py", "tl.randn(seed")),
        only=["drop"],
        edits=[("rows.py", "tl.rand(seed", "tl.randn(seed")],
    ),
    Change(
        "m_divide",
        "% → //",
        all_of("source", Line("tiles.py", "values // BINS")),
        only=["tally"],
        edits=[("tiles.py", "values % BINS", "values // BINS")],
    ),
    Change(
        "m_bound",
        "< → <=",
        all_of("source", Line("tiles.py", "mask=at <= n, other=0)")),
        only=["tally"],
        edits=[
            (
                "tiles.py",
                "values = tl.load(x + at, mask=at < n, other=0)",
                "values = tl.load(x + at, mask=at <= n, other=0)",
            )
        ],
    ),
    Change(
        "m_no_cast",
        "a cast is gone",
        all_of("source", r"rows\.py:(4[0-9])"),
        only=["rotate"],
        edits=[("rows.py", "a = tl.load(left).to(tl.float32)", "a = tl.load(left)")],
    ),
    Change(
        "m_order",
        "two stores change places",
        all_of("source", r"rows\.py:(4[0-9])"),
        only=["rotate"],
        edits=[
            (
                "rows.py",
                "    tl.store(left, a * c - b * s)\n    tl.store(right, a * s + b * c)\n",
                "    tl.store(right, a * s + b * c)\n    tl.store(left, a * c - b * s)\n",
            )
        ],
    ),
    Change(
        "m_barrier",
        "a barrier",
        all_of("source", Line("tiles.py", "tl.debug_barrier()")),
        only=["pool"],
        edits=[
            (
                "tiles.py",
                "    tl.store(y + at, total / TAPS",
                "    tl.debug_barrier()\n    tl.store(y + at, total / TAPS",
            )
        ],
    ),
    Change(
        "m_trip",
        "one step less",
        all_of("source", Line("tiles.py", "tl.cdiv(k, BK) - 1")),
        only=["gemm"],
        edits=[("tiles.py", "range(tl.cdiv(k, BK))", "range(tl.cdiv(k, BK) - 1)")],
    ),
    Change(
        "m_helper_name",
        "leaky is called soft",
        all_of("source", f"leaky|soft|{_AT}"),
        only=["gemm"],
        edits=[("tiles.py", "import leaky,", "import soft as leaky,"), ("pieces.py", "def leaky(", "def soft(")],
    ),
    Change(
        "m_other_sum",
        "the sum in another order",
        all_of("source", Line("tiles.py", "x + (at + tap)")),
        only=["pool"],
        edits=[("tiles.py", "tl.load(x + at + tap,", "tl.load(x + (at + tap),")],
    ),
    # Text.
    Change(
        "m_above_one",
        "a comment above one kernel",
        all_of("text", "moved|line"),
        only=["tally"],
        edits=[("tiles.py", "@triton.jit\ndef tally", "# How often each value occurs.\n@triton.jit\ndef tally")],
    ),
    Change(
        "m_docstring",
        "a docstring",
        all_of("text", r"line|tiles\.py"),
        only=["pool"],
        edits=[
            (
                "tiles.py",
                "BLOCK: tl.constexpr):\n    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    total",
                'BLOCK: tl.constexpr):\n    """Average."""\n'
                "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    total",
            )
        ],
    ),
    Change(
        "m_split",
        "a call over two lines",
        all_of("text", r"line|tiles\.py|reformatted"),
        only=["pool"],
        edits=[
            (
                "tiles.py",
                "    tl.store(y + at, total / TAPS, mask=at < length)",
                "    tl.store(y + at, total / TAPS,\n             mask=at < length)",
            )
        ],
    ),
    Change(
        "m_local",
        "a local renamed",
        all_of("text source", r"kept|chosen|rows\.py"),
        only=["drop"],
        edits=[
            ("rows.py", "    kept = tl.rand", "    chosen = tl.rand"),
            ("rows.py", "tl.where(kept,", "tl.where(chosen,"),
        ],
    ),
    Change(
        "m_two",
        "num_warps=2 and WIDTH 512",
        {"layer_norm": Expected("option", ("num_warps", "2"))},
        only=["layer_norm"],
        options={"num_warps": 2},
        constants={"WIDTH": 512},
    ),
    Change(
        "m_type_and_option",
        "maxnreg and another type",
        all_of("option", "maxnreg", "96"),
        only=["rotate"],
        options={"maxnreg": 96},
        types={"cos": HALF},
    ),
    Change(
        "m_literal_and_type",
        "a type and a literal",
        all_of("type", "scales", "f64"),
        only=["quantize"],
        types={"scales": "*fp64"},
        edits=[("rows.py", "1e-10", "1e-9")],
    ),
    Change(
        "m_new",
        "another new kernel",
        all_of("new", "new"),
        only=["scale"],
        types={"x": SINGLE, "n": "i32"},
        constants={"BLOCK": 128},
        edits=[
            (
                "tiles.py",
                "@triton.jit\ndef pool(",
                "@triton.jit\ndef scale(x, n, BLOCK: tl.constexpr):\n    at = tl.arange(0, BLOCK)\n"
                "    tl.store(x + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)\n\n\n"
                "@triton.jit\ndef pool(",
            )
        ],
    ),
)
