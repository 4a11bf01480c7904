"""Changes to a program that torch.compile compiles for the CPU, and what an explanation must say of every new graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.explain_sets.changing import Expected, all_of

FILES = ("model.py", "parts.py")
NOTHING_NEW: Mapping[str, Expected] = {}


@dataclass(frozen=True)
class Run:
    """One run of the program: which graph, with what inputs, under which settings."""

    graph: str = "block"
    """block, train (the block with its backward graph), score or product."""
    shape: Sequence[int] = (4, 16, 64)
    width: int = 64
    hidden: int = 128
    dtype: str = "float32"
    strided: bool = False
    """The input is a transposed view."""
    mask: bool = False
    gradient: bool = False
    """The input of a block needs a gradient, although no backward pass follows."""
    power: float = 2.0
    dynamic: bool | None = None
    mark_dynamic: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Names below torch._inductor.config."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Calls of torch: name and argument."""
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    """The version of torch to pretend to be."""


@dataclass(frozen=True)
class ProgramChange:
    name: str
    what: str
    run: Run
    expected: Mapping[str, Expected]
    """By the graph's kind (inference, forward, backward); "" is every other one. Empty: nothing may be new."""
    edits: Sequence[tuple[str, str, str]] = ()


def _edit(name: str, what: str, file: str, old: str, new: str, *said: str, run: Run | None = None) -> ProgramChange:
    return ProgramChange(name, what, run or Run(), all_of("source", *said), [(file, old, new)])


PRODUCT = Run(graph="product", shape=(16, 64))
BASE = (Run(), Run(graph="train"), Run(graph="score"), PRODUCT)

CHANGES = (
    # Inputs.
    ProgramChange("batch", "4 → 8", Run(shape=(8, 16, 64), dynamic=False), all_of("type", r"8, 16, 64", r"4, 16, 64")),
    ProgramChange(
        "length", "16 → 24", Run(shape=(4, 24, 64), dynamic=False), all_of("type", r"4, 24, 64", r"4, 16, 64")
    ),
    ProgramChange("rank", "one axis less", Run(shape=(4, 64)), all_of("type", r"4, 64", r"4, 16, 64")),
    ProgramChange("width", "64 → 32", Run(shape=(4, 16, 32), width=32), all_of("type", r"4, 16, 32", r"4, 16, 64")),
    ProgramChange(
        "hidden", "hidden layer 128 → 96", Run(hidden=96), all_of("type", r"96, 64|\b96\b", r"128, 64|\b128\b")
    ),
    ProgramChange("bfloat16", "all in bfloat16", Run(dtype="bfloat16"), all_of("type", "bfloat16", "float32")),
    ProgramChange("float64", "all in float64", Run(dtype="float64"), all_of("type", "float64", "float32")),
    ProgramChange("strided", "a transposed view", Run(strided=True), all_of("type", "stride")),
    ProgramChange(
        "masked", "a mask is given", Run(mask=True), all_of("type source", r"model\.py:20|masked_fill|inputs|mask")
    ),
    ProgramChange(
        "gradient", "the input needs a gradient", Run(gradient=True), all_of("type option", "gradient|inference|grad")
    ),
    ProgramChange("dynamic", "dynamic=True", Run(dynamic=True), all_of("type", "symbolic|dynamic")),
    ProgramChange("marked", "mark_dynamic on the batch", Run(mark_dynamic=0), all_of("type", "symbolic|dynamic")),
    ProgramChange(
        "train_batch",
        "4 → 8 of a training step",
        Run(graph="train", shape=(8, 16, 64), dynamic=False),
        all_of("type", r"8, 16, 64|8, 16, 128|128, ", r"4, 16, 64|4, 16, 128|64, "),
    ),
    ProgramChange(
        "train_bfloat16",
        "a training step in bfloat16",
        Run(graph="train", dtype="bfloat16"),
        all_of("type", "bfloat16", "float32"),
    ),
    ProgramChange(
        "score_shape",
        "another shape",
        Run(graph="score", shape=(2, 100), dynamic=False),
        all_of("type", "2, 100", "4, 16, 64"),
    ),
    ProgramChange("score_strided", "a transposed view", Run(graph="score", strided=True), all_of("type", "stride")),
    ProgramChange(
        "power", "2.0 → 3.0", Run(graph="score", power=3.0), all_of("source constant", r"\b3", "model.py:27|pow")
    ),
    # Settings and configuration.
    ProgramChange(
        "fusion",
        "epilogue_fusion off",
        Run(config={"epilogue_fusion": False}),
        all_of("environment", "epilogue_fusion", "False", "True"),
    ),
    ProgramChange(
        "matcher",
        "pattern_matcher off",
        Run(config={"pattern_matcher": False}),
        all_of("environment", "pattern_matcher", "False", "True"),
    ),
    ProgramChange(
        "random",
        "fallback_random on",
        Run(config={"fallback_random": True}),
        all_of("environment", "fallback_random", "True", "False"),
    ),
    ProgramChange(
        "asserts",
        "size_asserts off",
        Run(config={"size_asserts": False}),
        all_of("environment", "size_asserts", "False", "True"),
    ),
    ProgramChange(
        "simd",
        "cpp.simdlen 256",
        Run(config={"cpp.simdlen": 256}),
        all_of("environment", r"cpp\.simdlen", "256", "None"),
    ),
    ProgramChange(
        "fusion_size",
        "max_fusion_size 8",
        Run(config={"max_fusion_size": 8}),
        all_of("environment", "max_fusion_size", r"\b8\b", "64"),
    ),
    ProgramChange(
        "wrapper",
        "cpp_wrapper on",
        Run(config={"cpp_wrapper": True}),
        all_of("environment", "cpp_wrapper", "True", "False"),
    ),
    ProgramChange(
        "option",
        "an option of torch.compile",
        Run(options={"max_fusion_size": 4}),
        all_of("environment", "max_fusion_size", r"\b4\b", "64"),
    ),
    ProgramChange(
        "mode",
        "max-autotune-no-cudagraphs",
        Run(mode="max-autotune-no-cudagraphs"),
        all_of("environment", "max_autotune", "True", "False"),
    ),
    ProgramChange(
        "two_configs",
        "two settings at once",
        Run(config={"epilogue_fusion": False, "size_asserts": False}),
        all_of("environment", "epilogue_fusion|size_asserts", "False", "True"),
    ),
    ProgramChange(
        "threads",
        "another number of threads",
        Run(settings={"set_num_threads": 1}),
        all_of("environment", "thread", r"\b1\b"),
    ),
    ProgramChange(
        "deterministic",
        "deterministic algorithms",
        Run(settings={"use_deterministic_algorithms": True}),
        all_of("environment", "deterministic"),
    ),
    ProgramChange(
        "train_config",
        "a setting of a training step",
        Run(graph="train", config={"max_fusion_size": 16}),
        all_of("environment", "max_fusion_size", "16", "64"),
    ),
    ProgramChange(
        "score_threads",
        "another number of threads",
        Run(graph="score", settings={"set_num_threads": 1}),
        all_of("environment", "thread", r"\b1\b"),
    ),
    ProgramChange("version", "torch 2.13.0 → 2.14.0", Run(version="2.14.0"), all_of("version", r"2\.14\.0", r"2\.13")),
    ProgramChange(
        "train_version", "torch 2.14.0", Run(graph="train", version="2.14.0"), all_of("version", r"2\.14\.0", r"2\.13")
    ),
    ProgramChange(
        "version_and_shape",
        "torch 2.14.0 with another batch",
        Run(version="2.14.0", shape=(8, 16, 64), dynamic=False),
        all_of("version", r"2\.14\.0", r"2\.13"),
    ),
    ProgramChange(
        "config_and_shape",
        "a setting with another batch",
        Run(config={"max_fusion_size": 8}, shape=(8, 16, 64), dynamic=False),
        all_of("environment", "max_fusion_size", r"\b8\b", "64"),
    ),
    # The model.
    _edit("relu", "gelu → relu", "parts.py", "functional.gelu(x)", "functional.relu(x)", r"parts\.py:8|model\.py:17"),
    _edit(
        "share",
        "0.5 → 0.25",
        "model.py",
        "gate(y, 0.5)",
        "gate(y, 0.25)",
        r"0\.25",
        r"0\.5",
        r"parts\.py:12|model\.py:21",
    ),
    _edit("minus", "+ → -", "model.py", "x + gate", "x - gate", r"model\.py:21"),
    _edit(
        "eps",
        "eps of the norm",
        "model.py",
        "nn.LayerNorm(width)",
        "nn.LayerNorm(width, eps=1e-3)",
        r"model\.py:16",
        r"0?\.001|1e-0?3",
    ),
    _edit(
        "no_norm",
        "the norm is not used",
        "model.py",
        "y = self.norm(x)",
        "y = x",
        r"model\.py:16|native_layer_norm|var_mean|norm|mean",
    ),
    _edit(
        "no_bias",
        "a layer without bias",
        "model.py",
        "nn.Linear(hidden, width)",
        "nn.Linear(hidden, width, bias=False)",
        "bias|input|model.py:18|addmm|mm",
    ),
    _edit(
        "clamp",
        "a clamp is added",
        "model.py",
        "        y = self.down(y)\n",
        "        y = self.down(y).clamp(-3.0, 3.0)\n",
        r"model\.py:18",
        "clamp",
    ),
    _edit(
        "sigmoid",
        "tanh → sigmoid",
        "parts.py",
        "torch.tanh(x)",
        "torch.sigmoid(x)",
        r"parts\.py:12|model\.py:21",
        "sigmoid",
        "tanh",
    ),
    _edit(
        "dimension",
        "softmax over another axis",
        "model.py",
        "dim=-1)",
        "dim=1)",
        r"model\.py:26",
        run=Run(graph="score"),
    ),
    _edit(
        "no_root",
        "the root is dropped",
        "model.py",
        ".sum(-1).sqrt()",
        ".sum(-1)",
        "sqrt",
        r"model\.py:27",
        run=Run(graph="score"),
    ),
    _edit(
        "maximum",
        "sum → amax",
        "model.py",
        ".sum(-1).sqrt()",
        ".amax(-1).sqrt()",
        "amax",
        r"model\.py:27",
        run=Run(graph="score"),
    ),
    _edit(
        "gelu_tanh",
        "an argument of gelu",
        "parts.py",
        "gelu(x)",
        'gelu(x, approximate="tanh")',
        r"parts\.py:8|model\.py:17",
    ),
    ProgramChange(
        "break",
        "a graph break",
        Run(),
        all_of("source", "break|part|fewer|gone|model.py|norm|parts.py"),
        [("model.py", "        y = self.down(y)\n", "        torch._dynamo.graph_break()\n        y = self.down(y)\n")],
    ),
    _edit(
        "train_relu",
        "gelu → relu in training",
        "parts.py",
        "functional.gelu(x)",
        "functional.relu(x)",
        r"parts\.py:8|model\.py:17|relu|erf|gelu",
        run=Run(graph="train"),
    ),
    # A graph that needs no C++ compiler, which the tests use.
    ProgramChange(
        "product_shape",
        "16 → 24 rows",
        replace(PRODUCT, shape=(24, 64), dynamic=False),
        all_of("type", r"24, 64", r"16, 64"),
    ),
    ProgramChange(
        "product_config",
        "size_asserts off",
        replace(PRODUCT, config={"size_asserts": False}),
        all_of("environment", "size_asserts", "False", "True"),
    ),
    ProgramChange(
        "product_settings",
        "four settings",
        replace(
            PRODUCT,
            config={
                "max_fusion_size": 32,
                "realize_reads_threshold": 5,
                "realize_opcount_threshold": 31,
                "split_reductions": False,
            },
        ),
        all_of("environment", "max_fusion_size is 32", "realize_reads_threshold is 5"),
    ),
    _edit(
        "product_turned",
        "the result is transposed",
        "model.py",
        "torch.mm(x, y.t())",
        "torch.mm(x, y.t()).t()",
        r"model\.py:31",
        run=PRODUCT,
    ),
    # Nothing that a graph depends on.
    ProgramChange(
        "comment", "a comment", Run(), NOTHING_NEW, [("model.py", "y = self.norm(x)\n", "y = self.norm(x)  # first\n")]
    ),
    ProgramChange(
        "moved",
        "lines above the model",
        Run(),
        NOTHING_NEW,
        [("model.py", "import torch\n", "import math\n\nimport torch\n")],
    ),
    ProgramChange(
        "new",
        "a graph like no other",
        Run(graph="other"),
        all_of("new", "new|nothing"),
        [
            (
                "model.py",
                "def score(",
                "def other(x: torch.Tensor) -> torch.Tensor:\n    return torch.fft.fft(x).real.cumsum(0)\n\n\n"
                "def score(",
            )
        ],
    ),
)
